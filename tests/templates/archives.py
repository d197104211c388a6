"""Image archives made by hand, honest and hostile, and templates that need nothing."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

from skerry.templates import Command, Scripts, Template


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """One layer of an image."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return output.getvalue()


def file(name: str, data: bytes = b"", *, mode: int = 0o644, owner: int = 0) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.uid, entry.gid = mode, owner, owner
    return entry, data


def special(name: str, kind: bytes, *, link: str = "", mode: int = 0o777) -> tuple[tarfile.TarInfo, bytes]:
    """A directory, a link or a device."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, mode
    entry.devmajor, entry.devminor = (1, 3) if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE) else (0, 0)
    return entry, b""


def _configuration(layers: Iterable[bytes], config: dict[str, object]) -> bytes:
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha(data)}" for data in layers]},
        }
    ).encode()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def docker_archive(path: Path, *layers: bytes, config: dict[str, object] | None = None) -> Path:
    """As `docker save` writes it."""
    configuration = _configuration(layers, config or {})
    names = [f"{_sha(data)}/layer.tar" for data in layers]
    manifest = [{"Config": f"{_sha(configuration)}.json", "RepoTags": ["made:here"], "Layers": names}]
    with tarfile.open(path, "w") as tar:
        for name, data in (
            (f"{_sha(configuration)}.json", configuration),
            *zip(names, layers, strict=True),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def oci_archive(path: Path, *layers: bytes, config: dict[str, object] | None = None) -> Path:
    """An OCI image layout in a tar archive."""
    configuration = _configuration(layers, config or {})
    kind = "application/vnd.oci.image"

    def described(media: str, data: bytes) -> dict[str, object]:
        return {"mediaType": f"{kind}.{media}", "digest": f"sha256:{_sha(data)}", "size": len(data)}

    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": described("config.v1+json", configuration),
            "layers": [described("layer.v1.tar", data) for data in layers],
        }
    ).encode()
    index = json.dumps({"schemaVersion": 2, "manifests": [described("manifest.v1+json", manifest)]}).encode()
    blobs = [(f"blobs/sha256/{_sha(data)}", data) for data in (configuration, manifest, *layers)]
    with tarfile.open(path, "w") as tar:
        for name, data in (
            ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
            ("index.json", index),
            *blobs,
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def tiny(name: str, *build: str, **more: object) -> Template:
    """A template on `host`: nothing is downloaded."""
    scripts = Scripts(build=tuple(Command(line) for line in build))
    return Template(**({"name": name, "base": "host", "scripts": scripts} | more))  # type: ignore[arg-type]
