"""The contract every provider fulfils: few verbs; everything else is derived from the agent's channel.

What a provider can do beyond these is a small ABC that it also derives from, so `capabilities()` reads it off the
class and cannot lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import BinaryIO, ClassVar

from anyio.abc import ByteStream

from skerry._model import Model
from skerry.core.models import (
    BuiltTemplate,
    Changes,
    Event,
    ExportInfo,
    OnTimeout,
    Resources,
    Room,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    Usage,
    VolumeInfo,
)
from skerry.wire import Hello

AGENT_PORT = 0
"""The port number under which `dial` opens the agent's own channel."""


class Channel(Model):
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
    encrypts: ClassVar[bool] = False
    """Whether it takes `SandboxSpec.encrypted`, and raises Unsupported where it cannot be had."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox whose agent answers. If the call fails or is cancelled, nothing is left of the sandbox.

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
        """Destroy the sandbox and remove everything that belongs to it. Does nothing if there is no such sandbox."""

    @abstractmethod
    async def dial(self, sandbox_id: str, port: int = AGENT_PORT) -> Channel:
        """Open a byte stream into a running sandbox.

        Raises:
            SandboxNotFound, SandboxStopped, SandboxFailed, ConnectionLost.
        """

    @abstractmethod
    async def usage(self, sandbox_id: str) -> Usage:
        """What the provider itself measures; disk and network may be missing (None, 0). Raises SandboxNotFound."""

    async def room(self) -> Room | None:
        """What all its sandboxes use together; None: it does not know. Raises ProviderUnavailable."""
        return None

    @abstractmethod
    async def events(self, sandbox_id: str, since: int = 0) -> Sequence[Event]:
        """The stored events of a sandbox with a cursor above `since`. Raises SandboxNotFound."""

    @abstractmethod
    async def sweep(self) -> Sequence[str]:
        """Remove what nobody owns any more. Returns the ids of what was removed."""


class Deadlines(ABC):
    """Can change when a sandbox ends."""

    @abstractmethod
    async def record_deadline(self, sandbox_id: str, seconds: float) -> SandboxInfo:
        """Record the new end, `seconds` from now; the caller has told the agent.

        Raises SandboxNotFound, QuotaExceeded.
        """


class Leases(ABC):
    """Can tie a sandbox's life to the calling process."""

    @abstractmethod
    async def record_lease(self, sandbox_id: str, *, held: bool = True) -> None:
        """Record that the sandbox belongs to this process and ends with it, or no longer. Raises SandboxNotFound.

        A sandbox made with `SandboxSpec.leased` is `SandboxInfo.prepared` once this lease has been given back.
        """


class Resizable(ABC):
    """Can change limits while the sandbox runs."""

    @abstractmethod
    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        """Apply the limits that are not None. Raises SandboxNotFound, Unsupported, QuotaExceeded."""


class Stoppable(ABC):
    """Can end what runs in a sandbox, keep its files, and start it again. Each call returns when it is done."""

    @abstractmethod
    async def stop(self, sandbox_id: str, *, grace: float) -> SandboxInfo:
        """Ask the processes to end and kill them after `grace` seconds; files and environment stay.

        Does nothing if the sandbox is stopped. Raises SandboxNotFound, Conflict for a state that does not allow it.
        """

    @abstractmethod
    async def start(self, sandbox_id: str) -> SandboxInfo:
        """Start a stopped or archived sandbox; resume a paused one. Does nothing if the sandbox is running.

        Raises SandboxNotFound, SandboxFailed (`recover` it), Conflict.
        """

    @abstractmethod
    async def restart(self, sandbox_id: str, changes: Changes, *, grace: float) -> SandboxInfo:
        """Stop the sandbox, apply `changes`, and start it. What cannot be honoured is refused before the stop.

        Raises SandboxNotFound, Unsupported, QuotaExceeded, Conflict.
        """

    @abstractmethod
    async def reset(self, sandbox_id: str, *, hard: bool) -> SandboxInfo:
        """Kill its processes and forget changed variables; with `hard`, its files are again what they were at creation.

        The sandbox runs afterwards. Volumes are not touched. Raises SandboxNotFound, Conflict.
        """

    @abstractmethod
    async def recover(self, sandbox_id: str) -> SandboxInfo:
        """Start a sandbox that has failed, with the files it had.

        Raises SandboxNotFound, Conflict if it has not failed.
        """


class Pausable(ABC):
    """Can freeze the processes of a sandbox in memory."""

    @abstractmethod
    async def pause(self, sandbox_id: str) -> SandboxInfo:
        """Does nothing if the sandbox is paused. Raises SandboxNotFound, Conflict for one that does not run."""

    @abstractmethod
    async def resume(self, sandbox_id: str) -> SandboxInfo:
        """Does nothing if the sandbox is running. Raises SandboxNotFound, Conflict for one that is not paused."""


