"""Why a sandbox has ended and what its variables were: the last words of its agent, and what is due after them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.core import SandboxFailed, SandboxSpec, State
from skerry.providers.local.log import log
from skerry.providers.local.sandbox.folders import Store
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage import host_layer
from skerry.wire import LAST_WORDS_LIMIT, FieldError, FrameError, LastWords, parse_last_words

ARCHIVE_RETRY = 3600.0
"""How long sweeps leave one alone that could not be archived: each attempt may read all its files."""
AGENTS_OWN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""What an agent sets where BOOT does not."""


@contextmanager
def ended_is_failure(sandbox_id: str) -> Iterator[None]:
    """For a caller that uses its cgroups: if they are gone, the sandbox has ended. Raises SandboxFailed."""
    try:
        yield
    except FileNotFoundError as error:
        raise SandboxFailed(f"sandbox {sandbox_id} has just ended") from error


def old_words_file(store: Store, sandbox_id: str) -> Path:
    """The same, of an agent that an earlier Skerry started."""
    return store.directory(sandbox_id) / "words"


def read_words(store: Store, sandbox_id: str) -> LastWords | None:
    """What the agent has left; None where it left nothing that makes sense: it is the sandbox's word."""
    for path in (old_words_file(store, sandbox_id), store.words(sandbox_id)):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(fd, "rb") as file:
                return parse_last_words(file.read(LAST_WORDS_LIMIT + 1))
        except FileNotFoundError:
            continue
        except (FrameError, FieldError):
            return None
        except OSError as error:  # a damaged disk: nothing is known of the end then, which is a failure
            log.warning("the last words of sandbox %s cannot be read: %s", sandbox_id, error)
            return None
    return None


def with_variables(record: Record, words: LastWords | None) -> Record:
    """The record with the variables of the end, where they are known, but secrets and what every start adds."""
    if words is None or words.env_count is None:
        return record
    pairs = (pair.decode("utf-8", "surrogateescape").partition("=") for pair in words.env)
    ours = {**AGENTS_OWN, **host_layer.environment()}
    kept = {name: value for name, _, value in pairs if name not in record.spec.secrets and ours.get(name) != value}
    return dataclasses.replace(record, env=kept)


def idle_limit(spec: SandboxSpec) -> float | None:
    """After so many seconds without work the agent ends it; what follows is for the sweep."""
    return min((limit for limit in (spec.auto_stop, spec.auto_archive, spec.auto_delete) if limit), default=None)


def inactive(record: Record, words: LastWords | None) -> bool:
    """Whether it ended because nothing was done in it."""
    return words is not None and words.reason == "idle" and idle_limit(record.spec) is not None


def terminated(words: LastWords | None) -> bool:
    """Whether somebody on this machine sent SIGTERM to its first process, as a machine that shuts down does."""
    return words is not None and words.reason == "terminated"


def timed_out(record: Record, words: LastWords | None) -> bool:
    """Whether it ended at its timeout, which keeps its files: by the record, or by the agent, which has its own clock.

    An agent that says so too early ends nothing but its own processes.
    """
    if record.pending_data.get("why") == "timeout":
        return True
    return words is not None and words.reason == "deadline" and not record.ends_for_good


def stopped(record: Record, words: LastWords | None) -> Record:
    """The record of a sandbox of which nothing runs any more, with when and why: `why` of what is pending."""
    now = time.time()
    limit = idle_limit(record.spec)
    at, active, reason, why = now, now, None, dict[str, str]()
    if words is not None and (timed_out(record, words) or inactive(record, words) or terminated(words)):
        at = active = min(now, max(words.at_ms / 1000, record.started_at or 0.0))
    if timed_out(record, words):
        reason, why = "its timeout was reached", {"why": "timeout"}
    elif limit is not None and inactive(record, words):
        active, reason, why = at - limit, f"nothing was done in it for {limit:g} s", {"why": "idle"}
    elif terminated(words):
        reason = "its first process got SIGTERM, as when the machine shuts down"
        why = {"why": "terminated"}
    return dataclasses.replace(
        record,
        stopped_at=at,
        last_active_at=active,
        reason=reason,
        expires_at=None,
        deadline=None,
        pending_data={**record.pending_data, **why},
    )


def settled(record: Record) -> bool:
    """Whether it is what its record says, and its end is not due."""
    if record.pending is not None or record.expired() or record.abandoned() or delete_due(record):
        return False
    return record.alive or record.state not in (State.RUNNING, State.PAUSED)


def delete_due(record: Record) -> bool:
    """Whether it has been inactive for as long as `auto_delete` says."""
    return _due(record, record.spec.auto_delete, State.STOPPED, State.ARCHIVED)


def archive_due(record: Record) -> bool:
    """Whether it has been inactive for as long as `auto_archive` says, and was not tried in vain just now."""
    failed = record.archive_failed_at
    if failed is not None and 0 <= time.time() - failed < ARCHIVE_RETRY:
        return False
    return _due(record, record.spec.auto_archive, State.STOPPED)


def _due(record: Record, limit: float | None, *states: State) -> bool:
    if limit is None or record.last_active_at is None or record.state not in states:
        return False
    return time.time() - record.last_active_at >= limit
