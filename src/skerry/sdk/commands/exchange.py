"""A command as its stream tells it: started, output, exit. Shared by exec, exec_stream and attached processes."""

from __future__ import annotations

import asyncio

from skerry.core import Cut, ExecResult, ExecStatus
from skerry.sdk.commands.output import Collector, OutputChunk, OutputStream
from skerry.sdk.commands.request import Request, Stdin, feed, small_stdin
from skerry.sdk.connection.stream import Data, Reply, Stream
from skerry.wire import STDERR, STDOUT, Attached, Exit, Started

NAMES: dict[int, OutputStream] = {STDOUT: "stdout", STDERR: "stderr"}
GRACE = 5.0
"""How long after a command's own timeout the agent may take to report it."""
MAX_GRACES = 12


class Running:
    """Takes the items of a START or ATTACH stream, in order, and makes the result out of them."""

    def __init__(
        self, stream: Stream, command: str, *, output_limit: int, since: tuple[int, int] | None = None
    ) -> None:
        self.stream = stream
        self.command = command
        self.started: Started | Attached | None = None
        self.exit: Exit | None = None
        self.gap = 0
        """Bytes between what was asked for and what came."""
        self.collectors = {STDOUT: Collector(output_limit), STDERR: Collector(output_limit)}
        self._since = since
        self._ends = {STDOUT: 0, STDERR: 0}
        self._feeder: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: Request) -> None:
        """Send the input and watch the time."""
        if request.timeout is not None:
            loop = self.stream.session.loop
            self._timer = loop.call_later(request.timeout + GRACE, self._late, request.timeout, MAX_GRACES)
        if request.stdin is not None:
            small = small_stdin(request.stdin)
            if small is not None:
                self.stream.send_now(small, end=True)
            else:
                self._feeder = self.stream.session.loop.create_task(self._feed(request.stdin))

    def _late(self, timeout: float, graces: int) -> None:
        """The command's time is over: the agent is to blame unless its answers wait here for a slow consumer."""
        if graces and self.stream.pending:
            self._timer = self.stream.session.loop.call_later(GRACE, self._late, timeout, graces - 1)
        else:
            self.stream.abandon(f"the agent did not answer in time: the command's {timeout:g} s are over")

    async def _feed(self, stdin: Stdin) -> None:
        try:
            await feed(self.stream, stdin)
        except Exception as error:  # noqa: BLE001
            # The caller's own iterable failed: the command is given up, and the task that waits for it gets the error.
            self.stream.fail(error)

    def take(self, item: Data | Reply) -> OutputChunk | None:
        """Take one item; return the chunk if it has output. Raises Corrupted."""
        if isinstance(item, Data):
            return self._output(item)
        if self.started is None and not item.final:
            self._start(item)
        elif self.started is not None and item.final:
            self.exit = self._check_exit(self.stream.decode(Exit, item.payload))
        else:
            raise self.stream.corrupt("a REPLY out of turn")
        return None

    def end(self, channel: int) -> int:
        """The offset after the last byte that came."""
        return self._ends[channel]

    def _start(self, item: Reply) -> None:
        if self._since is None:
            self.started = self.stream.decode(Started, item.payload)
            return
        self.started = started = self.stream.decode(Attached, item.payload)
        for channel, asked, start in zip(NAMES, self._since, (started.start_stdout, started.start_stderr), strict=True):
            if start < asked or start < 0:
                raise self.stream.corrupt(f"attached at {start}, before the {asked} asked for")
            missing = start - asked if asked >= 0 else 0
            self.gap += missing
            self.collectors[channel].skip(missing)
            self._ends[channel] = start

    def _output(self, item: Data) -> OutputChunk | None:
        ahead = item.offset - self._ends[item.channel]
        if ahead < 0:
            raise self.stream.corrupt("output from before the start")
        if item.data:
            self.gap += ahead
            self.collectors[item.channel].skip(ahead)
        data = bytes(item.data)
        self._ends[item.channel] = item.offset + len(data)
        if not data:
            return None
        self.collectors[item.channel].add(data)
        return OutputChunk(NAMES[item.channel], data, item.offset)

    def _check_exit(self, exit: Exit) -> Exit:
        try:
            status = ExecStatus(exit.status)
        except ValueError:
            raise self.stream.corrupt(f"unknown status {exit.status[:40]!r}") from None
        code, signal = exit.exit_code, exit.signal
        if status is ExecStatus.EXITED:
            sound = code is not None and 0 <= code <= 255 and signal is None
        else:
            sound = status is not ExecStatus.RUNNING and code is None and (signal is None or 0 < signal <= 64)
        if status is ExecStatus.SIGNALED:
            sound = sound and signal is not None
        if not sound:
            raise self.stream.corrupt(f"status {status.value} with exit code {code} and signal {signal}")
        if exit.duration_us < 0 or exit.oom_kills < 0:
            raise self.stream.corrupt("a negative number in an exit")
        if exit.stdout_bytes < self._ends[STDOUT] or exit.stderr_bytes < self._ends[STDERR]:
            raise self.stream.corrupt("fewer bytes written than were sent")
        return exit

    def result(self) -> ExecResult:
        """How it ended; only after the exit has been taken."""
        exit, started = self.exit, self.started
        assert exit is not None and started is not None
        out, err = self.collectors[STDOUT], self.collectors[STDERR]
        stdout_cut = _cut(out, exit.stdout_bytes - self._ends[STDOUT])
        stderr_cut = _cut(err, exit.stderr_bytes - self._ends[STDERR])
        dropped = sum(cut.size for cut in (stdout_cut, stderr_cut) if cut is not None)
        return ExecResult(
            command=self.command,
            exit_code=exit.exit_code,
            stdout_bytes=out.value(),
            stderr_bytes=err.value(),
            duration=exit.duration_us / 1e6,
            pid=started.pid,
            status=ended_as(ExecStatus(exit.status), exit.exit_code, exit.oom_kills),
            signal=exit.signal,
            oom_killed=exit.oom_kills > 0,
            truncated=dropped > 0,
            dropped_bytes=dropped,
            stdout_cut=stdout_cut,
            stderr_cut=stderr_cut,
        )

    def close(self) -> None:
        """Stop feeding and let go of the stream: a foreground command that still runs is killed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._feeder is not None:
            self._feeder.cancel()
        self.stream.close()


def ended_as(status: ExecStatus, exit_code: int | None, oom_kills: int) -> ExecStatus:
    """What an agent says of an end, by its cause: a command that failed after a kill for memory is out of memory."""
    return ExecStatus.OUT_OF_MEMORY if status is ExecStatus.EXITED and exit_code and oom_kills else status


def _cut(collector: Collector, unsent: int) -> Cut | None:
    """Where a stream is not complete; `unsent` bytes at its end never came."""
    if not unsent:
        return collector.cut
    before = collector.cut or Cut(len(collector.value()), 0)
    return Cut(before.at, before.size + unsent)
