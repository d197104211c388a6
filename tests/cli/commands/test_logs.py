"""logs: what a background process has written, from where it is wanted, over connections that break."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Skerry


def spawn(skerry: Skerry, box: str, program: str) -> str:
    started = skerry("exec", "--detach", box, "--", "sh", "-c", program)
    assert started.code == 0, started.err
    return started.text.strip()


def ended(skerry: Skerry, box: str, program: str) -> str:
    """A process that has run to its end."""
    process = spawn(skerry, box, program)
    skerry("logs", "--follow", box, process)
    return process


def test_without_a_process_it_is_the_last_one(skerry: Skerry, box: str) -> None:
    ended(skerry, box, "echo first")
    ended(skerry, box, "echo second")
    assert skerry("logs", box).out == b"second\n"


def test_list_shows_all_processes(skerry: Skerry, box: str) -> None:
    assert "skerry exec --detach" in skerry("logs", box).err
    ids = [spawn(skerry, box, f"exec sleep {100 + n}") for n in range(2)]
    header, *rows = skerry("logs", "--list", box).text.splitlines()
    assert header.split() == ["PROCESS", "STATUS", "STARTED", "WRITTEN", "COMMAND"]
    assert [row.split()[0] for row in rows] == ids
    assert "sleep 101" in rows[1]
    assert [entry["id"] for entry in skerry("logs", "--list", box, "-o", "json").json] == [int(id) for id in ids]


def test_since_leaves_out_the_bytes_before_it(skerry: Skerry, box: str) -> None:
    process = ended(skerry, box, "printf 0123456789; printf abcdef >&2")
    both = skerry("logs", "--since", "4", box, process)
    assert (both.out, both.err) == (b"456789", "ef")
    each = skerry("logs", "--since", "8,0", box, process)
    assert (each.out, each.err) == (b"89", "abcdef")
    assert skerry("logs", box, "-o", "json").json["next"] == [10, 6]
    assert skerry("logs", "--since", "10,6", box).out == b""


def test_one_number_for_since_holds_for_a_stream_that_has_less(skerry: Skerry, box: str) -> None:
    process = ended(skerry, box, "echo hello world; printf abc >&2")
    for more in ([], ["--follow"]):
        done = skerry("logs", "--since", "6", *more, box, process)
        assert (done.code, done.out, done.err) == (0, b"world\n", "")
    assert skerry("logs", "--since", "6", box, process, "-o", "json").json["next"] == [12, 3]
    beyond = skerry("logs", "--since", "4096", box, process)
    assert (beyond.code, "12 bytes to stdout and 3 to stderr" in beyond.err) == (1, True)


@pytest.mark.parametrize("offset", ["x", "-1", "1,2,3", "", "1,"])
def test_since_that_is_no_offset_is_an_error(skerry: Skerry, box: str, offset: str) -> None:
    done = skerry("logs", f"--since={offset}", box)
    assert (done.code, "(INVALID_ARGUMENT)\nhint: " in done.err) == (1, True)


def test_tail_is_the_last_lines_of_each_stream(skerry: Skerry, box: str) -> None:
    process = ended(skerry, box, "seq 100; seq 200 300 >&2; printf end")
    done = skerry("logs", "--tail", "2", box, process)
    assert (done.out, done.err) == (b"100\nend", "299\n300\n")
    assert skerry("logs", "--tail", "0", box, process).out == b""
    assert skerry("logs", "-f", "-n", "1", box, process).out == b"end"


def test_what_the_ring_no_longer_holds_is_said(skerry: Skerry, box: str) -> None:
    process = ended(skerry, box, "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero")
    written = skerry("logs", box, process)
    kept = len(written.out)
    assert 0 < kept < 2_000_000
    assert written.err == f"{2_000_000 - kept} bytes are missing here: they are no longer kept\n"


def test_follow_prints_live_and_ends_with_the_process(skerry: Skerry, box: str) -> None:
    process = spawn(skerry, box, "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 3")
    with skerry.start("logs", "-f", box, process) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"one\n"
        skerry("exec", box, "--", "touch", "go")
        assert following.stdout.read() == b"two\n"
    assert following.returncode == 0


def test_a_reader_that_takes_nothing_does_not_hold_the_process_back(skerry: Skerry, box: str) -> None:
    process = spawn(
        skerry, box, "while [ ! -e go ]; do sleep 0.05; done; head -c 8000000 /dev/zero; touch done; sleep 60"
    )
    with skerry.start("logs", "-f", box, process) as following:
        skerry("exec", box, "--", "touch", "go")
        waited = skerry("exec", "--timeout", "30", box, "--", "sh", "-c", "while [ ! -e done ]; do sleep 0.05; done")
        assert waited.code == 0
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=20)
    assert following.returncode == 130


CUT = """
import os, signal, socket, sys
from skerry.providers.local import LocalProvider

dial, streams, wanted = LocalProvider.dial, [], 0

async def remember(*arguments, **options):
    channel = await dial(*arguments, **options)
    streams.append(channel.stream)
    cut(0)
    return channel

def cut(more, *_):
    from anyio.abc import SocketAttribute
    global wanted
    wanted += bool(more)
    while wanted and streams:  # each cuts a connection of its own, the next one if this one is cut already
        streams.pop().extra(SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)
        os.write(2, b"cut\\n")
        wanted -= 1

LocalProvider.dial = remember
signal.signal(signal.SIGUSR1, cut)
from skerry.cli.main import main
main()
"""


def test_follow_survives_lost_connections_without_a_loss_or_a_repeat(skerry: Skerry, box: str) -> None:
    process = spawn(skerry, box, "i=0; while [ ! -e stop ]; do i=$((i+1)); echo line $i; sleep 0.01; done")
    command = [sys.executable, "-c", CUT, "logs", "-f", box, process]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout is not None and following.stderr is not None
        lines = []
        for _ in range(3):
            lines += [following.stdout.readline() for _ in range(20)]
            following.send_signal(signal.SIGUSR1)
            while (told := following.stderr.readline()) != b"cut\n":
                assert told == b"connection lost; attaching again\n"
        skerry("exec", box, "--", "touch", "stop")
        lines += following.stdout.readlines()
        assert set(following.stderr) <= {b"connection lost; attaching again\n"}
    assert following.returncode == 0
    assert lines == [b"line %d\n" % number for number in range(1, len(lines) + 1)]


def test_follow_of_a_sandbox_that_goes_is_an_error(skerry: Skerry, box: str) -> None:
    process = spawn(skerry, box, "echo up; sleep 60")
    with skerry.start("logs", "-f", box, process) as following:
        assert following.stdout is not None and following.stderr is not None
        assert following.stdout.readline() == b"up\n"
        skerry("rm", box)
        assert b"(SANDBOX_NOT_FOUND)" in following.stderr.read()
    assert following.returncode == 1
