"""Volumes: directories of the pool that sandboxes mount and that outlive them.

    SKERRY_HOME/volumes/NAME.json      what is known of a volume, as long as it can be used
    SKERRY_HOME/pool/volumes/NAME      its files; without a record a crash has left them, and the sweep removes them
    SKERRY_HOME/sandboxes/ID/volumes   the names of the volumes a sandbox has, from before it starts until it is gone

The volumes lock protects all of this. The sandboxes' folders say which sandboxes have a volume, and are read each time
it matters, so no crash can leave a wrong count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from skerry._model import Model
from skerry.core import (
    NAME,
    RESERVED,
    Conflict,
    Corrupted,
    DiskLocked,
    FileMissing,
    InvalidArgument,
    NewerVersion,
    NotADirectory,
    QuotaExceeded,
    SandboxNotFound,
    SandboxSpec,
    State,
    Unsupported,
    VolumeInfo,
    VolumeMount,
    VolumeNotFound,
    check_mounts,
    check_volume_name,
    from_plain,
    human_size,
    load_json,
    parse_size,
    plain,
    replace_file,
)
from skerry.providers.local.home import Home
from skerry.providers.local.launch.launch import Mount
from skerry.providers.local.locks import FileLock
from skerry.providers.local.log import log_and_continue
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage import host_layer
from skerry.providers.local.storage.choose import Storage, typed_errors

USER = 1000
"""The owner, in every sandbox, of a new volume and of a directory made for a subpath."""


class Volume(Model):
    """A volume's record."""

    name: str
    created_at: float
    size: int | None
    temporary: bool
    encrypted: bool = False
    taken: bool = False
    """Whether a sandbox that had it has ended: a temporary volume that no sandbox has had yet waits for its first."""


