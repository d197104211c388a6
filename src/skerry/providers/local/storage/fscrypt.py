"""The kernel's own encryption of directories (fscrypt): the few calls Skerry makes, straight to the kernel.

The kernel encrypts contents with AES-256 in XTS mode and names in CBC-CTS mode, under keys that it derives from the
directory's. It names that key by an id, which is derived from it too and reveals nothing of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

_SET_POLICY = 0x800C6613
_GET_POLICY = 0xC0096616
_ADD_KEY = 0xC0506617
_REMOVE_KEY = 0xC0406618
_POLICY = struct.Struct("4B4x16s")
_VERSION, _AES_256_XTS, _AES_256_CTS, _PAD_NAMES = 2, 1, 4, 3
_BY_ID = 2


def _ioctl(path: Path, call: int, argument: bytes) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(fd, call, argument)
    finally:
        os.close(fd)


def add_key(mounted: Path, key: bytes) -> bytes:
    """Give the kernel a key for one file system, until that is unmounted; returns the key's id. Raises OSError."""
    head = struct.pack("II32sII32x", _BY_ID, 0, b"", len(key), 0)
    return _ioctl(mounted, _ADD_KEY, head + key)[8:24]


def remove_key(mounted: Path, key_id: bytes) -> bool:
    """Make the kernel forget a key; returns whether nothing that needs it is open any more. Raises OSError."""
    try:
        answer = _ioctl(mounted, _REMOVE_KEY, struct.pack("II32s24x", _BY_ID, 0, key_id))
    except OSError as error:
        if error.errno == errno.ENOKEY:
            return True
        raise
    return not int.from_bytes(answer[40:44], "little")


def encrypt(directory: Path, key_id: bytes) -> None:
    """From now on the kernel encrypts what is made in this empty directory. Raises OSError."""
    _ioctl(directory, _SET_POLICY, _POLICY.pack(_VERSION, _AES_256_XTS, _AES_256_CTS, _PAD_NAMES, key_id))


def key_id(directory: Path) -> bytes | None:
    """The id of the key that a directory is encrypted with; None: it is not encrypted. Raises OSError."""
    try:
        answer = _ioctl(directory, _GET_POLICY, struct.pack("Q24x", _POLICY.size))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOTTY):
            return None
        raise
    version, *_, found = _POLICY.unpack_from(answer, 8)
    return found if version == _VERSION else None
