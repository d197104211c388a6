"""The sandbox object."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

import anyio

from skerry.core import (
    CodeResult,
    Event,
    ExecResult,
    Leases,
    Provider,
    SandboxInfo,
    SandboxSpec,
    SandboxStopped,
    SkerryError,
    SnapshotInfo,
    State,
    Usage,
    registry,
)
from skerry.sdk.commands.exec_stream import AsyncExecStream
from skerry.sdk.commands.execute import execute, execute_on_terminal
from skerry.sdk.commands.output import OUTPUT_LIMIT
from skerry.sdk.commands.request import (
    COLS,
    COMMAND_OPTIONS,
    ROWS,
    BytesCallback,
    Command,
    CommandOptions,
    ExecOptions,
    Stdin,
    TextCallback,
    build,
    build_exec,
    check_options,
)
from skerry.sdk.connection.link import CHECK_GUARD, Link, PassiveLink
from skerry.sdk.create import CreateOptions, make_sandbox
from skerry.sdk.enterable import enterable
from skerry.sdk.events import EventCallback, EventLog, EventType
from skerry.sdk.listing import look_up
from skerry.sdk.log import log
from skerry.sdk.parts import Parts
from skerry.sdk.state import lifecycle
from skerry.sdk.state.verbs import StateVerbs
from skerry.wire import Life, LifeReply

if TYPE_CHECKING:
    from skerry.sdk.health import Checks, HealthReport
    from skerry.sdk.instructions import Instructions
    from skerry.sdk.listing import SandboxPage, SandboxStatus
    from skerry.sdk.state.clone import CopyOptions
    from skerry.sdk.state.export import KeyOptions, StateProgress, StateTarget
    from skerry.sdk.state.snapshots import LogCallback

READY_GUARD = 5.0
DESTROY_GUARD = 600.0
"""A sandbox may hold hundreds of thousands of files on a slow disk; its processes are gone long before them."""


class AsyncForkResult:
    """The outcome of one copy of a `fork`."""

    def __init__(self, sandbox: AsyncSandbox | None, error: SkerryError | None = None) -> None:
        self._sandbox, self._error = sandbox, error

    def __repr__(self) -> str:
        outcome = f"failed: {self._error.code}" if self._sandbox is None and self._error else repr(self._sandbox)
        return f"<{type(self).__name__} {outcome}>"

    @property
    def sandbox(self) -> AsyncSandbox | None:
        """The copy; None when it could not be made."""
        return self._sandbox

    @property
    def error(self) -> SkerryError | None:
        """Why it could not be made; None when it was."""
        return self._error


class AsyncSandbox(Parts, StateVerbs):
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
        passive_of: AsyncSandbox | None = None,
    ) -> None:
        """`owned`: it was made for this object, so that `async with` destroys it. `passive_of`: see `passive`."""
        self._provider = provider
        self._info = info
        self._spec = spec
        if passive_of is None:
            self._log = EventLog(provider, info.id)
            self._link = Link(provider, info.id, auto_start=auto_start, on_event=self._log.add)
        else:
            self._log, self._link = passive_of._log, PassiveLink(passive_of._link)
        self._parts = {}
        self._instructions: Instructions | None = None
        self._owned = owned
        if passive_of is None:
            self._link.on_start = self._serve

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        state = State.DESTROYED if self._link.destroyed else self._info.state  # as last known: nobody is asked
        return f"<{type(self).__name__} {self.id}{name} {state} on {self.provider}>"

    @classmethod
    @enterable
    async def create(cls, provider: str | Provider | None = None, **given: Unpack[CreateOptions]) -> Self:
        """Make a sandbox that is ready for commands. Its options are those of `CreateOptions`; all may be left out.

        Raises:
            Unsupported: an option that this provider or this version cannot honour; `option` names it.
            InvalidArgument: an option that makes no sense.
            QuotaExceeded: more than the configured maximum.
            Conflict: the name is taken, or the idempotency key was used for something else.
            SnapshotNotFound: there is no such snapshot.
            VolumeNotFound: there is no such volume.
            Corrupted, Unauthenticated: the imported state is damaged, or the key does not fit; then nothing is made.
            ProviderUnavailable: the provider cannot work here.
            TemplateNotFound: there is no such template, or the template of the imported state is not here.
            TemplateBuildFailed: a step of the template or of the source failed.
        """
        return await make_sandbox(cls, provider, given)

    @classmethod
    async def connect(cls, id_or_name: str, *, provider: str | Provider | None = None, auto_start: bool = True) -> Self:
        """Open the connection to an existing sandbox; a stopped or paused one is started.

        `async with` on it only closes the connection on the way out: the sandbox keeps running.

        Raises SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost.
        """
        sandbox = await cls.find(id_or_name, provider=provider, auto_start=auto_start)
        await sandbox.reconnect()
        return sandbox

    @classmethod
    async def get(cls, id: str, *, provider: str | Provider | None = None, auto_start: bool = True) -> Self:
        """The sandbox with that id; it is connected to, and started, when that is needed.

        `async with` on it only closes the connection on the way out: the sandbox keeps running.

        Raises SandboxNotFound.
        """
        chosen = registry.provider(provider)
        return cls(chosen, await look_up(chosen, chosen.get, id), auto_start=auto_start)

    @classmethod
    async def find(cls, id_or_name: str, *, provider: str | Provider | None = None, auto_start: bool = True) -> Self:
        """The sandbox with that id or name, as `get`: `async with` does not destroy it. Raises SandboxNotFound."""
        chosen = registry.provider(provider)
        return cls(chosen, await look_up(chosen, chosen.find, id_or_name), auto_start=auto_start)

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
        `cursor`, given to the next call, leads to the next page. None: there is no next page.

        Raises InvalidArgument for an unknown state, a limit below 1 or an invalid cursor.
        """
        from skerry.sdk.listing import select_sandboxes

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
        """Keep the sandbox: leaving `async with` only closes the connection, and it no longer ends with this process.

        Raises SandboxNotFound, ConnectionLost.
        """
        if self._link.leased:
            await self._release()
        self._owned = False

    async def _lease(self) -> None:
        """Tie the sandbox to this process, where the provider can."""
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

    async def destroy(self, *, graceful: bool = False, timeout: float = 30.0) -> None:
        """End the sandbox and remove everything that belongs to it. Does nothing if it is gone.

        With `graceful`, its processes are asked to end and have `timeout` seconds for that, as with `stop`.

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
        await self._close_ports()
        await self._link.close()
        self._log.add("destroyed")
        await self._log.finish(READY_GUARD)
        log.info("destroyed %s", self.id, extra=self._link.fields("destroy", started))

    async def close(self) -> None:
        """Close the connection, end forwards and the callbacks of `on`; the sandbox keeps running.

        A sandbox entered by `async with` is tied to the connection and is destroyed with it.
        """
        if self._link.leased:
            await self.destroy()
        else:
            self._log.stop()
            await self._close_ports()
            await self._link.close()

    async def reconnect(self) -> None:
        """Open the connection if it is lost, and make sure that the agent answers.

        Raises SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost, Unauthenticated.
        """
        await self._link.request(Life(), LifeReply)

    def passive(self) -> AsyncSandbox:
        """The same sandbox over the same connection, for calls that must not start it: they raise SandboxStopped.

        Use this object, not that one, to change its state or to close the connection.
        """
        return type(self)(self._provider, self._info, self._spec, passive_of=self)

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
        """What the sandbox was created with; `resources` are the limits that were granted, as last known here.

        If this object did not create the sandbox, the values of `env` are not known.
        """
        from skerry.sdk.listing import spec_of

        return dataclasses.replace(self._spec or spec_of(self._info), resources=self._info.resources)

    async def save_state(self, name: str | None = None) -> SnapshotInfo:
        """Take a snapshot, as `snapshots.create` does; `create(restore_from=…)` continues from it."""
        return await self.snapshots.create(name)

    async def export_state(
        self,
        target: StateTarget | None = None,
        *,
        key: KeyOptions | None = None,
        on_progress: StateProgress | None = None,
    ) -> bytes | None:
        """Write its files and variables, as they are now, to one file; `create(import_state=…)` continues from it.

        `target` is a path, which the file gets once it is complete, or a binary stream; without one the bytes are
        returned. A running sandbox stands still for a moment and continues. With `key` the file is encrypted; without,
        a SkerryWarning says which variables anybody can read in it. Secrets and volumes are never in it. `on_progress`
        is called in a thread with the bytes of content so far; what it raises ends the export.

        Raises:
            Conflict: it is archived.
            DiskFull: there is no room, here or at the target.
            Unsupported: the provider cannot, or a file is of a kind that no archive can hold.
            InvalidArgument: there is no such key.
            SandboxNotFound, FileError; what `target` and `on_progress` raise. Then nothing is left at a path.
        """
        from skerry.sdk.state.export import export

        return (await export(self._provider, self.id, target, key, on_progress))[1]

    async def clone(
        self, *, name: str | None = None, on_log: LogCallback | None = None, **changes: Unpack[CopyOptions]
    ) -> AsyncSandbox:
        """Make a running copy: its files and variables as they are now, and the same volumes. The source continues.

        Options given here are different in the copy; `env` adds to its variables, or changes them. Processes are not
        copied, and neither are secrets, unless `secrets` is true or gives others.

        Raises as `create` does; Conflict also for an archived sandbox; DiskFull.
        """
        [result] = await self._copy(1, name, changes, on_log)
        if result.error is not None:
            raise result.error
        assert result.sandbox is not None
        return result.sandbox

    async def fork(
        self, n: int, *, on_log: LogCallback | None = None, **changes: Unpack[CopyOptions]
    ) -> tuple[AsyncForkResult, ...]:
        """Make `n` running copies, all of the same moment, as `clone` does. Returns for each the copy or its error.

        Raises InvalidArgument, Unsupported, Conflict, DiskFull, SandboxNotFound: then there is no copy.
        """
        return await self._copy(n, None, changes, on_log)

    async def _copy(
        self, n: int, name: str | None, changes: CopyOptions, on_log: LogCallback | None
    ) -> tuple[AsyncForkResult, ...]:
        from skerry.sdk.state.clone import check_count, copy, copy_spec

        spec = copy_spec(await self.info(), name, changes)
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
        """Called when everything that ran in the sandbox is gone, its agent too."""
        self._info = info
        await self._close_ports()
        await self._link.close()
        if info.state is State.RUNNING:
            await self._link.renew_lease()
            await self._serve()

    async def info(self) -> SandboxInfo:
        """What the provider knows about the sandbox now. Raises SandboxNotFound."""
        self._info = await self._provider.get(self.id)
        return self._info

    async def status(self) -> SandboxStatus:
        """Its state, how long it has run, and what it uses. Raises SandboxNotFound."""
        from skerry.sdk.listing import SandboxStatus

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

    async def health_check(self, checks: Checks | None = None, *, timeout: float = CHECK_GUARD) -> HealthReport:
        """Check the agent, a command, disk, memory and workdir, and run the caller's own checks by name, all at once.

        A check is a shell command that must exit with 0, or a function of the sandbox that returns True or None, or
        False or a reason why not, or what `exec` returned; a HealthCheck is a check with another `timeout`. A check
        that raises or takes longer than `timeout` is not healthy, and neither is a sandbox that is gone. A check with
        the name of a built-in one replaces it. The report is true in an `if` when all is well.

        Raises InvalidArgument for an invalid check.
        """
        from skerry.sdk.health import examine

        return await examine(self, checks, timeout)

    async def instructions(self, *, extra: str | None = None, context: object = None) -> str:
        """A short text for an agent's system prompt: how this sandbox works and what is installed in it.

        The text of `create(instructions=…)` takes its place; so does a function, in the object that `create` returned:
        it gets an InstructionsContext with `context` in it. `extra` is added at the end.

        Raises SandboxNotFound, SandboxFailed, ConnectionLost; what the function raises.
        """
        from skerry.sdk.instructions import describe

        own = self._info.instructions if self._instructions is None else self._instructions
        return await describe(self, own, extra, context)

    async def wait_for_state(self, state: State | str, *, timeout: float = 60.0) -> SandboxInfo:
        """Wait until the sandbox is in that state.

        Raises:
            Timeout: it is in another state after `timeout` seconds; the message names that state.
            SandboxNotFound: it is gone, and `destroyed` was not what was waited for.
            InvalidArgument: there is no such state.
        """
        from skerry.sdk.state.wait import wait_for_state

        self._info = await wait_for_state(self._provider, self._log, self._info, state, timeout)
        return self._info

    async def exec(
        self,
        command: Command,
        *,
        check: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        **options: Unpack[ExecOptions],
    ) -> ExecResult:
        """Run a command and wait for it. A string goes to the shell, a list is the arguments.

        Returns when the main process has ended; its background children live on. A non-zero exit, a signal and a
        timeout are results. After `timeout` seconds, or when the calling task is cancelled, the command is killed with
        all its descendants. Past `output_limit` bytes a stream, the middle of the output is dropped and counted; the
        text of the result has a line there that says so. A command that failed because it, or a process it started,
        was killed for lack of memory has the status `out_of_memory`; where it continued and exited with 0, only
        `oom_killed` is set.
        `on_stdout` and `on_stderr` get text as it comes; an exception in them kills the command and is raised here.

        Raises:
            InvalidArgument: an option that makes no sense, before anything is sent.
            CommandNotFound: the program of a list is not there.
            ExecTimeout, OutOfMemory, CommandFailed: with `check=True`, unless it exited with 0.
            ConnectionLost, SandboxNotFound, SandboxStopped, SandboxFailed: how it ended cannot be known.
        """
        result = await execute(self._link, build_exec("exec", command, options), on_stdout, on_stderr)
        if check:
            result.check()
        return result

    def exec_stream(self, command: Command, **options: Unpack[ExecOptions]) -> AsyncExecStream:
        """Run a command and take its output as it comes; see AsyncExecStream. Options as for `exec`.

        Raises InvalidArgument. Everything else is raised where the command starts.
        """
        return AsyncExecStream(self._link, build_exec("exec_stream", command, options))

    async def run_command_via_pty(
        self,
        command: Command,
        *,
        on_data: BytesCallback | None = None,
        cols: int = COLS,
        rows: int = ROWS,
        input: Stdin = None,
        output_limit: int = OUTPUT_LIMIT,
        **options: Unpack[CommandOptions],
    ) -> ExecResult:
        """Run a command on its own terminal and wait for it; all it shows is in `stdout`. Otherwise as `exec`.

        `input` is typed as it is: `\\x04` alone on a line ends it. `on_data` gets what is shown as it comes.

        Raises:
            InvalidArgument: an option that makes no sense, before anything is sent.
            CommandNotFound: the program of a list is not there.
            ConnectionLost, SandboxNotFound, SandboxStopped, SandboxFailed: how it ended cannot be known.
        """
        check_options("run_command_via_pty", options, COMMAND_OPTIONS)
        request = build(command, stdin=input, output_limit=output_limit, size=(cols, rows), **options)
        return await execute_on_terminal(self._link, request, on_data)

    async def code_run(
        self, code: str, *, language: str | None = None, check: bool = False, **options: Unpack[CommandOptions]
    ) -> CodeResult:
        """Run a snippet of python, javascript, typescript, bash, sh, perl or ruby with what the sandbox has for it.

        Without `language` it is that of the sandbox's template: javascript or typescript in those of Node, else python.
        Node runs typescript from version 22.18 on.

        The result is what `exec` returns: a non-zero exit, a signal, a timeout and the lack of memory are results.

        Raises:
            Unsupported: another language, or typescript with an older Node.
            CommandNotFound: the sandbox has no program for it.
            ExecTimeout, OutOfMemory, CommandFailed: with `check=True`, unless it exited with 0.
            ConnectionLost, SandboxNotFound, SandboxStopped, SandboxFailed: how it ended cannot be known.
        """
        check_options("code_run", options, COMMAND_OPTIONS)
        from skerry.sdk.commands import code as snippets

        chosen = snippets.language_of(self._info.template) if language is None else language
        argv = snippets.program(code, chosen)
        if snippets.is_typescript(chosen) and (await self.exec(snippets.RUNS_TYPESCRIPT)).stdout != "true\n":
            raise snippets.no_typescript()
        ran = await self.exec(argv, stdin=code, **options)
        result = CodeResult(**{field.name: getattr(ran, field.name) for field in dataclasses.fields(ran)})
        if check:
            result.check()
        return result

    async def usage(self) -> Usage:
        """What the sandbox uses now: the provider's measurements, and disk and network as seen inside.

        Raises SandboxNotFound, SandboxStopped, ConnectionLost.
        """
        from skerry.sdk.usage import measure

        return await measure(self._link)

    def on(self, event: EventType | Literal["*"], callback: EventCallback) -> Callable[[], None]:
        """Call `callback` for each event of that type, or of every type with "*"; returns the function that ends this.

        Events from before are delivered too, so a late callback still sees `created`. The callback may be a coroutine
        function; what it raises is logged. Needs a running event loop.

        Raises InvalidArgument for a type that does not exist and a callback that is not a function.
        """
        return self._log.listen(event, callback)

    def events(self, *, since: int = 0) -> AsyncIterator[Event]:
        """The events with a cursor above `since`, then those to come; ends with `destroyed`.

        `connected`, `disconnected`, `reconnecting`, and an `error` of this object's connection or commands, belong to
        this object; other clients do not see them. `Event` describes `data`.
        """
        return self._log.follow(since)
