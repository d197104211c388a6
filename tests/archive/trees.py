"""Trees to archive, and archives made by hand."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import zstandard

from skerry.archive import Key, Limits, Totals, open_archive, write_archive
from skerry.archive.format import MANIFEST, TOTALS, encode_manifest, encode_totals, new_manifest
from skerry.archive.ledger import Ledger
from skerry.archive.streams import Sink
from skerry.trees import tar
from skerry.trees.tar import Member

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
"""cap_net_raw=ep, as the kernel keeps it."""


def pack(*layers: Path, key: Key | None = None) -> bytes:
    target = io.BytesIO()
    write_archive(target, {"template": "host"}, layers, key=key)
    return target.getvalue()


def unpack(data: bytes, *directories: Path, key: Key | None = None, limits: Limits | None = None) -> Totals:
    with open_archive(io.BytesIO(data), key=key) as archive:
        return archive.unpack(directories, limits=limits)


def fresh(path: Path) -> Path:
    path.mkdir()
    return path


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def everything(root: Path) -> Path:
    """A layer with one of each."""
    root.mkdir()
    (root / "empty").mkdir(mode=0o700)
    (root / "bin").mkdir()
    (root / "bin/su").write_bytes(b"\x7fELF" + os.urandom(1000))
    (root / "bin/su").chmod(0o4755)
    (root / "bin/ping").write_bytes(b"ping")
    os.setxattr(root / "bin/ping", "security.capability", CAPABILITY)
    home = root / "home"
    home.mkdir()
    os.chown(home, 1000, 1000)
    home.chmod(0o2775)
    (home / "notes").write_text("text\n" * 1000)
    os.chown(home / "notes", 1000, 1001)
    os.setxattr(home / "notes", "user.binary", bytes(range(256)))
    os.setxattr(home / "notes", "user.a=b%3D%25", b"")
    os.setxattr(home, "user.on a directory", b"yes\n")
    (home / "zero").write_bytes(b"")
    (home / ("long" * 60)).mkdir()
    (home / ("long" * 60) / ("name" * 60)).write_bytes(b"deep")
    (home / os.fsdecode(b"not \xff utf-8 \xc3\n\\")).write_bytes(b"x")
    os.symlink("/etc/passwd", home / "absolute")
    os.symlink("../../" * 50 + "far", home / "up")
    os.symlink(os.fsdecode(b"\xfe\xff"), home / "odd")
    os.lchown(home / "odd", 1000, 1000)
    os.link(home / "notes", root / "a second name")
    os.link(home / "notes", home / "zz third")
    os.link(home / "odd", home / "odd again")
    os.mkfifo(home / "fifo", 0o620)
    with (home / "sparse").open("wb") as file:
        file.seek(1 << 20)
        file.write(os.urandom(5000))
        file.truncate(8 << 20)
    (home / "hole").touch()
    os.truncate(home / "hole", 123456)
    whiteout(root / "gone")
    (root / "new").mkdir()
    os.setxattr(root / "new", "trusted.overlay.opaque", b"y")
    os.setxattr(root / "home", "trusted.overlay.impure", b"y")
    (root / ".wh.real").write_bytes(b"a user's file")
    (root / "new/.wh..wh..opq").write_bytes(b"and another")
    (root / ".wh.dir").mkdir()
    (root / ".wh.dir/in").write_bytes(b"there")
    os.utime(home / "zero", ns=(0, -1_500_000_000))
    os.utime(home / "up", ns=(1, 1_234_567_890_123_456_789), follow_symlinks=False)
    os.utime(home, ns=(1, 987_654_321))
    os.chown(root, 0, 0)
    root.chmod(0o751)
    return root


def add_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            server.bind(path.name)
        finally:
            os.chdir(before)


def is_empty(*directories: Path) -> bool:
    return not any(os.listdir(directory) for directory in directories)


def decompress(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


def compress(*plain: bytes | bytearray) -> bytes:
    """Compressed and sealed as Skerry does it."""
    target = io.BytesIO()
    sink = Sink(target, key=None, level=1)
    for data in plain:
        sink.write(bytes(data))
    sink.finish()
    return target.getvalue()


Part = tuple[Member | bytes, bytes]
"""A member or its raw header, and what is stored of it."""
ROOT = Member(b"layers/0/", tar.DIRECTORY, 0o755)


def file(name: bytes, data: bytes = b"data") -> Part:
    return Member(b"layers/0/" + name, tar.FILE, size=len(data)), data


def forge(
    parts: Iterable[Part],
    *,
    layers: int = 1,
    after: bytes = b"",
    hashed: bool = True,
    totals: Sequence[tuple[str, int]] = (),
) -> bytes:
    """An archive that is right in everything but what the parts say."""
    target = io.BytesIO()
    sink = Sink(target, key=None, level=1)
    ledger = Ledger()
    about = encode_manifest(new_manifest("sandbox", layers, {}))
    for entry, data in [(Member(MANIFEST, tar.FILE, size=len(about)), about), *parts]:
        header = tar.encode(entry) if isinstance(entry, Member) else entry
        sink.write(header + data + tar.padding(len(data)))
        if hashed and isinstance(entry, Member):
            mark = b"/.wh." in entry.path and not entry.literal
            has_content = entry.type == tar.FILE and not mark
            ledger.add(entry.path, header, hashlib.sha256(data) if has_content else None)
            if entry.path != MANIFEST:
                ledger.count(entry.type, whiteout=mark)
                ledger.content_bytes += len(data) if entry.real_size is None else 0
    if hashed:
        path, block = ledger.close_block()
        sink.write(tar.encode(Member(path, tar.FILE, size=len(block))) + block + tar.padding(len(block)))
    for name, value in totals:
        setattr(ledger, name, value)
    end = encode_totals(ledger.totals())
    sink.write(tar.encode(Member(TOTALS, tar.FILE, size=len(end))) + end + tar.padding(len(end)) + tar.END + after)
    sink.finish()
    return target.getvalue()
