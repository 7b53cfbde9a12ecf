"""The wire format of protocol buffers, which XLA's options and executables are in.

Reference: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5

Value = int | bytes
Field = tuple[int, Value, bytes]


class NotKnown(Exception):
    """Bytes that are not what this version of a library is known to write."""


def read_fields(message: bytes) -> Iterator[Field]:
    """Yield every field's number, its value (b"" for numbers of fixed size), and its bytes."""
    position, end = 0, len(message)
    while position < end:
        start = position
        tag, position = read_varint(message, position)
        wire = tag & 7
        value: Value = b""
        if wire == _VARINT:
            value, position = read_varint(message, position)
        elif wire == _BYTES:
            length, position = read_varint(message, position)
            value = message[position : position + length]
            position += length
        elif wire in (_EIGHT, _FOUR):
            position += 8 if wire == _EIGHT else 4
        else:
            raise NotKnown
        if position > end:
            raise NotKnown
        yield tag >> 3, value, message[start:position]


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends."""
    result = shift = 0
    while True:
        byte = message[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position
        shift += 7


def write_field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes: a string or another message."""
    return _as_varint(number << 3 | _BYTES) + _as_varint(len(content)) + content


def _as_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def as_bytes(value: Value) -> bytes:
    """Return a field's value that must be bytes."""
    if isinstance(value, int):
        raise NotKnown
    return value
