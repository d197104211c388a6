"""A sandbox's record on disk: one JSON file, replaced atomically, checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import field
from pathlib import Path

from skerry._model import Model
from skerry.core import (
    Corrupted,
    ErrorType,
    Event,
    InvalidArgument,
    NewerVersion,
    Resources,
    SandboxFailed,
    SandboxInfo,
    SandboxSpec,
    State,
    from_plain,
    load_json,
    plain,
    plain_name,
    read_record,
    replace_file,
)
from skerry.providers.local.host import ProcessId, boot_id, boottime

VERSION = 4
"""Raised with every new field, so that an older version refuses the record instead of misreading it."""
READS = (2, 3, VERSION)


class Record(Model):
    """What Skerry knows of a sandbox. Only the holder of its lock writes it."""

    id: str
    state: State
    spec: SandboxSpec
    limits: Resources
    token: str = field(repr=False)
    created_at: float
    user: str = "user"
    workdir: str = "/workspace"
    ports: tuple[int, ...] = ()
    base_env: dict[str, str] = field(default_factory=dict)
    """The template's variables, and those of the snapshot it was made from."""
    env: dict[str, str] | None = None
    """All variables but secrets as they were when it last stopped or paused; None: those it was created with."""
    lowers: tuple[str, ...] = ()
    """The read-only layers under its own, topmost first, relative to SKERRY_HOME."""
    host: bool = True
    """Whether this machine's /usr is bound into it."""
    inherited: int = 0
    """Bytes in the layers of snapshots it was made from: they count against its disk limit."""
    seed: str | None = None
    """The tree its own layer began as a copy of, relative to SKERRY_HOME; None: it began empty."""
    sealed: bool = False
    """Whether its archive is encrypted, while it is archived."""
    archive_failed_at: float | None = None
    """When a sweep last failed to archive it."""
    snapshot: str | None = None
    """The snapshot its own layer was last equal to."""
    pending: str | None = None
    """A change under way. A process that finds it with the lock free finishes or undoes it: see `Recoveries`."""
    pending_data: dict[str, str] = field(default_factory=dict)
    slot: int | None = None
    runtime: str = ""
    init: ProcessId | None = None
    started_at: float | None = None
    stopped_at: float | None = None
    last_active_at: float | None = None
    expires_at: float | None = None
    deadline: float | None = None
    """The end on the boot clock of `boot`, which no change of the wall clock moves."""
    boot: str = ""
    lease: ProcessId | None = None
    asked: str = ""
    """With an idempotency key, the digest of the spec as it was given: later changes of the sandbox change `spec`."""
    prepared: bool = False
    """See SandboxInfo."""
    reason: str | None = None

    @property
    def name(self) -> str | None:
        """The name that people gave it; `spec.name` is unique among all sandboxes of this home."""
        return plain_name(self.spec.name, self.spec.labels)

    @property
    def encrypted(self) -> bool:
        """Whether its own layer is in the encrypted pool."""
        return self.spec.encrypted is True

    @property
    def alive(self) -> bool:
        return self.init is not None and self.init.alive()

    def expired(self) -> bool:
        """Whether its timeout has come. A sandbox that is stopping, stopped, archived or being unarchived does not age.

        Neither does a failed one that keeps its files at its timeout: it has no process.
        """
        if self.state in (State.STOPPING, State.STOPPED, State.ARCHIVED, State.RESTORING):
            return False
        if self.state is State.FAILED and not self.ends_for_good:
            return False
        if self.deadline is not None and self.boot == boot_id():
            return boottime() >= self.deadline - 0.05
        return self.expires_at is not None and time.time() >= self.expires_at

    @property
    def ends_for_good(self) -> bool:
        """Whether it is destroyed at its timeout."""
        return self.spec.at_timeout == "destroy"

    def abandoned(self) -> bool:
        """Whether it is leased to a process that is gone."""
        return self.lease is not None and not self.lease.alive()

    def info(self) -> SandboxInfo:
        spec = self.spec
        return SandboxInfo(
            id=self.id,
            name=self.name,
            provider="local",
            state=self.state,
            created_at=self.created_at,
            started_at=self.started_at if self.init is not None else None,
            last_active_at=self.last_active_at,
            expires_at=self.expires_at,
            resources=self.limits,
            template=spec.template.partition("@")[0],
            template_id=spec.template.partition("@")[2] or None,
            isolation="container",
            network=spec.network,
            user=self.user,
            workdir=self.workdir,
            purpose=spec.purpose,
            metadata=dict(spec.metadata),
            labels=dict(spec.labels),
            env_names=tuple({**spec.env, **spec.secrets}),
            leased_to=self.lease.pid if self.lease else None,
            encrypted=self.encrypted,
            reason=self.reason,
            snapshot=self.snapshot,
            volumes=spec.volumes,
            ports=self.ports,
            prepared=self.prepared,
            timeout=spec.timeout,
            on_timeout=spec.at_timeout,
            on_timeout_asked=spec.on_timeout,
            auto_stop=spec.auto_stop,
            auto_archive=spec.auto_archive,
            auto_delete=spec.auto_delete,
            instructions=spec.instructions,
        )


