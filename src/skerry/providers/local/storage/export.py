"""Exports the state of a sandbox as one file, and makes a sandbox from such a file.

A file holds the layers above the template, topmost first. An import makes them hidden snapshots, each leased to this
process and not `ready` before the last byte of the file has been verified; the new sandbox begins with the topmost. If
the process dies in the middle, the sweep of snapshots removes the trees.
"""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from skerry.archive import Archive, Limits, open_archive, write_archive
from skerry.core import (
    RESERVED_LABELS,
    Corrupted,
    DiskFull,
    ExportInfo,
    FileError,
    QuotaExceeded,
    Resources,
    SandboxSpec,
    TemplateNotFound,
    Unsupported,
    human_size,
    is_snapshot_id,
    limits,
    new_snapshot_id,
)
from skerry.providers.local.home import Home
from skerry.providers.local.host import ProcessId
from skerry.providers.local.limits.resources import merge
from skerry.providers.local.sandbox.capture import Capture
from skerry.providers.local.sandbox.create import Creation
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage import export_manifest
from skerry.providers.local.storage.base import flush, typed_errors
from skerry.providers.local.storage.bases import Base, find_base
from skerry.providers.local.storage.choose import Storage
from skerry.providers.local.storage.export_manifest import StateFile
from skerry.providers.local.storage.layers import Templates
from skerry.providers.local.storage.snapshot_record import Kept
from skerry.providers.local.storage.snapshots import MOST_LAYERS, Snapshots, snapshots_in
from skerry.providers.local.storage.volumes import Volumes

Progress = Callable[[int], None]


