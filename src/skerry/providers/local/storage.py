"""Where the writable trees are: sandboxes' own layers, snapshots, volumes. docs/design/storage.md has the reasons.

    SKERRY_HOME/pool/uppers/ID        u/ (what the sandbox wrote) and w/ (overlayfs's own)
    SKERRY_HOME/pool/snapshots/ID     the same, as it was; read-only
    SKERRY_HOME/pool/volumes/NAME     a volume's files
    SKERRY_HOME/pool/gone/N           a subvolume that was deleted and whose account is still to be removed
    SKERRY_HOME/pool.img              the file system behind pool/, where the disk itself is not btrfs

Three kinds: `pool`, a btrfs file system in a file; `btrfs`, when SKERRY_HOME is on one; `directory`, where neither can
be had: snapshots are copies there, and nothing can limit a tree's size. The first use of a SKERRY_HOME decides.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skerry.core.config import limits, parse_size
from skerry.core.errors import Corrupted, DiskFull, InvalidArgument, ProviderUnavailable, Unsupported
from skerry.core.models import SnapshotKind
from skerry.providers.local import btrfs
from skerry.providers.local.host import program
from skerry.providers.local.locks import FileLock

KINDS = ("pool", "btrfs", "directory")
_LEAST_POOL = 256 << 20
_MUCH = 8 << 20
_NODE_SIZE = "4096"
"""After a snapshot every change copies a node, and the accounts follow each file in it: with the usual 16 KiB, taking a
snapshot lasts two to four times as long."""
# The account of what a tree holds is as old as the last commit: 5 s at most. Deleted files give their space back.
_MOUNT_OPTIONS = "loop,noatime,commit=5,discard=async"


class Storage(ABC):
    """The trees of one SKERRY_HOME."""

    kind: str
    snapshots: SnapshotKind
    """What a snapshot here is."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "pool"
        self.uppers = self.root / "uppers"
        self.kept = self.root / "snapshots"
        self.volumes = self.root / "volumes"

    def prepare(self) -> None:
        """Make it usable; quick when it is. Raises ProviderUnavailable, Corrupted, DiskFull."""
        for path in (self.root, self.uppers, self.kept, self.volumes):
            path.mkdir(mode=0o700, exist_ok=True)

    @abstractmethod
    def require_limits(self, option: str) -> None:
        """Raises Unsupported where no tree's size can be limited."""

    def default_limit(self) -> int | None:
        """What a sandbox may write that did not ask; None where that cannot be enforced."""
        return None

    @abstractmethod
    def create(self, path: Path, limit: int | None) -> None:
        """An empty tree. Raises DiskFull, OSError."""

    def settle(self, dirty: int) -> None:  # noqa: B027  a kind may have nothing to do
        """Write what is pending, of which `dirty` bytes are in the tree to be copied: that copy is then quicker."""

    @abstractmethod
    def copy(self, source: Path, target: Path, *, limit: int | None = None, read_only: bool = False) -> None:
        """A tree that has what `source` has now. Nobody may write to `source` meanwhile. Raises DiskFull, OSError."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """One that is not there is no error. Raises OSError."""

    @abstractmethod
    def set_limit(self, path: Path, limit: int) -> None:
        """Raises Unsupported, OSError."""

    @abstractmethod
    def used(self, path: Path) -> int | None:
        """The bytes in a tree, a few seconds ago; None where that would mean to look at every file."""

    def sweep(self) -> None:  # noqa: B027  a kind may have nothing to do
        """Remove what earlier deletions could not."""


class BtrfsStorage(Storage):
    """Trees are subvolumes: made, copied and removed in milliseconds, whatever they hold."""

    kind = "btrfs"
    snapshots: SnapshotKind = "disk"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._gone = self.root / "gone"
        self._limits: bool | None = None

    def prepare(self) -> None:
        super().prepare()
        self._gone.mkdir(mode=0o700, exist_ok=True)

    def _has_limits(self) -> bool:
        if self._limits is None:
            self._limits = btrfs.has_quotas(self.root)
        return self._limits

    def require_limits(self, option: str) -> None:
        if not self._has_limits():
            raise Unsupported(
                f"the file system of {self.home} keeps no accounts, so a disk limit cannot be enforced",
                option=option,
                hint=f"`btrfs quota enable {self.home}` turns them on",
            )

    def default_limit(self) -> int | None:
        allowed = limits()
        return min(allowed.disk, allowed.max_disk) if self._has_limits() else None

    def create(self, path: Path, limit: int | None) -> None:
        with _disk_full(self.home):
            btrfs.create(path)
            self._limit(path, limit)

    def settle(self, dirty: int) -> None:
        # The first waits also for what others are writing, so it is for those who have much to write themselves.
        with _disk_full(self.home):
            (btrfs.flush if dirty > _MUCH else btrfs.commit)(self.root)

    def copy(self, source: Path, target: Path, *, limit: int | None = None, read_only: bool = False) -> None:
        with _disk_full(self.home):
            btrfs.snapshot(source, target, read_only=read_only)
            self._limit(target, limit)

    def _limit(self, path: Path, limit: int | None) -> None:
        if limit is not None and self._has_limits():
            btrfs.set_limit(path, limit)

    def remove(self, path: Path) -> None:
        if not path.exists():
            return
        number = btrfs.subvolume_id(path)
        if self._has_limits():
            with suppress(OSError):  # a full pool has no room for the mark; an account of nothing does no harm
                (self._gone / str(number)).touch()
        btrfs.delete(path)

    def set_limit(self, path: Path, limit: int) -> None:
        self.require_limits("disk")
        btrfs.set_limit(path, limit)

    def used(self, path: Path) -> int | None:
        return btrfs.referenced(path)

    def sweep(self) -> None:
        for mark in self._gone.iterdir():
            if mark.name.isdecimal() and btrfs.forget_account(self.root, int(mark.name)):
                mark.unlink(missing_ok=True)


class PoolStorage(BtrfsStorage):
    """A btrfs file system in a sparse file, mounted under SKERRY_HOME by whoever needs it first; it stays mounted."""

    kind = "pool"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.image = home / "pool.img"

    def prepare(self) -> None:
        if not os.path.ismount(self.root):
            with FileLock(self.home / "pool.lock"):
                if not os.path.ismount(self.root):
                    self._mount()
        super().prepare()

    def _mount(self) -> None:
        self.root.mkdir(mode=0o700, exist_ok=True)
        if not self.image.exists():
            if (self.home / "storage").exists():
                raise Corrupted(
                    f"{self.image} is missing: it held the files of every sandbox, snapshot and volume",
                    hint=f"put it back, or remove {self.home} to begin anew",
                )
            self._make()
        _run("mount", "-t", "btrfs", "-o", _MOUNT_OPTIONS, str(self.image), str(self.root))
        if not btrfs.has_quotas(self.root):
            btrfs.enable_quotas(self.root)  # nobody has used it yet: this is the first mount

    def _make(self) -> None:
        fresh = self.image.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        try:
            with _disk_full(self.home):
                fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    os.ftruncate(fd, pool_size(self.home))
                finally:
                    os.close(fd)
            _run("mkfs.btrfs", "-q", "-n", _NODE_SIZE, "-d", "single", "-m", "single", str(fresh))
            fresh.rename(self.image)
        finally:
            fresh.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Let go of the file system; the next use mounts it again. Raises ProviderUnavailable while it is in use."""
        with FileLock(self.home / "pool.lock"):
            if os.path.ismount(self.root):
                _run("umount", str(self.root))


