"""Secrets. A secret is random enough to store its SHA-256; a password is not."""

from __future__ import annotations

import hashlib
import secrets


def new_secret(kind: str) -> tuple[str, str, bytes]:
    """The id, the text `<kind>_<id>_<secret>` that its holder gets once, and the hash to store."""
    id = secrets.token_hex(6)
    text = f"{kind}_{id}_{secrets.token_urlsafe(32)}"
    return id, text, digest(text)


def id_in(text: str, kind: str) -> str | None:
    """The id in a secret's text; None if it is not one of that kind."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == kind else None


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