class Exports:
    """Exports and imports of one SKERRY_HOME."""

    def __init__(
        self,
        home: Home,
        capture: Capture,
        snapshots: Snapshots,
        creation: Creation,
        templates: Templates,
        volumes: Volumes,
    ) -> None:
        self._home = home
        self._capture = capture
        self._snapshots = snapshots
        self._creation = creation
        self._templates = templates
        self._volumes = volumes

    # -- export

    def export(self, source_id: str, target: BinaryIO, key: bytes | None, on_progress: Progress | None) -> ExportInfo:
        """Write a sandbox, as it is now, or a snapshot. A sandbox that runs stands still for a moment, then continues.

        Raises SandboxNotFound, SnapshotNotFound, Conflict for an archived one, DiskFull, and what `target` raises.
        """
        with self._frozen(source_id) as (kept, about):
            layers = [self._home.store.home / layer for layer in self._layers(kept)]
            try:
                written = write_archive(
                    target, about.data(), layers, kind=export_manifest.KIND, key=key, on_progress=on_progress
                )
            except FileError as error:
                if error.errno == errno.EPIPE and error.__cause__ is not None:
                    raise error.__cause__ from None  # the reader is gone, and no file is at fault
                raise
        return ExportInfo(
            source=source_id,
            template=about.template,
            env_names=self._own_names(about),
            encrypted=key is not None,
            layers=len(layers),
            entries=written.entries,
            files=written.files,
            skipped=written.skipped,
            content_bytes=written.content_bytes,
            bytes_written=written.bytes_written,
            sha256=written.sha256,
        )

    @contextmanager
    def _frozen(self, source_id: str) -> Iterator[tuple[Kept, StateFile]]:
        """What to write; nobody changes or removes it within the block."""
        snapshots = self._snapshots
        if is_snapshot_id(source_id):
            with snapshots.held(source_id) as kept:
                yield kept, _about(kept, None, Resources())
            return
        self._home.prepare()
        record = self._home.store.read(source_id)
        made = self._capture.take(source_id, name=None, description="", hidden=True)
        try:
            yield made, _about(made, record, self._chosen(record))
        finally:
            snapshots.release([made.id])

    def _layers(self, kept: Kept) -> list[str]:
        return [self._snapshots.layer(kept), *(layer for layer in kept.lowers if snapshots_in([layer]))]

    def _chosen(self, record: Record) -> Resources:
        """The limits that differ from those a sandbox gets by itself."""
        usual, now = self._creation.grant(SandboxSpec()), record.limits
        return Resources(
            cpu=now.cpu if now.cpu != usual.cpu else None,
            memory=now.memory if now.memory != usual.memory else None,
            disk=now.disk if now.disk != usual.disk else None,
            pids=now.pids if now.pids != usual.pids else None,
        )

    def _own_names(self, about: StateFile) -> tuple[str, ...]:
        """The variables besides those of the template, which everybody may know."""
        try:
            usual = find_base(self._home.store, about.template).env
        except (TemplateNotFound, Corrupted):
            usual = {}
        return tuple(name for name, value in about.env.items() if usual.get(name) != value)

    # -- import

    def import_(self, source: BinaryIO, spec: SandboxSpec, key: bytes | None, on_progress: Progress | None) -> Record:
        """Make a sandbox from a file, which provides what `spec` leaves open. On any error nothing is left.

        What can be refused is refused before the file is read; the name is taken after all of it was read.

        Raises as `open_archive`, `Archive.unpack` and `Creation.create` do; TemplateNotFound.
        """
        if spec.idempotency_key is not None:
            raise Unsupported("an import takes no idempotency key", option="idempotency_key")
        self._home.prepare()
        with open_archive(source, key=key) as archive:
            about = export_manifest.parse(archive.manifest)
            if archive.manifest.layers > MOST_LAYERS + 1:
                raise Unsupported(
                    f"the file has {archive.manifest.layers} layers, more than {MOST_LAYERS + 1}", option="import_state"
                )
            spec = self._creation.placed(spec)
            storage = self._home.storage_of(encrypted=spec.encrypted is True)
            with self._templates.using():  # until a record names the template
                base = self._base(about, spec)
                spec = _completed(spec, about, base)
                room = self._creation.grant(spec).disk or limits().max_disk
                self._volumes.check(spec, host=base.host)
                self._home.store.require_free(spec)
                made = self._announce(archive.manifest.layers, about, base, spec.encrypted is True)
            try:
                self._unpack(archive, made, storage, room, on_progress)
                return self._creation.create(dataclasses.replace(spec, snapshot=made[0].id))
            finally:
                self._snapshots.release([kept.id for kept in made])

    def _base(self, about: StateFile, spec: SandboxSpec) -> Base:
        """The template that the file is based on, or the one that the caller asked for."""
        wanted = about.template if spec.template == "host" else spec.template
        try:
            return find_base(self._home.store, wanted)
        except TemplateNotFound as error:
            raise TemplateNotFound(
                f"the file needs the template {wanted[:200]!r}, which does not exist here",
                hint="build that template first, or name an equal one",
            ) from error

    def _announce(self, count: int, about: StateFile, base: Base, encrypted: bool) -> list[Kept]:
        """Write a record for each layer, topmost first, with those below it. Raises DiskFull; then there is none."""
        made = list[Kept]()
        lowers = base.layers
        try:
            for _ in range(count):
                announced = Kept(
                    id=new_snapshot_id(),
                    name=None,
                    description="",
                    sandbox_id="",
                    parent=None,
                    created_at=time.time(),
                    kind=self._home.storage_of(encrypted=encrypted).snapshots,
                    encrypted=encrypted,
                    size=None,
                    template=base.template,
                    user=about.user,
                    workdir=about.workdir,
                    ports=about.ports,
                    env=about.env,
                    lowers=lowers,
                    host=base.host,
                    hidden=True,
                    lease=ProcessId.mine(),
                )
                self._snapshots.add(announced)
                made.insert(0, announced)
                lowers = (self._snapshots.layer(announced), *lowers)
        except BaseException:
            self._snapshots.release([kept.id for kept in made])
            raise
        return made

    def _unpack(
        self, archive: Archive, made: list[Kept], storage: Storage, room: int, on_progress: Progress | None
    ) -> None:
        """Fill the trees, which makes them snapshots. Raises as `Archive.unpack` does."""
        trees = [self._snapshots.tree(kept.id) for kept in made]
        for tree in trees:
            _make_tree(storage, tree, room)
        try:
            archive.unpack([tree / "u" for tree in trees], limits=Limits(max_bytes=room), on_progress=on_progress)
        except DiskFull as error:
            if error.errno != errno.EDQUOT:
                raise
            raise QuotaExceeded(
                f"the file holds more than the disk limit of {human_size(room)}", hint="ask for a larger disk"
            ) from error
        if storage.snapshots == "disk":
            flush(trees[0])  # brings the accounts up to date
        below = 0
        for kept, tree in zip(reversed(made), reversed(trees), strict=True):
            size = storage.used(tree)
            self._snapshots.add(dataclasses.replace(kept, size=size, inherited=below, ready=True))
            below += size or 0


def _make_tree(storage: Storage, tree: Path, room: int) -> None:
    storage.create(tree, room if storage.default_limit() is not None else None)
    with typed_errors(storage.home):
        for name in ("u", "w"):
            (tree / name).mkdir(mode=0o755)


def _about(kept: Kept, record: Record | None, resources: Resources) -> StateFile:
    return StateFile(
        skerry=version("skerry"),
        source=kept.id if record is None else record.id,
        source_kind="snapshot" if record is None else "sandbox",
        created_at=kept.created_at,
        template=kept.template,
        user=kept.user,
        workdir=kept.workdir,
        env=kept.env,
        resources=resources,
        ports=kept.ports,
        metadata={} if record is None else dict(record.spec.metadata),
        labels={} if record is None else dict(record.spec.labels),
        on_timeout=None if record is None else record.spec.on_timeout,
    )


def _completed(spec: SandboxSpec, about: StateFile, base: Base) -> SandboxSpec:
    """`spec`, with what it leaves open taken from the file, except the labels of a server: they say whose it is."""
    labels = {key: value for key, value in about.labels.items() if not key.startswith(RESERVED_LABELS)}
    return dataclasses.replace(
        spec,
        template=base.template,
        metadata=spec.metadata or about.metadata,
        labels=spec.labels or labels,
        on_timeout=spec.on_timeout or about.on_timeout,
        resources=merge(about.resources, spec.resources),
    )
