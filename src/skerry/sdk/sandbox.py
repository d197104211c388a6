"""The sandbox object."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Literal, Self

import anyio

from skerry.core import (
    CodeResult,
    Deadlines,
    Event,
    ExecResult,
    Leases,
    OnTimeout,
    Provider,
    Resizable,
    SandboxInfo,
    SandboxSpec,
    SandboxStopped,
    SkerryError,
    SnapshotInfo,
    State,
    TemplateNotFound,
    Unsupported,
    Usage,
    registry,
)
from skerry.core import Volumes as VolumeProvider
from skerry.sdk.commands import code as snippets
from skerry.sdk.commands.env import AsyncEnv
from skerry.sdk.commands.exec_stream import AsyncExecStream
from skerry.sdk.commands.execute import execute, execute_on_terminal
from skerry.sdk.commands.output import OUTPUT_LIMIT
from skerry.sdk.commands.request import BytesCallback, Command, SandboxPath, Stdin, TextCallback, build
from skerry.sdk.connection.link import Link
from skerry.sdk.events import EventCallback, EventLog, EventType, check_callback
from skerry.sdk.files.files import AsyncFiles
from skerry.sdk.git.git import AsyncGit
from skerry.sdk.health import TIMEOUT as CHECK_TIMEOUT
from skerry.sdk.health import Checks, HealthReport, examine
from skerry.sdk.instructions import Instructions, check_instructions, describe
from skerry.sdk.listing import SandboxPage, SandboxStatus, select_sandboxes, spec_of
from skerry.sdk.log import log
from skerry.sdk.options import (
    ResourceOptions,
    VolumeOptions,
    build_spec,
    check_idle,
    check_lifetime,
    check_limits,
    refuse_encrypted,
)
from skerry.sdk.ports.ports import AsyncPorts
from skerry.sdk.processes.processes import AsyncProcesses
from skerry.sdk.state import lifecycle
from skerry.sdk.state.clone import CopyOptions, SecretOptions, check_count, copy, copy_spec
from skerry.sdk.state.export import (
    KeyOptions,
    StateProgress,
    StateSource,
    StateTarget,
    check_import,
    export,
    import_,
)
from skerry.sdk.state.snapshots import (
    AsyncSandboxSnapshots,
    LogCallback,
    SnapshotName,
    check_beginning,
    require_snapshots,
)
from skerry.sdk.state.snapshots import find as find_snapshot
from skerry.sdk.state.wait import wait_for_state
from skerry.sdk.templates.builder import ProgressCallback
from skerry.sdk.templates.images import ImageOption
from skerry.sdk.templates.setup import ensure_workdir, make_workdir, needs_preparation, prepare, prepare_again, serve
from skerry.sdk.templates.sources import SourceOption, check_source, source_digest
from skerry.sdk.templates.templates import TemplateOption, based_on, resolve_template
from skerry.sdk.terminals.terminals import COLS, ROWS, AsyncTerminals
from skerry.sdk.usage import measure
from skerry.wire import Life, LifeReply

READY_GUARD = 5.0
DESTROY_GUARD = 600.0
"""A sandbox may hold hundreds of thousands of files on a slow disk; its processes are gone long before them."""


class AsyncForkResult:
    """What became of one copy of a `fork`."""

    def __init__(self, sandbox: AsyncSandbox | None, error: SkerryError | None = None) -> None:
        self._sandbox, self._error = sandbox, error

    @property
    def sandbox(self) -> AsyncSandbox | None:
        """The copy; None when it could not be made."""
        return self._sandbox

    @property
    def error(self) -> SkerryError | None:
        """Why it could not be made; None when it was."""
        return self._error


class AsyncSandbox:
    """An isolated environment to run commands in: made by `create`, `clone`, `fork`; found by `connect`, `get`, `find`.

    `async with` on one that was made here ties its life to the block: it is destroyed on the way out, and ends with
    this process if that dies. On one that was found, leaving the block only closes the connection.
    Without `async with` it lives until `destroy` or its timeout. May be used from several tasks and event loops.
    """

    def __init__(
        self,
        provider: Provider,
        info: SandboxInfo,
        spec: SandboxSpec | None = None,
        *,
        auto_start: bool = True,
        owned: bool = False,
    ) -> None:
        """`owned`: it was made for this object, so that `async with` destroys it."""
        self._provider = provider
        self._info = info
        self._spec = spec
        self._log = EventLog(provider, info.id)
        self._link = Link(provider, info.id, auto_start=auto_start, on_event=self._log.add)
        self._files = AsyncFiles(self._link)
        self._processes = AsyncProcesses(self._link)
        self._terminals = AsyncTerminals(self._link)
        self._env = AsyncEnv(self._link)
        self._ports = AsyncPorts(self._link)
        self._git = AsyncGit(self._link)
        self._snapshots = AsyncSandboxSnapshots(provider, info.id, self._restored)
        self._instructions: Instructions | None = None
        self._owned = owned
        self._link.on_start = self._serve

    def __repr__(self) -> str:
        name = "" if self.name is None else f" name={self.name!r}"
        return f"<{type(self).__name__} {self.id}{name} provider={self.provider!r}>"

    @classmethod
    async def create(
        cls,
        provider: str | Provider | None = None,
        *,
        name: str | None = None,
        template: TemplateOption | None = None,
        image: ImageOption | None = None,
        snapshot: SnapshotName | None = None,
        restore_from: SnapshotName | None = None,
        import_state: StateSource | None = None,
        key: KeyOptions | None = None,
        source: SourceOption | None = None,
        language: str | None = None,
        runtime: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_timeout: OnTimeout | None = None,
        idle_timeout: float | None = None,
        purpose: str = "development",
        auto_stop: float | None = None,
        auto_archive: float | None = None,
        auto_delete: float | None = None,
        keep_alive: bool | None = None,
        instructions: Instructions | None = None,
        resources: ResourceOptions | None = None,
        volumes: VolumeOptions | None = None,
        ports: object = None,
        network: str = "none",
        secrets: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: SandboxPath | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        region: object = None,
        target: object = None,
        options: object = None,
        isolation: str | None = None,
        encrypted: bool = False,
        auto_start: bool = True,
        on_event: EventCallback | None = None,
        build: bool = True,
        on_log: TextCallback | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Self:
        """Make a sandbox that is ready for commands.

        `timeout` is the longest time it runs, in seconds from its last start. `on_timeout` says what becomes of it
        then: "stop" keeps its files, and the next call or `start` begins a new `timeout`; "destroy" removes it; "pause"
        freezes it, where the provider can. Unless given, one with a name is stopped and one without is destroyed.
        `auto_stop` (`idle_timeout` is the same), `auto_archive` and `auto_delete` are seconds without work in it, all
        counted from the same moment, after which it is stopped, archived, destroyed; `keep_alive=True` says that none
        of them is wanted. `secrets` are variables
        as `env`, but of this sandbox alone: no copy of it has them. With `auto_start=False` a call on a sandbox that is
        stopped or paused raises SandboxStopped instead of starting it. With `idempotency_key` the same call again
        returns the same sandbox. `on_event` gets every event from `created` on. `instructions` is what
        `instructions()` gives. `snapshot`, or `restore_from`, is what it begins with: its template, files, variables,
        user and working directory are those. `volumes` are those that exist, by the path they are mounted at, or a
        list of `VolumeMount`.
        `import_state` is a path, bytes or a binary stream with what `export_state` wrote; `key` is the one it was
        encrypted with. What is given here is set over what is in it: `env` over its variables.
        Options typed `object` have no feature yet.

        `template` (or `image`, or the `language` or `runtime` it is for) is what it begins with; `host` unless given.
        One that is not built is built first, which can take minutes: `on_progress` gets each step, `on_log` what the
        steps write, and with `build=False` it is refused. `source` fills the working directory. A `workdir` that is not
        there is made and belongs to the user.

        Raises:
            Unsupported: an option that this provider or this version cannot honour; `option` names it.
            InvalidArgument: an option that makes no sense.
            QuotaExceeded: more than the configured maximum.
            Conflict: the name is taken, or the idempotency key was used for something else.
            SnapshotNotFound: there is no such snapshot.
            VolumeNotFound: there is no such volume.
            Corrupted, Unauthenticated: the imported state is damaged, or the key is not its; nothing is made then.
            ProviderUnavailable: the provider cannot work here.
            TemplateNotFound: there is no such template, or that of the imported state is not here.
            TemplateBuildFailed: a step of the template or of the source failed.
        """
        started = time.perf_counter()
        check_instructions(instructions)
        check_callback(on_event, "on_event")
        refuse_encrypted(encrypted)
        check_import(import_state, key, snapshot, restore_from)
        origin = check_source(source, network)
        spec = build_spec(
            name=name,
            env=env,
            secrets=secrets,
            metadata=metadata,
            labels=labels,
            timeout=timeout,
            on_timeout=on_timeout,
            idle=check_idle(
                auto_stop=auto_stop,
                idle_timeout=idle_timeout,
                auto_archive=auto_archive,
                auto_delete=auto_delete,
                keep_alive=keep_alive,
            ),
            purpose=purpose,
            resources=resources,
            volumes=volumes,
            network=network,
            user=user,
            workdir=workdir,
            idempotency_key=idempotency_key,
            isolation=isolation,
            unsupported={
                "ports": ports,
                "region": region,
                "target": target,
                "options": options,
            },
        )
        if origin is not None and spec.idempotency_key is not None:
            spec = dataclasses.replace(spec, source=await anyio.to_thread.run_sync(source_digest, origin))
        chosen = registry.provider(provider)
        if (begin := check_beginning(snapshot, restore_from, template or image or language or runtime)) is not None:
            found = await find_snapshot(require_snapshots(chosen, "snapshot"), begin)
            spec = dataclasses.replace(spec, snapshot=found.id)
        if spec.volumes and not isinstance(chosen, VolumeProvider):
            raise Unsupported(f"the provider {chosen.name!r} has no volumes", option="volumes")
        lifecycle.check_timeout(chosen, spec)
        lifecycle.check_inactivity(chosen, spec)
        asked, again = spec, import_state is None
        while True:
            built = await resolve_template(
                chosen,
                template=template,
                image=image,
                language=language,
                runtime=runtime,
                build=build,
                on_log=on_log,
                on_progress=on_progress,
            )
            spec = asked if built is None else based_on(asked, built)
            if needs_preparation(built, origin):
                spec = dataclasses.replace(spec, leased=isinstance(chosen, Leases))
            try:
                if import_state is None:
                    info = await chosen.create(spec)
                else:
                    info = await import_(chosen, import_state, spec, key)
                break
            except TemplateNotFound:
                if built is None or not again:
                    raise
                again = False  # it was replaced or removed since it was found
        sandbox = cls(chosen, info, spec, auto_start=auto_start, owned=True)
        if spec.workdir is not None:
            await make_workdir(sandbox)
        await prepare(sandbox, built, origin, on_log)
        if spec.snapshot is not None or import_state is not None:
            await sandbox._serve()
        sandbox._instructions = instructions
        log.info("created %s", info.id, extra=sandbox._link.fields("create", started))
        if on_event is not None:
            sandbox.on("*", on_event)
        return sandbox

    @classmethod
    async def connect(cls, id_or_name: str, *, provider: str | Provider | None = None, auto_start: bool = True) -> Self:
        """A sandbox that exists, with its connection open; one that is stopped or paused is started.

        `async with` on it only closes the connection on the way out: the sandbox keeps running.

        Raises SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost.
        """
        sandbox = await cls.find(id_or_name, provider=provider, auto_start=auto_start)
        await sandbox.reconnect()
        return sandbox

    @classmethod
    async def get(cls, id: str, *, provider: str | Provider | None = None, auto_start: bool = True) -> Self:
        """The sandbox with that id; the connection is opened, and it is started, when it is needed.

        `async with` on it only closes the connection on the way out: the sandbox keeps running.

        Raises SandboxNotFound.
        """
        chosen = registry.provider(provider)
        return cls(chosen, await chosen.get(id), auto_start=auto_start)

    @classmethod
    async def find(cls, id_or_name: str, *, provider: str | Provider | None = None, auto_start: bool = True) -> Self:
        """The sandbox with that id or name, as `get`: `async with` does not destroy it. Raises SandboxNotFound."""
        chosen = registry.provider(provider)
        return cls(chosen, await chosen.find(id_or_name), auto_start=auto_start)

    @classmethod
    async def list(
        cls,
        *,
        state: State | str | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        provider: str | Provider | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> SandboxPage:
        """All sandboxes that have this state and all of these metadata and labels, oldest first.

        The answer can be iterated, counted with `len` and indexed. With `limit` it is a page of at most that many; its
        `cursor`, given to the next call, leads to the next page. None: there is none.

        Raises InvalidArgument for an unknown state, a limit below 1 or a cursor that is none.
        """
        everything = await registry.provider(provider).list()
        return select_sandboxes(everything, state=state, metadata=metadata, labels=labels, limit=limit, cursor=cursor)

    async def __aenter__(self) -> Self:
        if not self._owned:
            return self
        try:
            await self._lease()
        except SandboxStopped:
            raise  # it was not to be started: nothing has begun that could be left behind
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.fail_after(DESTROY_GUARD, shield=True):
            await (self.destroy() if self._owned else self.close())

    async def keep(self) -> None:
        """Let it live on: leaving `async with` only closes the connection, and it no longer ends with this process.

        Raises SandboxNotFound, ConnectionLost.
        """
        if self._link.leased:
            await self._release()
        self._owned = False

    async def _lease(self) -> None:
        """Tie it to this process, where the provider can."""
        if isinstance(self._provider, Leases):
            await self._link.session()  # starts it
            await self._provider.record_lease(self.id)
            await self._link.request(Life(lease=1), LifeReply)
            self._link.leased = True

    async def _release(self) -> None:
        if isinstance(self._provider, Leases):
            # In this order a crash in between ends the sandbox: it is never left with nobody to end it.
            await self._link.request(Life(lease=0), LifeReply)
            await self._provider.record_lease(self.id, held=False)
        self._link.leased = False

    async def stop(self, *, timeout: float = 10.0) -> SandboxInfo:
        """End what runs in it and keep its files and variables; it costs no memory and does not age until `start`.

        Processes are asked to end (SIGTERM; terminals are hung up) and killed after `timeout` seconds, 120 at most.

        Raises SandboxNotFound, Conflict for one that has failed, Unsupported where the provider cannot.
        """
        began = time.perf_counter()
        self._info = await lifecycle.stop(self._link, self._ports, timeout)
        return self._changed("stop", began)

    async def start(self, *, key: KeyOptions | None = None) -> SandboxInfo:
        """Start one that is stopped or archived, with its files, variables and full lifetime; resume a paused one.

        Any call that needs it running does the same, unless `auto_start=False`. Running: no error. `key` is what it was
        archived with; without, the one of SKERRY_ARCHIVE_KEY.

        Raises SandboxNotFound, SandboxFailed, Unsupported; Corrupted where its files are missing or its archive is
        damaged; Unauthenticated for a key that is not its archive's: it stays archived.
        """
        began = time.perf_counter()
        self._info = await lifecycle.start(self._link, key)
        await self._serve()
        return self._changed("start", began)

    async def archive(self, *, key: KeyOptions | None = None) -> SandboxInfo:
        """Stop it and put its files into compressed cold storage, which `start` brings them back from.

        With `key`, or one in SKERRY_ARCHIVE_KEY, the archive is encrypted, and `start` needs the same key. The archive
        is read back and compared before the files go. Archived: no error.

        Raises:
            SandboxNotFound, Conflict for one that has failed.
            DiskFull: there is no room for the archive; it is stopped and has its files.
            Unsupported: the provider cannot, or a file is of a kind that no archive can hold.
            InvalidArgument: there is no such key.
        """
        began = time.perf_counter()
        self._info = await lifecycle.archive(self._link, self._ports, key)
        return self._changed("archive", began)

    async def restart(
        self,
        *,
        env: Mapping[str, str] | None = None,
        resources: ResourceOptions | None = None,
        template: TemplateOption | None = None,
        timeout: float = 10.0,
    ) -> SandboxInfo:
        """Stop it and start it, with other limits, another template, or variables over those it has.

        What cannot be honoured is refused before it is stopped. A new template, built if it is not, changes what is
        below the files that were written; these stay. `timeout` as for `stop`.

        Raises SandboxNotFound, Unsupported, QuotaExceeded, InvalidArgument, TemplateNotFound; Conflict for one that has
        failed, or for a new template where it was made from a snapshot.
        """
        began = time.perf_counter()
        built = await resolve_template(self._provider, template=template)
        reference = built.reference if built is not None else None if template is None else "host"
        self._info = await lifecycle.restart(
            self._link, self._ports, timeout, env=env, resources=resources, template=reference
        )
        await self._serve()
        return self._changed("restart", began)

    async def pause(self) -> SandboxInfo:
        """Freeze its processes in memory, with their connections, until `resume`. Its lifetime goes on.

        Raises SandboxNotFound, Conflict for one that does not run, Unsupported where the provider cannot.
        """
        began = time.perf_counter()
        self._info = await lifecycle.pause(self._link)
        return self._changed("pause", began)

    async def resume(self) -> SandboxInfo:
        """Let its processes go on. Raises SandboxNotFound, Conflict for one that is not paused, Unsupported."""
        began = time.perf_counter()
        self._info = await lifecycle.resume(self._link)
        return self._changed("resume", began)

    async def reset(self, *, hard: bool = False) -> SandboxInfo:
        """Kill its processes and forget changed variables; `hard`: forget its files too. It runs afterwards.

        Files are then what they were at its creation. It is made sure that nothing of before is left; volumes stay.
        What its template runs once in a new sandbox is run again; a `source` is not fetched again.

        Raises SandboxNotFound, Conflict, Unsupported where the provider cannot.
        """
        began = time.perf_counter()
        self._info = await lifecycle.reset(self._link, self._ports, hard=hard)
        if hard:
            await ensure_workdir(self, self._info)
        if hard and self._info.snapshot is None:
            await prepare_again(self, self._info)
        await self._serve()
        return self._changed("reset", began)

    async def recover(self) -> SandboxInfo:
        """Start one that has failed, with the files it had.

        Raises SandboxNotFound, Conflict if it has not failed, Corrupted where its files are missing, Unsupported.
        """
        began = time.perf_counter()
        self._info = await lifecycle.recover(self._link, self._ports)
        await self._serve()
        return self._changed("recover", began)

    async def _serve(self) -> None:
        """Start what its template runs in the background, unless somebody has since it was started."""
        await serve(self, self._info)

    def _changed(self, op: str, began: float) -> SandboxInfo:
        log.info("%s %s: %s", op, self.id, self._info.state, extra=self._link.fields(op, began))
        return self._info

    async def destroy(self, *, graceful: bool = False, timeout: float = 30.0) -> None:
        """End the sandbox and remove everything of it. One that is gone is no error.

        `graceful`: its processes are asked to end and have `timeout` seconds for it, as with `stop`.

        Raises Unsupported for `graceful` where the provider cannot.
        """

        async def end() -> None:
            if graceful:
                await lifecycle.end(self._link, timeout)
            await self._provider.destroy(self.id)

        await self._end(end)

    async def _end(self, end: Callable[[], Awaitable[None]]) -> None:
        """End it by what `end` does."""
        started = time.perf_counter()
        self._link.destroyed = True
        try:
            await end()
        except BaseException:
            self._link.destroyed = False
            raise
        await self._ports._close()
        await self._link.close()
        self._log.add("destroyed")
        await self._log.finish(READY_GUARD)
        log.info("destroyed %s", self.id, extra=self._link.fields("destroy", started))

    async def close(self) -> None:
        """Close the connection, end forwards and the callbacks of `on`; the sandbox keeps running.

        One entered by `async with` is tied to the connection and ends with it: it is destroyed.
        """
        if self._link.leased:
            await self.destroy()
        else:
            self._log.stop()
            await self._ports._close()
            await self._link.close()

    async def reconnect(self) -> None:
        """Open the connection if it is lost, and make sure that the agent answers.

        Raises SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost, Unauthenticated.
        """
        await self._link.request(Life(), LifeReply)

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str | None:
        return self._info.name

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self._provider.name

    @property
    def busy(self) -> bool:
        """Whether something is under way on the connection: a command, a transfer, an attachment, a watch."""
        return any(session.busy for session in self._link.sessions())

    @property
    def config(self) -> SandboxSpec:
        """What it was created with, and the limits it has: `resources` are those that were granted, as last known here.

        For one that was not created by this object the values of `env` are not known.
        """
        return dataclasses.replace(self._spec or spec_of(self._info), resources=self._info.resources)

    @property
    def files(self) -> AsyncFiles:
        """Its files."""
        return self._files

    @property
    def processes(self) -> AsyncProcesses:
        """Its background processes."""
        return self._processes

    @property
    def terminals(self) -> AsyncTerminals:
        """Its terminals."""
        return self._terminals

    @property
    def env(self) -> AsyncEnv:
        """The environment of later commands."""
        return self._env

    @property
    def ports(self) -> AsyncPorts:
        """Its TCP ports."""
        return self._ports

    @property
    def git(self) -> AsyncGit:
        """Its repositories."""
        return self._git

    @property
    def snapshots(self) -> AsyncSandboxSnapshots:
        """Its snapshots."""
        return self._snapshots

    async def save_state(self, name: str | None = None) -> SnapshotInfo:
        """Take a snapshot, as `snapshots.create` does; `create(restore_from=…)` goes on from it."""
        return await self._snapshots.create(name)

    async def export_state(
        self,
        target: StateTarget | None = None,
        *,
        key: KeyOptions | None = None,
        on_progress: StateProgress | None = None,
    ) -> bytes | None:
        """Write its files and variables, as they are now, as one file; `create(import_state=…)` goes on from it.

        `target` is a path, which the file gets once it is complete, or a binary stream; without one the bytes are
        returned. A sandbox that runs stands still for a moment and goes on. With `key` the file is encrypted; without,
        a SkerryWarning says which variables anybody can read in it. Secrets and volumes are never in it. `on_progress`
        is called in a thread with the bytes of content so far; what it raises ends the export.

        Raises:
            Conflict: it is archived.
            DiskFull: there is no room, here or at the target.
            Unsupported: the provider cannot, or a file is of a kind that no archive can hold.
            InvalidArgument: there is no such key.
            SandboxNotFound, FileError; what `target` and `on_progress` raise. Nothing is left at a path then.
        """
        return (await export(self._provider, self.id, target, key, on_progress))[1]

    async def clone(
        self,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        resources: ResourceOptions | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_timeout: OnTimeout | None = None,
        secrets: SecretOptions = False,
        on_log: LogCallback | None = None,
    ) -> AsyncSandbox:
        """A running copy of it: its files and variables as they are now, and the same volumes; it goes on itself.

        What is given is different in the copy; `env` is set over what it has. Processes are not copied, and neither
        are secrets, unless `secrets` is true or gives others.

        Raises as `create` does; Conflict also for one that is archived; DiskFull.
        """
        options = CopyOptions(
            name=name,
            env=env,
            resources=resources,
            metadata=metadata,
            labels=labels,
            timeout=timeout,
            on_timeout=on_timeout,
            secrets=secrets,
        )
        [result] = await self._copy(1, options, on_log)
        if result.error is not None:
            raise result.error
        assert result.sandbox is not None
        return result.sandbox

    async def fork(
        self,
        n: int,
        *,
        env: Mapping[str, str] | None = None,
        resources: ResourceOptions | None = None,
        metadata: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_timeout: OnTimeout | None = None,
        secrets: SecretOptions = False,
        on_log: LogCallback | None = None,
    ) -> tuple[AsyncForkResult, ...]:
        """`n` running copies of it, all of the same moment, as `clone` makes them; for each the copy or its error.

        Raises InvalidArgument, Unsupported, Conflict, DiskFull, SandboxNotFound: then there is no copy.
        """
        options = CopyOptions(
            env=env,
            resources=resources,
            metadata=metadata,
            labels=labels,
            timeout=timeout,
            on_timeout=on_timeout,
            secrets=secrets,
        )
        return await self._copy(n, options, on_log)

    async def _copy(self, n: int, options: CopyOptions, on_log: LogCallback | None) -> tuple[AsyncForkResult, ...]:
        spec = copy_spec(await self.info(), options)
        lifecycle.check_timeout(self._provider, spec)
        made = await copy(self._provider, self.id, [spec] * check_count(n), on_log)
        known = dataclasses.replace(spec, secrets_of=None)
        results = []
        for result in made:
            if isinstance(result, SkerryError):
                results.append(AsyncForkResult(None, result))
                continue
            sandbox = type(self)(self._provider, result, known, owned=True)
            results.append(AsyncForkResult(sandbox))
            await sandbox._serve()
        return tuple(results)

    async def _restored(self, info: SandboxInfo) -> None:
        """Everything that ran in it is gone, its agent too."""
        self._info = info
        await self._ports._close()
        await self._link.close()
        if info.state is State.RUNNING:
            await self._link.renew_lease()
            await self._serve()

    async def info(self) -> SandboxInfo:
        """What the provider knows about it now. Raises SandboxNotFound."""
        self._info = await self._provider.get(self.id)
        return self._info

    async def status(self) -> SandboxStatus:
        """Its state, how long it has run, and what it uses. Raises SandboxNotFound."""
        info = await self.info()
        usage = await self.usage() if info.state is State.RUNNING else None
        return SandboxStatus(state=info.state, uptime=info.uptime(time.time()), usage=usage)

    async def is_ready(self) -> bool:
        """Whether a command would run now: the sandbox runs and its agent answers within 5 seconds."""
        try:
            if (await self._provider.get(self.id)).state is not State.RUNNING:
                return False
            await self._link.request(Life(), LifeReply, guard=READY_GUARD)
        except SkerryError:
            return False
        return True

    async def health_check(self, checks: Checks | None = None, *, timeout: float = CHECK_TIMEOUT) -> HealthReport:
        """Whether it works: agent, command, disk, memory, workdir, and the caller's own checks by name, all at once.

        A check is a shell command that must exit with 0, or a function of the sandbox that returns True or None, or
        False or a reason why not, or what `exec` returned; a HealthCheck is one with another `timeout`. One that raises
        or takes longer than `timeout` is not healthy, and neither is a sandbox that is gone. A name that is built in is
        replaced. The report is true in an `if` when all is well.

        Raises InvalidArgument for a check that is none.
        """
        return await examine(self, checks, timeout)

    async def instructions(self, *, extra: str | None = None, context: object = None) -> str:
        """A short text for an agent's system prompt: how this sandbox works and what is really in it.

        The text or function of `create(instructions=…)` takes its place; a function gets an InstructionsContext with
        `context` in it. `extra` is added at the end.

        Raises SandboxNotFound, SandboxFailed, ConnectionLost; what the function raises.
        """
        return await describe(self, self._instructions, extra, context)

    async def wait_for_state(self, state: State | str, *, timeout: float = 60.0) -> SandboxInfo:
        """Wait until it is in that state.

        Raises:
            Timeout: it is in another one after `timeout` seconds, which the message names.
            SandboxNotFound: it is gone, and `destroyed` was not what was waited for.
            InvalidArgument: there is no such state.
        """
        self._info = await wait_for_state(self._provider, self._log, self._info, state, timeout)
        return self._info

    async def exec(
        self,
        command: Command,
        *,
        cwd: SandboxPath | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        sudo: bool = False,
        stdin: Stdin = None,
        check: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run a command and wait for it. A string goes to the shell, a list is the arguments.

        Returns when the main process has ended; its background children live on. A non-zero exit, a signal and a
        timeout are results. After `timeout` seconds, or when the calling task is cancelled, the command is killed with
        all its descendants. Past `output_limit` bytes a stream, the middle of the output is dropped and counted; the
        text of the result has a line there that says so. A command that failed because it, or a process it started,
        was killed for want of memory has the status `out_of_memory`; where it carried on and exited with 0, only
        `oom_killed` is set.
        `on_stdout` and `on_stderr` get text as it comes; an exception in them kills the command and is raised here.

        Raises:
            InvalidArgument: an option that makes no sense, before anything is sent.
            CommandNotFound: the program of a list is not there.
            ExecTimeout, OutOfMemory, CommandFailed: with `check=True`, unless it exited with 0.
            ConnectionLost, SandboxNotFound, SandboxStopped, SandboxFailed: how it ended cannot be known.
        """
        request = build(
            command, cwd=cwd, env=env, timeout=timeout, user=user, sudo=sudo, stdin=stdin, output_limit=output_limit
        )
        result = await execute(self._link, request, on_stdout, on_stderr)
        if check:
            result.check()
        return result

    def exec_stream(
        self,
        command: Command,
        *,
        cwd: SandboxPath | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        sudo: bool = False,
        stdin: Stdin = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> AsyncExecStream:
        """Run a command and take its output as it comes; see AsyncExecStream. Options as for `exec`.

        Raises InvalidArgument. Everything else is raised where the command starts.
        """
        request = build(
            command, cwd=cwd, env=env, timeout=timeout, user=user, sudo=sudo, stdin=stdin, output_limit=output_limit
        )
        return AsyncExecStream(self._link, request)

    async def run_command_via_pty(
        self,
        command: Command,
        *,
        on_data: BytesCallback | None = None,
        cols: int = COLS,
        rows: int = ROWS,
        cwd: SandboxPath | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        input: Stdin = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run a command on a terminal of its own and wait for it; all it shows is in `stdout`. Otherwise as `exec`.

        `input` is typed as it is: `\\x04` on a line of its own ends it. `on_data` gets what is shown as it comes.

        Raises:
            InvalidArgument: an option that makes no sense, before anything is sent.
            CommandNotFound: the program of a list is not there.
            ConnectionLost, SandboxNotFound, SandboxStopped, SandboxFailed: how it ended cannot be known.
        """
        request = build(
            command,
            cwd=cwd,
            env=env,
            timeout=timeout,
            user=user,
            stdin=input,
            output_limit=output_limit,
            size=(cols, rows),
        )
        return await execute_on_terminal(self._link, request, on_data)

    async def code_run(
        self,
        code: str,
        *,
        language: str = "python",
        cwd: SandboxPath | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
    ) -> CodeResult:
        """Run a snippet of python, javascript, bash, sh, perl or ruby with what the sandbox has installed for it.

        What comes back is what `exec` returns: a non-zero exit, a signal, a timeout and the lack of memory are results.

        Raises:
            Unsupported: another language.
            CommandNotFound: the sandbox has no program for it.
            ExecTimeout, OutOfMemory, CommandFailed: with `check=True`, unless it exited with 0.
            ConnectionLost, SandboxNotFound, SandboxStopped, SandboxFailed: how it ended cannot be known.
        """
        ran = await self.exec(
            snippets.program(code, language), cwd=cwd, env=env, timeout=timeout, user=user, stdin=code
        )
        result = CodeResult(**{field.name: getattr(ran, field.name) for field in dataclasses.fields(ran)})
        if check:
            result.check()
        return result

    async def usage(self) -> Usage:
        """What it uses now: the provider's measurements, and disk and network as seen inside.

        Raises SandboxNotFound, SandboxStopped, ConnectionLost.
        """
        return await measure(self._link)

    async def set_limits(
        self,
        *,
        cpu: float | None = None,
        cpu_percent: float | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        pids: int | None = None,
    ) -> SandboxInfo:
        """Change limits while it runs; those not given stay. 100 `cpu_percent` are one core.

        Raises Unsupported where the provider cannot, QuotaExceeded above a maximum, InvalidArgument.
        """
        limits = check_limits(cpu=cpu, cpu_percent=cpu_percent, memory=memory, disk=disk, pids=pids)
        if not isinstance(self._provider, Resizable):
            raise Unsupported(f"{self.provider} cannot change limits of a running sandbox", option="set_limits")
        self._info = await self._provider.set_limits(self.id, limits)
        return self._info

    async def scale(self, *, cpu: float | None = None, memory: int | str | None = None) -> SandboxInfo:
        """Change CPU and memory, as `set_limits` does."""
        return await self.set_limits(cpu=cpu, memory=memory)

    async def set_timeout(self, seconds: float) -> SandboxInfo:
        """Let its timeout be `seconds` from now, be that sooner or later than before; `on_timeout` stays as it is.

        Raises QuotaExceeded above the maximum lifetime, Unsupported where the provider cannot, SandboxNotFound.
        """
        check_lifetime(seconds)
        if not isinstance(self._provider, Deadlines):
            raise Unsupported(f"{self.provider} cannot change the lifetime of a sandbox", option="set_timeout")
        await self._link.request(Life(deadline_ms=max(1, round(seconds * 1000))), LifeReply)
        self._info = await self._provider.record_deadline(self.id, seconds)
        return self._info

    def on(self, event: EventType | Literal["*"], callback: EventCallback) -> Callable[[], None]:
        """Call `callback` for each event of that type, or of every type with "*"; returns what ends it.

        Events from before are delivered too, so a late callback still sees `created`. The callback may be a coroutine
        function; what it raises is logged. Needs a running event loop.

        Raises InvalidArgument for a type that does not exist and a callback that is not a function.
        """
        return self._log.listen(event, callback)

    def events(self, *, since: int = 0) -> AsyncIterator[Event]:
        """The events with a cursor above `since`, then those to come; ends with `destroyed`.

        `connected`, `disconnected`, `reconnecting`, and an `error` of this object's connection or commands, are its own
        and not seen by other clients. What `data` has is in `Event`.
        """
        return self._log.follow(since)
