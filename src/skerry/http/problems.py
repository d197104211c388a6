"""Errors of the server, `application/problem+json`, as the very exceptions a local call would raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from skerry.core import errors
from skerry.core.errors import SkerryError
from skerry.core.models import ExecResult
from skerry.core.plain import from_plain

_MAX_TEXT = 100_000
_CARRY_RESULT = (errors.CommandFailed, errors.GitError)


class ServerError(SkerryError):
    """The server broke, or answered with something that is no answer; `status` is what HTTP said."""

    code = "INTERNAL"
    hint = "the server's log says more; look there for the request id"

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, retryable=status in (502, 503))
        self.status = status


def _tree(kind: type[SkerryError]) -> Iterator[type[SkerryError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


def _by_code() -> dict[str, type[SkerryError]]:
    """Of those that share a code the most general one, which the tree has first."""
    found: dict[str, type[SkerryError]] = {}
    for kind in _tree(SkerryError):
        found.setdefault(kind.code, kind)
    return found


ERRORS = _by_code()


def error_of(problem: Mapping[str, Any], status: int = 0) -> SkerryError:
    """The exception that a problem document stands for; ServerError for a code that is not known here."""
    code, message = _text(problem.get("code")), _text(problem.get("detail") or problem.get("title"))
    message = message or f"the server answered {status}"
    kind = ERRORS.get(code)
    error: SkerryError
    if kind is None or kind is SkerryError:
        where = f" (request {_text(problem.get('request_id'))})" if problem.get("request_id") else ""
        error = ServerError(message + where, status=status)
    else:
        error = _make(kind, message, problem)
    if isinstance(problem.get("retryable"), bool):
        error.retryable = problem["retryable"]
    if isinstance(problem.get("hint"), str) and problem["hint"]:
        error.hint = _text(problem["hint"])
    return error


def _make(kind: type[SkerryError], message: str, problem: Mapping[str, Any]) -> SkerryError:
    result = _result(problem.get("result"))
    if result is not None and kind is errors.Timeout:
        return errors.ExecTimeout(message, result)
    if issubclass(kind, _CARRY_RESULT):
        if result is None:
            return ServerError(f"{kind.code}: {message}")
        return kind(message, result)
    if issubclass(kind, errors.TemplateBuildFailed):
        return kind(message, step=_text(problem.get("step")), log=_text(problem.get("log")))
    if issubclass(kind, errors.Unsupported):
        names = problem.get("providers")
        providers = tuple(map(_text, names)) if isinstance(names, list) else ()
        return kind(message, option=_text(problem.get("option")), providers=providers)
    if issubclass(kind, errors.FileError):
        errno = problem.get("errno")
        return kind(message, errno=errno if type(errno) is int else None)
    return kind(message)


def _result(value: Any) -> ExecResult | None:
    """What a command had written; None where it is missing or no result."""
    try:
        return None if value is None else from_plain(ExecResult, value, strict=False)
    except errors.InvalidArgument:
        return None


def _text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""
