"""When work was last done in a running sandbox, as its agent notes it in the file of its last words."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from skerry.core import State
from skerry.providers.local.sandbox.record import Record
from skerry.wire import FieldError, FrameError, parse_note

NOTE_LIMIT = 4096
"""How much of the file to read at most, in bytes."""


def with_activity(record: Record, words: Path) -> Record:
    """The record of a running sandbox, with when it was last active: to within 5 seconds, and never before its start.

    The sandbox writes the file, so one that makes no sense is ignored.
    """
    if record.state is not State.RUNNING or record.started_at is None:
        return record
    now, active = time.time(), max(record.started_at, record.last_active_at or 0.0)
    try:
        fd = os.open(words, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            note = parse_note(file.read(NOTE_LIMIT))
    except (OSError, FrameError, FieldError):  # also when the storage is missing or damaged
        note = None
    if note is not None:
        active = max(active, now if note.reason == "at_work" else min(now, note.at_ms / 1000))
    return dataclasses.replace(record, last_active_at=active)
