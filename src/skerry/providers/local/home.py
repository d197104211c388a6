"""One SKERRY_HOME as this process uses it: its folders, its storage, and the sweep before the first use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from skerry.core import SkerryError
from skerry.providers.local.sandbox.folders import Store
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage.choose import Storage, open_storage
from skerry.providers.local.storage.encrypted import EncryptedPool


class Home:
    """Safe from any number of threads."""

    def __init__(self, directory: Path, *, first_sweep: Callable[[], object]) -> None:
        self.store = Store(directory)
        self._storage: Storage | None = None
        self.encrypted = EncryptedPool(directory)
        self._first_sweep = first_sweep
        self._ready = threading.Lock()  # protects the one-time preparation
        self._prepared = False

    @property
    def storage(self) -> Storage:
        """Where the files are that nobody asked to encrypt. Raises ProviderUnavailable, Corrupted."""
        if self._storage is None:
            self._storage = open_storage(self.store.home)
        else:
            self._storage.prepare()  # somebody may have unmounted it since
        return self._storage

    def storage_of(self, *, encrypted: bool) -> Storage:
        """Where encrypted files are, or the others. Raises ProviderUnavailable, Corrupted, DiskLocked."""
        plain = self.storage  # an encrypted sandbox has its template's layers and its last words there
        if not encrypted:
            return plain
        self.encrypted.prepare()
        return self.encrypted

    def open_storages(self) -> list[Storage]:
        """All storages but a locked one. Raises ProviderUnavailable, Corrupted."""
        return [self.storage, self.encrypted] if self.encrypted.ready() else [self.storage]

    def upper(self, record: Record) -> Path:
        """The tree with what a sandbox wrote. Raises as `storage_of` does."""
        return self.storage_of(encrypted=record.encrypted).uppers / record.id

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
