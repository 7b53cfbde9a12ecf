"""`hf.nn.summary`: a model's modules, their results, parameters and cost, without building or running anything."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
from rich.table import Table

from hybridflow.analysis.cost import CostReport
from hybridflow.analysis.layers import LayerRow, layer_table
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.functions import Whole
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.module_calls import ModuleCalls, module_calls, module_number
from hybridflow.core.node import is_gradient, scope_of
from hybridflow.core.report import Report
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.costs import NodeCost, Sizes, input_specs, node_costs
from hybridflow.ir.graph import Graph
from hybridflow.nn import init
from hybridflow.nn.tree import found_in, named
from hybridflow.passes import run_passes
from hybridflow.passes.one_pipeline import one_pipeline
from hybridflow.passes.pipeline import SIMPLIFY, Phase, Pipeline
from hybridflow.tracing.compile import compile as compiled
from hybridflow.tracing.costing import Costing


@dataclass(frozen=True, repr=False)
class Summary(Report):
    """The result of `summary`; it prints as a table, in notebooks too.

    Attributes:
        rows: one per module, the model itself first.
        cost: the cost of one call, from `hf.cost`.
    """

    rows: tuple[LayerRow, ...]
    cost: CostReport = field(repr=False)

    @property
    def parameters(self) -> int:
        """The number of elements of all parameters."""
        return sum(row.parameters for row in self.rows)

    @property
    def macs(self) -> Any:
        """Multiply-adds of a call."""
        return self.cost.macs

    @property
    def activations(self) -> Any:
        """Bytes of the results of a call's operations."""
        return sum(row.activations for row in self.rows)

    def parts(self) -> list[Table]:
        """Return the table."""
        return [layer_table(self.rows, ("parameters", "macs", "activations"))]


@with_foreign_keywords
def summary(model: Any, *specs: Any) -> Summary:
    """Return a table of a model's modules: results, parameters, multiply-adds and memory of a call.

    Nothing is built or run: a model whose sizes are not known yet stays as it is.

    Args:
        model: a module.
        specs: the arguments of a call: tensors, or `hf.TensorSpec` in their place.

    Returns:
        The table: ``.rows``, ``.parameters``, ``.macs``, ``.activations``.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(784, 256), hf.nn.relu, hf.nn.Linear(10))
        >>> found = hf.nn.summary(model, hf.TensorSpec((32, 784)))
        >>> found.parameters, found.macs
        (203530, 6504448)
        >>> [(row.path, row.shape, row.parameters) for row in found.rows]
        [('', '(32, 10)', 0), ('0', '(32, 256)', 200960), ('2', '(32, 10)', 2570)]
        >>> model  # which still does not know the other size of its last layer
        Sequential(
          (0): Linear(784, 256)
          (1): relu
          (2): Linear(10)
        )
    """
    if not isinstance(model, Whole):
        raise ArgumentTypeError(f"summary: a {type(model).__name__} is no module", got=repr(model)[:80])
    by_path = named(model)
    values: list[Any] = [*by_path.leaves, *by_path.buffers.values()]
    copied: Any = copy.deepcopy(model, {id(one): one for one in values})
    with init.abstract(), module_calls() as calls:
        report = cast(Any, compiled(copied)).cost(*specs)
    rows = {row.path: row for row in rows_of(calls, report._costing.traced, report.sizes) if row.type}
    after = found_in(copied)
    listed = [
        replace(rows.get(path) or LayerRow(path, type(module).__name__, "", 0), parameters=count)
        for (path, module), count in zip(after.modules.items(), parameters_of([*after.modules.values()]), strict=True)
    ]
    return Summary(tuple(listed), report)


# -- the cost of each module of a call: see `hybridflow.analysis.cost.CostReport.layers` ------------------------------


class _Sums:
    """The sums of one row."""

    def __init__(self) -> None:
        self.macs: Any = 0
        self.flops: Any = 0
        self.integer: Any = 0
        self.activations: Any = 0

    def add(self, one: NodeCost, sizes: Sizes | None) -> None:
        """Add an operation."""
        self.macs = self.macs + one.cost.macs
        if _is_floating(one, sizes):
            self.flops = self.flops + one.cost.flops
        else:
            self.integer = self.integer + one.cost.flops
        if not is_gradient(one.node.where):
            self.activations = self.activations + one.cost.written


def _is_floating(one: NodeCost, sizes: Sizes | None) -> bool:
    specs: tuple[TensorSpec, ...] = (*one.node.specs, *input_specs(one.node, sizes))
    return any(is_differentiable(spec.dtype) for spec in specs)


def layers_of(costing: Costing) -> tuple[LayerRow, ...]:
    """Return a row for each module that a call calls, and one for what is in none if there is any."""
    with module_calls() as calls:
        traced = costing.retrace()
    return rows_of(calls, traced, costing.sizes)


def rows_of(calls: ModuleCalls, traced: Graph, sizes: Sizes | None) -> tuple[LayerRow, ...]:
    """Return the rows of the modules that were called while a graph was traced.

    Passes that arrange a graph let equal modules share their operations. So the graph is simplified only.
    """
    once = Phase("pipelines", 1, (one_pipeline,))  # the loss and the gradients of a pipeline run its stages once
    graph, _ = run_passes(traced, pipeline=Pipeline((once, SIMPLIFY)), differentiable=False)
    sums = [_Sums() for _ in calls.modules]
    outside = _Sums()
    for one in node_costs(graph, sizes):
        if one.taken:
            number = module_number(scope_of(one.node.where))
            (outside if number is None else sums[number]).add(one, sizes)
    sized = parameters_of(calls.modules)
    rows = [
        LayerRow(
            path, type(module).__name__, _shapes(calls.results[number]), sized[number], own.macs, own.flops,
            own.integer, own.activations,
        )
        for number, (path, module, own) in enumerate(zip(_paths(calls), calls.modules, sums, strict=True))
    ]
    if any([outside.macs, outside.flops, outside.integer, outside.activations]):
        rows.append(LayerRow("", "", "", 0, outside.macs, outside.flops, outside.integer, outside.activations))
    return tuple(rows)


def _paths(calls: ModuleCalls) -> list[str]:
    """Return the modules' paths; if several models are called, each is headed by its model's class."""
    several = sum(calls.roots) > 1
    paths: list[str] = []
    model = ""
    for module, is_root in zip(calls.modules, calls.roots, strict=True):
        model = type(module).__name__ if is_root else model
        path: str = module._path
        paths.append(".".join(filter(None, (model, path))) if several else path)
    return paths


def parameters_of(modules: Sequence[Any]) -> list[int]:
    """Return the number of elements of each module's own parameters; one that several have counts for the first.

    A module's own are also those of the modules inside it that are not among the given ones.
    """
    counted: set[int] = set()
    sizes: list[int] = []
    given = {*map(id, modules)}
    for module in modules:
        found = found_in(module, reads=False)
        inner = {id(one): path for path, one in found.modules.items() if path and id(one) in given}
        size = 0
        for path, leaf in zip(found.plan.names, found.leaves, strict=True):
            owned = not any(path.startswith(f"{where}.") for where in inner.values())
            if owned and isinstance(leaf, Variable) and id(leaf) not in counted:
                counted.add(id(leaf))
                size += leaf.size
        sizes.append(size)
    return sizes


def _shapes(result: Any) -> str:
    return ", ".join([str(one.shape) for one in jax.tree_util.tree_leaves(result) if isinstance(one, Tensor)])
