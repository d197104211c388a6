"""Requests about sandboxes as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from skerry.core import InvalidArgument, OnTimeout, Resources, VolumeMount
from skerry.sdk import DEFAULTS, MAX_GRACE, MAX_INSTRUCTIONS, CreateOptions, GitSource, TarSource, is_local_registry
from skerry.server.web.models.derived import derive
from skerry.server.web.models.types import Body, Count, Key, Pairs, Path, Seconds, Shown, Size, User, Variables

IMAGE_PREFIX = "docker://"


class ResourceOptions(Body):
    """Limits; null means the default."""

    cpu: Annotated[float, Field(gt=0, le=1e6, examples=[2])] | None = None
    """CPU cores."""
    memory: Size | None = Field(None, examples=["2GB"])
    """Bytes, or a text such as "2GB"."""
    disk: Size | None = Field(None, examples=["10GB"])
    """Bytes, or a text such as "10GB"."""
    pids: Count | None = None
    """Processes and threads."""
    gpu: str | None = None
    """Not supported yet: anything but null is refused."""

    def options(self) -> dict[str, float | int | str | None]:
        return {name: getattr(self, name) for name in Resources.__dataclass_fields__}


class MountOptions(Body):
    """A volume, or a directory of it, at a path of the sandbox."""

    name: Annotated[str, Field(max_length=128)]
    """The volume's name."""
    path: Path
    """Where the sandbox has it: an absolute path."""
    subpath: str = ""
    """A directory of the volume; empty: all of it."""
    read_only: bool = False
    """Whether the sandbox can only read it."""
    size: Size | None = None
    """The most that a volume made for this sandbox may hold, in bytes or as a text such as "10GB"; null: no limit."""
    persistent: bool | None = None
    """Whether a volume made for this sandbox outlives its sandboxes. With this or `size`, a missing volume is made."""
    mount_existing: bool = False
    """Whether the volume must exist, as it must without `size` and `persistent`."""

    def mount(self) -> VolumeMount:
        return VolumeMount(**{name: getattr(self, name) for name in type(self).model_fields})


class GitSourceOptions(Body):
    """A repository that the working directory begins with."""

    git: Annotated[str, Field(max_length=4096, examples=["https://example.com/project.git"])]
    """The repository's URL."""
    ref: str | None = None
    """A branch, a tag or a commit; null: the default branch."""
    depth: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    """How many commits of the history to get; null: all."""
    username: str | None = Field(None, repr=False)  # some services take a token for one
    """The user name that the repository asks for."""
    password: str | None = Field(None, repr=False)
    """The password or token that the repository asks for."""

    def source(self) -> GitSource:
        return GitSource(url=self.git, ref=self.ref, depth=self.depth, username=self.username, password=self.password)


class TarSourceOptions(Body):
    """An archive that the sandbox fetches and unpacks in its working directory."""

    tar: Annotated[str, Field(max_length=4096, pattern="^https://", examples=["https://example.com/project.tar.gz"])]
    """The archive's URL."""
    strip: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many leading parts of each path to leave out."""

    def source(self) -> TarSource:
        return TarSource(location=self.tar, strip=self.strip)


MountsOptions = Annotated[list[MountOptions], Field(max_length=64)] | Annotated[dict[str, str], Field(max_length=64)]


class CreateBody(Body):
    """The options of a new sandbox; all may be left out."""

    def given(self) -> dict[str, Any]:
        """The body as options of `AsyncSandbox.create`."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        for name, convert in _CONVERTED.items():
            if found.get(name) is not None:
                found[name] = convert(found[name])
        return found


def _mounts(volumes: list[MountOptions] | dict[str, str]) -> list[VolumeMount]:
    if isinstance(volumes, dict):
        return [VolumeMount(name=name, path=path) for path, name in volumes.items()]
    return [volume.mount() for volume in volumes]


_CONVERTED: dict[str, Callable[[Any], object]] = {
    "resources": lambda body: body.options(),
    "source": lambda body: body.source(),
    "volumes": _mounts,
}
CreateSandbox = derive(
    "CreateSandbox",
    CreateBody,
    CreateOptions,
    types={
        "name": (str, Field(examples=["my-sandbox"])),
        "template": (str, Field(examples=["host"])),
        "image": (str, Field(examples=["docker://debian:12"])),
        "snapshot": str,
        "restore_from": str,
        "source": GitSourceOptions | TarSourceOptions,
        "env": Variables,
        "secrets": (Variables, Field(repr=False)),
        "metadata": Pairs,
        "labels": Pairs,
        "timeout": Seconds,
        "idle_timeout": Seconds,
        "auto_stop": Seconds,
        "auto_archive": Seconds,
        "auto_delete": Seconds,
        "resources": ResourceOptions,
        "volumes": MountsOptions,
        "user": User,
        "workdir": Path,
        "instructions": (str, Field(max_length=MAX_INSTRUCTIONS)),
        "ports": Any,
        "region": Any,
        "target": Any,
    },
    defaults=DEFAULTS,
    without={
        *("import_state", "key", "idempotency_key"),  # the body of another route, and headers
        *("auto_start", "on_event", "on_log", "on_progress", "options"),  # of a Python object
    },
)


