"""`hf.shard_map`: a function that runs on every device of a mesh with the parts that lie there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from hybridflow.autodiff.dependence import of_graph
from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.transform import Mask, differentiate
from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.dispatch import bind, run_raw
from hybridflow.core.errors import ArgumentTypeError, LayoutError
from hybridflow.core.functions import as_traced
from hybridflow.core.mesh import (
    Layout,
    Mesh,
    check_axes,
    check_fits,
    check_rank,
    checked_layout,
    is_layout,
    names_of,
)
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ir.builder import Check, trace_body, trace_with_variables
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.evaluate import evaluate, lower_graph
from hybridflow.ir.graph import Graph, edges_of, nested_graphs, require_inputs
from hybridflow.nested.bodies import add_checks, bind_all
from hybridflow.ops.collectives import axes_after, groups, psum
from hybridflow.ops.reductions import all as all_of
from hybridflow.ops.shape import reshape

R = TypeVar("R")

Sizes = tuple[tuple[str, int], ...]


def shard_map(
    fn: Callable[..., R], mesh: Mesh, in_layouts: Sequence[Any], out_layouts: Any
) -> Callable[..., R]:
    """Return a function that runs `fn` on every device of a mesh, with the parts of the arguments that lie there.

    Inside, the devices send one another values by `hf.distribute.psum`, `all_gather` and the like. Eager calls trace
    `fn`, and compute what all devices would, on the host. Compiled callers are compiled for the same mesh.

    Args:
        fn: a function of tensors. It may read Variables, which are whole on every device, but not assign them.
        mesh: the mesh.
        in_layouts: for each argument, a layout for all tensors in it, or a structure of layouts like the argument.
        out_layouts: the layout of all results, or a structure of layouts like the result. A result must be the same
            on all devices along an axis that its layout does not name.

    Returns:
        A function of whole values, and so is its result. Gradients are those of the whole computation.

    Raises:
        ArgumentTypeError: `fn` is not callable, or `mesh` is no mesh.
        LayoutError: there is not one layout per argument; a layout does not suit an argument, a result or the mesh; a
            result differs along an axis that its layout does not name; or the caller is compiled for another mesh.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"data": 1})
        >>> total = hf.shard_map(lambda x: hf.distribute.psum(hf.sum(x), "data"), mesh, [("data",)], ())
        >>> total(hf.asarray([1.0, 2.0]))
        Tensor(3., dtype=float32)
    """
    if not callable(fn) or not isinstance(cast(object, mesh), Mesh):
        raise ArgumentTypeError("shard_map: takes a function and a hf.Mesh", got=f"{fn!r}, {mesh!r}"[:80],
                                hint='Write hf.shard_map(fn, hf.Mesh({"data": 8}), [("data",)], ()).')
    for layout in structures.leaves((list(in_layouts), out_layouts), is_leaf=is_layout):
        check_axes(checked_layout(layout, "shard_map"), mesh, "shard_map")
    name = getattr(fn, "__name__", "shard_map")

    def mapped(*args: Any) -> Any:
        around = getattr(current().tracer, "mesh", None)
        if current().tracer is not None and (around is None or not around.stands_for(mesh)):
            raise LayoutError(f"shard_map: it is for {mesh}, and the function that calls it is compiled for "
                              f"{around or 'one device'}", hint="Pass mesh= to hf.compile, the same one.")
        if len(args) != len(in_layouts):
            raise LayoutError(f"shard_map: {len(in_layouts)} layouts for {len(args)} arguments",
                              got=f"{name}{tuple(in_layouts)}", hint="Give one for each argument.")
        leaves, tree = structures.flatten(args)
        tensors = [as_tensor(leaf) for leaf in leaves]
        layouts = [one for arg, given in zip(args, in_layouts, strict=True) for one in _spread(given, arg, "argument")]
        return _run(fn, name, mesh, tensors, tree, layouts, out_layouts)

    return mapped


def _run(
    fn: Any, name: str, mesh: Mesh, tensors: list[Tensor], tree: Any, layouts: list[Layout], out_layouts: Any
) -> Any:
    """Trace the body, and bind the operation that runs it."""
    specs = [
        _part(tensor.spec, layout, mesh, f"argument {i}")
        for i, (tensor, layout) in enumerate(zip(tensors, layouts, strict=True))
    ]
    kept: list[Any] = []
    checks: list[Check] = []

    def body(*locals_: Tensor) -> list[Tensor]:
        tracer: Any = current().tracer
        tracer.manual = mesh
        result = as_traced(fn)(*structures.unflatten(tree, locals_))
        leaves, result_tree = structures.flatten(result)
        kept[:] = result_tree, _spread(out_layouts, result, "result")
        checks[:] = tracer.checks
        tracer.checks.clear()
        return [*map(as_tensor, leaves), *[reshape(check.ok, (1,)) for check in checks]]

    traced = trace_with_variables(body, specs, name, writes=False)
    result_tree, outputs = kept
    around = [*traced.captures, *[state.variable.read() for state in traced.variables]]
    inputs = (*layouts, *[(None,) * len(one.shape) for one in around])
    everywhere = (mesh.axes,)
    results = (*outputs, *[everywhere] * len(checks))
    _require_same(traced.graph, inputs, results, mesh)
    attrs = {"graph": traced.graph, "mesh": mesh, "inputs": inputs, "outputs": results}
    made = bind_all(MANUAL, [*tensors, *around], attrs)
    flags = made[len(outputs) :]
    if current().tracer is not None:
        add_checks(checks, [all_of(flag) for flag in flags])
    else:
        for check, flag in zip(checks, flags, strict=True):
            if not flag.numpy().all():
                raise check.failure(name)
    return structures.unflatten(result_tree, made[: len(outputs)])


def _spread(given: Any, value: Any, what: str) -> list[Layout]:
    """Return the layout of each tensor in a value."""
    leaves, tree = structures.flatten(value)
    if is_layout(given):
        layouts: list[Any] = [given] * len(leaves)
    else:
        layouts, structure = structures.flatten(given, is_leaf=is_layout)
        if structure != tree:
            raise LayoutError(f"shard_map: the layouts of the {what} have another structure",
                              got=f"{structure} for {tree}", hint="Give a layout for each tensor, or one for all.")
    for layout, leaf in zip(layouts, leaves, strict=True):
        check_rank(layout, np.shape(leaf) if not hasattr(leaf, "shape") else leaf.shape, f"shard_map: {what}")
    return [checked_layout(layout, f"shard_map: {what}") for layout in layouts]


def _part(spec: TensorSpec, layout: Layout, mesh: Mesh, what: str) -> TensorSpec:
    """Return the spec of the part on each device."""
    check_fits(layout, spec.shape, mesh, f"shard_map: {what}")
    sizes = [size // mesh.parts(axis) for size, axis in zip(spec.shape, layout, strict=True)]
    return make_spec(tuple(sizes), spec.dtype)


def _axes(layout: Layout) -> frozenset[str]:
    return frozenset([name for axis in layout for name in names_of(axis)])


def _require_same(graph: Graph, inputs: Sequence[Layout], outputs: Sequence[Layout], mesh: Mesh) -> None:
    """Raise if an output may differ along a mesh axis that its layout does not name."""
    differs = _differing(graph, [_axes(layout) for layout in inputs])
    for index, ((node, output), layout) in enumerate(zip(graph.outputs, outputs, strict=True)):
        extra = differs[node, output] - _axes(layout) - {name for name, size in mesh.shape.items() if size == 1}
        if extra:
            raise LayoutError(
                f"shard_map: result {index} differs along {sorted(extra)}, and its layout does not name that",
                got=f"layout {layout} of {node.spec(output)} made at {node.location}",
                hint="Reduce it with hf.distribute.psum or pmean, gather it, or name the axis."
            )


def _differing(graph: Graph, inputs: Sequence[frozenset[str]]) -> dict[Edge, frozenset[str]]:
    """Return the mesh axes along which each value of a body may differ."""
    differs: dict[Edge, frozenset[str]] = {(node, 0): one for node, one in zip(graph.inputs, inputs, strict=True)}
    for node in graph.nodes:
        axes = frozenset[str]().union(*[differs[edge] for edge in edges_of(node)])
        if node.op.has("collective"):
            axes = axes_after(node.op.name, node.attrs["axis"], axes)
        for nested in nested_graphs(node):
            axes |= {one.attrs["axis"] for one in nested.walk() if one.op.has("collective")}
        differs.update({(node, index): axes for index in range(len(node.outputs))})
    return differs


# -- the op -------------------------------------------------------------------------------------------------------


def _one_or_all(outputs: Sequence[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _lower(*xs: Any, graph: Graph, mesh: Mesh, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]) -> Any:
    def body(*parts: Any) -> Any:
        token = LOWERED_FOR.set(None)  # layouts of values inside mean nothing
        try:
            return lower_graph(graph)(*parts)
        finally:
            LOWERED_FOR.reset(token)

    into, back = [tuple([jax.sharding.PartitionSpec(*one) for one in some]) for some in (inputs, outputs)]
    there = LOWERED_FOR.get() or mesh  # the same mesh without devices, if the program is only predicted
    run = jax.shard_map(body, mesh=there.of_jax, in_specs=into, out_specs=back, check_vma=False)
    return _one_or_all(run(*xs))


def _kernel(*xs: Any, graph: Graph, mesh: Mesh, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]) -> Any:
    """Compute what all devices would, node by node."""
    places = _places(mesh)

    def run(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        if node.op.has("collective"):
            return _across(node.op, values, attrs, mesh)
        if any([one.op.has("collective") for nested in nested_graphs(node) for one in nested.walk()]):
            raise LayoutError(f"shard_map: {node.op.name} has collectives inside, at {node.location}",
                              hint="Eager code cannot run these: compile the caller for the mesh.")
        made = [run_raw(node.op, [value[i] for value in values], attrs) for i in range(mesh.size)]
        return made if len(node.outputs) == 1 else list(zip(*made, strict=True))

    parts = [_split(x, layout, mesh, places) for x, layout in zip(xs, inputs, strict=True)]
    made = evaluate(graph, parts, run)
    return _one_or_all([_joined(value, layout, mesh, places) for value, layout in zip(made, outputs, strict=True)])


def _across(op: Op, values: list[Any], attrs: dict[str, Any], mesh: Mesh) -> list[Any]:
    """Run a collective on the values of all devices; return its result on each, or a list of its results."""
    made: list[Any] = [None] * mesh.size
    for group in groups(tuple(mesh.shape.items()), attrs["axis"]):
        stacks = [np.stack([np.asarray(value[i]) for i in group]) for value in values]
        kernel: Any = op.kernel
        results = kernel(*stacks, **attrs)
        for place, index in enumerate(group):
            own = [_contiguous(one[place]) for one in (results if isinstance(results, tuple) else (results,))]
            made[index] = own if isinstance(results, tuple) else own[0]
    return list(zip(*made, strict=True)) if isinstance(made[0], list) else made


def _contiguous(x: Any) -> Any:
    return np.ascontiguousarray(x).reshape(np.shape(x))


def _places(mesh: Mesh) -> list[dict[str, int]]:
    """Return the coordinates of each device."""
    return [dict(zip(mesh.axes, place, strict=True)) for place in np.ndindex(*mesh.shape.values())]


def _where(shape: Sequence[int], layout: Layout, mesh: Mesh, place: dict[str, int]) -> tuple[slice, ...]:
    """Return which part of a whole value lies at a place."""
    slices: list[slice] = []
    for size, axis in zip(shape, layout, strict=True):
        number = 0
        for name in names_of(axis):
            number = number * mesh.shape[name] + place[name]
        part = size // mesh.parts(axis)
        slices.append(slice(number * part, (number + 1) * part))
    return tuple(slices)


def _split(x: Any, layout: Layout, mesh: Mesh, places: list[dict[str, int]]) -> list[Any]:
    return [np.asarray(x[_where(x.shape, layout, mesh, place)]) for place in places]


def _joined(parts: Sequence[Any], layout: Layout, mesh: Mesh, places: list[dict[str, int]]) -> Any:
    first = np.asarray(parts[0])
    whole = np.empty([size * mesh.parts(axis) for size, axis in zip(first.shape, layout, strict=True)], first.dtype)
    for part, place in zip(reversed(parts), reversed(places), strict=True):
        whole[_where(whole.shape, layout, mesh, place)] = part
    return whole


def _infer(*specs: Any, graph: Graph, mesh: Mesh, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]) -> Any:
    given = enumerate(zip(specs, inputs, strict=True))
    parts = [_part(spec, layout, mesh, f"input {i}") for i, (spec, layout) in given]
    require_inputs("shard_map", graph, parts)
    wholes = [
        make_spec(tuple([size * mesh.parts(axis) for size, axis in zip(spec.shape, layout, strict=True)]), spec.dtype)
        for spec, layout in zip(graph.output_specs, outputs, strict=True)
    ]
    return _one_or_all(wholes)


class _Backward(NamedTuple):
    """The body of a gradient, and which inputs have one."""

    graph: Graph
    present: Mask


def _backward_of(graph: Graph, mesh: Mesh, inputs: Any, outputs: Any, given: Mask, wanted: Mask) -> _Backward:
    """Return the body that computes gradients from the inputs and the given cotangents.

    The cotangent of a value that several devices have is divided among them, and the gradient of an input that several
    devices have is the sum of theirs. So a sum over devices is its own transpose.
    """
    key = ("manual_backward", mesh, inputs, outputs, given, wanted)
    known = graph.executables.get(key)
    if known is not None:
        return known
    gradient = differentiate(graph, given, wanted)
    cotangents = [spec for spec, has in zip(graph.output_specs, given, strict=True) if has]
    copies = [_copies(layout, mesh) for layout, has in zip(outputs, given, strict=True) if has]
    present = [layout for layout, has in zip(inputs, gradient.present, strict=True) if has]
    count = len(graph.inputs)

    def body(*tensors: Tensor) -> list[Tensor]:
        shares = [g if n == 1 else g * (1.0 / n) for g, n in zip(tensors[count:], copies, strict=True)]
        made = inline(gradient.graph, [*tensors[:count], *shares])
        for index, layout in enumerate(present):
            for name, size in mesh.shape.items():
                if name not in _axes(layout) and size > 1:
                    made[index] = psum(made[index], axis=name, size=size)
        return made

    traced = trace_body(body, [*graph.input_specs, *cotangents], f"{graph.name}_gradient")
    known = graph.executables[key] = _Backward(traced.graph, gradient.present)
    return known


def _copies(layout: Layout, mesh: Mesh) -> int:
    """Return how many devices have the same part of a value."""
    return mesh.size // math.prod([mesh.shape[name] for name in _axes(layout)])


def _vjp(
    F: Any, g: Any, y: Any, *xs: Any, wanted: Mask, graph: Graph, mesh: Mesh, inputs: tuple[Layout, ...],
    outputs: tuple[Layout, ...],
) -> list[Any]:
    del y
    gs = list(g) if isinstance(g, tuple) else [g]
    given = tuple([one is not None for one in gs])
    backward = _backward_of(graph, mesh, inputs, outputs, given, wanted)
    if not any(backward.present):
        return [None] * len(xs)
    layouts = [layout for layout, has in zip(outputs, given, strict=True) if has]
    made = F.manual(
        *xs, *[one for one in gs if one is not None], graph=backward.graph, mesh=mesh, inputs=(*inputs, *layouts),
        outputs=tuple([one for one, has in zip(inputs, backward.present, strict=True) if has]),
    )
    several = iter(made if isinstance(made, tuple | list) else (made,))
    return [next(several) if has else None for has in backward.present]


def run_manual(*xs: Any, **attrs: Any) -> Any:
    """Run a graph on every device of a mesh, as one operation."""
    return bind(MANUAL, xs, attrs)


MANUAL = register(
    Op(
        "manual",
        _kernel,
        _lower,
        _infer,
        Joint(_vjp),
        flops=Bodies(lambda *, graph, mesh, **_: (Body(graph, mesh.size),)),  # pyright: ignore
        saves=Saves(x="all", depends=lambda *, graph, **_: of_graph(graph)),  # pyright: ignore
        samples=No("made by hf.shard_map; tested with it"),
        traits=frozenset({"nested", "inline"}),
        public=run_manual,
        onnx=No("ONNX has no devices"),
    )
)
