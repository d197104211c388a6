"""The last words of a sandbox's agent: why it ended, what its variables were, and what is due next."""

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
"""Seconds before a sweep tries again to archive a sandbox after a failure: each attempt may read all its files."""
AGENTS_OWN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""The variables that an agent sets if BOOT does not."""


@contextmanager
def ended_is_failure(sandbox_id: str) -> Iterator[None]:
    """For a caller that uses the sandbox's cgroups: if they are gone, it has ended. Raises SandboxFailed."""
    try:
        yield
    except FileNotFoundError as error:
        raise SandboxFailed(f"sandbox {sandbox_id} has just ended") from error


def old_words_file(store: Store, sandbox_id: str) -> Path:
    """The file where an agent of an earlier version of Skerry leaves its last words."""
    return store.directory(sandbox_id) / "words"


def read_words(store: Store, sandbox_id: str) -> LastWords | None:
    """The agent's last words; None if they make no sense, since the sandbox can write anything there."""
    for path in (old_words_file(store, sandbox_id), store.words(sandbox_id)):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(fd, "rb") as file:
                return parse_last_words(file.read(LAST_WORDS_LIMIT + 1))
        except FileNotFoundError:
            continue
        except (FrameError, FieldError):
            return None
        except OSError as error:  # a damaged disk: nothing is known of the end, so the sandbox has failed
            log.warning("the last words of sandbox %s cannot be read: %s", sandbox_id, error)
            return None
    return None


def with_variables(record: Record, words: LastWords | None) -> Record:
    """The record with the variables at the end, if known, without secrets and without what every start adds."""
    if words is None or words.env_count is None:
        return record
    pairs = (pair.decode("utf-8", "surrogateescape").partition("=") for pair in words.env)
    ours = {**AGENTS_OWN, **host_layer.environment()}
    kept = {name: value for name, _, value in pairs if name not in record.spec.secrets and ours.get(name) != value}
    return dataclasses.replace(record, env=kept)


def idle_limit(spec: SandboxSpec) -> float | None:
    """Seconds without work after which the agent ends the sandbox; the sweep does what follows."""
    return min((limit for limit in (spec.auto_stop, spec.auto_archive, spec.auto_delete) if limit), default=None)


def inactive(record: Record, words: LastWords | None) -> bool:
    """Whether the sandbox ended because nothing was done in it."""
    return words is not None and words.reason == "idle" and idle_limit(record.spec) is not None


def terminated(words: LastWords | None) -> bool:
    """Whether a process of this machine sent SIGTERM to the sandbox's first process, as a shutdown does."""
    return words is not None and words.reason == "terminated"


def timed_out(record: Record, words: LastWords | None) -> bool:
    """Whether it ended at a timeout that keeps its files, by the record or by the agent, which has its own clock.

    An agent that says so too early harms only its own sandbox.
    """
    if record.pending_data.get("why") == "timeout":
        return True
    return words is not None and words.reason == "deadline" and not record.ends_for_good


def stopped(record: Record, words: LastWords | None) -> Record:
    """The record of a sandbox that has no process any more, with when and why it ended: `why` of what is pending."""
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
    """Whether the sandbox is as its record says, and its end is not due."""
    if record.pending is not None or record.expired() or record.abandoned() or delete_due(record):
        return False
    return record.alive or record.state not in (State.RUNNING, State.PAUSED)


def delete_due(record: Record) -> bool:
    """Whether the sandbox has been inactive for as long as `auto_delete` says."""
    return _due(record, record.spec.auto_delete, State.STOPPED, State.ARCHIVED)


def archive_due(record: Record) -> bool:
    """Whether the sandbox has been inactive for as long as `auto_archive` says, and no attempt has just failed."""
    failed = record.archive_failed_at
    if failed is not None and 0 <= time.time() - failed < ARCHIVE_RETRY:
        return False
    return _due(record, record.spec.auto_archive, State.STOPPED)


def _due(record: Record, limit: float | None, *states: State) -> bool:
    if limit is None or record.last_active_at is None or record.state not in states:
        return False
    return time.time() - record.last_active_at >= limit
