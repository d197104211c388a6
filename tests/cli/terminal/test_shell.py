"""`skerry sh` and `skerry attach`, driven through a real terminal as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from skerry import Sandbox
from tests.cli.conftest import SKERRY, Skerry

pytestmark = pytest.mark.usefixtures("nothing_left")
PATIENCE = 15.0


class Person:
    """Somebody at a terminal that runs `skerry`."""

    def __init__(self, *arguments: str, cols: int = 80, rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.size(cols, rows)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            [SKERRY, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def size(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def insist(self, keys: bytes, pattern: bytes) -> None:
        """Types the keys, again every second, until the pattern is there."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.type(keys)
            again = time.monotonic() + 1.0
            while select.select([self.master], [], [], max(0, again - time.monotonic()))[0]:
                self.seen += os.read(self.master, 65536)
                if re.search(pattern, self.seen):
                    self.until(pattern)
                    return
            assert time.monotonic() < deadline, self.seen

    def until(self, pattern: bytes) -> re.Match[bytes]:
        """Reads until the pattern is there, and forgets what is up to its end."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            assert select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[found.end() :]
        return found

    def leave(self) -> int:
        """The exit code; the terminal must be as it was."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.02)[0]:
                self.seen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


Sit = Callable[..., Person]


@pytest.fixture
def sit() -> Iterator[Sit]:
    people: list[Person] = []

    def make(*arguments: str, **options: int) -> Person:
        people.append(Person(*arguments, **options))
        return people[-1]

    yield make
    for person in people:
        person.close()


def bash(sit: Sit, box: str, **options: int) -> Person:
    person = sit("sh", "--env", "PS1=ready> ", box, "--", "bash", "--norc", "-i", **options)
    person.until(b"ready> ")
    return person


def test_a_shell_in_a_new_sandbox_ends_with_its_exit_code_and_its_sandbox(sit: Sit) -> None:
    person = sit("sh")
    person.until(rb"\$ ")
    person.type(b"echo $((6 * 7)) $TERM; exit 9\r")
    person.until(b"42 xterm-256color\r\n")
    assert person.leave() == 9


def test_a_command_instead_of_a_shell_and_colours_pass_through(sit: Sit) -> None:
    person = sit("sh", "--", "printf", r"\033[38;5;196mred\033[0m \xe2\x82\xac")
    person.until(b"\x1b\\[38;5;196mred\x1b\\[0m " + "€".encode())
    assert person.leave() == 0
    person = sit("sh", "--", "sh", "-c", "kill -TERM $$")
    assert person.leave() == 128 + signal.SIGTERM


def test_the_size_of_the_window_is_the_size_inside_and_follows_it(sit: Sit, box: str) -> None:
    person = bash(sit, box, cols=101, rows=31)
    person.type(b"stty size\r")
    person.until(b"31 101\r\n")
    person.type(b"trap 'echo now $(stty size)' WINCH; echo set\r")
    person.until(rb"[\r\n]set\r\n")
    person.size(77, 22)
    person.type(b"\r")
    person.until(b"now 22 77\r\n")
    person.type(b"exit\r")
    assert person.leave() == 0


