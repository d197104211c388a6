"""Errors as HTTP answers: one status for every code, one form of body for all errors."""

from __future__ import annotations

import json
import math

from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from skerry.core import CONTENT_TYPE as CONTENT_TYPE
from skerry.core import InvalidArgument, NotFound, SkerryError, errors, to_problem
from skerry.server.projects.names import outer_error
from skerry.server.web.invalid import invalid

STATUS: dict[str, int] = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "QUOTA_EXCEEDED": 403,
    "READ_ONLY": 403,
    "NOT_FOUND": 404,
    "SANDBOX_NOT_FOUND": 404,
    "SNAPSHOT_NOT_FOUND": 404,
    "VOLUME_NOT_FOUND": 404,
    "TEMPLATE_NOT_FOUND": 404,
    "PROCESS_NOT_FOUND": 404,
    "COMMAND_NOT_FOUND": 404,
    "FILE_NOT_FOUND": 404,
    "REPOSITORY_NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "CONFLICT": 409,
    "SANDBOX_STOPPED": 409,
    "SANDBOX_FAILED": 409,
    "ALREADY_EXISTS": 409,
    "NOT_EMPTY": 409,
    "IS_A_DIRECTORY": 409,
    "NOT_A_DIRECTORY": 409,
    "NOT_A_FILE": 409,
    "SYMLINK_LOOP": 409,
    "PORT_CLOSED": 409,
    "TOO_LARGE": 413,
    "CORRUPTED": 422,
    "TEMPLATE_BUILD_FAILED": 422,
    "COMMAND_FAILED": 422,
    "OUT_OF_MEMORY": 422,
    "GIT_FAILED": 422,
    "IO_ERROR": 422,
    "DISK_LOCKED": 423,
    "RATE_LIMITED": 429,
    "INTERNAL": 500,
    "SKERRY_ERROR": 500,
    "UNSUPPORTED": 501,
    "CONNECTION_LOST": 503,
    "PROVIDER_UNAVAILABLE": 503,
    "TIMEOUT": 504,
    "DISK_FULL": 507,
}


class Problem(BaseModel):
    """An error in the form of RFC 9457. `code` is stable; `detail` is for people."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str = Field(examples=["urn:skerry:error:SANDBOX_NOT_FOUND"])
    """The code as a URN."""
    title: str
    """The name of the error in Python."""
    status: int
    """The HTTP status."""
    code: str = Field(examples=["SANDBOX_NOT_FOUND"])
    """What happened, for programs."""
    detail: str
    """What happened, and to which thing."""
    hint: str
    """What to do next; may be empty."""
    retryable: bool
    """Whether the same request may work later."""


class MethodNotAllowed(SkerryError):
    code = "METHOD_NOT_ALLOWED"


class PreconditionFailed(errors.Conflict):
    """An etag that does not match: a CONFLICT for which HTTP has a separate status."""


def status_of(error: SkerryError) -> int:
    return 412 if isinstance(error, PreconditionFailed) else STATUS[error.code]


def answer(error: SkerryError) -> Response:
    """The whole HTTP answer for an error."""
    status = status_of(error)
    body = to_problem(error) | {"status": status}
    headers = {}
    if isinstance(error, errors.RateLimited):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return Response(text, status_code=status, headers=headers, media_type=CONTENT_TYPE)


async def on_skerry_error(connection: Request | WebSocket, error: Exception) -> Response:
    assert isinstance(error, SkerryError)
    subject = connection.scope["state"].get("subject")
    return await _send(connection, error if subject is None else outer_error(subject.project, error))


async def on_invalid(connection: Request | WebSocket, error: Exception) -> Response:
    """Answer a request that pydantic refuses."""
    assert isinstance(error, RequestValidationError | WebSocketRequestValidationError)
    return await _send(connection, invalid(connection, error))


async def on_http_exception(connection: Request | WebSocket, error: Exception) -> Response:
    """Answer a request that Starlette itself refuses: no such route, no such method, a body that is not a form."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, SkerryError):  # FastAPI takes every error while reading a body for bad JSON
        return await _send(connection, error.__cause__)
    if error.status_code == 404:
        return await _send(connection, NotFound(f"not found: {connection.url.path}"))
    if error.status_code == 405:
        refusal = MethodNotAllowed("this method is not allowed here; the header Allow lists those that are")
        response = await _send(connection, refusal)
        response.headers.update(error.headers or {})
        return response
    return await _send(connection, InvalidArgument(str(error.detail)))


async def _send(connection: Request | WebSocket, error: SkerryError) -> Response:
    if isinstance(connection, WebSocket):
        raise error  # `Front` refuses it: an answer returned here would be sent as well
    connection.scope["state"]["outcome"] = error.code
    return answer(error)


async def refuse(socket: WebSocket, error: SkerryError) -> None:
    """Answer a WebSocket that is not accepted yet like a plain request; close one that is."""
    if socket.application_state.name == "CONNECTING":
        if "websocket.http.response" in socket.scope.get("extensions", {}):
            await socket.send_denial_response(answer(error))
        else:
            await socket.close(1008)
    elif socket.application_state.name == "CONNECTED":
        await socket.close(4000 + status_of(error) % 1000, error.code)
