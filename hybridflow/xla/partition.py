"""How XLA will divide a program among the devices of a mesh, found out without devices.

jaxlib holds Shardy, the part of XLA that decides how the values of a program lie on a mesh. It needs the lowered
program and the mesh's sizes alone, and says which collectives the values' layouts make necessary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import jax
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from hybridflow.backend.jax_shim import enable_x64, without_locations
from hybridflow.core.mesh import Axis, Layout, Mesh
from hybridflow.core.node import Edge, Node
from hybridflow.ir.costs import Sizes, concrete, node_costs
from hybridflow.ir.effects import has_effect
from hybridflow.ir.evaluate import RUN_NODE, lower_graph, run_lowering
from hybridflow.ir.graph import Graph, edges_of, nested_graphs
from hybridflow.nested.pipelines import schedule_of
from hybridflow.xla.communication import width_of
from hybridflow.xla.executable import concrete_specs, is_wide
from hybridflow.xla.placing import Placing
from hybridflow.xla.scopes import Namer, naming

_PASSES = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo),sdy-propagation-pipeline,"
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives))"
)
_KINDS = {
    "sdy.all_reduce": "all-reduce", "sdy.all_gather": "all-gather", "sdy.reduce_scatter": "reduce-scatter",
    "sdy.all_to_all": "all-to-all", "sdy.collective_permute": "collective-permute",
}
"""Shardy's operations that send something, as XLA names them."""
_ALONG = {
    "all-reduce": "reduction_axes", "all-gather": "gathering_axes", "reduce-scatter": "reduce_scatter_axes",
    "all-to-all": "params", "collective-permute": "out_sharding",
}
"""The attribute with the mesh axes."""
_AXIS = re.compile(r'"([^"]*)"(?::\(\d+\)(\d+))?')
"""A mesh axis, or a part of one with its size."""
_EACH = re.compile(r"\{[^{}]*\}")
"""The mesh axes of one dimension."""
_BY_HAND = {f"stablehlo.{kind.replace('-', '_')}": kind for kind in _KINDS.values()}
"""The operations that `hf.shard_map` lowers to; their types are those of a device's part."""
_NUMBER = re.compile(r"hfn(\d+)")
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution")
_FIRST = 1 << 62
"""What makes a product count as the largest operation of its node."""


class Predicted(NamedTuple):
    """A collective that XLA will need.

    Attributes:
        kind: such as ``all-reduce``.
        axes: the mesh axes along which devices send one another something.
        devices: the number of devices that do so together.
        bytes: the size of its result on each device.
        shape: the shape of its result on each device.
        node: the operation of the graph that needs it; None if unknown.
        runs: how often it runs in a call; a loop without a bound counts one step.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    shape: tuple[int, ...]
    node: Node | None
    runs: int

    @property
    def line(self) -> str | None:
        """The user's line of the operation, ``file:line``."""
        return None if self.node is None else self.node.location


