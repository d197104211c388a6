"""URLs that read or write one file without any other credential, until they expire."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Path, Query, Request, Response

from skerry.core import FileInfo, PermissionDenied, Unauthenticated
from skerry.sdk import AsyncFiles
from skerry.server.access import signed_urls
from skerry.server.access.identity import Actor, still_good
from skerry.server.access.permissions import Action
from skerry.server.context import Context, Ctx, Sandbox, Who
from skerry.server.web.describe import SANDBOX, op
from skerry.server.web.files import PARTS, file_answer, write_file
from skerry.server.web.guard import Routes
from skerry.server.web.models import inside
from skerry.server.web.models.mirror import answer, mirrored
from skerry.server.web.models.types import MOST, Answer, PathQuery, UserQuery, exact_query
from skerry.server.web.refusals import AGENT, PRECONDITION, RANGE, READ, WRITE

router = Routes("signed files")

SIGNED = "/v1/signed/{sandbox_id}"
OCTETS = "application/octet-stream"
NEEDS = {"GET": Action.SANDBOX_READ, "PUT": Action.SANDBOX_WRITE}
MAKER = (*AGENT, "UNAUTHENTICATED", "PERMISSION_DENIED", "SANDBOX_NOT_FOUND", "CORRUPTED", "PROVIDER_UNAVAILABLE")
Id = Annotated[str, Path(max_length=64, description="The id of the sandbox.")]
By = Annotated[str, Query(max_length=64, description="Who made the URL: a user, or a key.")]
Expires = Annotated[int, Query(ge=0, le=MOST, description="When the URL expires, in seconds since the epoch.")]
Signature = Annotated[str, Query(max_length=64, description="It says that the server made the URL.")]


class SignedUrl(Answer):
    """Valid for this method and this file until it expires, as long as its maker may do this and its key is valid."""

    url: str
    """The URL."""
    method: str
    """The method that it allows."""
    expires_at: float
    """When it ends."""


@router.post(SANDBOX + "/files/url", **op("Make a signed URL for one file", SignedUrl, status=201))
async def create(context: Ctx, who: Who, sandbox: Sandbox, body: inside.CreateFileUrl) -> Response:
    """The holder of the URL may read (GET) or write (PUT) the file, without a key or a session."""
    if who.user is None:
        raise PermissionDenied("a sandbox's token cannot make URLs", hint="use an API key")
    expires_at = float(int(time.time() + body.expires_in) + 1)
    query = signed_urls.signed_query(
        await context.store.secret("signed-urls"),
        method=body.method,
        sandbox_id=sandbox.id,
        path=body.path,
        user=body.user,
        by=who.user.id if who.key is None else who.key.id,
        expires_at=expires_at,
    )
    url = f"{context.settings.url}/v1/signed/{sandbox.id}?{query}"
    return answer({"url": url, "method": body.method, "expires_at": expires_at}, 201)


@router.get(
    SIGNED,
    **op("Read a file by a signed URL", raw=OCTETS, statuses=PARTS, raises=(*MAKER, *READ, PRECONDITION, RANGE)),
)
async def read(
    request: Request,
    context: Ctx,
    who: Who,
    sandbox_id: Id,
    path: PathQuery,
    by: By,
    expires: Expires,
    signature: Signature,
    user: UserQuery = None,
) -> Response:
    """`Range` and `If-None-Match` work as for any other file."""
    exact, files = await _checked(request, context, who, "GET", sandbox_id, path, user, by, expires, signature)
    return file_answer(request, files, exact, user)


@router.put(
    SIGNED,
    **op(
        "Write a file by a signed URL",
        mirrored(FileInfo),
        sends=OCTETS,
        raises=(*MAKER, *WRITE, PRECONDITION),
    ),
)
async def write(
    request: Request,
    context: Ctx,
    who: Who,
    sandbox_id: Id,
    path: PathQuery,
    by: By,
    expires: Expires,
    signature: Signature,
    user: UserQuery = None,
) -> Response:
    """The body may have any size. It is written in one step or not at all."""
    exact, files = await _checked(request, context, who, "PUT", sandbox_id, path, user, by, expires, signature)
    return answer(await write_file(request, files, exact, user=user))


async def _checked(
    request: Request,
    context: Context,
    who: Actor,
    method: str,
    sandbox_id: str,
    path: str,
    user: str | None,
    by: str,
    expires: int,
    signature: str,
) -> tuple[str, AsyncFiles]:
    """The path with all its bytes, and the files. Raises Unauthenticated, also if the maker may no longer do this."""
    exact = exact_query(request, "path") or path
    key = context.store.accounts.key(by)
    maker = Actor(
        user=context.store.accounts.user(by if key is None else key.user_id),
        key=key,
        credential="signed url",
        address=who.address,
        request_id=who.request_id,
    )
    subject, located = await context.sandboxes.locate(maker, sandbox_id)
    operation = f"{method} {SIGNED}"
    try:
        signed_urls.check(
            await context.store.secret("signed-urls"),
            method=method,
            sandbox_id=sandbox_id,
            path=exact,
            user=user,
            by=by,
            expires=expires,
            signature=signature,
            now=time.time(),
        )
        if located is None or not still_good(context.store.accounts, maker):
            raise Unauthenticated(signed_urls.REFUSED, hint=signed_urls.HINT)
        if not context.allows(maker, NEEDS[method], subject):
            raise Unauthenticated(signed_urls.REFUSED, hint=signed_urls.HINT)
    except Unauthenticated as error:
        await context.audit(who, NEEDS[method], subject, operation=operation, outcome=error.code)
        raise
    if method == "PUT":
        await context.audit(maker, NEEDS[method], subject, operation=operation)
    return exact, (await located.use(auto_start=method == "PUT")).files
