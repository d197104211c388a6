"""File name patterns as in shells: `*`, `?`, `[…]`, `{a,b}` and `**`, matched here and not by the sandbox."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from skerry._model import Model
from skerry.core import FileInfo, FileMissing, InvalidArgument, NotADirectory
from skerry.sdk.commands.request import SandboxPath

if TYPE_CHECKING:
    from skerry.sdk.files.files import AsyncFiles

MAX_ALTERNATIVES = 1000
ALL_LEVELS = 1 << 30
_MAGIC = re.compile(r"[*?\[\\]")
_NO_DOT = r"(?!\.)"


class Pattern(Model, kw_only=False):
    """One alternative: where to look, how deep, and what matches there."""

    prefix: str
    """The directory that has to be listed: empty for the one to start at."""
    depth: int
    """0: the prefix itself is what is meant, there is no pattern in it."""
    regex: re.Pattern[str]
    """For paths relative to the prefix."""
    directories_only: bool

    def matches(self, path: str, *, is_dir: bool) -> bool:
        return (is_dir or not self.directories_only) and self.regex.fullmatch(path) is not None


def compile_glob(pattern: object) -> list[Pattern]:
    """Every alternative of a pattern. Raises InvalidArgument for one that makes no sense."""
    return [_compile(alternative) for alternative in dict.fromkeys(_alternatives(_text(pattern)))]


def name_filter(pattern: str) -> re.Pattern[str]:
    """For `search`: a pattern without `/` is for names in every directory, another for whole relative paths.

    Hidden files match like others.
    """
    anywhere = "" if "/" in _text(pattern) else "(?:.*/)?"
    found = (anywhere + _path_regex(_segments(one), hidden=True) for one in _alternatives(pattern))
    return re.compile("|".join(f"(?:{one})" for one in dict.fromkeys(found)), re.DOTALL)


def _text(pattern: object) -> str:
    if not isinstance(pattern, str) or not pattern or "\0" in pattern:
        raise InvalidArgument(f"{pattern!r} is not a pattern")
    return pattern


def has_magic(pattern: str) -> bool:
    return _MAGIC.search(pattern) is not None or len(list(_alternatives(pattern))) > 1


def _compile(pattern: str) -> Pattern:
    segments = _segments(pattern)
    fixed = 0
    while fixed < len(segments) and not _MAGIC.search(segments[fixed]):
        fixed += 1
    rest = segments[fixed:]
    if ".." in rest:
        raise InvalidArgument(f"{pattern!r} has .. after a pattern")
    prefix = "/".join(segments[:fixed])
    if pattern.startswith("/"):
        prefix = f"/{prefix}"
    depth = ALL_LEVELS if "**" in rest else len(rest)
    return Pattern(prefix, depth, re.compile(_path_regex(rest), re.DOTALL), pattern.endswith("/"))


def _segments(pattern: str) -> list[str]:
    """The parts between slashes, without those that change nothing."""
    segments: list[str] = []
    for part in pattern.split("/"):
        if part in ("", ".") or (part == "**" and segments[-1:] == ["**"]):
            continue
        segments.append(part)
    return segments


def _path_regex(segments: list[str], *, hidden: bool = False) -> str:
    """What stands between two `**` is matched where it comes first and never elsewhere: a later place allows no more.

    So the time is bounded by the product of the lengths of pattern and path, whatever they contain.
    """
    groups: list[list[str]] = [[]]
    for segment in segments:
        if segment == "**":
            groups.append([])
        else:
            groups[-1].append(_segment_regex(segment, hidden=hidden))
    name = "[^/]+" if hidden else f"{_NO_DOT}[^/]+"
    *before, last = ("/".join(group) for group in groups)
    if not before:
        return last
    found = [f"{before[0]}/" if before[0] else ""]
    found += [f"(?>(?:{name}/)*?{group}/)" for group in before[1:]]
    return "".join(found) + f"(?:{name}/)*" + (last or name)


def _segment_regex(segment: str, *, hidden: bool) -> str:
    """As above, what stands between two `*` is matched where it comes first."""
    pieces, position = [""], 0
    while position < len(segment):
        letter = segment[position]
        position += 1
        if letter == "*":
            while segment[position : position + 1] == "*":
                position += 1
            pieces.append("")
        elif letter == "?":
            pieces[-1] += "[^/]"
        elif letter == "[" and (end := _class_end(segment, position)) > 0:
            pieces[-1] += _class_regex(segment[position:end])
            position = end + 1
        elif letter == "\\" and position < len(segment):
            pieces[-1] += re.escape(segment[position])
            position += 1
        else:
            pieces[-1] += re.escape(letter)
    visible = "" if hidden or segment.startswith((".", "\\.")) else _NO_DOT
    if len(pieces) == 1:
        return visible + pieces[0]
    first, *middle, last = pieces
    return f"(?>{visible}{first}" + "".join(f"(?>[^/]*?{piece})" for piece in middle) + rf"[^/]*{last}(?![^/]))"


def _class_end(segment: str, start: int) -> int:
    """Where the `]` of a class is that begins at `start`; -1: it is not a class."""
    first = start + 1 if segment[start : start + 1] in ("!", "^") else start
    return segment.find("]", first + 1)


def _class_regex(body: str) -> str:
    negated = body.startswith(("!", "^"))
    letters = body[1:] if negated else body
    items, position = [], 0
    while position < len(letters):
        low = letters[position]
        if letters[position + 1 : position + 2] == "-" and position + 2 < len(letters):
            high = letters[position + 2]
            if low > high:
                raise InvalidArgument(f"[{body}] has a range that ends before it begins")
            items.append(f"{re.escape(low)}-{re.escape(high)}")
            position += 3
        else:
            items.append(re.escape(low))
            position += 1
    return f"(?!/)[{'^' if negated else ''}{''.join(items)}]"


def _alternatives(pattern: str) -> Iterator[str]:
    """What braces expand to, from left to right. Raises InvalidArgument for too many."""
    pending, count = [pattern], 0
    while pending:
        current = pending.pop()
        group = _brace(current)
        if group is None:
            count += 1
            yield current
        else:
            start, end, parts = group
            pending += [current[:start] + part + current[end:] for part in reversed(parts)]
        if count + len(pending) > MAX_ALTERNATIVES:
            raise InvalidArgument(f"the pattern has more than {MAX_ALTERNATIVES} alternatives")


def _brace(pattern: str) -> tuple[int, int, list[str]] | None:
    """The first `{a,b}`: where it begins and ends, and its parts. Braces without a comma are letters."""
    stack: list[tuple[int, list[int]]] = []
    complete: tuple[int, int, list[str]] | None = None
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == "\\":
            position += 1
        elif letter == "{":
            stack.append((position, []))
        elif letter == "," and stack:
            stack[-1][1].append(position)
        elif letter == "}" and stack:
            start, commas = stack.pop()
            if commas and (complete is None or start < complete[0]):
                cuts = [start, *commas, position]
                parts = [pattern[a + 1 : b] for a, b in itertools.pairwise(cuts)]
                complete = (start, position + 1, parts)
            if not stack and complete is not None:
                return complete
        position += 1
    return complete


async def find(files: AsyncFiles, pattern: str, path: SandboxPath, user: str | None) -> list[FileInfo]:
    """What matches, sorted by path, each once; only what a pattern's fixed beginning leads to is listed."""
    groups: dict[str, list[Pattern]] = {}
    for one in compile_glob(pattern):
        groups.setdefault(one.prefix, []).append(one)
    found: dict[str, FileInfo] = {}
    for prefix, patterns in groups.items():
        where = prefix if prefix.startswith("/") else f"{path}/{prefix}" if prefix else str(path)
        try:
            async for info in _candidates(files, where, patterns, user):
                if any(one.matches(info.path, is_dir=info.is_dir) for one in patterns):
                    full = f"{prefix.rstrip('/')}/{info.path}" if prefix and info.path else prefix or info.path
                    found[full] = replace(info, path=full)
        except (FileMissing, NotADirectory):
            # Nothing there to match; but the place to start at must exist.
            if not prefix.startswith("/") and not (await files.stat(path, user=user)).is_dir:
                raise
    return [found[name] for name in sorted(found)]


async def _candidates(
    files: AsyncFiles, where: str, patterns: list[Pattern], user: str | None
) -> AsyncIterator[FileInfo]:
    if any(one.depth == 0 for one in patterns):
        yield replace(await files.stat(where, follow=False, user=user), path="")
    depth = max(one.depth for one in patterns)
    if depth:
        for info in await files.list(where, depth=depth, user=user):
            yield info
