"""`hf.nn.summary`: a model's modules, their results, parameters and cost, without building or running anything."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import jax
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.cost import CostReport
from hybridflow.analysis.memory import format_size
from hybridflow.core.errors import ArgumentTypeError, message
from hybridflow.core.functions import Whole, as_traced
from hybridflow.core.node import name_scope, scope_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.costs import node_costs
from hybridflow.nn import init
from hybridflow.nn.tree import found_in, named
from hybridflow.tracing.compile import compile as compiled

_SHAPES: ContextVar[dict[str, str] | None] = ContextVar("hybridflow summary", default=None)


@dataclass(frozen=True)
class SummaryRow:
    """A row of the table: one module, without the modules in it.

    Attributes:
        path: its path; empty for the model itself.
        type: its class.
        shape: the shape of its result, as text; empty if it is not called.
        parameters: the number of elements of its parameters.
        macs: multiply-adds of its operations.
        activations: the size of their results, in bytes.
    """

    path: str
    type: str
    shape: str
    parameters: int
    macs: Any
    activations: Any


@dataclass(frozen=True)
class Summary:
    """The result of `summary`; it prints as a table, in notebooks too.

    Attributes:
        rows: one per module, the model itself first.
        cost: the cost of one call, from `hf.cost`.
    """

    rows: tuple[SummaryRow, ...]
    cost: CostReport = field(repr=False)

    @property
    def parameters(self) -> int:
        """How many numbers the parameters have."""
        return sum(row.parameters for row in self.rows)

    @property
    def macs(self) -> Any:
        """Multiply-adds of a call."""
        return self.cost.macs

    @property
    def activations(self) -> Any:
        """Bytes of the results of a call's operations."""
        return sum(row.activations for row in self.rows)

    def _table(self) -> Table:
        table = Table(show_footer=True)
        totals = (f"{self.parameters:,}", f"{self.macs:,}", format_size(self.activations))
        for title, footer in (("module", "total"), ("", ""), ("result", "")):
            table.add_column(title, Text(footer))
        for title, footer in zip(("parameters", "MACs", "activations"), totals, strict=True):
            table.add_column(title, Text(footer), justify="right")
        for row in self.rows:
            numbers = (f"{row.parameters:,}", f"{row.macs:,}", format_size(row.activations))
            table.add_row(Text(row.path or "."), Text(row.type), Text(row.shape), *numbers)
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()

    def _recorded(self) -> Console:
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(self._table())
        return console

    def __str__(self) -> str:
        return self._recorded().export_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._recorded().export_html(inline_styles=True, code_format="<pre>{code}</pre>")


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
        raise ArgumentTypeError(message(f"summary: a {type(model).__name__} is no module", got=repr(model)[:80]))
    by_path = named(model)
    values: list[Any] = [*by_path.leaves, *by_path.buffers.values()]
    copied: Any = copy.deepcopy(model, {id(one): one for one in values})
    modules = found_in(copied).modules
    shapes: dict[str, str] = {}
    for one in modules.values():
        one.__class__ = _recording(type(one))
    with _abstract(shapes):
        report = cast(Any, compiled(copied)).cost(*specs)
    return Summary(_rows(copied, modules, shapes, report), report)


def _rows(copied: Any, modules: dict[str, Any], shapes: dict[str, str], report: CostReport) -> tuple[SummaryRow, ...]:
    sizes: dict[str, int] = dict.fromkeys(modules, 0)
    after = found_in(copied)
    for path, value in zip(after.plan.names, after.leaves, strict=True):
        owner = path
        while owner not in modules:
            owner = owner.rpartition(".")[0]
        sizes[owner] += cast(Variable, value).size
    macs: dict[str, Any] = dict.fromkeys(modules, 0)
    written: dict[str, Any] = dict.fromkeys(modules, 0)
    for one in node_costs(report._costing.graph, report.sizes):
        if one.taken:
            scopes = [part for part in scope_of(one.node.where).split("/") if part in _names(modules)]
            path = _names(modules)[scopes[-1]] if scopes else ""
            macs[path] += one.cost.macs
            written[path] += one.cost.written
    return tuple([
        SummaryRow(path, type(one).__name__, shapes.get(path, ""), sizes[path], macs[path], written[path])
        for path, one in modules.items()
    ])  # fmt: skip


def _names(modules: dict[str, Any]) -> dict[str, str]:
    return {_scope(path): path for path in modules}


def _scope(path: str) -> str:
    return f"module.{path}"


@contextmanager
def _abstract(shapes: dict[str, str]) -> Generator[None]:
    """Let initial values take no memory, and take note of the shapes of results."""
    token = _SHAPES.set(shapes)
    try:
        with init.abstract():
            yield
    finally:
        _SHAPES.reset(token)


@functools.cache
def _recording(cls: Any) -> Any:
    """Return a class of modules that take note of their results, and whose operations are in scopes of their paths."""
    call = cls.__call__

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with name_scope(_scope(self._path)):
            result = as_traced(call)(self, *args, **kwargs)
        shapes = _SHAPES.get()
        if shapes is not None:
            result_shapes = [one.shape for one in jax.tree_util.tree_leaves(result) if isinstance(one, Tensor)]
            shapes[self._path] = ", ".join([str(shape) for shape in result_shapes])
        return result

    return type(cls.__name__, (cls,), {"__call__": recorded, "__slots__": (), "__module__": cls.__module__})
