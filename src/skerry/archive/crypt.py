"""Encryption around an archive: chunks of AES-256-GCM that cannot be cut, moved, doubled or mixed between files."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry.archive.keys import KEY_SIZE, Key
from skerry.core import Corrupted, Unauthenticated, Unsupported

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"\x8dSKERRY\n"
VERSION = 1
CHUNK = 1024 * 1024
TAG = 16
_HEADER = struct.Struct(">8sHHI32s8s16s")
HEADER_SIZE = _HEADER.size
_INFO = b"skerry archive 1: key and check"
_MAX_CHUNKS = 2**32


class Encrypter:
    """Bytes in by `update`, ciphertext out; `finish` gives the last chunk, which says that it is the last."""

    def __init__(self, key: Key) -> None:
        salt, prefix = secrets.token_bytes(32), secrets.token_bytes(8)
        chunk_key, check = _derive(key, salt)
        self.header = _HEADER.pack(MAGIC, VERSION, 0, CHUNK, salt, prefix, check)
        self._chunks = _Chunks(chunk_key, prefix, self.header)
        self._buffer = bytearray()

    def update(self, data: bytes) -> bytes:
        self._buffer += data
        sealed = []
        # A full chunk waits until another byte comes: it may be the last one.
        while len(self._buffer) > CHUNK:
            sealed.append(self._chunks.seal(bytes(self._buffer[:CHUNK]), last=False))
            del self._buffer[:CHUNK]
        return b"".join(sealed)

    def finish(self) -> bytes:
        return self._chunks.seal(bytes(self._buffer), last=True)


class Decrypter:
    """Chunks as they were, in order; b"" after the last one.

    Raises Unauthenticated for a wrong key, at once; Corrupted for anything that was altered, cut or put together.
    """

    def __init__(self, read: Callable[[int], bytes], key: Key, header: bytes) -> None:
        """`read` gives as many bytes as asked for, less only at the end."""
        if len(header) < HEADER_SIZE:
            raise Corrupted("the encrypted archive ends within its header")
        _, version, flags, chunk, salt, prefix, check = _HEADER.unpack(header)
        if version != VERSION:
            raise Unsupported(
                f"this archive is encrypted in version {version}; this version of skerry reads {VERSION}",
                option="version",
                hint="use the version of skerry that wrote it, or a later one",
            )
        if flags or chunk != CHUNK:
            raise Corrupted("the header of the encrypted archive is damaged")
        chunk_key, expected = _derive(key, salt)
        if not secrets.compare_digest(check, expected):
            raise Unauthenticated(
                "this is not the key the archive was encrypted with, or its header is damaged",
                hint="give the key that was used to write it",
            )
        self._chunks = _Chunks(chunk_key, prefix, header)
        self._read = read
        self._next = read(CHUNK + TAG)

    def chunk(self) -> bytes:
        sealed = self._next
        if not sealed:
            if not self._chunks.ended:
                raise Corrupted("the encrypted archive has no content")
            return b""
        self._next = self._read(CHUNK + TAG) if len(sealed) == CHUNK + TAG else b""
        return self._chunks.open(sealed, last=not self._next)


class _Chunks:
    """A chunk's number and whether it is the last are authenticated with it, and so is the header of its file."""

    def __init__(self, key: bytes, prefix: bytes, header: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher: AESGCM = AESGCM(key)
        self._prefix = prefix
        self._header = header
        self._index = 0
        self.ended = False

    def seal(self, data: bytes, *, last: bool) -> bytes:
        nonce, about = self._advance(last)
        return self._cipher.encrypt(nonce, data, about)

    def open(self, sealed: bytes, *, last: bool) -> bytes:
        from cryptography.exceptions import InvalidTag

        index = self._index
        nonce, about = self._advance(last)
        try:
            return self._cipher.decrypt(nonce, sealed, about)
        except InvalidTag:
            raise Corrupted(f"the encrypted archive is cut short or altered at chunk {index}") from None

    def _advance(self, last: bool) -> tuple[bytes, bytes]:
        index = self._index
        if index >= _MAX_CHUNKS:
            raise Unsupported("an encrypted archive has 4 PiB at most", option="key")
        self._index += 1
        self.ended = last
        return self._prefix + struct.pack(">I", index), self._header + struct.pack(">Q?", index, last)


def _derive(key: Key, salt: bytes) -> tuple[bytes, bytes]:
    """The key of one file, and a value that tells a wrong key from a damaged file."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(algorithm=SHA256(), length=KEY_SIZE + 16, salt=salt, info=_INFO).derive(key.secret())
    return derived[:KEY_SIZE], derived[KEY_SIZE:]
