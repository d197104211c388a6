"""When work was last done in a sandbox that runs: what its agent notes in the file of its last words."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from skerry.core import State
from skerry.providers.local.sandbox.record import Record
from skerry.wire import FieldError, FrameError, parse_note

NOTE_LIMIT = 4096
"""The most of the file that is worth reading."""


def with_activity(record: Record, words: Path) -> Record:
    """The record of a sandbox that runs, with when it was last active: to within 5 seconds, and never before its start.

    The file is the sandbox's word: one that makes no sense is passed over.
    """
    if record.state is not State.RUNNING or record.started_at is None:
        return record
    now, active = time.time(), max(record.started_at, record.last_active_at or 0.0)
    try:
        fd = os.open(words, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            note = parse_note(file.read(NOTE_LIMIT))
    except (OSError, FrameError, FieldError):  # also where the storage is not there, or damaged
        note = None
    if note is not None:
        active = max(active, now if note.reason == "at_work" else min(now, note.at_ms / 1000))
    return dataclasses.replace(record, last_active_at=active)
