"""A graph as jax's primitive operations, each with its node; the model of XLA works on these.

Every node is traced by itself, on specs, so nothing runs and equal nodes are traced once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.dims import SIZES, substitute
from hybridflow.core.node import Edge, Node
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.costs import Sizes, bodies, concrete, input_specs
from hybridflow.ir.graph import Graph
from hybridflow.xla.executable import is_wide

Parts = Callable[[Node, tuple[int, ...]], int]
"""A function from a node, and the shape of a value that it computes, to the number of its parts on a mesh."""
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}
"""Primitives that only call a jaxpr, and the parameter that holds it."""
_SAME = {"stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision"}
_VIEWS = {"reshape", "squeeze", "expand_dims"}
_SINGLE = 4
"""The itemsize of float32."""
_TREE = 32
"""XLA:CPU reduces in steps of this many elements per axis, and stores the intermediate result between the steps."""


class Value:
    """An array of a program.

    Attributes:
        shape, itemsize, size, nbytes: as numpy has them; `size` is the number of elements.
        made: the primitive that computes it, None for inputs, constants and views.
        base: the value whose memory it uses: for a view the viewed value, else itself.
        constant: whether it is a constant: every reader computes it for itself.
        users: the primitives that read it or a view of it.
    """

    __slots__ = ("base", "constant", "itemsize", "made", "nbytes", "shape", "size", "users")

    def __init__(
        self, shape: tuple[int, ...], itemsize: int, made: Primitive | None = None, *, constant: bool = False
    ) -> None:
        self.shape = shape
        self.itemsize = itemsize
        self.size = math.prod(shape)
        self.nbytes = self.size * itemsize
        self.made = made
        self.base = self
        self.constant = constant
        self.users: list[Primitive] = []

    def viewed(self, shape: tuple[int, ...]) -> Value:
        """Return a view of another shape."""
        view = Value(shape, self.itemsize, constant=self.constant)
        view.base = self.base
        return view



class Primitive:
    """One operation.

    Attributes:
        name: jax's name of it; ``node`` for a node that carries graphs.
        given: its operands, which may be views.
        inputs: the values whose memory it reads: `given` with each view replaced by its base.
        outputs: the values that it computes.
        node: the node that it is part of.
        inside: the bytes that its own graphs need while they run.
    """

    __slots__ = ("given", "inputs", "inside", "name", "node", "outputs")

    def __init__(self, name: str, inputs: list[Value], node: Node, inside: int = 0) -> None:
        self.name = name
        self.given = inputs
        self.inputs = [value.base for value in inputs]
        self.node = node
        self.inside = inside
        self.outputs: list[Value] = []
        for value in dict.fromkeys(self.inputs):
            value.users.append(self)


class Program:
    """A graph as primitives.

    Attributes:
        primitives: in an order in which they can run.
        inputs: a value per input of the graph.
        outputs: a value per output.
        parts: into how many parts a mesh divides the values of a node; None for one device.
    """

    def __init__(self, parts: Parts | None = None) -> None:
        self.parts = parts
        self.primitives: list[Primitive] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self._known: dict[Any, list[Value]] = {}

    def add(
        self, name: str, inputs: list[Value], specs: Sequence[tuple[tuple[int, ...], int]], node: Node, **more: Any
    ) -> list[Value]:
        """Add a primitive and return its outputs; equal primitives are computed once.

        Args:
            name, inputs, node: as in `Primitive`.
            specs: the shape and itemsize of each output.
            more: ``inside`` as in `Primitive`; and ``key``: primitives are equal only if their keys are. A primitive
                whose key is None equals no other.
        """
        key = more.get("key")
        known = None if key is None else (name, key, tuple(map(id, inputs)), tuple(specs))
        known_ = self._known.get(known) if known is not None else None
        if known_ is not None:
            return known_
        made = Primitive(name, inputs, node, more.get("inside", 0))
        made.outputs = [Value(shape, itemsize, made) for shape, itemsize in specs]
        if self.parts is not None:
            for value in made.outputs:
                value.nbytes = -(-value.nbytes // self.parts(node, value.shape))
        self.primitives.append(made)
        if known is not None:
            self._known[known] = made.outputs
        return made.outputs


def program_of(graph: Graph, sizes: Sizes | None, inside: Any, parts: Parts | None = None) -> Program:
    """Return a graph as primitives.

    Args:
        graph: the graph.
        sizes: the size of each symbol.
        inside: a function from a node that carries graphs to the bytes that these need while they run.
        parts: see `Program`.
    """
    program = Program(parts)
    values: dict[Edge, Value] = {}
    for node in graph.inputs:
        spec = concrete(node.spec(), sizes)
        value = Value(spec.shape, spec.dtype.itemsize)
        if parts is not None:
            value.nbytes = -(-value.nbytes // parts(node, spec.shape))
        values[node, 0] = value
        program.inputs.append(value)
    traced: dict[Any, Any] = {}
    token = SIZES.set((graph.dims, sizes)) if sizes else None
    try:
        with enable_x64() if is_wide(graph) else nullcontext():
            for node in graph.nodes:
                inputs = [values[edge] for edge in node.inputs if edge is not None]
                made = _node(program, node, inputs, sizes, traced, inside)
                values.update({(node, index): value for index, value in enumerate(made)})
    finally:
        if token is not None:
            SIZES.reset(token)
    program.outputs = [values[edge] for edge in graph.outputs]
    return program


def _node(
    program: Program, node: Node, inputs: list[Value], sizes: Sizes | None, traced: dict[Any, Any], inside: Any
) -> list[Value]:
    specs = [concrete(spec, sizes) for spec in node.specs]
    if node.op is CONSTANT:
        return [Value(spec.shape, spec.dtype.itemsize, constant=True) for spec in specs]
    wanted = [(spec.shape, spec.dtype.itemsize) for spec in specs]
    if bodies(node) is not None:
        return program.add("node", inputs, wanted, node, inside=inside(node) + _made_up(inputs, specs))
    if program.parts is not None and node.op.has("places"):
        whole, here = program.parts(node, specs[0].shape), inputs[0].nbytes
        if -(-specs[0].nbytes // whole) != here:  # it sends something
            return program.add("node", inputs, wanted, node)
    if node.op.has("reads_never") or node.op.has("collective"):  # nothing is fused across it
        return program.add("node", inputs, wanted, node)
    given = input_specs(node, sizes)
    attrs = {name: substitute(value, sizes) if sizes else value for name, value in node.attrs.items()}
    key = (node.op, tuple(attrs.items()), tuple(given))
    closed = traced.get(key)
    if closed is None:
        arguments = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in given]
        closed = traced[key] = jax.make_jaxpr(lambda *xs: node.op.lower(*xs, **attrs))(*arguments)
    return _run(program, closed.jaxpr, inputs, node)


def _made_up(inputs: list[Value], outputs: list[TensorSpec]) -> int:
    """Return the bytes of constants that a loop or branch needs in memory; elsewhere XLA computes them on the fly.

    A loop's initial and final values share their memory. So a constant of the same size as an output needs none.
    """
    ends = Counter([spec.nbytes for spec in outputs])
    total = 0
    for value in inputs:
        if value.constant and value.size > 1:
            ends[value.nbytes] -= 1
            total += value.nbytes if ends[value.nbytes] < 0 else 0
    return total


def _run(program: Program, jaxpr: Any, inputs: list[Value], node: Node) -> list[Value]:
    known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable in jaxpr.constvars:
        known[variable] = _constant(variable.aval)

    def value(atom: Any) -> Value:
        return _constant(atom.aval) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        outputs = _equation(program, equation, [value(atom) for atom in equation.invars], node)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _constant(aval: Any) -> Value:
    return Value(tuple(aval.shape), aval.dtype.itemsize, constant=True)


def _spec(aval: Any) -> tuple[tuple[int, ...], int]:
    return tuple(aval.shape), getattr(aval.dtype, "itemsize", 4)


def _equation(program: Program, equation: Any, inputs: list[Value], node: Node) -> list[Value]:
    name, params = equation.primitive.name, equation.params
    inner = params.get(_CALLS.get(name, ""))
    if inner is not None:
        return _run(program, getattr(inner, "jaxpr", inner), inputs, node)
    if name in _SAME:
        return inputs
    specs = [_spec(variable.aval) for variable in equation.outvars]
    if name in _VIEWS:
        return [inputs[0].viewed(specs[0][0])]
    if name == "iota" or (inputs and all(one.constant for one in inputs)):
        return [Value(*spec, constant=True) for spec in specs]
    key = str(params)
    if name == "erfc":  # XLA computes it from two fractions and an exponential, each computed once
        inputs = [program.add("erfc_part", inputs, specs, node, key=part)[0] for part in range(3)]
    if name.startswith("reduce_") and "axes" in params and name != "reduce_precision":
        return _reduction(program, name, inputs, specs, params["axes"], node)
    if name in ("dot_general", "conv_general_dilated"):
        low = [variable.aval.dtype.itemsize < _SINGLE for variable in (*equation.invars, *equation.outvars)]
        return _product(program, name, inputs, specs, (params, low), node)
    return program.add(name, inputs, specs, node, key=key)


def _reduction(program: Program, name: str, inputs: list[Value], specs: Any, axes: Any, node: Node) -> list[Value]:
    """Add a reduction; XLA reduces more than a few elements in two steps."""
    shape = inputs[0].shape
    if len(inputs) == 1 and any(shape[axis] > _TREE for axis in axes):
        between = tuple([-(-size // _TREE) if axis in axes else size for axis, size in enumerate(shape)])
        inputs = program.add("reduce_window", inputs, [(between, inputs[0].itemsize)], node, key=(name, axes))
    return program.add(name, inputs, specs, node, key=str(axes))


def _product(program: Program, name: str, inputs: list[Value], specs: Any, how: Any, node: Node) -> list[Value]:
    """Add a product or convolution; XLA:CPU computes those of low precision in float32."""
    params, low = how

    def widened(value: Value) -> Value:
        return program.add("convert_element_type", [value], [(value.shape, _SINGLE)], node, key=_SINGLE)[0]

    inputs = [widened(value) if narrow else value for value, narrow in zip(inputs, low, strict=False)]
    wide = [(specs[0][0], _SINGLE)] if low[-1] else specs
    if name == "dot_general":
        made = program.add(name, _dot_operands(params, inputs), wide, node, key=str(params))
    else:
        made = _convolution(program, inputs, wide, params, node)
    return program.add("convert_element_type", made, specs, node, key=specs[0][1]) if low[-1] else made


def _dot_operands(params: Any, inputs: list[Value]) -> list[Value]:
    """Return the operands of a product without transposes: it reads a matrix in either order of its last two axes."""
    batches = params["dimension_numbers"][1]
    return [_untransposed(value, len(batch)) for value, batch in zip(inputs, batches, strict=True)]


def _untransposed(value: Value, batch: int) -> Value:
    made = value.made
    if made is None or made.name != "transpose" or len(value.shape) != batch + 2:
        return value
    before = made.given[0]
    kept = before.shape[:batch] == value.shape[:batch]
    return before if kept and before.shape[batch:] == value.shape[batch:][::-1] else value


def _convolution(program: Program, inputs: list[Value], specs: Any, params: Any, node: Node) -> list[Value]:
    """Add a convolution: XLA:CPU runs it with the channels last, so other orders are transposed before and after."""
    numbers = params["dimension_numbers"]
    order_in = (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1])
    order_kernel = (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    order_out = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    turned = [
        _transposed(program, value, order, node)
        for value, order in zip(inputs, (order_in, order_kernel), strict=True)
    ]
    shape, itemsize = specs[0]
    made = program.add(
        "conv_general_dilated", turned, [(tuple([shape[axis] for axis in order_out]), itemsize)], node, key=str(params)
    )
    back = tuple([order_out.index(axis) for axis in range(len(shape))])
    return [_transposed(program, made[0], back, node)]


def _transposed(program: Program, value: Value, order: tuple[int, ...], node: Node) -> Value:
    if order == tuple(range(len(order))):
        return value
    shape = tuple([value.shape[axis] for axis in order])
    return program.add("transpose", [value], [(shape, value.itemsize)], node, key=f"{{'permutation': {order}}}")[0]
