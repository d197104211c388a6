"""The contract every provider fulfils: few verbs; everything else is derived from the agent's channel.

What a provider can do beyond these is a small ABC that it also derives from, so `capabilities()` reads it off the
class and cannot lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

from anyio.abc import ByteStream

from skerry.core.models import (
    BuiltTemplate,
    Changes,
    Event,
    ExportInfo,
    OnTimeout,
    Resources,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    Usage,
    VolumeInfo,
)
from skerry.wire import Hello

AGENT_PORT = 0
"""The port number under which `dial` opens the agent's own channel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """An open byte stream to an agent, and the token its HELLO needs.

    `greeting` is the agent's HELLO where the provider has exchanged greetings already: then neither side says it again.
    """

    stream: ByteStream
    token: bytes = field(repr=False)
    greeting: Hello | None = None


class Provider(ABC):
    """Makes sandboxes and opens byte streams into them. Safe to use from several processes at once."""

    name: str
    on_timeout: ClassVar[frozenset[OnTimeout]] = frozenset({"destroy"})
    """What it can do with a sandbox at its timeout: the values of `SandboxSpec.on_timeout` that it takes."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox whose agent answers. Cancelled or failed, nothing is left of it.

        Raises:
            Unsupported: an option that cannot be honoured, before anything is made.
            Conflict: the name is taken, or the idempotency key was used with another spec.
            QuotaExceeded: more than the configured maximum.
            ProviderUnavailable: this provider cannot work here.
        """

    @abstractmethod
    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Raises SandboxNotFound."""

    @abstractmethod
    async def find(self, id_or_name: str) -> SandboxInfo:
        """Raises SandboxNotFound."""

    @abstractmethod
    async def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox of this owner, oldest first."""

    @abstractmethod
    async def destroy(self, sandbox_id: str) -> None:
        """End it and remove everything of it. One that is not there is no error."""

    @abstractmethod
    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        """Open a byte stream into a running sandbox.

        Raises:
            SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost.
        """

    @abstractmethod
    async def usage(self, sandbox_id: str) -> Usage:
        """What the provider itself measures; disk and network may be missing (None, 0). Raises SandboxNotFound."""

    @abstractmethod
    async def events(self, sandbox_id: str, since: int = 0) -> Sequence[Event]:
        """The stored events of a sandbox with a cursor above `since`. Raises SandboxNotFound."""

    @abstractmethod
    async def sweep(self) -> Sequence[str]:
        """Remove what nobody owns any more; the ids of what was removed."""


class Deadlines(ABC):
    """Can change when a sandbox ends."""

    @abstractmethod
    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        """Note the new end, `seconds` from now; the agent has been told. Raises SandboxNotFound, QuotaExceeded."""


class Leases(ABC):
    """Can tie a sandbox's life to the calling process."""

    @abstractmethod
    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        """Note that the sandbox belongs to this process and ends with it, or no longer. Raises SandboxNotFound.

        One made with `SandboxSpec.leased` is `SandboxInfo.prepared` once this lease has been given back.
        """


class Resizable(ABC):
    """Can change limits while the sandbox runs."""

    @abstractmethod
    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        """Apply the limits that are not None. Raises SandboxNotFound, Unsupported, QuotaExceeded."""


class Stoppable(ABC):
    """Can end what runs in a sandbox, keep its files, and start it again. Each returns when it is so."""

    @abstractmethod
    async def stop(self, sandbox_id: str, *, grace: float) -> SandboxInfo:
        """Ask the processes to end, kill them after `grace` seconds; files and environment stay. Stopped: no error.

        Raises SandboxNotFound, Conflict for a state that does not allow it.
        """

    @abstractmethod
    async def start(self, sandbox_id: str) -> SandboxInfo:
        """Start one that is stopped or archived; resume one that is paused. Running: no error.

        Raises SandboxNotFound, SandboxFailed (`recover` it), Conflict.
        """

    @abstractmethod
    async def restart(self, sandbox_id: str, changes: Changes, *, grace: float) -> SandboxInfo:
        """Stop it, apply `changes`, start it. What cannot be honoured is refused before it is stopped.

        Raises SandboxNotFound, Unsupported, QuotaExceeded, Conflict.
        """

    @abstractmethod
    async def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        """Kill its processes and forget changed variables; `hard`: its files are again what they were at its creation.

        It runs afterwards. Volumes are not touched. Raises SandboxNotFound, Conflict.
        """

    @abstractmethod
    async def recover(self, sandbox_id: str) -> SandboxInfo:
        """Start one that has failed, with the files it had. Raises SandboxNotFound, Conflict if it has not failed."""


class Pausable(ABC):
    """Can freeze the processes of a sandbox in memory."""

    @abstractmethod
    async def pause(self, sandbox_id: str) -> SandboxInfo:
        """Paused: no error. Raises SandboxNotFound, Conflict for one that does not run."""

    @abstractmethod
    async def resume(self, sandbox_id: str) -> SandboxInfo:
        """Running: no error. Raises SandboxNotFound, Conflict for one that is not paused."""