NEW_IN_MOUNTS = ("size", "persistent", "mount_existing")


def digest(spec: SandboxSpec) -> str:
    """A digest that is equal for specs that ask for the same."""
    asked = plain(spec)
    # Digests in records that are older than these options stay valid.
    for option in ("on_timeout", "instructions", "encrypted"):
        if asked[option] is None:
            del asked[option]
    asked["volumes"] = [
        {name: value for name, value in plain(mount).items() if value or name not in NEW_IN_MOUNTS}
        if mount.persistent is None
        else mount
        for mount in spec.volumes
    ]
    return hashlib.sha256(json.dumps(asked, default=plain, sort_keys=True).encode()).hexdigest()


def write(directory: Path, record: Record, *, flush: bool = False) -> None:
    """Replace the record as a whole: a reader sees the old one or the new one, as `replace_file` has it."""
    data = json.dumps({"version": VERSION, **plain(record)}, default=plain).encode()
    replace_file(directory / "record.json", data, flush=flush)


def remove(directory: Path) -> None:
    (directory / "record.json").unlink(missing_ok=True)


def read(directory: Path) -> Record:
    """Raises FileNotFoundError, NewerVersion, or Corrupted when the file is not a record."""
    path = directory / "record.json"
    data = path.read_bytes()
    try:
        return read_record(Record, data, READS)
    except NewerVersion as error:
        raise NewerVersion(
            f"the record of sandbox {directory.name} is from a newer version of Skerry ({error})"
        ) from None
    except InvalidArgument as error:
        raise Corrupted(
            f"the record of sandbox {directory.name} is damaged ({error})",
            hint=f"its files are in {directory}; `skerry rm {directory.name}` removes it",
        ) from error


def variables(record: Record) -> dict[str, str]:
    """The environment of a sandbox's commands when it starts."""
    if record.env is not None:
        return {**record.env, **record.spec.secrets}
    return {**record.base_env, **record.spec.env, **record.spec.secrets}


Happening = tuple[str, float] | tuple[str, float, dict[str, str]]
"""An event's type and time, and its data if it has any."""


def error_event(type: ErrorType, record: Record) -> Happening:
    """The event that a sandbox has failed, with the reason in its record."""
    return "error", time.time(), {"type": type, "code": SandboxFailed.code, "reason": record.reason or ""}


def log_events(directory: Path, *events: Happening) -> None:
    """Append events; one write, so concurrent writers never mix."""
    lines = "".join(json.dumps(dict(zip(("type", "time", "data"), event, strict=False))) + "\n" for event in events)
    fd = os.open(directory / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, lines.encode())
    finally:
        os.close(fd)


def read_events(directory: Path, sandbox_id: str, since: int) -> list[Event]:
    """The stored events after cursor `since`; a cursor is a line's number, from 1. Raises Corrupted."""
    try:
        lines = (directory / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    try:
        return [
            from_plain(Event, {**load_json(line), "cursor": number, "sandbox_id": sandbox_id})
            for number, line in enumerate(lines, start=1)
            if number > since
        ]
    except (ValueError, TypeError) as error:
        raise Corrupted(f"the event log of sandbox {sandbox_id} is damaged ({error})") from error
