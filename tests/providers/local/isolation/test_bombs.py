"""Attacks on the machine's resources: a limit stops each, the sandbox lives on, its neighbour notices nothing."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from skerry import ProcessNotFound, Resources, Sandbox
from tests.providers.local.isolation.conftest import host_works, still_works

MEMORY = 256 << 20
PAGE = resource.getpagesize()


@pytest.fixture
def target() -> Iterator[Sandbox]:
    with Sandbox.create(resources=Resources(memory=MEMORY, pids=128, cpu=1.0), timeout=600) as sandbox:
        yield sandbox


def assert_all_well(target: Sandbox, neighbour: Sandbox) -> None:
    host_works()
    still_works(neighbour)
    still_works(target)


@pytest.mark.parametrize("user", ["user", "root"])
def test_fork_bomb_ends_at_the_timeout(target: Sandbox, neighbour: Sandbox, user: str) -> None:
    process = target.processes.spawn("b() { b | b & }; b; sleep 60", user=user)
    assert_neighbour_during(neighbour)
    assert target.files.stat("/workspace").type == "dir"  # the worker needs no new process
    process.kill()
    assert_all_well(target, neighbour)
    result = target.exec(
        ["python3", "-c", "import os\nwhile True:\n try: os.fork()\n except OSError: pass"], timeout=2, user=user
    )
    assert result.timed_out
    assert_all_well(target, neighbour)
    assert int(target.exec("ls /proc | grep -c '^[0-9]'").stdout) < 12


def assert_neighbour_during(neighbour: Sandbox) -> None:
    host_works()
    still_works(neighbour)


def test_thread_bomb_meets_the_limit(target: Sandbox, neighbour: Sandbox) -> None:
    code = "import threading,time\nn=0\ntry:\n while True: threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); n+=1\n"
    code += "except RuntimeError: print(n, flush=True)\nimport os; os._exit(0)"
    result = target.exec(["python3", "-c", code], timeout=30)
    assert 20 < int(result.stdout) < 128
    assert_all_well(target, neighbour)


@pytest.mark.parametrize("user", ["user", "root"])
def test_memory_bomb_is_typed_as_out_of_memory(target: Sandbox, neighbour: Sandbox, user: str) -> None:
    result = target.exec(["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"], user=user, timeout=60)
    assert result.status == "out_of_memory"
    assert result.oom_killed
    assert result.exit_code is None
    assert_all_well(target, neighbour)


def test_memory_bomb_in_a_shell_is_marked(target: Sandbox, neighbour: Sandbox) -> None:
    result = target.exec("python3 -c 'x = bytearray(1 << 30)'; exit $?", timeout=60)
    assert (result.exit_code, result.oom_killed) == (137, True)
    assert_all_well(target, neighbour)


def test_open_file_bomb_meets_the_limit(target: Sandbox, neighbour: Sandbox) -> None:
    code = "import os,time\nkids = 0\nfor _ in range(60):\n"
    code += " if os.fork() == 0:\n  f = []\n  try:\n   while True: f.append(os.open('/dev/null', 0))\n  except OSError: pass\n"
    code += "  time.sleep(20)\ntime.sleep(20)"
    process = target.processes.spawn(["python3", "-c", code])
    assert_all_well(target, neighbour)
    process.kill()
    assert_all_well(target, neighbour)


def test_shared_memory_bombs_are_charged_to_the_sandbox(target: Sandbox, neighbour: Sandbox) -> None:
    result = target.exec("head -c 1G /dev/zero > /dev/shm/x; echo done; rm -f /dev/shm/x", timeout=60)
    assert "No space left" in result.stderr or result.oom_killed
    code = "import ctypes\nl = ctypes.CDLL(None)\nl.shmat.restype = ctypes.c_void_p\nwhile True:\n i = l.shmget(0, 1 << 24, 0o1600)\n"
    code += " p = l.shmat(i, None, 0)\n ctypes.memset(p, 1, 1 << 24)"
    result = target.exec(["python3", "-c", code], timeout=60)
    assert result.exit_code != 0
    assert_all_well(target, neighbour)


HOLD = """
import socket, time
block, kept, held = bytes(60000), [], 0
def tcp():
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        kept.append(socket.create_connection(server.getsockname(), timeout=5))
        kept.append(server.accept()[0])
    return kept[-1], kept[-2].send
