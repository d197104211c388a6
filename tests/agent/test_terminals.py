"""Terminals: a pseudo-terminal around a process, its size, its keys, who is attached, and its last bytes."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Frame, Type
from tests.agent.driver.client import Agent, AgentError, Connection, pids_with, wait_until
from tests.agent.test_processes import attach, ended

FOREGROUND, TERMINAL, VIEW = 1, 4, 1
RING = 1 << 20
BASH = ("/bin/bash", "--norc", "--noprofile", "-i")
PROMPT = (b"PS1=ready> ", b"PATH=/usr/bin:/bin")


class Terminal:
    """A terminal as one client sees it: what has come so far, and the notices."""

    def __init__(self, connection: Connection, stream: int, id: int, start: int = 0) -> None:
        self.connection, self.stream, self.id = connection, stream, id
        self.seen = b""
        self.offset = start
        self.notices: list[wire.Notice] = []
        self.exit: wire.Exit | None = None
        self.credit = wire.INPUT_WINDOW

    def take(self, frame: Frame) -> None:
        if frame.type == Type.ERROR:
            raise AgentError(wire.Failure.decode(frame.payload))
        if frame.type == Type.CREDIT:
            self.credit += wire.parse_credit(frame.payload)
        elif frame.type == Type.REPLY and frame.flags & wire.FINAL:
            self.exit = wire.Exit.decode(frame.payload)
        elif frame.type == Type.REPLY:
            self.notices.append(wire.Notice.decode(frame.payload))
        elif frame.flags & wire.CHANNEL_MASK == 1:
            offset, data = wire.parse_data(frame.payload)
            assert offset == self.offset
            self.seen += data
            self.offset += len(data)
        else:
            assert frame.flags & wire.END and not wire.parse_data(frame.payload)[1]

    def step(self) -> None:
        self.take(self.connection.next(self.stream))

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Reads until the pattern is there, and forgets what is up to its end."""
        while not (found := re.search(pattern, self.seen)):
            assert self.exit is None, self.seen
            self.step()
        self.seen = self.seen[found.end() :]
        return found

    def until_notice(self) -> wire.Notice:
        while not self.notices:
            self.step()
        return self.notices.pop(0)

    def finish(self) -> wire.Exit:
        while self.exit is None:
            self.step()
        return self.exit

    def type(self, data: bytes) -> None:
        while data:
            while not self.credit:
                self.step()
            piece = data[: self.credit]
            self.connection.data(self.stream, piece)
            self.credit -= len(piece)
            data = data[len(piece) :]

    def detach(self) -> int:
        self.connection.send(self.stream, Type.CLOSE)
        return self.id


def open_terminal(connection: Connection, *argv: str | bytes, flags: int = 0, **options: object) -> Terminal:
    stream, started = connection.start(*argv, flags=TERMINAL | flags, **options)
    return Terminal(connection, stream, started.id)


def shell(connection: Connection, script: str, **options: object) -> Terminal:
    return open_terminal(connection, "/bin/sh", "-c", script, **options)


def join(connection: Connection, id: int, **options: int) -> Terminal:
    stream, attached = attach(connection, id, **options)
    return Terminal(connection, stream, id, attached.start_stdout)


def resize(connection: Connection, id: int, cols: int, rows: int) -> None:
    connection.ask(wire.Resize(id=id, cols=cols, rows=rows), wire.Empty)


def test_the_standard_streams_are_one_terminal_that_controls_the_session(connection: Connection) -> None:
    terminal = shell(
        connection,
        "tty; test -t 0 && test -t 1 && test -t 2 && echo all three; echo by name >/dev/tty; ps -o tty=,stat= -p $$",
    )
    exit = terminal.finish()
    lines = terminal.seen.decode().split("\r\n")
    assert exit.exit_code == 0
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:3] == ["all three", "by name"]
    name, state = lines[3].split()
    assert f"/dev/{name}" == lines[0]
    assert "s" in state and "+" in state  # leads its session, in the foreground
    assert exit.stdout_bytes == len(terminal.seen) and exit.stderr_bytes == 0


