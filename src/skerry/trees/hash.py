"""One hash over everything an archive keeps of a layer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct

from skerry.trees import overlay, sparse
from skerry.trees.disk import disk_errors
from skerry.trees.walk import Found, open_root, walk_tree

_PIECE = 64 * 1024
_ZEROS = bytes(_PIECE)


def tree_hash(directory: os.PathLike[str] | str | int, *, times: bool = True) -> str:
    """SHA-256 over names, types, modes, owners, times of change, link targets, contents, attributes, marks of the
    overlay and which names are one file. Zeros and holes are the same; sockets do not count.

    Raises what `write_archive` raises for such a tree.
    """
    total = hashlib.sha256()
    first: dict[tuple[int, int], bytes] = {}
    with disk_errors("hashing a tree"), contextlib.closing(walk_tree(open_root(directory))) as entries:
        for found in entries:
            for part in _facts(found, first, times):
                total.update(struct.pack(">Q", len(part)))
                total.update(part)
    return total.hexdigest()


def _facts(found: Found, first: dict[tuple[int, int], bytes], times: bool) -> list[bytes]:
    info, kind = found.info, stat.S_IFMT(found.info.st_mode)
    if kind == stat.S_IFSOCK:
        return []
    if found.whiteout:
        return [found.path, b"whiteout"]
    if info.st_nlink > 1 and kind != stat.S_IFDIR:
        known = first.setdefault((info.st_dev, info.st_ino), found.path)
        if known is not found.path:
            return [found.path, b"link", known]
    attributes = overlay.Attributes()
    content = b""
    if kind == stat.S_IFLNK:
        content = os.fsencode(os.readlink(found.name, dir_fd=found.parent))
    elif kind == stat.S_IFIFO:
        attributes = overlay.read_attributes(f"/proc/self/fd/{found.parent}/{found.name}", found.path)
    else:
        attributes = overlay.read_attributes(found.fd, found.path)
        if kind == stat.S_IFREG:
            content = _content(found.fd, info.st_size)
    numbers = (info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns if times else 0, attributes.opaque)
    facts = [found.path, repr(numbers).encode(), content, b"%d" % len(attributes.kept)]
    for name, value in attributes.kept:
        facts += (name, value)
    return facts


def _content(fd: int, size: int) -> bytes:
    """Only pieces that are not all zeros are hashed, each with its place, so it does not matter where holes are."""
    content = hashlib.sha256(struct.pack(">Q", size))
    done = 0
    for start, length in sparse.find_extents(fd, size):
        at = max(done, start - start % _PIECE)
        while at < start + length:
            data = os.pread(fd, min(_PIECE, size - at), at)
            if data != _ZEROS[: len(data)]:
                content.update(struct.pack(">Q", at))
                content.update(data)
            at = done = at + _PIECE
    return content.digest()
