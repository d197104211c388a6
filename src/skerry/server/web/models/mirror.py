"""Answers: dataclasses of core and sdk as JSON, and the models that describe that JSON."""

from __future__ import annotations

import ast
import base64
import dataclasses
import functools
import inspect
import json
import textwrap
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import Response
from pydantic import BaseModel, Field, create_model

from skerry.core import CodeResult, ExecResult
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
    return json.dumps(plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JsonResponse(content, status_code=status, headers=None if headers is None else dict(headers))


def plain(value: object) -> Any:
    """The value, made only of types that JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def _fields(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = type(value)
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if kind in TEXT and isinstance(item, bytes):
            name = field.name.removesuffix("_bytes")
            found[name], found[f"{name}_base64"] = text_and_bytes(item)
            if getattr(value, f"{name}_cut", None) is not None:
                found[name], found[f"{name}_base64"] = getattr(value, name), plain(item)
        else:
            found[field.name] = plain(item)
    for name in PROPERTIES.get(kind, ()):
        found[name] = plain(getattr(value, name))
    return found


def text_and_bytes(data: bytes) -> tuple[str, str | None]:
    """The bytes as text, and in base64 if the text does not represent them exactly."""
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode("ascii")


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
