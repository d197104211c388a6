"""The sandboxes' folders under SKERRY_HOME, their names, and the host's id ranges.

    SKERRY_HOME/sandboxes/ID/   record.json lock events.jsonl volumes, `archive` while it is archived, and while it
                                runs agent.sock scratch/ bundle/ runtime/
    SKERRY_HOME/names/NAME      a link to the id that has the name; what a server made for a project is SLUG.NAME here
    SKERRY_HOME/keys/HASH       a link to the id made under an idempotency key
    SKERRY_HOME/trash/          folders that are being removed
    SKERRY_HOME/templates/      read-only layers
    SKERRY_HOME/snapshots/      a record of each snapshot, and the lock of them all
    SKERRY_HOME/volumes/        a record of each volume, and the lock of them all
    SKERRY_HOME/pool/           what sandboxes wrote: see storage/choose.py
    /run/skerry/slots/N         a link to the folder that uses id range N, for the whole machine
    /run/skerry/views/N         the mount namespace in which that folder is

A folder appears under its id by one rename, locked; its record is written when the sandbox runs. So if a folder has no
record and nobody holds its lock, the process that made it is dead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

from skerry.core import (
    PROJECT_LABEL,
    SLUG,
    Conflict,
    Corrupted,
    DiskFull,
    NewerVersion,
    ProviderUnavailable,
    QuotaExceeded,
    Resources,
    SandboxNotFound,
    SandboxSpec,
    State,
    is_sandbox_id,
    plain_name,
)
from skerry.providers.local.locks import FileLock, SandboxLock
from skerry.providers.local.sandbox import record as records
from skerry.providers.local.sandbox.activity import with_activity
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage.choose import remove_tree

SLOTS = 4095
FIRST_ID = 0x7000_0000
"""The first host id for sandboxes: above what systemd gives to containers, below 2^31."""

RUN = Path("/run/skerry")
FIRST_PROCESSES = "pid:[4026531836]"
"""The process namespace in which the kernel started: PROC_PID_INIT_INO of linux/proc_ns.h."""
ROOT = RUN / "root"
"""Where each sandbox's root is mounted, in its own mount namespace; on the machine itself it stays empty."""
EMPTY = RUN / "empty"
"""A directory with nothing in it, for overlays of one layer."""
USERNS, NETNS = RUN / "userns", RUN / "netns"
"""Where each launcher mounts its sandbox's user and network namespace; on the machine itself they are empty files."""


def host_id(slot: int) -> int:
    """The first host id of a slot's 65,536."""
    return FIRST_ID + slot * 65536


class KeyTaken(Exception):
    """Another create has just made a sandbox under this idempotency key."""


