"""Patterns for file names: alone, and in a real sandbox, where bash is the judge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import AsyncSandbox, FileMissing, InvalidArgument, NotADirectory, Sandbox
from skerry.sdk.glob import ALL_LEVELS, compile_glob, name_filter

TREE = """
mkdir -p src/pkg/deep src/.hidden tests 'odd[1]' docs/a docs/b
touch src/a.py src/b.py src/c.txt src/.dot.py src/pkg/d.py src/pkg/deep/e.py src/.hidden/f.py tests/test_a.py
touch 'odd[1]/x{y}.py' 'odd[1]/*' docs/a/one.md docs/b/two.md .profile top.py "line
break.py"
ln -s src link
ln -s nowhere broken.py
"""


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        with anyio.fail_after(90):
            await sandbox.exec(TREE, check=True)
            yield sandbox


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "*.py",
        "**/*.py",
        "src/**/*.py",
        "src/*/*.py",
        "src/?.py",
        "src/[ab].py",
        "src/[!a].py",
        "src/[^a-b].*",
        ".*rofile",
        "src/.*.py",
        "src/.hidden/*",
        "{src,tests}/*.py",
        "src/{a,{b,c}}.{py,txt}",
        "docs/*/{one,two}.md",
        "odd\\[1\\]/*",
        "odd[[]1]/x\\{y\\}.py",
        "odd\\[1\\]/\\*",
        "./src//*.py",
        "*/",
        "link/*.py",
        "src/pkg/../*.txt",
        "top.p[]y]",
        "src/{a}.py",
        "nothing/*",
        "top.py/*",
        "src/a.py",
        "src/none.py",
    ],
)
async def test_a_pattern_matches_what_it_matches_in_bash(pattern: str, box: AsyncSandbox) -> None:
    script = f'shopt -s globstar nullglob; for f in {pattern}; do [ -e "$f" -o -L "$f" ] && printf \'%s\\0\' "$f"; done'
    expected = (await box.exec(["bash", "-c", script])).stdout.split("\0")[:-1]
    clean = sorted({name.removeprefix("./").replace("//", "/").rstrip("/") for name in expected})
    if pattern == "*/":
        clean.remove("link")  # links are not followed, so this one is no directory
    assert [info.path for info in await box.files.glob(pattern)] == clean


async def test_two_stars_reach_every_level_and_nothing_hidden(box: AsyncSandbox) -> None:
    found = [info.path for info in await box.files.glob("**", path="src")]
    assert found == ["a.py", "b.py", "c.txt", "pkg", "pkg/d.py", "pkg/deep", "pkg/deep/e.py"]
    assert [info.path for info in await box.files.glob("**/deep/**/*.py")] == ["src/pkg/deep/e.py"]
    assert [info.path for info in await box.files.glob("/workspace/src/**/[d-e].py")] == [
        "/workspace/src/pkg/d.py",
        "/workspace/src/pkg/deep/e.py",
    ]
    info = (await box.files.glob("pkg/d.py", path="/workspace/src"))[0]
    assert (info.path, info.type) == ("pkg/d.py", "file")


async def test_a_place_that_is_none_is_an_error_and_no_empty_list(box: AsyncSandbox) -> None:
    with pytest.raises(FileMissing):
        await box.files.glob("*", path="nothing")
    with pytest.raises(NotADirectory):
        await box.files.glob("*", path="top.py")


@pytest.mark.parametrize("pattern", ["", "a\0b", 5, "*/../x", "[z-a]", "{a,b}" * 12])
async def test_a_pattern_that_makes_no_sense_is_refused(pattern: object, box: AsyncSandbox) -> None:
    with pytest.raises(InvalidArgument):
        await box.files.glob(pattern)  # type: ignore[arg-type]


def test_no_more_is_listed_than_the_pattern_needs() -> None:
    def wants(pattern: str) -> set[tuple[str, int]]:
        return {(one.prefix, one.depth) for one in compile_glob(pattern)}

    assert wants("src/pkg/*.py") == {("src/pkg", 1)}
    assert wants("src/*/x/*.py") == {("src", 3)}
    assert wants("/etc/**/x") == {("/etc", ALL_LEVELS)}
    assert wants("{a/b,c}/*") == {("a/b", 1), ("c", 1)}
    assert wants("a/b") == {("a/b", 0)}
    assert wants("/*") == {("/", 1)}


def test_a_filter_without_a_slash_is_for_names_everywhere() -> None:
    assert name_filter("*.{py,pyi}").fullmatch("a/.b/c.pyi")
    assert not name_filter("*.py").fullmatch("a/c.pyc")
    assert name_filter("a/**/c.py").fullmatch("a/c.py")
    assert not name_filter("a/*.py").fullmatch("b/a/c.py")


def test_the_blocking_glob() -> None:
    with Sandbox.create(timeout=300) as sandbox:
        sandbox.files.write("a/b.txt", "")
        assert [info.path for info in sandbox.files.glob("*/*.txt")] == ["a/b.txt"]
