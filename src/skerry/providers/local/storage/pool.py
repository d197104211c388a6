"""Trees as btrfs subvolumes, on a SKERRY_HOME that is btrfs or in a pool: a btrfs file system in a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.core import Corrupted, DiskFull, ProviderUnavailable, SnapshotKind, Unsupported, limits, parse_size
from skerry.providers.local.host import knows_filesystem, program
from skerry.providers.local.storage import btrfs
from skerry.providers.local.storage.base import Storage, typed_errors

_LEAST_POOL = 256 << 20
_MUCH = 8 << 20
_NODE_SIZE = "4096"
"""After a snapshot every change copies a node, and the accounts follow each file in it: with the usual 16 KiB, a
snapshot takes two to four times as long."""
_SMALL_POOL = 8 << 30
"""In a pool below this size data and metadata share their room: otherwise a small pool full of data would have no room
for the metadata that deleting takes."""
# The account of what a tree holds is as old as the last commit: 5 s at most. Deleted files give their space back.
_MOUNT_OPTIONS = "loop,noatime,nosuid,nodev,commit=5,discard=async"
_SAFE = os.ST_NOSUID | os.ST_NODEV
"""What sandboxes wrote has the ids 0 and 1000 there: the machine must not take it for a program of root or a device."""
_RESERVE = 16 << 20
"""Bytes to keep free on the disk under a pool: when it is full, the whole pool fails, so nothing new begins before."""
_START_ROOM = 4 << 20
"""What a sandbox may take beyond its limit while it starts."""
_CHECKS = {"btrfs": "btrfs check", "ext4": "fsck.ext4 -n"}
_SWEEP_EVERY = 64
_SWEEP_MOST = 256


class BtrfsStorage(Storage):
    """Trees are subvolumes: made, copied and removed in milliseconds, whatever they hold."""

    kind = "btrfs"
    snapshots: SnapshotKind = "disk"

    def __init__(self, home: Path, root: str = "pool") -> None:
        super().__init__(home, root)
        self._gone = self.root / "gone"
        self._limits: bool | None = None
        self._removed = 0

    def _directories(self) -> tuple[Path, ...]:
        return (self._gone, *super()._directories())

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
        with typed_errors(self.home):
            btrfs.create(path)
            self._limit(path, limit)

    def settle(self, dirty: int) -> None:
        # The first call also waits for what others write, so only a caller with much to write uses it.
        with typed_errors(self.home):
            (btrfs.flush if dirty > _MUCH else btrfs.commit)(self.root)

    def copy(self, source: Path, target: Path, *, limit: int | None = None, read_only: bool = False) -> None:
        with typed_errors(self.home):
            btrfs.snapshot(source, target, read_only=read_only)
            self._limit(target, limit)

    def _limit(self, path: Path, limit: int | None) -> None:
        if limit is not None and self._has_limits():
            btrfs.set_limit(path, limit)

    def remove(self, path: Path) -> None:
        try:
            self._will_go(btrfs.subvolume_id(path))
            try:
                btrfs.delete(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                self._remove_nested(path)
                btrfs.delete(path)
        except FileNotFoundError:
            return
        self._removed += 1
        if self._removed % _SWEEP_EVERY == 0:  # a long-lived process must not leave thousands of accounts
            self.sweep()

    def _will_go(self, subvolume: int) -> None:
        if self._has_limits():
            with contextlib.suppress(DiskFull), typed_errors(self.home):  # in a full pool the account stays
                (self._gone / str(subvolume)).touch()

    def _remove_nested(self, path: Path) -> None:
        """Remove nested subvolumes, which block a removal: no sandbox can make one, but users of this machine can."""
        for subvolume in btrfs.nested(path):
            self._will_go(subvolume)
            with contextlib.suppress(FileNotFoundError):
                btrfs.delete_by_id(self.root, subvolume)

    def set_limit(self, path: Path, limit: int) -> None:
        self.require_limits("disk")
        btrfs.set_limit(path, limit)

    @contextmanager
    def extended(self, path: Path, otherwise: int | None) -> Iterator[None]:
        before = btrfs.limit(path) if self._has_limits() else None
        limit = otherwise if before is None else before
        if limit is None or not self._has_limits():
            yield
            return
        btrfs.set_limit(path, max(limit, btrfs.charged(path)) + _START_ROOM)
        try:
            yield
        finally:
            btrfs.set_limit(path, limit)

    def used(self, path: Path) -> int | None:
        return btrfs.referenced(path)

    def sweep(self) -> None:
        for mark in itertools.islice(self._gone.iterdir(), _SWEEP_MOST):
            if mark.name.isdecimal() and btrfs.forget_account(self.root, int(mark.name)):
                mark.unlink(missing_ok=True)


class PoolStorage(BtrfsStorage):
    """A btrfs file system in a sparse file; the first use mounts it under SKERRY_HOME, and it stays mounted."""

    kind = "pool"

    def __init__(self, home: Path, root: str = "pool") -> None:
        super().__init__(home, root)
        self.image = home / "pool.img"

    def ready(self) -> bool:
        # every operation asks this several times, so it makes as few system calls as possible
        try:
            if os.stat(self.root).st_dev == os.stat(self.home).st_dev:
                return False
            os.stat(self.image)
        except FileNotFoundError:
            return False
        # no accounts yet: the process that mounted it is about to enable them, or died before it did
        return super().ready() and self._has_limits() and os.statvfs(self.root).f_flag & (_SAFE | os.ST_RDONLY) == _SAFE

    def make_ready(self) -> None:
        if os.path.ismount(self.root):
            if not self.image.exists():
                self._release_deleted()
            elif _is_read_only(self.root):  # the kernel stops writing after an error; an unused pool can start afresh
                run("umount", str(self.root))
        if not os.path.ismount(self.root):
            self._mount()
        if os.statvfs(self.root).f_flag & _SAFE != _SAFE:  # mounted by an older Skerry
            run("mount", "-o", "remount,bind,noatime,nosuid,nodev", str(self.root))
        if _is_read_only(self.root):
            raise ProviderUnavailable(
                f"the storage pool {self.image} has become read-only: its disk was full, or an error was found",
                hint="free some space and destroy the running sandboxes, then it is mounted again; `dmesg` says why",
            )
        with typed_errors(self.home):
            if not btrfs.has_quotas(self.root):
                btrfs.enable_quotas(self.root)  # this is the first mount, so the file system is empty
                self._require_accounts()
        self._limits = None
        super().make_ready()

    def _require_accounts(self) -> None:
        """Without accounts nothing limits what a sandbox writes, and every use would count the whole pool again.

        Raises ProviderUnavailable.
        """
        if not btrfs.has_quotas(self.root):
            raise ProviderUnavailable(
                f"the kernel keeps no accounts for the storage pool {self.image}, so no disk limit can be enforced",
                hint="use a kernel whose btrfs has quota groups, or SKERRY_STORAGE=directory with a new SKERRY_HOME",
            )

    def _release_deleted(self) -> None:
        if (self.home / "storage").exists():
            raise Corrupted(
                f"{self.image} was deleted while it was in use: its files are lost when {self.root} is unmounted",
                hint=f"copy what you need out of {self.root}, then `skerry storage unmount` and remove {self.home}",
            )
        run("umount", str(self.root))  # the whole home was deleted, and this one is new

    def _mount(self) -> None:
        self.root.mkdir(mode=0o700, exist_ok=True)
        if not self.image.exists():
            if (self.home / "storage").exists():
                raise Corrupted(
                    f"{self.image} is missing: it held the files of every sandbox, snapshot and volume",
                    hint=f"put it back, or remove {self.home} to start with an empty one",
                )
            self._make_pool(pool_size(self.home))
        run("mount", "-t", "btrfs", "-o", _MOUNT_OPTIONS, str(self.image), str(self.root))

    def _make_pool(self, size: int) -> None:
        mixed = ["--mixed"] if size < _SMALL_POOL else []
        options = ("-n", _NODE_SIZE, "-d", "single", "-m", "single")
        fresh = self.image.with_suffix(".new")
        try:
            with typed_errors(self.home):
                make_image(fresh, size, "mkfs.btrfs", "-q", *mixed, *options)
                fresh.rename(self.image)
        finally:
            fresh.unlink(missing_ok=True)

    def create(self, path: Path, limit: int | None) -> None:
        self._require_room()
        super().create(path, limit)

    def copy(self, source: Path, target: Path, *, limit: int | None = None, read_only: bool = False) -> None:
        self._require_room()
        super().copy(source, target, limit=limit, read_only=read_only)

    def _require_room(self) -> None:
        if _free(self.home) < _RESERVE:
            raise DiskFull(
                f"less than {_RESERVE >> 20} MiB are free under {self.home}: its pool needs more",
                errno=errno.ENOSPC,
                hint="free some space on that disk, or set SKERRY_HOME",
            )

    def unmount(self) -> bool:
        """Unmount the file system; the next use mounts it again. Returns whether it was mounted.

        Raises ProviderUnavailable while a file of it is open.
        """
        with self.lock():
            mounted = os.path.ismount(self.root)
            if mounted:
                run("umount", str(self.root))
            return mounted


def release_lost_pools() -> None:
    """Unmount the pools of SKERRY_HOMEs that somebody has deleted, once no sandbox uses them."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, device = after.split()[:2]
        if kind not in ("btrfs", "ext4") or not device.startswith("/dev/loop"):
            continue
        place = Path(before.split()[4].encode().decode("unicode_escape"))
        backing = Path("/sys/block", device.removeprefix("/dev/"), "loop/backing_file")
        try:
            file, deleted, _ = backing.read_text().strip().partition(" (deleted)")
        except OSError:
            continue  # it has just been detached
        # if the home still exists, its owner may want to save files from the pool
        if not deleted or (place.parent / "storage").exists():
            continue
        lies_within = {"pool.img": (), "encrypted.img": ("encrypted",), "encrypted.new": ()}
        for name in (*lies_within.get(Path(file).name, ()), place.name):
            subprocess.run([program("umount"), str(place.parent / name)], stdin=subprocess.DEVNULL, capture_output=True)


