"""Snippets of code and the programs that run them."""

from __future__ import annotations

from typing import Literal

from skerry.core import InvalidArgument, Unsupported

Language = Literal["python", "javascript", "typescript", "bash", "sh", "perl", "ruby"]

_PROGRAMS: dict[str, list[str]] = {
    "python": ["python3", "-"],
    "javascript": ["node", "-"],
    "typescript": ["node", "--disable-warning=ExperimentalWarning", "-"],
    "perl": ["perl", "-"],
    "ruby": ["ruby", "-"],
    # A shell reads its script line by line, so commands in it would eat the rest: it gets all of it first.
    "bash": ["bash", "-c", 'eval "$(cat)" </dev/null'],
    "sh": ["sh", "-c", 'eval "$(cat)" </dev/null'],
}
_ALIASES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "node": "javascript",
    "ts": "typescript",
    "shell": "sh",
}
_OF_TEMPLATES = {
    "node": "javascript",
    **dict.fromkeys(("node-ts", "react-ts", "vue-ts", "svelte-ts", "nextjs"), "typescript"),
}
"""The language of a sandbox by its template's name; python for every other."""
RUNS_TYPESCRIPT = ["node", "-p", "Boolean(process.features.typescript)"]
"""Writes true where Node takes types away by itself: from 22.18 on, and 23.6."""


def language_of(template: str) -> str:
    """The language of sandboxes of a template, which is named with or without its version."""
    return _OF_TEMPLATES.get(template.partition(":")[0], "python")


def is_typescript(language: str) -> bool:
    return _ALIASES.get(language, language) == "typescript"


def no_typescript() -> Unsupported:
    return Unsupported(
        "the sandbox's node cannot run TypeScript",
        option="language",
        hint="node can from version 22.18 on: the template 'node-ts' has one",
    )


def program(code: object, language: str) -> list[str]:
    """The arguments of the program that reads `code` from its input. Raises InvalidArgument, Unsupported."""
    if not isinstance(code, str) or "\0" in code:
        raise InvalidArgument("code must be text without NUL")
    argv = _PROGRAMS.get(_ALIASES.get(language, language))
    if argv is None:
        known = ", ".join(_PROGRAMS)
        raise Unsupported(f"code in {language!r} cannot be run yet", option="language", hint=f"use one of {known}")
    return argv
