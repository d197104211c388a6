"""The OpenAPI document: of everything that users call, or of the provider API, which only `remote` calls."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from skerry.server.access.identity import cookie_name
from skerry.server.access.permissions import Action, On, Rule
from skerry.server.web.describe import opens_sandbox
from skerry.server.web.guard import GuardedRoute
from skerry.server.web.problems import Problem
from skerry.server.web.refusals import answers

INTERNAL = "provider"
"""The tag of the routes that only `skerry.providers.remote` calls; they may change with every version."""
TAGS = {
    "sandboxes": "Make, list, change, copy and destroy sandboxes.",
    "commands": "Run a command or a snippet of code and get its result, or its output as it comes.",
    "files": "Read, write, list, search and watch files of a sandbox.",
    "directories": "Whole directories as tar streams.",
    "processes": "Processes in the background, which outlive the request that starts them.",
    "terminals": "Programs on a terminal. A WebSocket serves them too: see docs/how-to/http-api.md.",
    "ports": "TCP ports that programs inside listen on.",
    "environment": "The variables that later commands get.",
    "git": "Git repositories inside a sandbox.",
    "lifecycle": "Stop, start, pause, archive and reset a sandbox.",
    "status": "What a sandbox uses, and whether it works.",
    "snapshots": "The files of a sandbox as they were at a moment.",
    "states": "The state of a sandbox or a snapshot as one file.",
    "volumes": "Directories that sandboxes share and that outlive them.",
    "templates": "What sandboxes begin with.",
    "signed files": "URLs that read or write one file without a key.",
    "events": "What happened to sandboxes, as pages or as a stream.",
    "projects": "Projects, which sandboxes belong to, and their members.",
    "webhooks": "Addresses that a project's events are sent to.",
    "keys": "API keys, tokens for code inside a sandbox, and tickets for WebSockets.",
    "sessions": "Signing in and out.",
    "users": "The users of the server, for administrators.",
    "audit": "Who did what, and what was refused.",
    "server": "The server itself.",
    "page": "The API page and this document.",
    INTERNAL: "Internal: the provider contract for `skerry.providers.remote`. It may change with every version.",
}
"""What the document says about each group of routes, those first that people use first."""
DESCRIPTION = """
Send an API key as `Authorization: Bearer <key>`. Times are seconds since the epoch, sizes are bytes. A path names a
sandbox, a snapshot or a volume by its id, or by its name in the project that `project` names, by default your own.
`HEAD` works wherever `GET` does. An error is a problem document (RFC 9457) whose `code` is stable; `x-codes` lists
the codes that an answer may have.
"""
_WHERE: dict[On, str] = {
    "nothing": "",
    "projects": " in the project",
    "project": " in the project",
    "sandbox": " on the sandbox",
    "snapshot": " on the snapshot",
    "volume": " on the volume",
}
_JSON = {"None": "null", "True": "true", "False": "false"}
_PYTHON = re.compile(r"\b(?:None|True|False)\b(?!-)")
_DONE = {"200": "Done.", "201": "Made.", "204": "Done; the answer has no body."}


def served(request: Request, *, internal: bool = False) -> Response:
    """The document, with the address by which the client knows this server."""
    made: dict[bool, dict[str, Any]] = request.app.state.documents
    if internal not in made:
        made[internal] = document(request.app, internal=internal)
    url = request.app.state.context.settings.public_url or str(request.base_url).rstrip("/")
    servers = [{"url": url, "description": "The server that this document is from."}]
    return JSONResponse({**made[internal], "servers": servers})


def document(app: FastAPI, *, internal: bool = False) -> dict[str, Any]:
    """The document of the routes for users, or of the internal ones."""
    shown = [route for route in app.routes if isinstance(route, GuardedRoute) and (INTERNAL in route.tags) is internal]
    made = get_openapi(
        title="Skerry, internal" if internal else "Skerry",
        version=version("skerry"),
        summary=TAGS[INTERNAL] if internal else "Isolated sandboxes over HTTP.",
        description=" ".join(DESCRIPTION.split()),
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        routes=[_without_head(route) for route in shown],
        openapi_version="3.1.0",
        separate_input_output_schemas=False,
    )
    for route in shown:
        if route.include_in_schema:
            _complete(made["paths"][route.path_format][route.method.lower()], route)
    order = list(TAGS)
    used = {tag for route in shown for tag in route.tags}
    made["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    made["paths"] = dict(sorted(made["paths"].items(), key=lambda item: order.index(_first(item[1])["tags"][0])))
    made["components"] = {
        "schemas": _schemas(made.get("components", {}).get("schemas", {})),
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer", "description": "An API key or a sandbox's token."},
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": cookie_name(app.state.context.settings),
                "description": "The cookie of a user who has signed in.",
            },
        },
    }
    found: dict[str, Any] = _renamed(made)
    return found


def _without_head(route: GuardedRoute) -> GuardedRoute:
    """A copy: FastAPI describes every method of a route, and `HEAD` is as `GET`."""
    shown = copy.copy(route)
    shown.methods = {route.method}
    return shown


def _first(operations: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return next(iter(operations.values()))


def _complete(operation: dict[str, Any], route: GuardedRoute) -> None:
    """What FastAPI cannot know: the right that it needs, and its errors; a body that pydantic refuses is a 400."""
    given = {status: answer for status, answer in operation["responses"].items() if int(status) < 400}
    for status, answer in given.items():
        if answer["description"] in ("Successful Response", "OK"):
            answer["description"] = _DONE[status]
        for content in answer.get("content", {}).values():
            if "$ref" in content.get("schema", {}):  # FastAPI describes every answer but a JSONResponse as text
                content["schema"].pop("type", None)
    opens = opens_sandbox(route.dependant)
    operation["responses"] = given | answers(route, opens=opens, takes="requestBody" in operation)
    operation["description"] = "\n\n".join(filter(None, (operation.get("description"), _right(route.rule))))
    for parameter in operation.get("parameters", ()):
        _lift(parameter["schema"], parameter)
        parameter["schema"].pop("title", None)


def _right(rule: Rule) -> str:
    if rule.action is Action.OPEN:
        return "Needs no sign-in."
    if rule.action is Action.USER_SELF:
        return "Needs a sign-in."
    return f"Needs the right `{rule.action}`{_WHERE[rule.on]}."


def _schemas(found: dict[str, Any]) -> dict[str, Any]:
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    for schema in (all := found | {"Problem": problem}).values():
        _speak_json(schema)
        schema.pop("title", None)  # generators would take it instead of the name
        for name, shown in schema.get("properties", {}).items():
            if shown.get("title", "").replace(" ", "_").lower() == name.lower():
                del shown["title"]  # pydantic makes it of the name
            _lift(shown, shown)
            _speak_json(shown)
    for name in ("HTTPValidationError", "ValidationError"):
        all.pop(name, None)
    return dict(sorted(all.items()))


def _speak_json(schema: dict[str, Any]) -> None:
    """Most descriptions are those of a class or a field in Python."""
    if "description" in schema:
        schema["description"] = _PYTHON.sub(lambda found: _JSON[found[0]], schema["description"])


def _lift(schema: dict[str, Any], to: dict[str, Any]) -> None:
    """The description of a type that may also be null becomes that of what has the type."""
    for part in (schema, *schema.get("anyOf", ())):
        if "description" not in to and "description" in part:
            to["description"] = part["description"]


def _renamed(document: dict[str, Any]) -> Any:
    """Schemas called `KeyModel` in Python, because the database has a `Key` too, are called `Key` here."""
    names = {name: name.removesuffix("Model") for name in document["components"]["schemas"] if name.endswith("Model")}
    schemas = document["components"]["schemas"]
    document["components"]["schemas"] = {names.get(name, name): schema for name, schema in schemas.items()}
    text = json.dumps(document)
    for old, new in names.items():
        text = re.sub(rf'"#/components/schemas/{old}"', f'"#/components/schemas/{new}"', text)
    return json.loads(text)