def missing_for_pool() -> str | None:
    """What this machine lacks for a pool."""
    if not knows_filesystem("btrfs"):
        return "a kernel with btrfs"
    if not Path("/dev/loop-control").exists():
        return "loop devices"
    try:
        program("mkfs.btrfs")
    except ProviderUnavailable as error:
        return error.message
    return None


def _free(directory: Path) -> int:
    """The bytes that are free for files there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def pool_size(home: Path) -> int:
    """The maximum size of a new pool: SKERRY_POOL_SIZE, or nine tenths of what is free. Raises DiskFull."""
    text = os.environ.get("SKERRY_POOL_SIZE")
    size = _free(home) * 9 // 10 if text is None else parse_size(text, "SKERRY_POOL_SIZE")
    if size < _LEAST_POOL:
        raise DiskFull(
            f"a pool under {home} needs at least {_LEAST_POOL >> 20} MiB", errno=errno.ENOSPC, hint="set SKERRY_HOME"
        )
    return size & ~0xFFFF


def make_image(path: Path, size: int, *command: str) -> None:
    """Make a sparse file and, by this command, a file system in it. Raises OSError, DiskFull, ProviderUnavailable."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)
    run(*command, str(path))


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def run(name: str, *arguments: str) -> None:
    done = subprocess.run([program(name), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stderr.strip()[:300]
    if "No space left" in said:
        raise DiskFull(f"{name}: no room for the storage pool", errno=errno.ENOSPC)
    if name == "mount" and ("wrong fs type" in said or "superblock" in said or "Input/output" in said):
        raise Corrupted(
            f"the storage pool cannot be mounted: {said}",
            hint=f"`{_CHECKS[arguments[1]]} {arguments[-2]}` says what is wrong, and changes nothing",
        )
    raise ProviderUnavailable(f"{name} failed: {said}", hint="run `skerry doctor`")