class Volumes:
    """The volumes of one SKERRY_HOME."""

    def __init__(self, home: Home, *, settle: Callable[[str], object]) -> None:
        """`settle` removes a sandbox whose end has come."""
        self._home = home
        self._store = home.store
        self._records = home.store.volumes
        self._settle = settle

    def _lock(self) -> FileLock:
        return FileLock(self._records / "lock")

    # -- the contract of core/contract/provider.py

    def create(self, name: str, *, size: int | None, temporary: bool, encrypted: bool = False) -> VolumeInfo:
        check_volume_name(name)
        self._home.prepare()
        if encrypted:
            self._home.encrypted.make()
        self._check_size(size, encrypted=encrypted)
        volume = Volume(name=name, created_at=time.time(), size=size, temporary=temporary, encrypted=encrypted)
        with self._lock():
            if self._record(name).exists():
                raise Conflict(f"the name {name!r} is taken by another volume", hint="choose another, or use that one")
            self._make(volume)
        return self._info(volume, ())

    def _check_size(self, size: int | None, *, encrypted: bool) -> None:
        """Raises Unsupported where no size can be enforced, QuotaExceeded for more than the pool may ever hold."""
        if size is None:
            return
        storage = self._home.storage_of(encrypted=encrypted)
        storage.require_limits("size")
        pool = os.statvfs(storage.volumes)
        if size > (most := pool.f_blocks * pool.f_frsize):
            text = f"a volume of {human_size(size)} is larger than the pool, which holds {human_size(most)}"
            raise QuotaExceeded(text, hint="ask for less, or for no size")

    def _make(self, volume: Volume) -> None:
        """Make a volume that is not there. The caller holds the lock."""
        storage = self._home.storage_of(encrypted=volume.encrypted)
        tree = storage.volumes / volume.name
        storage.remove(tree)  # left by a create that died before the record was written
        try:
            with typed_errors(self._store.home):
                storage.create(tree, volume.size)
                tree.chmod(0o755)
                os.chown(tree, USER, USER)
                storage.settle(0)  # a record never reaches the disk before its tree
                self._write(volume)
        except BaseException:
            storage.remove(tree)
            raise

    def get(self, name: str) -> VolumeInfo:
        self._home.prepare()
        return self._info(self._read(name), self._users().get(name, ()))

    def list(self) -> Sequence[VolumeInfo]:
        self._home.prepare()
        users = self._users()
        found = []
        for name in sorted(self._names()):
            try:
                found.append(self._info(self._read(name), users.get(name, ())))
            except VolumeNotFound:
                continue  # it was just deleted
        return found

    def delete(self, name: str) -> None:
        self._home.prepare()
        for sandbox_id in self._users().get(name, ()):
            self._settle(sandbox_id)  # a sandbox that is due to end does not count
        with self._lock():
            if not NAME.fullmatch(name) or not self._record(name).exists():  # a damaged volume can be deleted too
                raise _not_found(name)
            if users := self._users().get(name):
                raise Conflict(
                    f"the volume {name!r} is in use by {', '.join(users)}", hint="destroy those sandboxes first"
                )
            gone = self._take_away(name)
        if gone is not None:
            with log_and_continue(f"the files of volume {name!r}"):
                gone[0].remove(gone[1])

    # -- for sandboxes

    def check(self, spec: SandboxSpec, *, host: bool) -> None:
        """Check the volumes that a sandbox asks for.

        Raises InvalidArgument, VolumeNotFound, Corrupted; Conflict for one that is to be made and is there in another
        form; and as `create` for a size.
        """
        check_mounts(spec.volumes, (*RESERVED, *host_layer.mounts()) if host else RESERVED)
        for mount in spec.volumes:
            try:
                volume = self._read(mount.name)
            except VolumeNotFound:
                if not mount.makes:
                    raise
                self._check_size(_size(mount), encrypted=spec.encrypted is True)
                continue
            _check_same(volume, mount)
            if spec.encrypted and not volume.encrypted and not mount.read_only:
                raise Unsupported(
                    f"the volume {mount.name!r} is not encrypted, but a sandbox that is could write to it",
                    option="volumes",
                    hint="mount it read-only, or make an encrypted volume",
                )

    def attach(self, record: Record) -> tuple[Mount, ...]:
        """Note that a sandbox has its volumes, and return what to mount. The caller holds the sandbox's lock.

        A new sandbox makes those that it asks for. One that is not persistent is its from the start: if this process
        dies before the sandbox is complete, the sweep removes both.

        Raises VolumeNotFound, Corrupted, DiskFull, FileMissing for a subpath that is not there.
        """
        if not record.spec.volumes:
            return ()
        self.check(record.spec, host=record.host)
        names = sorted({mount.name for mount in record.spec.volumes})
        trees = dict[str, Path]()
        with typed_errors(self._store.home):
            with self._lock():
                replace_file(self._store.directory(record.id) / "volumes", "\n".join(names).encode(), flush=False)
                for mount in record.spec.volumes:
                    trees[mount.name] = self._tree(self._find_or_make(mount, record))
            for mount in record.spec.volumes:
                _walk(trees[mount.name], mount)
        return tuple(
            Mount(path=mount.path, source=trees[mount.name], subpath=mount.subpath, read_only=mount.read_only)
            for mount in check_mounts(record.spec.volumes)
        )

    def _find_or_make(self, mount: VolumeMount, record: Record) -> Volume:
        """A volume of a sandbox; one that it makes is encrypted as the sandbox is. The caller holds the lock."""
        try:
            return self._read(mount.name)
        except VolumeNotFound:
            if not (record.state is State.CREATING and mount.makes):
                raise
        temporary = mount.persistent is False
        volume = Volume(
            name=mount.name,
            created_at=time.time(),
            size=_size(mount),
            temporary=temporary,
            taken=temporary,
            encrypted=record.encrypted,
        )
        self._make(volume)
        return volume

    def let_go(self, sandbox_id: str) -> None:
        """Note that a sandbox is about to end; `sweep` then removes the temporary volumes that it was the last to have.

        A sandbox that was never complete has no record yet, and releases nothing.
        """
        directory = self._store.directory(sandbox_id)
        if not (directory / "volumes").exists() or not (directory / "record.json").exists():
            return
        with self._lock():
            for name in self._had_by(sandbox_id):
                with contextlib.suppress(VolumeNotFound, Corrupted):
                    volume = self._read(name)
                    if volume.temporary and not volume.taken:
                        self._write(dataclasses.replace(volume, taken=True))

    def sweep(self) -> None:
        """Remove temporary volumes whose last sandbox is gone, and what a crash has left."""
        storages = self._home.open_storages()
        with self._lock():
            for path in self._records.glob("*.new"):
                path.unlink(missing_ok=True)
            known = set(self._names())
            for storage in storages:
                for path in list(storage.volumes.iterdir()):
                    if path.name not in known and not path.name.startswith("."):
                        _move_away(path)
            used_up = [name for name in known if self._goes_with_its_sandboxes(name)]
            users = self._users() if used_up else {}
            for name in used_up:
                if not users.get(name):
                    self._take_away(name)
        for storage in storages:
            for path in storage.volumes.glob(".gone-*"):
                with log_and_continue(f"the files of a volume, {path},"):
                    storage.remove(path)

    def _goes_with_its_sandboxes(self, name: str) -> bool:
        try:
            volume = self._read(name)
        except Corrupted:
            return False  # kept for its owner to see
        return volume.temporary and volume.taken

    # -- inside

    def _record(self, name: str) -> Path:
        return self._records / f"{name}.json"

    def _names(self) -> Iterator[str]:
        for entry in os.scandir(self._records):
            if entry.name.endswith(".json"):
                yield entry.name.removesuffix(".json")

    def _write(self, volume: Volume) -> None:
        replace_file(self._record(volume.name), json.dumps(volume, default=plain).encode(), flush=True)

    def _read(self, name: str) -> Volume:
        """Raises VolumeNotFound, Corrupted."""
        if not NAME.fullmatch(name):
            raise _not_found(name)
        try:
            return from_plain(Volume, load_json(self._record(name).read_bytes()))
        except FileNotFoundError:
            raise _not_found(name) from None
        except InvalidArgument as error:
            raise Corrupted(
                f"the record of volume {name!r} is damaged ({error})",
                hint=f"its files are below {self._store.home}; `skerry volume rm {name}` removes it",
            ) from error

    def _tree(self, volume: Volume) -> Path:
        """Raises ProviderUnavailable, Corrupted, DiskLocked."""
        return self._home.storage_of(encrypted=volume.encrypted).volumes / volume.name

    def _take_away(self, name: str) -> tuple[Storage, Path] | None:
        """Remove a volume's record at once; the caller then removes its files, which may be many.

        Files in a locked storage go when it is unlocked and swept.
        """
        self._record(name).unlink(missing_ok=True)
        for storage in self._home.open_storages():
            if (tree := storage.volumes / name).exists():
                return storage, _move_away(tree)
        return None

    def _users(self) -> dict[str, tuple[str, ...]]:
        """For each volume in use, the ids of its sandboxes; one that is being made or removed counts."""
        found: dict[str, tuple[str, ...]] = {}
        for sandbox_id in sorted(self._store.ids()):
            for name in self._had_by(sandbox_id):
                found[name] = (*found.get(name, ()), sandbox_id)
        return found

    def _had_by(self, sandbox_id: str) -> set[str]:
        names: set[str] = set()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the sandbox has none, or is just gone
            names.update((self._store.directory(sandbox_id) / "volumes").read_text().split())
        with contextlib.suppress(SandboxNotFound, Corrupted, NewerVersion):  # then the list is what counts
            names.update(mount.name for mount in self._store.read(sandbox_id).spec.volumes)
        return names

    def _info(self, volume: Volume, users: tuple[str, ...]) -> VolumeInfo:
        used = None
        with contextlib.suppress(DiskLocked):
            used = self._home.storage_of(encrypted=volume.encrypted).used(self._tree(volume))
        return VolumeInfo(
            name=volume.name,
            created_at=volume.created_at,
            size=volume.size,
            used=used,
            temporary=volume.temporary,
            sandboxes=users,
            encrypted=volume.encrypted,
        )


