"""The safetensors format: a JSON header with the dtype, shape and position of each tensor, then their bytes.

The file begins with the length of the header, in 8 bytes. After the header the tensors follow without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from hybridflow.backend.host import ALIGNED
from hybridflow.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    complex64,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from hybridflow.core.errors import ArgumentError, FileFormatError

DTYPES: dict[str, DType] = {
    "BOOL": bool_, "U8": uint8, "I8": int8, "U16": uint16, "I16": int16, "U32": uint32, "I32": int32, "U64": uint64,
    "I64": int64, "F16": float16, "BF16": bfloat16, "F32": float32, "F64": float64, "C64": complex64,
}
"""The dtypes of hybridflow by the format's names."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOAT8: dict[str, np.dtype[Any]] = {
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu), "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
}
"""The format's dtypes whose numbers are read as float32, which has them all."""
_READ = {**DTYPES, **FLOAT8}
OTHERS = {"F4", "F6_E2M3", "F6_E3M2"}
"""The format's dtypes that hybridflow does not read."""

METADATA = "__metadata__"
"""The header's key for the metadata; every other key is the name of a tensor."""
LONGEST_HEADER = 32 << 20
"""The most bytes that a header may have to be read."""
MOST_ITEMS = 2_000_000
"""The most JSON items that a header may have to be read, so that a small file cannot fill the memory."""
MOST_AXES = 64
"""The most axes of a NumPy array."""


class Entry(NamedTuple):
    """A header's entry for a tensor.

    Attributes:
        path: its name.
        dtype: its dtype in the file.
        shape: its shape.
        begin: the offset of its first byte after the header.
        end: the offset behind its last byte.
    """

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def planned(specs: Mapping[str, tuple[DType, tuple[int, ...]]]) -> list[Entry]:
    """Return the tensors in the order in which they are written, each with its offsets.

    Tensors whose size is a multiple of `ALIGNED` come first, and otherwise wider dtypes before narrower ones. So each
    tensor begins at a multiple of its element's size, and most begin at a multiple of `ALIGNED`.

    Args:
        specs: the dtype and shape of each tensor.
    """

    def order(path: str) -> tuple[bool, int, str]:
        dtype, shape = specs[path]
        return math.prod(shape) * dtype.itemsize % ALIGNED != 0, -dtype.itemsize, path

    entries: list[Entry] = []
    end = 0
    for path in sorted(specs, key=order):
        dtype, shape = specs[path]
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        entries.append(Entry(path, dtype, shape, begin, end))
    return entries


def header_of(entries: Iterable[Entry], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the tensors: the header's length and the header, padded with spaces.

    Raises:
        ArgumentError: the header would be too large to be read again.
    """
    fields: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    for one in entries:
        fields[one.path] = {
            "dtype": NAMES[one.dtype], "shape": list(one.shape), "data_offsets": [one.begin, one.end]
        }
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) + ALIGNED > LONGEST_HEADER or _items(text) > MOST_ITEMS:
        raise ArgumentError(f"save: the names, shapes and metadata take {len(text)} bytes with {_items(text)} items",
                            got=f"{len(fields)} names",
                            hint=f"At most {LONGEST_HEADER} and {MOST_ITEMS} are read again.")
    size = -(8 + len(text)) % ALIGNED + len(text)
    return size.to_bytes(8, "little") + text.ljust(size)


def parsed(header: bytes, available: int) -> tuple[list[Entry], dict[str, str]]:
    """Return the tensors and the metadata of a header, checked in every respect, since the file may be anybody's.

    Args:
        header: the header without its length.
        available: the number of bytes that follow it.

    Raises:
        FileFormatError: the header, or the size of the file, does not follow the format.
    """
    fields = _fields(header)
    metadata = fields.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all([
        isinstance(value, str) for value in cast("dict[str, Any]", metadata).values()
    ]):
        raise wrong("the metadata is not a mapping of texts")
    entries = [_entry(path, fields[path]) for path in fields]
    entries.sort(key=lambda one: (one.begin, one.end))
    at = 0
    for one in entries:
        if one.begin != at:
            what = "overlaps what is before it" if one.begin < at else "comes after bytes that are no tensor's"
            raise wrong(f"{shown(one.path)} {what}: it begins at {one.begin}, not {at}")
        at = one.end
    if at != available:
        raise wrong(f"its tensors take {at} bytes, and {available} are there", cut=at > available)
    return entries, cast("dict[str, str]", metadata)


def _items(header: bytes) -> int:
    """Return an upper bound of the number of a header's JSON items."""
    return header.count(b",") + header.count(b"[") + header.count(b"{")


def _fields(header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise wrong("its header does not begin with {")
    items = _items(header)
    if items > MOST_ITEMS:
        raise wrong(f"its header has {items} items, more than {MOST_ITEMS}")
    try:
        fields = json.loads(header.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise wrong("its header is nested too deeply") from None
    except FileFormatError:
        raise
    except ValueError as error:  # from decoding JSON or UTF-8
        raise wrong(f"its header is no JSON: {str(error)[:120]}") from None
    return fields


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise wrong(f"its header has {shown(twice)} twice")
    return mapping


def _no_number(text: str) -> Any:
    raise wrong(f"its header has the number {text}")


def _entry(path: str, field: Any) -> Entry:
    if not isinstance(field, dict) or set(cast("dict[str, Any]", field)) != {"dtype", "shape", "data_offsets"}:
        raise wrong(f"{shown(path)} has not just a dtype, a shape and data_offsets")
    name, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(name, str) or name not in _READ:
        if isinstance(name, str) and name in OTHERS:
            raise wrong(f"{shown(path)} is {name}, which hybridflow has no dtype for")
        raise wrong(f"{shown(path)} has the dtype {shown(name)}, which the format has not")
    if not _are_sizes(shape) or len(shape) > MOST_AXES:
        raise wrong(f"{shown(path)} has the shape {shown(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise wrong(f"{shown(path)} has the data_offsets {shown(offsets)}")
    dtype = _READ[name]
    size = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != size or math.prod([one or 1 for one in shape]) * dtype.itemsize >= 1 << 63:
        raise wrong(f"{shown(path)} is {name}{shown(shape)}, which takes {size} bytes, not {shown(offsets)}")
    return Entry(path, dtype, tuple(shape), offsets[0], offsets[1])


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all([type(one) is int and 0 <= one < 1 << 63 for one in cast(Any, value)])


def shown(value: Any) -> str:
    """Return a short text of a value from a file for messages, without control characters for the terminal."""
    text = repr(value) if not isinstance(value, str) else ascii(value) if not value.isprintable() else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def wrong(what: str, *, cut: bool = False) -> FileFormatError:
    """Return the error for a file that does not follow the format."""
    hint = "It is cut off: it was not copied or written to its end." if cut else None
    return FileFormatError(f"not a safetensors file: {what}", hint=hint)