def test_the_terminal_belongs_to_the_user(connection: Connection) -> None:
    for user, uid in ("user", "1000"), ("root", "0"):
        terminal = shell(connection, "stat -c '%u %a' $(tty); id -u", user=user)
        assert terminal.finish().exit_code == 0
        assert terminal.seen.split() == [uid.encode(), b"620", uid.encode()]


def test_it_knows_colours_utf8_and_its_size_and_keeps_what_the_caller_sets(connection: Connection) -> None:
    script = "echo $TERM; stty -a | grep -o ' iutf8'; stty size"
    terminal = shell(connection, script)
    terminal.finish()
    assert terminal.seen == b"xterm-256color\r\n iutf8\r\n24 80\r\n"
    terminal = shell(connection, script, cols=132, rows=43, env=(b"TERM=dumb",))
    terminal.finish()
    assert terminal.seen == b"dumb\r\n iutf8\r\n43 132\r\n"
    connection.ask(wire.Env(set=(b"TERM=linux",)), wire.EnvReply)
    terminal = shell(connection, "echo $TERM")
    terminal.finish()
    assert terminal.seen == b"linux\r\n"


def test_a_process_without_a_terminal_gets_no_term(connection: Connection) -> None:
    assert connection.sh('echo "[$TERM]"; test -t 1 || echo no tty').stdout == b"[]\nno tty\n"


def test_resizing_tells_the_program_and_everybody_attached(agent: Agent, connection: Connection) -> None:
    terminal = shell(connection, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
    terminal.until(b"ready")
    viewer = join(agent.connect(), terminal.id, flags=VIEW)
    resize(connection, terminal.id, 100, 30)
    terminal.until(b"30 100\r\n")
    for one in terminal, viewer:
        assert one.until_notice() == wire.Notice(cols=100, rows=30)
    entry = connection.processes()[terminal.id]
    assert (entry.cols, entry.rows) == (100, 30)
    _, attached = attach(connection, terminal.id, flags=VIEW)
    assert (attached.cols, attached.rows) == (100, 30)


def test_many_sizes_at_once_come_as_the_latest(agent: Agent, connection: Connection) -> None:
    terminal = open_terminal(connection, "/bin/cat")
    other = agent.connect()
    frames = [
        wire.encode_frame(number, Type.RESIZE, wire.Resize(id=terminal.id, cols=number, rows=5).encode())
        for number in range(1, 501)
    ]
    other.raw(b"".join(frames))
    other.last = 500
    for number in range(1, 501):
        other.reply(number, wire.Empty)
    while not terminal.notices or terminal.notices[-1].cols != 500:
        terminal.step()
    assert len(terminal.notices) < 500


def has_the_terminal(pid: int) -> bool:
    """Whether a key that makes a signal now goes to this process, and finds it running."""
    state, _, group, _, _, foreground = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:6]
    return group == foreground and state != "T"


def test_keys_interrupt_suspend_and_resume_under_job_control(connection: Connection) -> None:
    terminal = open_terminal(connection, *BASH, env=PROMPT)
    terminal.until(b"ready> ")
    command = f"sleep 97{os.getpid()}"
    terminal.type(command.encode() + b"\r")
    marker = command.replace(" ", "\0")
    wait_until(lambda: any(map(has_the_terminal, pids_with(marker))))
    terminal.type(b"\x1a")
    terminal.until(rb"Stopped +" + command.encode())
    terminal.until(b"ready> ")
    terminal.type(b"fg\r")
    terminal.until(b"(?s)fg\r\n.*" + command.encode() + b"\r\n")
    wait_until(lambda: any(map(has_the_terminal, pids_with(marker))))  # the shell prints first: a key would be its own
    terminal.type(b"\x03")
    terminal.until(b"ready> ")
    terminal.type(b"echo status=$?\r")
    terminal.until(b"status=130\r\n")
    terminal.type(b"exit 7\r")
    assert terminal.finish().exit_code == 7


@pytest.mark.parametrize("cut", range(1, 10))
def test_text_survives_being_typed_in_two_pieces_cut_anywhere(connection: Connection, cut: int) -> None:
    typed = "ä€😀x".encode()
    terminal = shell(connection, "stty -echo; echo ready; read line; printf '<%s>' \"$line\"")
    terminal.until(b"ready\r\n")
    terminal.type(typed[:cut])
    terminal.type(typed[cut:] + b"\n")
    terminal.finish()
    assert terminal.seen == b"<" + typed + b">"


