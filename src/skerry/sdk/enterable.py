"""Calls that may be awaited for their result, or entered with `async with` at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any])


class Enterable(Coroutine[Any, Any, C], Generic[C]):
    """A coroutine; `async with` awaits it, and enters and leaves what it returns."""

    def __init__(self, coroutine: Coroutine[Any, Any, C]) -> None:
        self._coroutine = coroutine
        self._made: C | None = None

    def __await__(self) -> Generator[Any, Any, C]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> C:
        self._made = await self._coroutine
        entered: C = await self._made.__aenter__()
        return entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._made is not None
        return await self._made.__aexit__(kind, error, traceback)


def enterable(call: Callable[P, Coroutine[Any, Any, C]]) -> Callable[P, Enterable[C]]:
    """The same call, whose result can also be entered without `await`."""

    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Enterable[C]:
        return Enterable(call(*args, **kwargs))

    return wrapper
