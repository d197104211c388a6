"""The few btrfs calls Skerry makes, straight to the kernel: a subvolume costs 0.1 ms, a program to make it 3 ms."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAGIC = 0x9123683E

_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_DESTROY_V2 = 0x5000943F
_BY_ID = 1 << 4
_TREE_SEARCH = 0xD0009411
_TREE_OF_ROOTS = 1
_ROOT_REF = 156
_SNAP_CREATE_V2 = 0x50009417
_SNAP_READ_ONLY = 2
_START_SYNC = 0x80089418
_WAIT_SYNC = 0x40089416
_INO_LOOKUP = 0xD0009412
_FS_INFO = 0x8400941F
_QUOTA_CTL = 0xC0109428
_QUOTA_ENABLE = 1
_QUOTA_RESCAN = 0x4040942C
_QUOTA_RESCAN_WAIT = 0x942E
_QGROUP_CREATE = 0x4010942A
_QGROUP_LIMIT = 0x8030942B
_LIMIT_REFERENCED = 1
_NO_LIMIT = 2**64 - 1
_FIRST_INODE = 256


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)


def _ioctl(fd: int, call: int, argument: bytes) -> bytes:
    """The argument as the kernel leaves it. Unlike fcntl.ioctl it lets other threads run. Raises OSError."""
    buffer = (ctypes.c_char * max(1, len(argument))).from_buffer_copy(argument or bytes(1))
    if _libc.ioctl(fd, ctypes.c_ulong(call), buffer) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return bytes(buffer)


def _named(path: Path, call: int, head: bytes) -> None:
    """A call on a directory whose argument ends with the name of an entry in it."""
    with _directory(path.parent) as fd:
        _ioctl(fd, call, (head + os.fsencode(path.name)).ljust(4096, b"\0"))


def magic(path: Path) -> int:
    """The kernel's number for the kind of file system that `path` is on. Raises OSError."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        raise OSError(ctypes.get_errno(), "statfs", str(path))
    return int.from_bytes(buffer.raw[:8], "little") & 0xFFFFFFFF


def is_btrfs(path: Path) -> bool:
    return magic(path) == MAGIC


def is_subvolume(path: Path) -> bool:
    """Whether `path`, known to be on btrfs, is a subvolume."""
    return path.is_dir() and path.stat().st_ino == _FIRST_INODE


def create(path: Path) -> None:
    """Raises FileExistsError, OSError."""
    _named(path, _SUBVOL_CREATE, struct.pack("q", 0))


def snapshot(source: Path, target: Path, *, read_only: bool) -> None:
    """Make a snapshot of `source`, also of what is still in memory; returns when it is on disk. Raises OSError."""
    with _directory(source) as fd:
        _named(target, _SNAP_CREATE_V2, struct.pack("qQQ32s", fd, 0, _SNAP_READ_ONLY if read_only else 0, b""))


def commit(path: Path) -> None:
    """Write changes of directories and accounts, but not the content of files; returns when they are on disk."""
    with _directory(path) as fd:
        _ioctl(fd, _WAIT_SYNC, _ioctl(fd, _START_SYNC, bytes(8)))


def flush(path: Path) -> None:
    """Write the whole file system; returns when it is on disk. Raises OSError."""
    with _directory(path) as fd:
        if _libc.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(path))


def delete(path: Path) -> None:
    """Remove the entry at once; the kernel frees its space in the background. Raises FileNotFoundError, OSError."""
    _named(path, _SNAP_DESTROY, struct.pack("q", 0))


def nested(path: Path) -> list[int]:
    """The ids of the subvolumes within the one at `path`, at any depth, the innermost first. Raises OSError."""
    with _directory(path) as fd:
        found = [_subvolume_of(fd)]
        for parent in found:
            found += _children(fd, parent)
    return found[:0:-1]