def _move_away(tree: Path) -> Path:
    gone = tree.with_name(f".gone-{secrets.token_hex(8)}")
    tree.rename(gone)
    return gone


def _size(mount: VolumeMount) -> int | None:
    return None if mount.size is None else parse_size(mount.size, "size")


def _check_same(volume: Volume, mount: VolumeMount) -> None:
    """Raises Conflict."""
    if mount.size is not None and volume.size != _size(mount):
        has = "no size" if volume.size is None else f"a size of {human_size(volume.size)}"
        raise Conflict(f"the volume {volume.name!r} is there, with {has}", hint="leave the size out to mount it")
    if mount.persistent is not None and volume.temporary is mount.persistent:
        is_one = "a temporary one" if volume.temporary else "a persistent one"
        raise Conflict(f"the volume {volume.name!r} is there, and is {is_one}", hint="leave persistent out to mount it")


def _walk(tree: Path, mount: VolumeMount) -> None:
    """Check that the subpath exists, or make it for a writable mount. Follows no links.

    Raises FileMissing, NotADirectory, OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(tree, flags)
    except FileNotFoundError:
        raise Corrupted(f"the files of volume {mount.name!r} are gone: {tree} is missing") from None
    try:
        for part in Path(mount.subpath).parts:
            below = _step(fd, part, mount, flags)
            os.close(fd)
            fd = below
    finally:
        os.close(fd)


def _step(directory: int, part: str, mount: VolumeMount, flags: int) -> int:
    try:
        return os.open(part, flags, dir_fd=directory)
    except FileNotFoundError:
        if mount.read_only:
            text = f"volume {mount.name!r} has no directory {mount.subpath!r}, and a read-only mount does not make it"
            raise FileMissing(text, errno=errno.ENOENT) from None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        text = f"{mount.subpath!r} of volume {mount.name!r} is a file or a link, or leads through one"
        raise NotADirectory(text, errno=errno.ENOTDIR) from None
    try:
        os.mkdir(part, 0o755, dir_fd=directory)
    except FileExistsError:
        return os.open(part, flags, dir_fd=directory)  # another sandbox has just made it
    made = os.open(part, flags, dir_fd=directory)
    os.fchown(made, USER, USER)
    return made


def _not_found(name: str) -> VolumeNotFound:
    return VolumeNotFound(f"there is no volume {name!r}")
