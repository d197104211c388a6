"""Models as plain JSON values and back; input is treated as hostile and checked against the types."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from skerry.core.errors import InvalidArgument

T = TypeVar("T")
JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
_MAX_INT = 2**63


def to_plain(value: object) -> Any:
    """Dataclasses become mappings, tuples lists, enums their values, bytes base64."""
    if value is None or isinstance(value, bool | int | float) or type(value) is str:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


def dump_json(value: object) -> bytes:
    """JSON in ASCII, so that names and values that are not UTF-8 (`surrogateescape`) get through as they are."""
    return json.dumps(to_plain(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def load_json(data: bytes | str) -> Any:
    """Raises InvalidArgument for invalid JSON."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"invalid JSON: {error}") from None


def from_plain(kind: type[T], value: Any, what: str = "", *, strict: bool = True) -> T:
    """A dataclass, or a value of another type hint, from its plain form. Absent fields get their defaults.

    Unless `strict`, unknown fields are ignored: the sender may run a later version.

    Raises InvalidArgument for a wrong type, an unknown or a missing field; the message says where.
    """
    hint: Any = kind
    made: T = _reader(hint, strict)(value, what)
    return made


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _wrong(what: str, wanted: str, value: object) -> InvalidArgument:
    where = f"{what} " if what else ""
    return InvalidArgument(f"{where}must be {wanted}, not {type(value).__name__}")


_Reader = Callable[[Any, str], Any]


@cache
def _reader(kind: Any, strict: bool) -> _Reader:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind, strict)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, what: _choice(value, what, {item.value: item for item in kind})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return lambda value, what: _choice(value, what, {item: item for item in arguments})
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        inner = _reader(arguments[0], strict)
        return lambda value, what: None if value is None else inner(value, what)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = _reader(arguments[0], strict)
        return lambda value, what: tuple(_items(inner, value, what))
    if origin is list:
        inner = _reader(arguments[0], strict)
        return lambda value, what: _items(inner, value, what)
    if origin is dict and arguments[0] is str:
        inner = _reader(arguments[1], strict)
        return lambda value, what: _mapping(inner, value, what)
    raise TypeError(f"{kind!r} cannot be read from a plain value")


def _dataclass_reader(kind: Any, strict: bool) -> _Reader:
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}

    def read(value: Any, what: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(what or kind.__name__, "an object", value)
        if strict and (unknown := sorted(map(str, value.keys() - fields.keys()))):
            raise InvalidArgument(f"{what or kind.__name__} has no {unknown[0][:60]!r}")
        found = {
            name: _reader(hints[name], strict)(value[name], f"{what}.{name}" if what else name)
            for name in fields
            if name in value
        }
        for name, field in fields.items():
            if name not in found and field.default is field.default_factory is dataclasses.MISSING:
                raise InvalidArgument(f"{what or kind.__name__} needs {name!r}")
        return kind(**found)

    return read


def _choice(value: Any, what: str, choices: dict[Any, Any]) -> Any:
    if type(value) is not str or value not in choices:
        raise InvalidArgument(f"{what or 'it'} must be one of {', '.join(map(str, choices))}")
    return choices[value]


def _items(inner: _Reader, value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(what, "a list", value)
    return [inner(item, f"{what}[{number}]") for number, item in enumerate(value)]


def _mapping(inner: _Reader, value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(what, "an object", value)
    return {key: inner(item, f"{what}[{key[:60]!r}]") for key, item in value.items()}


def _integer(value: Any, what: str) -> int:
    if type(value) is not int or not -_MAX_INT <= value < _MAX_INT:
        raise _wrong(what, "a whole number of 64 bits", value)
    return value


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise _wrong(what, "a number", value)
    return float(value)


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise _wrong(what, "text", value)
    return value


def _truth(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise _wrong(what, "true or false", value)
    return value


def _bytes(value: Any, what: str) -> bytes:
    try:
        return base64.b64decode(_text(value, what), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{what or 'it'} is not valid base64") from None


_SIMPLE: dict[Any, _Reader] = {
    int: _integer,
    float: _number,
    str: _text,
    bool: _truth,
    bytes: _bytes,
    object: lambda value, what: value,
}