@dataclass(frozen=True)
class Partition:
    """How a graph will be divided among the devices of a mesh.

    Attributes:
        mesh: the mesh, without devices.
        collectives: what the devices send one another, in the program's order.
        inputs, outputs: into how many parts each input and output is divided.
        parts: a function from a node, and the shape of a value that it computes, to the number of its parts.
        layouts: how values lie, by their nodes and shapes, as far as Shardy says.
        work: into how many parts the work of a node is divided, as far as Shardy says; devices beyond these repeat it.
    """

    mesh: Mesh
    collectives: tuple[Predicted, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parts: Callable[[Node, tuple[int, ...]], int]
    layouts: Mapping[tuple[Node, tuple[int, ...]], Layout]
    work: Mapping[Node, int]

    def bytes(self) -> dict[str, int]:
        """Return the bytes of a call's collectives on each device, by kind."""
        total: dict[str, int] = {}
        for one in self.collectives:
            total[one.kind] = total.get(one.kind, 0) + one.bytes * one.runs
        return total


def partition(graph: Graph, sizes: Sizes, placing: Placing, platform: str | None = None) -> Partition:
    """Predict how XLA divides a graph among the devices of a mesh; nothing is compiled, and no device is needed.

    Functions of Python that the graph calls are left out, and what they need too.

    Args:
        graph: the graph, after its passes for a mesh.
        sizes: the size of each symbol.
        placing: the mesh, and how inputs and outputs lie there.
        platform: the kind of the devices, jax's default one if not given. Except on ``"cpu"``, XLA leaves each device
            only its part of a sum where the rest is not needed (reduce-scatter).
    """
    platform = platform or jax.default_backend()
    mesh = Mesh.without_devices(placing.mesh.shape)
    namer = Namer(graph=graph)
    module = _lowered(graph, sizes, replace(placing, mesh=mesh), namer)
    stablehlo.register_stablehlo_passes()
    with module.context:
        PassManager.parse(_PASSES).run(module.operation)
    return _Reading(graph, sizes, mesh, namer, scatters=platform != "cpu").read(module)


def _lowered(graph: Graph, sizes: Sizes, placing: Placing, namer: Namer) -> Any:
    """Return the module of a graph for a mesh without devices."""
    specs = concrete_specs(graph.input_specs, dict(sizes))
    arguments = [
        jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
        for spec, sharding in zip(specs, placing.inputs_for(specs), strict=True)
    ]
    token = RUN_NODE.set(_run_silently)
    try:
        with enable_x64() if is_wide(graph) else nullcontext(), naming(namer), without_locations():
            lowering = placing.around(lower_graph(graph, sizes), specs)
            traced = jax.jit(lowering, out_shardings=placing.outputs_for(), keep_unused=True).trace(*arguments)
            return traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    finally:
        RUN_NODE.reset(token)


def _run_silently(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Lower a node; one that calls Python, which needs devices, gives zeros."""
    if not has_effect(node) or nested_graphs(node):
        return run_lowering(node, inputs, attrs)
    made = [jax.numpy.zeros(spec.shape, spec.dtype) for spec in node.specs]
    return made[0] if len(made) == 1 else tuple(made)


class _Reading:
    """Reads a module that Shardy has divided."""

    def __init__(self, graph: Graph, sizes: Sizes, mesh: Mesh, namer: Namer, *, scatters: bool) -> None:
        self._mesh = mesh
        self._namer = namer
        self._scatters = scatters
        self._graph = graph
        self._symbols = sizes
        self._runs = {one.node: one.runs for one in node_costs(graph, sizes)}
        self._functions: dict[str, Any] = {}
        self._found: list[Predicted] = []
        self._parts: dict[tuple[Node, tuple[int, ...]], int] = {}
        self._layouts: dict[tuple[Node, tuple[int, ...]], Layout] = {}
        self._work: dict[Node, tuple[int, int]] = {}

    def read(self, module: Any) -> Partition:
        """Return what the module says."""
        for operation in module.body.operations:
            if operation.operation.name == "func.func":
                self._functions[operation.name.value] = operation
        main = self._functions["main"]
        self._block(main.regions[0].blocks[0], None)
        inputs = self._of_ends(main.arguments, main, "arg_attrs")
        outputs = self._of_ends(main.type.results, main, "res_attrs")
        given = zip(self._graph.inputs, main.arguments, inputs, strict=True)
        made = zip(self._graph.outputs, main.type.results, outputs, strict=True)
        self._parts.update({(node, tuple(end.type.shape)): parts for node, end, parts in given})
        self._parts.update({(node, tuple(end.shape)): parts for (node, _), end, parts in made})
        for node, end, attrs in zip(self._graph.inputs, main.arguments, self._ends(main, "arg_attrs"), strict=False):
            if "sdy.sharding" in attrs:
                self._layouts[node, tuple(end.type.shape)] = self._layout(attrs["sdy.sharding"])
        work = {node: parts for node, (_, parts) in self._work.items()}
        return Partition(self._mesh, tuple(self._found), inputs, outputs, self._parts_of, self._layouts, work)

    def _parts_of(self, node: Node, shape: tuple[int, ...]) -> int:
        found = self._parts.get((node, shape))
        if found is not None:
            return found
        # The operation became nothing in the program, as a reshape to the same shape does: it lies as its input lies.
        count = math.prod(shape)
        for source, index in [edge for edge in node.inputs if edge is not None]:
            given = concrete(source.spec(index), self._symbols).shape
            if math.prod(given) == count:
                return self._parts_of(source, given)
        return 1

    def _of_ends(self, ends: Sequence[Any], main: Any, name: str) -> tuple[int, ...]:
        given = self._ends(main, name) or [{}] * len(ends)
        return tuple([self._divided(one["sdy.sharding"]) if "sdy.sharding" in one else 1 for one in given])

    def _ends(self, main: Any, name: str) -> Sequence[Any]:
        return list(main.attributes[name]) if name in main.attributes else []

    def _layout(self, sharding: Any) -> Layout:
        """Return a sharding as a layout."""
        layout: list[Axis] = []
        for one in sdy.TensorShardingAttr(sharding).dimension_shardings:
            names = tuple([sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(one).axes])
            layout.append(None if not names else names[0] if len(names) == 1 else names)
        return tuple(layout)

    def _sizes(self, sharding: Any) -> list[int]:
        """Return into how many parts a sharding divides each dimension; the axes of some are parts of a mesh axis."""
        dimensions = [sdy.DimensionShardingAttr(one) for one in sdy.TensorShardingAttr(sharding).dimension_shardings]
        return [math.prod([self._size(sdy.AxisRefAttr(axis)) for axis in one.axes]) for one in dimensions]

    def _size(self, axis: Any) -> int:
        part = axis.sub_axis_info
        return self._mesh.shape[axis.name] if part is None else sdy.SubAxisInfoAttr(part).size

    def _divided(self, sharding: Any) -> int:
        return math.prod(self._sizes(sharding))

    # -- walking --------------------------------------------------------------------------------------------------

    def _block(self, block: Any, around: Node | None) -> None:
        operations = list(block.operations)
        moved: set[tuple[Any, str]] = set()
        for index, operation in enumerate(operations):
            name = operation.operation.name
            node = self._node(operation, around)
            if name == "func.call":
                self._call(operation, node)
                continue
            if name in _KINDS:
                key = operation.operands[0], f"{name} {operation.attributes['out_sharding']}"
                if key in moved:
                    continue  # several read what one collective brings
                moved.add(key)
                after = operations[index + 1] if index + 1 < len(operations) else None
                self._found += self._collective(operation, after, _KINDS[name], node)
            elif name in _BY_HAND and node is not None:
                self._found.append(self._by_hand(operation, _BY_HAND[name], node))
            elif node is not None:
                self._remember(operation, node)
            for region in operation.regions:
                for inner in region.blocks:
                    self._block(inner, node)
            if name == "sdy.manual_computation" and node is not None:
                self._results(operation, operation.attributes["out_shardings"], node)

    def _call(self, operation: Any, node: Node | None) -> None:
        called = self._functions[operation.attributes["callee"].value]
        self._block(called.regions[0].blocks[0], node)

    def _node(self, operation: Any, around: Node | None) -> Node | None:
        """Return the node that an operation belongs to; in a function that several call, that of the caller."""
        numbers = _NUMBER.findall(str(operation.location))
        own = self._namer.nodes[int(numbers[-1])] if numbers else None
        if around is None or (own is not None and any(own in one.walk() for one in nested_graphs(around))):
            return own
        return around

    def _remember(self, operation: Any, node: Node) -> None:
        """Keep into how many parts the results of an operation are divided, and its work."""
        self._divide(operation, node)
        if "sdy.sharding" not in operation.attributes:
            return
        self._results(operation, operation.attributes["sdy.sharding"], node)

    def _results(self, operation: Any, attribute: Any, node: Node) -> None:
        """Keep how the results of an operation lie."""
        given = sdy.TensorShardingPerValueAttr(attribute).shardings
        for result, sharding in zip(operation.results, given, strict=True):
            if hasattr(result.type, "shape"):
                self._parts[node, tuple(result.type.shape)] = self._divided(sharding)
                self._layouts[node, tuple(result.type.shape)] = self._layout(sharding)

    def _divide(self, operation: Any, node: Node) -> None:
        """Keep into how many parts the largest operation of a node is divided: along all axes of what it touches."""
        axes: dict[tuple[str, int], None] = {}
        size = 0
        for value in (*operation.operands, *operation.results):
            sharding = self._sharding_of(value)
            for one in () if sharding is None else sharding.dimension_shardings:
                for axis in [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(one).axes]:
                    axes[axis.name, self._size(axis)] = None
            if hasattr(value.type, "shape"):
                size += math.prod(value.type.shape)
                self._given(node, tuple(value.type.shape), 1 if sharding is None else self._divided(sharding))
        if operation.operation.name in _PRODUCTS:
            size += _FIRST
        if size > self._work.get(node, (-1, 1))[0]:
            self._work[node] = size, math.prod([count for _, count in axes])

    def _given(self, node: Node, shape: tuple[int, ...], parts: int) -> None:
        """Keep into how many parts the inputs of a body are divided, which no operation of the program makes."""
        for source, index in edges_of(node):
            given = concrete(source.spec(index), self._symbols).shape
            if source.op.has("source") and math.prod(given) == math.prod(shape):
                self._parts[source, given] = max(parts, self._parts.get((source, given), 1))

    def _collective(self, operation: Any, after: Any, kind: str, node: Node | None) -> Iterator[Predicted]:
        sharding, result = operation.attributes["out_sharding"], operation.results[0].type
        given = str(operation.attributes[_ALONG[kind]])
        axes = self._axes(given)
        if kind == "all-gather":
            yield from self._gathered(_EACH.findall(given), result, self._sizes(sharding), node)
            return
        steps = [axes]
        if kind == "all-reduce" and not self._scatters:
            steps = self._steps(operation, axes)
        elif kind == "all-reduce" and _takes(after, operation):
            kind, sharding = "reduce-scatter", after.attributes["out_sharding"]
        shape = tuple([-(-size // parts) for size, parts in zip(result.shape, self._sizes(sharding), strict=True)])
        for step in steps:
            yield self._made(kind, step, result, shape, node)

    def _gathered(
        self, given: Sequence[str], result: Any, sizes: Sequence[int], node: Node | None
    ) -> Iterator[Predicted]:
        """Yield a gathering for each dimension, the last one first, as XLA makes them."""
        along = {dim: self._axes(text) for dim, text in enumerate(given) if '"' in text}
        left = [math.prod([size for _, size in along.get(dim, ())]) for dim in range(len(given))]
        for dim in sorted(along, reverse=True):
            left[dim] = 1
            parts = [size * more for size, more in zip(sizes, left, strict=True)]
            shape = tuple([-(-size // count) for size, count in zip(result.shape, parts, strict=True)])
            yield self._made("all-gather", along[dim], result, shape, node)

    def _steps(self, operation: Any, axes: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
        """Return the mesh axes of each reduction: XLA makes one for each dimension that a sum is over.

        Except on CPUs, a later pass of XLA makes one of them again.
        """
        made = operation.operands[0].owner
        reduced = _reduced_dimensions(getattr(made, "operation", made))
        sharding = None if reduced is None else self._sharding_of(made.operands[0])
        if reduced is None or sharding is None:
            return [axes]
        dimensions = [sdy.DimensionShardingAttr(one) for one in sharding.dimension_shardings]
        along = [{sdy.AxisRefAttr(axis).name for axis in dimensions[index].axes} for index in reduced]
        steps = [[one for one in axes if one[0] in names] for names in along]
        return [step for step in steps if step] or [axes]

    def _sharding_of(self, value: Any) -> Any:
        """Return the sharding of a value in the module; None if it has none."""
        owner = value.owner
        if not hasattr(owner, "attributes"):  # a block's argument
            main = self._functions["main"]
            if owner != main.regions[0].blocks[0] or "arg_attrs" not in main.attributes:
                return None
            given = main.attributes["arg_attrs"][value.arg_number]
            return sdy.TensorShardingAttr(given["sdy.sharding"]) if "sdy.sharding" in given else None
        if "out_sharding" in owner.attributes:
            return sdy.TensorShardingAttr(owner.attributes["out_sharding"])
        if "sdy.sharding" not in owner.attributes:
            return None
        index = list(owner.results).index(value)
        return sdy.TensorShardingAttr(
            sdy.TensorShardingPerValueAttr(owner.attributes["sdy.sharding"]).shardings[index]
        )

    def _axes(self, text: str) -> list[tuple[str, int]]:
        """Return the mesh axes in an attribute of Shardy, each with its size."""
        return [(name, int(size) if size else self._mesh.shape[name]) for name, size in _AXIS.findall(text)]

    def _by_hand(self, operation: Any, kind: str, node: Node) -> Predicted:
        axis = cast(str, node.attrs["axis"])
        result = operation.results[0].type
        shape = tuple(result.shape)
        if "sdy.sharding" in operation.attributes:  # other axes than those of the body divide it further
            (sharding,) = sdy.TensorShardingPerValueAttr(operation.attributes["sdy.sharding"]).shardings
            shape = tuple([-(-size // parts) for size, parts in zip(shape, self._sizes(sharding), strict=True)])
        made = self._made(kind, [(axis, self._mesh.shape[axis])], result, shape, node)
        if node.op.has("stages"):  # each tick of a pipeline ends with what its devices pass on
            return made._replace(runs=len(schedule_of(node).table) if kind == "collective-permute" else 1)
        return made._replace(runs=made.runs // self._mesh.size)  # a body counts once for each device

    def _made(
        self, kind: str, axes: Sequence[tuple[str, int]], of: Any, shape: tuple[int, ...], node: Node | None
    ) -> Predicted:
        size = math.prod(shape) * width_of(str(of.element_type))
        names = tuple(dict.fromkeys([name for name, _ in axes]))
        runs = self._runs.get(node, 1) if node is not None else 1
        return Predicted(kind, names, math.prod([count for _, count in axes]), size, shape, node, runs)


def layouts_of(graph: Graph, sizes: Sizes, placing: Placing) -> Callable[[Edge], Layout | None]:
    """Return a function that tells how a value of a graph lies on the mesh, None where that is not known."""
    found: list[Partition] = []

    def layout_of(edge: Edge) -> Layout | None:
        if not found:
            found.append(partition(graph, sizes, placing, placing.mesh.devices[0].platform))
        return found[0].layouts.get((edge[0], concrete(edge[0].spec(edge[1]), sizes).shape))

    return layout_of


def _takes(after: Any, operation: Any) -> bool:
    """Whether the next operation takes each device's part of a collective's result, which nothing else reads."""
    if after is None or after.operation.name != "sdy.all_slice":
        return False
    result = operation.results[0]
    return after.operands[0] == result and len(list(result.uses)) == 1


def _reduced_dimensions(operation: Any) -> list[int] | None:
    """Return the dimensions of its first operand that an operation sums over; None if it is neither sum nor product."""
    name = getattr(operation, "name", "")
    if name == "stablehlo.reduce":
        return sorted(operation.attributes["dimensions"])
    if name == "stablehlo.dot_general":
        given = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
        return sorted(given.lhs_contracting_dimensions)
    return None
