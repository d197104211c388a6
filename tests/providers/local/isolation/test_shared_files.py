"""The machine's files that sandboxes share: what one does with them is seen by no other sandbox, and nowhere on the machine."""

from __future__ import annotations

import fcntl
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skerry import Process, Sandbox

PATHS = ["/usr/bin/sha512sum", "/usr/bin/crun", "/dev/null", "/dev/zero", "/dev/urandom", "/.skerry/agent"]

WATCH = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_CLOEXEC)
for path in sys.argv[1:]:
    assert libc.inotify_add_watch(fd, path.encode(), 0xFFF) > 0, path
print("ready", flush=True)
for line in sys.stdin:
    seen = b""
    while select.select([fd], [], [], 0.3)[0]:
        seen += os.read(fd, 65536)
    print("seen", len(seen), flush=True)
"""
"""Watches paths; for each line that comes it tells how much it has seen of them since."""

HOLD = """
import fcntl, os, sys
held = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for fd in held:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("ready", flush=True)
sys.stdin.read()
"""

TRY = """
import fcntl, os, sys
for path in sys.argv[1:]:
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""

USE = "sha512sum /dev/null; head -c 1 /dev/zero; head -c 1 /dev/urandom; crun --version; ls /usr/bin; /.skerry/agent --version"


class Inside:
    """A program in a sandbox that answers lines with lines."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._chunks = iter(process)

    def told(self) -> str:
        return next(self._chunks).data.decode().strip()

    def seen(self) -> int:
        self._process.write_stdin("\n")
        return int(self.told().removeprefix("seen "))


@contextmanager
def running(sandbox: Sandbox, user: str, code: str, *paths: str) -> Iterator[Inside]:
    process = sandbox.processes.spawn(["python3", "-c", code, *paths], user=user, stdin=True)
    try:
        inside = Inside(process)
        assert inside.told() == "ready"
        yield inside
    finally:
        process.kill()


@pytest.mark.parametrize("where", ["the machine", "another sandbox"])
def test_what_others_open_is_not_seen(sandbox: Sandbox, neighbour: Sandbox, attacker: str, where: str) -> None:
    with running(sandbox, attacker, WATCH, "/usr", "/usr/bin", "/usr/lib", *PATHS) as watcher:
        if where == "the machine":
            subprocess.run(["/bin/sh", "-c", USE.rpartition(";")[0]], capture_output=True, check=True)
            with Sandbox.create():
                pass
        else:
            neighbour.exec(USE, user=attacker, check=True)
        assert watcher.seen() == 0
        sandbox.exec(USE, user=attacker, check=True)
        assert watcher.seen() > 0  # it does watch


def test_a_lock_on_a_shared_file_stops_nobody_else(sandbox: Sandbox, neighbour: Sandbox, attacker: str) -> None:
    with running(sandbox, attacker, HOLD, *PATHS):
        for path in PATHS[:-1]:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        neighbour.exec(["python3", "-c", TRY, *PATHS], user=attacker, check=True)
        for path in PATHS:
            blocked = sandbox.exec(["python3", "-c", TRY, path], user=attacker)
            assert "BlockingIOError" in blocked.stderr, path  # it does hold it


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A file system with a directory and a file in it, and a file alone, each mounted below /usr."""
    place = Path("/usr/local/share") / f"skerry-{secrets.token_hex(8)}"
    alone = place.with_suffix(".file")
    place.mkdir()
    alone.touch()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    (place / "a b").mkdir()
    (place / "a b/file").write_text("mounted")
    subprocess.run(["mount", "--bind", str(place / "a b/file"), str(alone)], check=True)
    yield place
    for path in (alone, place):
        subprocess.run(["umount", str(path)], check=True)
    alone.unlink()
    place.rmdir()


def test_what_is_mounted_below_usr_is_there_and_nobody_can_write_to_it(mounted: Path) -> None:
    """The client has made sandboxes before: it notices that something was mounted since."""
    with Sandbox.create() as sandbox:
        file = f"{mounted}/a b/file"
        assert sandbox.exec(["cat", file, f"{mounted}.file"]).stdout == "mounted" * 2
        for path in (file, f"{mounted}.file", f"{mounted}/new"):
            refused = sandbox.exec(["sh", "-c", 'echo x > "$0"', path], user="root")
            assert "Read-only file system" in refused.stderr
        with running(sandbox, "root", WATCH, file) as watcher, running(sandbox, "root", HOLD, file):
            watcher.seen()
            with open(file, "rb") as mine:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert watcher.seen() == 0
