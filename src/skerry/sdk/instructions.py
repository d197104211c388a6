"""A text for an agent's system prompt that says how a sandbox works, based on what is installed in it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from skerry._model import Model
from skerry.core import InvalidArgument, Resources, SandboxInfo

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox

LANGUAGES = "python3 node deno bun ruby perl php java go rustc gcc clang bash".split()
TOOLS = "git pip3 uv npm pnpm yarn cargo make cmake curl wget jq rg sqlite3 tar unzip".split()
PROBE_TIMEOUT = 10.0
_PROBE = """\
for name in "$@"; do command -v "$name" >/dev/null 2>&1 && echo "$name"; done
echo
[ ! -r /etc/os-release ] || (. /etc/os-release && echo "$PRETTY_NAME")
"""
_NETWORK = {
    "none": "none; nothing outside the sandbox can be reached",
    "open": "public addresses can be reached",
}


class InstructionsContext(Model):
    """What a function given as `create(instructions=…)` gets."""

    info: SandboxInfo
    tools: tuple[str, ...]
    """The languages and tools that were found."""
    default: str
    """The text that is used without such a function."""
    context: object
    """What the caller passed to `instructions`."""


Instructions = str | Callable[[InstructionsContext], str | Awaitable[str]]
"""A text, or a function that makes it; it may be a coroutine function."""


async def describe(sandbox: AsyncSandbox, custom: Instructions | None, extra: str | None, context: object) -> str:
    """Raises what the caller's function raises, and InvalidArgument when it does not return text."""
    if extra is not None and not isinstance(extra, str):
        raise InvalidArgument(f"extra must be text, not {type(extra).__name__}")
    text = custom if isinstance(custom, str) else await _made(sandbox, custom, context)
    return f"{text}\n\n{extra}" if extra else text


async def _made(
    sandbox: AsyncSandbox, custom: Callable[[InstructionsContext], str | Awaitable[str]] | None, context: object
) -> str:
    info = await sandbox.info()
    tools, system = await _probe(sandbox)
    default = _default(info, tools, system)
    if custom is None:
        return default
    made = custom(InstructionsContext(info=info, tools=tools, default=default, context=context))
    if inspect.isawaitable(made):
        made = await made
    if not isinstance(made, str):
        raise InvalidArgument(f"the function for instructions returned a {type(made).__name__}, not text")
    return made


async def _probe(sandbox: AsyncSandbox) -> tuple[tuple[str, ...], str]:
    """What is installed, and the system's name."""
    known = [*LANGUAGES, *TOOLS]
    result = await sandbox.exec(["/bin/sh", "-c", _PROBE, "sh", *known], timeout=PROBE_TIMEOUT, check=True)
    found, _, system = result.stdout.partition("\n\n") if not result.stdout.startswith("\n") else ("", "", "")
    names = set(found.split())
    return tuple(name for name in known if name in names), system.strip()


def _default(info: SandboxInfo, tools: tuple[str, ...], system: str) -> str:
    languages = [name for name in tools if name in LANGUAGES]
    others = [name for name in tools if name not in LANGUAGES]
    lines = [
        f"You work in an isolated Linux sandbox{f' ({system})' if system else ''}, template {info.template!r}.",
        f"- Working directory: {info.workdir}. Relative paths and commands start there.",
        f"- You are the user {info.user!r}.",
        f"- Languages: {', '.join(languages) or 'none of the usual ones'}.",
        f"- Tools: {', '.join(others) or 'none of the usual ones'}.",
        f"- Limits: {_limits(info.resources)}.",
        f"- Network: {_NETWORK.get(info.network, info.network)}.",
        f"- Lifetime: {_lifetime(info)}.",
    ]
    return "\n".join(lines)


def _limits(resources: Resources) -> str:
    parts = []
    if resources.cpu is not None:
        parts.append(f"{resources.cpu:g} CPU cores")
    if resources.memory is not None:
        parts.append(f"{_size(resources.memory)} of memory; what needs more is killed")
    if resources.disk is not None:
        parts.append(f"{_size(resources.disk)} of disk")
    if resources.pids is not None:
        parts.append(f"{resources.pids} processes")
    return ", ".join(parts) or "none are known"


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 10**9 else f"{size / 1e6:.3g} MB"


def _lifetime(info: SandboxInfo) -> str:
    if info.expires_at is None:
        return "it does not end by itself"
    left = max(0.0, info.expires_at - time.time())
    amount = f"{left / 60:.0f} minutes" if left >= 120 else f"{left:.0f} seconds"
    what = {"stop": "it is stopped, and files stay,", "pause": "it is frozen"}.get(info.on_timeout)
    return f"{what or 'it ends with everything in it'} in about {amount}"
