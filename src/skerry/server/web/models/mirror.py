"""Answers: dataclasses of core and sdk as JSON, and the models that describe that JSON."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import types
from collections.abc import Mapping
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import Response
from pydantic import BaseModel, Field, create_model

from skerry import core
from skerry.core import CodeResult, ExecResult, dump_json
from skerry.sdk import ProcessOutput, Replacement, TerminalOutput
from skerry.server.web.models.words import WORDS

PROPERTIES: dict[type, tuple[str, ...]] = {
    ExecResult: ("timed_out", "ok"),
    CodeResult: ("result", "timed_out", "ok"),
    ProcessOutput: ("next",),
    TerminalOutput: ("next",),
    Replacement: ("count",),
}
"""Properties that an answer shows besides the fields."""
TEXT = (ExecResult, CodeResult, ProcessOutput, TerminalOutput)
"""Types whose bytes are mostly text: shown as text, and also in base64 if the text is not exactly the bytes."""
EXACT = "The exact bytes in base64; null: they are the text beside it in UTF-8."


class JsonResponse(Response):
    """JSON in ASCII: file names may hold any bytes, which Python has as lone surrogates and UTF-8 cannot express."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return to_json(content)


def to_json(content: object) -> bytes:
    return dump_json(content, plain)


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JsonResponse(content, status_code=status, headers=None if headers is None else dict(headers))


def plain(value: object) -> Any:
    """`core.plain` as answers have it."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    return core.plain(value, text=TEXT, properties=PROPERTIES)


@functools.cache
def mirrored(kind: type, name: str | None = None) -> type[BaseModel]:
    """A model of the JSON that `plain` makes of a dataclass, with the dataclass's field descriptions."""
    hints, notes = get_type_hints(kind), _docstrings(kind)
    fields: dict[str, Any] = {}

    def add(name: str, hint: Any, note: str | None) -> None:
        fields[name] = (hint, Field(description=note or WORDS.get(name)))

    for field in dataclasses.fields(kind):
        note = notes.get(field.name)
        if kind in TEXT and hints[field.name] is bytes:
            short = field.name.removesuffix("_bytes")
            add(short, str, note)
            add(f"{short}_base64", str | None, EXACT)
        else:
            add(field.name, _mirrored_type(hints[field.name], kind), note)
    for extra in PROPERTIES.get(kind, ()):
        getter = inspect.getattr_static(kind, extra).fget
        add(extra, _mirrored_type(get_type_hints(getter)["return"], kind), inspect.getdoc(getter))
    called = name or kind.__name__
    made: type[BaseModel] = create_model(called, __doc__=inspect.getdoc(kind), **fields)
    return made


def _mirrored_type(hint: Any, within: type) -> Any:
    if hint is bytes:
        return str
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return ForwardRef(hint.__name__) if hint is within else mirrored(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None or origin is Literal:
        return hint
    if origin in (Union, types.UnionType):
        return Union[tuple(_mirrored_type(each, within) for each in arguments)]  # noqa: UP007
    if origin is tuple and arguments[-1] is Ellipsis:
        return list[_mirrored_type(arguments[0], within)]  # type: ignore[misc]
    return origin[tuple(_mirrored_type(each, within) for each in arguments)]


def _docstrings(kind: type) -> dict[str, str]:
    """The texts below the fields of a dataclass and of those it extends."""
    found = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            found.update(_own_docstrings(parent))
    return found


def _own_docstrings(kind: type) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(value=ast.Constant(value=str(text))):
                found[field] = " ".join(text.split())
    return found
