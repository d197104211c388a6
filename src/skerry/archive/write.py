"""Writing an archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import BinaryIO

from skerry.archive.format import (
    JSON,
    MANIFEST,
    TOTALS,
    ArchiveInfo,
    Limits,
    encode_manifest,
    encode_totals,
    layer_prefix,
    new_manifest,
)
from skerry.archive.keys import Key
from skerry.archive.pack import Packer
from skerry.archive.streams import Sink
from skerry.trees import disk_errors, open_root


def write_archive(
    target: BinaryIO,
    manifest: Mapping[str, JSON],
    layers: Sequence[os.PathLike[str] | str | int],
    *,
    kind: str = "sandbox",
    key: Key | bytes | str | None = None,
    level: int = 3,
    on_progress: Callable[[int], None] | None = None,
) -> ArchiveInfo:
    """Write the layers, top first, and what `manifest` says about them. `target` needs no more than `write`.

    A layer is a directory, or a descriptor of one, that nothing writes to in the meantime. Sockets are left out and
    counted. `on_progress` gets the bytes of content so far, about every half megabyte of them; what it raises stops the
    work. After an error `target` holds a part that no reader accepts; removing it is up to the caller.

    Raises InvalidArgument for a manifest that is not JSON or a bad key; Unsupported for what no archive can hold (a
    device, an overlay's redirect, an owner no sandbox has); Conflict for a file that changes while it is read;
    DiskFull and other FileErrors.
    """
    secret = Key.of(key) if key is not None else None
    about = encode_manifest(new_manifest(kind, len(layers), manifest))
    with disk_errors("writing an archive"):
        sink = Sink(target, key=secret, level=level)
        packer = Packer(sink.write, on_progress, max_id=Limits().max_id)
        packer.plain(MANIFEST, about)
        for index, layer in enumerate(layers):
            packer.layer(open_root(layer), layer_prefix(index))
        if packer.ledger.pending_bytes:
            packer.end_block()
        totals = packer.ledger.totals()
        packer.end(TOTALS, encode_totals(totals))
        sink.finish()
    return ArchiveInfo(**asdict(totals), bytes_written=sink.written)
