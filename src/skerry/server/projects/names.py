"""Translates names between users and the provider.

A name is unique inside its project for users, and among all at the provider, where it is `<slug>.<name>`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from skerry.core import (
    NAME,
    PROJECT_LABEL,
    RESERVED_HINT,
    RESERVED_LABELS,
    InvalidArgument,
    SandboxInfo,
    SkerryError,
    SnapshotInfo,
    VolumeInfo,
    VolumeMount,
    looks_like_id,
)
from skerry.server.store import Project

LONGEST = 56


def inner(project: Project, name: str) -> str:
    """The name at the provider. Raises InvalidArgument."""
    taken = looks_like_id(name) or name.startswith(f"{project.slug}.")
    if not NAME.fullmatch(name) or len(name) > LONGEST or taken:
        hint = f"up to {LONGEST} of a-z 0-9 . _ - that begin with a letter or digit, and not with {RESERVED_HINT}"
        raise InvalidArgument(f"{name!r} is not a name", hint=hint)
    return f"{project.slug}.{name}"


def outer(project: Project | None, name: str | None) -> str | None:
    """The name for users."""
    return name if name is None or project is None else name.removeprefix(f"{project.slug}.")


def outer_error(project: Project | None, error: SkerryError) -> SkerryError:
    """An error of the provider, with the names that users know."""
    if project is not None:
        error.message = error.message.replace(f"{project.slug}.", "")
        error.hint = error.hint.replace(f"{project.slug}.", "")
    return error


def slug_of(name: str) -> str | None:
    """The project's slug in a name at the provider, if it has the form of one."""
    slug, dot, _ = name.partition(".")
    return slug if dot and len(slug) == 6 else None


def labels(project: Project, given: Mapping[str, str] | None) -> dict[str, str]:
    """A user's labels with the server's. Raises InvalidArgument for a label that only the server may set."""
    for key in given or {}:
        if key.startswith(RESERVED_LABELS):
            raise InvalidArgument(
                f"the label {key!r} begins with {RESERVED_LABELS!r}, which is reserved for the server"
            )
    return {**(given or {}), PROJECT_LABEL: project.id}


def inner_mounts(project: Project, mounts: Iterable[VolumeMount]) -> list[VolumeMount]:
    """Mounts of the project's own volumes; a volume of another project cannot be named."""
    return [dataclasses.replace(mount, name=inner(project, mount.name)) for mount in mounts]


def inner_key(project: Project, idempotency_key: str | None) -> str | None:
    """An idempotency key that is distinct from those of other projects."""
    return None if idempotency_key is None else f"{project.id}:{idempotency_key}"


def outer_sandbox(project: Project | None, info: SandboxInfo) -> SandboxInfo:
    """A sandbox as users see it: plain names, without the server's labels."""
    return dataclasses.replace(
        info,
        name=outer(project, info.name),
        labels={key: value for key, value in info.labels.items() if not key.startswith(RESERVED_LABELS)},
        volumes=tuple(
            dataclasses.replace(mount, name=outer(project, mount.name) or mount.name) for mount in info.volumes
        ),
        leased_to=None,
    )


def outer_snapshot(project: Project | None, info: SnapshotInfo) -> SnapshotInfo:
    return dataclasses.replace(info, name=outer(project, info.name))


def outer_volume(project: Project | None, info: VolumeInfo) -> VolumeInfo:
    return dataclasses.replace(info, name=outer(project, info.name) or info.name)
