"""Archives made to harm: each is right in everything else, hashes and all, and each is refused."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest
import zstandard

from skerry.archive import Limits, open_archive
from skerry.core.errors import Corrupted, InvalidArgument, QuotaExceeded, Unsupported
from skerry.trees import tar
from skerry.trees.tar import MAX_PAX, Member
from tests.archive.trees import ROOT, Part, compress, decompress, file, forge, fresh, is_empty, unpack


def at(name: bytes, type: bytes, **facts: object) -> Part:
    return Member(b"layers/0/" + name, type, **facts), b""  # type: ignore[arg-type]


def link(name: bytes, target: bytes) -> Part:
    return at(name, tar.SYMLINK, target=target)


def sparse(layout: bytes, real_size: int, data: bytes = b"") -> Part:
    stored = layout + tar.padding(len(layout)) + data
    return Member(b"layers/0/s", tar.FILE, size=len(stored), real_size=real_size), stored


def raw(type: bytes, name: bytes = b"layers/0/dev", **facts: object) -> Part:
    """As Python's own tarfile would write it."""
    info = tarfile.TarInfo(os.fsdecode(name))
    info.type = type
    for key, value in facts.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.USTAR_FORMAT), b""


DIR = at(b"d/", tar.DIRECTORY)
HOSTILE: dict[str, list[Part]] = {
    "dot dot": [(ROOT, b""), file(b"../evil")],
    "dot dot as a name": [(ROOT, b""), file(b"..")],
    "dot dot as a directory": [(ROOT, b""), at(b"../", tar.DIRECTORY)],
    "dot": [(ROOT, b""), file(b".")],
    "dot dot within": [(ROOT, b""), DIR, file(b"d/../../evil")],
    "absolute": [(ROOT, b""), (Member(b"/etc/evil", tar.FILE), b"")],
    "absolute within": [(ROOT, b""), file(b"/etc/evil")],
    "no name": [(ROOT, b""), (Member(b"", tar.FILE), b"")],
    "empty component": [(ROOT, b""), DIR, file(b"d//x")],
    "no directory before it": [(ROOT, b""), file(b"d/x")],
    "directory without a slash": [(ROOT, b""), at(b"d", tar.DIRECTORY)],
    "name of 256 bytes": [(ROOT, b""), file(b"n" * 256)],
    "nul in a name": [(ROOT, b""), file(b"a" * 100 + b"\0b")],
    "nul in a link": [(ROOT, b""), link(b"l", b"a" * 100 + b"\0b")],
    "empty link": [(ROOT, b""), link(b"l", b"")],
    "link of 4096 bytes": [(ROOT, b""), link(b"l", b"t" * 4096)],
    "file through a link": [(ROOT, b""), link(b"l", b"/tmp"), file(b"l/evil")],
    "link in place of a directory": [(ROOT, b""), DIR, link(b"d", b"/tmp"), file(b"d/evil")],
    "file over a link": [(ROOT, b""), link(b"l", b"/tmp/evil"), file(b"l")],
    "directory over a link": [(ROOT, b""), link(b"l", b"/tmp"), at(b"l/", tar.DIRECTORY), file(b"l/evil")],
    "whiteout through a link": [(ROOT, b""), link(b"l", b"/tmp"), file(b"l/.wh.x", b"")],
    "hard link to the host": [(ROOT, b""), at(b"h", tar.LINK, target=b"/etc/passwd")],
    "hard link upwards": [(ROOT, b""), at(b"h", tar.LINK, target=b"layers/0/../../../etc/passwd")],
    "hard link through a link": [(ROOT, b""), link(b"l", b"/etc"), at(b"h", tar.LINK, target=b"layers/0/l/passwd")],
    "hard link to a directory": [(ROOT, b""), DIR, at(b"h", tar.LINK, target=b"layers/0/d")],
    "hard link to nothing": [(ROOT, b""), at(b"h", tar.LINK, target=b"layers/0/none")],
    "hard link to itself": [(ROOT, b""), at(b"h", tar.LINK, target=b"layers/0/h")],
    "hard link to the root": [(ROOT, b""), at(b"h", tar.LINK, target=b"layers/0/")],
    "hard link to a whiteout": [(ROOT, b""), file(b".wh.w", b""), at(b"h", tar.LINK, target=b"layers/0/w")],
    "hard link with attributes": [
        (ROOT, b""),
        file(b"f"),
        at(b"h", tar.LINK, target=b"layers/0/f", xattrs=((b"user.x", b""),)),
    ],
    "doubled file": [(ROOT, b""), file(b"f"), file(b"f")],
    "doubled directory": [(ROOT, b""), DIR, DIR],
    "doubled root": [(ROOT, b""), (ROOT, b"")],
    "doubled opaque mark": [(ROOT, b""), file(b".wh..wh..opq", b""), file(b".wh..wh..opq", b"")],
    "whiteout of what is there": [(ROOT, b""), file(b"f"), file(b".wh.f", b"")],
    "whiteout of dot dot": [(ROOT, b""), file(b".wh...", b"")],
    "whiteout of nothing": [(ROOT, b""), file(b".wh.", b"")],
    "whiteout with content": [(ROOT, b""), file(b".wh.f", b"x")],
    "whiteout that is a directory": [(ROOT, b""), at(b".wh.d/", tar.DIRECTORY)],
    "a name that means itself without need": [(ROOT, b""), at(b"f", tar.FILE, literal=True)],
    "a mark that hides what its name says": [(ROOT, b""), at(b".wh.f", tar.FILE, hides=True)],
    "a file that hides": [(ROOT, b""), at(b".wh..wh..opq", tar.FILE, hides=True, literal=True)],
    "a directory that hides": [(ROOT, b""), at(b".wh..wh..opq/", tar.DIRECTORY, hides=True)],
    "doubled whiteout": [(ROOT, b""), *2 * [at(b".wh..wh..opq", tar.FILE, hides=True)]],
    "no root": [file(b"f")],
    "a layer too many": [(ROOT, b""), (Member(b"layers/1/", tar.DIRECTORY), b"")],
    "another layer": [(Member(b"layers/1/", tar.DIRECTORY), b"")],
    "no layer": [],
    "outside the layers": [(ROOT, b""), (Member(b"evil", tar.FILE), b"")],
    "second manifest": [(ROOT, b""), (Member(b"manifest.json", tar.FILE), b"")],
    "overlay attribute": [(ROOT, b""), at(b"d/", tar.DIRECTORY, xattrs=((b"trusted.overlay.redirect", b"/etc"),))],
    "opaque attribute": [
        (ROOT, b""),
        at(b"d/", tar.DIRECTORY, xattrs=((b"trusted.overlay.opaque", b"y"),)),
        file(b"z"),
    ],
    "nul in an attribute": [(ROOT, b""), at(b"f", tar.FILE, xattrs=((b"user.a\0b", b""),))],
    "security label": [(ROOT, b""), at(b"f", tar.FILE, xattrs=((b"security.selinux", b"x"),))],
    "owner of another": [(ROOT, b""), at(b"f", tar.FILE, uid=65_536)],
    "directory with content": [(ROOT, b""), (Member(b"layers/0/d/", tar.DIRECTORY, size=4), b"data")],
    "mode beyond bits": [(ROOT, b""), at(b"f", tar.FILE, mode=0o100644)],
    "character device": [(ROOT, b""), raw(tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "whiteout device": [(ROOT, b""), raw(tarfile.CHRTYPE)],
    "block device": [(ROOT, b""), raw(tarfile.BLKTYPE, devmajor=8)],
    "contiguous file": [(ROOT, b""), raw(tarfile.CONTTYPE)],
    "GNU long name": [(ROOT, b""), raw(tarfile.GNUTYPE_LONGNAME)],
    "global header": [(ROOT, b""), raw(tarfile.XGLTYPE)],
    "sparse map of a billion": [(ROOT, b""), sparse(b"1000000000\n0\n1\n", 10)],
    "sparse map with overlaps": [(ROOT, b""), sparse(b"2\n0\n8\n4\n8\n", 12, b"x" * 16)],
    "sparse map beyond the end": [(ROOT, b""), sparse(b"1\n100\n8\n", 50, b"x" * 8)],
    "sparse map of another size": [(ROOT, b""), sparse(b"1\n0\n10\n", 10, b"x" * 9)],
    "sparse map that ends early": [(ROOT, b""), sparse(b"1\n0\n4\n", 10, b"x" * 4)],
    "sparse map of text": [(ROOT, b""), sparse(b"1\nzero\n4\n", 4, b"x" * 4)],
    "negative sparse map": [(ROOT, b""), sparse(b"1\n-5\n9\n", 4, b"x" * 9)],
    "sparse file larger than any": [(ROOT, b""), sparse(b"1\n9999999999999999999\n0\n", 9_999_999_999_999_999_999)],
    "sparse map without lines": [(ROOT, b""), sparse(b"x" * 2000, 4)],
}


@pytest.mark.parametrize("parts", HOSTILE.values(), ids=list(HOSTILE))
def test_it_is_refused_and_nothing_is_left(tmp_path: Path, parts: list[Part]) -> None:
    out, beside = fresh(tmp_path / "out"), fresh(tmp_path / "beside")
    with pytest.raises(Corrupted):
        unpack(forge(parts), out)
    assert is_empty(out, beside) and sorted(os.listdir(tmp_path)) == ["beside", "out"]
    assert not os.path.lexists("/tmp/evil") and not os.path.lexists("/etc/evil")


def test_the_forger_makes_archives_that_are_otherwise_right(tmp_path: Path) -> None:
    parts = [
        (ROOT, b""),
        DIR,
        file(b"d/x"),
        file(b".wh.w", b""),
        link(b"l", b"/etc"),
        at(b"z", tar.LINK, target=b"layers/0/d/x"),
    ]
    assert unpack(forge(parts), fresh(tmp_path / "out")).entries == 6
    assert sorted(os.listdir(tmp_path / "out")) == ["d", "l", "w", "z"]
    assert (
        unpack(
            forge([(ROOT, b""), sparse(b"1\n0\n10\n", 10, b"x" * 10)], totals=[("content_bytes", 10)]),
            fresh(tmp_path / "s"),
        ).files
        == 1
    )


def test_members_without_hashes_and_wrong_counts_are_refused(tmp_path: Path) -> None:
    out = fresh(tmp_path / "out")
    parts = [(ROOT, b""), file(b"f")]
    for wrong in (
        forge(parts, hashed=False),
        forge(parts, totals=[("files", 2)]),
        forge(parts, totals=[("entries", 1)]),
        forge(parts, totals=[("skipped", -1)]),
        compress(decompress(forge(parts)).replace(b'"skipped": 0', b'"skipped": 9')),
        forge(parts, totals=[("content_bytes", 5)]),
        forge(parts, after=tar.END),
        forge(parts, after=b"more"),
        forge(parts, after=tar.encode(Member(b"layers/0/extra", tar.FILE))),
        forge([*parts, (Member(b"hashes/000000.txt", tar.FILE), b"")]),
    ):
        with pytest.raises(Corrupted):
            unpack(wrong, out)
        assert is_empty(out)


def test_an_altered_file_is_named(tmp_path: Path) -> None:
    plain = decompress(forge([(ROOT, b""), DIR, file(b"d/x", b"old content"), file(b"y", b"other")]))
    with pytest.raises(Corrupted, match="'layers/0/d/x' in the archive is not as it was written"):
        unpack(compress(plain.replace(b"old content", b"new content")), fresh(tmp_path / "out"))
    assert is_empty(tmp_path / "out")


def test_a_missing_or_renamed_member_is_noticed(tmp_path: Path) -> None:
    out = fresh(tmp_path / "out")
    member = tar.encode(Member(b"layers/0/d/x", tar.FILE, size=4)) + b"data" + tar.padding(4)
    renamed = tar.encode(Member(b"layers/0/d/z", tar.FILE, size=4)) + b"data" + tar.padding(4)
    plain = decompress(forge([(ROOT, b""), DIR, file(b"d/x"), file(b"y")]))
    assert plain.count(member) == 1
    for instead in (b"", renamed):
        with pytest.raises(Corrupted, match="not as it was written"):
            unpack(compress(plain.replace(member, instead)), out)
        assert is_empty(out)


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    """Two gigabytes of zeros in some kilobytes."""
    size = 2 << 30
    plain = decompress(forge([(ROOT, b"")]))
    head = plain[: plain.index(b"hashes/")] + tar.encode(Member(b"layers/0/bomb", tar.FILE, size=size))
    bomb = compress(head, *[bytes(1 << 24)] * (size >> 24))
    assert len(bomb) < 1 << 20
    out = fresh(tmp_path / "out")
    began = time.monotonic()
    with pytest.raises(QuotaExceeded, match="10 MB"):
        unpack(bomb, out, limits=Limits(max_bytes=10_000_000))
    assert time.monotonic() - began < 20
    assert is_empty(out)


def test_entries_and_bytes_are_limited_exactly(tmp_path: Path) -> None:
    data = forge([(ROOT, b""), file(b"a"), file(b"b")])
    out = fresh(tmp_path / "out")
    for limits in (Limits(max_entries=2), Limits(max_bytes=7)):
        with pytest.raises(QuotaExceeded):
            unpack(data, out, limits=limits)
        assert is_empty(out)
    unpack(data, out, limits=Limits(max_entries=3, max_bytes=8))


def test_a_gigantic_extended_header_is_refused_unread(tmp_path: Path) -> None:
    for size in (MAX_PAX + 1, 8**11 - 1, 0):
        header = bytearray(tar.encode(Member(b"PaxHeaders/next", tar.FILE, 0o644, size=size)))
        header[156:157] = tar.PAX
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
        with pytest.raises(Corrupted, match="extended header"):
            unpack(forge([(ROOT, b""), (bytes(header), b"")]), fresh(tmp_path / f"out{size}"))


@pytest.mark.parametrize(
    "records",
    [
        b"11 path=abc\n",
        b"12 path=abc\n12 path=abd\n",
        b"99 path=abc\n",
        b"0 path=abc\n",
        b"x path=abc\n",
        b"8 path\n\n",
        b"14 unknown=1\n",
        b"13 size=-123\n",
        b"14 mtime=1e10\n",
        b"15 mtime=0x1.0\n",
        b"22 GNU.sparse.major=1\n",
        b"14 uid=100000\n",
    ],
    ids=range(12),
)
def test_damaged_or_unknown_records_are_refused(tmp_path: Path, records: bytes) -> None:
    whole = tar.encode(Member(b"layers/0/" + b"n" * 100, tar.FILE))
    header = bytearray(whole[:512])
    header[124:136] = b"%011o\0" % len(records)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    with pytest.raises(Corrupted):
        unpack(
            forge([(ROOT, b""), (bytes(header) + records + tar.padding(len(records)) + whole[-512:], b"")]),
            fresh(tmp_path / "out"),
        )


def signed(header: bytearray) -> bytes:
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    return bytes(header)


def other_forms() -> dict[str, bytes]:
    """Headers of `layers/0/x` that every tar program reads as Skerry's own, and that Skerry does not write."""
    plain = tar.encode(Member(b"layers/0/x", tar.FILE))
    timed = tar.encode(Member(b"layers/0/x", tar.FILE, mtime_ns=1_500_000_000))
    binary, blanks, prefix, owner = (bytearray(plain) for _ in range(4))
    binary[124:136] = b"\x80" + bytes(11)
    blanks[100:108] = b"   644 \0"
    prefix[:100], prefix[345:353] = b"x".ljust(100, b"\0"), b"layers/0"
    owner[265:269] = b"root"
    padded = bytearray(timed)
    padded[1000] = 1
    return {
        "a binary number": signed(binary),
        "a number with blanks": signed(blanks),
        "a prefix": signed(prefix),
        "the name of an owner": signed(owner),
        "two extended headers": timed[:1024] + timed,
        "something in the padding": bytes(padded),
        "a short fraction": extended(b"20 mtime=1.50000000\n", plain),
        # Escaped as it should be, this name is three times as long, which is more than fits.
        "an attribute that is not escaped": extended(
            b"1000000 SCHILY.xattr.user.%s=\n" % (b"%" * (1_000_000 - len(b"1000000 SCHILY.xattr.user.=\n"))), plain
        ),
    }


def extended(records: bytes, plain: bytes) -> bytes:
    head = bytearray(tar.encode(Member(b"PaxHeaders/next", tar.FILE, size=len(records))))
    head[156:157] = tar.PAX
    return signed(head) + records + tar.padding(len(records)) + plain


@pytest.mark.parametrize("name", other_forms())
def test_what_another_program_wrote_is_not_an_archive(tmp_path: Path, name: str) -> None:
    with pytest.raises(Corrupted, match=r"is not as Skerry writes it|two extended headers"):
        unpack(forge([(ROOT, b""), (other_forms()[name], b"")]), fresh(tmp_path / "out"))
    assert is_empty(tmp_path / "out")


def test_a_window_larger_than_skerry_writes_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=25, write_content_size=False)
    data = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(Corrupted, match="damaged"), open_archive(io.BytesIO(data.compress(bytes(1000)) + data.flush())):
        pass


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        (b"[]", Corrupted),
        (b"{", Corrupted),
        (b'{"format": 2}', Unsupported),
        (b'{"format": "1"}', Corrupted),
        (b'{"format": 1, "kind": 3, "layers": 1, "data": {}, "created_at": "2026-01-01"}', Corrupted),
        (b'{"format": 1, "kind": "x", "layers": 129, "data": {}, "created_at": "2026-01-01"}', Corrupted),
        (b'{"format": 1, "kind": "x", "layers": true, "data": {}, "created_at": "2026-01-01"}', Corrupted),
        (b'{"format": 1, "kind": "x", "layers": 1, "data": {}, "created_at": "once"}', Corrupted),
        (b"[" * 100_000, Corrupted),
        (b" " * (1 << 20) + b"{}", Corrupted),
        (b'{"format": 1, "kind": "x", "layers": 1, "data": {"a": NaN}, "created_at": "2026-01-01"}', Corrupted),
    ],
    ids=range(11),
)
def test_a_manifest_that_is_none_is_refused(manifest: bytes, error: type[Exception]) -> None:
    data = compress(
        tar.encode(Member(b"manifest.json", tar.FILE, size=len(manifest))) + manifest + tar.padding(len(manifest))
    )
    with pytest.raises(error), open_archive(io.BytesIO(data)):
        pass


def test_an_archive_that_begins_with_something_else_is_none() -> None:
    data = compress(tar.encode(Member(b"other.json", tar.FILE, size=2)) + b"{}" + tar.padding(2))
    with pytest.raises(InvalidArgument, match="manifest"), open_archive(io.BytesIO(data)):
        pass