def udp():
    kept.append(socket.socket(type=socket.SOCK_DGRAM))
    kept[-1].bind(("127.0.0.1", 0))
    sender = socket.socket(type=socket.SOCK_DGRAM)
    sender.connect(kept[-1].getsockname())
    return kept[-1], sender.send
deadline = time.time() + 60
while held < 600 << 20 and len(kept) < 1500 and time.time() < deadline:
    receiver, send = KIND()
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    for other in kept[-2:]:
        other.setblocking(False)
    try:
        for _ in range(64):
            held += send(block)
    except OSError:
        pass
print("held", held, len(kept), flush=True)
time.sleep(600)
"""


def socket_buffers() -> int:
    """What all TCP and UDP sockets of this machine hold: the kernel counts them together, whatever asks."""
    text = Path("/proc/net/sockstat").read_text()
    return sum(int(pages) for pages in re.findall(r"^(?:TCP|UDP): .*mem (\d+)", text, re.MULTILINE)) * PAGE


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_socket_buffers_stay_inside_the_memory_limit(target: Sandbox, neighbour: Sandbox, user: str, kind: str) -> None:
    before = socket_buffers()
    process = target.processes.spawn(["python3", "-c", HOLD.replace("KIND", kind)], user=user)
    for chunk in process:  # ends without a word where the kernel kills it for its memory
        assert chunk.data.startswith(b"held"), chunk.data
        break
    assert socket_buffers() - before < MEMORY * 3 // 4
    with suppress(ProcessNotFound):
        process.kill()
    assert_all_well(target, neighbour)


def test_inotify_bomb_takes_nothing_from_the_neighbour(target: Sandbox, neighbour: Sandbox) -> None:
    code = "import ctypes,time\nl = ctypes.CDLL(None)\nn = 0\nwhile l.inotify_init() >= 0: n += 1\nprint(n, flush=True)\ntime.sleep(30)"
    first = target.processes.spawn(["python3", "-c", code])
    for chunk in first:
        assert 0 < int(chunk.data) <= 128
        break
    second = neighbour.processes.spawn(["python3", "-c", code])
    for chunk in second:
        assert int(chunk.data) > 64
        break
    second.kill()
    first.kill()
    assert_all_well(target, neighbour)


@pytest.mark.parametrize("user", ["user", "root"])
def test_terminal_bomb_takes_nothing_from_the_neighbour_or_the_machine(
    target: Sandbox, neighbour: Sandbox, user: str
) -> None:
    code = "import os,time\nmany = []\ntry:\n while len(many) < 1000: many.append(os.openpty()[0])\nexcept OSError as e: pass\n"
    code += "print(len(many), flush=True)\ntime.sleep(60)"
    bomb = target.processes.spawn(["python3", "-c", code], user=user)
    for chunk in bomb:
        assert int(chunk.data) <= 64
        break
    opened = neighbour.exec(["python3", "-c", "import os; print(len([os.openpty() for _ in range(32)]))"])
    assert opened.stdout == "32\n", opened.stderr
    for end in os.openpty():
        os.close(end)
    bomb.kill()
    assert_all_well(target, neighbour)


def test_cpu_limit_holds(target: Sandbox) -> None:
    code = "import time\ne = time.time() + 2\nwhile time.time() < e: pass"
    before, began = target.usage().cpu_seconds, time.monotonic()
    target.exec(" & ".join([f"python3 -c '{code}'"] * 3) + " & wait", timeout=60)
    used, lasted = target.usage().cpu_seconds - before, time.monotonic() - began
    assert used < 1.2 * lasted + 0.4  # three busy loops on one core's worth, and what a tenth of a second may hold


def test_limits_can_be_raised_live(target: Sandbox) -> None:
    code = ["python3", "-c", f"x = bytearray({MEMORY + (64 << 20)})"]
    assert target.exec(code, timeout=60).status == "out_of_memory"
    target.set_limits(memory=2 * MEMORY)
    assert target.exec(code, timeout=60).exit_code == 0
