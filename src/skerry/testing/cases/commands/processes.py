"""Background processes: they outlive their client, and can be found and followed again."""

from __future__ import annotations

import signal

import anyio
import pytest

from skerry.core import CommandNotFound, ExecStatus, InvalidArgument, ProcessNotFound, Provider
from skerry.sdk import AsyncProcess, AsyncSandbox
from skerry.testing.cases.base import Conformance, Fresh, gone, until

RING = 1 << 20
"""What is kept of each stream of a process that nobody follows."""


async def wrote(process: AsyncProcess, text: bytes) -> None:
    """Wait until the process has written `text` to stdout."""

    async def there() -> bool:
        return text in (await process.output()).stdout

    await until(there)


async def ended(process: AsyncProcess) -> None:
    async def over() -> bool:
        return (await process.poll()).status is not ExecStatus.RUNNING

    await until(over)


class ProcessesConformance(Conformance):
    """spawn, attach, replay, input, signals and lists of background processes."""

    title = "processes"

    async def test_spawn_returns_while_it_runs(self, sandbox: AsyncSandbox) -> None:
        """cubeplexai/cubeplex#622, vercel/eve#2593: a long job yields an id at once, to poll, wait for and kill."""
        process = await sandbox.processes.spawn("sleep 1000")
        info = await process.poll()
        assert (info.id, info.pid, info.status, info.exit_code) == (process.id, process.pid, ExecStatus.RUNNING, None)
        await process.kill()
        assert (await process.wait()).signal == signal.SIGKILL

    async def test_its_end_is_reported_with_all_its_output(self, sandbox: AsyncSandbox) -> None:
        """The result has the exit code and both streams, as for a command that was waited for."""
        process = await sandbox.processes.spawn("seq 1 1000; echo e >&2; exit 7")
        result = await process.wait()
        assert (result.exit_code, result.stderr) == (7, "e\n")
        assert result.stdout == "".join(f"{number}\n" for number in range(1, 1001))

    async def test_a_result_is_there_for_who_asks_later(self, fresh: Fresh, provider: Provider) -> None:
        """modelcontextprotocol/python-sdk#212: a job that ended while nobody listened must not lose its result."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn("echo result; exit 3")
        await ended(process)
        await sandbox.close()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        result = await (await other.processes.get(process.id)).wait()
        assert (result.exit_code, result.stdout) == (3, "result\n")
        await other.close()

    async def test_it_runs_on_when_its_client_is_gone(self, fresh: Fresh, provider: Provider) -> None:
        """cloudflare/sandbox-sdk#891: closing a connection must not kill what was started to stay."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn("until [ -e go ]; do sleep 0.05; done; echo continued")
        await sandbox.close()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        again = await other.processes.get(process.id)
        assert (await again.poll()).status is ExecStatus.RUNNING
        await other.files.write("go", b"")
        assert (await again.wait()).stdout == "continued\n"
        await other.close()

    async def test_another_client_follows_where_the_first_stopped(self, fresh: Fresh, provider: Provider) -> None:
        """e2b-dev/E2B#1074: reconnecting to a background process must work, without a byte lost or doubled."""
        sandbox = await fresh()
        process = await sandbox.processes.spawn("echo one; until [ -e go ]; do sleep 0.05; done; echo two; echo three")
        async with process.attach() as stream:
            first = (await anext(stream)).data
        await sandbox.close()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        await other.files.write("go", b"")
        async with (await other.processes.get(process.id)).attach(since=(len(first), 0)) as rest:
            data = first + b"".join([chunk.data async for chunk in rest])
            assert rest.gap == 0
        assert data == b"one\ntwo\nthree\n"
        await other.close()

    async def test_output_is_a_snapshot_with_an_offset_to_go_on_from(self, sandbox: AsyncSandbox) -> None:
        """Asking again from the last offset gives what is new, and only that."""
        process = await sandbox.processes.spawn("echo first; read x; echo $x; read x", stdin=True)
        await wrote(process, b"first\n")
        one = await process.output()
        await process.write_stdin("second\n")
        await wrote(process, b"second\n")
        two = await process.output(since=one.next)
        assert (one.stdout, two.stdout, two.stdout_offset, two.gap) == (b"first\n", b"second\n", 6, 0)
        await process.kill()

    async def test_one_offset_holds_for_both_streams(self, sandbox: AsyncSandbox) -> None:
        """The stream that has less so far gives what it writes from then on, and loses none of it."""
        process = await sandbox.processes.spawn("echo hello world; printf abc >&2; read x; printf def >&2", stdin=True)
        await wrote(process, b"hello world\n")
        while (await process.output()).stderr != b"abc":
            await anyio.sleep(0.02)
        output = await process.output(since=6)
        assert (output.stdout, output.stderr, output.gap, output.next) == (b"world\n", b"", 0, (12, 3))
        stream = process.attach(since=6)
        async with stream:
            await process.write_stdin("\n")
            result = await stream.wait()
        assert (result.stdout, result.stderr, stream.gap) == ("world\n", "def", 0)
        assert (await process.output(since=output.next)).stderr == b"def"

    async def test_with_nobody_attached_it_is_never_held_back(self, sandbox: AsyncSandbox) -> None:
        """A job whose output nobody takes must run to its end."""
        process = await sandbox.processes.spawn(f"head -c {5 * RING} /dev/zero; echo done >&2")
        await ended(process)
        assert (await process.output()).stderr == b"done\n"

    async def test_what_no_longer_is_there_is_counted(self, sandbox: AsyncSandbox) -> None:
        """openclaw/openclaw#100085: replay from a ring buffer must say what it has lost."""
        process = await sandbox.processes.spawn(f"head -c {3 * RING} /dev/zero; echo end")
        await ended(process)
        output = await process.output()
        assert output.stdout.endswith(b"end\n")
        assert output.gap == output.stdout_offset > 0
        assert output.gap + len(output.stdout) == 3 * RING + 4
        result = await process.wait()
        assert (result.truncated, result.dropped_bytes) == (True, output.gap)

    async def test_an_offset_beyond_the_end_is_refused(self, sandbox: AsyncSandbox) -> None:
        """An offset that makes no sense is an error, not an empty answer."""
        process = await sandbox.processes.spawn("echo x")
        await ended(process)
        for wrong in (10**9, -5, (0, 1), (3, 0)):
            with pytest.raises(InvalidArgument):
                await process.output(since=wrong)

    async def test_input_may_come_in_pieces_and_be_closed(self, sandbox: AsyncSandbox) -> None:
        """What is written arrives in order; closing is seen as the end."""
        process = await sandbox.processes.spawn("cat; echo end", stdin=True)
        for number in range(50):
            await process.write_stdin(f"{number}\n")
        await process.close_stdin()
        await process.close_stdin()
        result = await process.wait()
        assert result.stdout == "".join(f"{number}\n" for number in range(50)) + "end\n"

    async def test_input_to_one_that_has_ended_is_an_error(self, sandbox: AsyncSandbox) -> None:
        """Input that nobody will ever read must not be accepted silently."""
        process = await sandbox.processes.spawn("exit 0", stdin=True)
        await ended(process)
        with pytest.raises((ProcessNotFound, InvalidArgument)):
            await process.write_stdin("x")

    async def test_a_viewer_sees_and_does_not_touch(self, sandbox: AsyncSandbox) -> None:
        """A client that only views sends nothing and takes nothing away from the one that is attached."""
        process = await sandbox.processes.spawn(["cat"], stdin=True)
        viewer = await sandbox.processes.get(process.id, view=True)
        with pytest.raises(InvalidArgument):
            await viewer.write_stdin("x")
        async with viewer.attach() as stream:
            await process.write_stdin("hello\n")
            assert (await anext(stream)).data == b"hello\n"
        await process.close_stdin()
        assert (await process.wait()).stdout == "hello\n"

    async def test_kill_takes_the_descendants_along(self, sandbox: AsyncSandbox) -> None:
        """openclaw/openclaw#110735: a kill must not leave what the process had started."""
        process = await sandbox.processes.spawn("setsid sleep 1000 & echo $!; wait")
        await wrote(process, b"\n")
        child = int((await process.output()).stdout)
        await sandbox.processes.kill(process.id)
        await process.wait()
        await gone(sandbox, child)

    async def test_another_signal_goes_to_the_process(self, sandbox: AsyncSandbox) -> None:
        """A signal other than SIGKILL may be handled."""
        process = await sandbox.processes.spawn("trap 'exit 9' USR1; echo set; while :; do sleep 0.05; done")
        await wrote(process, b"set\n")
        await process.kill(signal.SIGUSR1)
        assert (await process.wait()).exit_code == 9
        with pytest.raises(InvalidArgument):
            await process.kill(0)

    async def test_killing_what_has_ended_does_nothing(self, sandbox: AsyncSandbox) -> None:
        """A process may end by itself at any moment, also right before the kill; an unknown one is an error."""
        process = await sandbox.processes.spawn("exit 3")
        await ended(process)
        await process.kill()
        await process.kill(signal.SIGTERM)
        await sandbox.processes.kill(process.id)
        assert (await process.wait()).exit_code == 3
        with pytest.raises(ProcessNotFound):
            await sandbox.processes.kill(999_999_999)

    async def test_one_that_is_not_there_is_not_found(self, sandbox: AsyncSandbox) -> None:
        """An unknown id is a specific error."""
        with pytest.raises(ProcessNotFound):
            await sandbox.processes.get(999_999_999)

    async def test_the_list_has_those_that_run_and_those_that_ended(self, fresh: Fresh) -> None:
        """Oldest first, each with its command, its state and how it ended."""
        sandbox = await fresh()
        one = await sandbox.processes.spawn(["sh", "-c", "exit 4"])
        await ended(one)
        two = await sandbox.processes.spawn(["sleep", "1000"])
        first, second = await sandbox.processes.list()
        assert (first.id, first.status, first.exit_code) == (one.id, ExecStatus.EXITED, 4)
        assert (second.id, second.status, second.argv) == (two.id, ExecStatus.RUNNING, ("sleep", "1000"))
        assert first.user == (await sandbox.info()).user
        assert first.started_at <= second.started_at

    async def test_a_timeout_ends_a_background_process(self, sandbox: AsyncSandbox) -> None:
        """A background process has its own timeout, whether a client is attached or not."""
        process = await sandbox.processes.spawn("sleep 1000", timeout=0.4)
        assert (await process.wait()).timed_out

    async def test_a_missing_program_is_an_error_at_once(self, sandbox: AsyncSandbox) -> None:
        """A process that never started has no id."""
        with pytest.raises(CommandNotFound):
            await sandbox.processes.spawn(["no-such-program"])

    async def test_an_id_is_not_used_again(self, sandbox: AsyncSandbox) -> None:
        """A handle to an old process must never lead to a new one."""
        ids = []
        for _ in range(10):
            process = await sandbox.processes.spawn(["true"])
            await process.wait()
            ids.append(process.id)
        assert len(set(ids)) == 10
