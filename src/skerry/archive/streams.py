"""The bytes of an archive on their way: compressed, sealed, encrypted, and back. Nothing is ever sought in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import BinaryIO

from skerry.archive import crypt
from skerry.archive.keys import Key
from skerry.core import Corrupted, InvalidArgument, Unauthenticated

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
WINDOW_LOG = 21
"""Of the compressor, whatever its level: a reader needs 2 MiB and accepts no more."""
SEAL_HEAD = b"\x5e\x2a\x4d\x18\x20\x00\x00\x00"
"""A skippable frame of 32 bytes, which every zstd program passes over."""
SEAL_SIZE = len(SEAL_HEAD) + 32
THREADS = 2
_PIECE = 1024
"""What the decompressor gets at a time: a block of 4 bytes may stand for 128 KiB, so 32 MiB at most come out."""
_READ = 256 * 1024
_FILL = 512 * 1024


class Sink:
    """Takes the tar stream, writes the file."""

    def __init__(self, target: BinaryIO, *, key: Key | None, level: int) -> None:
        import zstandard

        if not 1 <= level <= 22:
            raise InvalidArgument(f"a compression level is from 1 to 22, not {level}")
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, window_log=WINDOW_LOG, write_checksum=True, write_content_size=False, threads=THREADS
        )
        self._zstd = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        self._target = target
        self._seal = hashlib.sha256()
        self._encrypter = crypt.Encrypter(key) if key is not None else None
        self.written = 0
        if self._encrypter is not None:
            self._write(self._encrypter.header)

    def write(self, data: bytes) -> None:
        self._put(self._zstd.compress(data))

    def finish(self) -> None:
        self._put(self._zstd.flush())
        self._put(SEAL_HEAD + self._seal.digest())
        if self._encrypter is not None:
            self._write(self._encrypter.finish())

    def _put(self, compressed: bytes) -> None:
        if compressed:
            self._seal.update(compressed)
            self._write(compressed if self._encrypter is None else self._encrypter.update(compressed))

    def _write(self, data: bytes) -> None:
        self.written += len(data)
        view = memoryview(data)
        while view:
            # A raw file may take less than all; what is only like a file may not say how much it took.
            taken: int | None = self._target.write(view)
            view = view[len(view) if taken is None else taken :]


class Source:
    """Gives the tar stream back; `finish` checks that the file ends where it should.

    Raises InvalidArgument for what is not an archive, Unauthenticated for a wrong or missing key, Corrupted for the
    rest.
    """

    def __init__(self, source: BinaryIO, *, key: Key | None) -> None:
        import zstandard

        self._source = source
        self._error = zstandard.ZstdError
        self._zstd = zstandard.ZstdDecompressor(max_window_size=2**WINDOW_LOG).decompressobj()
        self._seal = hashlib.sha256()
        self._compressed = b""
        self._at = 0
        self._buffer = b""
        self._from = 0
        self._next: Callable[[], bytes] = self._open(key)

    def _open(self, key: Key | None) -> Callable[[], bytes]:
        head = self._read(len(crypt.MAGIC))
        if not head:
            raise InvalidArgument("this is not an archive: it is empty")
        if head == crypt.MAGIC:
            if key is None:
                raise Unauthenticated("this archive is encrypted", hint="give the key that was used to write it")
            header = head + self._read(crypt.HEADER_SIZE - len(head))
            return crypt.Decrypter(self._read, key, header).chunk
        if len(head) < len(crypt.MAGIC) and (crypt.MAGIC.startswith(head) or ZSTD_MAGIC.startswith(head[:4])):
            raise Corrupted("the archive ends within its first bytes")
        if not head.startswith(ZSTD_MAGIC):
            raise InvalidArgument("this is not an archive of a sandbox", hint="`skerry export` writes them")
        if key is not None:
            raise InvalidArgument(
                "this archive is not encrypted, though a key is given",
                hint="it may have been exchanged; if you trust it, read it without a key",
            )
        self._compressed = head
        return lambda: self._source.read(_READ) or b""

    def read(self, size: int) -> bytes:
        """Exactly this many bytes of the tar stream."""
        at, end = self._from, self._from + size
        if end > len(self._buffer):
            self._fill(size)
            at, end = 0, size
        self._from = end
        return self._buffer[at:end]

    def finish(self) -> None:
        """Raises Corrupted unless the stream is at its end, complete, and sealed."""
        rest = [self._buffer[self._from :]]
        while not self._zstd.eof:
            rest.append(self._decompress())
            if any(rest):
                break
        if any(rest):
            raise Corrupted("the archive continues after its end")
        end = self._at - len(self._zstd.unused_data)
        self._seal.update(self._compressed[:end])
        seal = self._compressed[end:]
        while len(seal) <= SEAL_SIZE and (more := self._next()):
            seal += more
        if seal != SEAL_HEAD + self._seal.digest():
            raise Corrupted("the archive is cut short or altered at its end")

    def _fill(self, size: int) -> None:
        parts = [self._buffer[self._from :]]
        have, wanted, zstd = len(parts[0]), max(size, _FILL), self._zstd
        while have < wanted and not zstd.eof:
            part = self._decompress()
            parts.append(part)
            have += len(part)
        if have < size:
            raise Corrupted("the archive ends too early")
        self._buffer = b"".join(parts)
        self._from = 0

    def _decompress(self) -> bytes:
        if self._at >= len(self._compressed):
            self._seal.update(self._compressed)
            self._compressed = self._next()
            self._at = 0
            if not self._compressed:
                raise Corrupted("the archive ends too early")
        piece = self._compressed[self._at : self._at + _PIECE]
        self._at += len(piece)
        try:
            return self._zstd.decompress(piece)
        except self._error as error:
            raise Corrupted(f"the archive is damaged: {error}") from None

    def _read(self, size: int) -> bytes:
        """A pipe may give less than asked for."""
        parts = []
        while size and (data := self._source.read(size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)
