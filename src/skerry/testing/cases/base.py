"""What every conformance class shares: the fixtures that are overridden, and how long a case may take."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, NoReturn, Protocol

import anyio
import pytest

from skerry.core import Provider, Unsupported, capabilities
from skerry.sdk import AsyncSandbox

_numbers = itertools.count(1)


class Fresh(Protocol):
    """Makes a sandbox for the case alone; it is destroyed after the case."""

    async def __call__(self, **options: Any) -> AsyncSandbox: ...


class Conformance:
    """The base of the suite. A subclass named `Test…` overrides `provider` and, where that is needed, `options`.

    Both are fixtures with the scope "class". A case that the provider does not offer is skipped with "not offered: …".
    """

    pytestmark = pytest.mark.anyio

    title: ClassVar[str] = ""
    """What the class is called in tables."""
    needs: ClassVar[str | None] = None
    """The capability without which no case of the class applies."""
    patience: ClassVar[float] = 60.0
    """A case that takes longer, in seconds, fails: a provider that hangs does not conform."""

    def __init_subclass__(cls) -> None:
        for name, case in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(case):
                setattr(cls, name, _within_patience(case))

    @pytest.fixture(scope="class")
    @classmethod
    def anyio_backend(cls) -> str:
        return "asyncio"

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Provider:
        """The provider under test: override this."""
        raise NotImplementedError(f"{cls.__name__} does not override the fixture `provider`")

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls) -> dict[str, Any]:
        """What every `create` of the suite is given besides the case's own options."""
        return {}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _offered(cls, provider: Provider) -> None:
        if cls.needs is not None and cls.needs not in capabilities(provider):
            not_offered(f"{provider.name} does not have the capability {cls.needs}")

    @pytest.fixture(scope="class")
    @classmethod
    async def sandbox(cls, provider: Provider, options: dict[str, Any]) -> AsyncIterator[AsyncSandbox]:
        """One sandbox for all cases of the class that do not disturb each other."""
        with anyio.fail_after(cls.patience):
            made = await AsyncSandbox.create(provider, **options)
        yield made
        with anyio.fail_after(cls.patience):
            await made.destroy()

    @pytest.fixture
    async def directory(self, sandbox: AsyncSandbox) -> str:
        """The case's own directory in the shared sandbox, as an absolute path."""
        path = f"{(await sandbox.info()).workdir}/case-{next(_numbers)}"
        await sandbox.files.mkdir(path)
        return path

    @pytest.fixture
    async def attempt(self, provider: Provider, options: dict[str, Any]) -> AsyncIterator[Fresh]:
        """Makes sandboxes for the case, also those that should have been refused; they are destroyed after it."""
        made: list[AsyncSandbox] = []

        async def create(**own: Any) -> AsyncSandbox:
            made.append(await AsyncSandbox.create(provider, **(options | own)))
            return made[-1]

        yield create
        for sandbox in made:
            await sandbox.destroy()

    @pytest.fixture
    def fresh(self, attempt: Fresh) -> Fresh:
        """Makes sandboxes for the case; an option that the provider refuses as unsupported is not offered."""

        async def create(**own: Any) -> AsyncSandbox:
            try:
                return await attempt(**own)
            except Unsupported as error:
                not_offered(str(error))

        return create


def not_offered(what: str) -> NoReturn:
    """Ends the case: neither passed nor failed."""
    pytest.skip(f"not offered: {what}")


async def until(condition: Callable[[], Awaitable[object]], *, seconds: float = 20.0) -> None:
    """Wait until `condition` is true. Raises TimeoutError."""
    with anyio.fail_after(seconds):
        while not await condition():
            await anyio.sleep(0.01)


async def alive(sandbox: AsyncSandbox, pid: int) -> bool:
    """Whether a process runs in the sandbox; a zombie does not."""
    result = await sandbox.exec(["cat", f"/proc/{pid}/stat"])
    return result.ok and result.stdout.rsplit(")", 1)[1].split()[0] != "Z"


async def gone(sandbox: AsyncSandbox, pid: int) -> None:
    """Wait until a process has ended. Raises TimeoutError."""

    async def ended() -> bool:
        return not await alive(sandbox, pid)

    await until(ended)


def _within_patience(case: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(case)
    async def limited(self: Conformance, **fixtures: Any) -> None:
        with anyio.fail_after(self.patience):
            await case(self, **fixtures)

    return limited