def test_a_backspace_takes_a_whole_character(connection: Connection) -> None:
    terminal = shell(connection, "echo ready; read line; printf '<%s>' \"$line\"")
    terminal.until(b"ready\r\n")
    terminal.type("a€\x7fb\n".encode())
    terminal.finish()
    assert terminal.seen.endswith(b"<ab>")


def test_ends_are_told_as_of_any_process(connection: Connection) -> None:
    assert shell(connection, "exit 42").finish().exit_code == 42
    exit = shell(connection, "kill -SEGV $$").finish()
    assert (exit.exit_code, exit.signal, exit.status) == (None, signal.SIGSEGV, "signaled")
    exit = shell(connection, "sleep 100", timeout_ms=100).finish()
    assert (exit.exit_code, exit.status) == (None, "timed_out")
    terminal = shell(connection, "echo ready; sleep 100")
    terminal.until(b"ready")
    connection.ask(wire.Signal(id=terminal.id, signal=signal.SIGTERM), wire.Empty)
    assert terminal.finish().signal == signal.SIGTERM
    terminal = shell(connection, "echo ready; sleep 100 & sleep 100")
    terminal.until(b"ready")
    connection.ask(wire.Signal(id=terminal.id, signal=signal.SIGKILL, scope=1), wire.Empty)
    assert terminal.finish().signal == signal.SIGKILL


def test_a_program_that_is_not_there_is_no_terminal(connection: Connection) -> None:
    with pytest.raises(AgentError, match="COMMAND_NOT_FOUND"):
        open_terminal(connection, "no-such-program")
    assert connection.processes() == {}


def test_a_foreground_terminal_goes_with_its_stream(connection: Connection) -> None:
    marker = f"99{os.getpid()}"
    terminal = shell(connection, f"sleep {marker} & sleep {marker}; true", flags=FOREGROUND)
    wait_until(lambda: len(pids_with(f"sleep\x00{marker}")) == 2)
    terminal.detach()
    wait_until(lambda: not pids_with(f"sleep\x00{marker}"))
    wait_until(lambda: connection.processes() == {})


def test_it_runs_on_without_a_client_and_replays_from_any_offset(agent: Agent, connection: Connection) -> None:
    id = shell(connection, "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; exit 3").detach()
    connection.close()
    other = agent.connect()
    wait_until(lambda: ended(other, id))
    whole = b"".join(b"line %d\r\n" % number for number in range(3000))
    for since in [0, len(whole), *random.Random(7).sample(range(len(whole)), 20)]:
        again = join(other, id, since_stdout=since)
        assert again.offset == since
        assert again.finish().exit_code == 3
        assert again.seen == whole[since:]


def test_offsets_outside_the_ring_are_refused_or_reported(connection: Connection) -> None:
    terminal = shell(connection, "stty -opost; head -c 3000000 /dev/zero; echo end", window=0)
    id = terminal.detach()
    wait_until(lambda: ended(connection, id))
    for since in 3_000_005, 1 << 62, -2:
        with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
            attach(connection, id, since_stdout=since)
    late = join(connection, id, since_stdout=17)
    assert 3_000_004 - RING <= late.offset < 3_000_004 - RING // 2
    start = late.offset
    late.finish()
    assert len(late.seen) == 3_000_004 - start
    assert late.seen.endswith(b"\0end\n")
    assert join(connection, id, since_stdout=-1).offset == 3_000_004


def test_nobody_attached_or_only_viewers_never_block_it(agent: Agent, connection: Connection) -> None:
    terminal = shell(connection, "read x; stty -opost; head -c 10000000 /dev/zero; echo end")
    viewer = agent.connect()
    attach(viewer, terminal.id, flags=VIEW, window=10)
    terminal.type(b"\n")
    terminal.detach()
    wait_until(lambda: ended(connection, terminal.id), timeout=60)
    assert connection.processes()[terminal.id].stdout_bytes == 10_000_000 + len(b"\r\nend\n")


