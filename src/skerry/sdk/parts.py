"""The parts of a sandbox object: the part of `AsyncSandbox` that has them. Each is imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from skerry.sdk.connection.link import Link

if TYPE_CHECKING:
    from skerry.sdk.commands.env import AsyncEnv
    from skerry.sdk.files.files import AsyncFiles
    from skerry.sdk.git.git import AsyncGit
    from skerry.sdk.ports.ports import AsyncPorts
    from skerry.sdk.processes.processes import AsyncProcesses
    from skerry.sdk.sandbox import AsyncSandbox
    from skerry.sdk.state.snapshots import AsyncSandboxSnapshots
    from skerry.sdk.terminals.terminals import AsyncTerminals

T = TypeVar("T")


class Parts:
    """What `AsyncSandbox` derives from."""

    _link: Link
    _parts: dict[str, Any]

    @property
    def files(self) -> AsyncFiles:
        """Its files."""
        from skerry.sdk.files.files import AsyncFiles

        return self._part("files", AsyncFiles)

    @property
    def processes(self) -> AsyncProcesses:
        """Its background processes."""
        from skerry.sdk.processes.processes import AsyncProcesses

        return self._part("processes", AsyncProcesses)

    @property
    def terminals(self) -> AsyncTerminals:
        """Its terminals."""
        from skerry.sdk.terminals.terminals import AsyncTerminals

        return self._part("terminals", AsyncTerminals)

    @property
    def env(self) -> AsyncEnv:
        """The environment of later commands."""
        from skerry.sdk.commands.env import AsyncEnv

        return self._part("env", AsyncEnv)

    @property
    def ports(self) -> AsyncPorts:
        """Its TCP ports."""
        from skerry.sdk.ports.ports import AsyncPorts

        return self._part("ports", AsyncPorts)

    @property
    def git(self) -> AsyncGit:
        """Its repositories."""
        from skerry.sdk.git.git import AsyncGit

        return self._part("git", AsyncGit)

    @property
    def snapshots(self) -> AsyncSandboxSnapshots:
        """Its snapshots."""
        return self._part("snapshots", self._make_snapshots)

    def _make_snapshots(self, link: Link) -> AsyncSandboxSnapshots:
        from skerry.sdk.state.snapshots import AsyncSandboxSnapshots

        whole = cast("AsyncSandbox", self)  # nothing else derives from this
        return AsyncSandboxSnapshots(link.provider, link.sandbox_id, whole._restored)

    def _part(self, name: str, make: Callable[[Link], T]) -> T:
        """The same object whenever it is asked for, from any thread."""
        found: T | None = self._parts.get(name)
        return self._parts.setdefault(name, make(self._link)) if found is None else found

    async def _close_ports(self) -> None:
        if (ports := self._parts.get("ports")) is not None:
            await ports._close()
