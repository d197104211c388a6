"""Which errors an operation may answer with, for the OpenAPI document: derived from its rule and from what it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi.dependencies.models import Dependant

from skerry.core import CONTENT_TYPE
from skerry.server.access.identity import SAFE
from skerry.server.access.permissions import Action
from skerry.server.web.guard import GuardedRoute
from skerry.server.web.problems import STATUS

PRECONDITION, RANGE = "PRECONDITION", "RANGE"
"""A CONFLICT and an INVALID_ARGUMENT for which HTTP has separate statuses."""
_OWN = {PRECONDITION: (412, "CONFLICT"), RANGE: (416, "INVALID_ARGUMENT")}

AGENT = ("SANDBOX_STOPPED", "SANDBOX_FAILED", "CONFLICT", "CONNECTION_LOST", "TIMEOUT", "UNSUPPORTED")
"""Of everything that talks to the agent in a sandbox, and may start the sandbox for that."""
CHANGE = ("SANDBOX_FAILED", "CONFLICT", "QUOTA_EXCEEDED", "UNSUPPORTED", "TIMEOUT", "DISK_FULL")
"""Of everything that changes what a provider has."""
LIFE = ("SANDBOX_STOPPED", "CONNECTION_LOST", *CHANGE)
READ = (
    "FILE_NOT_FOUND",
    "PERMISSION_DENIED",
    "NOT_A_DIRECTORY",
    "NOT_A_FILE",
    "IS_A_DIRECTORY",
    "SYMLINK_LOOP",
    "IO_ERROR",
)
WRITE = (*READ, "ALREADY_EXISTS", "NOT_EMPTY", "READ_ONLY", "DISK_FULL", "QUOTA_EXCEEDED")
START = ("COMMAND_NOT_FOUND", "QUOTA_EXCEEDED", "FILE_NOT_FOUND", "NOT_A_DIRECTORY", "IO_ERROR", "TOO_LARGE")
"""Of everything that starts a program in a sandbox."""
CHECKED = (*START, "COMMAND_FAILED", "OUT_OF_MEMORY", "TIMEOUT")
GIT = (*START, "GIT_FAILED", "REPOSITORY_NOT_FOUND", "TIMEOUT", "ALREADY_EXISTS")
CREATE = (
    *("SANDBOX_STOPPED", "CONNECTION_LOST", "SNAPSHOT_NOT_FOUND", "TEMPLATE_NOT_FOUND", "VOLUME_NOT_FOUND"),
    *("TEMPLATE_BUILD_FAILED", "ALREADY_EXISTS", "CORRUPTED", *GIT, *CHANGE),
)

WORDS = {
    400: "The request is not valid",
    401: "No credential, or one that is unknown, expired or revoked",
    403: "The credential does not allow this, the user in the sandbox may not do it, or a limit is reached",
    404: "Something that the request names does not exist, or you may not see it",
    409: "The present state does not allow this",
    412: "The file does not have the given etag: somebody has written it",
    413: "The request, or what it asks for, is too large",
    416: "The file has nothing in this range",
    422: "It was tried, and failed",
    429: "Too many requests; the header Retry-After says how many seconds to wait",
    500: "The server failed; its log says why, under the id in the header X-Request-Id",
    501: "Not supported here",
    503: "The server stops, or what it needs cannot be reached; a retry may work",
    504: "It took too long",
    507: "The disk is full",
}
_NAMED: dict[str, str | None] = {
    "sandbox": "SANDBOX_NOT_FOUND",
    "snapshot": "SNAPSHOT_NOT_FOUND",
    "volume": "VOLUME_NOT_FOUND",
    "template": "TEMPLATE_NOT_FOUND",
    "id": "PROCESS_NOT_FOUND",
    **dict.fromkeys(("port", "holder", "digest", "sandbox_id")),
}
"""The error for what a path names; NOT_FOUND for what is not here."""


def answers(route: GuardedRoute, *, opens: bool, takes: bool) -> dict[str, Any]:
    """The errors as OpenAPI writes them, by status. `opens`: it uses a sandbox's agent; `takes`: it has a body."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for code in dict.fromkeys([*_general(route), *_taking(route, takes), *(AGENT if opens else ()), *route.raises]):
        status, shown = _OWN.get(code) or (STATUS[code], code)
        found[status].append(shown)
    return {str(status): _answer(status, found[status]) for status in sorted(found)}


def _answer(status: int, codes: list[str]) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    made: dict[str, Any] = {
        "description": f"{WORDS[status]}: {', '.join(f'`{code}`' for code in codes)}.",
        "content": {CONTENT_TYPE: {"schema": schema}},
        "x-codes": codes,
    }
    if status == 429:
        made["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return made


def _general(route: GuardedRoute) -> Iterator[str]:
    rule = route.rule
    yield from ("INVALID_ARGUMENT", "RATE_LIMITED", "INTERNAL")  # of every request: the name of the server, the rates
    if rule.action is not Action.OPEN:
        yield from ("UNAUTHENTICATED", "PERMISSION_DENIED", "PROVIDER_UNAVAILABLE")
    if route.method not in SAFE:
        yield "PERMISSION_DENIED"  # to a page of another origin
        if rule.action is not Action.OPEN:
            yield "DISK_FULL"  # of the server's own database
    if rule.on != "nothing":
        yield from ("NOT_FOUND", "CONFLICT")  # the project; its name, which several may have
    if rule.on in ("sandbox", "snapshot", "volume"):
        yield "CORRUPTED"
    for name in _path(route.dependant):
        if (code := _NAMED.get(name, "NOT_FOUND")) is not None:
            yield code


def _taking(route: GuardedRoute, takes: bool) -> Iterable[str]:
    if route.method == "POST" and not any(each.alias == "idempotency-key" for each in route.dependant.header_params):
        yield "UNSUPPORTED"  # the header Idempotency-Key
    if takes:
        yield "TIMEOUT"
        if route.rule.body is not None:
            yield "TOO_LARGE"


def _path(dependant: Dependant) -> Iterator[str]:
    yield from (each.alias for each in dependant.path_params)
    for inner in dependant.dependencies:
        yield from _path(inner)
