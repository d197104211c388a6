"""The verbs that change the state and the limits of a sandbox: the part of `AsyncSandbox` that has them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from skerry.core import Deadlines, Provider, Resizable, SandboxInfo, Seconds, Unsupported, check_lifetime
from skerry.sdk.connection.link import Link
from skerry.sdk.log import log
from skerry.sdk.options import ResourceOptions, check_limits
from skerry.sdk.state import lifecycle
from skerry.wire import Life, LifeReply

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox
    from skerry.sdk.state.export import KeyOptions
    from skerry.sdk.templates.templates import TemplateOption


class StateVerbs:
    """What `AsyncSandbox` derives from."""

    _provider: Provider
    _info: SandboxInfo
    _link: Link

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def _whole(self) -> AsyncSandbox:
        return cast("AsyncSandbox", self)  # nothing else derives from this

    async def stop(self, *, timeout: float = 10.0) -> SandboxInfo:
        """End what runs in the sandbox; keep its files and variables. Until `start` it uses no memory and does not age.

        Processes are asked to end (SIGTERM; terminals are hung up) and killed after `timeout` seconds, 120 at most.

        Raises SandboxNotFound, Conflict for one that has failed, Unsupported where the provider cannot.
        """
        began = time.perf_counter()
        self._info = await lifecycle.stop(self._link, self._whole.ports, timeout)
        return self._changed("stop", began)

    async def start(self, *, key: KeyOptions | None = None) -> SandboxInfo:
        """Start a stopped or archived sandbox, with its files, variables and full lifetime; resume a paused one.

        Any call that needs it running does the same, unless `auto_start=False`. Does nothing if it is running. `key` is
        the key it was archived with, by default that of SKERRY_ARCHIVE_KEY.

        Raises SandboxNotFound, SandboxFailed, Unsupported; Corrupted where its files are missing or its archive is
        damaged; Unauthenticated for a key that is not its archive's: it stays archived.
        """
        began = time.perf_counter()
        self._info = await lifecycle.start(self._link, key)
        await self._serve()
        return self._changed("start", began)

    async def archive(self, *, key: KeyOptions | None = None) -> SandboxInfo:
        """Stop the sandbox and put its files into compressed cold storage; `start` brings them back.

        With `key`, or one in SKERRY_ARCHIVE_KEY, the archive is encrypted, and `start` needs the same key. The archive
        is read back and compared before the files go. Does nothing if it is archived.

        Raises:
            SandboxNotFound, Conflict for one that has failed.
            DiskFull: there is no room for the archive; it is stopped and has its files.
            Unsupported: the provider cannot, or a file is of a kind that no archive can hold.
            InvalidArgument: there is no such key.
        """
        began = time.perf_counter()
        self._info = await lifecycle.archive(self._link, self._whole.ports, key)
        return self._changed("archive", began)

    async def restart(
        self,
        *,
        env: Mapping[str, str] | None = None,
        resources: ResourceOptions | None = None,
        template: TemplateOption | None = None,
        timeout: float = 10.0,
    ) -> SandboxInfo:
        """Stop the sandbox and start it, with other limits, another template, or added and changed variables.

        What cannot be honoured is refused before the stop. A new template, built if it is not, changes what is below
        the files that were written; these stay. `timeout` as for `stop`.

        Raises SandboxNotFound, Unsupported, QuotaExceeded, InvalidArgument, TemplateNotFound; Conflict for one that has
        failed, or for a new template where it was made from a snapshot.
        """
        from skerry.sdk.templates.templates import resolve_template

        began = time.perf_counter()
        built = await resolve_template(self._provider, template=template)
        reference = built.reference if built is not None else None if template is None else "host"
        self._info = await lifecycle.restart(
            self._link, self._whole.ports, timeout, env=env, resources=resources, template=reference
        )
        await self._serve()
        return self._changed("restart", began)

    async def pause(self) -> SandboxInfo:
        """Freeze its processes in memory, with their connections, until `resume`. Its lifetime continues to count.

        Raises SandboxNotFound, Conflict for one that does not run, Unsupported where the provider cannot.
        """
        began = time.perf_counter()
        self._info = await lifecycle.pause(self._link)
        return self._changed("pause", began)

    async def resume(self) -> SandboxInfo:
        """Let its processes continue. Raises SandboxNotFound, Conflict for one that is not paused, Unsupported."""
        began = time.perf_counter()
        self._info = await lifecycle.resume(self._link)
        return self._changed("resume", began)

    async def reset(self, *, hard: bool = False) -> SandboxInfo:
        """Kill its processes and forget changed variables; with `hard`, forget its files too. It runs afterwards.

        With `hard`, files are what they were at its creation, and Skerry makes sure that nothing from before is left;
        volumes stay. The scripts that its template runs once in a new sandbox run again; a `source` is not fetched
        again.

        Raises SandboxNotFound, Conflict, Unsupported where the provider cannot.
        """
        began = time.perf_counter()
        self._info = await lifecycle.reset(self._link, self._whole.ports, hard=hard)
        if hard:
            from skerry.sdk.templates.setup import ensure_workdir, prepare_again

            await ensure_workdir(self._whole, self._info)
            if self._info.snapshot is None:
                await prepare_again(self._whole, self._info)
        await self._serve()
        return self._changed("reset", began)

    async def recover(self) -> SandboxInfo:
        """Start a sandbox that has failed, with the files it had.

        Raises SandboxNotFound, Conflict if it has not failed, Corrupted where its files are missing, Unsupported.
        """
        began = time.perf_counter()
        self._info = await lifecycle.recover(self._link, self._whole.ports)
        await self._serve()
        return self._changed("recover", began)

    async def _serve(self) -> None:
        """Start what its template runs in the background, unless another client has done so since the start."""
        if self._info.template_id is not None:
            from skerry.sdk.templates.setup import serve

            await serve(self._whole, self._info)

    def _changed(self, op: str, began: float) -> SandboxInfo:
        log.info("%s %s: %s", op, self.id, self._info.state, extra=self._link.fields(op, began))
        return self._info

    async def set_limits(
        self,
        *,
        cpu: float | None = None,
        cpu_percent: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
    ) -> SandboxInfo:
        """Change limits while the sandbox runs; those not given stay. 100 `cpu_percent` are one core.

        Raises Unsupported where the provider cannot, QuotaExceeded above a maximum, InvalidArgument.
        """
        limits = check_limits(cpu=cpu, cpu_percent=cpu_percent, memory=memory, disk=disk, pids=pids)
        if not isinstance(self._provider, Resizable):
            raise Unsupported(f"{self._provider.name} cannot change limits of a running sandbox", option="set_limits")
        self._info = await self._provider.set_limits(self.id, limits)
        return self._info

    async def scale(self, *, cpu: float | None = None, memory: int | str | None = None) -> SandboxInfo:
        """Change CPU and memory, as `set_limits` does."""
        return await self.set_limits(cpu=cpu, memory=memory)

    async def set_timeout(self, seconds: Seconds) -> SandboxInfo:
        """Set the timeout to `seconds` from now, or to text such as "2h", sooner or later than before.

        `on_timeout` stays as it is.

        Raises QuotaExceeded above the maximum lifetime, Unsupported where the provider cannot, SandboxNotFound.
        """
        seconds = check_lifetime(seconds)
        if not isinstance(self._provider, Deadlines):
            raise Unsupported(f"{self._provider.name} cannot change the lifetime of a sandbox", option="set_timeout")
        await self._link.request(Life(deadline_ms=max(1, round(seconds * 1000))), LifeReply)
        self._info = await self._provider.record_deadline(self.id, seconds)
        return self._info
