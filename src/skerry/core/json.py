"""Models as plain JSON values and back; input is treated as hostile and checked against the types."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import inspect
import json
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from skerry.core.errors import InvalidArgument, NewerVersion

T = TypeVar("T")
JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
_MAX_INT = 2**63
_NOTHING: Mapping[type, Sequence[str]] = types.MappingProxyType({})


def plain(value: object, *, text: Collection[type] = (), properties: Mapping[type, Sequence[str]] = _NOTHING) -> Any:
    """The value one step nearer to JSON, for `default=` of `json.dumps`: a model as a mapping, bytes as base64 …

    `text` has the models whose bytes are mostly text: they have it as text, and in base64 where the text is not exactly
    the bytes. `properties` has the properties that a model's mapping shows besides its fields.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if kind in text:
            found = dict(_with_texts(value, found))
        return found | {name: getattr(value, name) for name in properties.get(kind, ())}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no plain form")


def _with_texts(model: object, found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if not isinstance(value, bytes):
            yield name, value
            continue
        short, exact = name.removesuffix("_bytes"), value if found.get(f"{name.removesuffix('_bytes')}_cut") else None
        try:
            shown = value.decode("utf-8") if exact is None else getattr(model, short)
        except UnicodeDecodeError:
            shown, exact = value.decode("utf-8", "replace"), value
        yield short, shown
        yield f"{short}_base64", exact


def dump_json(value: object, default: Callable[[Any], Any] = plain) -> bytes:
    """JSON in ASCII, so that names and values that are not UTF-8 (`surrogateescape`) get through as they are."""
    return json.dumps(value, default=default, separators=(",", ":"), allow_nan=False).encode("ascii")


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


def read_record(kind: type[T], data: bytes, versions: Sequence[int]) -> T:
    """A model that was written with a `version` beside its fields.

    Raises NewerVersion for a version above `versions`, InvalidArgument for anything else that is not such a model.
    """
    found = load_json(data)
    version = found.pop("version", None) if isinstance(found, dict) else None
    if isinstance(version, int) and version > max(versions):
        raise NewerVersion(f"record version {version}; this one reads up to {max(versions)}")
    if version not in versions:
        raise InvalidArgument(f"it has the version {version!r}")
    return from_plain(kind, found)


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
        return _model_reader(kind, strict)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, what: _choice(value, what, {item.value: item for item in kind})
    if kind == int | str | None:
        return _size
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


def _model_reader(kind: Any, strict: bool) -> _Reader:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    needed = [name for name, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING]
    readers: dict[str, _Reader] = {}  # made by the first read, since a model may contain itself

    def read(value: Any, what: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(what or kind.__name__, "an object", value)
        if not readers:
            readers.update({name: _reader(_hint(kind, name, field.type), strict) for name, field in fields.items()})
        found = {}
        for name, item in value.items():
            if name in readers:
                found[name] = readers[name](item, f"{what}.{name}" if what else name)
            elif strict:
                raise InvalidArgument(f"{what or kind.__name__} has no {str(name)[:60]!r}")
        for name in needed:
            if name not in found:
                raise InvalidArgument(f"{what or kind.__name__} needs {name!r}")
        return kind(**found)

    return read


def _hint(kind: type, name: str, note: Any) -> Any:
    """The type of a field whose annotation is `note`."""
    if not isinstance(note, str):
        return note
    owner = next(each for each in kind.__mro__ if name in inspect.get_annotations(each))
    return _evaluated(note, owner.__module__)


@cache
def _evaluated(note: str, module: str) -> Any:
    """An annotation of a module's own code as a type. Few differ, which makes this quicker than `get_type_hints`."""
    return eval(note, vars(sys.modules[module]))  # noqa: S307


def _choice(value: Any, what: str, choices: dict[Any, Any]) -> Any:
    if type(value) is not str or value not in choices:
        raise InvalidArgument(f"{what or 'it'} must be one of {', '.join(map(str, choices))}")
    return choices[value]


def _items(inner: _Reader, value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(what, "a list", value)
    return [inner(item, f"{what}[{number}]") for number, item in enumerate(value)]


def _size(value: Any, what: str) -> int | str | None:
    if value is not None and type(value) not in (int, str):
        raise _wrong(what, "a whole number or a text", value)
    return value  # type: ignore[no-any-return]


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
