"""Out of memory is out of memory, however a command is run and whichever of its processes the kernel kills."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from skerry import CodeResult, ExecTimeout, OutOfMemory, Resources, Sandbox

EAT = "x = bytearray(1 << 30)"
CHILD = f"""
import subprocess, sys
child = subprocess.run([sys.executable, "-c", "{EAT}"])
print(child.returncode, flush=True)
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox.create(resources=Resources(memory=128 << 20), timeout=900) as sandbox:
        yield sandbox


def test_a_shells_command_that_is_killed_for_memory_is_out_of_memory(box: Sandbox) -> None:
    result = box.exec(f"python3 -c '{EAT}'; exit $?")
    assert (result.status, result.exit_code, result.oom_killed) == ("out_of_memory", 137, True)
    with pytest.raises(OutOfMemory):
        box.exec(f"python3 -c '{EAT}'", check=True)


def test_code_that_is_killed_for_memory_says_so(box: Sandbox) -> None:
    result = box.code_run(EAT)
    assert isinstance(result, CodeResult)
    assert (result.status, result.oom_killed, result.ok, result.exit_code) == ("out_of_memory", True, False, None)
    with pytest.raises(OutOfMemory) as killed:
        box.code_run(EAT, check=True)
    assert isinstance(killed.value.result, CodeResult)


def test_a_child_that_is_killed_for_memory_shows_in_the_result_of_its_command(box: Sandbox) -> None:
    carried_on = box.code_run(CHILD)
    assert (carried_on.result, carried_on.status, carried_on.exit_code) == ("-9\n", "exited", 0)
    assert carried_on.oom_killed
    failed = box.code_run(CHILD + "sys.exit(3)")
    assert (failed.status, failed.exit_code, failed.oom_killed) == ("out_of_memory", 3, True)
    shell = box.exec(f"python3 -c '{EAT}'; echo then")
    assert (shell.stdout, shell.status, shell.exit_code, shell.oom_killed) == ("then\n", "exited", 0, True)


def test_an_orphan_that_is_killed_for_memory_shows_in_the_result_of_its_command(box: Sandbox) -> None:
    result = box.exec(
        f"(setsid python3 -c '{EAT}' & echo $! > /tmp/eater); while [ -e /proc/$(cat /tmp/eater) ]; do :; done"
    )
    assert (result.exit_code, result.status, result.oom_killed) == (0, "exited", True)


def test_streams_processes_and_terminals_say_out_of_memory(box: Sandbox) -> None:
    command = f"python3 -c '{EAT}'; exit $?"
    with box.exec_stream(command) as stream:
        assert stream.wait().status == "out_of_memory"
    process = box.processes.spawn(command)
    assert process.wait().oom_killed
    assert (process.poll().status, process.poll().exit_code) == ("out_of_memory", 137)
    terminal = box.terminals.create(command=["sh", "-c", command])
    ended = terminal.wait()
    assert (ended.status, ended.exit_code, ended.oom_killed) == ("out_of_memory", 137, True)
    assert box.run_command_via_pty(command).status == "out_of_memory"


def test_a_kill_for_memory_is_not_blamed_on_the_commands_beside_it(box: Sandbox) -> None:
    """The kernel counts for the whole sandbox and does not say whose process it was."""
    background = box.processes.spawn("sleep 60")
    with ThreadPoolExecutor(3) as pool:
        beside = [
            pool.submit(box.exec, "echo up; while [ ! -e /tmp/over ]; do sleep 0.05; done; exit 1") for _ in range(2)
        ]
        eater = pool.submit(box.code_run, CHILD + "open('/tmp/over', 'w')")
        assert eater.result(60).oom_killed
        for future in beside:
            result = future.result(60)
            assert (result.status, result.exit_code, result.oom_killed) == ("exited", 1, False)
    background.kill()
    assert not background.wait().oom_killed
    carries_on = box.processes.spawn(f"python3 -c '{EAT}'; echo killed; read line", stdin=True)
    while b"killed" not in carries_on.output().stdout:
        pass
    meanwhile = box.code_run("import sys; sys.exit(1)")
    assert (meanwhile.status, meanwhile.oom_killed) == ("exited", False)
    carries_on.write_stdin("\n")
    assert carries_on.wait().oom_killed
    after = box.exec("exit 137")
    assert (after.status, after.exit_code, after.oom_killed) == ("exited", 137, False)


def test_a_timeout_of_code_is_a_result(box: Sandbox) -> None:
    late = box.code_run("print('begun', flush=True)\nwhile True: pass", timeout=1)
    assert (late.status, late.timed_out, late.exit_code, late.result) == ("timed_out", True, None, "begun\n")
    assert (late.stdout_bytes, late.truncated, late.dropped_bytes) == (b"begun\n", False, 0)
    assert late.pid > 0 and late.duration >= 1
    with pytest.raises(ExecTimeout) as error:
        box.code_run("while True: pass", timeout=0.3, check=True)
    assert isinstance(error.value.result, CodeResult)
