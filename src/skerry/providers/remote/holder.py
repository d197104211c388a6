"""Renews the leases of this process at the server, so that what it holds ends with the process."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from functools import partial

from skerry.core import SkerryError
from skerry.http import Client, Request

RENEW_EVERY = 5.0
"""Seconds between two renewals; the server waits for several of them."""


class Holder:
    """A name for this process at the server, renewed by a thread while it holds anything."""

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client
        self._held: set[str] = set()
        # Protects what is held and the thread that renews it.
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.name = f"{os.getpid()}-{secrets.token_hex(12)}"

    def hold(self, what: str) -> None:
        """Hold `what`, an id that the server knows as held by this process."""
        with self._lock:
            self._held.add(what)
            if self._thread is None:
                self._wake = threading.Event()
                renew = partial(self._renew, self._wake)
                self._thread = threading.Thread(target=renew, name="skerry-leases", daemon=True)
                self._thread.start()

    def drop(self, what: str) -> None:
        with self._lock:
            self._held.discard(what)
            if not self._held and self._thread is not None:
                self._thread = None
                self._wake.set()

    def close(self) -> None:
        """Stop renewing: what is still held ends."""
        with self._lock:
            self._held.clear()
            if self._thread is not None:
                self._thread = None
                self._wake.set()

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(RENEW_EVERY):
            try:
                self._client().send(Request(method="PUT", path=f"/v1/provider/holders/{self.name}", timeout=10.0))
            except SkerryError:
                continue  # the server may be restarting; it waits for us as we wait for it
            except RuntimeError:  # the client was closed
                if not ended.is_set():
                    raise
