"""Bodies of the provider routes: models as plain JSON, checked on their way in."""

from __future__ import annotations

from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from skerry.core import InvalidArgument, dump_json, from_plain, load_json

T = TypeVar("T")


class Plain(Response):
    """An answer with a model, several models, or anything that has a plain form."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dump_json(content)


async def read_body(request: Request, kind: type[T]) -> T:
    """The body as a model. Raises InvalidArgument."""
    return from_plain(kind, load_json(await request.body()))


def whole(text: str, what: str) -> int:
    """A number from a query. Raises InvalidArgument."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgument(f"{what} must be a whole number, not {text[:40]!r}")
    return int(text)