class Store:
    """The folders and links of one SKERRY_HOME."""

    def __init__(self, home: Path, run: Path = RUN) -> None:
        self.home = home
        self.sandboxes = home / "sandboxes"
        self.names = home / "names"
        self.keys = home / "keys"
        self.trash = home / "trash"
        self.templates = home / "templates"
        self.snapshots = home / "snapshots"
        self.volumes = home / "volumes"
        self.slots, self.views = run / "slots", run / "views"
        self._allocation = run / "lock"

    def prepare(self) -> None:
        """Make the directories, readable by their owner alone. Raises ProviderUnavailable, DiskFull."""
        try:
            # 0700: files a sandbox's root makes setuid must be out of reach for the machine's other users
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(self.home)
            for path in (RUN, ROOT, EMPTY):
                path.mkdir(mode=0o755, exist_ok=True)
            for path in (USERNS, NETNS):
                path.touch()
            for path in (
                self.sandboxes,
                self.names,
                self.keys,
                self.trash,
                self.templates,
                self.snapshots,
                self.volumes,
                self.slots,
                self.views,
            ):
                path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room under {self.home}", errno=error.errno) from error
            raise ProviderUnavailable(f"{self.home} cannot be used: {error}", hint="set SKERRY_HOME") from error

    def allocation(self) -> FileLock:
        """Protects names, keys, slots and the adding of folders."""
        return FileLock(self._allocation)

    def directory(self, sandbox_id: str) -> Path:
        """The folder of a sandbox. Raises SandboxNotFound for an id that would lead to another place."""
        if not is_sandbox_id(sandbox_id):
            raise _not_found(sandbox_id)
        return self.sandboxes / sandbox_id

    def lock(self, sandbox_id: str) -> SandboxLock:
        """The sandbox's own lock, not yet acquired. Raises SandboxNotFound."""
        try:
            return SandboxLock(self.directory(sandbox_id) / "lock", create=False)
        except FileNotFoundError:
            raise _not_found(sandbox_id) from None

    def words(self, sandbox_id: str) -> Path:
        """The file of an agent's notes and last words, in the storage, where its size is limited."""
        return self.home / "pool/words" / sandbox_id / "words"

    def read(self, sandbox_id: str) -> Record:
        """Raises SandboxNotFound, Corrupted."""
        try:
            return with_activity(records.read(self.directory(sandbox_id)), self.words(sandbox_id))
        except (FileNotFoundError, NotADirectoryError):
            raise _not_found(sandbox_id) from None

    def read_or_guess(self, sandbox_id: str) -> Record:
        """The record, or a stand-in for a damaged or missing one. Raises SandboxNotFound."""
        try:
            return self.read(sandbox_id)
        except Corrupted as error:
            return self.guess(sandbox_id, str(error))
        except SandboxNotFound as error:
            if not self.directory(sandbox_id).is_dir():
                raise
            return self.guess(sandbox_id, str(error))

    def guess(self, sandbox_id: str, reason: str) -> Record:
        """A stand-in for a damaged record: failed, with what the links say, which is enough to remove the sandbox."""
        return Record(
            id=sandbox_id,
            state=State.FAILED,
            spec=SandboxSpec(name=self.name_of(sandbox_id)),
            limits=Resources(),
            token="",
            created_at=0.0,
            slot=self.slot_of(sandbox_id),
            reason=reason,
        )

    def ids(self) -> Iterator[str]:
        for entry in os.scandir(self.sandboxes):
            if is_sandbox_id(entry.name):
                yield entry.name

    def resolve(self, id_or_name: str) -> str:
        """The id for an id or a name: of a sandbox made on this machine, else of one that a server made for a project.

        Raises SandboxNotFound, and Conflict for a name that several projects have.
        """
        if "/" in id_or_name or "\0" in id_or_name or not id_or_name:
            raise _not_found(id_or_name)
        if is_sandbox_id(id_or_name):
            return id_or_name
        try:
            return os.readlink(self.names / id_or_name)
        except OSError:
            found = self._of_projects(id_or_name)
        if len(found) > 1:
            which = ", ".join(f"{id} of project {project}" for id, project in sorted(found.items())[:10])
            raise Conflict(f"{len(found)} sandboxes are called {id_or_name!r}: {which}", hint="give the id of one")
        if not found:
            raise _not_found(id_or_name)
        return next(iter(found))

    def _of_projects(self, name: str) -> dict[str, str]:
        """The ids of the sandboxes that a server made under a name, each with its project."""
        found = {}
        for link in self.names.iterdir():
            if not SLUG.match(link.name) or SLUG.sub("", link.name, count=1) != name:
                continue
            try:
                record = self.read(_target(link) or "")
            except (SandboxNotFound, Corrupted, NewerVersion):
                continue  # it is being made or removed, or its project is not known
            if record.name == name:
                found[record.id] = record.spec.labels[PROJECT_LABEL]
        return found

    def name_of(self, sandbox_id: str) -> str | None:
        """The name whose link points to `sandbox_id`."""
        return next((link.name for link in self.names.iterdir() if _target(link) == sandbox_id), None)

    def slot_of(self, sandbox_id: str) -> int | None:
        """The slot whose link points to the folder of `sandbox_id`."""
        folder = str(self.directory(sandbox_id))
        return next((int(link.name) for link in self.slots.iterdir() if _target(link) == folder), None)

    def key_path(self, key: str) -> Path:
        return self.keys / hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    def holder_of(self, link: Path) -> str | None:
        """The id that a name or key link points to, if that sandbox still exists."""
        sandbox_id = _target(link)
        return sandbox_id if sandbox_id and self.directory(sandbox_id).is_dir() else None

    def require_free(self, spec: SandboxSpec) -> None:
        """Raises Conflict for a taken name; only `add` makes sure that it is still free."""
        if spec.name is not None and self.holder_of(self.names / spec.name):
            raise _taken(spec)

    def add(self, record: Record) -> tuple[Record, FileLock]:
        """Add a new sandbox's folder, locked by the caller, with its name, key and slot.

        Raises Conflict for a taken name, KeyTaken, QuotaExceeded when no id range is free, DiskFull.
        """
        fresh = self.sandboxes / f".new-{record.id}"
        with self.allocation():
            links = self._links(record)
            for link in links:
                if not self.holder_of(link):
                    continue
                if link.parent == self.keys:
                    raise KeyTaken
                raise _taken(record.spec)
            lock: FileLock | None = None
            try:
                fresh.mkdir(mode=0o700)
                lock = FileLock(fresh / "lock")
                lock.acquire()
                record = self._take_slot(record)
                for link in links:
                    link.unlink(missing_ok=True)
                    link.symlink_to(record.id)
                fresh.rename(self.directory(record.id))
            except BaseException as error:
                if lock is not None:
                    lock.release()
                remove_tree(fresh)
                if record.slot is not None:
                    self._free(self.slots / str(record.slot), self.directory(record.id))
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(f"no room under {self.home} for a new sandbox", errno=error.errno) from error
                raise
        return record, lock

    def _links(self, record: Record) -> list[Path]:
        links = []
        if record.spec.idempotency_key is not None:
            links.append(self.key_path(record.spec.idempotency_key))
        if record.spec.name is not None:
            links.append(self.names / record.spec.name)
        return links

    def _take_slot(self, record: Record) -> Record:
        # A random start spreads the use of ranges; of several processes only the first makes the link.
        start = random.randrange(SLOTS)
        for step in range(SLOTS):
            slot = (start + step) % SLOTS
            try:
                os.symlink(self.directory(record.id), self.slots / str(slot))
            except FileExistsError:
                continue
            view = self.views / str(slot)
            view.unlink(missing_ok=True)
            view.symlink_to(_mount_namespace())
            return dataclasses.replace(record, slot=slot)
        raise QuotaExceeded(f"all {SLOTS} id ranges of this machine are in use", hint="destroy some sandboxes")

    def take_slot(self, record: Record) -> Record:
        """Give a sandbox that starts again an id range; it need not be the one it had. Raises QuotaExceeded."""
        with self.allocation():
            return self._take_slot(record)

    def release_slot(self, record: Record) -> Record:
        """Free the id range of a sandbox that has no process."""
        if record.slot is not None:
            with self.allocation():
                self._free(self.slots / str(record.slot), self.directory(record.id))
        return dataclasses.replace(record, slot=None)

    def forget(self, record: Record) -> None:
        """Remove the folder, names and slot of a sandbox that has no process any more."""
        directory = self.directory(record.id)
        gone = self.trash / record.id
        try:
            directory.rename(gone)
        except FileNotFoundError:
            pass
        remove_tree(gone)
        with self.allocation():
            for link in self._links(record):
                self._unlink_if(link, record.id)
            if record.slot is not None:
                self._free(self.slots / str(record.slot), directory)

    def _free(self, link: Path, folder: Path) -> None:
        if _target(link) == str(folder):
            (self.views / link.name).unlink(missing_ok=True)
            link.unlink(missing_ok=True)

    @staticmethod
    def _unlink_if(link: Path, target: str) -> None:
        if _target(link) == target:
            link.unlink(missing_ok=True)

    def remains(self) -> list[Path]:
        """Remove what a crash left outside of any sandbox's folder."""
        with self.allocation():  # the maker of a new folder holds this lock, so the makers of these are dead
            return [*self.trash.iterdir(), *self.sandboxes.glob(".new-*")]

    def sweep_links(self) -> None:
        """Remove names and keys whose sandboxes are gone."""
        with self.allocation():
            for directory in (self.names, self.keys):
                for link in directory.iterdir():
                    if self.holder_of(link) is None:
                        link.unlink(missing_ok=True)

    def free(self, link: Path, folder: Path) -> None:
        """Free the id range of a folder that is gone and has no process."""
        with self.allocation():
            if self._deleted(link, folder):
                self._free(link, folder)

    def homeless(self) -> dict[Path, Path]:
        """Every slot of this machine whose folder was deleted, in any SKERRY_HOME."""
        held = {link: Path(target) for link in self.slots.iterdir() if (target := _target(link))}
        return {link: folder for link, folder in held.items() if self._deleted(link, folder)}

    def _deleted(self, link: Path, folder: Path) -> bool:
        """Whether a folder is gone, and not only out of sight: a service with PrivateTmp has its own mounts."""
        if folder.is_dir():
            return False
        view = _target(self.views / link.name)
        return view in (None, _mount_namespace()) or not _may_exist(view)


