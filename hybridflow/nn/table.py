"""`hf.nn.summary`: a model's modules, their results, parameters and cost, without building or running anything."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rich.table import Table

from hybridflow.analysis.cost import CostReport
from hybridflow.analysis.layers import LayerRow, layer_table
from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.functions import Whole
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.module_calls import module_calls
from hybridflow.core.report import Report
from hybridflow.nn import init
from hybridflow.nn.layer_costs import parameters_of, rows_of
from hybridflow.nn.tree import found_in, named
from hybridflow.tracing.compile import compile as compiled


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
