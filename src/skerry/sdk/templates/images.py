"""Images as templates: skopeo and umoci of this machine read and unpack them, inside a sandbox.

Whatever an image holds (names that lead elsewhere, devices, bombs) meets the walls of that sandbox and its disk limit;
only the finished tree leaves it, and only as the root of other sandboxes.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, cast

from anyio.to_thread import run_sync

from skerry._model import Model
from skerry.core import (
    IMAGES,
    BuiltTemplate,
    InvalidArgument,
    ProviderUnavailable,
    Resources,
    TemplateBuildFailed,
    TemplateNotFound,
    looks_like_id,
)
from skerry.sdk.templates import registry_images
from skerry.sdk.templates.builder import Builder, new_layer_id
from skerry.sdk.templates.step_errors import LOG_TAIL, named_step, step_error
from skerry.templates import NAME, VERSION, Step, catalogue

if TYPE_CHECKING:
    from skerry.sdk.sandbox import AsyncSandbox

ImageOption = str | os.PathLike[str]
"""The path of an OCI archive or of what `docker save` wrote, or a reference such as docker://debian:12."""

PROGRAMS = ("skopeo", "umoci")
ROOT_TREE = "/workspace/bundle/rootfs"
MAX_CONFIG = 4 << 20
_VERSION = "2"
"""Part of each layer's digest; raised when the steps below leave something else for the same image."""

_FILE = "/workspace/image.tar"
_COPY = """set -e
if gzip -t {file} 2>/dev/null; then  # skopeo takes some compressed archives for cut short
    gzip -dc {file} >{file}.plain
    mv {file}.plain {file}
fi
kind=docker-archive
if tar -tf {file} oci-layout >/dev/null 2>&1; then kind=oci-archive; fi
exec skopeo --insecure-policy copy -q "$kind:{file}" oci:/workspace/oci:image"""
_LAYOUT = "/workspace/oci"
_PULL = f'exec skopeo --insecure-policy copy "$REFERENCE" oci:{_LAYOUT}:image'
_UNPACK = f"""umoci unpack --image /workspace/oci:image /workspace/bundle || exit
mkdir -p "{ROOT_TREE}$WORKDIR" 2>/dev/null || :  # as Docker does; where a file is in its place, commands will say so"""
_LOOK = ("skopeo", "inspect", "--raw", "oci:/workspace/oci:image")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")


class ImageConfig(Model):
    """What an image says about the sandboxes made from it."""

    digest: str
    """The image's id: the hash of its configuration, which names its layers."""
    env: dict[str, str]
    user: str
    workdir: str
    ports: tuple[int, ...]


async def build_image(builder: Builder, image: ImageOption, *, name: str | None = None) -> BuiltTemplate:
    """The template for an image, unpacked if it is not yet. `name`, with or without a version, is one more name for it.

    Raises TemplateBuildFailed, InvalidArgument, ProviderUnavailable, DiskFull.
    """
    wanted = None if name is None else _checked_name(name)
    if wanted is not None:
        await builder.check_names(wanted.partition(":")[0])
    text = os.fspath(image)
    remote = "://" in text
    if remote and not text.startswith(registry_images.SCHEME):
        raise InvalidArgument(f"{text!r} is not an image", hint="give the path of an archive, or docker://NAME")
    content = f"ref:{text}" if remote else await run_sync(_hash_file, text)
    known = f"{IMAGES}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    force = builder.forced()
    found = None if force else await _find(builder, known)
    if found is None:
        builder.require(known)
        _require_programs()
        found = await _import(builder, text, known, content, remote=remote, force=force)
    if wanted is None:
        return found
    return await builder.replace(replace(found, name=wanted, id=""), lambda other: other.name == wanted)


async def _find(builder: Builder, name: str) -> BuiltTemplate | None:
    try:
        return await builder.find(name)
    except TemplateNotFound:
        return None


async def _import(builder: Builder, image: str, name: str, content: str, *, remote: bool, force: bool) -> BuiltTemplate:
    shown = image.removeprefix(registry_images.SCHEME) if remote else os.path.basename(image)
    async with builder.building(hashlib.sha256(name.encode()).hexdigest()[:40]):
        if not force and (found := await _find(builder, name)):
            return found  # somebody else was quicker
        inside = remote and not registry_images.is_local_registry(image)
        async with builder.sandbox(None, Resources(), network="open" if inside else "none") as box:
            if remote:
                await _pull(builder, box, image, shown)
            else:
                await builder.report(shown, "upload", 0, 4)
                await _upload(box, image, content)
                await builder.report(shown, "read", 1, 4)
                read = Step(name="read", run=_COPY.format(file=_FILE), user="root", cwd="/workspace")
                await builder.step(box, shown, read)
            config = await _look(builder, box, shown)
            layer = hashlib.sha256(json.dumps([_VERSION, config.digest]).encode()).hexdigest()[:40]
            layer = new_layer_id(layer) if force else layer
            async with builder.building(layer):  # until the template that names it is there
                if not await builder.has_layer(layer):
                    await builder.report(shown, "unpack", 2, 4)
                    env = {"WORKDIR": config.workdir}
                    unpack = Step(name="unpack", run=_UNPACK, user="root", cwd="/workspace", env=env)
                    await builder.step(box, shown, unpack)
                    await builder.report(shown, "", 4, 4)
                    await builder.commit(box, layer, ROOT_TREE)
                made = _describe(name, shown, config, layer)
                return await builder.replace(made, lambda other: other.name == name)


