"""Which input of an operation to tie to a gradient, so that XLA does not merge a second run of it with the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.attrs import attrs_key
from hybridflow.core.dims import substitute
from hybridflow.core.node import Edge, Node
from hybridflow.ir.costs import bodies, concrete

_FREE = frozenset(["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "iota"])
"""Primitives whose results XLA need not keep: it reads what they are made of."""


class Ties:
    """Chooses inputs to tie, and remembers choices for operations that are alike.

    Args:
        sizes: the sizes of symbols.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)
        self._known: dict[Any, int | None] = {}

    def position(self, node: Node, edges: Sequence[Edge]) -> int | None:
        """Return the position of the input to tie, or None if no input has elements.

        XLA merges what does not depend on the tied input with the first run, whose results it then keeps: tying the
        bias of a linear layer would keep the product. What is tied is copied. So this is the input for which the bytes
        of both together are fewest.

        Args:
            node: the operation.
            edges: its inputs.
        """
        specs = tuple([concrete(edge[0].spec(edge[1]), self._sizes) for edge in edges])
        key = (node.op, attrs_key(node.attrs), specs)
        if key not in self._known:
            self._known[key] = self._position(node, specs)
        return self._known[key]

    def _position(self, node: Node, specs: tuple[Any, ...]) -> int | None:
        candidates = [index for index, spec in enumerate(specs) if spec.nbytes]
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        merged: Counter[int] = Counter()
        if not node.op.has("pointwise") and bodies(node) is None:
            merged = self._computed(node, specs)

        def bytes_if_tied(index: int) -> int:
            return specs[index].nbytes + sum(count for inputs, count in merged.items() if not inputs >> index & 1)

        return min(candidates, key=bytes_if_tied)

    def _computed(self, node: Node, specs: tuple[Any, ...]) -> Counter[int]:
        """Return the bytes that an operation computes from each set of its inputs; bits stand for inputs."""
        attrs = {name: substitute(value, self._sizes) for name, value in node.attrs.items()}
        arguments = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in specs]
        with enable_x64():
            closed: Any = jax.make_jaxpr(lambda *xs: node.op.lower(*xs, **attrs))(*arguments)
        found: Counter[int] = Counter()
        _add(found, closed.jaxpr, [1 << index for index in range(len(specs))])
        return found


def _add(found: Counter[int], jaxpr: Any, inputs: Sequence[int]) -> list[int]:
    """Add the bytes that a program computes, and return the sets of inputs that its results depend on."""
    known: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        given = [0 if hasattr(atom, "val") else known.get(atom, 0) for atom in equation.invars]
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        body = getattr(inner, "jaxpr", inner)
        if body is not None and len(body.invars) == len(given) and equation.primitive.name not in ("scan", "while"):
            known.update(zip(equation.outvars, _add(found, body, given), strict=True))
            continue
        every = 0
        for one in given:
            every |= one
        for variable in equation.outvars:
            known[variable] = every
            if equation.primitive.name not in _FREE:
                found[every] += variable.aval.size * getattr(variable.aval.dtype, "itemsize", 4)
    found.pop(0, None)
    return [0 if hasattr(atom, "val") else known.get(atom, 0) for atom in jaxpr.outvars]
