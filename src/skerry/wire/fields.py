"""Fields: the tagged values that payloads are made of."""

from __future__ import annotations

import struct

_FIELD = struct.Struct("<BI")
_INT = struct.Struct("<q")


class FieldError(ValueError):
    """A payload is not a sequence of fields, or a field has the wrong shape."""


def encode_field(tag: int, value: bytes) -> bytes:
    return _FIELD.pack(tag, len(value)) + value


def encode_int(tag: int, value: int) -> bytes:
    return _FIELD.pack(tag, 8) + _INT.pack(value)


def decode_fields(payload: bytes) -> dict[int, list[bytes]]:
    """Every value by tag, in order. Raises FieldError."""
    fields: dict[int, list[bytes]] = {}
    position, size = 0, len(payload)
    while position < size:
        if size - position < _FIELD.size:
            raise FieldError("a field's head is cut off")
        tag, length = _FIELD.unpack_from(payload, position)
        position += _FIELD.size
        if length > size - position:
            raise FieldError(f"field {tag} of {length} bytes does not fit in its message")
        fields.setdefault(tag, []).append(payload[position : position + length])
        position += length
    return fields


def decode_int(value: bytes) -> int:
    if len(value) != 8:
        raise FieldError(f"an integer of {len(value)} bytes")
    number: int = _INT.unpack(value)[0]
    return number
