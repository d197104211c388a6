"""Tar streams to tree streams and back: any order of pieces, every form that tar programs write, nothing hostile."""

from __future__ import annotations

import os
import random
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from skerry import AsyncSandbox
from skerry.core.errors import Conflict, Corrupted, InvalidArgument, SkerryError
from skerry.sdk.files import streams
from skerry.trees.pack import Packer
from skerry.trees.records import Content, Decoder, End, Entry, FileEnd, Record
from skerry.trees.tar_in import TarDecoder, tree_stream
from skerry.trees.tar_out import TarEncoder
from skerry.trees.unpack import Unpacker

END = bytes(1024)


def member(name: str, data: bytes = b"", **fields: object) -> bytes:
    """A member as Python's tarfile writes it, with whatever fields."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def decode(stream: bytes, cut: Callable[[], int] = lambda: 1 << 20) -> bytes:
    decoder, at, out = TarDecoder(), 0, []
    while at < len(stream):
        size = max(1, cut())
        out += decoder.feed(stream[at : at + size])
        at += size
    return b"".join([*out, decoder.finish()])


def names(tree: bytes) -> list[tuple[bytes, bytes]]:
    return [(record.path, record.type) for record in Decoder().feed(tree) if isinstance(record, Entry)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o750)
    (root / "deep" / "er" / ("n" * 200)).write_bytes(os.urandom(300_000))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "none").write_bytes(b"")
    (root / "same").hardlink_to(root / "run.sh")
    (root / "link").symlink_to("deep/er")
    (root / "dangling").symlink_to("x" * 150)
    (root / "über").write_text("ü")
    os.utime(root / "run.sh", ns=(0, 1_234_567_890_123_456_789))
    return root


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (oct(info.st_mode), content, info.st_nlink if path.is_file() else 0)
    return found


@pytest.mark.parametrize("format", ["gnu", "pax", "ustar"])
def test_what_tar_writes_is_unpacked_as_it_was(project: Path, tmp_path: Path, format: str) -> None:
    if format == "ustar":
        (project / "deep" / "er" / ("n" * 200)).unlink()
        (project / "dangling").unlink()
    command = ["tar", f"--format={format}", "-C", str(project), "-c", "."]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    chance = random.Random(format)
    tree = decode(packed, lambda: chance.choice((1, 100, 511, 513, 70_000)))
    unpacker = Unpacker(str(tmp_path / "out"), merge=False)
    try:
        unpacker.feed(tree)
        unpacker.commit()
    finally:
        unpacker.close()
    assert listing(tmp_path / "out") == listing(project)


def test_a_tree_becomes_what_tar_unpacks(project: Path, tmp_path: Path) -> None:
    encoder, decoder = TarEncoder(b"project"), Decoder()
    with open(project / "sparse", "wb") as file:
        file.seek(1_000_000)
        file.write(b"x")
        file.truncate(2_000_001)
    parts = [
        part
        for batch in Packer(str(project), ()).batches()
        for record in decoder.feed(batch)
        for part in encoder.feed(record)
    ]
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-x", "-C", str(out)], input=b"".join([*parts, END]), check=True)
    assert listing(out) == listing(project)
    assert (out / "run.sh").stat().st_mtime_ns == 1_234_567_890_123_456_789


def test_directories_that_are_missing_are_made_and_come_once() -> None:
    tree = decode(member("./a/b/c.txt", b"1") + member("a/b/d.txt", b"2") + member("a/", type=tarfile.DIRTYPE) + END)
    assert names(tree) == [
        (b"", b"dir"),
        (b"a", b"dir"),
        (b"a/b", b"dir"),
        (b"a/b/c.txt", b"file"),
        (b"a/b/d.txt", b"file"),
    ]


def test_an_empty_tar_is_an_empty_directory() -> None:
    assert names(decode(END)) == [(b"", b"dir")]


@pytest.mark.parametrize(
    ("what", "stream"),
    [
        ("outside", member("../evil", b"x") + END),
        ("outside, below", member("a/../../evil", b"x") + END),
        ("absolute", member("/etc/passwd", b"x") + END),
        ("a hard link outside", member("a", type=tarfile.LNKTYPE, linkname="../../etc/shadow") + END),
        ("an absolute hard link", member("a", type=tarfile.LNKTYPE, linkname="/etc/shadow") + END),
        ("a device", member("sda", type=tarfile.BLKTYPE, devmajor=8) + END),
        ("a terminal", member("tty", type=tarfile.CHRTYPE) + END),
        ("a pipe", member("pipe", type=tarfile.FIFOTYPE) + END),
        ("a link to nothing", member("a", type=tarfile.SYMTYPE, linkname="") + END),
        ("no tar", b"\x1f\x8b" + os.urandom(2000)),
        ("cut in a header", member("a", b"x" * 2000)[:300]),
        ("cut in the content", member("a", b"x" * 2000)[:900]),
        ("cut at a member's end", member("a", b"x" * 2000)),
        ("damaged", member("a", b"x").replace(b"ustar", b"usta_") + END),
        ("too deep", member("/".join(["d"] * 300), b"x") + END),
        ("a name of 300 letters", member("n" * 300, b"x") + END),
        ("a huge name", member("L", b"n" * (2 << 20), type=tarfile.GNUTYPE_LONGNAME) + END),
        ("a sparse file", member("x", b"30 GNU.sparse.realsize=9999999\n", type=tarfile.XHDTYPE) + member("s") + END),
        ("global headers", member("g", b"11 path=evi\n"[:12], type=tarfile.XGLTYPE) + member("s") + END),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_streams_are_refused(what: str, stream: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode(stream)


def test_random_damage_is_refused_or_decoded_and_never_anything_else(project: Path) -> None:
    packed = (
        subprocess.run(["tar", "-C", str(project), "-c", "."], check=True, capture_output=True).stdout[:20_000] + END
    )
    chance = random.Random(7)
    for _ in range(500):
        broken = bytearray(packed)
        for _ in range(chance.randint(1, 8)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            decode(bytes(broken), lambda: chance.randint(1, 5000))
        except InvalidArgument:
            pass


def test_a_decoder_holds_no_more_than_a_piece() -> None:
    decoder, piece = TarDecoder(), bytes(1 << 20)
    sizes = [len(part) for part in decoder.feed(member("big", size=1 << 40)[:512])]
    for _ in range(64):
        sizes += [len(part) for part in decoder.feed(piece)]
        assert len(decoder._buffer) < 512
    assert max(sizes) <= (128 << 10) + 13


def test_headers_without_a_member_do_not_pile_up() -> None:
    values = [b"key%06d=" % number + b"v" * 60_000 for number in range(100)]
    headers = [member("x", b"%d %b\n" % (len(value) + 7, value), type=tarfile.XHDTYPE) for value in values]
    with pytest.raises(InvalidArgument, match="more than"):
        decode(b"".join(headers), lambda: 60_000)


ROOT = Entry(b"", b"dir", 0o755, 0, 0, b"", None, ())


def file_entry(size: int, same_as: bytes | None = None) -> Entry:
    return Entry(b"a", b"file", 0o644, 0, size, b"", same_as, ())


@pytest.mark.parametrize(
    "records",
    [
        [file_entry(3), Content(0, memoryview(b"abc" + member("/etc/evil")))],
        [file_entry(3), Content(0, memoryview(b"abc")), Content(1, memoryview(b"bc"))],
        [file_entry(0), FileEnd(0), Content(0, memoryview(member("/etc/evil")))],
        [file_entry(0, b"b"), FileEnd(0)],
        [file_entry(1024, b"b"), FileEnd(1024)],
        [file_entry(1024), ROOT],
        [file_entry(1024), End(2, 0)],
        [file_entry(3), Content(0, memoryview(b"ab")), FileEnd(2)],
        [Content(0, memoryview(b"abc"))],
    ],
)
def test_no_sandbox_can_put_members_of_its_own_into_a_tar(records: list[Record]) -> None:
    encoder, sent = TarEncoder(b"x"), bytearray()

    def feed() -> None:
        for record in [ROOT, *records]:
            for part in encoder.feed(record):
                sent.extend(part)

    with pytest.raises((Conflict, Corrupted)):
        feed()
    assert b"evil" not in sent


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 10_000):
        yield data[at : at + 10_000]


async def test_a_real_sandbox_takes_and_gives_tars(project: Path, tmp_path: Path) -> None:
    packed = subprocess.run(["tar", "-C", str(project), "-c", "."], check=True, capture_output=True).stdout
    async with await AsyncSandbox.create() as sandbox:
        files, decoder = sandbox.files, TarDecoder()
        done = await streams.unpack_stream(files, "/workspace/in", tree_stream(_pieces(packed), decoder), decoder.tally)
        assert done.files == 5 and done.links == 2
        encoder, parts = TarEncoder(b"in"), []
        async with streams.pack_stream(files, "/workspace/in") as (info, records):
            assert info.is_dir
            async for record in records:
                parts += encoder.feed(record)
        (tmp_path / "out").mkdir()
        subprocess.run(["tar", "-x", "-C", str(tmp_path / "out")], input=b"".join([*parts, END]), check=True)
        assert listing(tmp_path / "out") == listing(project)

        # A member below a link of the same stream never goes through it.
        evil = member("door", type=tarfile.SYMTYPE, linkname="/tmp") + member("door/evil", b"x") + END
        for merge in (False, True):
            decoder = TarDecoder()
            with pytest.raises(SkerryError):
                await streams.unpack_stream(
                    files, "/workspace/new", tree_stream(_pieces(evil), decoder), decoder.tally, merge=merge
                )
            assert not await files.exists("/tmp/evil")
        cut, decoder = packed[:-20_000], TarDecoder()
        with pytest.raises(SkerryError):
            await streams.unpack_stream(files, "/workspace/cut", tree_stream(_pieces(cut), decoder), decoder.tally)
        assert not await files.exists("/workspace/cut")

        # Members of one directory apart: merged they find their way.
        apart = member("a/1", b"1") + member("b/1", b"1") + member("a/2", b"2") + END
        decoder = TarDecoder()
        await streams.unpack_stream(
            files, "/workspace/m", tree_stream(_pieces(apart), decoder), decoder.tally, merge=True
        )
        assert await files.read("/workspace/m/a/2") == b"2"
