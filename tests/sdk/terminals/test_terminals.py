"""Terminals against the real agent, run as a plain process."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.abc import SocketAttribute

from skerry import (
    AsyncSandbox,
    AsyncTerminalStream,
    CommandNotFound,
    Conflict,
    ConnectionLost,
    ExecStatus,
    InvalidArgument,
    ProcessNotFound,
    Sandbox,
    SandboxNotFound,
)
from skerry.core.contract.provider import Channel
from tests.sdk.agent_provider import AGENT, AgentProvider

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the agent changes users: run as root"),
    pytest.mark.skipif(not AGENT.exists(), reason="the agent is not built: make -C agent"),
]
DISCONNECTS = int(os.environ.get("SKERRY_DISCONNECTS", "50"))


class Fragile(AgentProvider):
    """Its connections can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: list[socket.socket] = []
        self.refuse = 0

    async def dial(self, sandbox_id: str, port: int = 0) -> Channel:
        if self.refuse:
            self.refuse -= 1
            raise ConnectionLost("refused for the test")
        channel = await super().dial(sandbox_id, port)
        self.sockets.append(channel.stream.extra(SocketAttribute.raw_socket))
        return channel

    def cut(self) -> None:
        for made in self.sockets:
            if made.fileno() >= 0:
                made.shutdown(socket.SHUT_RDWR)
        self.sockets.clear()


@pytest.fixture
async def agents() -> AsyncIterator[Fragile]:
    provider = Fragile()
    yield provider
    for sandbox_id in list(provider.boxes):
        await provider.destroy(sandbox_id)


@pytest.fixture
async def box(agents: Fragile) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(agents)
    with anyio.fail_after(90 + DISCONNECTS):
        yield sandbox
    await sandbox.destroy()


class Screen:
    """What has come from a stream, searched for patterns."""

    def __init__(self, stream: AsyncTerminalStream) -> None:
        self.stream, self.seen = stream, b""

    async def until(self, pattern: bytes) -> None:
        while not (found := re.search(pattern, self.seen)):
            self.seen += (await anext(self.stream)).data
        self.seen = self.seen[found.end() :]


async def rest(stream: AsyncTerminalStream) -> bytes:
    return b"".join([chunk.data async for chunk in stream])