def _children(fd: int, parent: int) -> Iterator[int]:
    """The subvolumes directly within a subvolume, from the tree of roots."""
    most, after = 2**64 - 1, 0
    while True:
        key = struct.pack("7Q4I", _TREE_OF_ROOTS, parent, parent, after, most, 0, most, _ROOT_REF, _ROOT_REF, 64, 0)
        answer = _ioctl(fd, _TREE_SEARCH, key.ljust(4096, b"\0"))
        (count,) = struct.unpack_from("I", answer, 64)
        position = 104
        for _ in range(count):
            _, _, after, _, length = struct.unpack_from("3Q2I", answer, position)
            yield after
            position += 32 + length
        if not count:
            return
        after += 1


def delete_by_id(root: Path, subvolume: int) -> None:
    """Delete a subvolume by its id, wherever below `root` it is. Raises FileNotFoundError, OSError."""
    with _directory(root) as fd:
        _ioctl(fd, _SNAP_DESTROY_V2, struct.pack("qQQ4QQ", 0, 0, _BY_ID, 0, 0, 0, 0, subvolume).ljust(4096, b"\0"))


def subvolume_id(path: Path) -> int:
    with _directory(path) as fd:
        return _subvolume_of(fd)


def _subvolume_of(fd: int) -> int:
    answer = _ioctl(fd, _INO_LOOKUP, struct.pack("QQ4080s", 0, _FIRST_INODE, b""))
    return int(struct.unpack_from("Q", answer)[0])


def _qgroups(path: Path) -> Path:
    """Where the kernel shows the accounts of the file system of `path`."""
    with _directory(path) as fd:
        answer = _ioctl(fd, _FS_INFO, bytes(1024))
    id = answer[16:32].hex()
    return Path("/sys/fs/btrfs", "-".join((id[:8], id[8:12], id[12:16], id[16:20], id[20:])), "qgroups")


def has_quotas(path: Path) -> bool:
    """Whether the file system keeps full accounts: "simple" ones charge a snapshot's data to the tree that wrote it."""
    accounts = _qgroups(path)
    try:
        return (accounts / "mode").read_text().strip() == "qgroup"
    except FileNotFoundError:  # kernels before 6.7 have no simple accounts, and no file that names the kind
        return accounts.is_dir()


def enable_quotas(path: Path) -> None:
    """Enable accounts on an empty file system: counting existing files could take hours. Raises OSError."""
    with _directory(path) as fd:
        _ioctl(fd, _QUOTA_CTL, struct.pack("QQ", _QUOTA_ENABLE, 0))
        try:
            _ioctl(fd, _QUOTA_RESCAN, bytes(64))
        except OSError:
            pass  # the kernel is counting already
        _ioctl(fd, _QUOTA_RESCAN_WAIT, b"")


def set_limit(path: Path, size: int | None) -> None:
    """Limit how much the subvolume may refer to, shared or not; None removes the limit. Raises OSError."""
    most = _NO_LIMIT if size is None else size
    with _directory(path) as fd:
        _ioctl(fd, _QGROUP_LIMIT, struct.pack("QQQQQQ", 0, _LIMIT_REFERENCED, most, 0, 0, 0))


def limit(path: Path) -> int | None:
    """How much the subvolume may refer to; None: it has no limit. Raises OSError."""
    account = _qgroups(path) / f"0_{subvolume_id(path)}"
    if not int((account / "limit_flags").read_text(), 0) & _LIMIT_REFERENCED:
        return None
    found = int((account / "max_referenced").read_text())
    return None if found == _NO_LIMIT else found


def referenced(path: Path) -> int | None:
    """The bytes a subvolume refers to, as of the last commit; None without accounts."""
    try:
        return int((_qgroups(path) / f"0_{subvolume_id(path)}" / "referenced").read_text())
    except FileNotFoundError:
        return None


def charged(path: Path) -> int:
    """The bytes that the kernel compares with a subvolume's limit: what it refers to, and what is reserved in it."""
    account = _qgroups(path) / f"0_{subvolume_id(path)}"
    names = ("referenced", "rsv_data", "rsv_meta_pertrans", "rsv_meta_prealloc")
    return sum(int((account / name).read_text()) for name in names)


def forget_account(root: Path, subvolume: int) -> bool:
    """Remove the account of a subvolume that is gone; False while the kernel still takes it apart."""
    with _directory(root) as fd:
        try:
            _ioctl(fd, _QGROUP_CREATE, struct.pack("QQ", 0, subvolume))
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return True
