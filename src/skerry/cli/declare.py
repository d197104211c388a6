"""Options and arguments as commands declare them, and a parser for command lines that are certainly right.

typer takes longer to import than a command to run. It shows the help, tells wrong usage, and parses what is not plain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin


class Option:
    """An option with its names. `help` may be a function where the text takes time to find out."""

    def __init__(
        self, *names: str, help: str | Callable[[], str], metavar: str | None = None, show_default: bool = True
    ) -> None:
        self.names, self.help, self.metavar, self.show_default = names, help, metavar, show_default


class Argument:
    """An argument; a list takes all that are left, and at least one."""

    def __init__(self, *, help: str, metavar: str, show_default: bool = True) -> None:
        self.help, self.metavar, self.show_default = help, metavar, show_default


class Seconds(float):
    """The type of an option that takes seconds, or text such as `90s` or `1h30m`. Its values are plain floats."""

    def __new__(cls, value: str | float) -> Seconds:
        """Raises InvalidArgument."""
        from skerry.core import parse_duration

        return float(parse_duration(value) if isinstance(value, str) else value)  # type: ignore[return-value]


class _NotPlain(Exception):
    """typer has to look at it."""


def parse(command: Callable[..., object], arguments: list[str], *, interspersed: bool) -> dict[str, Any] | None:
    """What typer would call `command` with, or None: typer has to look.

    `interspersed`: options may follow arguments.
    """
    try:
        return _Line(command).read(arguments, interspersed)
    except (_NotPlain, ValueError):
        return None


class _Line:
    """One command line."""

    def __init__(self, command: Callable[..., object]) -> None:
        self._kinds: dict[str, Any] = {}
        self._options: dict[str, str] = {}
        self._arguments: list[str] = []
        self._defaults: dict[str, Any] = {}
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            if get_origin(parameter.annotation) is not Annotated:
                raise _NotPlain
            kind, declared, *_ = get_args(parameter.annotation)
            if get_origin(kind) is UnionType:
                [kind] = set(get_args(kind)) - {NoneType}
            self._kinds[name] = kind
            if isinstance(declared, Option):
                self._options |= dict.fromkeys(declared.names, name)
                self._defaults[name] = parameter.default
            elif isinstance(declared, Argument) and parameter.default is parameter.empty:
                self._arguments.append(name)
            else:
                raise _NotPlain

    def read(self, words: list[str], interspersed: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        loose: list[str] = []
        left = iter(words)
        for word in left:
            if word == "--":
                loose += left
            elif word.startswith("-") and word != "-":
                self._take(word, left, found)
            else:
                loose.append(word)
                if not interspersed:
                    loose += left
        for name in self._arguments:
            if not loose:
                raise _NotPlain
            if self._kinds[name] == list[str]:
                found[name], loose = loose, []
            else:
                found[name] = self._converted(name, loose.pop(0))
        if loose:
            raise _NotPlain
        return self._defaults | found

    def _take(self, word: str, left: Any, found: dict[str, Any]) -> None:
        """Take an option and its value, which may be the next word."""
        spelled, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        name = self._options.get(spelled)
        if name is None or (name in found and self._kinds[name] != list[str]):
            raise _NotPlain
        if self._kinds[name] is bool:
            if equals:
                raise _NotPlain
            found[name] = True
            return
        if not equals:
            value = next(left, "-")
            if value.startswith("-"):
                raise _NotPlain
        if self._kinds[name] == list[str]:
            found.setdefault(name, []).append(value)
        else:
            found[name] = self._converted(name, value)

    def _converted(self, name: str, text: str) -> Any:
        """Raises ValueError."""
        kind = self._kinds[name]
        if kind not in (str, int, float, Seconds) and not issubclass(kind, Enum):
            raise _NotPlain
        return kind(text)
