"""The key of encrypted archives: 32 bytes from a file, the environment or a command, never shown."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from skerry.core import InvalidArgument

KEY_SIZE = 32
_MAX_TEXT = 4096
_FORMS = "a key is 32 raw bytes, 64 hexadecimal digits, or 32 bytes in base64"


class Key:
    """A master key. Its bytes appear in no repr, error or log."""

    __slots__ = ("_bytes",)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_SIZE:
            raise InvalidArgument(f"a key has {KEY_SIZE} bytes, not {len(key)}", hint=_FORMS)
        self._bytes = bytes(key)

    @classmethod
    def generate(cls) -> Key:
        return cls(secrets.token_bytes(KEY_SIZE))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Key:
        """Raises InvalidArgument if there is no such file or no key in it."""
        try:
            with Path(path).open("rb") as file:
                text = file.read(_MAX_TEXT)
        except OSError as error:
            raise InvalidArgument(f"the key file {os.fspath(path)} cannot be read: {error.strerror}") from error
        return cls(_parse(text, f"the file {os.fspath(path)}"))

    @classmethod
    def from_env(cls, name: str) -> Key:
        """Raises InvalidArgument if the variable is not set or holds no key."""
        text = os.environb.get(os.fsencode(name))
        if text is None:
            raise InvalidArgument(f"the environment variable {name} is not set", hint=_FORMS)
        return cls(_parse(text, f"the environment variable {name}"))

    @classmethod
    def from_command(cls, argv: Sequence[str], *, timeout: float = 60) -> Key:
        """What a command prints. It has this process's terminal and stderr, so it may ask for a passphrase.

        Raises InvalidArgument if it fails, takes too long, or prints no key.
        """
        if not argv:
            raise InvalidArgument("a command for a key needs a program")
        try:
            done = subprocess.run(list(argv), stdout=subprocess.PIPE, timeout=timeout, check=False)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"the command {argv[0]} for the key cannot be started: {error}") from None
        except subprocess.TimeoutExpired:
            # Not chained: the exception carries what the command has printed.
            raise InvalidArgument(f"the command {argv[0]} for the key took more than {timeout:g} s") from None
        if done.returncode:
            raise InvalidArgument(f"the command {argv[0]} for the key failed with exit code {done.returncode}")
        return cls(_parse(done.stdout, f"the output of {argv[0]}"))

    @classmethod
    def of(cls, key: Key | bytes | str) -> Key:
        """A key, its 32 bytes, or where it is: `file:PATH`, `env:NAME`, `command:PROGRAM ARGS`.

        Raises InvalidArgument; a text that names no place is not repeated, since it may be the key itself.
        """
        if isinstance(key, Key):
            return key
        if isinstance(key, bytes):
            return cls(key)
        kind, colon, rest = key.partition(":")
        if colon and rest and kind == "file":
            return cls.from_file(rest)
        if colon and rest and kind == "env":
            return cls.from_env(rest)
        if colon and rest and kind == "command":
            try:
                return cls.from_command(shlex.split(rest))
            except ValueError as error:
                if isinstance(error, InvalidArgument):
                    raise
                raise InvalidArgument(f"the command for the key cannot be read: {error}") from None
        raise InvalidArgument("a key is given as file:PATH, env:NAME or command:PROGRAM", hint=_FORMS)

    def secret(self) -> bytes:
        """The 32 bytes, to store them; the caller keeps them safe."""
        return self._bytes

    def hex(self) -> str:
        """The key as text for a file or a variable; the caller keeps it safe."""
        return self._bytes.hex()

    def __repr__(self) -> str:
        return "Key(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and secrets.compare_digest(self._bytes, other._bytes)

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be pickled")


def _parse(text: bytes, where: str) -> bytes:
    if len(text) == KEY_SIZE:
        return text
    stripped = text.strip()
    try:
        if len(stripped) == 2 * KEY_SIZE:
            return bytes.fromhex(stripped.decode("ascii"))
        key = base64.b64decode(
            stripped.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(stripped) % 4), validate=True
        )
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_SIZE:
        raise InvalidArgument(f"{where} holds no key", hint=_FORMS)
    return key
