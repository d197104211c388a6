"""Patterns for file names: alone, and in a real sandbox, where bash is the judge."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator

import anyio
import pytest

from skerry import AsyncSandbox, FileMissing, InvalidArgument, NotADirectory, Sandbox
from skerry.sdk.files.glob import ALL_LEVELS, compile_glob, has_magic, name_filter

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


def test_no_pattern_takes_longer_than_its_size() -> None:
    """Made to be tried in every combination: with backtracking none of these ends in a lifetime."""
    began = time.monotonic()
    names = "*a" * 40 + "c", "**/a/" * 30 + "c", "[ab]*" * 50 + "c", "?*" * 60 + "!"
    paths = "a" * 200, "/".join("a" * 200), "ab" * 100
    for name in names:
        for regex in (compile_glob(name)[0].regex, name_filter(name)):
            for path in paths:
                assert regex.fullmatch(path) is None
    assert time.monotonic() - began < 10


def test_patterns_match_what_trying_everything_matches() -> None:
    """Against a matcher that tries every way, over all short patterns and paths of a small alphabet."""

    def in_name(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(in_name(pattern[1:], name[at:]) for at in range(len(name) + 1))
        return bool(name) and pattern[0] in ("?", name[0]) and in_name(pattern[1:], name[1:])

    def hides(pattern: str, name: str) -> bool:
        return name.startswith(".") and not pattern.startswith(".")

    def in_path(pattern: list[str], path: list[str]) -> bool:
        if not pattern:
            return not path
        if pattern[0] == "**":
            if len(pattern) == 1:
                return bool(path) and not any(name.startswith(".") for name in path)
            visible = next((at for at, name in enumerate(path) if name.startswith(".")), len(path))
            return any(in_path(pattern[1:], path[at:]) for at in range(visible + 1))
        if not path or hides(pattern[0], path[0]):
            return False
        return in_name(pattern[0], path[0]) and in_path(pattern[1:], path[1:])

    chance = random.Random(3)
    for _ in range(20_000):
        pattern = [
            chance.choice(("**", "**", "*", "a*", "*a*b", ".*", "?", "a", "*a*a", ".a"))
            for _ in range(chance.randint(1, 5))
        ]
        path = ["".join(chance.choices("aab.", k=chance.randint(1, 4))) for _ in range(chance.randint(1, 6))]
        if any(set(name) == {"."} for name in path):
            continue
        pattern = [part for at, part in enumerate(pattern) if part != "**" or pattern[at - 1 : at] != ["**"]]
        text = "/".join(pattern)
        if not has_magic(text.partition("/")[0]):
            continue
        (compiled,) = compile_glob(text)
        assert compiled.matches("/".join(path), is_dir=False) is in_path(pattern, path), (text, path)
