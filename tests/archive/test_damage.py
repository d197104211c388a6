"""An archive that was cut, altered or put together from others raises, and nothing of it is left."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from skerry.archive import Key, open_archive, write_archive
from skerry.archive.crypt import CHUNK, HEADER_SIZE, TAG, Decrypter, Encrypter
from skerry.core.errors import Corrupted, InvalidArgument, SkerryError, Unauthenticated, Unsupported
from tests.archive.trees import compress, decompress, everything, fresh, is_empty, pack, unpack

KEY = Key(b"k" * 32)
STEP = CHUNK + TAG
EXPECTED = (Corrupted, InvalidArgument, Unauthenticated, Unsupported)
"""The latter three where the first bytes say that it is something else."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return everything(tmp_path_factory.mktemp("damage") / "in")


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two encrypted archives of the same tree, of four chunks each."""
    tree = fresh(tmp_path_factory.mktemp("chunks") / "in")
    (tree / "random").write_bytes(os.urandom(3 * CHUNK + 1000))
    return pack(tree, key=KEY), pack(tree, key=KEY)


def refuse(data: bytes, out: Path, key: Key | None) -> SkerryError:
    with pytest.raises(EXPECTED) as caught:
        unpack(data, out, key=key)
    assert is_empty(out)
    return caught.value


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_cut_anywhere_it_raises_and_leaves_nothing(tmp_path: Path, tree: Path, key: Key | None) -> None:
    data, out = pack(tree, key=key), fresh(tmp_path / "out")
    ends = {*range(120), *range(len(data) - 60, len(data)), *range(0, len(data), max(1, len(data) // 80))}
    for end in ends:
        error = refuse(data[:end], out, key)
        assert isinstance(error, Corrupted) or end == 0, (end, error)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_with_any_byte_altered_it_raises_and_leaves_nothing(tmp_path: Path, tree: Path, key: Key | None) -> None:
    data, out = pack(tree, key=key), fresh(tmp_path / "out")
    chance = random.Random(7)
    places = {*range(100), *range(len(data) - 60, len(data)), *chance.sample(range(len(data)), 250)}
    for at in places:
        altered = bytearray(data)
        altered[at] ^= 1 << chance.randrange(8)
        refuse(bytes(altered), out, key)


def test_with_any_byte_of_the_tar_stream_altered_it_raises(tmp_path: Path, tree: Path) -> None:
    """Compressed and sealed anew, so that only the parser and the hashes are left to notice."""
    plain = decompress(pack(tree))
    out = fresh(tmp_path / "out")
    chance = random.Random(11)
    for at in chance.sample(range(len(plain)), 300):
        altered = bytearray(plain)
        altered[at] = chance.choice((altered[at] ^ 1 << chance.randrange(8), 0, 0xFF, ord("9"), ord("/")))
        if altered != plain:
            refuse(compress(altered), out, None)


def test_with_more_at_its_end_it_raises(tmp_path: Path, tree: Path) -> None:
    out = fresh(tmp_path / "out")
    plain, encrypted = pack(tree), pack(tree, key=KEY)
    empty_frame = bytes.fromhex("28b52ffd2000010000")
    skippable = bytes.fromhex("502a4d1804000000") + b"more"
    for more in (b"\0", b"x" * 600_000, empty_frame, skippable, plain[-40:], plain):
        assert isinstance(refuse(plain + more, out, None), Corrupted)
        assert isinstance(refuse(encrypted + more, out, KEY), Corrupted)
    assert isinstance(refuse(plain[:-40] + skippable + plain[-40:], out, None), Corrupted)


def test_chunks_cannot_be_moved_doubled_left_out_or_mixed(tmp_path: Path, chunks: tuple[bytes, bytes]) -> None:
    data, other = chunks
    out = fresh(tmp_path / "out")
    head, parts = data[:HEADER_SIZE], [data[at : at + STEP] for at in range(HEADER_SIZE, len(data), STEP)]
    foreign = [other[at : at + STEP] for at in range(HEADER_SIZE, len(other), STEP)]
    assert len(parts) == 4
    a, b, c, d = parts
    for changed in (
        [b, a, c, d],
        [a, c, b, d],
        [a, b, b, c, d],
        [a, b, d],
        [a, b, c],
        [b, c, d],
        [a, b, c, d, d],
        [d],
        [],
        [a, foreign[1], c, d],
        [*foreign[:3], d],
        foreign,
    ):
        assert isinstance(refuse(head + b"".join(changed), out, KEY), Corrupted)
    assert unpack(head + b"".join(parts), out, key=KEY).files == 1


def test_a_chunk_says_itself_whether_it_is_the_last() -> None:
    """Encryption alone notices a cut between two chunks, without the seal inside."""
    encrypter = Encrypter(KEY)
    sealed = encrypter.update(bytes(2 * CHUNK + 1)) + encrypter.finish()
    source = io.BytesIO(sealed)
    whole = Decrypter(source.read, KEY, encrypter.header)
    assert [len(whole.chunk()) for _ in range(4)] == [CHUNK, CHUNK, 1, 0]
    for end in (STEP, 2 * STEP):
        cut = Decrypter(io.BytesIO(sealed[:end]).read, KEY, encrypter.header)
        with pytest.raises(Corrupted):
            [cut.chunk() for _ in range(4)]
    with pytest.raises(Corrupted):
        Decrypter(io.BytesIO(b"").read, KEY, encrypter.header).chunk()


def test_a_wrong_key_is_told_before_anything_else(tree: Path) -> None:
    data = pack(tree, key=KEY)
    for key in (Key(b"K" * 32), Key.generate()):
        with pytest.raises(Unauthenticated, match="not the key"), open_archive(io.BytesIO(data), key=key):
            pass
    with pytest.raises(Unauthenticated, match="is encrypted"), open_archive(io.BytesIO(data)):
        pass


def test_a_plain_archive_is_not_taken_for_an_encrypted_one(tree: Path) -> None:
    with pytest.raises(InvalidArgument, match="not encrypted"), open_archive(io.BytesIO(pack(tree)), key=KEY):
        pass


def test_nothing_of_the_content_or_the_key_is_in_an_encrypted_archive(tree: Path) -> None:
    data = pack(tree, key=KEY)
    assert data != pack(tree, key=KEY)
    assert KEY.secret() not in data and b"manifest" not in data and b"\x28\xb5\x2f\xfd" not in data[:200]


@pytest.mark.parametrize(
    "data",
    [b"", b"hello world", b"\x1f\x8b" + bytes(100), bytes(5000), b"PK\3\4" * 50],
    ids=["empty", "text", "gzip", "zeros", "zip"],
)
def test_what_is_no_archive_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not an archive"), open_archive(io.BytesIO(data)):
        pass


def test_a_zstd_file_of_something_else_is_no_archive() -> None:
    import zstandard

    for data in (b"text" * 1000, bytes(10_240)):
        with pytest.raises(InvalidArgument, match="not an archive"), open_archive(io.BytesIO(zstandard.compress(data))):
            pass


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    target = io.BytesIO()
    write_archive(target, {}, [])
    with open_archive(io.BytesIO(target.getvalue())) as archive:
        archive.unpack([])
        with pytest.raises(InvalidArgument, match="once"):
            archive.unpack([])
