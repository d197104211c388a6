"""Snapshots: a sandbox's own layer as it was at one moment, kept read-only, for any number of copies.

    SKERRY_HOME/snapshots/ID.json    what is known of it
    SKERRY_HOME/pool/snapshots/ID    its tree

A record is written before its tree and removed with it, under the lock of all snapshots; the long work in between is
done without that lock. So a record that is not `ready` and whose maker is dead is worthless, and so is a tree without a
record. A process that is about to use a snapshot holds a shared lock on its tree until a record names the snapshot:
nobody removes a tree that is locked or named. `sandbox/capture.py` takes snapshots.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from skerry.core import (
    SNAPSHOT,
    Conflict,
    Corrupted,
    DiskFull,
    DiskLocked,
    NewerVersion,
    SnapshotNotFound,
    is_snapshot_id,
    new_snapshot_id,
)
from skerry.providers.local.home import Home
from skerry.providers.local.host import ProcessId
from skerry.providers.local.locks import FileLock
from skerry.providers.local.log import log_and_continue
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage import snapshot_record
from skerry.providers.local.storage.bases import Base
from skerry.providers.local.storage.choose import Storage
from skerry.providers.local.storage.snapshot_record import Kept

MOST_LAYERS = 16
"""Most snapshots one above the other under a sandbox: each one makes looking up a file slower."""
_LEAVING = "~"
"""The beginning of the name of a tree that nobody may use any more."""


class Snapshots:
    """The snapshots of one SKERRY_HOME."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._directory = home.store.snapshots

    def _lock(self) -> FileLock:
        """Protects the records of all snapshots, and the removal of trees."""
        return FileLock(self._directory / "lock")

    def _path(self, snapshot_id: str) -> Path:
        return self._directory / f"{snapshot_id}.json"

    def _storage(self, snapshot_id: str) -> Storage:
        """Where a snapshot is; of one without a record, where its tree is."""
        record = self.recorded(snapshot_id)
        if record is not None:
            return self._home.storage_of(encrypted=record.encrypted)
        found = (each for each in self._home.open_storages() if (each.kept / snapshot_id).exists())
        return next(found, self._home.storage)

    def tree(self, snapshot_id: str) -> Path:
        """Raises DiskLocked, ProviderUnavailable, Corrupted."""
        return self._storage(snapshot_id).kept / snapshot_id

    def directory(self, record: Kept) -> str:
        """Its tree, relative to SKERRY_HOME."""
        return f"{'encrypted' if record.encrypted else 'pool'}/snapshots/{record.id}"

    def layer(self, record: Kept) -> str:
        """Its files as a layer, relative to SKERRY_HOME."""
        return f"{self.directory(record)}/u"

    # -- make

    def announce(self, record: Record, env: dict[str, str], name: str | None, description: str, hidden: bool) -> Kept:
        """Write the record of a snapshot that is about to be made, which takes the name. Raises Conflict, DiskFull."""
        with self._lock():
            if name is not None and any(other.name == name for other in self._all()):
                raise Conflict(f"the name {name!r} is taken by another snapshot", hint="choose another, or delete it")
            announced = Kept(
                id=new_snapshot_id(),
                name=name,
                description=description,
                sandbox_id=record.id,
                parent=self._visible(record.snapshot),
                created_at=time.time(),
                kind=self._home.storage_of(encrypted=record.encrypted).snapshots,
                encrypted=record.encrypted,
                size=None,
                template=record.spec.template,
                user=record.user,
                workdir=record.workdir,
                ports=record.ports,
                env=env,
                lowers=record.lowers,
                host=record.host,
                inherited=record.inherited,
                seed=None if hidden else record.seed,  # no sandbox is restored to a hidden one
                hidden=hidden,
                lease=ProcessId.mine(),
            )
            self._write(announced)
        return announced

    def complete(self, made: Kept) -> Kept:
        """Note that the tree of an announced snapshot is complete."""
        size = self._storage(made.id).used(self.tree(made.id))
        with self._lock():
            # Read again: its parent may have been deleted since.
            now = snapshot_record.read(self._path(made.id))
            made = dataclasses.replace(now, size=size, ready=True, lease=now.lease if now.hidden else None)
            self._write(made)
        return made

    def _write(self, record: Kept) -> None:
        try:
            snapshot_record.write(self._path(record.id), record)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room for the record of snapshot {record.id}", errno=error.errno) from error
            raise

    def discard(self, snapshot_id: str) -> None:
        """Remove a snapshot that was never complete."""
        self._remove_tree(self.tree(snapshot_id))
        with self._lock():
            self._path(snapshot_id).unlink(missing_ok=True)

    def recorded(self, snapshot_id: str) -> Kept | None:
        """The record of a snapshot, complete or not; None if there is no readable one."""
        try:
            return snapshot_record.read(self._path(snapshot_id))
        except (FileNotFoundError, Corrupted, NewerVersion):
            return None

    def add(self, made: Kept) -> None:
        """Write the record of a hidden snapshot whose tree the caller fills, or has filled. Raises DiskFull."""
        with self._lock():
            self._write(made)

    def release(self, snapshot_ids: Sequence[str]) -> None:
        """End this process's use of these hidden snapshots: removes those that are incomplete or that nothing needs."""
        for snapshot_id in snapshot_ids:
            with self._lock():
                record = self.recorded(snapshot_id)
                if record is None:
                    continue
                if record.ready:
                    self._write(dataclasses.replace(record, lease=None))
            if not record.ready:
                self.discard(snapshot_id)
        self.let_go(snapshot_ids)

    # -- look

    def _all(self) -> Iterator[Kept]:
        """Every readable record."""
        for path in self._directory.glob(f"{SNAPSHOT}*.json"):
            try:
                yield snapshot_record.read(path)
            except (FileNotFoundError, Corrupted, NewerVersion):
                continue

    def list(self, sandbox_id: str | None = None) -> Sequence[Kept]:
        """Newest first."""
        self._home.prepare()
        found = [
            record
            for record in self._all()
            if record.ready and not record.hidden and sandbox_id in (None, record.sandbox_id)
        ]
        return sorted(found, key=lambda record: (record.created_at, record.id), reverse=True)

    def find(self, id_or_name: str) -> Kept:
        """Raises SnapshotNotFound, Corrupted."""
        self._home.prepare()
        if not is_snapshot_id(id_or_name):
            for record in self._all():
                if record.name == id_or_name and record.ready and not record.hidden:
                    return record
            raise _not_found(id_or_name)
        record = self._read(id_or_name)
        if record.hidden and not record.leased:
            raise _not_found(id_or_name)
        return record

    def _read(self, snapshot_id: str) -> Kept:
        """Raises SnapshotNotFound, also for one that is not complete; Corrupted."""
        if not is_snapshot_id(snapshot_id):
            raise _not_found(snapshot_id)
        try:
            record = snapshot_record.read(self._path(snapshot_id))
        except FileNotFoundError:
            raise _not_found(snapshot_id) from None
        if not record.ready:
            raise _not_found(snapshot_id)
        return record

    def _visible(self, snapshot_id: str | None) -> str | None:
        """The snapshot, or its nearest ancestor that is not deleted."""
        while snapshot_id is not None:
            record = self.recorded(snapshot_id)
            if record is None:
                return None
            if not record.hidden:
                return snapshot_id
            snapshot_id = record.parent
        return None

    # -- use

    @contextmanager
    def held(self, snapshot_id: str, *, deleted: bool = False) -> Iterator[Kept]:
        """A snapshot that nobody removes within the block; with `deleted` also a hidden one.

        Raises SnapshotNotFound, Corrupted.
        """
        look = self._read if deleted else self.find
        look(snapshot_id)
        try:
            fd = os.open(self.tree(snapshot_id), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            look(snapshot_id)  # raises if it has just been removed
            raise Corrupted(
                f"the files of snapshot {snapshot_id} are missing",
                hint=f"`skerry snapshot rm {snapshot_id}` removes what is left of it",
            ) from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _not_found(snapshot_id) from None  # another process is removing it
            yield self._read(snapshot_id)  # it is still there after we locked it
        finally:
            os.close(fd)

    def base(self, record: Kept) -> Base:
        """What a sandbox made from this snapshot begins with."""
        deep = len(snapshots_in(record.lowers)) >= MOST_LAYERS
        return Base(
            template=record.template,
            layers=record.lowers if deep else (self.layer(record), *record.lowers),
            host=record.host,
            user=record.user,
            workdir=record.workdir,
            env=record.env,
            ports=record.ports,
            inherited=record.inherited if deep else record.total,
            seed=self.directory(record) if deep else None,
            snapshot=record.parent if record.hidden else record.id,
            holds=record.total,
        )

    # -- remove

    def delete(self, snapshot_id: str) -> None:
        """Its children get its parent; a snapshot that others were made from stays, hidden, until they are gone.

        Raises SnapshotNotFound.
        """
        self._home.prepare()
        if not is_snapshot_id(snapshot_id):
            raise _not_found(snapshot_id)
        with self._lock():
            try:
                record = self._read(snapshot_id)
            except Corrupted:
                self._path(snapshot_id).unlink(missing_ok=True)  # the sweep removes its tree
            else:
                if record.hidden and record.lease is None:
                    raise _not_found(snapshot_id)
                try:
                    self._hide(record)
                except DiskFull:  # without room for the note, remove what nothing needs at once
                    gone = self._take_away(snapshot_id, None)
                    if gone is None:
                        raise
                    self._remove_tree(gone)
        self.let_go([snapshot_id])

    def _hide(self, record: Kept) -> None:
        for child in list(self._all()):
            if child.parent == record.id:
                self._write(dataclasses.replace(child, parent=record.parent))
        self._write(dataclasses.replace(record, hidden=True, name=None, seed=None, lease=None))

    def let_go(self, snapshot_ids: Iterable[str]) -> None:
        """Remove those of these snapshots that are hidden and that nothing needs."""
        waiting, leaving = list(snapshot_ids), []
        with self._lock():
            while waiting:
                snapshot_id = waiting.pop(0)
                try:
                    record: Kept | None = snapshot_record.read(self._path(snapshot_id))
                except FileNotFoundError:
                    record = None
                except (Corrupted, NewerVersion):
                    continue
                if record is not None and (record.leased or not record.hidden):
                    continue
                try:
                    tree = self._take_away(snapshot_id, record)
                except DiskLocked:
                    continue  # a sweep removes it once it is unlocked
                if tree is not None:
                    leaving.append(tree)
                    waiting += snapshots_in(record.lowers) if record else ()
        for tree in leaving:
            with log_and_continue(f"the files of snapshot {tree.name.lstrip(_LEAVING)}"):
                self._remove_tree(tree)

    def _take_away(self, snapshot_id: str, record: Kept | None) -> Path | None:
        """Make a tree that nothing needs unusable; returns what to remove. The record goes once no sandbox names it."""
        tree = self.tree(snapshot_id)
        needed, named = self._mentions(snapshot_id)
        if needed:
            return None
        gone: Path | None = None
        try:
            fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = -1
        try:
            if fd >= 0:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None  # another process is about to use it
                gone = tree.with_name(f"{_LEAVING}{snapshot_id}")
                try:
                    tree.rename(gone)
                except OSError:  # a full disk has no room for a name
                    self._remove_tree(tree)
            if record is not None and named:
                self._write(dataclasses.replace(record, lowers=()))  # only its place among parents is left
            else:
                self._path(snapshot_id).unlink(missing_ok=True)
        finally:
            if fd >= 0:
                os.close(fd)
        return gone

    def _mentions(self, snapshot_id: str) -> tuple[bool, bool]:
        """Whether a sandbox or a snapshot needs its tree, and whether one names it, damaged records included."""
        layer, target, name = f"/{snapshot_id}".encode(), f'"target": "{snapshot_id}"'.encode(), snapshot_id.encode()
        named = False
        paths = [self._home.store.directory(sandbox_id) / "record.json" for sandbox_id in self._home.store.ids()]
        for path in (*paths, *self._directory.glob(f"{SNAPSHOT}*.json")):
            try:
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if layer in data or target in data:
                return True, True
            named = named or (name in data and path.parent != self._directory)
        return False, named

    def _remove_tree(self, tree: Path) -> None:
        try:
            for storage in self._home.open_storages():
                if tree.parent == storage.kept:
                    storage.remove(tree)
        except FileNotFoundError:
            pass  # another process removed it at the same time

    def sweep(self) -> None:
        """Remove what dead processes were making, hidden snapshots that nothing needs, and trees without a record."""
        lock = self._lock()
        try:
            if not lock.try_acquire():
                return  # another process is at work; the next sweep does this
            for path in self._directory.glob(f"{SNAPSHOT}*.new"):
                path.unlink(missing_ok=True)  # only a holder of the lock writes it
            unfinished = [record.id for record in self._all() if not record.ready and not record.leased]
            for snapshot_id in unfinished:
                with log_and_continue(f"what was made of snapshot {snapshot_id}"):
                    self._remove_tree(self.tree(snapshot_id))
                    self._path(snapshot_id).unlink(missing_ok=True)
        finally:
            lock.release()
        trees = [tree for storage in self._home.open_storages() for tree in storage.kept.iterdir()]
        for tree in trees:
            if tree.name.startswith(_LEAVING):
                with log_and_continue(f"the files of snapshot {tree.name.lstrip(_LEAVING)}"):
                    self._remove_tree(tree)
        known = {path.stem for path in self._directory.glob(f"{SNAPSHOT}*.json")}
        stray = [tree.name for tree in trees if tree.name.startswith(SNAPSHOT) and tree.name not in known]
        hidden = [record.id for record in self._all() if record.hidden and not record.leased]
        if stray or hidden:
            self.let_go([*stray, *hidden])


def snapshots_in(layers: Iterable[str]) -> list[str]:
    """The ids of the snapshots among these layers."""
    return [layer.split("/")[2] for layer in layers if layer.split("/")[1:2] == ["snapshots"]]


def _not_found(which: str) -> SnapshotNotFound:
    return SnapshotNotFound(f"there is no snapshot {which!r}")
