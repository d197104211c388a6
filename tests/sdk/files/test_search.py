"""Search and replace in files, in real sandboxes."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from skerry import (
    AsyncSandbox,
    Conflict,
    FileMissing,
    InvalidArgument,
    IsADirectory,
    PermissionDenied,
    Sandbox,
)
from skerry.sdk.files import search
from skerry.trees.records import TreeError
from skerry.wire import TreeSkipped
from tests.agent.driver.trees import content, entry, file, file_end, record, root, tree_end
from tests.sdk.agent_provider import AgentProvider


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        with anyio.fail_after(100):
            yield sandbox


async def test_lines_are_found_with_place_and_text(box: AsyncSandbox) -> None:
    files = box.files
    await files.write("src/a.py", "import os\n\ndef grüße(x):\n    return TODO\r\n# todo: last")
    await files.write("src/deep/b.txt", "nothing\nTODO at once and TODO again\n")
    await files.write(".git/TODO", "TODO")
    await files.symlink("src/link", "a.py")
    result = await files.search("TODO", "src")
    assert [(match.path, match.line, match.column, match.text) for match in result.matches] == [
        ("src/a.py", 4, 12, "    return TODO"),
        ("src/deep/b.txt", 2, 1, "TODO at once and TODO again"),
    ]
    assert not result.truncated and result.skipped == 0
    everywhere = await files.search("todo", ignore_case=True)
    assert [(match.path, match.line) for match in everywhere.matches] == [
        ("src/a.py", 4),
        ("src/a.py", 5),
        ("src/deep/b.txt", 2),
    ]
    assert [match.path for match in (await files.search("TODO", exclude=["src"])).matches] == [".git/TODO"]
    assert [match.path for match in (await files.search("TODO", glob="*.py")).matches] == ["src/a.py"]
    assert [match.path for match in (await files.search("TODO", glob="src/*/*")).matches] == ["src/deep/b.txt"]
    (one,) = (await files.search(r"^def \w+\(", "/workspace/src/a.py")).matches
    assert (one.path, one.line, one.column) == ("/workspace/src/a.py", 3, 1)
    assert (await files.search("^def (", "src", regex=False)).matches == ()
    (literal,) = (await files.search("e(x", "src", regex=False)).matches
    assert literal.column == 9


async def test_what_is_no_text_or_too_large_is_skipped_and_counted(box: AsyncSandbox) -> None:
    await box.files.write("binary", b"needle\0needle")
    await box.files.write("large", b"needle" * 1000)
    await box.exec("mkfifo pipe; truncate -s 3000 hole; printf needle > tail; truncate -s 2000 tail", check=True)
    await box.files.write("latin", "needle é\n".encode("latin-1"))
    result = await box.files.search("needle", max_file_size=5000)
    assert [(match.path, match.text) for match in result.matches] == [("latin", "needle �")]
    assert result.skipped == 5


async def test_matches_and_lines_are_bounded(box: AsyncSandbox) -> None:
    await box.exec("seq 1 5000 > numbers; head -c 100000 /dev/zero | tr '\\0' x > wide; echo end >> wide", check=True)
    result = await box.files.search(r"\d", max_matches=100)
    assert result.truncated and [match.line for match in result.matches] == list(range(1, 101))
    assert not (await box.files.search(r"^5\d\d\d$", max_matches=1)).truncated
    (wide,) = (await box.files.search("end$", "wide")).matches
    assert (wide.column, len(wide.text)) == (100_001, 1000)
    assert (await box.exec("true")).ok


async def test_a_large_tree_is_searched_in_constant_memory(box: AsyncSandbox) -> None:
    script = """
    mkdir t; yes 'a line of text as there are many, some sixty characters wide' | head -c 2000000 > t/01
    for i in $(seq 10 29); do cp t/01 t/$i; done; echo needle >> t/29
    """
    await box.exec(script, check=True)
    await box.files.search("needle", "t/01")
    tracemalloc.start()
    try:
        result = await box.files.search("needle", "t", regex=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [match.path for match in result.matches] == ["t/29"]
    assert peak < 20_000_000  # 42 MB went through


@pytest.mark.parametrize(
    "options", [{"pattern": "("}, {"pattern": ""}, {"exclude": "a/b"}, {"max_matches": 0}, {"glob": ""}]
)
async def test_a_search_that_makes_no_sense_is_refused(options: dict[str, object], box: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument):
        await box.files.search(**{"pattern": "x", **options})  # type: ignore[arg-type]


async def test_what_is_not_there_or_may_not_be_read_is_an_error(box: AsyncSandbox) -> None:
    with pytest.raises(FileMissing):
        await box.files.search("x", "nowhere")
    await box.files.write("closed", "x", user="root", mode=0o600)
    with pytest.raises(PermissionDenied):
        await box.files.search("x")
    assert len((await box.files.search("x", user="root")).matches) == 1


async def test_text_is_replaced_in_one_file_or_in_many(box: AsyncSandbox) -> None:
    files = box.files
    await files.write("a.txt", "one two one\r\nÖne one", mode=0o640)
    done = await files.replace("one", "1", "a.txt")
    assert (done.files, done.count, done.skipped) == ({"a.txt": 3}, 3, ())
    assert await files.read("a.txt") == "1 two 1\r\nÖne 1".encode()
    assert (await files.stat("a.txt")).mode == 0o640
    assert (await files.replace(r"(\d) two", r"\1 & \\1", "a.txt", regex=True)).count == 1
    assert await files.read_text("a.txt") == "1 & \\1 1\r\nÖne 1"
    assert (await files.replace("\\1", "\\g<0>", "a.txt")).count == 1
    assert "\\g<0>" in await files.read_text("a.txt")
    for name in ("x/1.py", "x/y/2.py", "x/3.txt"):
        await files.write(name, "old old old")
    await files.write("x/4.py", b"old\xff")
    await files.write("x/5.py", b"old\0")
    await files.write("x/6.py", b"other")
    done = await files.replace("old", "new", "x/**/*.py", count=2)
    assert done.files == {"x/1.py": 2, "x/y/2.py": 2} and done.skipped == ("x/4.py", "x/5.py")
    assert await files.read_text("x/y/2.py") == "new new old"
    assert await files.read("x/4.py") == b"old\xff"
    before = await files.stat("x/6.py")
    assert (await files.replace("absent", "", "x/6.py")).files == {}
    assert await files.stat("x/6.py") == before


async def test_a_replacement_that_makes_no_sense_changes_nothing(box: AsyncSandbox) -> None:
    await box.files.write("a", "text")
    wrong = [
        lambda: box.files.replace("", "x", "a"),
        lambda: box.files.replace("(", "x", "a", regex=True),
        lambda: box.files.replace("t", r"\7", "a", regex=True),
        lambda: box.files.replace("t", "x", "a", count=0),
        lambda: box.files.replace("t", 5, "a"),  # type: ignore[arg-type]
    ]
    for attempt in wrong:
        with pytest.raises(InvalidArgument):
            await attempt()
    with pytest.raises(FileMissing):
        await box.files.replace("a", "b", "nowhere")
    with pytest.raises(IsADirectory):
        await box.files.replace("a", "b", "/workspace")
    assert await box.files.read("a") == b"text"


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent changes users: run as root")
async def test_a_file_that_somebody_changes_meanwhile_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    box = await AsyncSandbox.create(AgentProvider())
    try:
        await box.files.write("shared", "mine: old")
        here = Path((await box.info()).workdir, "shared")
        apply = search.Edit.apply

        def meddle(self: search.Edit, text: str) -> tuple[str, int]:
            here.write_text("theirs: old, and more")
            return apply(self, text)

        monkeypatch.setattr(search.Edit, "apply", meddle)
        with pytest.raises(Conflict, match="shared"):
            await box.files.replace("old", "new", "shared")
        assert here.read_text() == "theirs: old, and more"
        assert [info.path for info in await box.files.list()] == ["shared"]
    finally:
        await box.destroy()


def test_the_blocking_search_and_replace() -> None:
    with Sandbox.create(timeout=300) as sandbox:
        sandbox.files.write("a", "x\n")
        assert sandbox.files.replace("x", "y", "a").count == 1
        assert sandbox.files.search("y").matches[0].path == "a"


QUERY = search.Query(pattern=re.compile("h"), names=None, exclude=(), max_matches=10, max_file_size=100)
SKIPPED = TreeSkipped(path=b"pipe", reason="fifo").encode()
TREE = root(entry(b"d", "dir"), file(b"d/f", b"hello"), record(4, SKIPPED), size=5)[: -len(tree_end(4, 5))] + tree_end(
    3, 5
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_records_may_be_split_anywhere(size: int) -> None:
    scan = search.Scan(".", QUERY)
    assert not any(scan.feed(TREE[at : at + size]) for at in range(0, len(TREE), size))
    scan.finish()
    result = scan.result(truncated=False)
    assert [(match.path, match.text) for match in result.matches] == [("d/f", "hello")]
    assert result.skipped == 1


@pytest.mark.parametrize(
    "data",
    [
        record(9, b""),
        b"\x01\xff\xff\xff\xff",
        content(b"x"),
        file_end(3),
        entry(b"", "dir") + record(3, b"1234"),
        TREE[:-1],
        TREE + entry(b"x"),
        entry(b"", "dir"),
        entry(b"", "dir") + tree_end(2, 0),
    ],
)
def test_records_that_break_the_rules_are_a_broken_agent(data: bytes) -> None:
    scan = search.Scan(".", QUERY)
    with pytest.raises(TreeError):  # noqa: PT012
        scan.feed(data)
        scan.finish()