def wait_for_the_terminal(box: str, command: str) -> None:
    """Until the command runs in the foreground of its terminal."""
    sandbox = Sandbox.connect(box)
    deadline = time.monotonic() + 20
    while f"S+ {command}" not in " ".join(sandbox.exec("ps -eo stat,args", check=True).stdout.split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sandbox.close()


def test_keys_interrupt_suspend_and_resume(sit: Sit, box: str) -> None:
    person = bash(sit, box)
    person.type(b"sh -c 'echo started; exec sleep 1000'\r")
    person.until(rb"[\r\n]started\r\n")
    person.type(b"\x03")
    person.until(b"ready> ")
    person.type(b"echo code=$?\r")
    person.until(b"code=130\r\n")
    person.type(b"sh -c 'echo started; exec sleep 1000'\r")
    person.until(rb"[\r\n]started\r\n")
    person.type(b"\x1a")
    person.until(b"Stopped")
    person.until(b"ready> ")
    person.type(b"fg\r")
    person.until(b"exec sleep 1000'\r\n")
    wait_for_the_terminal(box, "sleep 1000")  # the shell prints first: until then a key is still the shell's
    person.type(b"\x03")
    person.until(b"ready> ")
    person.type(b"\x04")
    assert person.leave() == 130


def test_a_full_screen_program_works(sit: Sit, box: str) -> None:
    person = sit("sh", box, "--", "sh", "-c", "seq 1 1000 > numbers; exec less numbers", rows=10)
    person.until(b"numbers")
    person.type(b"G")
    person.until(b"1000\r\n")
    person.type(b"?^500$\r")
    person.until(b"500")
    person.type(b"q")
    assert person.leave() == 0


def test_an_editor_works(sit: Sit, box: str, skerry: Skerry) -> None:
    if skerry("exec", box, "--", "sh", "-c", "command -v vi").code:
        pytest.skip("the sandbox has no vi: tools/setup.sh installs it")
    person = sit("sh", box, "--", "vi", "-u", "NONE", "-N", "note")
    person.until(b"~")
    person.type(b"ihello from vi\x1b")
    person.until(b"hello from vi")
    person.type(b":wq\r")
    assert person.leave() == 0
    assert skerry("cat", box, "note").out == b"hello from vi\n"


def test_detaching_leaves_it_running_and_attaching_comes_back(sit: Sit, box: str) -> None:
    person = bash(sit, box)
    person.type(b"secret=plover; echo set\r")
    person.until(rb"[\r\n]set\r\n")
    person.type(b"\x10\x11")
    id = person.until(rb"skerry attach \S+ (\d+)\r\n")[1].decode()
    assert person.leave() == 0
    back = sit("attach", box)
    back.until(b"secret=plover")  # replayed
    back.type(b"echo it is $secret\r")
    back.until(b"it is plover\r\n")
    fresh = sit("attach", "--no-replay", "--detach-keys", "ctrl-a,d", box, id)
    back.until(b"another client has taken over")
    fresh.type(b"echo now $secret\r")
    fresh.until(b"now plover\r\n")
    back.until(b"now plover\r\n")
    assert b"it is" not in fresh.seen
    fresh.type(b"\x01d")
    assert fresh.leave() == 0
    back.type(b"\x10\x11")
    assert back.leave() == 0


def test_ctrl_p_alone_is_typed(sit: Sit, box: str) -> None:
    person = bash(sit, box)
    person.type(b"echo once\r")
    person.until(rb"[\r\n]once\r\n")
    person.type(b"\x10\r")  # the line before, in bash
    person.until(rb"[\r\n]once\r\n")
    person.type(b"exit 4\r")
    assert person.leave() == 4


def test_a_viewer_sees_and_types_nothing(sit: Sit, box: str) -> None:
    person = bash(sit, box, cols=90)
    viewer = sit("attach", "--view", box, cols=40)
    viewer.until(b"ready> ")
    viewer.type(b"echo from the viewer\r")
    person.type(b"stty size\r")
    person.until(b"24 90\r\n")
    viewer.until(b"24 90\r\n")
    person.type(b"exit 6\r")
    assert person.leave() == 6
    assert viewer.leave() == 6
    assert b"from the viewer" not in person.seen + viewer.seen


def test_a_new_sandbox_outlives_detaching(sit: Sit, skerry: Skerry) -> None:
    person = sit("sh")
    person.until(rb"\$ ")
    person.type(b"\x10\x11")
    sandbox = person.until(rb"skerry attach (\S+) \d+\r\n")[1].decode()
    assert person.leave() == 0
    back = sit("attach", sandbox)
    back.until(rb"\$ ")
    back.type(b"exit 3\r")
    assert back.leave() == 3
    assert skerry("rm", sandbox).code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_client_restores_its_terminal_and_removes_its_sandbox(sit: Sit, number: int) -> None:
    person = sit("sh")
    person.until(rb"\$ ")
    person.process.send_signal(number)
    assert person.leave() == 128 + number


def test_a_killed_client_takes_its_new_sandbox_along(sit: Sit, skerry: Skerry) -> None:
    person = sit("sh")
    person.until(rb"\$ ")
    person.process.kill()
    person.process.wait()
    deadline = time.monotonic() + PATIENCE
    while skerry.listed():
        assert time.monotonic() < deadline
        skerry("gc")


def test_the_end_of_the_sandbox_is_an_error_that_says_so(sit: Sit, skerry: Skerry) -> None:
    sandbox = skerry("create").text.strip()
    person = bash(sit, sandbox)
    skerry("rm", sandbox)
    person.until(b"SANDBOX_NOT_FOUND")
    assert person.leave() == 125


def test_piped_input_is_typed_and_ended(skerry: Skerry, box: str) -> None:
    done = skerry("sh", box, "--", "sh", "-c", "cat; echo the end; exit 8", stdin=b"one\ntwo")
    assert done.code == 8
    assert done.text.endswith("the end\r\n")
    assert done.text.count("two") >= 1


def test_attach_says_what_there_is_to_choose_from(sit: Sit, skerry: Skerry, box: str) -> None:
    none = skerry("attach", box)
    assert (none.code, "PROCESS_NOT_FOUND" in none.err) == (125, True)
    people = [sit("sh", box, "--", "sh", "-c", f"echo {name}; exec cat") for name in ("first", "second")]
    for person, name in zip(people, (b"first", b"second"), strict=True):
        person.until(name)
    several = skerry("attach", box)
    assert several.code == 125
    assert "2 terminals run" in several.err and "1: " in several.err and "2: " in several.err
    assert skerry("attach", box, "4711").code == 125
    for person in people:
        person.type(b"\x04")
        assert person.leave() == 0


@pytest.mark.parametrize("keys", ["ctrl-", "ctrl-pp", "ab", ",", "ctrl-1"])
def test_detach_keys_that_are_none_are_refused(skerry: Skerry, box: str, keys: str) -> None:
    done = skerry("sh", "--detach-keys", keys, box)
    assert (done.code, "INVALID_ARGUMENT" in done.err) == (125, True)
    assert "no terminal runs" in skerry("attach", box).err


def test_options_reach_the_terminal(sit: Sit, box: str) -> None:
    script = "echo $(id -un) $PWD $A"
    person = sit("sh", "--user", "root", "--workdir", "/usr", "--env", "A=b", box, "--", "sh", "-c", script)
    person.until(b"root /usr b\r\n")
    assert person.leave() == 0
    wrong = sit("sh", box, "ls")
    wrong.until(b"INVALID_ARGUMENT")
    assert wrong.leave() == 125


def test_a_command_run_on_a_terminal_has_one_and_gives_its_exit_code(sit: Sit) -> None:
    person = sit("run", "--", "bash", "--norc", "-i")
    person.until(rb"\$ ")
    person.type(b"test -t 0 && test -t 1 && echo $((6 * 7)); exit 9\r")
    person.until(b"42\r\n")
    assert person.leave() == 9


@pytest.mark.parametrize("flags", [[], ["-i"], ["-t"], ["-it"], ["-ti"]])
def test_a_program_that_exec_starts_on_a_terminal_is_talked_to(sit: Sit, box: str, flags: list[str]) -> None:
    person = sit("exec", *flags, box, "--", "python3", "-q")
    person.until(b">>> ")
    person.type(b"print(6 * 7)\r")
    person.until(b"[\r\n]42\r\n>>> ")
    person.insist(b"\x03", b"KeyboardInterrupt")  # Python may miss one that comes just before it waits for a key
    person.type(b"exit(5)\r")
    assert person.leave() == 5


def test_what_cannot_run_or_takes_too_long_on_a_terminal_exits_as_without_one(sit: Sit, box: str) -> None:
    person = sit("exec", box, "--", "no-such-program")
    person.until(b"no-such-program")
    assert person.leave() == 127
    person = sit("exec", "--timeout", "0.5", box, "--", "sleep", "1000")
    person.until(b"sleep 1000 ran out of time after 0.5 s")
    assert person.leave() == 124
    person = sit("exec", box, "--", "sh", "-c", "echo started; exec sleep 1000")
    person.until(b"started")
    person.process.terminate()
    assert person.leave() == 128 + signal.SIGTERM
    sandbox = Sandbox.connect(box)
    assert "sleep" not in sandbox.exec("ps -eo args", check=True).stdout
    sandbox.close()


def test_detaching_from_a_run_keeps_its_sandbox(sit: Sit, skerry: Skerry) -> None:
    person = sit("run", "--", "sh", "-c", "echo started; exec sleep 1000")
    person.until(b"started")
    person.type(b"\x10\x11")
    id = person.until(rb"skerry attach (\S+) \d+\r\n")[1].decode()
    assert person.leave() == 0
    assert skerry("exec", id, "--", "pgrep", "sleep").code == 0
    assert skerry("rm", id).code == 0


def test_output_that_goes_elsewhere_keeps_its_streams_apart(box: str) -> None:
    master, slave = pty.openpty()
    command = [SKERRY, "exec", box, "--", "sh", "-c", "test -t 0 || test -t 1 || echo none; echo wrong >&2"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE) as process:
        assert process.communicate(timeout=30)[1] == b"wrong\n"
    assert os.read(master, 100) == b"none\r\n"
    with subprocess.Popen([SKERRY, "exec", "-i", box, "--", "cat"], stdin=slave, stdout=subprocess.PIPE) as process:
        os.write(master, b"typed\n\x04")
        assert process.communicate(timeout=30)[0] == b"typed\n"
    os.close(master)
    os.close(slave)


def test_a_terminal_that_cannot_be_is_refused_with_the_reason(skerry: Skerry, box: str) -> None:
    for arguments, words in (
        (("exec", "-it", box, "--", "sh"), "-t needs a terminal, and stdin is not one"),
        (("run", "-t", "--", "sh"), "-t needs a terminal, and stdin is not one"),
        (("run", "-t", "10", "--", "sh"), "hint: --timeout 10"),
        (("exec", "-t", "10", box, "--", "sh"), "hint: --timeout 10"),
        (("exec", "-t", "-o", "json", box, "--", "sh"), "-t cannot be combined with -o json"),
        (("exec", "-it", "--detach", box, "--", "sh"), "--detach cannot be combined with -i or -t"),
    ):
        done = skerry(*arguments, stdin=b"")
        assert done.code == 125
        assert words in done.err
    assert skerry("exec", "-i", box, "--", "cat", stdin=b"piped").out == b"piped"
    assert "skerry run --template python -- bash" in skerry("sh", "--help").text
