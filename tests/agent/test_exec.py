"""Running a command and what comes back."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry import wire
from skerry.wire import Type
from tests.agent.conftest import build
from tests.agent.driver.client import Agent, AgentError, Connection, pids_with, wait_until

FOREGROUND, STDIN = 1, 2
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for level in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


def test_output_and_exit_code_come_back(connection: Connection) -> None:
    result = connection.sh("echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.exit.exit_code, result.exit.signal, result.exit.status) == (7, None, "exited")
    assert (result.exit.stdout_bytes, result.exit.stderr_bytes) == (4, 4)
    assert 0 < result.exit.duration_us < 10_000_000
    assert abs(result.started.started_ms - time.time() * 1000) < 60_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_a_signal_is_reported(connection: Connection, number: int) -> None:
    result = connection.sh(f"kill -{int(number)} $$")
    assert (result.exit.exit_code, result.exit.signal, result.exit.status) == (None, number, "signaled")


def test_argv_of_100_kilobytes_arrives(connection: Connection) -> None:
    argument = os.urandom(50_000).replace(b"\0", b"x")
    result = connection.run("/usr/bin/printf", "%s", argument, "%s", argument)
    assert result.stdout == argument + b"%s" + argument


def test_arguments_beyond_the_kernels_limit_are_refused(connection: Connection) -> None:
    with pytest.raises(AgentError) as caught:
        connection.run("/bin/echo", b"x" * 200_000)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_env_values_may_be_any_bytes(connection: Connection) -> None:
    value = bytes(range(1, 256))
    result = connection.run("/usr/bin/env", "-0", env=(b"ODD=" + value,))
    assert b"ODD=" + value in result.stdout.split(b"\0")


def test_a_command_has_three_descriptors_and_default_signals(connection: Connection) -> None:
    # ls opens the directory itself, as 3.
    assert connection.run("/bin/ls", "/proc/self/fd").stdout.split() == [b"0", b"1", b"2", b"3"]
    status = connection.run("/bin/cat", "/proc/self/status").stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["SigBlk"], 16) == int(fields["SigIgn"], 16) == int(fields["SigCgt"], 16) == 0
    assert fields["Uid"].split() == ["1000"] * 4
    assert fields["Gid"].split() == ["1000"] * 4


def test_a_command_dies_before_the_agent_when_memory_runs_out(agent: Agent, connection: Connection) -> None:
    assert connection.run("/bin/cat", "/proc/self/oom_score_adj").stdout == b"500\n"
    assert Path(f"/proc/{agent.process.pid}/oom_score_adj").read_text() != "500\n"


def test_a_command_leads_its_session(connection: Connection) -> None:
    result = connection.sh("cut -d' ' -f1,5,6 /proc/$$/stat")
    assert len(set(result.stdout.split())) == 1


def test_stdin_is_empty_unless_asked_for(connection: Connection) -> None:
    assert connection.sh("cat; stat -L -c %F /dev/stdin").stdout == b"character special file\n"


def test_megabytes_of_stdin_pass_through_cat(connection: Connection) -> None:
    content = os.urandom(1 << 20) * 12
    stream, _ = connection.start("/bin/cat", flags=FOREGROUND | STDIN, window=1 << 30)
    credit, sent, received = wire.INPUT_WINDOW, 0, bytearray()
    while sent < len(content):
        if credit:
            piece = content[sent : sent + min(credit, 100_000)]
            connection.data(stream, piece, offset=sent)
            credit -= len(piece)
            sent += len(piece)
            continue
        frame = connection.next(stream)
        if frame.type == Type.CREDIT:
            credit += wire.parse_credit(frame.payload)
        else:
            received += wire.parse_data(frame.payload)[1]
    connection.data(stream, b"", end=True)
    exit, rest, _ = connection.output(stream)
    assert exit.exit_code == 0
    assert bytes(received) + rest == content


def test_stdin_of_a_process_that_does_not_read_is_taken_and_dropped(connection: Connection) -> None:
    stream, _ = connection.start("/bin/sh", "-c", "exec <&-; sleep 0.3; echo done", flags=FOREGROUND | STDIN)
    sent, credit = 0, wire.INPUT_WINDOW
    while sent < 2_000_000:
        while credit < 50_000:
            credit += connection.take_credit(stream)
        connection.data(stream, b"x" * 50_000)
        credit -= 50_000
        sent += 50_000
    connection.data(stream, b"", end=True)
    assert connection.output(stream)[1] == b"done\n"


def test_a_process_that_ends_ignores_its_stdin(connection: Connection) -> None:
    stream, _ = connection.start("/bin/true", flags=FOREGROUND | STDIN)
    for _ in range(4):
        connection.data(stream, b"x" * 60_000)
    assert connection.output(stream)[0].exit_code == 0


def test_100_megabytes_to_a_slow_reader_do_not_grow_the_agent(agent: Agent, connection: Connection) -> None:
    size = 100_000_000
    stream, _ = connection.start("/usr/bin/head", "-c", str(size), "/dev/zero", flags=FOREGROUND, window=100_000)
    sanitized = agent.binary.name != "agent"
    before, received, peak, frames = agent.rss_kb(), 0, 0, 0
    while True:
        frame = connection.next(stream)
        if frame.type == Type.REPLY:
            break
        offset, data = wire.parse_data(frame.payload)
        channel = frame.flags & wire.CHANNEL_MASK
        if channel == 1:
            assert offset == received
            received += len(data)
        connection.credit(stream, channel, len(data))
        frames += 1
        if frames % 64 == 0:
            time.sleep(0.001)
            peak = max(peak, agent.rss_kb())
    assert received == size == wire.Exit.decode(frame.payload).stdout_bytes
    assert peak < 16_000 or (sanitized and peak - before < 40_000)


def test_a_reader_without_credit_holds_the_process_back(connection: Connection) -> None:
    stream, started = connection.start("/bin/sh", "-c", "head -c 3000000 /dev/zero; echo x >&2", flags=1, window=1000)
    time.sleep(0.3)
    frame = connection.next(stream)
    assert len(wire.parse_data(frame.payload)[1]) == 1000
    # The ring of a foreground process and the pipe are full; the rest waits in the process.
    assert connection.processes()[started.id].stdout_bytes <= 256 * 1024 + 1000
    connection.credit(stream, 1, 1 << 30)
    exit, stdout, stderr = connection.output(stream)
    assert (len(stdout), stderr, exit.exit_code) == (2_999_000, b"x\n", 0)


def test_what_is_in_the_pipe_at_the_exit_is_not_lost(connection: Connection) -> None:
    """The ring is full, the rest is in the pipe, and the process has ended before anybody reads."""
    size = 256 * 1024 + 50_000
    stream, started = connection.start("/usr/bin/head", "-c", str(size), "/dev/zero", flags=1, window=0)
    wait_until(lambda: not Path(f"/proc/{started.pid}").exists())
    connection.credit(stream, 1, 1 << 30)
    exit, stdout, _ = connection.output(stream)
    assert (len(stdout), exit.stdout_bytes, exit.exit_code) == (size, size, 0)


def test_binary_output_is_not_changed(connection: Connection, work: Path) -> None:
    content = os.urandom(3_000_000)
    (work / "blob").write_bytes(content)
    assert connection.run("/bin/cat", "blob").stdout == content


def test_program_is_found_with_the_path_of_the_commands_own_env(connection: Connection, work: Path) -> None:
    tool = work / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert connection.run("tool", env=(b"PATH=/nowhere:" + os.fsencode(work),)).stdout == b"found\n"
    with pytest.raises(AgentError) as caught:
        connection.run("tool")
    assert (caught.value.code, caught.value.message[:5]) == ("COMMAND_NOT_FOUND", "tool:")


@pytest.mark.parametrize(
    ("script", "code"),
    [(None, "COMMAND_NOT_FOUND"), ("#!/no/such/interpreter\n", "COMMAND_NOT_FOUND"), ("", "INVALID_ARGUMENT")],
)
def test_a_program_that_cannot_run_is_an_error(connection: Connection, work: Path, script: str, code: str) -> None:
    program = work / "program"
    if script is not None:
        program.write_text(script)
        program.chmod(0o755)
    with pytest.raises(AgentError) as caught:
        connection.run("./program")
    assert caught.value.code == code
    assert "./program" in caught.value.message


def test_a_program_without_permission_is_an_error(connection: Connection, work: Path) -> None:
    (work / "program").write_text("#!/bin/sh\n")
    with pytest.raises(AgentError) as caught:
        connection.run("./program")
    assert caught.value.code == "PERMISSION_DENIED"
    assert connection.processes() == {}


@pytest.mark.parametrize(
    ("cwd", "code"),
    [(b"/no/such", "FILE_NOT_FOUND"), (b"/etc/passwd", "NOT_A_DIRECTORY"), (b"/root/x", "PERMISSION_DENIED")],
)
def test_a_bad_working_directory_is_an_error_that_names_it(connection: Connection, cwd: bytes, code: str) -> None:
    with pytest.raises(AgentError) as caught:
        connection.run("/bin/true", cwd=cwd)
    assert caught.value.code == code
    assert cwd.decode() in caught.value.message


def test_cwd_is_the_workdir_or_starts_there(connection: Connection, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub").chmod(0o755)
    assert connection.run("/bin/pwd").stdout.decode().strip() == str(work)
    assert connection.run("/bin/pwd", cwd=b"sub").stdout.decode().strip() == str(work / "sub")
    assert connection.run("/bin/pwd", cwd=b"/usr").stdout == b"/usr\n"


@pytest.mark.parametrize(
    "options",
    [
        {"argv": (b"/bin/echo", b"a\0b")},
        {"argv": ()},
        {"argv": (b"/bin/true",), "env": (b"=x",)},
        {"argv": (b"/bin/true",), "env": (b"NAME",)},
        {"argv": (b"/bin/true",), "env": (b"A=b\0c",)},
        {"argv": (b"/bin/true",), "env": (b"A=" + b"x" * 600_000,)},
        {"argv": (b"/bin/true",), "cwd": b"/tmp\0x"},
        {"argv": (b"/bin/true",), "user": "nobody-knows"},
        {"argv": (b"/bin/true",), "user": "x" * 200},
        {"argv": (b"/bin/true",), "timeout_ms": -1},
    ],
)
def test_a_malformed_command_is_refused(connection: Connection, options: dict[str, object]) -> None:
    with pytest.raises(AgentError) as caught:
        connection.reply(connection.open(wire.Start(**options)), wire.Started, final=False)  # type: ignore[arg-type]
    assert caught.value.code == "INVALID_ARGUMENT"
    assert connection.sh("echo fine").stdout == b"fine\n"


def test_users_are_names_or_numbers(connection: Connection) -> None:
    assert connection.run("/usr/bin/id", "-u", user="root").stdout == b"0\n"
    assert connection.sh("id -u; id -g; id -G; echo $HOME", user="4711").stdout == b"4711\n4711\n4711\n/\n"
    assert connection.sh("echo $USER $LOGNAME $HOME", user="root").stdout == b"root root /root\n"
    assert connection.run("/usr/bin/id", "-un", user="daemon").stdout == b"daemon\n"


def test_environment_is_boots_with_defaults(make_agent: Callable[..., Agent]) -> None:
    connection = make_agent(env=(b"A=1", b"LANG=C", b"HOME=/elsewhere")).connect()
    found = dict(
        line.split(b"=", 1) for line in connection.run("/usr/bin/env", env=(b"A=2", b"B=3")).stdout.splitlines()
    )
    assert (found[b"A"], found[b"B"], found[b"LANG"]) == (b"2", b"3", b"C")
    assert (found[b"HOME"], found[b"USER"]) == (b"/elsewhere", b"user")
    assert found[b"PATH"] == b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_env_changes_reach_later_commands(connection: Connection) -> None:
    changed = connection.ask(wire.Env(set=(b"X=1", b"Y=2"), unset=(b"LANG",)), wire.EnvReply).env
    assert b"X=1" in changed
    assert not [pair for pair in changed if pair.startswith(b"LANG=")]
    assert connection.sh("echo $X$Y$LANG").stdout == b"12\n"
    for bad in (wire.Env(set=(b"X=9", b"novalue")), wire.Env(unset=(b"A=B",)), wire.Env(set=(b"A=" + b"x" * 600_000,))):
        with pytest.raises(AgentError) as caught:
            connection.ask(bad, wire.EnvReply)
        assert caught.value.code == "INVALID_ARGUMENT"
    assert connection.ask(wire.Env(), wire.EnvReply).env == changed


def test_exec_timeout_kills_grandchildren(connection: Connection) -> None:
    marker = f"stubborn-{time.monotonic_ns()}"
    begin = time.monotonic()
    result = connection.run("python3", "-c", STUBBORN, marker, timeout_ms=2500)
    assert time.monotonic() - begin < 20
    assert (result.exit.exit_code, result.exit.signal, result.exit.status) == (None, None, "timed_out")
    assert result.stdout == b"ready\n"
    assert pids_with(marker) == []


def test_timeout_of_a_fork_storm_leaves_nothing(connection: Connection) -> None:
    """Six chains of processes that are each gone as soon as they have a child: only stopping them first gets them all."""
    marker = f"storm-{time.monotonic_ns()}"
    script = (
        "import os, time\nfor i in range(6):\n  if os.fork() == 0:\n    while True:\n      if os.fork(): os._exit(0)\n"
    )
    begin = time.monotonic()
    result = connection.run("python3", "-c", script + "time.sleep(60)", marker, timeout_ms=400)
    assert result.exit.status == "timed_out"
    assert time.monotonic() - begin < 20
    assert pids_with(marker) == []


def test_a_kill_is_reported_after_the_last_of_many(connection: Connection) -> None:
    marker = f"3{time.monotonic_ns() % 10**8}"
    script = f"for i in $(seq 400); do sleep {marker} & done; echo ready; wait"
    stream, started = connection.start("/bin/sh", "-c", script, flags=FOREGROUND)
    assert connection.next(stream).type == Type.DATA
    connection.ask(wire.Signal(id=started.id, signal=9, scope=1), wire.Empty)
    connection.output(stream)
    assert pids_with(marker) == []


def test_output_before_the_timeout_is_kept(connection: Connection) -> None:
    result = connection.sh("echo before; printf x >&2; sleep 60", timeout_ms=1500)
    assert (result.stdout, result.stderr, result.exit.status) == (b"before\n", b"x", "timed_out")


def test_a_command_that_ends_in_time_is_not_timed_out(connection: Connection) -> None:
    assert connection.sh("sleep 0.05", timeout_ms=5000).exit.status == "exited"


def test_a_background_child_outlives_its_command_and_gets_no_sigpipe(connection: Connection, work: Path) -> None:
    script = "(sleep 1.5; echo late; echo late; sleep 0.1; echo alive > proof; sleep 0.2; echo late) & echo now"
    result = connection.sh(script)
    assert not (work / "proof").exists()
    assert (result.stdout, result.exit.exit_code) == (b"now\n", 0)
    wait_until(lambda: (work / "proof").exists())
    time.sleep(0.3)
    assert connection.processes() == {}


def test_a_background_child_may_write_megabytes_after_the_end(connection: Connection, work: Path) -> None:
    connection.sh("(sleep 0.1; head -c 5000000 /dev/zero; echo done > proof) & true")
    wait_until(lambda: (work / "proof").exists())


def test_closing_a_foreground_stream_kills_its_tree(connection: Connection) -> None:
    marker = f"closed-{time.monotonic_ns()}"
    stream, started = connection.start("python3", "-c", STUBBORN, marker, flags=FOREGROUND)
    assert connection.next(stream).type == Type.DATA
    connection.send(stream, Type.CLOSE)
    wait_until(lambda: pids_with(marker) == [])
    wait_until(lambda: started.id not in connection.processes())


def test_a_foreground_tree_is_killed_when_its_connection_ends(agent: Agent, connection: Connection) -> None:
    marker = f"hangup-{time.monotonic_ns()}"
    other = agent.connect()
    stream, _ = other.start("python3", "-c", STUBBORN, marker, flags=FOREGROUND)
    assert other.next(stream).type == Type.DATA
    other.close()
    wait_until(lambda: pids_with(marker) == [])
    wait_until(lambda: connection.processes() == {})


def test_many_commands_at_once_do_not_mix(connection: Connection) -> None:
    streams = {}
    for number in range(40):
        argv = (b"/bin/sh", b"-c", b"echo %d; exit %d" % (number, number))
        streams[connection.open(wire.Start(argv=argv, flags=1))] = number
    for stream, number in streams.items():
        connection.reply(stream, wire.Started, final=False)
        exit, stdout, _ = connection.output(stream)
        assert (exit.exit_code, stdout) == (number, b"%d\n" % number)


def test_commands_from_many_connections_at_once(agent: Agent) -> None:
    failures: list[bytes] = []

    def work_on(number: int) -> None:
        connection = agent.connect()
        outputs = [connection.sh(f"echo {number}").stdout for _ in range(20)]
        failures.extend(output for output in outputs if output != f"{number}\n".encode())

    threads = [threading.Thread(target=work_on, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_the_agent_holds_no_descriptor_of_a_command_that_ended(agent: Agent, connection: Connection) -> None:
    connection.sh("true")
    before = agent.descriptors()
    for _ in range(30):
        connection.sh("echo x", flags=FOREGROUND | STDIN)
        with pytest.raises(AgentError):
            connection.run("/no/such/program")
    wait_until(lambda: agent.descriptors() <= before)  # the first command's may have been open still


def test_arguments_and_environment_up_to_the_kernels_limit(connection: Connection) -> None:
    arguments = ["x" * 100_000] * 15
    env = tuple(f"V{number}=".encode() for number in range(20_000))
    began = time.monotonic()
    result = connection.run("/bin/sh", "-c", "echo $# ${#15}; env | grep -c ^V", "sh", *arguments, env=env)
    assert result.stdout == b"15 100000\n20000\n"
    assert time.monotonic() - began < 20, "each variable was compared with all others"
    doubled = connection.run("/usr/bin/env", env=(*env, *(pair + b"2" for pair in env[::2])))
    assert sorted(line for line in doubled.stdout.split() if line.startswith(b"V")) == sorted(
        pair + b"2" * (number % 2 == 0) for number, pair in enumerate(env)
    )
    with pytest.raises(AgentError, match="128 KiB in one argument or variable, and 2 MiB in all"):
        connection.run("/bin/true", *["x" * 100_000] * 21)


def test_an_unknown_user_is_named(connection: Connection) -> None:
    with pytest.raises(AgentError, match="unable to find user nemo"):
        connection.sh("true", user="nemo")
    with pytest.raises(AgentError, match="unable to find user nemo"):
        connection.stat("/etc/passwd", user="nemo")


def fake_counter(path: Path, kills: int) -> None:
    path.write_text(f"low 0\nhigh 0\nmax 9\noom 9\noom_kill {kills}\noom_group_kill 0\n")


def test_a_kill_by_the_kernel_for_memory_is_out_of_memory(make_agent: Callable[..., Agent], root: Path) -> None:
    counter = root / "memory.events"
    fake_counter(counter, 3)
    connection = make_agent(oom=counter).connect()
    stream, _ = connection.start("/bin/sleep", "60", flags=FOREGROUND)
    child = connection.processes()
    fake_counter(counter, 5)
    os.kill(next(iter(child.values())).pid, signal.SIGKILL)
    exit, _, _ = connection.output(stream)
    assert (exit.status, exit.signal, exit.exit_code, exit.oom_kills) == ("out_of_memory", signal.SIGKILL, None, 2)
    result = connection.sh("exit 137")
    assert (result.exit.status, result.exit.oom_kills) == ("exited", 0)


def test_the_memory_counter_may_lag_behind_the_death(make_agent: Callable[..., Agent], root: Path) -> None:
    counter = root / "memory.oom_control"
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    connection = make_agent(oom=counter, user="root").connect()
    script = f"(sleep 0.002; printf 'oom_kill_disable 0\\noom_kill 1\\n' 1<> {counter}) & kill -9 $$"
    assert connection.sh(script).exit.status in ("out_of_memory", "signaled")
    result = connection.sh(f"printf 'oom_kill_disable 0\\noom_kill 7\\n' 1<> {counter}; exit 137")
    assert (result.exit.status, result.exit.exit_code) == ("exited", 137)
    assert result.exit.oom_kills > 0


def test_a_kill_for_memory_belongs_to_one_command(make_agent: Callable[..., Agent], root: Path) -> None:
    counter = root / "memory.events"
    fake_counter(counter, 0)
    connection = make_agent(oom=counter, user="root").connect()
    asleep, sleeper = connection.start("/bin/sleep", "60", flags=FOREGROUND)
    small, _ = connection.start("/bin/sh", "-c", "read x; exit 3", flags=FOREGROUND | STDIN)
    large = "x = bytearray(40 << 20); import os; os.kill(os.getpid(), 9)"
    script = f"{sys.executable} -c '{large}'; printf 'oom_kill 1\\n' 1<> {counter}; exit 0"
    eater = connection.sh(script)
    assert (eater.exit.status, eater.exit.exit_code, eater.exit.oom_kills) == ("exited", 0, 1)
    connection.data(small, b"\n")
    exit, _, _ = connection.output(small)
    assert (exit.exit_code, exit.oom_kills) == (3, 0)
    killed, started = connection.start("/bin/sleep", "61", flags=FOREGROUND)
    fake_counter(counter, 2)
    assert connection.sh("true").exit.oom_kills == 0  # it came later
    os.kill(started.pid, signal.SIGKILL)
    exit, _, _ = connection.output(killed)
    assert (exit.status, exit.oom_kills) == ("out_of_memory", 1)
    connection.ask(wire.Signal(id=sleeper.id, signal=signal.SIGTERM), wire.Empty)
    exit, _, _ = connection.output(asleep)
    assert (exit.status, exit.oom_kills) == ("signaled", 0)


def test_a_kill_by_the_client_is_not_out_of_memory(make_agent: Callable[..., Agent], root: Path) -> None:
    counter = root / "memory.events"
    fake_counter(counter, 0)
    connection = make_agent(oom=counter).connect()
    stream, started = connection.start("/bin/sleep", "60", flags=FOREGROUND)
    fake_counter(counter, 1)
    connection.ask(wire.Signal(id=started.id, signal=signal.SIGKILL), wire.Empty)
    exit, _, _ = connection.output(stream)
    assert (exit.status, exit.signal, exit.oom_kills) == ("signaled", signal.SIGKILL, 1)


def test_the_agents_memory_cannot_be_read_by_the_user(agent: Agent, connection: Connection) -> None:
    result = connection.sh(f"cat /proc/{agent.process.pid}/environ /proc/$PPID/environ")
    assert result.stdout == b""
    assert stat.S_IMODE(os.stat(f"/proc/{agent.process.pid}/environ").st_mode) == 0o400


def test_as_the_first_process_it_needs_nothing_but_itself(root: Path) -> None:
    binary, empty = build("all"), root / "empty"
    empty.mkdir()
    shutil.copy(binary, empty / "agent")
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--net", "/usr/sbin/chroot", str(empty)]
    with Agent(Path("/agent"), root, workdir=b"/", prefix=prefix) as agent:
        connection = agent.connect()
        result = connection.run("/agent", "--version")
        assert (result.stdout[:13], result.exit.exit_code) == (b"skerry-agent ", 0)
        assert result.started.pid < 10
        assert connection.read("/agent")[1] == binary.read_bytes()
        with pytest.raises(AgentError) as caught:
            connection.run("sh")
        assert caught.value.code == "COMMAND_NOT_FOUND"
        stream, started = connection.start("/agent", "3", "4", user="root")
        assert b"agent: 3" in connection.output(stream)[2]
        assert connection.processes()[started.id].exit_code == 2
        assert connection.ask(wire.Life(end=1), wire.LifeReply).remaining_ms == -1
        assert agent.process.wait(10) == 0


def test_as_the_first_process_it_brings_the_loopback_up_and_takes_all_with_it(root: Path) -> None:
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--net", "--mount-proc"]
    with Agent(build("all"), root, prefix=prefix) as agent:
        connection = agent.connect()
        assert b"LOOPBACK,UP" in connection.run("ip", "link", "show", "lo").stdout
        marker = f"4{time.monotonic_ns() % 10**8}"
        connection.sh(f"setsid sleep {marker} & sleep 0.1")
        assert len(pids_with(marker)) == 1
        connection.ask(wire.Life(end=1), wire.LifeReply)
        assert agent.process.wait(10) == 0
        wait_until(lambda: pids_with(marker) == [])
