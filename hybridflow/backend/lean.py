"""Saved executables without the description of their fusions: a third of what takes time to load.

A saved XLA:CPU executable has machine code, the order in which it runs and its buffers, and beside them the optimised
program as text would show it: every instruction inside of every fusion, which is compiled and never read again unless
somebody asks for texts. That is most of it, and what loading spends its time on. Here a fusion becomes a call of
something unnamed with the same operands and result; code, order and buffers stay bit by bit as they were.

The format is XLA's own, so this is done only for versions that are tested; what is not as it is known stays whole.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import cast

from hybridflow.backend.protobuf import Field, NotKnown, as_bytes, read_fields, read_varint, write_field

TESTED = ("0.10.2",)
"""The versions of jaxlib whose executables are read here: tests/test_lean.py."""

_PROGRAM = (1, 1, 1)
"""Where the optimised program is: ``serialized_executable``, ``hlo_module``, ``hlo_module`` (each field's number)."""
# HloModuleProto
_COMPUTATIONS, _SCHEDULE = 3, 7
# HloComputationProto
_INSTRUCTIONS, _ID = 2, 5
# HloInstructionProto
_OPCODE, _SHAPE, _METADATA, _FUSION_KIND, _TARGET, _CALLED, _CONFIG = 2, 3, 7, 11, 28, 38, 43
# ShapeProto
_SIZES = 3
_PRODUCTS = 1 << 12
"""How many elements of matrix products and convolutions must be left outside of fusions. The runtime counts operations
in the program: one that seems to have fewer than a thousand is run before its call returns, not beside Python."""


def without_descriptions(saved: bytes) -> bytes | None:
    """Return a saved executable without what its fusions are made of, None where that is not known to be right.

    Args:
        saved: what `jax_shim.save_executable` returned, of an executable for the CPU.
    """
    if version("jaxlib") not in TESTED:
        return None
    try:
        return _in_pickle(saved, lambda executable: _in_executable(executable, _lean_program))
    except (NotKnown, ValueError, IndexError, struct.error):
        return None


def _in_pickle(saved: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a pickle with the one large value in it changed; its frames, which are optional, are left out."""
    operations = [(one.name, value, cast(int, at)) for one, value, at in pickletools.genops(saved)]
    values = [cast(bytes, value) for name, value, _ in operations if name == "BINBYTES"]
    if not values:
        raise NotKnown
    largest = max(values, key=len)
    changed = change(largest)
    parts: list[bytes] = []
    for (name, value, start), end in zip(operations, [*[at for _, _, at in operations[1:]], len(saved)], strict=True):
        if value is largest:
            parts.append(b"B" + struct.pack("<I", len(changed)) + changed)
        elif name != "FRAME":
            parts.append(saved[start:end])
    return b"".join(parts)


def _in_executable(executable: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return what a runtime made of an executable with its program, an HloModuleProto, changed."""
    length, start = read_varint(executable, 0)
    start += length  # what is before says which runtime's it is
    return executable[:start] + _at(executable[start:], _PROGRAM, change)


def _lean_program(program: bytes) -> bytes:
    """Return an HloModuleProto with the computations that are scheduled, which those of fusions are not."""
    fields = list(read_fields(program))
    scheduled = {
        _number(sequence, 1)
        for schedule in _all(fields, _SCHEDULE)
        for sequence in _all(read_fields(schedule), 1)
    }
    parts: list[bytes] = []
    products = 0
    for number, value, raw in fields:
        if number != _COMPUTATIONS:
            parts.append(raw)
            continue
        computation = list(read_fields(as_bytes(value)))
        if any(one in scheduled for inner, one, _ in computation if inner == _ID):
            made = [
                _lean_instruction(as_bytes(one)) if inner == _INSTRUCTIONS else (bare, 0)
                for inner, one, bare in computation
            ]
            parts.append(write_field(number, b"".join([body for body, _ in made])))
            products += sum([elements for _, elements in made])
    if products < _PRODUCTS:
        raise NotKnown
    return b"".join(parts)


def _lean_instruction(instruction: bytes) -> tuple[bytes, int]:
    """Return the field of an instruction, and how many elements it has if it is a product of matrices or the like."""
    fields = list(read_fields(instruction))
    opcode = next((value for number, value, _ in fields if number == _OPCODE), b"")
    if opcode != b"fusion":
        body = b"".join([raw for number, _, raw in fields if number != _METADATA])
        return write_field(_INSTRUCTIONS, body), _elements(fields) if opcode in (b"dot", b"convolution") else 0
    left_out = {_OPCODE, _METADATA, _FUSION_KIND, _CALLED, _CONFIG}
    kept = [raw for number, _, raw in fields if number not in left_out]
    parts = [*kept, write_field(_OPCODE, b"custom-call"), write_field(_TARGET, b"fusion")]
    return write_field(_INSTRUCTIONS, b"".join(parts)), 0


def _elements(instruction: list[Field]) -> int:
    """Return how many elements the result has."""
    result = 1
    for shape in _all(instruction, _SHAPE):
        for sizes in _all(read_fields(shape), _SIZES):
            position = 0
            while position < len(sizes):
                size, position = read_varint(sizes, position)
                result *= size
    return result


def _at(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """Return a message with one message inside of it changed."""
    first, *rest = path
    parts: list[bytes] = []
    found = 0
    for number, value, raw in read_fields(message):
        if number == first:
            found += 1
            inner = as_bytes(value)
            raw = write_field(number, _at(inner, tuple(rest), change) if rest else change(inner))
        parts.append(raw)
    if found != 1:
        raise NotKnown
    return b"".join(parts)


def _all(fields: Iterable[Field], wanted: int) -> list[bytes]:
    return [as_bytes(value) for number, value, _ in fields if number == wanted]


def _number(message: bytes, wanted: int) -> int:
    found = [value for number, value, _ in read_fields(message) if number == wanted]
    if len(found) != 1 or not isinstance(found[0], int):
        raise NotKnown
    return found[0]