def check_image(image: str | None) -> None:
    """Raises InvalidArgument for a file or a registry of the server's machine: these are not the client's."""
    if image is None:
        return
    if not image.startswith(IMAGE_PREFIX):
        raise InvalidArgument(f"{image!r} is not an image in a registry", hint=f"{IMAGE_PREFIX}NAME:TAG")
    if is_local_registry(image):
        hint = "give the name of the registry that others reach"
        raise InvalidArgument(f"{image!r} is in a registry of the server's own machine", hint=hint)


class UpdateSandbox(Body):
    """The changes; null: no change."""

    timeout: Seconds | None = None
    """The sandbox times out this many seconds from now; its `on_timeout` stays as it is."""


class SetLimits(Body):
    """New limits of a running sandbox; those not given stay."""

    cpu: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """CPU cores."""
    cpu_percent: Annotated[float, Field(gt=0, le=1e8)] | None = None
    """The same in percent: 100 is one core."""
    memory: Size | None = None
    """Bytes, or a text such as "2GB"."""
    disk: Size | None = None
    """Bytes, or a text such as "10GB"."""
    pids: Count | None = None
    """Processes and threads."""


class StopSandbox(Body):
    """How to stop."""

    timeout: Annotated[float, Field(ge=0, le=MAX_GRACE)] = 10.0
    """Seconds that its processes have to end by themselves."""


class StartSandbox(Body):
    """What a start needs."""

    key: Key | None = Field(None, repr=False)
    """The key that it was archived with."""


class ArchiveSandbox(Body):
    """How to archive."""

    key: Key | None = Field(None, repr=False)
    """A key that encrypts the archive; `start` needs the same key."""


class RestartSandbox(Body):
    """What is different after the restart; null: as before."""

    env: Variables | None = None
    """Variables to add to those it has, or to change."""
    resources: ResourceOptions | None = None
    """New limits; those not given stay."""
    template: str | None = None
    """Another template, below the files that the sandbox has written."""
    timeout: Annotated[float, Field(ge=0, le=MAX_GRACE)] = 10.0
    """Seconds that its processes have to end by themselves."""


class ResetSandbox(Body):
    """How far to go back."""

    hard: bool = False
    """Reset its files too, to those of its creation."""


class Copy(Body):
    """How the copy differs from the source; null: as in the source."""

    env: Variables | None = None
    """Variables to add to those of the source, or to change."""
    resources: ResourceOptions | None = None
    """Limits to change."""
    metadata: Pairs | None = None
    """Notes that replace those of the source."""
    labels: Pairs | None = None
    """Labels that replace those of the source."""
    timeout: Seconds | None = None
    """The longest time it runs, in seconds from its last start."""
    on_timeout: OnTimeout | None = None
    """What happens at its timeout."""
    secrets: bool | Variables = Field(False, repr=False)
    """Whether the copy gets the secrets of the source, or the secrets that it gets instead."""


class CloneSandbox(Copy):
    """One copy; null: as in the source."""

    name: str | None = None
    """The copy's name, unique in the project; null: none."""


class ForkSandbox(Copy):
    """Several copies; null: as in the source."""

    n: Annotated[int, Field(ge=1, le=1000, examples=[2])]
    """How many copies."""


class RunChecks(Body):
    """Health checks in addition to the built-in ones: by name, a shell command that must exit with 0."""

    checks: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)
    """The checks: shell commands by name."""
    timeout: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Seconds that each check has."""


class CreateSnapshot(Body):
    """How to call the snapshot."""

    name: str | None = None
    """Its name, unique in the project; null: none."""
    description: Annotated[Shown, Field(max_length=4096)] = ""
    """A text for people."""


class RestoreSnapshot(Body):
    """What to go back to."""

    snapshot: str
    """The snapshot's id or name."""


class ExportState(Body):
    """How to export."""

    key: Key | None = Field(None, repr=False)
    """A key that encrypts the state."""


class CreateVolume(Body):
    """A volume to make."""

    name: Annotated[str, Field(max_length=128, examples=["data"])]
    """Its name, unique in the project."""
    size: Size | None = None
    """The most it may hold, in bytes or as a text such as "10GB"; null: no limit."""
    temporary: bool = False
    """Whether it ends with the last sandbox that has it."""
    encrypted: bool = False
    """No provider encrypts live disks: true is refused."""


class BuildTemplate(Body):
    """A template to build: one by its name, one described by YAML, or an image."""

    template: str | None = None
    """The name of a template that comes with Skerry."""
    yaml: Annotated[str, Field(max_length=900_000)] | None = None
    """The text of a template file."""
    image: str | None = None
    """An image of a registry, as docker://NAME:TAG."""
    name: str | None = None
    """The name for the image."""
    force: bool = False
    """Whether to build it again if it is built."""
    timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
    """The most seconds that the build may take; null: the server's limit."""
