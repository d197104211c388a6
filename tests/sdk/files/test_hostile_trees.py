"""A sandbox that sends a hostile tree writes nothing outside the target, and nothing under it either."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry import AsyncSandbox, Corrupted
from skerry.trees import records
from skerry.trees.records import Content, Decoder, End, Entry, FileEnd, Record, TreeError
from skerry.wire import FINAL, TreeInfo, Type, data_frame, encode_frame
from tests.agent.driver.trees import entry, file, root
from tests.agent.test_trees import HOSTILE, HOSTILE_CASES
from tests.sdk.fake_agent import Connection, FakeProvider

INFO = {"path": b"/x", "type_name": "dir", "size": 0, "mode": 0o755, "uid": 0, "gid": 0, "mtime_ns": 0, "inode": 1}
MORE = {
    "an attribute of the system's": root(entry(b"x", "dir", xattr=(b"security.capability\0x",))),
    "an attribute without a value": root(entry(b"x", "dir", xattr=(b"user.x",))),
    "a directory with two names": root(file(b"y"), entry(b"x", "dir", same_as=b"y")),
    "a link without a target": root(entry(b"x", "link")),
    "257 levels": root(*(entry(b"/".join([b"d"] * depth), "dir") for depth in range(1, 258))),
}


async def send(connection: Connection, data: bytes, files: int, directories: int, links: int, size: int) -> None:
    await connection.greet()
    await connection.opened()
    last = TreeInfo(**INFO, files=files, directories=directories, links=links, content_bytes=size)
    await connection.raw(
        encode_frame(1, Type.REPLY, TreeInfo(**INFO).encode(), 0),
        data_frame(1, 0, 0, data) if data else b"",
        data_frame(1, 0, len(data), b"", end=True),
        encode_frame(1, Type.REPLY, last.encode(), FINAL),
    )
    await connection.frame()


@pytest.mark.parametrize(("name", "merge"), [*HOSTILE_CASES, *((name, flag) for name in MORE for flag in (0, 1))])
async def test_a_hostile_tree_is_a_broken_agent(
    fake: FakeProvider, sandbox: AsyncSandbox, tmp_path: Path, name: str, merge: int
) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    data = (HOSTILE | MORE)[name]
    fake.script = lambda connection: send(connection, data, 1, 1, 0, 0)
    with anyio.fail_after(10), pytest.raises(Corrupted):
        await sandbox.files.download("x", tmp_path / "out", merge=bool(merge))
    assert sorted(os.listdir(tmp_path)) == (["file", "out"] if merge and (tmp_path / "out").exists() else ["file"])
    assert not any(".skerry-" in part for _, inner, files in os.walk(tmp_path) for part in inner + files)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert (tmp_path / "file").stat().st_nlink == 1


async def test_a_last_answer_that_counts_otherwise_is_a_broken_agent(
    fake: FakeProvider, sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    data = root(file(b"x", b"12"), size=2)
    fake.script = lambda connection: send(connection, data, 1, 1, 0, 3)
    with anyio.fail_after(10), pytest.raises(Corrupted):
        await sandbox.files.download("x", tmp_path / "out")
    assert os.listdir(tmp_path) == []


async def test_a_merge_does_not_go_through_a_local_link(
    fake: FakeProvider, sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/link").symlink_to(tmp_path / "elsewhere")
    data = root(entry(b"link", "dir"), file(b"link/x", b"1"), size=1)
    fake.script = lambda connection: send(connection, data, 1, 2, 0, 1)
    with anyio.fail_after(10), pytest.raises(NotADirectoryError):
        await sandbox.files.download("x", tmp_path / "out", merge=True)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(tmp_path / "out") == ["link"]


NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: name not in (b".", b"..") and not {0, 47} & set(name))
PATHS = st.lists(NAMES, max_size=4).map(b"/".join)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
SIZES = st.integers(0, 2**63 - 1)
XATTRS = st.lists(st.tuples(NAMES.map(lambda name: b"user." + name), st.binary(max_size=50)), max_size=3).map(tuple)
MODES = st.integers(0, 0o7777)
ENTRIES = (
    st.builds(Entry, PATHS, st.just(b"file"), MODES, NUMBERS, SIZES, st.just(b""), st.none(), XATTRS)
    | st.builds(Entry, PATHS, st.just(b"file"), MODES, NUMBERS, SIZES, st.just(b""), PATHS.filter(bool), st.just(()))
    | st.builds(Entry, PATHS, st.just(b"link"), MODES, NUMBERS, st.just(0), NAMES, st.none(), st.just(()))
)
RECORDS = st.lists(
    ENTRIES
    | st.builds(Content, st.integers(0, 2**64 - 1), st.binary(max_size=300).map(memoryview))
    | st.builds(FileEnd, st.integers(0, 2**64 - 1))
    | st.builds(End, SIZES, SIZES),
    max_size=8,
)


def encode(record: Record) -> bytes:
    match record:
        case Entry(path, type, mode, mtime_ns, size, target, same_as, xattrs):
            return records.encode_entry(path, type, mode, mtime_ns, size, target=target, same_as=same_as, xattrs=xattrs)
        case Content(offset, data):
            return records.content_head(offset, len(data)) + data
        case FileEnd(size):
            return records.encode_file_end(size)
        case End(entries, size):
            return records.encode_end(entries, size)
    raise AssertionError(record)


@given(RECORDS, st.integers(1, 100))
def test_records_survive_every_split(records: list[Record], step: int) -> None:
    data = b"".join(map(encode, records))
    decoder, found = Decoder(), list[Record]()
    for at in range(0, len(data), step):
        found += [kept(record) for record in decoder.feed(data[at : at + step])]
    assert list(bytewise(found)) == list(bytewise(records))
    assert decoder.complete


def kept(record: Record) -> Record:
    return Content(record.offset, memoryview(bytes(record.data))) if isinstance(record, Content) else record


def bytewise(found: list[Record]) -> Iterator[Record | tuple[int, int]]:
    """A CONTENT may come in parts: only where each byte goes counts."""
    for record in found:
        if isinstance(record, Content):
            yield from enumerate(record.data, record.offset)
        else:
            yield record


@settings(max_examples=500)
@given(st.binary(max_size=200) | st.tuples(st.integers(1, 5), st.binary(max_size=80)).map(
    lambda pair: struct.pack("<BI", pair[0], len(pair[1])) + pair[1]
))  # fmt: skip
def test_any_bytes_are_records_or_a_tree_error(data: bytes) -> None:
    try:
        for record in Decoder().feed(data):
            assert not isinstance(record, Entry) or b".." not in record.path.split(b"/")
    except TreeError:
        pass
