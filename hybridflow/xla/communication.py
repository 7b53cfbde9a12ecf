"""The collectives of a program: what its devices send one another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from hybridflow.core.mesh import Mesh
from hybridflow.core.node import Node
from hybridflow.xla.scopes import Namer, instructions

_COLLECTIVE = re.compile(
    r"^\s+(?:ROOT )?%?([\w.$-]+) = (.*?) "
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(?:-done)?\(",
    re.MULTILINE,
)
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


class Collective(NamedTuple):
    """A collective of a program.

    Attributes:
        kind: such as ``all-reduce``.
        bytes: the size of its results on each device.
        shapes: the shapes of its results on each device: XLA joins several collectives into one.
        nodes: the operations of the graph that it belongs to; empty if XLA does not say.
    """

    kind: str
    bytes: int
    shapes: tuple[tuple[int, ...], ...]
    nodes: tuple[Node, ...]


def collectives(hlo: str, namer: Namer) -> Iterator[Collective]:
    """Yield the collectives of a program in its text's order; one in a loop's body counts once.

    Args:
        hlo: the text of the optimised program.
        namer: the namer with which the program was lowered.
    """
    found = list(_COLLECTIVE.finditer(hlo))
    known = instructions(hlo, namer) if found else {}
    for name, results, kind in [match.groups() for match in found]:
        arrays = [(width_of(dtype), _sizes(dims)) for dtype, dims in _ARRAY.findall(results)]
        size = sum([width * math.prod(shape) for width, shape in arrays])
        yield Collective(kind, size, tuple([shape for _, shape in arrays]), known[name].nodes if name in known else ())


def asked_shapes(namer: Namer, mesh: Mesh) -> set[tuple[int, ...]]:
    """Return the shapes, on each device, of the values whose layout the graph says."""
    shapes: set[tuple[int, ...]] = set()
    for node in namer.nodes:
        if node.op.has("places") and all([isinstance(size, int) for size in node.spec().shape]):
            layout = node.attrs["layout"]
            sizes = zip(node.spec().shape, layout, strict=True)
            shapes.add(tuple([-(-size // mesh.parts(axis)) for size, axis in sizes]))
    return shapes


def _sizes(dims: str) -> tuple[int, ...]:
    return tuple([int(one) for one in dims.split(",") if one])


def width_of(dtype: str) -> int:
    """Return the bytes of an element of a dtype as XLA writes it, such as f32, bf16, i1 or pred."""
    bits = _BITS.search(dtype)
    return 1 if bits is None else max(1, int(bits[0]) // 8)
