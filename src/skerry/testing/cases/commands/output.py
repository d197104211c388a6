"""What a command writes: all of it, in order, in bounded memory."""

from __future__ import annotations

import signal

import anyio
import pytest

from skerry.core import CommandNotFound, ExecStatus
from skerry.sdk import AsyncSandbox, OutputChunk
from skerry.testing.cases.base import Conformance, gone

BYTES = 'for i in 0 1 2 3; do for j in $(seq 0 7); do for k in $(seq 0 7); do printf "\\\\$i$j$k"; done; done; done'
"""A shell's program that writes every byte once, in order."""


class OutputConformance(Conformance):
    """Output of commands: binary, complete, limited, streamed, held back."""

    title = "output"

    async def test_output_may_be_any_bytes(self, sandbox: AsyncSandbox) -> None:
        """Every byte comes back as it was written; only the text view replaces what is not text."""
        result = await sandbox.exec(BYTES)
        assert result.stdout_bytes == bytes(range(256))
        assert "\ufffd" in result.stdout

    async def test_megabytes_of_output_are_complete(self, sandbox: AsyncSandbox) -> None:
        """Output below the limit is never cut, however much comes at once."""
        result = await sandbox.exec("seq 1 700000")
        assert result.stdout == "".join(f"{number}\n" for number in range(1, 700_001))
        assert (result.truncated, result.dropped_bytes) == (False, 0)

    async def test_truncation_keeps_both_ends_and_counts_the_rest(self, sandbox: AsyncSandbox) -> None:
        """axelmierczuk/fleet-mcp#22: what was left out must be marked and counted."""
        result = await sandbox.exec("seq 1 100000", output_limit=1000)
        assert result.stdout.startswith("1\n2\n3\n")
        assert result.stdout.endswith("99999\n100000\n")
        assert len(result.stdout_bytes) == 1000
        assert (result.truncated, result.dropped_bytes) == (True, 588_895 - 1000)

    async def test_truncated_text_has_a_mark_and_no_line_that_was_never_written(self, sandbox: AsyncSandbox) -> None:
        """Glued together, "38" and "4" would be the line 384."""
        for ran in (
            await sandbox.exec("seq 1 100000; seq 1 100000 >&2", output_limit=200),
            await sandbox.exec(["seq", "1", "100000"], output_limit=203),
        ):
            for text in (ran.stdout, ran.stderr) if ran.stderr else (ran.stdout,):
                head, mark, tail = text.partition("[… ")
                size, rest, tail = tail.partition(" bytes left out …]\n")
                assert mark and rest and head.endswith("\n") and tail.endswith("100000\n")
                numbers = [int(line) for line in (head + tail).splitlines()]
                assert all(1 <= number <= 100_000 for number in numbers) and numbers == sorted(numbers)
                assert int(size.replace(",", "")) + len(head) + len(tail) == 588_895

    async def test_a_flood_on_stdout_does_not_cost_the_reason_on_stderr(self, sandbox: AsyncSandbox) -> None:
        """uw-syfi/vibesys#610: truncation must not lose the stderr that explains the failure."""
        result = await sandbox.exec("echo because >&2; seq 1 100000; echo of this >&2; exit 9", output_limit=500)
        assert (result.exit_code, result.stderr) == (9, "because\nof this\n")

    async def test_output_at_the_very_end_is_not_lost(self, sandbox: AsyncSandbox) -> None:
        """What a command writes right before its end is there, every time."""
        for number in range(20):
            assert (await sandbox.exec(["sh", "-c", f"echo last {number}; exit 1"])).stdout == f"last {number}\n"

    async def test_a_stream_gives_chunks_as_they_come(self, sandbox: AsyncSandbox, directory: str) -> None:
        """The first output is here while the command still runs."""
        script = f"echo one; until [ -e {directory}/go ]; do sleep 0.02; done; echo two >&2; exit 5"
        async with sandbox.exec_stream(script) as stream:
            assert await anext(stream) == OutputChunk("stdout", b"one\n", 0)
            await sandbox.files.write(f"{directory}/go", b"")
            assert [chunk async for chunk in stream] == [OutputChunk("stderr", b"two\n", 0)]
            result = await stream.wait()
        assert (result.exit_code, result.stdout, result.stderr) == (5, "one\n", "two\n")

    async def test_offsets_have_no_holes(self, sandbox: AsyncSandbox) -> None:
        """Each chunk says where it is in its stream, and there are no gaps between chunks."""
        size = 0
        async with sandbox.exec_stream("head -c 3000000 /dev/zero", output_limit=100) as stream:
            async for chunk in stream:
                assert chunk.offset == size
                size += len(chunk.data)
        assert size == 3_000_000

    async def test_lines_and_characters_are_not_torn(self, sandbox: AsyncSandbox) -> None:
        """A character or a line that comes in two pieces is delivered whole."""
        script = r"printf 'a\303'; sleep 0.1; printf '\244\nb'; sleep 0.1; printf 'c\n'"
        async with sandbox.exec_stream(script) as stream:
            assert [line async for line in stream.lines()] == ["aä", "bc"]

    async def test_callbacks_get_the_output_in_order(self, sandbox: AsyncSandbox) -> None:
        """What the callbacks saw is what the result has."""
        out: list[str] = []
        err: list[str] = []
        result = await sandbox.exec("seq 1 20000; seq 5 >&2", on_stdout=out.append, on_stderr=err.append)
        assert ("".join(out), "".join(err)) == (result.stdout, result.stderr)

    async def test_a_failing_callback_kills_the_command(self, sandbox: AsyncSandbox) -> None:
        """The caller's own error comes back to the caller, and the command does not keep running unseen."""
        pids: list[int] = []

        def fail(text: str) -> None:
            pids.append(int(text.split()[0]))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await sandbox.exec("echo $$; exec sleep 1000", on_stdout=fail)
        await gone(sandbox, pids[0])

    async def test_a_slow_reader_holds_the_command_back(self, sandbox: AsyncSandbox) -> None:
        """PrimeIntellect-ai/prime#824: what is not taken yet must not pile up in memory."""
        async with sandbox.exec_stream("yes | head -c 60000000") as stream:
            await anext(stream)
            await anyio.sleep(0.3)
            (info,) = [info for info in await sandbox.processes.list() if info.pid == stream.pid]
            assert info.status is ExecStatus.RUNNING
            assert info.stdout_bytes < 8_000_000

    async def test_a_reader_that_paused_gets_the_rest(self, sandbox: AsyncSandbox) -> None:
        """vercel/eve#440: a stream that was held back must continue, not stall."""
        size = 0
        async with sandbox.exec_stream("head -c 5000000 /dev/zero; echo end >&2", output_limit=100) as stream:
            size += len((await anext(stream)).data)
            await anyio.sleep(0.3)
            async for chunk in stream:
                size += len(chunk.data)
            result = await stream.wait()
        assert (size, result.exit_code) == (5_000_000 + 4, 0)

    async def test_one_stream_nobody_reads_does_not_block_the_other(self, sandbox: AsyncSandbox) -> None:
        """A flood on stderr must not keep a reader of stdout waiting."""
        async with sandbox.exec_stream("head -c 3000000 /dev/zero >&2; echo done", output_limit=1000) as stream:
            assert b"".join([data async for data in stream.stdout]) == b"done\n"
            result = await stream.wait()
        assert (len(result.stderr_bytes), result.dropped_bytes) == (1000, 3_000_000 - 1000)

    async def test_leaving_a_stream_kills_its_command(self, sandbox: AsyncSandbox) -> None:
        """A stream owns its command: when the stream is left, the command does not keep running."""
        async with sandbox.exec_stream("echo $$; exec sleep 1000") as stream:
            pid = int((await anext(stream)).data)
        await gone(sandbox, pid)

    async def test_a_signal_through_a_stream_arrives(self, sandbox: AsyncSandbox) -> None:
        """A polite signal may be handled by the command; its own exit code is the result."""
        async with sandbox.exec_stream("trap 'exit 9' TERM; echo set; while :; do sleep 0.05; done") as stream:
            await anext(stream)
            await stream.kill(signal.SIGTERM)
            assert (await stream.wait()).exit_code == 9
            await stream.kill()

    async def test_a_stream_of_a_missing_program_is_an_error(self, sandbox: AsyncSandbox) -> None:
        """A command that never started is not a stream that ends at once."""
        with pytest.raises(CommandNotFound):
            async with sandbox.exec_stream(["no-such-program"]) as stream:
                await stream.wait()
