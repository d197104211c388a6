"""What a sandbox begins with: the layers of a template, and those of a snapshot over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from skerry._model import Model
from skerry.core import (
    BuiltTemplate,
    Corrupted,
    InvalidArgument,
    TemplateNotFound,
    from_plain,
    load_json,
    resolve_built,
)
from skerry.providers.local.sandbox.folders import Store
from skerry.providers.local.storage import common_layer, host_layer


class Base(Model):
    """What a new sandbox begins with."""

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
    """The base of a built template: `host`, a reference, an id or a name.

    Raises TemplateNotFound, Corrupted, OSError.
    """
    if template == "host":
        return Base(template="host", layers=(_relative_host(store),), host=True)
    info = find_template(store, template)
    own = tuple(layer_path(digest) for digest in info.layers)
    for layer in own:
        if not (store.home / layer).is_dir():
            raise TemplateNotFound(f"a layer of the template {info.name!r} is gone", hint="build it again")
    fixed = str(common_layer.layer(store).relative_to(store.home))
    return Base(
        template=info.reference,
        layers=(*own, _relative_host(store)) if info.host else (fixed, *own),
        host=info.host,
        user=info.user,
        workdir=info.workdir,
        env=info.env,
        ports=info.ports,
    )


def _relative_host(store: Store) -> str:
    return str(host_layer.layer(store).relative_to(store.home))


def layer_path(digest: str) -> str:
    """The tree of a layer, relative to SKERRY_HOME."""
    return f"pool/layers/{digest}/u"


def find_template(store: Store, which: str) -> BuiltTemplate:
    """By reference, id, name with version, or name: see `core.built.meant`.

    Raises TemplateNotFound, Corrupted.
    """
    _, at, template_id = which.partition("@")
    if at:
        return read_template(store, template_id)
    return resolve_built(which, templates(store))


def read_template(store: Store, template_id: str) -> BuiltTemplate:
    """Raises TemplateNotFound, Corrupted."""
    if not template_id.isalnum():
        raise TemplateNotFound(f"there is no template {template_id!r}")
    path = store.templates / f"{template_id}.json"
    try:
        return from_plain(BuiltTemplate, load_json(path.read_bytes()))
    except FileNotFoundError:
        raise TemplateNotFound(f"there is no template {template_id!r}; it was removed, or never built") from None
    except InvalidArgument as error:
        raise Corrupted(f"{path} is damaged ({error})", hint="remove it and build the template again") from error


def templates(store: Store) -> Iterator[BuiltTemplate]:
    """All built templates, in no order. Raises Corrupted."""
    for path in store.templates.glob("*.json"):
        try:
            yield read_template(store, path.stem)
        except TemplateNotFound:
            continue  # it was just removed
