"""The encrypted pool: a pool whose file lies in a directory that the kernel encrypts.

    SKERRY_HOME/encrypted.img      an ext4 file system; its first mount needs no key
    SKERRY_HOME/encrypted.disk/    where it is mounted: files/ is what the kernel encrypts, files/pool.img the pool
    SKERRY_HOME/encrypted/         the pool, with the same directories as pool/

`encrypted.img` has its name from the moment when it is complete. The kernel knows the key as long as `encrypted.disk`
is mounted, and a process needs the key only to mount it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.core import (
    Corrupted,
    DiskLocked,
    InvalidArgument,
    ProviderUnavailable,
    Unsupported,
    flush_directory,
    replace_file,
)
from skerry.providers.local.host import knows_filesystem, program
from skerry.providers.local.log import log
from skerry.providers.local.storage import fscrypt
from skerry.providers.local.storage.base import flush, typed_errors
from skerry.providers.local.storage.pool import PoolStorage, make_image, missing_for_pool, pool_size, run

if TYPE_CHECKING:
    from skerry.archive import Key

KEY_VARIABLE = "SKERRY_DISK_KEY"
KEY_DIRECTORY = Path("/etc/skerry/disk-keys")
_OPTIONS = "loop,noatime,nosuid,nodev,noexec,discard"
_JOURNAL = 16
"""MiB: the file system holds one file, so few of its changes are on the way at a time."""
_SPARE = 64 << 20
_PATIENCE = 30.0
"""Seconds that the kernel may take to let go of the pool's file."""


