"""Time: a command that must end, ends with all it started."""

from __future__ import annotations

import signal
import time

import anyio
import pytest

from skerry.core import ExecStatus, ExecTimeout
from skerry.sdk import AsyncSandbox
from skerry.testing.cases.base import Conformance, alive, gone, until

STUBBORN = "trap '' TERM HUP INT QUIT; "


class TimeoutsConformance(Conformance):
    """Timeouts, process trees and cancellation."""

    title = "timeouts"

    async def test_a_timeout_is_a_result_with_what_was_written(self, sandbox: AsyncSandbox) -> None:
        """PrefectHQ/fastmcp#2845: running out of time must not lose the output until then."""
        result = await sandbox.exec("echo so far; echo e >&2; sleep 1000", timeout=1.0)
        assert (result.status, result.exit_code, result.timed_out) == (ExecStatus.TIMED_OUT, None, True)
        assert (result.stdout, result.stderr) == ("so far\n", "e\n")
        assert 0.95 <= result.duration < 20

    async def test_check_makes_a_timeout_an_error(self, sandbox: AsyncSandbox) -> None:
        """The error is a TimeoutError, and has the result."""
        with pytest.raises(ExecTimeout) as late:
            await sandbox.exec("echo so far; sleep 1000", timeout=1.0, check=True)
        assert late.value.result.stdout == "so far\n"
        assert isinstance(late.value, TimeoutError)

    async def test_the_timeout_given_is_the_one_in_force(self, sandbox: AsyncSandbox) -> None:
        """computesdk/computesdk#660, langchain-ai/deepagents#1756: a timeout must be neither dropped nor replaced.

        Nor may there be one that nobody gave: mastra-ai/mastra#24349, vndee/llm-sandbox#100.
        """
        durations: dict[float | None, float] = {}

        async def run(timeout: float | None) -> None:
            result = await sandbox.exec("sleep 2.5", timeout=timeout)
            assert result.timed_out is (timeout is not None and timeout < 2)
            durations[timeout] = result.duration

        async with anyio.create_task_group() as group:
            for timeout in (0.3, 1.2, 600.0, None):
                group.start_soon(run, timeout)
        assert 0.25 <= durations[0.3] < durations[1.2] < durations[600.0]
        assert min(durations[600.0], durations[None] or 0) >= 2.4

    async def test_a_timeout_kills_what_runs_in_the_sandbox(self, sandbox: AsyncSandbox) -> None:
        """UKGovernmentBEIS/inspect_ai#2779: the timeout must reach the process inside, not a client of it."""
        result = await sandbox.exec("echo $$; exec sleep 1000", timeout=1.0)
        await gone(sandbox, int(result.stdout))

    async def test_a_timeout_kills_grandchildren_that_were_alive(self, sandbox: AsyncSandbox, directory: str) -> None:
        """UKGovernmentBEIS/inspect_ai#4971: the check is not vacuous: the grandchild is seen alive before."""
        script = f"(setsid sh -c 'echo $$ > {directory}/pid; exec sleep 1000' &); sleep 1000"
        async with sandbox.exec_stream(script, timeout=2.0) as stream:
            await until(lambda: _written(sandbox, f"{directory}/pid"))
            pid = int(await sandbox.files.read(f"{directory}/pid"))
            assert await alive(sandbox, pid)
            assert (await stream.wait()).timed_out
        await gone(sandbox, pid)

    async def test_an_orphan_that_holds_the_output_open_does_not_delay_the_end(self, sandbox: AsyncSandbox) -> None:
        """boxlite-ai/boxlite#1459: a leader that is killed while an orphan keeps the pipe must not hang the wait."""
        began = time.monotonic()
        result = await sandbox.exec(f"{STUBBORN}(setsid sh -c '{STUBBORN}sleep 1000' &); sleep 1000", timeout=0.5)
        assert result.timed_out
        assert time.monotonic() - began < 20

    async def test_nothing_is_written_after_the_timeout(self, sandbox: AsyncSandbox, directory: str) -> None:
        """langfuse/langfuse#15955: descendants must not keep changing files after the command was reported dead."""
        loop = f"while :; do echo x >> {directory}/log; sleep 0.02; done"
        await sandbox.exec(f"(setsid sh -c '{loop}' &); {loop}", timeout=1.0)
        before = (await sandbox.files.stat(f"{directory}/log")).size
        assert before > 0
        await anyio.sleep(0.3)
        assert (await sandbox.files.stat(f"{directory}/log")).size == before

    async def test_timeouts_in_a_row_leave_no_processes(self, sandbox: AsyncSandbox) -> None:
        """openclaw/openclaw#110735: orphans of timeouts must not pile up until the sandbox is full."""
        pids: list[int] = []
        for _ in range(5):
            result = await sandbox.exec("sleep 1000 & echo $!; sleep 1000 & echo $!; wait", timeout=0.4)
            pids += [int(line) for line in result.stdout.split()]
        assert pids
        for pid in pids:
            await gone(sandbox, pid)

    async def test_timeouts_hold_when_many_run(self, sandbox: AsyncSandbox) -> None:
        """UKGovernmentBEIS/inspect_ai#1914: under load commands must not run for hours past their timeouts."""
        ended: list[bool] = []

        async def run() -> None:
            ended.append((await sandbox.exec(f"{STUBBORN}sleep 1000", timeout=0.7)).timed_out)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(run)
        assert ended == [True] * 20

    async def test_a_command_that_ends_in_time_has_not_timed_out(self, sandbox: AsyncSandbox) -> None:
        """A timeout that was not reached changes nothing."""
        result = await sandbox.exec("exit 3", timeout=50)
        assert (result.exit_code, result.timed_out, result.status) == (3, False, ExecStatus.EXITED)

    async def test_cancelling_kills_the_tree(self, sandbox: AsyncSandbox) -> None:
        """e2b-dev/E2B#1034: when a caller gives up, its work must not continue."""
        pids: list[int] = []
        async with anyio.create_task_group() as group:

            def note(text: str) -> None:
                pids.extend(int(word) for word in text.split())
                if len(pids) == 2:
                    group.cancel_scope.cancel()

            async def run() -> None:
                await sandbox.exec("sleep 1000 & echo $$ $!; wait", on_stdout=note)

            group.start_soon(run)
        assert len(pids) == 2
        for pid in pids:
            await gone(sandbox, pid)

    async def test_cancelling_leaves_the_sandbox_usable(self, sandbox: AsyncSandbox) -> None:
        """The connection is not lost with the command."""
        for delay in (0.0, 0.001, 0.01, 0.05):
            with anyio.move_on_after(delay):
                await sandbox.exec("sleep 1000")
            assert (await sandbox.exec("echo fine")).stdout == "fine\n"

    async def test_kill_returns_and_kills(self, sandbox: AsyncSandbox) -> None:
        """e2b-dev/E2B#1034: kill must neither block nor leave the command alive."""
        process = await sandbox.processes.spawn(f"{STUBBORN}while :; do sleep 1; done")
        began = time.monotonic()
        await process.kill()
        result = await process.wait()
        assert time.monotonic() - began < 20
        assert (result.exit_code, result.signal) == (None, signal.SIGKILL)
        await gone(sandbox, process.pid)

    async def test_a_stopped_process_is_killed_by_its_timeout(self, sandbox: AsyncSandbox) -> None:
        """A process that is stopped by a signal cannot hide from the end of its time."""
        result = await sandbox.exec("kill -STOP $$; sleep 1000", timeout=0.6)
        assert result.timed_out
        await gone(sandbox, result.pid)


async def _written(sandbox: AsyncSandbox, path: str) -> bool:
    return (await sandbox.exec(["test", "-s", path])).ok