def _describe(name: str, shown: str, config: ImageConfig, layer: str) -> BuiltTemplate:
    return BuiltTemplate(
        name=name,
        id="",
        description=f"The image {shown}.",
        layers=(layer,),
        env=config.env,
        user=config.user,
        workdir=config.workdir,
        ports=config.ports,
        image=config.digest,
    )


async def _pull(builder: Builder, box: AsyncSandbox, image: str, shown: str) -> None:
    """Fetch an image into the sandbox: from inside, or from here if the registry is this machine's own."""

    async def tell(step: str) -> None:
        await builder.report(shown, step, 0, 4)

    await tell(registry_images.STEP)
    if registry_images.is_local_registry(image):
        with TemporaryDirectory(prefix="skerry-image-") as directory:
            layout = Path(directory, "oci")
            pull = registry_images.pull_here(image, layout, builder.left())
            await registry_images.followed(pull, lambda: run_sync(registry_images.bytes_below, layout), tell)
            await builder.report(shown, "upload", 1, 4)
            await box.files.upload(layout, _LAYOUT, user="root")
        return
    step = Step(name=registry_images.STEP, run=_PULL, user="root", cwd="/workspace", env={"REFERENCE": image})
    result = await registry_images.followed(builder.run(box, shown, step), lambda: _size(box), tell)
    if result.timed_out:
        raise step_error(f"image {shown}", step.name, result)
    if not result.ok:
        raise registry_images.pull_error(image, result.stderr)


async def _size(box: AsyncSandbox) -> int:
    """Bytes that a pull has brought so far."""
    result = await box.exec(["du", "--summarize", "--block-size=1", _LAYOUT], user="root")
    return int(result.stdout.split()[0]) if result.ok else 0


async def _upload(box: AsyncSandbox, image: str, content: str) -> None:
    """Raises TemplateBuildFailed when it is not what was looked at, and cached, before."""
    with await run_sync(lambda: open(image, "rb")) as file:
        reader = _Hashed(file)
        await box.files.write(_FILE, cast(BinaryIO, reader))
    if reader.hash.hexdigest() != content:
        raise TemplateBuildFailed(f"image {image}: it changed during the build", step="upload", hint="try again")


class _Hashed:
    """A file that is read once, and the hash of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        return data


async def _look(builder: Builder, box: AsyncSandbox, name: str) -> ImageConfig:
    with named_step(f"image {name}", "look"):
        manifest = await box.exec(_LOOK, user="root", output_limit=MAX_CONFIG, timeout=builder.left())
        wanted = [*_LOOK, "--config"]
        config = await box.exec(wanted, user="root", output_limit=MAX_CONFIG, timeout=builder.left())
    for result in (manifest, config):
        if not result.ok:
            raise step_error(f"image {name}", "look", result)
    try:
        return parse_config(json.loads(manifest.stdout), json.loads(config.stdout))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"image {name}: its configuration cannot be used: {error}"
        raise TemplateBuildFailed(message, step="look", log=config.stdout[-LOG_TAIL:]) from error


def parse_config(manifest: Mapping[str, object], config: Mapping[str, object]) -> ImageConfig:
    """What skopeo says about an image, checked. Raises ValueError, KeyError, TypeError, AttributeError."""
    described = manifest["config"]
    digest = described["digest"] if isinstance(described, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a digest")
    wanted = config.get("config") or {}
    if not isinstance(wanted, dict):
        raise TypeError("its config is not a mapping")
    env = dict(entry.partition("=")[::2] for entry in wanted.get("Env") or [] if "=" in entry and "\0" not in entry)
    user = (wanted.get("User") or "root").partition(":")[0] or "root"
    if not _USER.fullmatch(user):
        raise ValueError(f"{user!r} is not a user")
    workdir = wanted.get("WorkingDir") or "/workspace"
    if not workdir.startswith("/") or "\0" in workdir:
        raise ValueError(f"{workdir!r} is not a working directory")
    workdir = posixpath.normpath(f"/{workdir.lstrip('/')}")
    ports = sorted(_port(entry) for entry in wanted.get("ExposedPorts") or {} if not entry.endswith("/udp"))
    return ImageConfig(digest=digest, env=env, user=user, workdir=workdir, ports=tuple(ports))


def _port(entry: str) -> int:
    number = int(entry.partition("/")[0])
    if not 1 <= number <= 65535:
        raise ValueError(f"{number} is not a port")
    return number


def _checked_name(name: str) -> str:
    """Raises InvalidArgument."""
    title, colon, version = name.partition(":")
    if not NAME.fullmatch(title) or (colon and not VERSION.fullmatch(version)) or looks_like_id(title):
        raise InvalidArgument(
            f"{name!r} is not a name for a template", hint="use a name such as my-image or my-image:2"
        )
    catalogue.check_free(title)
    return name if colon else f"{title}:1"


def _require_programs() -> None:
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin") is None]
    if missing:
        raise ProviderUnavailable(
            f"images need {' and '.join(missing)}", hint=f"apt-get install -y {' '.join(missing)}"
        )


def _hash_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        hint = "`docker save`, podman and skopeo write such files"
        if isinstance(error, FileNotFoundError) and registry_images.may_be_meant(path):
            hint = f"did you mean {registry_images.SCHEME}{path}?"
        raise InvalidArgument(f"the image {path!r} cannot be read: {error.strerror}", hint=hint) from error
