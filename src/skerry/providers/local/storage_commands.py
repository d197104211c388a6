"""The functions behind `skerry storage`."""

from __future__ import annotations

import os
import shutil
from typing import Literal

from skerry._model import Model
from skerry.archive import Key
from skerry.core import Conflict, Corrupted, NewerVersion, SandboxNotFound, Unsupported
from skerry.providers.local.engine import Engine
from skerry.providers.local.storage.choose import find_storage
from skerry.providers.local.storage.encrypted import EncryptedPool
from skerry.providers.local.storage.pool import PoolStorage


class StorageReport(Model):
    """Where the files of sandboxes, snapshots and volumes are, and how much room there is."""

    kind: str
    home: str
    image: str | None
    """The file that holds the pool."""
    allocated: int | None
    """Bytes that the file takes on its disk."""
    size: int
    used: int
    free: int
    """Bytes that can still be written: the pool's file grows, so never more than is free on its disk."""
    limits: bool
    """Whether disk limits are enforced."""
    sandboxes: int
    snapshots: int
    volumes: int
    encrypted: Literal["none", "locked", "unlocked"]
    """Whether there is an encrypted pool; what is in it does not count above."""
    key_file: str | None
    """Where Skerry keeps the key that it made for the encrypted pool, while that is unlocked."""


def report() -> StorageReport:
    """Raises ProviderUnavailable, Corrupted."""
    engine = Engine()
    engine.prepare()
    storage = engine.storage
    room, outside = shutil.disk_usage(storage.root), shutil.disk_usage(storage.home)
    image = storage.image if isinstance(storage, PoolStorage) else None
    encrypted = EncryptedPool(storage.home)
    key_file = encrypted.key_file()
    return StorageReport(
        kind=storage.kind,
        home=str(storage.home),
        image=None if image is None else str(image),
        allocated=None if image is None else image.stat().st_blocks * 512,
        size=room.total,
        used=room.used,
        free=min(room.free, outside.free),
        limits=storage.default_limit() is not None,
        sandboxes=len(os.listdir(storage.uppers)),
        snapshots=len(os.listdir(storage.kept)),
        volumes=len(os.listdir(storage.volumes)),
        encrypted="none" if not encrypted.container.exists() else "unlocked" if encrypted.ready() else "locked",
        key_file=None if key_file is None else str(key_file),
    )


def unmount() -> bool:
    """Unmount the pools until their next use; returns whether one was mounted.

    Raises Conflict while a sandbox runs, Unsupported where there is no pool, ProviderUnavailable.
    """
    engine = Engine()
    engine.store.prepare()
    storage = find_storage(engine.store.home)
    encrypted = EncryptedPool(engine.store.home)
    if not isinstance(storage, PoolStorage) and not encrypted.container.exists():
        raise Unsupported(f"{engine.store.home} has no storage pool to unmount", option="storage")
    # The kernel would only detach the directory: the file system stays in use as long as a sandbox uses it.
    running = [sandbox_id for sandbox_id in sorted(engine.store.ids()) if _runs(engine, sandbox_id)]
    if running:
        raise Conflict(f"the storage pool is in use by {', '.join(running)}", hint="destroy or stop these sandboxes")
    locked = encrypted.unmount()
    return (isinstance(storage, PoolStorage) and storage.unmount()) or locked


def unlock(key: str | None) -> bool:
    """Mount the encrypted pool until it is unmounted; returns whether it was locked.

    Without `key` with that of SKERRY_DISK_KEY, or with one that Skerry has made. The pool is not made.

    Raises DiskLocked for a wrong or missing key, Corrupted where there is no encrypted pool, InvalidArgument.
    """
    engine = Engine()
    engine.prepare()
    return EncryptedPool(engine.storage.home).unlock(None if key is None else Key.of(key))


def _runs(engine: Engine, sandbox_id: str) -> bool:
    try:
        return engine.store.read(sandbox_id).alive
    except SandboxNotFound:
        return engine.store.directory(sandbox_id).exists()  # it is being made
    except (Corrupted, NewerVersion):
        return False
