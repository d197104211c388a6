"""The candidates for a word of a command line. Imports little, since every press of Tab starts a new process."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

PATIENCE = 3.0
"""Seconds that a sandbox has to list a directory."""


@dataclass(frozen=True, slots=True)
class Way:
    text: str
    """The whole word."""
    help: str = ""
    goes_on: bool = False
    """The word is not complete yet: a directory, or the sandbox before a path."""


def split_line(line: str) -> list[str]:
    """The words after the program's name; the last is the one to complete, and may be empty or have an open quote."""
    for closing in ("", "'", '"', "\\"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and line[-1:].isspace() and not line.endswith("\\ "):
            words.append("")
        return words[1:] or [""]
    return [""]


def for_bash(ways: list[Way], word: str, breaks: str) -> list[str]:
    """What bash inserts for the part of `word` after the last character of `breaks`."""
    cut = max((word.rfind(character) + 1 for character in ":=" if character in breaks), default=0)
    return [re.sub(r"([^\w@%+=:,./~-])", r"\\\1", way.text[cut:]) + ("" if way.goes_on else " ") for way in ways]


def candidates(app: typer.Typer, words: list[str]) -> list[Way]:
    """The candidates for the last of `words`; none where any text is possible."""
    from typer.main import get_command

    *before, word = words
    root: Any = get_command(app)
    command = root
    while hasattr(command, "commands"):  # a group of them
        name = next((each for each in before if not each.startswith("-")), None)
        if name is None:
            return [way for way in (*_commands(command), *_options(command)) if _fits(way, word)]
        command = command.commands.get(name)
        before = before[before.index(name) + 1 :]
    if command is None:
        return []
    return [way for way in _of_command(root, command, before, word) if _fits(way, word)]


def _fits(way: Way, word: str) -> bool:
    return way.text.startswith(word) and (word.startswith("-") or not way.text.startswith("-"))


def _commands(root: Any) -> Iterator[Way]:
    for name, command in root.commands.items():
        if not command.hidden:
            yield Way(name, command.get_short_help_str(60))


def _options(command: Any) -> Iterator[Way]:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield Way(max(parameter.opts, key=len), parameter.help or "")
    yield Way("--help", "Show this message and exit.")


def _of_command(root: Any, command: Any, before: list[str], word: str) -> Iterator[Way]:
    """What may come after `before` in a command that has no subcommands."""
    options = {name: each for each in command.params for name in each.opts if each.param_type_name == "option"}
    takes_rest = not command.context_settings.get("allow_interspersed_args", True)
    given: list[str] = []
    value_of = None
    for each in before:
        if value_of is not None:
            value_of = None
        elif each == "--" or (takes_rest and given and not each.startswith("-")):
            return  # a program and its arguments
        elif each in options and not options[each].is_flag:
            value_of = options[each]
        elif not each.startswith("-"):
            given.append(each)
    if value_of is None and word.startswith("--") and "=" in word:
        name = word.partition("=")[0]
        if name in options:
            yield from (Way(f"{name}={way.text}", way.help) for way in _choices(options[name]))
    elif value_of is not None:
        yield from _choices(value_of)
    elif word.startswith("-") and not (takes_rest and given):
        yield from _options(command)
    else:
        yield from _argument(root, command, given, word)


def _choices(parameter: Any) -> Iterator[Way]:
    for choice in getattr(parameter.type, "choices", ()):
        yield Way(str(getattr(choice, "value", choice)))


def _argument(root: Any, command: Any, given: list[str], word: str) -> Iterator[Way]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if not arguments or (len(given) >= len(arguments) and arguments[-1].nargs != -1):
        return
    argument = arguments[min(len(given), len(arguments) - 1)]
    meaning = argument.metavar or ""
    if ":PATH" in meaning or "SRC" in meaning:
        yield from _places(word, local="SRC" in meaning)
    elif meaning.strip("[").startswith("SANDBOX"):
        yield from (Way(name, about) for name, about in _sandboxes() if name not in given)
    elif meaning == "[COMMAND]...":
        yield from () if given else _commands(root)
    elif meaning.startswith("SNAPSHOT"):
        yield from (Way(name, about) for name, about in _snapshots() if name not in given)
    elif meaning.startswith("VOLUME"):
        yield from (Way(name, about) for name, about in _volumes() if name not in given)
    elif meaning == "[PATH]" and given:
        yield from (Way(way.text, way.help, way.goes_on) for way in _remote(given[0], word))
    else:
        yield from _choices(argument)


def _places(word: str, *, local: bool) -> Iterator[Way]:
    """SANDBOX:PATH, and local paths where the command takes them."""
    sandbox, colon, path = word.partition(":")
    if colon and "/" not in sandbox:
        yield from (Way(f"{sandbox}:{way.text}", way.help, way.goes_on) for way in _remote(sandbox, path))
        return
    if local:
        yield from _local(word)
    if "/" not in word:
        yield from (Way(f"{name}:", about, goes_on=True) for name, about in _sandboxes())


def _local(word: str) -> Iterator[Way]:
    directory, slash, _ = word.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(directory + slash) or ".") as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError:
        return
    for name, is_dir in entries:
        if not name.startswith(".") or word[len(directory + slash) :].startswith("."):
            yield Way(f"{directory}{slash}{name}{'/' if is_dir else ''}", goes_on=is_dir)


def _sandboxes() -> list[tuple[str, str]]:
    """Names, or ids of sandboxes without a name; nothing if they cannot be listed."""
    import asyncio

    from skerry.core import SkerryError, registry

    try:
        found = asyncio.run(registry.provider().list())
    except (SkerryError, OSError):
        return []
    return [(info.name or info.id, f"{info.state.value}, {info.template}") for info in found]


def _snapshots() -> list[tuple[str, str]]:
    import asyncio

    from skerry import AsyncSnapshots
    from skerry.core import SkerryError

    try:
        found = asyncio.run(AsyncSnapshots().list())
    except (SkerryError, OSError):
        return []
    return [(info.name or info.id, info.description or f"of {info.sandbox_id}") for info in found]


def _volumes() -> list[tuple[str, str]]:
    import asyncio

    from skerry import AsyncVolumes
    from skerry.core import SkerryError

    try:
        found = asyncio.run(AsyncVolumes().list())
    except (SkerryError, OSError):
        return []
    return [(info.name, f"{len(info.sandboxes)} sandboxes have it") for info in found]


def _remote(sandbox: str, path: str) -> list[Way]:
    """The entries of the directory that `path` points into; nothing if it cannot be read."""
    import asyncio

    from skerry import AsyncSandbox
    from skerry.core import SkerryError

    directory, slash, start = path.rpartition("/")

    async def look() -> list[Way]:
        box = await AsyncSandbox.connect(sandbox, auto_start=False)
        try:
            found = await box.files.list(directory + slash or ".")
        finally:
            await box.close()
        return [
            Way(f"{directory}{slash}{entry.name}{'/' if entry.is_dir else ''}", goes_on=entry.is_dir)
            for entry in found
            if not entry.name.startswith(".") or start.startswith(".")
        ]

    try:
        return asyncio.run(asyncio.wait_for(look(), PATIENCE))
    except (SkerryError, OSError, TimeoutError):
        return []
