"""A snapshot's record on disk: one JSON file beside the others, replaced atomically, checked when read."""

from __future__ import annotations

import json
from dataclasses import field
from pathlib import Path

from skerry._model import Model
from skerry.core import (
    Corrupted,
    InvalidArgument,
    NewerVersion,
    SnapshotInfo,
    SnapshotKind,
    plain,
    read_record,
    replace_file,
)
from skerry.providers.local.host import ProcessId

VERSION = 2
READS = (1, VERSION)


class Kept(Model):
    """What Skerry knows of a snapshot. Only the holder of the lock of all snapshots writes it."""

    id: str
    name: str | None
    description: str
    sandbox_id: str
    parent: str | None
    created_at: float
    kind: SnapshotKind
    size: int | None
    template: str
    user: str
    workdir: str
    ports: tuple[int, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    """All variables at that moment, secrets left out."""
    lowers: tuple[str, ...] = ()
    """The read-only layers under it, topmost first, relative to SKERRY_HOME."""
    host: bool = True
    inherited: int = 0
    """Bytes in the snapshots among its lowers."""
    seed: str | None = None
    """As the sandbox's: see Record."""
    hidden: bool = False
    """Whether it was made for copies, or deleted while something needs it: not listed, goes when nothing needs it."""
    ready: bool = False
    """Whether its tree is complete."""
    lease: ProcessId | None = None
    """The process that makes it, or that is about to use a hidden one."""
    encrypted: bool = False
    """Whether its tree is in the encrypted pool."""

    @property
    def leased(self) -> bool:
        return self.lease is not None and self.lease.alive()

    @property
    def total(self) -> int:
        """The bytes that a sandbox made from it has from the start."""
        return (self.size or 0) + self.inherited

    def info(self) -> SnapshotInfo:
        return SnapshotInfo(
            id=self.id,
            name=self.name,
            description=self.description,
            sandbox_id=self.sandbox_id,
            parent=self.parent,
            created_at=self.created_at,
            kind=self.kind,
            size=self.size,
            template=self.template,
            env_names=tuple(self.env),
            workdir=self.workdir,
            encrypted=self.encrypted,
        )


def write(path: Path, kept: Kept) -> None:
    """Replace the record as a whole. Raises OSError."""
    replace_file(path, json.dumps({"version": VERSION, **plain(kept)}, default=plain).encode(), flush=False)


def read(path: Path) -> Kept:
    """Raises FileNotFoundError, NewerVersion, or Corrupted when the file is not a snapshot's record."""
    data = path.read_bytes()
    try:
        return read_record(Kept, data, READS)
    except NewerVersion as error:
        raise NewerVersion(f"the record of snapshot {path.stem} is from a newer version of Skerry ({error})") from None
    except InvalidArgument as error:
        raise Corrupted(
            f"the record of snapshot {path.stem} is damaged ({error})",
            hint=f"`skerry snapshot rm {path.stem}` removes it and its files",
        ) from error