class EncryptedPool(PoolStorage):
    """Where the files of encrypted sandboxes, their snapshots and encrypted volumes are."""

    kind = "encrypted"

    def __init__(self, home: Path) -> None:
        super().__init__(home, "encrypted")
        self.container = home / "encrypted.img"
        self.disk = home / "encrypted.disk"
        self._files = self.disk / "files"
        self.image = self._files / "pool.img"
        self._key: Key | None = None

    @property
    def archive_key(self) -> Path:
        """In the pool: the key of the archives of its sandboxes, which lie outside of it."""
        return self.root / "archive.key"

    def make(self) -> None:
        """Make the pool unless there is one, and make it usable.

        Raises Unsupported where this machine cannot encrypt, DiskLocked, DiskFull, InvalidArgument.
        """
        if not self.ready():
            with self.lock():
                if not self.container.exists():
                    if missing := missing_for_encryption():
                        raise Unsupported(
                            f"this machine cannot encrypt the disks of sandboxes: it lacks {missing[0]}",
                            option="encrypted",
                            hint=missing[1],
                        )
                    self._make()
                self.make_ready()

    def unlock(self, key: Key | None) -> bool:
        """Mount the pool with this key, or with the one that it finds; returns whether it was not mounted.

        Raises DiskLocked, Corrupted.
        """
        if self.ready():
            return False
        self._key = key
        self.prepare()
        return True

    def make_ready(self) -> None:
        from skerry.archive import Key

        super().make_ready()
        if not self.archive_key.exists():
            with typed_errors(self.home):
                replace_file(self.archive_key, Key.generate().hex().encode(), flush=True)

    def _mount(self) -> None:
        if not self.container.exists():
            raise Corrupted(
                f"{self.container} is missing: it held the files of every encrypted sandbox, snapshot and volume",
                hint="put it back, or destroy what needs it",
            )
        with contextlib.suppress(ProviderUnavailable):  # it is open in another mount namespace: it stays as it is
            self._close(patience=1.0)
        if not os.path.ismount(self.disk):
            self._open(self.container)
        try:
            expected = fscrypt.key_id(self._files) if self._files.is_dir() else None
            if expected is None:
                raise Corrupted(f"{self.container} has no encrypted directory", hint="put back the one that had")
            key, where = self._find_key(expected)
            if fscrypt.add_key(self.disk, key.secret()) != expected:
                raise DiskLocked(
                    f"the encrypted pool of {self.home} is locked: {where} has another key",
                    hint=f"the pool needs the key with the id {expected.hex()}",
                )
            super()._mount()
        except BaseException:
            with contextlib.suppress(ProviderUnavailable):
                self._close(patience=1.0)
            raise

    def _find_key(self, key_id: bytes) -> tuple[Key, str]:
        """The pool's key, and where it was found. Raises DiskLocked."""
        from skerry.archive import Key

        if self._key is not None:
            return self._key, "what was given"
        own = _generated(key_id)
        where = os.environ.get(KEY_VARIABLE) or (f"file:{own}" if own.exists() else None)
        try:
            if where is not None:
                return Key.of(where), KEY_VARIABLE if where == os.environ.get(KEY_VARIABLE) else str(own)
        except InvalidArgument as error:
            raise DiskLocked(f"the encrypted pool of {self.home} is locked: {error}", hint=error.hint) from error
        raise DiskLocked(f"the encrypted pool of {self.home} is locked: neither {KEY_VARIABLE} nor {own} has its key")

    def _make(self) -> None:
        """Make the whole pool under another name; what a process that died has left of it is made again."""
        from skerry.archive import Key

        self._close()
        fresh = self.container.with_suffix(".new")
        size = pool_size(self.home)
        given = os.environ.get(KEY_VARIABLE)
        key = Key.of(given) if given else Key.generate()
        try:
            with typed_errors(self.home):
                arguments = ("-O", "encrypt", "-b", "4096", "-m", "0", "-N", "64", "-J", f"size={_JOURNAL}")
                lazy = ("-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1")
                make_image(fresh, size + size // 32 + _SPARE, "mkfs.ext4", "-q", "-F", *arguments, *lazy)
                self._open(fresh)
                key_id = fscrypt.add_key(self.disk, key.secret())
                if not given:
                    _keep(key, _generated(key_id))
                self._files.mkdir(mode=0o700)
                fscrypt.encrypt(self._files, key_id)
                self._make_pool(size)
                flush(self.disk)
                self._close()
                fresh.rename(self.container)
                flush_directory(self.home)
        finally:
            self._close()
            fresh.unlink(missing_ok=True)

    def _open(self, container: Path) -> None:
        self.disk.mkdir(mode=0o700, exist_ok=True)
        run("mount", "-t", "ext4", "-o", _OPTIONS, str(container), str(self.disk))

    def _close(self, patience: float | None = None) -> None:
        """Make the kernel forget the key, and unmount. Raises ProviderUnavailable while the pool's file is open.

        It is for a moment after a sandbox has ended, and while a launcher makes its mount namespace. Unmounting alone
        proves nothing: another mount namespace may have a copy of the mount, with the key.
        """
        end = time.monotonic() + (_PATIENCE if patience is None else patience)
        while os.path.ismount(self.disk):
            if self._forget_key():
                run("umount", str(self.disk))
            elif time.monotonic() > end:
                raise ProviderUnavailable(
                    f"the encrypted pool of {self.home} is still open, so it is not locked",
                    hint=f"end the processes that have it mounted: `grep -l {self.root} /proc/*/mountinfo` shows them",
                )
            else:
                time.sleep(0.02)

    def _forget_key(self) -> bool:
        found = fscrypt.key_id(self._files) if self._files.is_dir() else None
        return found is None or fscrypt.remove_key(self.disk, found)

    def unmount(self) -> bool:
        with self.lock():
            mounted = os.path.ismount(self.disk)
            while os.path.ismount(self.root):  # also what a process that died mounted over it
                run("umount", str(self.root))
            self._close()
            return mounted

    def sweep_mounts(self) -> None:
        """Unmount and remove what a process that died was making or mounting."""
        fresh = self.container.with_suffix(".new")
        if os.path.ismount(self.root) or not (os.path.ismount(self.disk) or fresh.exists()):
            return
        lock = self.lock()
        try:
            if lock.try_acquire() and not os.path.ismount(self.root):
                self._close()
                fresh.unlink(missing_ok=True)
        finally:
            lock.release()

    def key_file(self) -> Path | None:
        """The generated key of this pool, while it is mounted; None: its key is somewhere else."""
        found = fscrypt.key_id(self._files) if os.path.ismount(self.disk) else None
        return None if found is None or not _generated(found).exists() else _generated(found)


def _generated(key_id: bytes) -> Path:
    """Where Skerry keeps a key that it has generated."""
    return KEY_DIRECTORY / f"{key_id.hex()}.key"


def _keep(key: Key, file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, f"{key.hex()}\n".encode(), flush=True)
    log.warning("the key of the encrypted pool is in %s; keep a copy elsewhere: without it the files are lost", file)


def missing_for_encryption() -> tuple[str, str] | None:
    """What this machine lacks for an encrypted pool, and how to get it."""
    if missing := missing_for_pool():
        return missing, "apt-get install -y btrfs-progs; the kernel needs btrfs and loop devices"
    if not knows_filesystem("ext4") or not Path("/sys/fs/ext4/features/encryption").exists():
        return "a kernel whose ext4 encrypts", "use a kernel with CONFIG_EXT4_FS and CONFIG_FS_ENCRYPTION"
    try:
        program("mkfs.ext4")
    except ProviderUnavailable as error:
        return error.message, error.hint
    return None
