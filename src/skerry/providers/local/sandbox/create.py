"""Makes sandboxes: checks everything before it makes anything, and leaves nothing behind after a failure."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from skerry.core import (
    Conflict,
    QuotaExceeded,
    Resources,
    SandboxNotFound,
    SandboxSpec,
    State,
    Unsupported,
    human_size,
    limits,
    new_sandbox_id,
)
from skerry.providers.local.host import ProcessId, runtime
from skerry.providers.local.launch import launch
from skerry.providers.local.limits import network
from skerry.providers.local.limits.resources import LEAST_DISK, check_limits, check_supported
from skerry.providers.local.sandbox import record as records
from skerry.providers.local.sandbox.changes import Changes
from skerry.providers.local.sandbox.folders import KeyTaken
from skerry.providers.local.sandbox.record import Record
from skerry.providers.local.storage.bases import Base, find_base
from skerry.providers.local.storage.layers import Templates
from skerry.providers.local.storage.snapshots import Snapshots
from skerry.providers.local.storage.volumes import Volumes


class Creation:
    """Makes the new sandboxes of one SKERRY_HOME."""

    def __init__(self, changes: Changes, templates: Templates, snapshots: Snapshots, volumes: Volumes) -> None:
        self._changes = changes
        self._templates = templates
        self._snapshots = snapshots
        self._volumes = volumes

    def create(self, spec: SandboxSpec) -> Record:
        """Make a sandbox and wait for its agent. A failed call leaves nothing behind."""
        which = runtime()
        launch.check_binaries()
        self._changes.home.prepare()
        asked = ""
        if spec.idempotency_key is not None:
            asked = records.digest(spec)
            if known := self._known(spec.idempotency_key, asked):
                return known  # even if what it was made from is gone by now
        spec = self.placed(spec)
        granted = self.grant(spec)
        if spec.secrets_of is not None:
            theirs = self._changes.store.read(spec.secrets_of).spec.secrets
            spec = dataclasses.replace(spec, secrets={**theirs, **spec.secrets}, secrets_of=None)
        with self._base(spec) as base:
            _check_room(base, granted)
            spec = dataclasses.replace(spec, template=base.template)
            self._volumes.check(spec, host=base.host)
            return self._create(dataclasses.replace(_new_record(spec, granted, which[0], base), asked=asked))

    def placed(self, spec: SandboxSpec) -> SandboxSpec:
        """`spec`, with whether the sandbox's disk is encrypted; then the encrypted pool is there.

        Raises Unsupported, SnapshotNotFound, DiskLocked.
        """
        encrypted = spec.encrypted is True
        if spec.snapshot is not None:
            source = self._snapshots.find(spec.snapshot)
            encrypted = source.encrypted
            if spec.encrypted not in (None, encrypted):
                what = "encrypted" if encrypted else "not encrypted"
                raise Unsupported(
                    f"snapshot {source.id} is {what}, and so is what begins with it",
                    option="encrypted",
                    hint="export its state and import that with the encryption that you want",
                )
        if encrypted:
            self._changes.home.encrypted.make()
        return dataclasses.replace(spec, encrypted=encrypted)

    def grant(self, spec: SandboxSpec) -> Resources:
        """The limits a sandbox gets. Raises Unsupported, QuotaExceeded."""
        asked, allowed = spec.resources, limits()
        storage = self._changes.home.storage_of(encrypted=spec.encrypted is True)
        check_supported(asked, storage, within="resources.")
        if spec.isolation not in (None, "container"):
            raise Unsupported(f"the isolation level {spec.isolation!r} is not available here", option="isolation")
        if spec.on_timeout == "pause":
            raise Unsupported(
                "the local provider cannot pause a sandbox at its timeout: no process of Skerry runs then",
                option="on_timeout",
                hint="use on_timeout='stop', which keeps the files",
            )
        if spec.network == "open":
            network.require()
        granted = Resources(
            cpu=asked.cpu if asked.cpu is not None else min(allowed.cpu, allowed.max_cpu),
            memory=asked.memory if asked.memory is not None else min(allowed.memory, allowed.max_memory),
            disk=asked.disk if asked.disk is not None else storage.default_limit(),
            pids=asked.pids if asked.pids is not None else min(allowed.pids, allowed.max_pids),
        )
        check_limits(granted, self._changes.cgroups)
        return granted

    @contextmanager
    def _base(self, spec: SandboxSpec) -> Iterator[Base]:
        """What the sandbox begins with, kept during the block. Raises TemplateNotFound, SnapshotNotFound."""
        if spec.snapshot is None:
            # `host` is never removed: its sandboxes need no lock, which would slow them down
            with self._templates.using() if spec.template != "host" else nullcontext():
                yield find_base(self._changes.store, spec.template)
        else:
            with self._snapshots.held(spec.snapshot) as kept:
                yield self._snapshots.base(kept)

    def _create(self, record: Record) -> Record:
        changes = self._changes
        while True:
            try:
                record, lock = changes.store.add(record)
                break
            except KeyTaken:  # another create at the same time took it: its sandbox is the answer
                assert record.spec.idempotency_key is not None
                if known := self._known(record.spec.idempotency_key, record.asked):
                    return known
        try:
            record = changes.bring_up(record, lock)
            changes.save(record, ("created", record.created_at), ("ready", time.time()))
            return record
        except BaseException:
            changes.tear_down(record)
            raise
        finally:
            lock.release()

    def _known(self, key: str, asked: str) -> Record | None:
        """The sandbox made under this key, if it still exists. Raises Conflict if it was made with other options."""
        store = self._changes.store
        sandbox_id = store.holder_of(store.key_path(key))
        if sandbox_id is None:
            return None
        try:
            with store.lock(sandbox_id):  # waits for a create that is still under way
                self._changes.settle(sandbox_id)  # its maker may have died, or it may have expired
                record = store.read(sandbox_id)
        except SandboxNotFound:
            return None
        if record.asked != asked:
            raise Conflict("this idempotency key was used with other options", hint="use a new key for a new sandbox")
        return record


def _new_record(spec: SandboxSpec, granted: Resources, runtime: str, base: Base) -> Record:
    return Record(
        id=new_sandbox_id(),
        state=State.CREATING,
        spec=spec,
        limits=granted,
        token=secrets.token_hex(16),
        created_at=time.time(),
        user=spec.user or base.user,
        workdir=spec.workdir or base.workdir,
        ports=base.ports,
        base_env=base.env,
        lowers=base.layers,
        host=base.host,
        inherited=base.inherited,
        seed=base.seed,
        snapshot=base.snapshot,
        runtime=runtime,
        lease=ProcessId.mine() if spec.leased else None,
    )


def _check_room(base: Base, granted: Resources) -> None:
    if granted.disk is not None and base.holds + LEAST_DISK > granted.disk:
        raise QuotaExceeded(
            f"the snapshot holds {human_size(base.holds)}, which leaves no room under a disk limit of "
            f"{human_size(granted.disk)}",
            hint="ask for a larger disk",
        )
