"""What is wrong with a request that pydantic refuses, in words: never with its values, for one may be a secret."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from skerry.core import InvalidArgument

MOST = 5
"""How many faults an answer names."""
JSON = "application/json"


def invalid(
    connection: HTTPConnection, error: RequestValidationError | WebSocketRequestValidationError
) -> InvalidArgument:
    """The error for the client."""
    faults = error.errors()
    first = faults[0] if faults else {"type": "", "loc": (), "msg": ""}
    if first["type"] == "json_invalid":
        return _broken(str(getattr(error, "body", "")), first)
    if tuple(first["loc"]) == ("body",):
        return _no_object(connection, first)
    route = connection.scope.get("route")
    model = route.body_field.field_info.annotation if isinstance(route, APIRoute) and route.body_field else None
    hints: list[str] = []
    found = dict.fromkeys(_words(fault, model, hints) for fault in _nearest(faults, _names(model)))
    return InvalidArgument("; ".join(list(found)[:MOST]) or "the request is not valid", hint="; ".join(hints[:MOST]))


def _broken(text: str, fault: Mapping[str, Any]) -> InvalidArgument:
    """For a body that is not JSON."""
    before = text[: fault["loc"][-1]]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    why = str(fault.get("ctx", {}).get("error", "")).partition(":")[0].removesuffix(" starting at")
    return InvalidArgument(
        f"the body is not JSON: {why[:1].lower()}{why[1:]} at line {line}, column {column}",
        hint="names and texts are in double quotes, and no comma follows the last item",
    )


def _no_object(connection: HTTPConnection, fault: Mapping[str, Any]) -> InvalidArgument:
    """For a request without a body, or with something else than an object in it."""
    kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    if fault["type"] == "missing":
        return InvalidArgument(
            "the request has no body", hint=f"send a JSON object with the header Content-Type: {JSON}"
        )
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        given = f"a body of the type {kind[:80]}" if kind else "a body without a type"
        return InvalidArgument(f"{given} is not read as JSON", hint=f"send the header Content-Type: {JSON}")
    return InvalidArgument("the body must be a JSON object", hint="send something like {}")


def _words(fault: Mapping[str, Any], model: Any, hints: list[str]) -> str:
    """One fault. A hint for it is added to `hints`."""
    place, *path = fault["loc"]
    where = ".".join(str(part) for part in (_plain(path, _names(model)) if place == "body" else path))
    if fault["type"] == "extra_forbidden":
        known = _fields(_within(model, path[:-1]))
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        hints.append(f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}")
        return f"there is no field {where!r}"
    if fault["type"] == "missing":
        return f"{where!r} is missing" + ("" if place == "body" else f" from the {place}")
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where!r}: {message[:1].lower()}{message[1:]}" + ("" if place == "body" else f" (in the {place})")


def _nearest(faults: Sequence[Mapping[str, Any]], names: Collection[str]) -> list[Mapping[str, Any]]:
    """Without those of a union's members that have more faults than another: the client meant that one."""
    counts: Counter[tuple[int | str, ...]] = Counter()
    for fault in faults:
        of = _member(fault["loc"], names)
        counts[of] += 1 if len(fault["loc"]) > len(of) else MOST * 10  # not even of its type
    least = {each[:-1]: min(counts[other] for other in counts if other[:-1] == each[:-1]) for each in counts}
    return [each for each in faults if (of := _member(each["loc"], names)) == () or counts[of] == least[of[:-1]]]


def _member(path: Sequence[int | str], names: Collection[str]) -> tuple[int | str, ...]:
    """The path up to the first member of a union."""
    end = next((index for index, part in enumerate(path) if _is_member(part, names)), None)
    return () if end is None else tuple(path[: end + 1])


def _is_member(part: int | str, names: Collection[str]) -> bool:
    """Whether it is pydantic's name for a member of a union, and not a field."""
    return isinstance(part, str) and (part in names or "[" in part)


def _plain(path: Sequence[int | str], names: Collection[str]) -> Iterator[int | str]:
    return (part for part in path if not _is_member(part, names))


def _names(model: Any) -> set[str]:
    return {each.__name__ for each in _models(model, deep=True)} | {"str", "int", "float", "bool"}


def _within(model: Any, path: Sequence[int | str]) -> Any:
    """The type at that place."""
    for part in path:
        inner = {name: field.annotation for each in _models(model) for name, field in each.model_fields.items()}
        named = next((each for each in _models(model, deep=True) if each.__name__ == part), None)
        model = inner.get(str(part), model) if named is None else named
    return model


def _fields(model: Any) -> list[str]:
    return [name for each in _models(model) for name in each.model_fields]


def _models(kind: Any, *, deep: bool = False) -> Iterator[type[BaseModel]]:
    """The models of a type, which may be a union of several; `deep`: those of their fields too."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values() if deep else ():
            yield from _models(field.annotation, deep=True)
    for part in get_args(kind):
        yield from _models(part, deep=deep)
