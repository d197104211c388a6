"""Signed URLs: each lets its holder read or write one file until it expires, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from urllib.parse import urlencode

from skerry.core import Unauthenticated

VERSION = b"skerry-file-1"
REFUSED, HINT = "this URL is not valid, or no longer valid", "ask for a new one"


def sign(secret: bytes, *, method: str, sandbox_id: str, path: str, user: str, by: str, expires: int) -> str:
    """A signature over everything that the URL allows; lengths separate the fields."""
    fields = (VERSION, method.encode(), sandbox_id.encode(), path.encode("utf-8", "surrogateescape"))
    more = (user.encode("utf-8", "surrogatepass"), by.encode("utf-8", "surrogatepass"), b"%d" % expires)
    message = b"".join(b"%d:%s" % (len(field), field) for field in (*fields, *more))
    return base64.urlsafe_b64encode(hmac.digest(secret, message, hashlib.sha256)).rstrip(b"=").decode()


def signed_query(
    secret: bytes, *, method: str, sandbox_id: str, path: str, user: str | None, by: str, expires_at: float
) -> str:
    """The query of a signed URL."""
    expires = math.ceil(expires_at)
    signature = sign(secret, method=method, sandbox_id=sandbox_id, path=path, user=user or "", by=by, expires=expires)
    fields: dict[str, str] = {"path": path, **({"user": user} if user else {}), "by": by, "expires": str(expires)}
    return urlencode({**fields, "signature": signature}, encoding="utf-8", errors="surrogateescape")


def check(
    secret: bytes,
    *,
    method: str,
    sandbox_id: str,
    path: str,
    user: str | None,
    by: str,
    expires: int,
    signature: str,
    now: float,
) -> None:
    """Raises Unauthenticated; the same for a forged and for an expired URL."""
    wanted = sign(secret, method=method, sandbox_id=sandbox_id, path=path, user=user or "", by=by, expires=expires)
    genuine = hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "surrogateescape"))
    if not genuine or now >= expires:
        raise Unauthenticated(REFUSED, hint=HINT)
