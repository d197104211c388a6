"""The base of every kind of storage: makes, copies, limits and removes the trees that sandboxes write."""

from __future__ import annotations

import errno
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.core import Corrupted, DiskFull, ProviderUnavailable, SkerryError, SnapshotKind
from skerry.providers.local.host import program
from skerry.providers.local.locks import FileLock

_LOOK_AT_KERNEL_LOG = "`dmesg` says why"


class Storage(ABC):
    """The trees of one SKERRY_HOME, or those of them that are encrypted."""

    kind: str
    snapshots: SnapshotKind
    """What a snapshot here is."""

    def __init__(self, home: Path, root: str = "pool") -> None:
        self.home = home
        self.root = home / root
        self.uppers = self.root / "uppers"
        self.kept = self.root / "snapshots"
        self.volumes = self.root / "volumes"
        self.layers = self.root / "layers"
        self.words = self.root / "words"

    def lock(self) -> FileLock:
        """Protects the choice of a storage, making it, mounting and unmounting it."""
        return FileLock(self.home / "pool.lock")

    def prepare(self) -> None:
        """Make the storage usable; cheap enough for every use. Raises ProviderUnavailable, Corrupted, DiskFull."""
        if not self.ready():
            with self.lock():
                self.make_ready()

    def ready(self) -> bool:
        """Whether the storage can be used as it is. Raises ProviderUnavailable, Corrupted."""
        return self._directories()[-1].is_dir()

    def make_ready(self) -> None:
        """Make the storage usable; the caller holds the lock. Raises as `prepare` does."""
        with typed_errors(self.home):
            for path in (self.root, *self._directories()):
                path.mkdir(mode=0o700, exist_ok=True)

    def _directories(self) -> tuple[Path, ...]:
        return (self.uppers, self.kept, self.volumes, self.layers, self.words)  # the last one tells that all are there

    @abstractmethod
    def require_limits(self, option: str) -> None:
        """Raises Unsupported where no tree's size can be limited."""

    def default_limit(self) -> int | None:
        """How much a sandbox may write if its caller set no limit; None where no limit can be enforced."""
        return None

    @abstractmethod
    def create(self, path: Path, limit: int | None) -> None:
        """Make an empty tree. Raises DiskFull, OSError."""

    def settle(self, dirty: int) -> None:  # noqa: B027  a kind may have nothing to do
        """Write what is pending, so that a copy is quicker; `dirty` bytes of it are in the tree to be copied."""

    @abstractmethod
    def copy(self, source: Path, target: Path, *, limit: int | None = None, read_only: bool = False) -> None:
        """Copy what `source` has now. Nobody may write to `source` during the copy. Raises DiskFull, OSError."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a tree; one that does not exist is not an error. Raises OSError."""

    @abstractmethod
    def set_limit(self, path: Path, limit: int) -> None:
        """Raises Unsupported, OSError."""

    @contextmanager
    def extended(self, path: Path, otherwise: int | None) -> Iterator[None]:
        """Give a tree a little more room within the block, then its old limit again, or `otherwise`."""
        yield

    @abstractmethod
    def used(self, path: Path) -> int | None:
        """The bytes in a tree, as of a few seconds ago; None where counting means looking at every file."""

    def sweep(self) -> None:  # noqa: B027  a kind may have nothing to do
        """Remove what earlier deletions could not."""


def remove_tree(path: Path) -> None:
    """Delete a tree a sandbox may have written: any depth, any names, links never followed. Raises OSError."""
    if not path.exists():
        return
    done = subprocess.run(
        [program("rm"), "-rf", "--one-file-system", "--", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 and path.exists():
        raise OSError(errno.EIO, f"cannot remove {path}: {done.stderr.strip()[:300]}")


def flush(path: Path) -> None:
    """Write everything on the file system of `path` to disk, which updates its accounts too. Raises OSError."""
    done = subprocess.run([program("sync"), "-f", str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(errno.EIO, f"cannot write {path} to disk: {done.stderr.strip()[:300]}")


@contextmanager
def typed_errors(home: Path) -> Iterator[None]:
    """Turn the kernel's errors of a full or damaged disk into ours. Raises DiskFull, Corrupted, ProviderUnavailable."""
    try:
        yield
    except SkerryError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room under {home}", errno=error.errno) from error
        if error.errno in (errno.EIO, errno.EUCLEAN):
            raise Corrupted(f"the disk of {home} is damaged: {error}", hint=_LOOK_AT_KERNEL_LOG) from error
        if error.errno == errno.EROFS:
            raise ProviderUnavailable(f"the disk of {home} is read-only: {error}", hint=_LOOK_AT_KERNEL_LOG) from error
        raise
