"""The one server of a SKERRY_HOME: its lock, its announced address, and the key for commands of this machine.

SKERRY_HOME/server/lock        held by the server that runs
                   run.json    its process and address
                   admin.key   an API key of the first administrator, for root on this machine
                   skerry.db   backups/  tls/  log
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from skerry.core import Conflict, InvalidArgument, from_plain, load_json, plain, replace_file

ADMIN = "admin"
"""The first user's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    pid: int
    url: str
    """Empty while the server starts."""
    started_at: float
    ca_file: str | None


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold the lock. Raises Conflict while another server has it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(directory / "lock", "a") as lock:
        if not _had(lock):
            raise server_taken(read(directory))
        announce(directory, "", None)
        try:
            yield
        finally:
            (directory / "run.json").unlink(missing_ok=True)


def server_taken(by: Instance | None) -> Conflict:
    where = "" if by is None else f" {f'at {by.url} ' if by.url else ''}(process {by.pid})"
    return Conflict(f"a server already runs{where}", hint="`skerry down` stops it")


def _had(lock: TextIO) -> bool:
    """Whether the lock was free. A process that only looks at it, as `running_server` does, shares it for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)  # flock has no timed wait
        else:
            return True
    return False


def announce(directory: Path, url: str, ca_file: str | None) -> None:
    """Announce which process is the server, and its address once it answers."""
    instance = Instance(pid=os.getpid(), url=url, started_at=time.time(), ca_file=ca_file)
    replace_file(directory / "run.json", json.dumps(instance, default=plain).encode(), flush=True, several=True)


def read(directory: Path) -> Instance | None:
    """What a server last announced."""
    try:
        return from_plain(Instance, load_json((directory / "run.json").read_bytes()))
    except (FileNotFoundError, InvalidArgument):
        return None


def running_server(directory: Path) -> Instance | None:
    """The server that runs or starts, if there is one. It holds the lock, so its pid is not another process's.

    Raises OSError if the caller may not look.
    """
    try:
        with open(directory / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return read(directory)
    except FileNotFoundError:
        pass
    return None


def admin_key(directory: Path) -> str | None:
    """The key for commands of this machine, if there is one."""
    try:
        return (directory / "admin.key").read_text().strip()
    except (FileNotFoundError, PermissionError):
        return None
