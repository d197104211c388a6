"""Terminals: they live without a client, and what they showed is not lost."""

from __future__ import annotations

import signal
import time

import anyio
import pytest

from skerry.core import CommandNotFound, Conflict, ExecStatus, InvalidArgument, ProcessNotFound, Provider
from skerry.sdk import AsyncSandbox, AsyncTerminal
from skerry.testing.cases.base import Conformance, Fresh, gone, until


async def shows(terminal: AsyncTerminal, text: bytes) -> None:
    """Wait until the terminal has shown `text`."""

    async def there() -> bool:
        return text in (await terminal.output()).data

    await until(there)


class TerminalsConformance(Conformance):
    """Pseudo-terminals that outlive their clients."""

    title = "terminals"

    async def test_a_program_finds_a_terminal(self, sandbox: AsyncSandbox) -> None:
        """All three streams are the terminal, it is the controlling one, and TERM is set."""
        terminal = await sandbox.terminals.create("test -t 0 && test -t 1 && test -t 2 && : < /dev/tty && echo $TERM")
        assert (await terminal.wait()).exit_code == 0
        assert (await terminal.output()).data == b"xterm-256color\r\n"

    async def test_what_is_typed_reaches_the_program_and_is_echoed(self, sandbox: AsyncSandbox) -> None:
        """The line discipline is there: echo, and a line at a time."""
        terminal = await sandbox.terminals.create("read line; echo got $line")
        await terminal.write("hello\n")
        assert (await terminal.wait()).exit_code == 0
        assert (await terminal.output()).data == b"hello\r\ngot hello\r\n"

    async def test_ctrl_c_interrupts(self, sandbox: AsyncSandbox) -> None:
        """Keys are keys: 0x03 is a signal to what runs in the foreground."""
        terminal = await sandbox.terminals.create(
            "trap 'echo caught; exit 7' INT; echo set; while :; do sleep 0.05; done"
        )
        await shows(terminal, b"set")
        await terminal.write(b"\x03")
        assert (await terminal.wait()).exit_code == 7

    async def test_without_a_command_it_is_a_shell(self, sandbox: AsyncSandbox) -> None:
        """A login shell that takes commands and ends with `exit`."""
        terminal = await sandbox.terminals.create()
        await terminal.write("echo $((6*7)); exit 3\n")
        assert (await terminal.wait()).exit_code == 3
        assert b"42" in (await terminal.output()).data

    async def test_the_size_is_what_was_asked_for(self, sandbox: AsyncSandbox) -> None:
        """The program sees columns and rows, and a change of them."""
        script = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done"
        terminal = await sandbox.terminals.create(script, cols=101, rows=37)
        await shows(terminal, b"37 101")
        await terminal.resize(132, 43)
        assert (await terminal.wait()).exit_code == 0
        assert (await terminal.output()).data == b"37 101\r\n43 132\r\n"

    async def test_a_size_that_makes_no_sense_is_refused(self, sandbox: AsyncSandbox) -> None:
        """Zero columns are refused."""
        for cols, rows in ((0, 24), (80, 0), (-1, 24), (100_000, 24)):
            with pytest.raises(InvalidArgument):
                await sandbox.terminals.create("true", cols=cols, rows=rows)

    async def test_output_is_complete_however_much(self, sandbox: AsyncSandbox) -> None:
        """modal-labs/libmodal#245: a terminal must not cut off what the program wrote."""
        result = await sandbox.run_command_via_pty("seq 1 100000; exit 5")
        assert result.stdout == "".join(f"{number}\r\n" for number in range(1, 100_001))
        assert (result.exit_code, result.truncated) == (5, False)

    async def test_a_command_on_a_terminal_has_a_timeout(self, sandbox: AsyncSandbox) -> None:
        """openai/codex#20807: what waits for a key nobody presses must not hang for ever."""
        result = await sandbox.run_command_via_pty("echo begun; read key", timeout=1.0)
        assert (result.timed_out, result.stdout) == (True, "begun\r\n")

    async def test_a_reload_shows_everything_again(self, fresh: Fresh, provider: Provider) -> None:
        """coder/code-server#3018: contents of a terminal must not be lost when the page is loaded again."""
        sandbox = await fresh()
        terminal = await sandbox.terminals.create("echo first; read x; echo second")
        await shows(terminal, b"first")
        await sandbox.close()
        other = await AsyncSandbox.connect(sandbox.id, provider=provider)
        again = await other.terminals.get(terminal.id)
        async with again.attach() as stream:
            assert (await anext(stream)).data.startswith(b"first\r\n")
            await again.write("\n")
            data = b"".join([chunk.data async for chunk in stream])
        assert data.endswith(b"second\r\n")
        await other.close()

    async def test_attaching_from_an_offset_repeats_nothing(self, sandbox: AsyncSandbox) -> None:
        """openclaw/openclaw#100085: reattaching replays exactly what was missed."""
        terminal = await sandbox.terminals.create("echo one; read x; echo two")
        await shows(terminal, b"one")
        seen = (await terminal.output()).data
        await terminal.write("\n")
        await terminal.wait()
        async with terminal.attach(since=len(seen)) as stream:
            chunks = [chunk async for chunk in stream]
        assert chunks[0].offset == len(seen)
        assert seen + b"".join(chunk.data for chunk in chunks) == (await terminal.output()).data
        assert stream.gap == 0

    async def test_what_the_buffer_lost_is_counted(self, sandbox: AsyncSandbox) -> None:
        """openclaw/openclaw#100085: a replay that is not complete must say so."""
        terminal = await sandbox.terminals.create("stty -opost; head -c 3000000 /dev/zero | tr '\\0' x; echo end")
        await terminal.wait()
        output = await terminal.output()
        assert output.data.endswith(b"end\n")
        assert output.gap == output.offset == 3_000_004 - len(output.data) > 0

    async def test_an_idle_terminal_is_left_alone(self, sandbox: AsyncSandbox) -> None:
        """coder/coder#4351, 2witstudios/PageSpace#1723: a live shell must not be ended because it is silent."""
        terminal = await sandbox.terminals.create("sleep 2; read x; echo still $x")
        async with terminal.attach() as stream:
            await anyio.sleep(2.2)
            await terminal.write("here\n")
            data = b"".join([chunk.data async for chunk in stream])
        assert data.endswith(b"still here\r\n")

    async def test_nobody_attached_never_holds_it_back(self, sandbox: AsyncSandbox) -> None:
        """A build in a closed browser tab must run to its end."""
        terminal = await sandbox.terminals.create("head -c 4000000 /dev/zero | tr '\\0' x; exit 9")

        async def over() -> bool:
            return (await terminal.poll()).status is not ExecStatus.RUNNING

        await until(over)
        assert (await terminal.wait()).exit_code == 9

    async def test_the_last_to_attach_has_the_keyboard(self, sandbox: AsyncSandbox, provider: Provider) -> None:
        """Two people do not type into one line without knowing; the first one is told."""
        terminal = await sandbox.terminals.create("cat")
        async with terminal.attach() as mine:
            await terminal.write("one\n")
            await anext(mine)
            other = await AsyncSandbox.connect(sandbox.id, provider=provider)
            theirs = await other.terminals.get(terminal.id)
            async with theirs.attach(since=-1):
                await theirs.write("two\n")
                seen = b""
                while b"two" not in seen:
                    seen += (await anext(mine)).data
                with pytest.raises(Conflict):
                    await terminal.write("three\n")
            assert not mine.controls
            await other.close()
        await terminal.kill()

    async def test_a_viewer_only_looks(self, sandbox: AsyncSandbox) -> None:
        """A client that views cannot type and does not take over."""
        terminal = await sandbox.terminals.create("read x; echo got $x")
        viewer = await sandbox.terminals.get(terminal.id, view=True)
        async with viewer.attach() as stream:
            with pytest.raises(InvalidArgument):
                await viewer.write("no\n")
            await terminal.write("yes\n")
            assert b"got yes" in b"".join([chunk.data async for chunk in stream])

    async def test_kill_ends_it_with_all_it_started(self, sandbox: AsyncSandbox) -> None:
        """Jobs in the background do not outlive the terminal that was killed."""
        terminal = await sandbox.terminals.create("setsid sleep 1000 & echo $!; wait")
        await shows(terminal, b"\r\n")
        child = int((await terminal.output()).data)
        began = time.monotonic()
        await terminal.kill()
        ended = await terminal.wait()
        assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)
        assert time.monotonic() - began < 20
        await gone(sandbox, child)

    async def test_one_that_has_ended_takes_no_keys(self, sandbox: AsyncSandbox) -> None:
        """Typing into a terminal that has ended is an error."""
        terminal = await sandbox.terminals.create("exit 4")
        assert (await terminal.wait()).exit_code == 4
        with pytest.raises(ProcessNotFound):
            await terminal.write("x")
        with pytest.raises(ProcessNotFound):
            await terminal.resize(80, 24)

    async def test_the_list_has_terminals_and_only_those(self, fresh: Fresh) -> None:
        """The list has size, state and how much each has shown; background processes have their own list."""
        sandbox = await fresh()
        await sandbox.processes.spawn("sleep 1000")
        terminal = await sandbox.terminals.create(["sh", "-c", "echo hi; exec sleep 1000"], cols=90, rows=30)
        await shows(terminal, b"hi")
        (info,) = await sandbox.terminals.list()
        assert (info.id, info.pid, info.cols, info.rows) == (terminal.id, terminal.pid, 90, 30)
        assert (info.status, info.exit_code, info.output_bytes) == (ExecStatus.RUNNING, None, 4)

    async def test_one_that_is_not_there_is_not_found(self, sandbox: AsyncSandbox) -> None:
        """Neither an unknown id nor a missing program makes a terminal."""
        with pytest.raises(ProcessNotFound):
            await sandbox.terminals.get(999_999_999)
        with pytest.raises(CommandNotFound):
            await sandbox.terminals.create(["no-such-program"])