class Snapshots(ABC):
    """Can keep the files of a sandbox as they are at a moment. `SandboxSpec.snapshot` begins with one."""

    @abstractmethod
    async def create_snapshot(
        self, sandbox_id: str, *, name: str | None, description: str, hidden: bool = False
    ) -> SnapshotInfo:
        """Of a sandbox in any state that has files; a running one stands still for the moment it takes.

        A `hidden` one is not listed and has no place in the tree of parents: for copies.

        Raises SandboxNotFound, Conflict for a taken name, DiskFull.
        """

    @abstractmethod
    async def list_snapshots(self, sandbox_id: str | None = None) -> Sequence[SnapshotInfo]:
        """Those taken of a sandbox, there or gone, or all; newest first."""

    @abstractmethod
    async def find_snapshot(self, id_or_name: str) -> SnapshotInfo:
        """Raises SnapshotNotFound."""

    @abstractmethod
    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Its children get its parent. What others were made from stays on disk until they are gone.

        Raises SnapshotNotFound.
        """

    @abstractmethod
    async def restore_snapshot(self, sandbox_id: str, snapshot_id: str) -> SandboxInfo:
        """Bring the files of a sandbox, under the same id, to exactly what they were; it runs afterwards if it ran.

        Raises SandboxNotFound, SnapshotNotFound, Conflict for a snapshot of another template.
        """


class Archivable(ABC):
    """Can put a sandbox into compressed cold storage; `start` brings it back."""

    @abstractmethod
    async def archive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        """Stop it and store it; its files take no other room afterwards. Archived: no error.

        Without `key` the provider's default one, if there is one, encrypts it.

        Raises SandboxNotFound, Conflict, DiskFull; one that cannot be stored is stopped and has its files.
        """

    @abstractmethod
    async def unarchive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        """Give an archived one its files back; it is stopped then. Not archived: no error.

        Raises SandboxNotFound, Unauthenticated for a wrong or missing key, Corrupted, DiskFull; it stays archived.
        """


class Portable(ABC):
    """Can write a sandbox's state as one file, and make a sandbox from it."""

    @abstractmethod
    async def export_state(
        self, source_id: str, target: BinaryIO, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> ExportInfo:
        """Write a sandbox or a snapshot, by its id, to `target`. `on_progress` gets the bytes of content so far.

        Both are called in a thread. Cancelled, this ends after the write that is under way, which is interrupted if
        `target` is `pipes.Interruptible`; and so of `import_state`.

        Raises SandboxNotFound, SnapshotNotFound, Conflict, DiskFull, and what `target` and `on_progress` raise.
        """

    @abstractmethod
    async def import_state(
        self, source: BinaryIO, spec: SandboxSpec, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> SandboxInfo:
        """Make a sandbox from what `source` gives; what `spec` leaves open is the file's.

        Raises Corrupted for a file that is damaged or cut short, Unauthenticated for the wrong key,
        TemplateNotFound; nothing is left then.
        """


class Volumes(ABC):
    """Can keep directories that sandboxes share."""

    @abstractmethod
    async def create_volume(self, name: str, *, size: int | None, temporary: bool) -> VolumeInfo:
        """Raises Conflict for a taken name, Unsupported for a size that cannot be enforced."""

    @abstractmethod
    async def get_volume(self, name: str) -> VolumeInfo:
        """Raises VolumeNotFound."""

    @abstractmethod
    async def list_volumes(self) -> Sequence[VolumeInfo]:
        """By name."""

    @abstractmethod
    async def delete_volume(self, name: str) -> None:
        """Raises VolumeNotFound, Conflict while a sandbox has it."""


class Templates(ABC):
    """Can keep what a sandbox wrote as a layer, and make sandboxes from layers. The SDK runs the steps of a build."""

    @abstractmethod
    async def find_template(self, which: str) -> BuiltTemplate:
        """By id, reference, name with version, or name: the newest then. Raises TemplateNotFound."""

    @abstractmethod
    async def list_templates(self) -> Sequence[BuiltTemplate]:
        """Those that are built and not superseded, by name; of one name the newest first."""

    @abstractmethod
    async def remove_template(self, template_id: str, *, later: bool = False) -> None:
        """Raises TemplateNotFound, Conflict while a sandbox, a snapshot or another template needs it.

        With `later` that is no error: no name finds it any more, and it goes when nothing needs it.
        """

    @abstractmethod
    async def has_layer(self, digest: str) -> bool:
        """Whether there is a layer of that digest."""

    @abstractmethod
    def building(self, digest: str) -> AbstractAsyncContextManager[None]:
        """Entered by one at a time, of all processes: who builds a layer. Others wait until it is left."""

    @abstractmethod
    async def commit_layer(self, sandbox_id: str, digest: str, *, directory: str | None = None) -> None:
        """End a sandbox and keep what it wrote under `digest`; the sandbox is gone then.

        `directory`, one of its root, is kept as a root of its own instead of all.

        Raises SandboxNotFound, Conflict, DiskFull.
        """

    @abstractmethod
    async def add_template(self, info: BuiltTemplate) -> BuiltTemplate:
        """Keep a template whose layers are there; with its size and time. The same again is no error.

        Raises Conflict when a layer is gone, DiskFull.
        """


CAPABILITIES: dict[str, type] = {
    "deadlines": Deadlines,
    "leases": Leases,
    "resizable": Resizable,
    "stoppable": Stoppable,
    "pausable": Pausable,
    "snapshots": Snapshots,
    "archivable": Archivable,
    "portable": Portable,
    "volumes": Volumes,
    "templates": Templates,
}


def capabilities(provider: Provider) -> frozenset[str]:
    """What `provider` can do beyond the base contract, read off its class."""
    return frozenset(name for name, kind in CAPABILITIES.items() if isinstance(provider, kind))


ProviderFactory = Callable[[], Provider]
