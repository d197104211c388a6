"""The contract every provider fulfils: few verbs; everything else is derived from the agent's channel.

What a provider can do beyond these is a small ABC that it also derives from, so `capabilities()` reads it off the
class and cannot lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anyio.abc import ByteStream

from skerry.core.models import Event, Resources, SandboxInfo, SandboxSpec, Usage
from skerry.wire import Hello

AGENT_PORT = 0
"""The port number under which `dial` opens the agent's own channel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """An open byte stream to an agent, and the token its HELLO needs.

    `greeting` is the agent's HELLO where the provider has exchanged greetings already: then neither side says it again.
    """

    stream: ByteStream
    token: bytes
    greeting: Hello | None = None


class Provider(ABC):
    """Makes sandboxes and opens byte streams into them. Safe to use from several processes at once."""

    name: str

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
        """Note that the sandbox belongs to this process and ends with it, or no longer. Raises SandboxNotFound."""


class Resizable(ABC):
    """Can change limits while the sandbox runs."""

    @abstractmethod
    async def set_limits(self, sandbox_id: str, resources: Resources) -> SandboxInfo:
        """Apply the limits that are not None. Raises SandboxNotFound, Unsupported, QuotaExceeded."""


CAPABILITIES: dict[str, type] = {"deadlines": Deadlines, "leases": Leases, "resizable": Resizable}


def capabilities(provider: Provider) -> frozenset[str]:
    """What `provider` can do beyond the base contract, read off its class."""
    return frozenset(name for name, kind in CAPABILITIES.items() if isinstance(provider, kind))


ProviderFactory = Callable[[], Provider]
