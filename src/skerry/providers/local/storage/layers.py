"""The templates of one SKERRY_HOME: layers in the pool, and a small file for each template that names its layers.

    SKERRY_HOME/templates/ID.json      a template: its layers, variables, scripts
    SKERRY_HOME/templates/DIGEST.lock  held by the process that builds that layer
    SKERRY_HOME/templates/lock         shared to refer to a template, exclusive to remove one
    SKERRY_HOME/pool/layers/DIGEST     a layer: the writable tree of the sandbox that built it, moved by one rename

The next sweep removes a layer that no template names, so a build that died leaves nothing.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from skerry.core import (
    SANDBOX,
    BuiltTemplate,
    Conflict,
    DiskFull,
    InvalidArgument,
    State,
    TemplateNotFound,
    Unsupported,
    plain,
)
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.changes import Changes
from skerry.providers.local.storage import bases
from skerry.providers.local.storage.choose import remove_tree, typed_errors

_GONE = ".gone-"
"""Before the name of a layer that is being removed."""


class Templates:
    """Blocking; safe from any number of threads and processes."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._store = changes.store

    # -- look

    def find(self, which: str) -> BuiltTemplate:
        self._changes.home.prepare()
        return bases.find_template(self._store, which)

    def list(self) -> Sequence[BuiltTemplate]:
        self._changes.home.prepare()
        shown = (info for info in bases.templates(self._store) if not info.superseded)
        return sorted(shown, key=lambda info: (info.name, -info.created_at))

    def has_layer(self, digest: str) -> bool:
        self._changes.home.prepare()
        return (self._changes.storage.layers / _checked(digest) / "u").is_dir()

    # -- locks

    @contextmanager
    def using(self) -> Iterator[None]:
        """Nobody removes a template while this is held: for a caller that is about to record that it needs one."""
        lock = FileLock(self._store.templates / "lock", shared=True)
        with lock:
            yield

    def try_build(self, digest: str) -> FileLock | None:
        """The right to build a layer, which `end_build` returns; None while another process has it."""
        self._changes.home.prepare()
        return self._try_lock(_checked(digest))

    def _try_lock(self, digest: str) -> FileLock | None:
        path = self._store.templates / f"{digest}.lock"
        while True:
            lock = FileLock(path)
            if not lock.try_acquire():
                lock.release()
                return None
            if _is_at(lock, path):
                return lock
            lock.release()  # the last holder removed the file after we opened it and before we locked it

    def end_build(self, digest: str, lock: FileLock) -> None:
        (self._store.templates / f"{digest}.lock").unlink(missing_ok=True)
        lock.release()

    # -- change

    def commit(self, sandbox_id: str, digest: str, directory: str | None) -> None:
        """End a sandbox and make its writable tree the layer `digest`. Raises SandboxNotFound, Conflict, DiskFull."""
        changes = self._changes
        target = changes.storage.layers / _checked(digest)
        with changes.lock(sandbox_id, "make a layer of", State.RUNNING) as (record, _):
            if record.encrypted:
                raise Unsupported(
                    "templates are not encrypted, so no encrypted sandbox can become one", option="encrypted"
                )
            record = changes.halt(record)
            upper = changes.upper(record)
            try:
                with typed_errors(changes.store.home):
                    if directory is not None:
                        _keep_only(upper, directory)
                    _flush(upper)
                    try:
                        upper.rename(target)
                    except OSError as error:
                        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                            raise
                        # Another process built the same layer, which is as good.
            finally:
                changes.tear_down(record)

    def add(self, info: BuiltTemplate) -> BuiltTemplate:
        """Raises Conflict, DiskFull."""
        self._changes.home.prepare()
        with self.using():
            try:
                known = bases.read_template(self._store, info.id)
                if not known.superseded:
                    return known
            except TemplateNotFound:
                pass
            for digest in info.layers:
                if not self.has_layer(digest):
                    raise Conflict(f"a layer of {info.name!r} has just been removed", retryable=True)
            size = self._changes.storage.used(self._changes.storage.layers / info.layers[0]) if info.layers else 0
            info = dataclasses.replace(info, created_at=time.time(), size=size, superseded=False)
            self._write(info)
        return info

    def _write(self, info: BuiltTemplate) -> None:
        _replace(self._store.templates / f"{info.id}.json", json.dumps(info, default=plain).encode())

    def remove(self, template_id: str, *, later: bool = False) -> None:
        """Remove a template, `later` once nothing needs it. Raises TemplateNotFound, Conflict while something does."""
        self._changes.home.prepare()
        with FileLock(self._store.templates / "lock"):
            info = bases.read_template(self._store, template_id)
            needed = self._needed(info)
            if needed is None:
                (self._store.templates / f"{info.id}.json").unlink()
            elif later:
                self._write(dataclasses.replace(info, superseded=True))
            else:
                raise needed
        self.sweep()

    def _needed(self, info: BuiltTemplate) -> Conflict | None:
        """Why a template cannot be removed: names what needs it."""
        for other in bases.templates(self._store):
            if other.base == info.id:
                said = f"the template {info.name!r} is the base of {other.name!r}"
                return Conflict(said, hint="remove that first")
        if user := self._user(info.id):
            return Conflict(f"the template {info.name!r} is in use by {user}", hint="destroy it first")
        return None

    def sweep(self) -> None:
        """Remove superseded templates and layers that nothing needs, and the locks of builders that are dead."""
        for path in self._store.templates.glob("*.lock"):
            lock = FileLock(path)
            if lock.try_acquire() and _is_at(lock, path):
                path.unlink(missing_ok=True)
            lock.release()
        superseded = any(info.superseded for info in bases.templates(self._store))
        if not superseded and not self._unnamed() and not any(self._store.templates.glob("*.new-*")):
            return
        lock = FileLock(self._store.templates / "lock")
        try:
            if not lock.try_acquire():
                return  # the next sweep does this
            for path in self._store.templates.glob("*.new-*"):
                path.unlink()  # a live writer would hold this lock, so it is dead
            for info in sorted(bases.templates(self._store), key=lambda info: -info.created_at):  # bases last
                if info.superseded and self._needed(info) is None:
                    (self._store.templates / f"{info.id}.json").unlink()
            for digest in self._unnamed():
                self._remove_layer(digest)
        finally:
            lock.release()

    def _remove_layer(self, digest: str) -> None:
        """Remove a layer that no template names, unless a process builds it or a sandbox or a snapshot needs it."""
        layers = self._changes.storage.layers
        if not digest.startswith(_GONE):
            lock = self._try_lock(digest)  # its builder holds it until the template that names the layer is written
            if lock is None:
                return
            try:
                if self._user(bases.layer_path(digest)) is not None:
                    return
                # First move it away as a whole: if the process dies in the middle, no builder finds half of a layer.
                gone = f"{_GONE}{digest}-{secrets.token_hex(4)}"
                (layers / digest).rename(layers / gone)
            finally:
                self.end_build(digest, lock)
            digest = gone
        self._changes.storage.remove(layers / digest)

    def _unnamed(self) -> set[str]:
        """The layers that no template names."""
        # Look at the layers before the names: a template is written after its layers.
        there = set(os.listdir(self._changes.storage.layers))
        return there - {digest for info in bases.templates(self._store) for digest in info.layers}

    def _user(self, text: str) -> str | None:
        """The sandbox or snapshot whose record mentions `text`, an id or a path that nothing else contains."""
        for path in self._store.sandboxes.glob(f"{SANDBOX}*/record.json"):
            if text in _read(path):
                return f"sandbox {path.parent.name}"
        for path in self._store.snapshots.glob("*.json"):
            if text in (found := _read(path)) and _has_files(found):
                return f"snapshot {path.stem}"
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""  # it has just been removed


