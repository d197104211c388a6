"""Requests about sandboxes as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from skerry.core import InvalidArgument, OnTimeout, Resources, VolumeMount
from skerry.sdk import DEFAULTS, MAX_GRACE, CreateOptions, GitSource, TarSource
from skerry.server.web.models.derived import derive
from skerry.server.web.models.types import Body, Count, Key, Pairs, Path, Seconds, Shown, Size, User, Variables

IMAGE_PREFIX = "docker://"


class ResourcesBody(Body):
    """Limits; null means the default."""

    cpu: Annotated[float, Field(gt=0, le=1e6, examples=[2])] | None = None
    """CPU cores."""
    memory: Size | None = Field(None, examples=["2GB"])
    disk: Size | None = Field(None, examples=["10GB"])
    pids: Count | None = None
    gpu: str | None = None

    def options(self) -> dict[str, float | int | str | None]:
        return {name: getattr(self, name) for name in Resources.__dataclass_fields__}


class VolumeBody(Body):
    """A volume, or a directory of it, at a path of the sandbox."""

    name: Annotated[str, Field(max_length=128)]
    path: Path
    subpath: str = ""
    read_only: bool = False

    def mount(self) -> VolumeMount:
        return VolumeMount(name=self.name, path=self.path, subpath=self.subpath, read_only=self.read_only)


class GitSourceBody(Body):
    """A repository that the working directory begins with."""

    git: Annotated[str, Field(max_length=4096, examples=["https://example.com/project.git"])]
    ref: str | None = None
    depth: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    username: str | None = Field(None, repr=False)  # some services take a token for one
    password: str | None = Field(None, repr=False)

    def source(self) -> GitSource:
        return GitSource(url=self.git, ref=self.ref, depth=self.depth, username=self.username, password=self.password)


class TarSourceBody(Body):
    """An archive that the sandbox fetches and unpacks in its working directory."""

    tar: Annotated[str, Field(max_length=4096, pattern="^https://", examples=["https://example.com/project.tar.gz"])]
    strip: Annotated[int, Field(ge=0, le=1000)] = 0

    def source(self) -> TarSource:
        return TarSource(location=self.tar, strip=self.strip)


VolumesBody = Annotated[list[VolumeBody], Field(max_length=64)] | Annotated[dict[str, str], Field(max_length=64)]


class CreateBody(Body):
    """The options of a new sandbox; all may be left out."""

    def given(self) -> dict[str, Any]:
        """The body as options of `AsyncSandbox.create`."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        for name, convert in _CONVERTED.items():
            if found.get(name) is not None:
                found[name] = convert(found[name])
        return found


def _mounts(volumes: list[VolumeBody] | dict[str, str]) -> list[VolumeMount]:
    if isinstance(volumes, dict):
        return [VolumeMount(name=name, path=path) for path, name in volumes.items()]
    return [volume.mount() for volume in volumes]


_CONVERTED: dict[str, Callable[[Any], object]] = {
    "resources": lambda body: body.options(),
    "source": lambda body: body.source(),
    "volumes": _mounts,
}
Create = derive(
    "Create",
    CreateBody,
    CreateOptions,
    types={
        "name": (str, Field(examples=["my-sandbox"])),
        "template": (str, Field(examples=["host"])),
        "image": (str, Field(examples=["docker://debian:12"])),
        "snapshot": str,
        "restore_from": str,
        "source": GitSourceBody | TarSourceBody,
        "env": Variables,
        "secrets": (Variables, Field(repr=False)),
        "metadata": Pairs,
        "labels": Pairs,
        "timeout": Seconds,
        "idle_timeout": Seconds,
        "auto_stop": Seconds,
        "auto_archive": Seconds,
        "auto_delete": Seconds,
        "resources": ResourcesBody,
        "volumes": VolumesBody,
        "user": User,
        "workdir": Path,
        "ports": Any,
        "region": Any,
        "target": Any,
    },
    defaults=DEFAULTS,
    without={
        *("import_state", "key", "idempotency_key"),  # the body of another route, and headers
        *("instructions", "auto_start", "on_event", "on_log", "on_progress", "options"),  # of a Python object
    },
)


def check_image(image: str | None) -> None:
    """Raises InvalidArgument for a file: clients may not use files of the server."""
    if image is not None and not image.startswith(IMAGE_PREFIX):
        raise InvalidArgument(f"{image!r} is not an image in a registry", hint=f"{IMAGE_PREFIX}NAME:TAG")


class Update(Body):
    """The changes; null: no change."""

    timeout: Seconds | None = None
    """The sandbox times out this many seconds from now; its `on_timeout` stays as it is."""


class Limits(Body):
    """New limits of a running sandbox; those not given stay."""

    cpu: Annotated[float, Field(gt=0, le=1e6)] | None = None
    cpu_percent: Annotated[float, Field(gt=0, le=1e8)] | None = None
    """100 is one core."""
    memory: Size | None = None
    disk: Size | None = None
    pids: Count | None = None


class Stop(Body):
    timeout: Annotated[float, Field(ge=0, le=MAX_GRACE)] = 10.0
    """Seconds that its processes have to end by themselves."""


class Start(Body):
    key: Key | None = Field(None, repr=False)
    """The key that it was archived with."""


class Archive(Body):
    key: Key | None = Field(None, repr=False)
    """A key that encrypts the archive; `start` needs the same key."""


class Restart(Body):
    env: Variables | None = None
    resources: ResourcesBody | None = None
    template: str | None = None
    timeout: Annotated[float, Field(ge=0, le=MAX_GRACE)] = 10.0


class Reset(Body):
    hard: bool = False
    """Reset its files too, to those of its creation."""


class Copy(Body):
    """How the copy differs from the source; null: as in the source."""

    env: Variables | None = None
    resources: ResourcesBody | None = None
    metadata: Pairs | None = None
    labels: Pairs | None = None
    timeout: Seconds | None = None
    on_timeout: OnTimeout | None = None
    secrets: bool | Variables = Field(False, repr=False)
    """Whether the copy gets the secrets of the source, or the secrets that it gets instead."""


class Clone(Copy):
    name: str | None = None


class Fork(Copy):
    n: Annotated[int, Field(ge=1, le=1000, examples=[2])]


class Checks(Body):
    """Health checks in addition to the built-in ones: by name, a shell command that must exit with 0."""

    checks: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)
    timeout: Annotated[float, Field(gt=0, le=600)] = 10.0


class SnapshotCreate(Body):
    name: str | None = None
    description: Annotated[Shown, Field(max_length=4096)] = ""


class Restore(Body):
    snapshot: str
    """The snapshot's id or name."""


class Export(Body):
    key: Key | None = Field(None, repr=False)
    """A key that encrypts the state."""


class VolumeCreate(Body):
    name: Annotated[str, Field(max_length=128, examples=["data"])]
    size: Size | None = None
    temporary: bool = False
    encrypted: bool = False


class Build(Body):
    """A template to build: one by its name, one described by YAML, or an image."""

    template: str | None = None
    yaml: Annotated[str, Field(max_length=900_000)] | None = None
    image: str | None = None
    name: str | None = None
    """The name for the image."""
    force: bool = False
    timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
