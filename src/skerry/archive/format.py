"""What an archive is made of: names, bounds, the manifest and the counts. docs/design/archive.md has every byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import TypeAlias

from skerry._model import Model
from skerry.core import (
    Corrupted,
    InvalidArgument,
    Unsupported,
)

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

FORMAT = 1
MANIFEST = b"manifest.json"
TOTALS = b"totals.json"
MAX_MANIFEST = 1024 * 1024
MAX_TOTALS = 4096
MAX_LAYERS = 128
MAX_NAME = 255


class Manifest(Model, kw_only=False):
    """What an archive says about itself; `data` is what the caller of `write_archive` gave."""

    kind: str
    created_at: datetime
    layers: int
    data: dict[str, JSON]


class Limits(Model, kw_only=False):
    """What an incoming archive may cost at most."""

    max_bytes: int | None = None
    """Of content. Holes of sparse files are free, as they are on the disk."""
    max_entries: int = 10_000_000
    max_id: int = 65_535
    """The largest user and group id: a sandbox has no others."""


class Totals(Model, kw_only=False):
    """What an archive holds; `sha256` is over the hashes of all entries, so it stands for the whole content."""

    entries: int
    files: int
    """Regular files; a hard link counts under `links`."""
    directories: int
    links: int
    """Symbolic links and further names of files."""
    fifos: int
    whiteouts: int
    """Names a layer hides, and directories whose lower content it hides."""
    skipped: int
    """Sockets: they mean nothing without the process that listens."""
    content_bytes: int
    """Of files as stored: holes do not count."""
    sha256: str


class ArchiveInfo(Totals, kw_only=False):
    """What `write_archive` wrote."""

    bytes_written: int


def layer_prefix(index: int) -> bytes:
    return b"layers/%d/" % index


def encode_manifest(manifest: Manifest) -> bytes:
    """Raises InvalidArgument for data that is not JSON, or is too large."""
    try:
        text = json.dumps(
            {
                "format": FORMAT,
                "kind": manifest.kind,
                "created_at": manifest.created_at.isoformat(),
                "layers": manifest.layers,
                "data": manifest.data,
            },
            allow_nan=False,
            indent=1,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the manifest of an archive must be JSON: {error}") from None
    encoded = text.encode() + b"\n"
    if len(encoded) > MAX_MANIFEST:
        raise InvalidArgument(f"the manifest of an archive may have {MAX_MANIFEST} bytes, not {len(encoded)}")
    return encoded


def decode_manifest(encoded: bytes) -> Manifest:
    """Raises Corrupted, or Unsupported for a later format."""
    found = _object(encoded, "manifest")
    if found.get("format") != FORMAT:
        if isinstance(found.get("format"), int):
            raise Unsupported(
                f"this archive has format {found['format']}; this version reads {FORMAT}",
                option="format",
                hint="use the version of skerry that wrote it, or a later one",
            )
        raise Corrupted("the manifest of the archive names no format")
    kind, layers, data = found.get("kind"), found.get("layers"), found.get("data")
    try:
        created_at = datetime.fromisoformat(str(found.get("created_at")))
    except ValueError:
        raise Corrupted("the manifest of the archive has no date") from None
    if not isinstance(kind, str) or not isinstance(data, dict) or type(layers) is not int:
        raise Corrupted("the manifest of the archive is incomplete")
    if not 0 <= layers <= MAX_LAYERS:
        raise Corrupted(f"the archive claims {layers} layers; {MAX_LAYERS} are possible")
    return Manifest(kind, created_at, layers, data)


def new_manifest(kind: str, layers: int, data: Mapping[str, JSON]) -> Manifest:
    if layers > MAX_LAYERS:
        raise InvalidArgument(f"an archive holds up to {MAX_LAYERS} layers, not {layers}")
    return Manifest(kind, datetime.now(UTC).replace(microsecond=0), layers, dict(data))


def encode_totals(totals: Totals) -> bytes:
    return json.dumps({field.name: getattr(totals, field.name) for field in fields(Totals)}, indent=1).encode() + b"\n"


def decode_skipped(totals: bytes) -> int:
    """The one count that a reader cannot make itself."""
    skipped = _object(totals, "end").get("skipped")
    if type(skipped) is not int or skipped < 0:
        raise Corrupted("the archive does not say what was left out of it")
    return skipped


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON, whatever Python's reader says")


def _object(encoded: bytes, what: str) -> dict[str, JSON]:
    try:
        found = json.loads(encoded, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Corrupted(f"the {what} of the archive is not JSON") from None
    if not isinstance(found, dict):
        raise Corrupted(f"the {what} of the archive is not a JSON object")
    return found
