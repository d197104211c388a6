"""One SKERRY_HOME as this process uses it: its folders, its storage, and the sweep before the first use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from skerry.core import SkerryError
from skerry.providers.local.sandbox.folders import Store
from skerry.providers.local.storage.choose import Storage, open_storage


class Home:
    """Safe from any number of threads."""

    def __init__(self, directory: Path, *, first_sweep: Callable[[], object]) -> None:
        self.store = Store(directory)
        self._storage: Storage | None = None
        self._first_sweep = first_sweep
        self._ready = threading.Lock()  # protects the one-time preparation
        self._prepared = False

    @property
    def storage(self) -> Storage:
        """Where the files of the sandboxes are. Raises ProviderUnavailable, Corrupted."""
        if self._storage is None:
            self._storage = open_storage(self.store.home)
        else:
            self._storage.prepare()  # somebody may have unmounted it since
        return self._storage

    def upper(self, sandbox_id: str) -> Path:
        """The tree with what a sandbox wrote. Raises as `storage` does."""
        return self.storage.uppers / sandbox_id

    def prepare(self) -> None:
        """Make the directories, and sweep what dead processes left; does so once in each process."""
        with self._ready:
            if not self._prepared:
                self.store.prepare()
                self._prepared = True
                # A call that needs the storage says what is wrong with it: a broken pool must not keep anybody from
                # looking at sandboxes and ending them.
                with contextlib.suppress(SkerryError, OSError):
                    self._first_sweep()
