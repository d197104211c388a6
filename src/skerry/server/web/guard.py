"""Routes that cannot be reached without passing their rule.

`Routes` takes handlers as FastAPI does and looks their rule up in the table. A guarded route resolves what the path
names, checks the permission, bounds the body and writes the audit; only then does FastAPI see the request. So nothing
of a forbidden request is read, and no handler can forget the check.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, ParamSpec, TypeVar

import anyio
from fastapi import Depends, FastAPI, Path, Query
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from skerry.core import SkerryError, Timeout, TooLarge, Unsupported
from skerry.server.access.check import Subject, authorize, record
from skerry.server.access.identity import SAFE, Actor
from skerry.server.access.permissions import ROUTES, Action, Rule
from skerry.server.access.revocation import while_allowed
from skerry.server.context import Context
from skerry.server.projects.projects import locate
from skerry.server.projects.slots import Kind

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[P, T]

BODY_PATIENCE = 60.0
SLOWEST = 10_000
"""Bytes per second at which a body that is not streamed must arrive, on top of that."""
_OURS = ("openapi_extra", "slots", "raises")


async def _resolve(context: Context, actor: Actor, rule: Rule, connection: HTTPConnection) -> tuple[Subject, Any]:
    """The subject of the request, and the value that the handler gets for it."""
    path = connection.path_params
    within = connection.query_params.get("project") or connection.headers.get("skerry-project")
    match rule.on:
        case "sandbox":
            return await context.sandboxes.locate(actor, path["sandbox"], within=within)
        case "snapshot":
            return await context.holdings.locate_snapshot(actor, path["snapshot"], within=within)
        case "volume":
            return await context.holdings.locate_volume(actor, path["volume"], within=within)
        case "project":
            return locate(context.store.accounts, actor, path.get("project", within))
    return Subject(on=rule.on), None


async def _enter(rule: Rule, operation: str, scope: Scope) -> tuple[Context, Actor, Subject]:
    """Raises what `authorize` raises."""
    connection = HTTPConnection(scope)
    context: Context = connection.app.state.context
    actor: Actor = scope["state"]["actor"]
    known = actor.signed_in or rule.action is Action.OPEN  # a stranger does not learn what exists
    subject, located = await _resolve(context, actor, rule, connection) if known else (Subject(on=rule.on), None)
    subject = dataclasses.replace(subject, parts=_parts(rule, connection.path_params))
    may = await authorize(context.store, actor, rule.action, subject, operation=operation)
    scope["state"] |= {"subject": subject, "located": located, "may": may}
    return context, actor, subject


def _parts(rule: Rule, path: Mapping[str, Any]) -> tuple[str, ...]:
    """What a path names besides the subject of the rule; a holder's name is its client's secret."""
    return tuple(f"{name} {str(value)[:100]}" for name, value in path.items() if name not in (rule.on, "holder"))


class GuardedRoute(APIRoute):
    rule: Rule
    method: str
    """`HEAD` is as `GET`."""
    operation: str
    slots: Kind | None
    """The kind of place that the actor needs during the request."""
    raises: Sequence[str]
    """Codes of errors that do not follow from the rule and from what it takes."""

    def _refuse_key(self, scope: Scope) -> None:
        """Raises Unsupported for an Idempotency-Key that the handler would ignore."""
        if scope["method"] != "POST" or not any(name == b"idempotency-key" for name, _ in scope["headers"]):
            return
        if not any(parameter.alias == "idempotency-key" for parameter in self.dependant.header_params):
            raise Unsupported(
                f"{self.operation} does not support an Idempotency-Key: a second request would be done again",
                hint="leave out the header, and check whether the first request took effect before you repeat it",
            )

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # refuses it
            return
        context, actor, subject = await _enter(self.rule, self.operation, scope)
        audited = self.rule.audit if self.rule.audit is not None else scope["method"] not in SAFE
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        outcome = "ok"
        # A user may be removed from a project during a request about something in it.
        owned = subject.on not in ("nothing", "projects")
        try:
            self._refuse_key(scope)
            with while_allowed(context, actor, subject, self.rule.action) if owned else nullcontext():
                async with nullcontext() if self.slots is None else context.slots.taken(self.slots, actor):
                    answering = head_only(sent) if scope["method"] == "HEAD" else sent
                    await super().handle(scope, bounded(receive, self.rule.body, scope), answering)
        except SkerryError as error:
            outcome = error.code
            raise
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            if outcome == "ok" and status >= 400:
                outcome = scope["state"].get("outcome", f"HTTP {status}")
            if audited:
                subject = dataclasses.replace(subject, parts=(*subject.parts, *scope["state"].get("made", ())))
                with anyio.CancelScope(shield=True):
                    await record(
                        context.store, actor, self.rule.action, subject, operation=self.operation, outcome=outcome
                    )


class GuardedSocket(APIWebSocketRoute):
    rule: Rule
    operation: str

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, actor, subject = await _enter(self.rule, self.operation, scope)
        await record(context.store, actor, self.rule.action, subject, operation=self.operation)
        await super().handle(scope, receive, send)


def head_only(send: Send) -> Send:
    """`send` for HEAD: the end in place of the body. What makes a stream learns of that end as of a disconnect."""
    ended = False

    async def send_head(message: Message) -> None:
        nonlocal ended
        if message["type"] != "http.response.body":
            await send(message)
        elif not ended:
            ended = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_head


def bounded(receive: Receive, most: int | None, scope: Scope) -> Receive:
    """`receive` that raises TooLarge after `most` bytes of body, and Timeout for a silent or very slow client."""
    count, more = 0, True
    until = math.inf if most is None else anyio.current_time() + BODY_PATIENCE + most / SLOWEST
    if most is not None:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and len(value) < 20 and int(value) > most:
                raise TooLarge(f"a body of {int(value)} bytes is more than the {most} that this route accepts")

    async def receive_bounded() -> Message:
        nonlocal count, more
        if not more:
            return await receive()  # waits until the client disconnects, without a limit
        try:
            with anyio.fail_after(max(0.0, min(BODY_PATIENCE, until - anyio.current_time()))):
                message = await receive()
        except TimeoutError:
            raise Timeout("the body arrives too slowly") from None
        if message["type"] == "http.request":
            more = message.get("more_body", False)
            count += len(message.get("body", b""))
            if most is not None and count > most:
                raise TooLarge(f"the body is more than the {most} bytes that this route accepts")
        return message

    return receive_bounded


ProjectQuery = Annotated[
    str | None,
    Query(
        max_length=200, description="The project, by id or name; by default your own.", examples=["pj-0123456789abcdef"]
    ),
]


async def _in_query(project: ProjectQuery = None) -> None:
    """Only for OpenAPI: the guard reads it."""


def _named(what: str) -> Callable[..., Awaitable[None]]:
    description = f"The {what}, by id or name." if what != "volume" else "The volume, by name."

    async def declare(**_: str) -> None: ...

    declare.__signature__ = _signature(what, description)  # type: ignore[attr-defined]
    return declare


def _signature(what: str, description: str) -> Any:
    kind = Annotated[str, Path(description=description, max_length=200)]
    return inspect.Signature([inspect.Parameter(what, inspect.Parameter.KEYWORD_ONLY, annotation=kind)])


_PATH = {what: _named(what) for what in ("sandbox", "snapshot", "volume", "project")}


def _declared(rule: Rule, path: str) -> list[Any]:
    """Dependencies that only tell OpenAPI what the guard reads."""
    found = [Depends(_PATH[what]) for what in _PATH if f"{{{what}}}" in path]
    if rule.on in ("project", "projects", "sandbox", "snapshot", "volume") and "{project}" not in path:
        found.append(Depends(_in_query))
    return found


class Routes:
    """The routes of one module. Each needs a rule in `permissions`, and each rule a route."""

    def __init__(self, tag: str, *, raises: Sequence[str] = ()) -> None:
        self._tag, self._raises = tag, raises
        self._added: list[Callable[[FastAPI], None]] = []
        self.keys: list[tuple[str, str]] = []

    def get(self, path: str, **options: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        return self._add("GET", path, options)

    def post(self, path: str, **options: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        return self._add("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        return self._add("PUT", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        return self._add("PATCH", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
        return self._add("DELETE", path, options)

    def websocket(self, path: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        rule = self._rule("WS", path)

        def take(handler: Callable[..., T]) -> Callable[..., T]:
            def mount(app: FastAPI) -> None:
                route = GuardedSocket(path, handler, dependencies=_declared(rule, path))
                route.rule, route.operation = rule, f"WS {path}"
                app.router.routes.append(route)

            self._added.append(mount)
            return handler

        return take

    def _rule(self, method: str, path: str) -> Rule:
        self.keys.append((method, path))
        try:
            return ROUTES[method, path]
        except KeyError:
            raise RuntimeError(f"the route {method} {path} has no rule in skerry.server.access.permissions") from None

    def _add(self, method: str, path: str, options: dict[str, Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
        rule = self._rule(method, path)

        def take(handler: Callable[..., T]) -> Callable[..., T]:
            def mount(app: FastAPI) -> None:
                summary, _, more = (inspect.getdoc(handler) or "").partition(". ")
                told = {"summary": summary.removesuffix("."), "description": more} if "summary" not in options else {}
                rest = {name: value for name, value in options.items() if name not in _OURS}
                app.router.add_api_route(
                    path,
                    handler,
                    methods=["GET", "HEAD"] if method == "GET" else [method],
                    tags=[self._tag],
                    operation_id=f"{self._tag.replace(' ', '_').replace('-', '_')}_{handler.__name__.strip('_')}",
                    dependencies=_declared(rule, path),
                    openapi_extra=_security(rule) | options.get("openapi_extra", {}),
                    route_class_override=GuardedRoute,
                    **(told | rest),
                )
                route = app.router.routes[-1]
                assert isinstance(route, GuardedRoute)
                route.rule, route.method, route.operation = rule, method, f"{method} {path}"
                route.slots, route.raises = options.get("slots"), options.get("raises") or self._raises

            self._added.append(mount)
            return handler

        return take

    def mount(self, app: FastAPI) -> None:
        for mount in self._added:
            mount(app)


def _security(rule: Rule) -> dict[str, Any]:
    return {"security": []} if rule.action is Action.OPEN else {"security": [{"key": []}, {"session": []}]}


def check_complete(mounted: set[tuple[str, str]]) -> None:
    """Raises RuntimeError for a rule without a route; a route without a rule cannot be made."""
    if missing := ROUTES.keys() - mounted:
        raise RuntimeError(f"rules without a route: {sorted(missing)}")


__all__ = ["GuardedRoute", "GuardedSocket", "JSONResponse", "ProjectQuery", "Response", "Routes", "check_complete"]
