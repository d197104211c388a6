"""What the audit plants on this machine, so that a denial is about something that is there, and removes again."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

PLACES = ("/etc", "/root", "/home", "/tmp", "/var/tmp", "/var/lib", "/opt", "/srv", "/run", "/dev/shm")
SHARED = Path("/usr/local/share")
KEYS = ("/etc/shadow", "/etc/machine-id", "/etc/ssh/ssh_host_*_key", "/root/.ssh/id_*")
_TOUCH = 'while kill -0 "$PPID"; do true < "$1"; sleep 0.1; done'
"""Ends by itself with the process that started it."""


class Planted:
    """Files, a process, a variable and servers of this machine, from `with` on until its end.

    Raises OSError if this machine does not let itself be marked; then nothing is left.
    """

    def __init__(self, *, open_network: bool) -> None:
        self.marker = f"skerry-audit-{secrets.token_hex(8)}"
        self._variable = f"variable-{secrets.token_hex(8)}"
        self._open_network = open_network
        self._stack = ExitStack()
        self._files = [Path(place) / self.marker for place in PLACES if os.access(place, os.W_OK)]
        self._shared = SHARED / f"{self.marker}.file"
        made = f"skerry-made-{secrets.token_hex(8)}"
        self._new = [path.with_name(made) for path in (*self._files, self._shared)]
        self._socket = Path("/tmp") / f"{self.marker}.socket"

    def __enter__(self) -> Planted:
        with ExitStack() as stack:
            for path in self._files:
                stack.enter_context(_file(path, self.marker, 0o644))
            stack.enter_context(_file(self._shared, self.marker, 0o644))
            stack.enter_context(_file(self._shared.with_suffix(".key"), self.marker, 0o600))
            stack.enter_context(_secrets(self._shared.with_suffix(".d"), self.marker))
            stack.enter_context(_lock(self._shared))
            self._process = stack.enter_context(_process(self.marker, self._shared))
            stack.enter_context(_variable(self._variable))
            stack.enter_context(_listener(f"\0{self.marker}"))
            stack.callback(self._socket.unlink, missing_ok=True)
            stack.enter_context(_listener(str(self._socket)))
            self._port = stack.enter_context(_server(everywhere=self._open_network))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def given(self) -> dict[str, Any]:
        """What the attack program is told, to look for."""
        keys = [path for pattern in KEYS for path in sorted(Path("/").glob(pattern[1:]))]
        return {
            "marker": self.marker,
            "variable": self._variable,
            "files": [str(path) for path in self._files],
            "new": [str(path) for path in self._new],
            "shared": str(self._shared),
            "secret": str(self._shared.with_suffix(".key")),
            "secrets": str(self._shared.with_suffix(".d")),
            "keys": [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in keys],
            "socket": str(self._socket),
            "pid": self._process.pid,
            "port": self._port,
            "addresses": _addresses(),
        }

    def changes(self) -> list[str]:
        """What is not as it was planted: somebody inside reached it. What was made there is removed."""
        found = []
        for path in (*self._files, self._shared):
            try:
                if path.read_text() != self.marker or path.stat().st_mode & 0o777 != 0o644:
                    found.append(f"{path} changed")
            except FileNotFoundError:
                found.append(f"{path} is gone")
        for path in self._new:
            if path.exists():
                found.append(f"{path} was made")
                path.unlink()
        if self._process.poll() is not None:
            found.append("a process was killed")
        return found


@contextmanager
def _file(path: Path, text: str, mode: int) -> Iterator[None]:
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    try:
        path.chmod(mode)
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _secrets(path: Path, text: str) -> Iterator[None]:
    path.mkdir(mode=0o700)
    try:
        (path / "key").write_text(text)
        yield
    finally:
        shutil.rmtree(path)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _process(marker: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has the marker in its arguments and its environment, and opens the file again and again."""
    env = {"MARK": marker, "PATH": os.defpath}
    command = ["/bin/sh", "-c", _TOUCH, marker, str(path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _variable(text: str) -> Iterator[None]:
    os.environ["AUDIT_MARK"] = text
    try:
        yield
    finally:
        del os.environ["AUDIT_MARK"]


@contextmanager
def _listener(address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        yield


@contextmanager
def _server(*, everywhere: bool) -> Iterator[int]:
    """A port that takes connections, on the machine's loopback or on all its addresses."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("" if everywhere else "127.0.0.1", 0), backlog=64))
        port: int = listener.getsockname()[1]
        with suppress(OSError):  # no IPv6 here, or the port is taken there
            stack.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6, backlog=64))
        yield port


def _addresses() -> list[str]:
    """The machine's own IPv4 addresses, from the kernel's table of local routes; without its loopback."""
    found, last = [], ""
    for line in Path("/proc/net/fib_trie").read_text().splitlines():
        words = line.split()
        if "host" in words and "LOCAL" in words:
            found.append(last)
        elif words[0] == "|--":
            last = words[1]
    return sorted({address for address in found if not ipaddress.ip_address(address).is_loopback})
