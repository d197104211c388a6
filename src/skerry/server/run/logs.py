"""The server's log: lines for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import time

from skerry.server.settings import Settings

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The fields that the caller has added."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        data: dict[str, object] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return json.dumps(data, default=str)


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        extra = " ".join(f"{name}={value}" for name, value in _fields(record).items() if value not in (None, ""))
        # A client may have chosen a path or a name: it must not begin a new line.
        text = f"{moment} {record.levelname.lower():7} {record.getMessage()} {extra}".rstrip()
        text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure_logs(settings: Settings) -> None:
    """Send everything to stderr, and nothing else."""
    os.environ["SKERRY_PROGRESS"] = "0"
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else Lines())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "httpx2", "httpcore2", "websockets", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop a wrong message: uvicorn believes that a WebSocket refused with an answer was forgotten."""
    return record.getMessage() != "ASGI callable returned without completing handshake."
