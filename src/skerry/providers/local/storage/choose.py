"""Chooses where the writable trees are: sandboxes' own layers, snapshots, volumes. docs/design/storage.md says why.

    SKERRY_HOME/pool/uppers/ID        u/ (what the sandbox wrote) and w/ (overlayfs's own)
    SKERRY_HOME/pool/snapshots/ID     the same, as it was; read-only
    SKERRY_HOME/pool/volumes/NAME     a volume's files
    SKERRY_HOME/pool/layers/DIGEST    u/: what a template's build left; read-only
    SKERRY_HOME/pool/words/ID         words: what the agent of a sandbox that runs may leave
    SKERRY_HOME/pool/gone/N           a subvolume that was deleted and whose account is still to be removed
    SKERRY_HOME/pool.img              the file system behind pool/, where the disk itself is not btrfs

There are three kinds: `pool`, a btrfs file system in a file; `btrfs`, when SKERRY_HOME is on btrfs; `directory`, where
neither is possible: there, snapshots are copies and no tree has a limit. The first use of a SKERRY_HOME decides.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

from skerry.core import (
    Corrupted,
    DiskFull,
    InvalidArgument,
    ProviderUnavailable,
    SnapshotKind,
    Unsupported,
    replace_file,
)
from skerry.providers.local.host import program
from skerry.providers.local.locks import FileLock
from skerry.providers.local.storage import btrfs
from skerry.providers.local.storage.base import Storage, remove_tree, typed_errors
from skerry.providers.local.storage.pool import BtrfsStorage, PoolStorage, missing_for_pool, release_lost_pools

__all__ = [
    "DirectoryStorage",
    "Storage",
    "choose",
    "find_storage",
    "missing_for_pool",
    "open_storage",
    "release_lost_pools",
    "remove_tree",
    "typed_errors",
]

KINDS = ("pool", "btrfs", "directory")


class DirectoryStorage(Storage):
    """Trees are plain directories, and a snapshot is a full copy."""

    kind = "directory"
    snapshots: SnapshotKind = "files"

    def require_limits(self, option: str) -> None:
        raise Unsupported(
            "a disk limit needs btrfs, which this machine or SKERRY_STORAGE does not offer",
            option=option,
            hint="apt-get install -y btrfs-progs and use a new SKERRY_HOME",
        )

    def create(self, path: Path, limit: int | None) -> None:
        if limit is not None:
            self.require_limits("disk")
        with typed_errors(self.home):
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
                    continue  # another process is filling it, or has finished
                os.close(fd)
                self.remove(path)


def open_storage(home: Path) -> Storage:
    """The storage of a SKERRY_HOME that exists, ready for use; chosen at its first use.

    Raises ProviderUnavailable, Corrupted, DiskFull, InvalidArgument.
    """
    chosen = home / "storage"
    if not chosen.exists():
        with FileLock(home / "pool.lock"):
            if not chosen.exists():  # no other process was quicker
                storage = _storage(home, choose(home))
                storage.make_ready()
                with typed_errors(home):
                    replace_file(chosen, f"{storage.kind}\n".encode(), flush=True)
                return storage
    found = find_storage(home)
    assert found is not None
    found.prepare()
    return found


def find_storage(home: Path) -> Storage | None:
    """The storage of a SKERRY_HOME as it is, ready or not; None before its first use. Raises Corrupted."""
    chosen = home / "storage"
    try:
        kind = chosen.read_text().strip()
    except FileNotFoundError:
        return None
    if kind not in KINDS:
        raise Corrupted(
            f"{chosen} says {kind!r}, but must say one of {', '.join(KINDS)}",
            hint="write the right kind into that file: `pool` if there is a pool.img beside it",
        )
    return _storage(home, kind)


def _storage(home: Path, kind: str) -> Storage:
    storages: dict[str, type[Storage]] = {"pool": PoolStorage, "btrfs": BtrfsStorage, "directory": DirectoryStorage}
    return storages[kind](home)


def choose(home: Path) -> str:
    """The kind of storage for a SKERRY_HOME that has none yet. Raises InvalidArgument, ProviderUnavailable."""
    wanted = os.environ.get("SKERRY_STORAGE", "auto")
    if wanted not in (*KINDS, "auto"):
        raise InvalidArgument(f"SKERRY_STORAGE={wanted!r} is not one of auto, {', '.join(KINDS)}")
    if wanted == "btrfs" and not btrfs.is_btrfs(home):
        raise ProviderUnavailable(f"{home} is not on btrfs", hint="unset SKERRY_STORAGE")
    if wanted == "pool" and (missing := missing_for_pool()):
        raise ProviderUnavailable(f"a pool needs {missing}", hint="apt-get install -y btrfs-progs")
    if wanted != "auto":
        return wanted
    if btrfs.is_btrfs(home):
        return "btrfs"
    return "directory" if missing_for_pool() else "pool"


def _lock_directory(path: Path) -> int:
    """A descriptor that holds an exclusive lock on a directory. Raises BlockingIOError if another process holds one."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd
