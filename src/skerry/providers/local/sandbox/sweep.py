"""Ends and removes what nobody owns any more. If nobody holds a sandbox's lock, its folder decides what happens to it:

    no record                    its maker or remover has died        swept
    pending                      the process that changed it died     finished or undone: see `Recoveries`
    leased                       its process is gone                  swept
    running, timeout reached     `on_timeout` is destroy              swept
                                 `on_timeout` is stop                 stopped, with its files
    running, first process gone  nothing was done in it for long      stopped; archived or swept when that is due
                                 SIGTERM, as at a shutdown            stopped
                                 otherwise                            failed: its files stay until it is destroyed

The sweep logs what it cannot remove now (a process that does not die, a tree that is busy), and the next sweep tries
again: this holds up neither the rest of the sweep nor any other work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from skerry.core import Corrupted, NewerVersion, SandboxNotFound, State, is_sandbox_id
from skerry.providers.local.limits import network
from skerry.providers.local.log import log_and_continue
from skerry.providers.local.sandbox import last_words
from skerry.providers.local.sandbox.archive import Archives
from skerry.providers.local.sandbox.changes import KILL_TIMEOUT, Changes, Recoveries
from skerry.providers.local.sandbox.record import Record, error_event
from skerry.providers.local.sandbox.stop import WORDS_MARGIN
from skerry.providers.local.storage.choose import release_lost_pools, remove_tree


class Sweep:
    """Sweeps one SKERRY_HOME, and what deleted ones have left on this machine."""

    def __init__(
        self,
        changes: Changes,
        archives: Archives,
        recoveries: Recoveries,
        *,
        storage_sweeps: Mapping[str, Callable[[], None]],
    ) -> None:
        """`recoveries` has every kind of pending change, `storage_sweeps` more sweeps, named by what they remove."""
        self._changes = changes
        self._store = changes.store
        self._archives = archives
        self._recoveries = recoveries
        self._storage_sweeps = storage_sweeps

    def sweep_all(self) -> Sequence[str]:
        """Sweep everything; the ids of the removed sandboxes. Raises as `Home.storage`, after what needs no storage."""
        self._store.prepare()
        swept = []
        for sandbox_id in list(self._store.ids()):
            with log_and_continue(f"what is left of sandbox {sandbox_id}"):
                if self.sweep_one(sandbox_id):
                    swept.append(sandbox_id)
        for path in self._store.remains():
            with log_and_continue(str(path)):
                remove_tree(path)
        with log_and_continue("stale links"):
            self._store.sweep_links()
        with log_and_continue("what runs of deleted homes"):
            self._homeless()
        with log_and_continue("pools of deleted homes"):
            release_lost_pools()
        with log_and_continue("half of an encrypted pool"):
            self._changes.home.encrypted.sweep_mounts()
        with log_and_continue("stale network devices"):
            network.tidy()
        self._storage()
        return swept

    def _storage(self) -> None:
        storages = self._changes.home.open_storages()
        for storage in storages:
            for tree in [*storage.uppers.iterdir(), *storage.words.iterdir()]:
                sandbox_id = tree.name.partition("~")[0]  # of a restore: see restoring_trees
                # a folder is made before its trees and removed after them
                if is_sandbox_id(sandbox_id) and not self._store.directory(sandbox_id).exists():
                    with log_and_continue(f"the files of sandbox {sandbox_id}"):
                        storage.remove(tree)
        for what, sweep in self._storage_sweeps.items():
            with log_and_continue(what):
                sweep()
        for storage in storages:
            with log_and_continue("accounts of what was removed"):
                storage.sweep()

    def _homeless(self) -> None:
        """End sandboxes whose folder is gone because somebody deleted their home; then free their id ranges."""
        with self._store.allocation():
            lost = self._store.homeless()
        for link, folder in lost.items():
            with log_and_continue(f"what runs of {folder}"):
                self._changes.cgroups.thaw(folder.name)
                self._changes.cgroups.remove(folder.name, KILL_TIMEOUT)
                self._store.free(link, folder)

    def sweep_one(self, sandbox_id: str) -> bool:
        """Sweep a sandbox whose end has come, or note what became of it; returns whether it was removed."""
        try:
            lock = self._store.lock(sandbox_id)
        except SandboxNotFound:
            return False
        try:
            if not lock.try_acquire():
                return False  # another operation has it
            return self.sweep_locked(sandbox_id)
        finally:
            lock.release()

    def sweep_locked(self, sandbox_id: str) -> bool:
        """The same for a caller that holds its lock."""
        changes = self._changes
        try:
            record = self._store.read(sandbox_id)
        except (Corrupted, NewerVersion):
            return False  # kept for its owner to see
        except SandboxNotFound as error:
            if not self._store.directory(sandbox_id).is_dir():
                return False
            changes.tear_down(self._store.guess(sandbox_id, str(error)))
            return True
        if record.abandoned() or (record.expired() and record.ends_for_good):
            changes.tear_down(record)
            return True
        record = self._recovered(record)
        if record.state in (State.RUNNING, State.PAUSED) and (record.expired() or not record.alive):
            record = self._recovered(self._note_end(record))
        if record.state is State.FAILED and record.slot is not None:  # an earlier attempt could not end all of it
            record = changes.save(changes.halt(record))
        if last_words.delete_due(record):
            changes.tear_down(record)
            return True
        if last_words.archive_due(record):
            self._archives.archive_due(record)
        return False

    def _recovered(self, record: Record) -> Record:
        """The record, with what was pending finished or undone."""
        if record.pending is None:
            return record
        record = self._recoveries[record.pending](record)
        return self._changes.finish(record, record.state)

    def _note_end(self, record: Record) -> Record:
        """Stop or fail a sandbox whose timeout is reached, or whose first process has ended by itself.

        At the timeout its agent ends it. If it is paused, or its agent does not end it, this does.
        """
        changes = self._changes
        if record.expired():
            if record.init is not None and record.state is State.RUNNING:
                record.init.wait(WORDS_MARGIN)
            return changes.begin(record, "stop", state=State.STOPPING, why="timeout")
        words = changes.words(record.id)
        if last_words.inactive(record, words) or last_words.timed_out(record, words) or last_words.terminated(words):
            return changes.begin(record, "stop", state=State.STOPPING)
        failed = dataclasses.replace(
            changes.advance(record, State.FAILED), reason="its first process was killed", lease=None
        )
        changes.save(failed, error_event("connection-lost", failed))
        return changes.save(changes.halt(failed))