def _mount_namespace() -> str:
    return os.readlink("/proc/self/ns/mnt")


def _may_exist(namespace: str) -> bool:
    """Whether a process may be in this mount namespace. Inside another process namespace nobody sees them all."""
    if os.readlink("/proc/self/ns/pid") != FIRST_PROCESSES:
        return True
    for process in Path("/proc").glob("[0-9]*/ns/mnt"):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(process) == namespace:
                return True
    return False


def _target(link: Path) -> str | None:
    """Where a link points; None if another process has just removed it."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return None


def _require_own(home: Path) -> None:
    """A user who can change a home, or a link to it, decides what the machine's root uses: only root may.

    Raises ProviderUnavailable, OSError.
    """
    link, info = home.lstat(), home.stat()
    if link.st_uid or info.st_uid:
        raise ProviderUnavailable(
            f"SKERRY_HOME {home} belongs to user {info.st_uid or link.st_uid}, who could change what root keeps there",
            hint=f"chown root {home} if nobody else has written to it, or set SKERRY_HOME",
        )
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ProviderUnavailable(
            f"SKERRY_HOME {home} is writable by users other than root (mode {stat.S_IMODE(info.st_mode):04o})",
            hint=f"chmod 700 {home} if nobody else has written to it, or set SKERRY_HOME",
        )


def _taken(spec: SandboxSpec) -> Conflict:
    name = plain_name(spec.name, spec.labels)
    return Conflict(f"the name {name!r} is taken", hint="choose another, or destroy its sandbox")


def _not_found(which: str) -> SandboxNotFound:
    return SandboxNotFound(f"there is no sandbox {which!r}")
