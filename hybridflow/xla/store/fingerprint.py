"""Fingerprints of graphs: two graphs with the same fingerprint lower to the same program.

The store's key is made of them by `entry_for` in `stored_programs`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from hybridflow.core.dims import Dim, DimScope, SizeFloat
from hybridflow.core.node import Edge
from hybridflow.core.op import REGISTRY, Op
from hybridflow.core.settings import SETTINGS
from hybridflow.core.sources import Constant
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.evaluate import RUN_NODE, run_lowering
from hybridflow.ir.graph import Graph

_OURS = ("hybridflow", "jax", "jaxlib", "numpy", "builtins", "functools")
"""The packages whose versions are part of the store's keys."""


class NotPlain(Exception):
    """The graph holds objects of this process, such as a function; only its lowered text identifies it."""


def fingerprint(graph: Graph, sizes: Mapping[str, int]) -> bytes:
    """Return a hash of everything in a graph that determines its lowering, including the bytes of constants.

    Args:
        graph: the graph, after its passes.
        sizes: the size of each symbol.

    Raises:
        NotPlain: an operation or an attribute is not hybridflow's own data, or a caller has replaced the function that
            lowers nodes. Only the lowered text identifies such a graph.
    """
    if RUN_NODE.get() is not run_lowering:
        raise NotPlain
    writer = _Writer()
    writer.graph(graph, None)
    writer.parts.append(f"{sorted(sizes.items())} {SETTINGS.matmul_precision}")
    return hashlib.sha256("\n".join(writer.parts).encode()).digest()


def text_fingerprint(text: str) -> bytes:
    """Return a hash of a lowered program."""
    return hashlib.sha256(text.encode()).digest()


class _Writer:
    """Writes graphs as text; values are numbered in the order of their computation."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.foreign = _foreign_ops()
        self.known: set[Op] = set()
        self.written: dict[tuple[int, bool], str] = {}

    def graph(self, graph: Graph, outer: DimScope | None) -> None:
        """Write a graph; `outer` is the scope of symbols of the graph around it."""
        has_scope = graph.dims is not outer
        names: dict[Edge, int] = {}
        parts = self.parts
        parts.append(f"graph {graph.name!r} {has_scope and list(graph.dims.hints)}")
        for node in graph.inputs:
            names[node, 0] = len(names)
            parts.append(_spec(node.spec()))
        for node in graph.nodes:
            op = node.op
            if op not in self.known:
                self._require_own(op)
            attrs = node.attrs
            line = f"{op.name} {[names[edge] for edge in node.inputs if edge is not None]}"
            if attrs:
                line += ";".join([f"{name}={self.value(attrs[name], graph.dims)}" for name in sorted(attrs)])
            parts.append(line)
            for index in range(len(node.outputs)):
                names[node, index] = len(names)
        parts.append(f"return {[names[edge] for edge in graph.outputs]}")

    def _require_own(self, op: Op) -> None:
        if REGISTRY.get(op.name) is not op or op.name in self.foreign:
            raise NotPlain
        self.known.add(op)

    def value(self, value: Any, dims: DimScope) -> str:
        """Return an attribute value as unique text."""
        write = _WRITERS.get(type(value))
        if write is not None:
            if type(value) is str and value in self.foreign:
                raise NotPlain
            return write(value)
        if type(value) is tuple:
            items = cast("tuple[Any, ...]", value)
            return f"({','.join([self.value(item, dims) for item in items])})"
        if isinstance(value, Graph):
            key = id(value), value.dims is dims
            if key not in self.written:
                self.written[key] = f"graph {len(self.written)}"
                self.parts.append(self.written[key])
                self.graph(value, dims)
            return self.written[key]
        if isinstance(value, np.dtype):
            return f"dtype {cast(Any, value).name}"
        if isinstance(value, np.generic):
            return _array(np.asarray(value))
        raise NotPlain


def _foreign_ops() -> frozenset[str]:
    """Return the names of registered operations that are not this package's."""
    key = len(REGISTRY)
    if _FOREIGN[0] != key:
        _FOREIGN[:] = [key, frozenset([name for name, op in REGISTRY.items() if not _is_own(op)])]
    return _FOREIGN[1]


_FOREIGN: list[Any] = [0, frozenset()]


def _is_own(op: Op) -> bool:
    """Whether an operation's function or lowering belongs to packages whose versions are in the key."""
    return all(_module(function).partition(".")[0] in _OURS for function in (op.public or op.lower, op.lower))


def _module(function: Any) -> str:
    while hasattr(function, "func"):
        function = function.func
    return getattr(function, "__module__", None) or type(function).__module__


def _spec(spec: TensorSpec) -> str:
    return f"{spec.dtype.name}{list(map(str, spec.shape))}"


def _float(value: float) -> str:
    return f"nan{math.copysign(1, value)}" if math.isnan(value) else value.hex()


def _array(array: np.ndarray[Any, Any]) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"array {array.dtype.name}{array.shape} {digest}"


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: repr,
    int: repr,
    str: repr,
    type(None): repr,
    type(...): repr,
    float: _float,
    complex: lambda value: f"complex {_float(value.real)} {_float(value.imag)}",
    Dim: lambda value: f"size {value}",
    SizeFloat: lambda value: f"sizes {value.text()}",
    TensorSpec: _spec,
    Constant: lambda value: _array(value.array),
}


def shapes_text(specs: Sequence[TensorSpec]) -> str:
    """Return the specs of a graph's inputs as text."""
    return " ".join(map(_spec, specs))
