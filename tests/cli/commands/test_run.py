"""`skerry run`: a command in a sandbox of its own, seen from outside as if it ran here."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import Skerry

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_run_passes_output_and_exit_code_through(skerry: Skerry) -> None:
    done = skerry("run", "--", "sh", "-c", "id -u; exit 7")
    assert (done.code, done.out, done.err) == (7, b"1000\n", "")


def test_run_takes_a_command_without_the_dashes(skerry: Skerry) -> None:
    assert skerry("run", "echo", "-n", "--", "x").out == b"-- x"


def test_timeout_kills_the_command_and_exits_124_within_two_seconds(skerry: Skerry) -> None:
    def seconds() -> float:
        start = time.monotonic()
        done = skerry("run", "--timeout", "1", "--", "sh", "-c", "echo before; sleep 60")
        assert (done.code, done.out) == (124, b"before\n")
        assert "(TIMEOUT)\nhint: " in done.err
        return time.monotonic() - start

    assert any(seconds() < 2 for _ in range(3))  # more than once only where the machine is busy


def test_a_command_killed_by_signal_n_exits_128_plus_n(skerry: Skerry) -> None:
    assert skerry("run", "--", "sh", "-c", "kill -TERM $$").code == 128 + signal.SIGTERM


def test_a_missing_program_exits_127(skerry: Skerry) -> None:
    done = skerry("run", "--", "no-such-program")
    assert (done.code, done.out) == (127, b"")
    assert done.err.startswith("error: ")
    assert "(COMMAND_NOT_FOUND)\nhint: " in done.err


def test_a_program_that_is_not_executable_exits_126(skerry: Skerry) -> None:
    assert skerry("run", "--", "/etc/passwd").code == 126


def test_out_of_memory_exits_137(skerry: Skerry) -> None:
    eater = "x = bytearray(1 << 30); x[::4096] = b'x' * len(x[::4096])"
    done = skerry("run", "--memory", "64MiB", "--", "python3", "-c", eater)
    assert done.code == 137
    assert "(OUT_OF_MEMORY)" in done.err
    for code in (137, 3):
        shell = f'python3 -c "{eater}"; exit {code}'
        done = skerry("run", "--memory", "64MiB", "--", "sh", "-c", shell)
        assert (done.code, "(OUT_OF_MEMORY)" in done.err) == (code, True)
    data = skerry("run", "--memory", "64MiB", "-o", "json", "--", "sh", "-c", shell).json
    assert (data["status"], data["exit_code"], data["oom_killed"]) == ("out_of_memory", 3, True)


def test_stdin_is_piped_through(skerry: Skerry) -> None:
    assert skerry("run", "--", "tr", "a-z", "A-Z", stdin=b"hello\n").out == b"HELLO\n"


def test_stdin_from_a_file_is_passed_through(skerry: Skerry, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "input")
    content = os.urandom(3_000_000)
    with open(path, "wb") as file:
        file.write(content)
    with open(path, "rb") as file:
        done = skerry("run", "--", "sha256sum", stdin=file.fileno())
    assert done.text.split()[0] == hashlib.sha256(content).hexdigest()


def test_an_input_that_never_ends_does_not_keep_run_from_ending(skerry: Skerry) -> None:
    reader, writer = os.pipe()
    try:
        assert skerry("run", "--", "echo", "done", stdin=reader).out == b"done\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_binary_output_arrives_byte_for_byte_on_its_own_stream(skerry: Skerry) -> None:
    program = "import sys; b = bytes(range(256)) * 4000; sys.stdout.buffer.write(b); sys.stderr.buffer.write(b[::-1])"
    started = skerry.start("run", "--", "python3", "-c", program, stdin=subprocess.DEVNULL)
    out, err = started.communicate(timeout=60)
    expected = bytes(range(256)) * 4000
    assert (started.returncode, out, err) == (0, expected, expected[::-1])


def test_output_is_streamed_while_the_command_runs(skerry: Skerry) -> None:
    started = skerry.start("run", "--", "sh", "-c", "echo first; read line; echo $line", stdin=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"first\n"
    out, _ = started.communicate(b"second\n", timeout=60)
    assert (started.returncode, out) == (0, b"second\n")


def test_a_reader_that_goes_away_ends_the_command_quietly(skerry: Skerry) -> None:
    started = skerry.start("run", "--", "yes", stdin=subprocess.DEVNULL)
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.read(2)
    started.stdout.close()
    assert started.stderr.read() == b""
    started.stderr.close()
    assert started.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_kills_the_command_and_removes_the_sandbox(skerry: Skerry, signum: signal.Signals) -> None:
    started = skerry.start("run", "--", "sh", "-c", "trap '' INT TERM; echo ready; sleep 60", stdin=subprocess.DEVNULL)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    started.send_signal(signum)
    _, err = started.communicate(timeout=10)
    assert (started.returncode, err) == (128 + signum, b"")


def test_ctrl_c_while_nobody_reads_the_output_still_ends_it(skerry: Skerry) -> None:
    started = skerry.start("run", "--", "yes", stdin=subprocess.DEVNULL)
    assert started.stdout is not None
    started.stdout.read(2)
    time.sleep(0.5)  # lets the pipe fill; whether it has by now changes nothing in what must happen
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=10) == 130
    started.communicate()


def test_env_reaches_the_command_and_a_bare_name_passes_our_own(skerry: Skerry) -> None:
    done = skerry(
        "run", "-e", "A=1=2", "--env", "MINE", "--", "sh", "-c", 'echo "$A $MINE $HOME"', env={"MINE": "here"}
    )
    assert done.out == b"1=2 here /home/user\n"


def test_our_environment_does_not_leak_into_the_sandbox(skerry: Skerry) -> None:
    assert b"leaked" not in skerry("run", "--", "env", env={"SECRET": "leaked"}).out


def test_user_sudo_and_workdir(skerry: Skerry) -> None:
    assert skerry("run", "--sudo", "-w", "/tmp", "--", "sh", "-c", "id -u; pwd").out == b"0\n/tmp\n"
    assert skerry("run", "--user", "root", "--", "sh", "-c", "id -u; pwd").out == b"0\n/workspace\n"


def test_limits_are_those_asked_for(skerry: Skerry) -> None:
    done = skerry("run", "--keep", "--memory", "256MiB", "--cpu", "0.5", "--pids", "50", "--", "true")
    sandbox_id = done.err.removeprefix("sandbox: ").strip()
    try:
        resources = skerry("info", sandbox_id, "-o", "json").json["resources"]
        assert (resources["memory"], resources["cpu"], resources["pids"]) == (256 << 20, 0.5, 50)
    finally:
        assert skerry("rm", sandbox_id).code == 0


def test_keep_leaves_the_sandbox_with_its_files(skerry: Skerry) -> None:
    done = skerry("run", "--keep", "--name", "kept", "--", "sh", "-c", "echo hi > note")
    assert done.code == 0
    assert skerry("cat", "kept:note").out == b"hi\n"
    assert skerry("rm", "kept").out.decode() == done.err.removeprefix("sandbox: ")


def test_json_output_is_the_result(skerry: Skerry) -> None:
    done = skerry("run", "-o", "json", "--", "sh", "-c", "cat; echo bad >&2; exit 3", stdin=b"in")
    assert done.code == 3
    result = done.json
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "in", "bad\n")
    assert (result["status"], result["timed_out"], result["signal"]) == ("exited", False, None)


def test_killing_run_takes_its_sandbox_along(skerry: Skerry) -> None:
    started = skerry.start("run", "--", "sh", "-c", "echo ready; sleep 60", stdin=subprocess.DEVNULL)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    started.kill()
    started.communicate()
    deadline = time.monotonic() + 10
    while skerry.listed() and time.monotonic() < deadline:
        skerry("gc")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--timeout", "-1"), "INVALID_ARGUMENT"),
        (("--timeout", "nan"), "INVALID_ARGUMENT"),
        (("--lifetime", "0"), "INVALID_ARGUMENT"),
        (("--lifetime", "1000000"), "QUOTA_EXCEEDED"),
        (("--memory", "much"), "INVALID_ARGUMENT"),
        (("--memory", "100TB"), "QUOTA_EXCEEDED"),
        (("--cpu", "1000"), "QUOTA_EXCEEDED"),
        (("--cpu", "-1"), "INVALID_ARGUMENT"),
        (("--pids", "0"), "INVALID_ARGUMENT"),
        (("--name", "a/../b"), "INVALID_ARGUMENT"),
        (("--name", ""), "INVALID_ARGUMENT"),
        (("--env", "=x"), "INVALID_ARGUMENT"),
        (("--env", "NOT_THERE_AT_ALL"), "INVALID_ARGUMENT"),
        (("--user", "root", "--user", "nobody-of-that-name"), "INVALID_ARGUMENT"),
        (("--workdir", "/etc/passwd"), "NOT_A_DIRECTORY"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_125(skerry: Skerry, options: tuple[str, ...], code: str) -> None:
    done = skerry("run", *options, "--", "true")
    assert (done.code, done.out) == (125, b"")
    first, *rest = done.err.splitlines()
    assert first.startswith("error: ")
    assert first.endswith(f"({code})")
    assert len(rest) <= 1
    assert all(line.startswith("hint: ") for line in rest)


def test_json_errors_are_json(skerry: Skerry) -> None:
    done = skerry("run", "-o", "json", "--timeout", "-1", "--", "true")
    assert (done.code, done.error["code"]) == (125, "INVALID_ARGUMENT")
    done = skerry("run", "-o", "json", "--", "no-such-program")
    assert (done.code, done.error["code"]) == (127, "COMMAND_NOT_FOUND")
