"""Images from registries: where a reference leads, who fetches it, and what went wrong.

skopeo fetches from inside a sandbox, which reaches public addresses only. A registry at a loopback address is the
caller's own: no sandbox reaches it, so that skopeo runs here, with the caller's logins; it stores and unpacks nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import anyio

from skerry.core import InvalidArgument, SkerryError, TemplateBuildFailed, TemplateNotFound
from skerry.sdk.templates.step_errors import LOG_TAIL

SCHEME = "docker://"
STEP = "pull"
_REFERENCE = re.compile(r"[a-z0-9]+([._/:-]+[a-z0-9]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.IGNORECASE)
_SAID = re.compile(r'level=fatal msg="((?:[^"\\]|\\.)*)"')
_TOLD_EVERY, _TOLD_AT_LEAST_EVERY = 1.0, 10.0
_BY_HAND = "fetch it yourself with `skopeo copy {reference} oci-archive:image.tar`, and give the file"
_MALFORMED = ("invalid reference format", "must be lowercase")
_MISSING = ("manifest unknown", "name unknown", "repository name not known")
_PROBLEMS = (
    (
        ("unauthorized", "authentication required", "access to the resource is denied", "403 (Forbidden)"),
        "the registry wants a login, or has no such image",
        "",
    ),
    (
        ("HTTP response to HTTPS client",),
        "the registry speaks plain HTTP, which is taken from a loopback address only",
        _BY_HAND,
    ),
    (("toomanyrequests",), "the registry takes no more requests for now", "try again later"),
    (
        ("pinging container registry", "dial tcp", "no such host", "i/o timeout", "server misbehaving"),
        "no registry answers there",
        f"check its name and the network; if it is in a private network, {_BY_HAND}",
    ),
)

T = TypeVar("T")


def is_local_registry(reference: str) -> bool:
    """Whether the registry is at `localhost` or a loopback address."""
    host, slash, _ = reference.removeprefix(SCHEME).partition("/")
    name = re.sub(r":\d*$", "", host).strip("[]")
    if not slash or name.lower() == "localhost":
        return bool(slash)
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def may_be_meant(image: str) -> bool:
    """Whether what is not a file looks like the name of an image."""
    return _REFERENCE.fullmatch(image) is not None and not image.endswith((".tar", ".tgz", ".gz", ".zip", ".oci"))


async def pull_here(reference: str, directory: Path, timeout: float) -> None:
    """Fetch into `directory` from a registry of this machine, over HTTP if it has no TLS. Raises as `pull_error`."""
    command = [
        "skopeo",
        "--insecure-policy",
        "copy",
        "-q",
        "--src-tls-verify=false",
        reference,
        f"oci:{directory}:image",
    ]
    with anyio.move_on_after(timeout):
        done = await anyio.run_process(command, check=False)
        if done.returncode != 0:
            raise pull_error(reference, done.stderr.decode(errors="replace"))
        return
    raise TemplateBuildFailed(f"image {reference}: the pull ran out of time", step=STEP, hint="give it more time")


async def followed(
    work: Coroutine[Any, Any, T], size: Callable[[], Awaitable[int]], tell: Callable[[str], Awaitable[object]]
) -> T:
    """The result of `work`; until then `tell` gets how much is here, every second at first and then less often."""
    task, pause = asyncio.create_task(work), _TOLD_EVERY
    try:
        while not (await asyncio.wait((task,), timeout=pause))[0]:
            pause = min(pause * 1.1, _TOLD_AT_LEAST_EVERY)
            await tell(f"{STEP}: {await size() / 1e6:.1f} MB")
        return await task
    finally:
        task.cancel()
        await asyncio.wait((task,))


def bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def pull_error(reference: str, log: str) -> SkerryError:
    """The error for a pull that failed."""
    said = _SAID.findall(log)
    last = said[-1].replace('\\"', '"')[:300] if said else log.strip().rpartition("\n")[2][:300]
    if any(sign in last for sign in _MALFORMED):
        return InvalidArgument(f"{reference!r} is not the name of an image", hint="write it like docker://python:3.12")
    if any(sign in last for sign in _MISSING):
        hint = "check its name and tag: without a tag, `latest` is meant"
        return TemplateNotFound(f"there is no image {reference}", hint=hint)
    for signs, why, hint in _PROBLEMS:
        if any(sign in last for sign in signs):
            message, hint = f"{why}: {last}", (hint or _login_hint(reference)).format(reference=reference)
            return TemplateBuildFailed(f"image {reference}: {message}", step=STEP, log=log[-LOG_TAIL:], hint=hint)
    return TemplateBuildFailed(f"image {reference}: {last}", step=STEP, log=log[-LOG_TAIL:])


def _login_hint(reference: str) -> str:
    host, slash, _ = reference.removeprefix(SCHEME).partition("/")
    login = f"if it exists, log in with `skopeo login {host if slash else 'docker.io'}`"
    return f"{login} and try again" if is_local_registry(reference) else f"{login}, {_BY_HAND}"
