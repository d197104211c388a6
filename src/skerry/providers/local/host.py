"""Facts about this machine: its boot, its processes' identities, its clocks, the programs Skerry uses."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from skerry._model import Model
from skerry.core import ProviderUnavailable, QuotaExceeded

BINARIES = Path(__file__).parents[2] / "_bin"
_FSOPEN = 430  # on every architecture
_FSOPEN_CLOEXEC = 1


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime() -> float:
    """Seconds since boot, sleep included; no clock change moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcessId(Model, kw_only=False):
    """Identifies one process for good: the kernel may reuse its pid, but not with the same start time and boot."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        seen = _look(pid)
        return None if seen is None else cls(pid, seen.start, boot_id())

    @classmethod
    def mine(cls) -> ProcessId:
        own = cls.of(os.getpid())
        assert own is not None
        return own

    def alive(self) -> bool:
        """Whether the process is there and is not ending."""
        seen = _look(self.pid) if self.boot == boot_id() else None
        return seen is not None and seen.start == self.start and not seen.ending

    def kill(self, timeout: float) -> bool:
        """Send SIGKILL and wait until the process is gone; returns whether it is."""
        return self._end(signal.SIGKILL, timeout)

    def signal_kill(self) -> None:
        """Send SIGKILL without waiting: a frozen process dies when it is thawed."""
        self._end(signal.SIGKILL, 0.0)

    def wait(self, timeout: float) -> bool:
        """Wait until the process is gone; returns whether it is."""
        return self._end(None, timeout)

    def descriptor(self) -> int | None:
        """A pidfd, readable once the process is gone; None if it is gone already. The caller closes it."""
        if self.boot != boot_id():
            return None
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        seen = _look(self.pid)
        if seen is None or seen.start != self.start:
            os.close(fd)
            return None
        return fd

    def _end(self, with_signal: signal.Signals | None, timeout: float) -> bool:
        fd = self.descriptor()
        if fd is None:
            return True
        try:
            if with_signal is not None:
                signal.pidfd_send_signal(fd, with_signal)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(timeout * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(fd)


class _Seen(NamedTuple):
    start: int
    ending: bool


_PF_EXITING = 0x4


def _look(pid: int) -> _Seen | None:
    """Clock ticks from boot to the start of a process, and whether it is ending; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return _Seen(start=int(fields[19]), ending=bool(int(fields[6]) & _PF_EXITING))


def knows_filesystem(name: str) -> bool:
    """Whether this kernel has a file system. Root loads a missing module; for other users the answer is a guess."""
    if re.search(rf"\s{name}$", Path("/proc/filesystems").read_text(), re.MULTILINE):
        return True
    if os.geteuid() != 0:
        return True
    fd: int = ctypes.CDLL(None).syscall(_FSOPEN, os.fsencode(name), ctypes.c_uint(_FSOPEN_CLOEXEC))
    if fd < 0:
        return False
    os.close(fd)
    return True


@cache
def _search(name: str) -> str | None:
    import shutil

    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def program(name: str) -> str:
    """The path of an installed program. Raises ProviderUnavailable."""
    path = _search(name)
    if path is None:
        raise ProviderUnavailable(f"{name} is not installed", hint=f"apt-get install -y {PACKAGES.get(name, name)}")
    return path


PACKAGES = {
    "nft": "nftables",
    "rm": "coreutils",
    "cp": "coreutils",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
}


@cache
def binary(name: str) -> str:
    """The path of a program that Skerry ships. Raises ProviderUnavailable."""
    path = BINARIES / name
    if not path.exists():
        raise ProviderUnavailable(f"Skerry's own {name} is not built", hint="run `make setup` in the source tree")
    return str(path)


def runtime() -> tuple[str, str]:
    """The OCI runtime to use, as (kind, path): crun, or runc where there is no crun.

    Raises ProviderUnavailable.
    """
    wanted = os.environ.get("SKERRY_RUNTIME")
    for kind in (wanted,) if wanted else ("crun", "runc"):
        path = _search(kind)
        if path and kind in ("crun", "runc"):
            return kind, path
    what = f"the runtime {wanted!r} (SKERRY_RUNTIME)" if wanted else "neither crun nor runc"
    raise ProviderUnavailable(
        f"{what} is installed" if not wanted else f"{what} is not installed or not known",
        hint="apt-get install -y crun",
    )


@contextmanager
def enough_files() -> Iterator[None]:
    """Raises QuotaExceeded in place of an OSError for too many open files."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise QuotaExceeded(
            f"too many open files: this process may have {most:,} at once, and every open sandbox takes some",
            hint="raise `ulimit -n`, or close sandboxes that are not in use",
        ) from error


def require_root() -> None:
    """Raises ProviderUnavailable for anyone but root."""
    if os.geteuid() != 0:
        raise ProviderUnavailable(
            "local sandboxes require root (user namespaces, cgroups, mounts)",
            hint="use sudo, or a Skerry server on this machine or another: `skerry login`",
        )