class DirectoryStorage(Storage):
    """Trees are directories, copies are copies."""

    kind = "directory"
    snapshots: SnapshotKind = "files"

    def require_limits(self, option: str) -> None:
        raise Unsupported(
            "a disk limit needs btrfs, which this machine or SKERRY_STORAGE does not offer",
            option=option,
            hint="apt-get install -y btrfs-progs, with a SKERRY_HOME that is new",
        )

    def create(self, path: Path, limit: int | None) -> None:
        with _disk_full(self.home):
            path.mkdir(mode=0o755)

    def copy(self, source: Path, target: Path, *, limit: int | None = None, read_only: bool = False) -> None:
        fresh = target.with_name(f".new-{target.name}")
        self.remove(fresh)
        fd = -1
        try:
            fresh.mkdir(mode=0o700)
            fd = _lock_directory(fresh)  # a sweep leaves it alone
            done = subprocess.run(
                [program("cp"), "-aT", "--reflink=auto", "--sparse=auto", "--", str(source), str(fresh)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                if "No space left" in done.stderr or "quota exceeded" in done.stderr:
                    raise DiskFull(f"no room under {self.home} for a copy", errno=errno.ENOSPC)
                raise OSError(errno.EIO, f"cannot copy {source}: {done.stderr.strip()[:300]}")
            fresh.rename(target)
        except BaseException:
            self.remove(fresh)
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    def remove(self, path: Path) -> None:
        remove_tree(path)

    def set_limit(self, path: Path, limit: int) -> None:
        self.require_limits("disk")

    def used(self, path: Path) -> int | None:
        return None

    def sweep(self) -> None:
        for directory in (self.uppers, self.kept, self.volumes):
            for path in directory.glob(".new-*"):
                try:
                    fd = _lock_directory(path)
                except (BlockingIOError, FileNotFoundError):
                    continue  # somebody is at work on it, or done
                os.close(fd)
                self.remove(path)


def open_storage(home: Path) -> Storage:
    """The storage of a SKERRY_HOME that exists, ready for use; chosen at its first use.

    Raises ProviderUnavailable, Corrupted, InvalidArgument.
    """
    chosen = home / "storage"
    try:
        kind = chosen.read_text().strip()
    except FileNotFoundError:
        kind = _choose(home)
    storages = {"pool": PoolStorage, "btrfs": BtrfsStorage, "directory": DirectoryStorage}
    if kind not in storages:
        raise Corrupted(f"{chosen} says {kind!r}, which is none of {', '.join(KINDS)}")
    storage: Storage = storages[kind](home)
    storage.prepare()
    if not chosen.exists():
        fresh = chosen.with_suffix(".new")
        fresh.write_text(kind + "\n")
        fresh.rename(chosen)
    return storage


def _choose(home: Path) -> str:
    wanted = os.environ.get("SKERRY_STORAGE", "auto")
    if wanted not in (*KINDS, "auto"):
        raise InvalidArgument(f"SKERRY_STORAGE={wanted!r} is none of auto, {', '.join(KINDS)}")
    if wanted == "btrfs" and not btrfs.is_btrfs(home):
        raise ProviderUnavailable(f"{home} is not on btrfs", hint="unset SKERRY_STORAGE")
    if wanted == "pool" and (missing := _missing()):
        raise ProviderUnavailable(f"a pool needs {missing}", hint="apt-get install -y btrfs-progs")
    if wanted != "auto":
        return wanted
    if btrfs.is_btrfs(home):
        return "btrfs"
    return "directory" if _missing() else "pool"


def _missing() -> str | None:
    """What a pool needs and this machine has not."""
    if not re.search(r"^\s*btrfs$", Path("/proc/filesystems").read_text(), re.MULTILINE):
        return "a kernel with btrfs"
    if not Path("/dev/loop-control").exists():
        return "loop devices"
    try:
        program("mkfs.btrfs")
    except ProviderUnavailable as error:
        return error.message
    return None


def pool_size(home: Path) -> int:
    """How large a new pool is at most: SKERRY_POOL_SIZE, or nine tenths of what is free. Raises DiskFull."""
    text = os.environ.get("SKERRY_POOL_SIZE")
    size = shutil.disk_usage(home).free * 9 // 10 if text is None else parse_size(text, "SKERRY_POOL_SIZE")
    if size < _LEAST_POOL:
        raise DiskFull(
            f"a pool under {home} needs at least {_LEAST_POOL >> 20} MiB", errno=errno.ENOSPC, hint="set SKERRY_HOME"
        )
    return size & ~0xFFFF


def remove_tree(path: Path) -> None:
    """Delete a tree a sandbox may have written: any depth, any names, links never followed. Raises OSError."""
    if not path.exists():
        return
    done = subprocess.run(
        [program("rm"), "-rf", "--one-file-system", "--", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 and path.exists():
        raise OSError(errno.EIO, f"cannot remove {path}: {done.stderr.strip()[:300]}")


def _lock_directory(path: Path) -> int:
    """A descriptor that holds an exclusive lock on a directory. Raises BlockingIOError where somebody else does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _disk_full(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not isinstance(error, DiskFull):
            raise DiskFull(f"no room under {home}", errno=error.errno) from error
        raise


def _run(name: str, *arguments: str) -> None:
    done = subprocess.run([program(name), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stderr.strip()[:300]
    if name == "mount" and ("wrong fs type" in said or "superblock" in said):
        raise Corrupted(
            f"the storage pool cannot be mounted: {said}", hint=f"`btrfs check {arguments[-2]}` says what is wrong"
        )
    raise ProviderUnavailable(f"{name} failed: {said}", hint="run `skerry doctor`")
