"""Cold archives: one compressed file in a stopped sandbox's folder holds its own layer, in place of its tree.

stopped,   pending archive      the tree is complete; `archive.new` or `archive` beside it is worthless
archived,  pending archive      `archive` is complete and verified; the tree is being removed
archived                        `archive` is all there is
restoring, pending unarchive    `archive` is complete; trees beside it are worthless
stopped,   pending unarchive    the tree is complete and on disk; `archive` is being removed

Before the next step, each of these records is flushed to disk, and so is what it says is complete: a file system may
keep a removal and lose a record that was written before it, above all where the two are on different file systems.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.core import Corrupted, SandboxInfo, SkerryError, State, Unauthenticated, flush_directory
from skerry.providers.local.limits.resources import LEAST_DISK, upper_limit
from skerry.providers.local.sandbox.changes import Changes, Recoveries, restoring_trees
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.sandbox.stop import Stop
from skerry.providers.local.steps import Steps, complete
from skerry.providers.local.storage.base import flush, typed_errors

if TYPE_CHECKING:
    from skerry.archive import Archive, Key

COLD = "cold"
"""The kind of a file with a sandbox's own layer alone."""
KEY_VARIABLE = "SKERRY_ARCHIVE_KEY"
Progress = Callable[[int], None]
GRACE = 10.0
"""How long the processes of a running sandbox may take to end, in seconds."""


