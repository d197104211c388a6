"""Snippets of code and the programs that run them."""

from __future__ import annotations

from typing import Literal

from skerry.core import InvalidArgument, Unsupported

Language = Literal["python", "javascript", "bash", "sh", "perl", "ruby"]

_PROGRAMS: dict[str, list[str]] = {
    "python": ["python3", "-"],
    "javascript": ["node", "-"],
    "perl": ["perl", "-"],
    "ruby": ["ruby", "-"],
    # A shell reads its script line by line, so commands in it would eat the rest: it gets all of it first.
    "bash": ["bash", "-c", 'eval "$(cat)" </dev/null'],
    "sh": ["sh", "-c", 'eval "$(cat)" </dev/null'],
}
_ALIASES = {"py": "python", "python3": "python", "js": "javascript", "node": "javascript", "shell": "sh"}


def program(code: object, language: str) -> list[str]:
    """The arguments of the program that reads `code` from its input. Raises InvalidArgument, Unsupported."""
    if not isinstance(code, str) or "\0" in code:
        raise InvalidArgument("code must be text without NUL")
    argv = _PROGRAMS.get(_ALIASES.get(language, language))
    if argv is None:
        known = ", ".join(_PROGRAMS)
        raise Unsupported(f"code in {language!r} cannot be run yet", option="language", hint=f"use one of {known}")
    return argv
