"""The log of the local provider, and a block that logs a failure and continues."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from skerry.core import SkerryError

log = logging.getLogger("skerry.local")


@contextmanager
def log_and_continue(what: str) -> Iterator[None]:
    """Log that `what` could not be removed, and continue after the block."""
    try:
        yield
    except (SkerryError, OSError) as error:
        log.warning("%s could not be removed, the next sweep tries again: %s", what, error)