def _has_files(snapshot: str) -> bool:
    """Whether a snapshot's record is more than a reminder of a deleted one."""
    try:
        data = json.loads(snapshot)
    except ValueError:
        return True
    return not isinstance(data, dict) or bool(data.get("lowers")) or not data.get("hidden")


def _checked(digest: str) -> str:
    if not digest.isalnum() or not 16 <= len(digest) <= 128:
        raise InvalidArgument(f"{digest!r} is not the digest of a layer")
    return digest


def _is_at(lock: FileLock, path: Path) -> bool:
    """Whether `path` is still the file that is locked."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _keep_only(upper: Path, directory: str) -> None:
    """Make one directory of the tree's root the whole tree. No process runs there now. Raises Conflict, OSError."""
    source = upper / "u"
    for name in directory.strip("/").split("/"):
        source /= name
        # The sandbox may have written a link to anywhere.
        if name in ("", ".", "..") or not source.exists() or not stat.S_ISDIR(source.lstat().st_mode):
            raise Conflict(f"{directory} is not a directory that the sandbox has written")
    source.rename(upper / "new")
    remove_tree(upper / "u")
    (upper / "new").rename(upper / "u")


def _flush(path: Path) -> None:
    """Write the tree to disk: the rename that follows must not reach the disk before it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(path))
    finally:
        os.close(fd)


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(f".new-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room for {path}", errno=error.errno) from error
        raise
