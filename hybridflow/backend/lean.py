"""Saved executables without the description of their fusions: a third of what takes time to load.

A saved XLA:CPU executable has machine code, the order in which it runs and its buffers, and beside them the optimised
program as text would show it: every instruction inside of every fusion, which is compiled and never read again unless
somebody asks for texts. That is most of it, and what loading spends its time on. Here a fusion becomes a call of
something unnamed with the same operands and result; code, order and buffers stay bit by bit as they were. Fusions that
a library runs have no code: they are made anew of their description when they are loaded, so that it stays.

The format is XLA's own, so this is done only for versions that are tested; what is not as it is known stays whole.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from math import prod
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
    for_libraries = _described({_number(one, _ID): one for one in _all(fields, _COMPUTATIONS)})
    parts: list[bytes] = []
    products = 0
    for number, value, raw in fields:
        if number != _COMPUTATIONS:
            parts.append(raw)
            continue
        computation = list(read_fields(as_bytes(value)))
        identity = _number(as_bytes(value), _ID)
        if identity in for_libraries:
            parts.append(raw)
        elif identity in scheduled:
            made = [
                _lean_instruction(as_bytes(one)) if inner == _INSTRUCTIONS else (bare, 0)
                for inner, one, bare in computation
            ]
            parts.append(write_field(number, b"".join([body for body, _ in made])))
            products += sum([elements for _, elements in made])
    if products < _PRODUCTS:
        raise NotKnown
    return b"".join(parts)


def _described(computations: dict[int, bytes]) -> set[int]:
    """Return the computations that fusions for libraries are described by, and what those call."""
    instructions = {
        number: [list(read_fields(one)) for one in _all(read_fields(body), _INSTRUCTIONS)]
        for number, body in computations.items()
    }
    libraries = [one for several in instructions.values() for one in several if _is_for_library(one)]
    left = [called for one in libraries for called in _called(one)]
    found: set[int] = set()
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left += [called for one in instructions[number] for called in _called(one)]
    return found


def _is_for_library(instruction: list[Field]) -> bool:
    """Whether an instruction is a fusion that a library runs, from its description."""
    return b"kCustom" in _all(instruction, _FUSION_KIND)


def _called(instruction: list[Field]) -> list[int]:
    """Return which computations an instruction calls."""
    return [number for numbers in _all(instruction, _CALLED) for number in _packed(numbers)]


def _lean_instruction(instruction: bytes) -> tuple[bytes, int]:
    """Return the field of an instruction, and how many elements it has if it is a product of matrices or the like."""
    fields = list(read_fields(instruction))
    opcode = next(iter(_all(fields, _OPCODE)), b"")
    if _is_for_library(fields):
        return write_field(_INSTRUCTIONS, instruction), 0
    if opcode != b"fusion":
        body = b"".join([raw for number, _, raw in fields if number != _METADATA])
        return write_field(_INSTRUCTIONS, body), _elements(fields) if opcode in (b"dot", b"convolution") else 0
    left_out = {_OPCODE, _METADATA, _FUSION_KIND, _CALLED, _CONFIG}
    kept = [raw for number, _, raw in fields if number not in left_out]
    parts = [*kept, write_field(_OPCODE, b"custom-call"), write_field(_TARGET, b"fusion")]
    return write_field(_INSTRUCTIONS, b"".join(parts)), 0


def _elements(instruction: list[Field]) -> int:
    """Return how many elements the result has."""
    sizes = [_packed(one) for shape in _all(instruction, _SHAPE) for one in _all(read_fields(shape), _SIZES)]
    return prod(size for several in sizes for size in several)


def _packed(numbers: bytes) -> Iterator[int]:
    """Yield the numbers that stand one behind the other in a field."""
    position = 0
    while position < len(numbers):
        number, position = read_varint(numbers, position)
        yield number


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