def test_a_controller_holds_it_back_to_the_last_byte(connection: Connection) -> None:
    terminal = shell(connection, "stty -opost; head -c 3000000 /dev/zero; echo end", window=5000)
    while terminal.offset < 5000:
        terminal.step()
    assert connection.processes()[terminal.id].stdout_bytes <= RING + 5000
    assert connection.processes()[terminal.id].status == "running"
    while terminal.exit is None:  # a little at a time, over the end of the program too
        connection.credit(terminal.stream, 1, 40_000)
        before = terminal.offset
        while terminal.exit is None and terminal.offset < min(before + 40_000, 3_000_004):
            terminal.step()
        if terminal.offset == 3_000_004:
            terminal.finish()
    assert terminal.seen == b"\0" * 3_000_000 + b"end\n"


def test_taking_over_is_told_to_the_former_controller(agent: Agent, connection: Connection) -> None:
    first = shell(connection, "stty -echo; echo ready; cat")
    first.until(b"ready\r\n")
    second = join(agent.connect(), first.id, since_stdout=-1)
    assert first.until_notice() == wire.Notice(controls=0)
    first.type(b"from the first\n")
    second.type(b"from the second\n")
    for one in first, second:
        one.until(b"^from the second\r\n")
    third = join(agent.connect(), first.id, since_stdout=-1)
    assert second.until_notice() == wire.Notice(controls=0)
    third.type(b"\x04")
    for one in first, second, third:
        assert one.finish().exit_code == 0
        assert not one.notices


def test_a_viewer_may_not_type(agent: Agent, connection: Connection) -> None:
    terminal = open_terminal(connection, "/bin/cat")
    other = agent.connect()
    viewer = join(other, terminal.id, flags=VIEW)
    viewer.type(b"hello\n")
    other.broken()
    terminal.type(b"mine\n\x04")
    assert terminal.finish().exit_code == 0
    assert terminal.seen.replace(b"^D\x08\x08", b"") == b"mine\r\nmine\r\n"
    assert not terminal.notices


def test_the_end_of_input_changes_nothing_for_the_program(agent: Agent, connection: Connection) -> None:
    terminal = shell(connection, "stty -echo; echo ready; cat")
    terminal.until(b"ready\r\n")
    connection.data(terminal.stream, b"one\n", end=True)
    terminal.until(b"one\r\n")
    other = join(agent.connect(), terminal.id, since_stdout=-1)
    other.type(b"two\n\x04")
    other.until(b"two\r\n")
    assert other.finish().exit_code == 0
    connection.data(terminal.stream, b"after its own end")
    assert terminal.finish().exit_code == 0


