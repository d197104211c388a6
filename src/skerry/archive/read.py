"""Reading an archive: what it says about itself first, then its layers, verified to the last byte."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from skerry.archive.format import (
    MANIFEST,
    MAX_MANIFEST,
    MAX_TOTALS,
    TOTALS,
    Limits,
    Manifest,
    Totals,
    decode_manifest,
    decode_skipped,
    encode_totals,
    layer_prefix,
)
from skerry.archive.keys import Key
from skerry.archive.ledger import MAX_BLOCK_BYTES, Ledger, is_block
from skerry.archive.members import Members, read_plain, skip_padding
from skerry.archive.streams import Source
from skerry.archive.unpack import Content, Layer
from skerry.archive.verify import Unwritten
from skerry.core import Corrupted, InvalidArgument, QuotaExceeded, human_size
from skerry.trees import BLOCK, Member, disk_errors, tar

_PROGRESS = 512 * 1024


@contextmanager
def open_archive(source: BinaryIO, *, key: Key | bytes | str | None = None) -> Iterator[Archive]:
    """An archive whose `manifest` is read and whose layers wait. `source` needs no more than `read`, and stays open.

    Raises InvalidArgument for something that is not an archive, or is not encrypted though a key is given;
    Unauthenticated for a wrong or missing key; Unsupported for a later format; Corrupted for a damaged one.
    """
    secret = Key.of(key) if key is not None else None
    with disk_errors("reading an archive"):
        archive = Archive(Source(source, key=secret))
    yield archive


class Archive:
    """Made by `open_archive`."""

    manifest: Manifest
    """Not verified before `unpack` has returned, unless the archive is encrypted."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ledger = Ledger()
        self._unpacked = False
        self._members = Members(source)
        member, header = self._members.first(MANIFEST)
        data = read_plain(source, member, MAX_MANIFEST)
        self._ledger.add(MANIFEST, header, hashlib.sha256(data))
        self.manifest = decode_manifest(data)

    def unpack(
        self,
        directories: Sequence[os.PathLike[str] | str | int],
        *,
        limits: Limits | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Totals:
        """Write each layer, top first, into its own directory, which must be empty and not in use.

        Nothing in them may be used before this has returned: the last bytes of an archive verify the first. After
        any error the directories are empty again. `on_progress` gets the bytes of content so far; what it raises stops
        the work. Works once.

        Raises Corrupted for an archive that is cut short, altered or made to harm; QuotaExceeded past `limits`;
        DiskFull and other FileErrors; Unsupported if the file system cannot keep an attribute; InvalidArgument for
        another number of directories than layers, or one that is not empty.
        """
        if len(directories) != self.manifest.layers:
            raise InvalidArgument(
                f"the archive has {self.manifest.layers} layers, not {len(directories)}",
                hint="give a directory for each",
            )
        self._begin()
        limits = limits or Limits()
        with disk_errors("unpacking an archive"), ExitStack() as opened:
            layers = []
            for index, directory in enumerate(directories):
                layers.append(Layer(directory, layer_prefix(index), limits))
                opened.callback(layers[-1].close)
            try:
                totals = _Unpacking(self._source, self._members, self._ledger, layers, limits, on_progress).run()
                for layer in layers:
                    layer.settle()
            except BaseException as error:
                _remove(layers, error)
                raise
        return totals

    def verify(self, *, on_progress: Callable[[int], None] | None = None) -> Totals:
        """Read the archive to its end as `unpack` does, and write nothing. Works once, and not beside `unpack`.

        Raises Corrupted for an archive that is cut short or altered, InvalidArgument the second time.
        """
        self._begin()
        with disk_errors("reading an archive"):
            layers = [Unwritten(layer_prefix(index)) for index in range(self.manifest.layers)]
            return _Unpacking(self._source, self._members, self._ledger, layers, Limits(), on_progress).run()

    def _begin(self) -> None:
        if self._unpacked:
            raise InvalidArgument("an archive is unpacked once", hint="open it again")
        self._unpacked = True


class _Unpacking:
    """The members after the manifest, each into its layer."""

    def __init__(
        self,
        source: Source,
        members: Members,
        ledger: Ledger,
        layers: Sequence[Layer | Unwritten],
        limits: Limits,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._source = source
        self._members = members
        self._ledger = ledger
        self._layers = layers
        self._limits = limits
        self._on_progress = on_progress
        self._silent = 0

    def run(self) -> Totals:
        layers, current = self._layers, -1
        while True:
            member, header = self._members.read()
            path = member.path
            if path == TOTALS:
                break
            if is_block(path):
                self._ledger.check_block(path, read_plain(self._source, member, MAX_BLOCK_BYTES))
                continue
            if current < 0 or not path.startswith(layers[current].prefix):
                if current >= 0:
                    layers[current].close_directories()
                current += 1
                if current == len(layers):
                    raise Corrupted(f"the archive has {path[:200]!r}, which belongs to no layer")
            self._entry(layers[current], member, header)
        if current != len(layers) - 1:
            raise Corrupted(f"the archive holds {current + 1} layers, not {len(layers)}")
        if layers:
            layers[current].close_directories()
        return self._end(member)

    def _entry(self, layer: Layer | Unwritten, member: Member, header: bytes) -> None:
        ledger = self._ledger
        if ledger.entries >= self._limits.max_entries:
            raise QuotaExceeded(
                f"the archive has more than {self._limits.max_entries} entries", hint="raise max_entries"
            )
        if ledger.pending_bytes > MAX_BLOCK_BYTES:
            raise Corrupted("the archive lacks the hashes of what is in it")
        content = Content(self._source.read, self._spend)
        mark = layer.add(member, content)
        has_content = member.type == tar.FILE and not mark
        if has_content:
            skip_padding(self._source, member.size)
        ledger.add(member.path, header, content.hash if has_content else None)
        ledger.count(member.type, whiteout=mark)
        self._tell(BLOCK)

    def _spend(self, size: int) -> None:
        """Called before this many bytes of content are written."""
        limit = self._limits.max_bytes
        self._ledger.content_bytes += size
        if limit is not None and self._ledger.content_bytes > limit:
            raise QuotaExceeded(f"the archive has more than {human_size(limit)} of content", hint="raise max_bytes")
        self._tell(size)

    def _tell(self, size: int) -> None:
        self._silent += size
        if self._on_progress is not None and self._silent >= _PROGRESS:
            self._silent = 0
            self._on_progress(self._ledger.content_bytes)

    def _end(self, member: Member) -> Totals:
        """The totals are what was counted, all hashes have been compared, and nothing follows."""
        if self._ledger.pending_bytes:
            raise Corrupted("the archive lacks the hashes of what is in it")
        data = read_plain(self._source, member, MAX_TOTALS)
        self._ledger.skipped = decode_skipped(data)
        totals = self._ledger.totals()
        if data != encode_totals(totals):
            raise Corrupted("the archive does not hold what it counts")
        if self._source.read(2 * BLOCK) != tar.END:
            raise Corrupted("the archive continues after its end")
        self._source.finish()
        return totals


def _remove(layers: list[Layer], error: BaseException) -> None:
    for layer in layers:
        try:
            layer.remove()
        except OSError as left:
            error.add_note(f"not everything of it could be removed: {left}")
