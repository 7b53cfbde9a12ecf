"""The data for a cost report: a call's graphs, and the role of each input and output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hybridflow.core.context import current
from hybridflow.core.mesh import Mesh
from hybridflow.core.node import Node
from hybridflow.core.spec import TensorSpec, example_size, is_open_size
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.guards.dynamic import ANY, Pattern, with_patterns
from hybridflow.guards.signature import TENSOR, Signature
from hybridflow.ir.graph import Graph

if TYPE_CHECKING:
    from hybridflow.tracing.trace import Trace
    from hybridflow.xla.executable import Executable
    from hybridflow.xla.placing import Placing


@dataclass(frozen=True)
class Costing:
    """A call whose cost can be reported.

    Attributes:
        name: the function's name.
        traced: the graph as it was traced.
        graph: the graph that runs.
        sizes: the size of each symbol; None if the arguments leave them open.
        arguments: the number of inputs that are tensor arguments, including Python numbers; captured tensors follow.
        variables: the Variables that are the last inputs.
        assigned: the positions of the Variables that the call assigns.
        results: the number of outputs that the function returns; the assigned Variables' values follow.
        donated: pairs of an output and the input whose memory it reuses.
        undecided: whether it is still open what a memory budget will recompute; the first call decides that.
        gradient_of: maps each traced node that computes a gradient to the node whose gradient it is.
        compile: compiles the graph, or returns the executable if there is one.
        bounds_for: returns the bounds of the program that takes given sizes now; None if there is none.
        retrace: traces the call again, for nothing else, and returns the graph; see `hybridflow.core.module_calls`.
        placing: how inputs and outputs lie on a mesh; None for one device.
    """

    name: str
    traced: Graph
    graph: Graph
    sizes: dict[str, int] | None
    arguments: int
    variables: tuple[Variable, ...]
    assigned: tuple[int, ...]
    results: int
    donated: tuple[tuple[int, int], ...]
    undecided: bool
    gradient_of: dict[Node, Node] = field(repr=False)
    compile: Callable[[dict[str, int]], Executable] = field(repr=False)
    bounds_for: Callable[[dict[str, int]], dict[str, int] | None] = field(repr=False)
    retrace: Callable[[], Graph] = field(repr=False)
    placing: Placing | None = None

    @classmethod
    def of(cls, name: str, trace: Trace, signature: Signature, *, opened: bool) -> Costing:
        """Return the costing of a call; if `opened` is set, its sizes are left open."""
        device = current().device
        count, placing = trace.plan.count, trace.placing
        variables = trace.variables(signature)
        return cls(
            name=name,
            traced=trace.raw_graph,
            graph=trace.graph,
            sizes=None if opened else trace.sizes(signature),
            arguments=len(trace.graph.inputs) - len(trace.captures) - len(variables),
            variables=variables,
            assigned=trace.assigned,
            results=count,
            donated=tuple([(count + index, position) for index, position in enumerate(trace.donated)]),
            undecided=trace.budget is not None and trace.only is None,
            gradient_of=trace.gradient_of,
            compile=lambda sizes: trace.executable_for(sizes, device) if placing is None or not placing.mesh.is_planned
            else _on_devices(trace, placing, sizes),
            bounds_for=_no_bounds if trace.bounds is None else trace.bounds.bounds_for,
            retrace=lambda: trace.raw_graph,
            placing=placing,
        )


def _on_devices(trace: Trace, placing: Placing, sizes: dict[str, int]) -> Executable:
    """Compile a trace that was made for a mesh without devices for one of the same sizes."""
    from hybridflow.xla.executable import compile_graph  # most programs ask for no cost: importing stays fast

    there = replace(placing, mesh=Mesh(placing.mesh.shape))
    return compile_graph(trace.graph, donate=trace.donated, sizes=sizes, placing=there)


def _no_bounds(sizes: dict[str, int]) -> None:
    return None


class Specs:
    """Arguments with specs replaced by tensors that have the shapes and dtypes but take no memory.

    Args:
        args, kwargs: the arguments of a call.
        module: the module that is called, whose `forward` names the open sizes; None for a function.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], module: Any = None) -> None:
        self._patterns: dict[int, Pattern] = {}
        self._made: list[Tensor] = []
        names = [] if module is None else list(inspect.signature(module.forward).parameters)
        self.args = tuple([self._filled(_with_names(one, name)) for one, name in zip_longest(args, names[: len(args)])])
        self.kwargs = {name: self._filled(value) for name, value in kwargs.items()}

    def _filled(self, value: Any) -> Any:
        if not any(isinstance(leaf, TensorSpec) for leaf in jax.tree_util.tree_leaves(value)):
            return value
        return jax.tree_util.tree_map(self._tensor, value)

    def _tensor(self, leaf: Any) -> Any:
        if not isinstance(leaf, TensorSpec):
            return leaf
        shape = tuple([example_size(size, _EXAMPLE) for size in leaf.shape])
        stand_in = make_tensor(np.broadcast_to(np.zeros((), leaf.dtype), shape))
        if any(map(is_open_size, leaf.shape)):
            self._patterns[id(stand_in)] = tuple([ANY if size is None else size for size in leaf.shape])
        self._made.append(stand_in)
        return stand_in

    @property
    def opened(self) -> bool:
        """Whether a spec leaves a size open."""
        return bool(self._patterns)

    def pattern(self, signature: Signature) -> Signature:
        """Return a call's signature with the open sizes in its key."""
        open_sizes = {
            position: self._patterns[id(leaf.value)]
            for position, leaf in enumerate(signature.leaves)
            if leaf.kind == TENSOR and id(leaf.value) in self._patterns
        }
        return with_patterns(signature, open_sizes) if open_sizes else signature


def _with_names(spec: Any, name: str | None) -> Any:
    """Return a spec whose open sizes have names after those of its parameter; anything else as it is."""
    if name is None or not isinstance(spec, TensorSpec) or None not in spec.shape:
        return spec
    shape = [f"{spec.name or name}_{axis}" if size is None else size for axis, size in enumerate(spec.shape)]
    return TensorSpec(shape, spec.dtype, spec.name)


_EXAMPLE = 17
"""The size that stands for an open one while the function is traced."""
