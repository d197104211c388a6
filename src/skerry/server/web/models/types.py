"""Types of fields that requests have in common."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Query, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from skerry.core import OBEYED, InvalidArgument, check_shown, parse_duration

MOST = 2**53 - 1
"""The largest whole number that every JSON library reads exactly."""


class Body(BaseModel):
    """A request's JSON: refuses unknown fields, and text in place of a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Answer(BaseModel):
    """An answer's JSON."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("must be text") from None
    return value


def _key(value: Any) -> bytes:
    try:
        key = base64.b64decode(_text(value), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ValueError("must be 32 bytes in base64")
    return key


def _shown(value: str) -> str:
    try:
        return check_shown(value, "it")
    except InvalidArgument as error:
        raise ValueError(error.message.removeprefix("it ")) from None


def _title(value: str) -> str:
    if "\n" in value or "\t" in value:
        raise ValueError("must be one line without tabs")
    return _shown(value)


def _octal(value: Any) -> Any:
    """Permission bits as text are octal, as is usual."""
    if isinstance(value, str) and value and not value.strip("01234567") and len(value) <= 6:
        return int(value, 8)
    return value


Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string"})]
"""Text that may hold any bytes, as in Python: bytes that are not UTF-8 are lone surrogates."""
Base64 = Annotated[
    str,
    Field(pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
Key = Annotated[
    bytes,
    PlainValidator(_key),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "minLength": 44, "maxLength": 44}),
]
"""An encryption key: 32 bytes."""
Mode = Annotated[
    int,
    BeforeValidator(_octal),
    Field(ge=0, le=0o7777),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 0o7777}, {"type": "string", "pattern": "^[0-7]{1,4}$"}]}
    ),
]
"""Permission bits: a number, or octal digits as text."""
Shown = Annotated[str, AfterValidator(_shown), Field(json_schema_extra={"pattern": f"^[^{OBEYED}]*$"})]
"""Text that other users see, without characters that a terminal or a browser would obey."""
Title = Annotated[
    str,
    AfterValidator(_title),
    Field(min_length=1, max_length=100, json_schema_extra={"pattern": f"^[^{OBEYED}\\u0009\\u000a]+$"}),
]
"""A name in plain words: one line of the same."""
Count = Annotated[int, Field(ge=0, le=MOST)]


def _seconds(value: object) -> object:
    try:
        return parse_duration(value) if isinstance(value, str) else value
    except InvalidArgument:  # which shows what was sent
        raise ValueError("must be a number of seconds, or text such as '90s' or '2h'") from None


_Count = Annotated[float, Field(gt=0, le=1e9)]
Seconds = Annotated[_Count, BeforeValidator(_seconds, json_schema_input_type=_Count | Text)]
"""A number, or text such as "2h"."""
Size = Annotated[int, Field(ge=0, le=MOST)] | Annotated[str, Field(max_length=40)]
"""Bytes, or text such as "2GB"."""
Pairs = Annotated[dict[str, str], Field(max_length=256)]
Variables = Annotated[dict[str, Text], Field(max_length=4096)]
Command = Annotated[Text, Field(examples=["echo hello"])] | Annotated[list[Text], Field(min_length=1, max_length=65536)]
"""A string goes to the shell, a list is the arguments."""
User = Annotated[str, Field(max_length=64, examples=["root"])]
Path = Annotated[Text, Field(examples=["/workspace/hello.txt"])]

PathQuery = Annotated[str, Query(description="Relative paths start at the working directory.", examples=["/workspace"])]
UserQuery = Annotated[
    str | None, Query(max_length=64, description="Use this user's rights; by default those of the sandbox's user.")
]


def exact_query(request: Request, name: str) -> str | None:
    """A value of the query with all its bytes: bytes that are not UTF-8 become surrogates, not question marks."""
    query = request.scope["query_string"].decode("latin-1")
    pairs: list[tuple[str, str]] = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
    for key, value in pairs:
        if key == name:
            return value
    return None


async def query_path(request: Request, path: PathQuery) -> str:
    """For Depends: the `path` of the query."""
    return exact_query(request, "path") or path


async def query_path_here(request: Request, path: PathQuery = ".") -> str:
    """For Depends: the `path` of the query; by default the working directory."""
    return exact_query(request, "path") or path