@pytest.mark.parametrize("mode", ["cooked", "raw"])
def test_a_paste_of_a_megabyte_arrives_complete(connection: Connection, work: Path, mode: str) -> None:
    line = "".join(map(chr, range(0x21, 0x7F))).encode() * 8 + b"\n"
    paste = line * (1_000_000 // len(line))
    setting = "stty -echo" if mode == "cooked" else "stty raw -echo"
    terminal = shell(connection, f"{setting}; echo ready; head -c {len(paste)} > pasted")
    terminal.until(b"ready\r?\n")
    terminal.type(paste)
    assert terminal.finish().exit_code == 0
    assert (work / "pasted").read_bytes() == paste


def test_a_paste_with_echo_comes_back_while_it_goes_in(connection: Connection) -> None:
    terminal = shell(connection, "echo ready; head -c 200000 >/dev/null")
    terminal.until(b"ready\r\n")
    terminal.type((b"x" * 99 + b"\n") * 2000)
    assert terminal.finish().exit_code == 0
    assert terminal.seen.startswith(b"x" * 99 + b"\r\n")  # the kernel may drop echo, never input


def test_a_child_that_holds_the_terminal_is_hung_up_at_the_end(connection: Connection) -> None:
    marker = f"98{os.getpid()}"
    terminal = shell(connection, f"sleep {marker} & echo started; exit 5")
    exit = terminal.finish()
    assert (exit.exit_code, terminal.seen) == (5, b"started\r\n")
    wait_until(lambda: not pids_with(f"sleep\x00{marker}"))


def test_a_child_that_writes_for_ever_does_not_keep_the_end_away(connection: Connection) -> None:
    terminal = shell(connection, "trap '' HUP; yes & read x; exit 6")
    terminal.until(b"y\r\n")
    terminal.type(b"\n")
    assert terminal.finish().exit_code == 6


def test_a_program_may_close_its_terminal_and_open_it_again(connection: Connection) -> None:
    terminal = shell(
        connection,
        "tty=$(tty); echo one; exec <&- >&- 2>&-; sleep 0.1; exec <>$tty >&0 2>&0; echo two; read x; echo $x",
    )
    terminal.until(b"two\r\n")
    terminal.type(b"three\n")
    terminal.until(b"three\r\nthree\r\n")
    assert terminal.finish().exit_code == 0


def test_the_last_output_is_complete_every_time(connection: Connection) -> None:
    for _ in range(40):
        terminal = shell(connection, "stty -opost; head -c 60000 /dev/zero; printf end")
        assert terminal.finish().exit_code == 0
        assert len(terminal.seen) == 60_003 and terminal.seen.endswith(b"\0end")


@pytest.mark.parametrize("size", [(0, 24), (80, 0), (-1, 24), (10_001, 24), (80, 10_001), (1 << 40, 24)])
def test_a_size_that_makes_no_sense_is_refused(connection: Connection, size: tuple[int, int]) -> None:
    cols, rows = size
    with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
        open_terminal(connection, "/bin/cat", cols=cols, rows=rows)
    terminal = open_terminal(connection, "/bin/cat", cols=10_000, rows=1)
    with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
        resize(connection, terminal.id, cols, rows)
    entry = connection.processes()[terminal.id]
    assert (entry.cols, entry.rows) == (10_000, 1)


def test_only_running_terminals_can_be_resized(connection: Connection) -> None:
    with pytest.raises(AgentError, match="PROCESS_NOT_FOUND"):
        resize(connection, 4711, 80, 24)
    _, started = connection.start("/bin/sleep", "100")
    with pytest.raises(AgentError, match="INVALID_ARGUMENT"):
        resize(connection, started.id, 80, 24)
    terminal = shell(connection, "true")
    terminal.finish()
    with pytest.raises(AgentError, match="PROCESS_NOT_FOUND"):
        resize(connection, terminal.id, 80, 24)
    with pytest.raises(AgentError, match="PROCESS_NOT_FOUND"):
        attach(connection, 4711)


def test_nothing_is_left_of_terminals_that_have_ended(agent: Agent, connection: Connection) -> None:
    connection.sh("true")
    before = agent.descriptors()
    for turn in range(30):
        terminals = [shell(connection, f"echo {turn}; read x") for _ in range(5)]
        for terminal in terminals:
            terminal.until(b"\r\n")
            terminal.type(b"\n")
        for terminal in terminals:
            assert terminal.finish().exit_code == 0
        with pytest.raises(AgentError):
            open_terminal(connection, "no-such-program")
    wait_until(lambda: agent.descriptors() <= before)  # fewer: the first command's may still have been open


def test_many_terminals_at_once_each_keep_to_themselves(agent: Agent, connection: Connection) -> None:
    before = agent.rss_kb()
    terminals = [open_terminal(connection, "/bin/cat") for _ in range(60)]
    for number, terminal in enumerate(terminals):
        terminal.type(b"hello %d\n" % number)
    for number, terminal in enumerate(terminals):
        terminal.until(b"^hello %d\r\nhello %d\r\n" % (number, number))
    if "asan" not in agent.binary.name:
        assert agent.rss_kb() - before < 60 * 24
    for terminal in terminals:
        terminal.type(b"\x04")
    for terminal in terminals:
        assert terminal.finish().exit_code == 0


def test_neither_the_supervisor_nor_the_program_holds_more_than_it_needs(connection: Connection) -> None:
    terminal = shell(
        connection, "ls -l /proc/self/fd | grep -c ptmx; ls -l /proc/$PPID/fd | grep -c -e ptmx -e pts", user="root"
    )
    terminal.finish()
    assert terminal.seen == b"0\r\n0\r\n"
