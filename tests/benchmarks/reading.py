"""What XLA is given for a GPU, ours beside jax's, without a GPU: the counts of StableHLO operations that differ.

Command line: ``python -m tests.benchmarks.reading [ROW ...] [--small]``, for the rows of `gpu` that train a model.
Each program is lowered for CUDA, in a process in which jax says that its devices are GPUs; nothing runs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import hybridflow as hf
from hybridflow.backend.jax_shim import enable_x64, without_locations
from hybridflow.ir.evaluate import lower_graph
from hybridflow.tracing.costing import Specs
from hybridflow.xla.executable import concrete_specs

from .__main__ import chosen
from .frameworks import Array, Hybridflow, Jax
from .gpu_rows import ROWS, GpuCase
from .programs import stablehlo_facts

PLATFORM = "cuda"


def ours(step: Any, arrays: list[Any]) -> str:
    """Return the StableHLO of a function that `hf.compile` made, for a GPU."""
    trace = step._trace_of(Specs(tuple(arrays), {}))[0]
    arguments = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in concrete_specs(trace.graph.input_specs, {})]
    with mock.patch.object(jax, "default_backend", return_value="gpu"), enable_x64(trace.wide), without_locations():
        jitted = jax.jit(lower_graph(trace.graph, {}), donate_argnums=trace.donated)
        return jitted.trace(*arguments).lower(lowering_platforms=(PLATFORM,)).as_text()


def theirs(jitted: Any, arguments: list[Any]) -> str:
    """Return the StableHLO of a function that `jax.jit` made, for a GPU."""
    return jitted.trace(*arguments).lower(lowering_platforms=(PLATFORM,)).as_text()


class Reading(GpuCase):
    """A row's case that lowers the steps of its model, and runs none."""

    def __init__(self, *, smoke: bool) -> None:
        super().__init__(smoke=smoke, precision="highest", say=lambda text: None)
        self.found: dict[str, Counter[str]] = {}

    def model(
        self, make: Callable[[Any], Any], loss: Callable[..., Any], batch: list[Array], *, adam: bool, low: bool
    ) -> None:
        """Lower the training steps of a model."""
        step = Hybridflow.Trainer(make, loss, adam, True, low).compiled
        self.found["hybridflow"] = Counter(stablehlo_facts(ours(step, [hf.asarray(one) for one in batch])))
        trainer = Jax.Trainer(make, loss, adam, True, low)
        arguments = [*trainer.start(), *map(jnp.asarray, batch)]
        self.found["jax.jit"] = Counter(stablehlo_facts(theirs(trainer.compiled, arguments)))


def read(build: Callable[[Any], None], *, smoke: bool) -> dict[str, Counter[str]]:
    """Return the counts of both sides of a row; none if it trains no model."""
    case = Reading(smoke=smoke)
    build(case)
    return case.found


def table(title: str, found: dict[str, Counter[str]]) -> Table:
    """Return the counts that differ as a table."""
    made = Table("operation", *found, title=title, title_justify="left")
    for name in sorted(set().union(*found.values())):
        counts = [one[name] for one in found.values()]
        if len(set(counts)) > 1:
            made.add_row(name, *map(str, counts))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Print a table for each row."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.reading", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to read (patterns with *); all models' if none")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    options = parser.parse_args(arguments)
    rows = [one.row for one in ROWS if one.trains and not one.row.name.endswith("_torch_compile")]
    for row in chosen(rows, options.rows):
        Console().print(table(row.work, read(row.build, smoke=options.small)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