class Snapshots(ABC):
    """Can keep the files of a sandbox as they are at a moment. `SandboxSpec.snapshot` names the one to begin with."""

    @abstractmethod
    async def create_snapshot(
        self, sandbox_id: str, *, name: str | None, description: str, hidden: bool = False
    ) -> SnapshotInfo:
        """Take a snapshot of a sandbox in any state that has files; a running one stands still for that moment.

        A `hidden` snapshot, made for copies, is not listed and has no place in the tree of parents.

        Raises SandboxNotFound, Conflict for a taken name, DiskFull.
        """

    @abstractmethod
    async def list_snapshots(self, sandbox_id: str | None = None) -> Sequence[SnapshotInfo]:
        """The snapshots of one sandbox, which may be gone, or all snapshots; newest first."""

    @abstractmethod
    async def find_snapshot(self, id_or_name: str) -> SnapshotInfo:
        """Raises SnapshotNotFound."""

    @abstractmethod
    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot; its children get its parent. What others were made from stays on disk until they are gone.

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
        """Stop the sandbox and store it; its files take no other room afterwards. Does nothing if it is archived.

        Without `key`, the provider's default key, if there is one, encrypts the archive.

        Raises SandboxNotFound, Conflict, DiskFull; a sandbox that cannot be stored is stopped and keeps its files.
        """

    @abstractmethod
    async def unarchive(self, sandbox_id: str, *, key: bytes | None = None) -> SandboxInfo:
        """Give an archived sandbox its files back; then it is stopped. Does nothing if it is not archived.

        Raises SandboxNotFound, Unauthenticated for a wrong or missing key, Corrupted, DiskFull; it stays archived.
        """


class Portable(ABC):
    """Can write a sandbox's state as one file, and make a sandbox from it."""

    @abstractmethod
    async def export_state(
        self, source_id: str, target: BinaryIO, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> ExportInfo:
        """Write a sandbox or a snapshot, by its id, to `target`. `on_progress` gets the bytes of content so far.

        Both are called in a thread. When it is cancelled, this ends after the write that is under way, which is
        interrupted if `target` is `pipes.Interruptible`. The same holds for `import_state`.

        Raises SandboxNotFound, SnapshotNotFound, Conflict, DiskFull, and what `target` and `on_progress` raise.
        """

    @abstractmethod
    async def import_state(
        self, source: BinaryIO, spec: SandboxSpec, *, key: bytes | None, on_progress: Callable[[int], None] | None
    ) -> SandboxInfo:
        """Make a sandbox from what `source` gives; the file decides what `spec` leaves open.

        Raises Corrupted for a file that is damaged or cut short, Unauthenticated for the wrong key,
        TemplateNotFound; then nothing is left.
        """


class Volumes(ABC):
    """Can keep directories that sandboxes share."""

    @abstractmethod
    async def create_volume(
        self, name: str, *, size: int | None, temporary: bool, encrypted: bool = False
    ) -> VolumeInfo:
        """Raises Conflict for a taken name, Unsupported for a size or an encryption that cannot be had."""

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
        """Find a template by id, reference, name with version, or name (the newest). Raises TemplateNotFound."""

    @abstractmethod
    async def list_templates(self) -> Sequence[BuiltTemplate]:
        """The templates that are built and not superseded, by name; of one name the newest first."""

    @abstractmethod
    async def remove_template(self, template_id: str, *, later: bool = False) -> None:
        """Raises TemplateNotFound, Conflict while a sandbox, a snapshot or another template needs it.

        With `later` there is no Conflict: no name finds the template any more, and it goes when nothing needs it.
        """

    @abstractmethod
    async def has_layer(self, digest: str) -> bool:
        """Whether there is a layer of that digest."""

    @abstractmethod
    def building(self, digest: str) -> AbstractAsyncContextManager[None]:
        """A lock among all processes for building a layer: one at a time holds it, the others wait."""

    @abstractmethod
    async def commit_layer(self, sandbox_id: str, digest: str, *, directory: str | None = None) -> None:
        """End a sandbox and keep what it wrote under `digest`; then the sandbox is gone.

        With `directory`, a directory in the sandbox's root, only that one is kept, as a new root.

        Raises SandboxNotFound, Conflict, DiskFull.
        """

    @abstractmethod
    async def add_template(self, info: BuiltTemplate) -> BuiltTemplate:
        """Keep a template whose layers exist. Returns it with its size and time. Keeping it again is not an error.

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
