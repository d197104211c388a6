"""How a message becomes bytes and back: a model whose fields carry their tag."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any, ClassVar, Self, dataclass_transform

from skerry._model import Model
from skerry.wire.fields import FieldError, decode_fields, decode_int, encode_field, encode_int
from skerry.wire.frames import Type


def tag(number: int, *, default: Any = MISSING, secret: bool = False) -> Any:
    """A field of a message; with a default it may be absent, one that is secret is not in the message's repr."""
    return dataclasses.field(default=default, metadata={"tag": number}, repr=not secret)


MESSAGES: dict[str, type[Message]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(tag,))
class Message(Model):
    """A payload made of fields. `type` is set on those that have their own frame type."""

    type: ClassVar[Type | None] = None

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        if not abstract:
            MESSAGES[cls.__name__] = cls

    def encode(self) -> bytes:
        parts = []
        for name, number, kind, _ in _plan(type(self)):
            value = getattr(self, name)
            if value is not None:
                parts.append(_ENCODE[kind](number, value))
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises FieldError for a malformed payload or a missing field."""
        found = decode_fields(payload)
        values = {}
        for name, number, kind, required in _plan(cls):
            if number in found:
                values[name] = _DECODE[kind](found[number])
            elif required:
                raise FieldError(f"{cls.__name__} without {name}")
        return cls(**values)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


_ENCODE: dict[str, Callable[[int, Any], bytes]] = {
    "int": encode_int,
    "bytes": encode_field,
    "str": lambda number, value: encode_field(number, value.encode("utf-8", "surrogateescape")),
    "list": lambda number, value: b"".join(encode_field(number, item) for item in value),
}
_DECODE: dict[str, Callable[[list[bytes]], Any]] = {
    "int": lambda values: decode_int(values[-1]),
    "bytes": lambda values: values[-1],
    "str": lambda values: _text(values[-1]),
    "list": tuple,
}
_KINDS = {
    "int": "int",
    "bytes": "bytes",
    "str": "str",
    "tuple[bytes, ...]": "list",
    "int | None": "int",
    "str | None": "str",
    "bytes | None": "bytes",
}


_PLANS: dict[type[Message], tuple[tuple[str, int, str, bool], ...]] = {}


def _plan(cls: type[Message]) -> tuple[tuple[str, int, str, bool], ...]:
    """Name, tag, kind and whether it must be there, for each field of a message."""
    plan = _PLANS.get(cls)
    if plan is None:
        plan = _PLANS[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: type[Message]) -> tuple[tuple[str, int, str, bool], ...]:
    return tuple(
        (item.name, item.metadata["tag"], _KINDS[str(item.type)], item.default is MISSING)
        for item in dataclasses.fields(cls)
    )


def schema() -> dict[str, list[str]]:
    """Every message with its tags, for the snapshot test."""
    return {
        name: [f"{number}:{field}:{kind}{'' if must else '?'}" for field, number, kind, must in _plan(cls)]
        for name, cls in sorted(MESSAGES.items())
    }
