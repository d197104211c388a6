"""What a sandbox begins with: the layers of a template, and those of a snapshot over them."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.core.errors import TemplateNotFound
from skerry.providers.local import hostlayer
from skerry.providers.local.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The beginning of a sandbox."""

    template: str
    layers: tuple[str, ...]
    """Read-only layers, topmost first, relative to SKERRY_HOME."""
    host: bool
    """Whether this machine's /usr is bound into it."""
    user: str = "user"
    workdir: str = "/workspace"
    env: dict[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    inherited: int = 0
    """Bytes in the layers of snapshots."""
    seed: str | None = None
    """The tree that the writable layer begins as a copy of, relative to SKERRY_HOME; None: it begins empty."""
    holds: int = 0
    """Bytes that count against its disk limit from the start."""
    snapshot: str | None = None


def find_base(store: Store, template: str) -> Base:
    """The base of a template that is built. Raises TemplateNotFound, OSError."""
    if template == "host":
        layer = hostlayer.layer(store)
        return Base(template="host", layers=(str(layer.relative_to(store.home)),), host=True)
    raise TemplateNotFound(f"there is no template {template!r}")