async def test_a_terminal_is_used_like_one(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create("stty size; read line; echo got $line; stty size; exit 3", cols=100, rows=30)
    async with terminal.attach() as stream:
        screen = Screen(stream)
        await screen.until(b"30 100\r\n")
        await terminal.resize(90, 20)
        await terminal.write("hällo\n")
        await screen.until("got hällo\r\n".encode())
        assert await rest(stream) == b"20 90\r\n" or screen.seen == b"20 90\r\n"
        assert stream.exit is not None
        assert (stream.exit.exit_code, stream.exit.signal, stream.exit.status) == (3, None, ExecStatus.EXITED)
        assert (stream.size, stream.controls, stream.gap) == ((90, 20), True, 0)
    assert (terminal.cols, terminal.rows) == (90, 20)
    assert await terminal.wait() == stream.exit
    with pytest.raises(ProcessNotFound):
        await terminal.write("more")
    with pytest.raises(ProcessNotFound):
        await terminal.resize(80, 24)
    await terminal.kill()


async def test_without_a_command_it_is_a_login_shell(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create(env={"PS1": "> "})
    await terminal.write("shopt -q login_shell && echo it is login; exit\r")
    exit = await terminal.wait()
    assert exit.exit_code == 0
    assert b"it is login\r\n" in (await terminal.output()).data
    assert (await terminal.poll()).command == "bash -l"


async def test_without_bash_the_shell_is_sh(box: AsyncSandbox) -> None:
    await box.exec("mkdir bin && ln -s /bin/sh /bin/cat bin/")
    path = (await box.exec("pwd")).stdout.strip() + "/bin"
    terminal = await box.terminals.create(env={"PATH": path})
    assert (await terminal.poll()).command == "sh -l"
    await terminal.write("exit 5\r")
    assert (await terminal.wait()).exit_code == 5


async def test_terminals_and_processes_are_told_apart(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create(["cat"], cols=70, rows=7, user="nobody")
    process = await box.processes.spawn(["sleep", "100"])
    (info,) = await box.terminals.list()
    assert (info.id, info.pid, info.command, info.user) == (terminal.id, terminal.pid, "cat", "nobody")
    assert (info.cols, info.rows, info.status, info.output_bytes) == (70, 7, ExecStatus.RUNNING, 0)
    assert [one.id for one in await box.processes.list()] == [process.id]
    with pytest.raises(ProcessNotFound) as caught:
        await box.processes.get(terminal.id)
    assert caught.value.hint == "use terminals.get"
    with pytest.raises(ProcessNotFound) as caught:
        await box.terminals.get(process.id)
    assert caught.value.hint == "use processes.get"
    with pytest.raises(ProcessNotFound, match="no terminal 4711"):
        await box.terminals.get(4711)


async def test_the_output_can_be_read_without_attaching(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create("echo one; echo two")
    await terminal.wait()
    kept = await terminal.output()
    assert (kept.data, kept.offset, kept.gap, kept.next) == (b"one\r\ntwo\r\n", 0, 0, 10)
    assert (await terminal.output(since=5)).data == b"two\r\n"
    with pytest.raises(InvalidArgument):
        await terminal.output(since=11)
    with pytest.raises(InvalidArgument):
        terminal.attach(since=-2)


async def test_another_client_takes_over_and_attaching_takes_it_back(box: AsyncSandbox, agents: Fragile) -> None:
    terminal = await box.terminals.create("stty -echo; echo ready; cat")
    other_box = await AsyncSandbox.connect(box.id, provider=agents)
    async with terminal.attach() as stream:
        await Screen(stream).until(b"ready\r\n")
        other = await other_box.terminals.get(terminal.id)
        async with other.attach(since=-1) as second:
            assert second.controls
            await stream.changed()
            assert not stream.controls
            with pytest.raises(Conflict):
                await terminal.write("mine")
            await other.write("theirs\n")
            for one in stream, second:
                await Screen(one).until(b"^theirs\r\n$")
            await other.resize(11, 12)
            await stream.changed()
            assert stream.size == (11, 12)
    async with terminal.attach(since=-1) as stream:
        await terminal.write("mine again\n")
        await Screen(stream).until(b"mine again\r\n")
    await other_box.close()


async def test_a_viewer_sees_all_and_types_nothing(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create("stty -echo; echo ready; cat")
    viewer = await box.terminals.get(terminal.id, view=True)
    async with terminal.attach() as stream, viewer.attach() as view:
        await Screen(view).until(b"ready\r\n")
        assert not view.controls
        for write in viewer.write, view.write:
            with pytest.raises(InvalidArgument):
                await write("x")
        await terminal.write("hello\n")
        await Screen(view).until(b"hello\r\n")
        assert stream.controls


async def test_typing_needs_no_attachment_and_large_input_arrives(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create("stty raw -echo; echo ready; head -c 1000000 | sha256sum > sum; cat sum")
    async with terminal.attach() as stream:
        await Screen(stream).until(b"ready")
    await terminal.write(b"x" * 1_000_000)
    assert (await terminal.wait()).exit_code == 0
    expected = (await box.exec("head -c 1000000 /dev/zero | tr '\\0' x | sha256sum")).stdout
    assert (await box.files.read_text("sum")) == expected


async def test_killing_ends_it_with_all_it_started(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create("sleep 1000 & sleep 1000")
    await terminal.kill()
    exit = await terminal.wait()
    assert (exit.exit_code, exit.signal, exit.status) == (None, signal.SIGKILL, ExecStatus.SIGNALED)


@pytest.mark.parametrize("size", [(0, 24), (80, 0), (10_001, 1), (80.5, 24), (True, 24), ("80", 24)])
async def test_a_size_that_makes_no_sense_is_refused_before_anything_happens(
    box: AsyncSandbox, size: tuple[int, int]
) -> None:
    cols, rows = size
    with pytest.raises(InvalidArgument):
        await box.terminals.create(cols=cols, rows=rows)
    with pytest.raises(InvalidArgument):
        await box.run_command_via_pty("true", cols=cols, rows=rows)
    assert await box.terminals.list() == []
    terminal = await box.terminals.create(["cat"])
    with pytest.raises(InvalidArgument):
        await terminal.resize(cols, rows)
    assert (await terminal.poll()).cols == 80


async def test_a_command_runs_on_a_terminal_and_is_waited_for(box: AsyncSandbox) -> None:
    shown: list[bytes] = []
    result = await box.run_command_via_pty(
        "tty >/dev/null && stty size && cat && exit 4", input="typed\n\x04", on_data=shown.append, cols=50, rows=9
    )
    assert (result.exit_code, result.stderr) == (4, "")
    assert result.stdout.startswith(("9 50\r\n", "typed\r\n")) and result.stdout.endswith("typed\r\n")
    assert b"".join(shown) == result.stdout_bytes
    assert (await box.run_command_via_pty("sleep 100", timeout=0.2)).timed_out
    with pytest.raises(CommandNotFound):
        await box.run_command_via_pty(["no-such-program"])
    assert await box.terminals.list() == []


async def test_a_command_on_a_terminal_is_killed_when_its_caller_is_cancelled(box: AsyncSandbox) -> None:
    with anyio.move_on_after(0.3):
        await box.run_command_via_pty("sleep 4242")
    with anyio.fail_after(10):
        while (await box.exec("ps -e -o args= | grep -c '[s]leep 4242'")).exit_code == 0:
            await anyio.sleep(0.01)


async def test_closing_the_sandbox_object_ends_the_stream_instead_of_attaching_again(box: AsyncSandbox) -> None:
    terminal = await box.terminals.create(["cat"])
    async with terminal.attach() as stream, anyio.create_task_group() as group:

        async def iterate() -> None:
            with pytest.raises(ConnectionLost):
                await anext(stream)

        group.start_soon(iterate)
        await anyio.wait_all_tasks_blocked()
        await box.close()


async def test_the_end_of_the_sandbox_is_told_as_such(box: AsyncSandbox, agents: Fragile) -> None:
    terminal = await box.terminals.create(["cat"])
    other = await AsyncSandbox.connect(box.id, provider=agents)
    async with (await other.terminals.get(terminal.id)).attach() as stream:
        await box.destroy()
        with pytest.raises(SandboxNotFound):
            await anext(stream)
    await other.close()


async def test_an_agent_that_cannot_be_reached_again_is_given_up(box: AsyncSandbox, agents: Fragile) -> None:
    terminal = await box.terminals.create("stty -echo; echo ready; cat")
    async with terminal.attach() as stream:
        screen = Screen(stream)
        await screen.until(b"ready\r\n")
        async with anyio.create_task_group() as group:
            group.start_soon(screen.until, b"hello\r\n")
            agents.refuse = 3
            agents.cut()
            while agents.refuse:
                await anyio.sleep(0.01)
            await stream.write("hello\n")  # waits until it is attached again
        agents.refuse = 1000
        agents.cut()
        with pytest.raises(ConnectionLost):
            await anext(stream)
        agents.refuse = 0


async def test_one_that_was_taken_over_comes_back_as_a_viewer(box: AsyncSandbox, agents: Fragile) -> None:
    terminal = await box.terminals.create("stty -echo; echo ready; cat")
    first = terminal.attach()
    async with first, (await box.terminals.get(terminal.id)).attach(since=-1) as second:
        await first.changed()
        async with anyio.create_task_group() as group:
            for one in first, second:
                group.start_soon(Screen(one).until, b"still mine\r\n")
            agents.cut()
            while not agents.sockets:
                await anyio.sleep(0.01)
            await second.write("still mine\n")
        assert (first.controls, second.controls) == (False, True)


@pytest.mark.soak
async def test_no_line_is_lost_or_doubled_over_many_disconnects(box: AsyncSandbox, agents: Fragile) -> None:
    """Numbered lines, the connection is cut in the middle of data, at random moments."""
    chance = random.Random(20)
    # Paced, because nobody holds it back while there is no connection: the ring must have the rest when it comes back.
    lines = "i=1; while :; do seq $i $((i+299)); i=$((i+300)); sleep 0.001; done"
    terminal = await box.terminals.create(f"stty -opost; {lines}")
    cuts, expected, lost, doubled, buffered = 0, 1, 0, 0, b""
    next_cut = 1
    async with terminal.attach() as stream:
        async for chunk in stream:
            *complete, buffered = (buffered + chunk.data).split(b"\n")
            for line in complete:
                number = int(line)
                lost += max(0, number - expected)
                doubled += number < expected
                expected = number + 1
            if expected < next_cut:
                continue
            if cuts == DISCONNECTS:
                break
            cuts += 1
            next_cut = expected + chance.randrange(1, 3000)
            agents.cut()
        assert stream.gap == 0
    with contextlib.suppress(ConnectionLost):  # the last cut may not have been noticed
        await box.reconnect()
    await terminal.kill()
    print(f"{cuts} disconnects, {expected - 1} lines, {lost} lost, {doubled} doubled")
    assert (cuts, lost, doubled) == (DISCONNECTS, 0, 0)


def test_the_blocking_twin_does_the_same() -> None:
    provider = AgentProvider()
    sandbox = Sandbox.create(provider)
    try:
        terminal = sandbox.terminals.create("read x; echo got $x")
        with terminal.attach() as stream:
            terminal.write("this\n")
            shown = b"".join(chunk.data for chunk in stream)
            assert stream.exit is not None and stream.exit.exit_code == 0
        assert shown.endswith(b"got this\r\n")
        assert [info.id for info in sandbox.terminals.list()] == [terminal.id]
        assert sandbox.run_command_via_pty("test -t 1").ok
    finally:
        sandbox.destroy()