class Archives:
    """Puts sandboxes into cold storage and brings them back."""

    def __init__(self, changes: Changes, stop: Stop) -> None:
        self._changes = changes
        self._stop = stop

    def recoveries(self) -> Recoveries:
        return {"archive": self._recover_archive, "unarchive": self._recover_unarchive}

    def archive(self, sandbox_id: str, key: bytes | None, on_progress: Progress | None = None) -> SandboxInfo:
        """Stop a sandbox and replace its tree by a file. If that fails, it is stopped and has its files.

        `on_progress` gets the bytes of content so far, first while they are written, then while they are read back.
        If it raises, the work ends; the same holds for `unarchive`.

        Raises SandboxNotFound, Conflict, DiskFull, Unsupported for files that no archive can hold, InvalidArgument
        for a default key that cannot be read.
        """
        return complete(self.archiving(sandbox_id, key, on_progress))

    def archiving(self, sandbox_id: str, key: bytes | None, on_progress: Progress | None = None) -> Steps[SandboxInfo]:
        """`archive`, which waits for the processes between two steps."""
        from skerry.archive import Key

        changes = self._changes
        with changes.lock(sandbox_id, "archive") as (record, _):
            if record.state is State.ARCHIVED:
                return record.info()
            secret = Key(key) if key is not None else self._default_key(record)
            record = yield from self._stop.stopping(record, GRACE)
            return self._archive(record, secret, on_progress).info()

    def unarchive(self, sandbox_id: str, key: bytes | None, on_progress: Progress | None = None) -> SandboxInfo:
        """Give an archived sandbox its files back; it is stopped then. One that is not archived is not an error.

        Raises SandboxNotFound, Unauthenticated, InvalidArgument, Corrupted, DiskFull; it then stays archived.
        """
        with self._changes.lock(sandbox_id, "unarchive", *State) as (record, _):
            if record.state is not State.ARCHIVED:
                return record.info()
            return self.bring_back(record, key, on_progress).info()

    def _file(self, record: Record) -> Path:
        return self._changes.store.directory(record.id) / "archive"

    def _default_key(self, record: Record) -> Key | None:
        """The key of SKERRY_ARCHIVE_KEY; of an encrypted sandbox, the one that lies in its pool.

        Raises InvalidArgument, DiskLocked.
        """
        if record.encrypted:
            self._changes.storage_of(record)
            where = f"file:{self._changes.home.encrypted.archive_key}"
        else:
            where = os.environ.get(KEY_VARIABLE, "")
        if not where:
            return None
        from skerry.archive import Key

        return Key.of(where)

    # -- archive; the caller holds the lock

    def archive_due(self, record: Record) -> Record:
        """For the sweep: notes a failure in the record, since no caller waits for it."""
        failed_at = None
        try:
            key = self._default_key(record)
            failed_at = time.time()  # an attempt from here on reads all its files
            return self._archive(record, key)
        except (SkerryError, OSError) as error:
            record = self._changes.store.read(record.id)
            if record.pending is not None:  # half done: only the archive may be left
                return record
            reason = f"it could not be archived: {error}"[:600]
            return self._changes.save(dataclasses.replace(record, reason=reason, archive_failed_at=failed_at))

    def _archive(self, record: Record, key: Key | None, on_progress: Progress | None = None) -> Record:
        changes, file = self._changes, self._file(record)
        changes.require_files(record)
        with typed_errors(changes.store.home):
            record = changes.begin(record, "archive")
            try:
                self._write(record, file, key, on_progress)
            except BaseException:
                self._discard(file)
                changes.finish(record, State.STOPPED)
                raise
            sealed = dataclasses.replace(record, sealed=key is not None, reason=None, archive_failed_at=None)
            record = changes.begin(sealed, "archive", state=State.ARCHIVED)
            changes.storage_of(record).remove(changes.upper(record))
            return changes.finish(record, State.ARCHIVED, "archived")

    def _write(self, record: Record, file: Path, key: Key | None, on_progress: Progress | None = None) -> None:
        """Write the archive to disk, read it back, and give it its name. Raises DiskFull, Unsupported, Corrupted."""
        from importlib.metadata import version

        from skerry.archive import open_archive, write_archive

        fresh = file.with_suffix(".new")
        about = {"skerry": version("skerry"), "source": record.id}
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "r+b") as target:
            layers = [self._changes.upper(record) / "u"]
            write_archive(target, about, layers, kind=COLD, key=key, on_progress=on_progress)
            target.flush()
            os.fsync(target.fileno())
            target.seek(0)
            with open_archive(target, key=key) as archive:
                archive.verify(on_progress=on_progress)
        fresh.rename(file)
        flush_directory(file.parent)
        flush_directory(file.parent.parent)  # the sandbox itself may be new

    def _discard(self, file: Path) -> None:
        file.with_suffix(".new").unlink(missing_ok=True)
        file.unlink(missing_ok=True)

    def _recover_archive(self, record: Record) -> Record:
        with typed_errors(self._changes.store.home):
            if record.state is State.ARCHIVED:
                self._changes.save(record)  # the process that noted it may have died before it was on disk
                self._changes.storage_of(record).remove(self._changes.upper(record))
                self._changes.log(record, "archived")
            else:
                self._discard(self._file(record))
            return record

    # -- and back; the caller holds the lock

    def bring_back(self, record: Record, key: bytes | None, on_progress: Progress | None = None) -> Record:
        """Give an archived sandbox its files back and leave it stopped. Raises as `unarchive` does."""
        changes, file = self._changes, self._file(record)
        changes.storage_of(record)  # raises while its disk is locked
        with typed_errors(changes.store.home):
            with self._opened(record, file, key) as archive:
                record = changes.begin(record, "unarchive", state=State.RESTORING)
                try:
                    self._unpack(record, archive, on_progress)
                except BaseException:
                    self._remove_trees(record)
                    changes.finish(record, State.ARCHIVED)
                    raise
            opened = dataclasses.replace(record, sealed=False, last_active_at=time.time())
            record = changes.begin(opened, "unarchive", state=State.STOPPED)
            file.unlink()
            return changes.finish(record, State.STOPPED, flush=True)

    @contextlib.contextmanager
    def _opened(self, record: Record, file: Path, key: bytes | None) -> Iterator[Archive]:
        """Open the archive, with the given key or the default one.

        Raises Corrupted, Unauthenticated, InvalidArgument; then nothing has changed.
        """
        from skerry.archive import Key, open_archive

        try:
            source = file.open("rb")
        except FileNotFoundError:
            raise Corrupted(
                f"the archive of sandbox {record.id} is missing: there is no {file}",
                hint="put it back, or destroy the sandbox",
            ) from None
        with source:
            secret = Key(key) if key is not None else (self._default_key(record) if record.sealed else None)
            if record.sealed and secret is None:
                raise Unauthenticated(
                    f"sandbox {record.id} is archived with a key", hint=f"start(key=…), or set {KEY_VARIABLE}"
                )
            try:
                opened = contextlib.ExitStack()
                archive = opened.enter_context(open_archive(source, key=secret))
            except Unauthenticated as error:
                raise Unauthenticated(
                    f"sandbox {record.id} cannot be brought back: {error}",
                    hint="give the key it was archived with: start(key=…), or set " + KEY_VARIABLE,
                ) from error
            with opened:
                if archive.manifest.kind != COLD or archive.manifest.data.get("source") != record.id:
                    raise Corrupted(f"{file} is not the archive of sandbox {record.id}")
                yield archive

    def _unpack(self, record: Record, archive: Archive, on_progress: Progress | None) -> None:
        """Unpack the tree beside its place, then move it there. Raises Corrupted, DiskFull."""
        upper, storage = self._changes.upper(record), self._changes.storage_of(record)
        fresh, _ = restoring_trees(upper)
        self._remove_trees(record)
        storage.create(fresh, None)  # no limit yet: files that once were within it must not fail at it now
        for name in ("u", "w"):
            (fresh / name).mkdir(mode=0o755)
        fresh.chmod(0o755)
        archive.unpack([fresh / "u"], on_progress=on_progress)
        if (limit := upper_limit(record)) is not None:
            flush(fresh)  # brings the accounts up to date
            # leave some room: overlayfs notes in each directory where it comes from before it can look into it
            held = storage.used(fresh) or 0
            storage.set_limit(fresh, max(limit, held + LEAST_DISK))
        fresh.rename(upper)
        flush(upper)

    def _remove_trees(self, record: Record) -> None:
        upper, storage = self._changes.upper(record), self._changes.storage_of(record)
        for tree in (*restoring_trees(upper), upper):
            storage.remove(tree)

    def _recover_unarchive(self, record: Record) -> Record:
        with typed_errors(self._changes.store.home):
            if record.state is State.RESTORING:
                self._remove_trees(record)
                return self._changes.advance(record, State.ARCHIVED)
            self._changes.save(record)  # the process that noted it may have died before it was on disk
            self._file(record).unlink(missing_ok=True)
            return record
