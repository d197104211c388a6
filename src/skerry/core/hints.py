"""The next step that an error's hint names, in the words of its reader: Python, the command line, or HTTP."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

Reader = Literal["python", "cli", "http"]

_PHRASES: tuple[tuple[str, str, str], ...] = (
    (
        "resources=Resources(memory=…) or set_limits(memory=…)",
        "--memory SIZE, also with `skerry restart`",
        '"resources": {"memory": "4GB"}, or PATCH /v1/sandboxes/{id}/limits with {"memory": "4GB"}',
    ),
    (
        "give api_key=, or set SKERRY_API_KEY",
        "run `skerry login`, or set SKERRY_API_KEY",
        "send `Authorization: Bearer <key>`, or sign in",
    ),
    ("Sandbox.list() has", "`skerry ps` lists", "GET /v1/sandboxes lists"),
    (
        "get() takes an id; find() and connect() take a name too",
        "give its id",
        "a path takes an id or a name",
    ),
    ("snapshots.list() shows", "`skerry snapshot ls` shows", "GET /v1/snapshots shows"),
    ("`skerry template ls` shows", "`skerry template ls` shows", "GET /v1/templates shows"),
    ("processes.list() shows", "`skerry logs --list SANDBOX` shows", "GET …/{id}/processes shows"),
    ("terminals.list() shows", "`skerry attach SANDBOX` shows", "GET …/{id}/terminals shows"),
    ("create it, or get it with create=True", "make it with `skerry volume create`", "make it with POST /v1/volumes"),
    (
        "call reconnect(), or connect to the sandbox again",
        "run the command again",
        "send the request again",
    ),
    ('pass user="root"', "add `--user root`", 'send "user": "root"'),
    ("pass recursive=True", "name the files in it", 'send "recursive": true'),
    ("wait for it with ports.wait", "wait for it with `skerry port --wait S`", "wait until GET …/ports lists it"),
    ("set_limits(disk=…)", "`skerry restart --disk SIZE`", 'PATCH /v1/sandboxes/{id}/limits with {"disk": "20GB"}'),
    ("start(key=…)", "`skerry start --key WHERE`", 'POST /v1/sandboxes/{id}/start with "key"'),
    (
        "reset(hard=True) or restart(template=…)",
        "`skerry reset --hard` or `skerry restart --template NAME`",
        "POST /v1/sandboxes/{id}/reset or /restart",
    ),
    ("on_timeout='stop'", "--on-timeout stop", '"on_timeout": "stop"'),
    ("network='open'", "--network open", '"network": "open"'),
    ("network='none'", "--network none", '"network": "none"'),
    ("; or create without build=False", "", '; or leave out "build": false'),
    ("without view=True", "without --view", "to control it"),
    ("name that one with user=", "name that one with --user", 'name that one as "user"'),
    ("pass regex=False to look", "write it so that it is one, or look", 'send "regex": false to look'),
    ("choose another workdir=", "choose another --workdir", 'choose another "workdir"'),
)
"""What a hint says in Python, and what it says instead to the two other readers. Each text is unlike all others."""
_READERS: tuple[Reader, ...] = ("python", "cli", "http")


def hint_for(reader: Reader, hint: str, *, written_for: Reader = "python") -> str:
    """The hint with the calls, options and requests that its reader has."""
    source, target = _READERS.index(written_for), _READERS.index(reader)
    for phrase in _PHRASES:
        hint = hint.replace(phrase[source], phrase[target])
    return hint


def did_you_mean(asked: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a name that does not exist: the closest of those that do; `otherwise` if none is close."""
    near = difflib.get_close_matches(asked, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
