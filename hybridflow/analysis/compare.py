"""`hf.compare`: one function run eagerly and compiled, its results judged and its calls timed."""

from __future__ import annotations

import io
import math
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from hybridflow.analysis.parity import Parity, check_gradients_parity, check_parity, fresh_copy, kept
from hybridflow.analysis.timing import Timing, format_seconds, interleave, seconds_of, wait_for
from hybridflow.core.dtypes import is_floating
from hybridflow.core.errors import ArgumentError, message
from hybridflow.core.node import Node
from hybridflow.core.units import format_bytes
from hybridflow.ir.costs import graph_flops
from hybridflow.ir.graph import Graph
from hybridflow.tracing import config
from hybridflow.tracing.config import run_eagerly
from hybridflow.tracing.function import CompiledFunction

UNSTEADY = 3.0
"""How far apart the quartiles of a timing may be before the table says so."""


@dataclass(frozen=True)
class FirstCall:
    """What the first compiled call took, in seconds; the parts leave out what belongs to none of them.

    Attributes:
        total: until its result was there.
        trace: running the Python function once with traced tensors.
        passes: hybridflow's passes over the graph.
        lower: from the graph to StableHLO.
        xla: XLA's compilation.
    """

    total: float
    trace: float
    passes: float
    lower: float
    xla: float

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {format_seconds(value)}"
            for name, value in (("trace", self.trace + self.passes), ("lower", self.lower), ("XLA", self.xla))
        )
        return f"{format_seconds(self.total)} ({parts})"


@dataclass(frozen=True)
class Comparison:
    """What `hf.compare` found: ``print(comparison)`` is a table.

    Attributes:
        name: the function's name.
        eager, compiled: what one call takes.
        eager_first: the first eager call, in seconds.
        first_call: the first compiled call.
        parities: what was compared, each output judged; results first.
        flops: floating-point operations of one call, by the operations' own counts.
        operations: how many operations an eager call executes, loop bodies counted once.
        kernels: how many kernels the compiled call launches, by its optimised HLO.
        eager_bytes: peak of the arrays an eager call allocates on the host.
        compiled_bytes: temporaries and results of the compiled call.
        precisions: how many operations compute in each floating-point dtype, casts aside.
        casts: how many operations only change one floating-point dtype to another, such as those of `hf.autocast`.
    """

    name: str
    eager: Timing
    compiled: Timing
    eager_first: float
    first_call: FirstCall
    parities: tuple[Parity, ...]
    flops: int
    operations: int
    kernels: int
    eager_bytes: int
    compiled_bytes: int | None
    precisions: dict[str, int] = field(default_factory=dict[str, int])
    casts: int = 0

    @property
    def same(self) -> bool:
        """Whether the modes agree: everything that was compared is the same but for rounding."""
        return all(parity.same for parity in self.parities)

    @property
    def speedup(self) -> float:
        """How many times faster the compiled call is."""
        return self.eager.median / self.compiled.median

    @property
    def break_even(self) -> int | None:
        """The number of calls from which compiling has paid off; None if it never does."""
        gain = self.eager.median - self.compiled.median
        if gain <= 0:
            return None
        return 1 + max(0, math.ceil((self.first_call.total - self.eager_first) / gain))

    def with_parity(self, parity: Parity) -> Comparison:
        """Return a comparison with one more thing compared."""
        return replace(self, parities=(*self.parities, parity))

    # -- showing ----------------------------------------------------------------------------------------------

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table as ``(what, eager, compiled)``."""
        rows = [
            ("one call, median (quartiles)", str(self.eager), str(self.compiled)),
            ("first call", format_seconds(self.eager_first), str(self.first_call)),
            ("speed-up", "", f"{self.speedup:.2f}x"),
            ("break-even", "", _calls(self.break_even)),
            ("operations / kernels launched", str(self.operations), str(self.kernels)),
            ("memory of one call", _bytes(self.eager_bytes), _bytes(self.compiled_bytes)),
        ]
        if self.flops:
            rows.append(("FLOPs", _rate(self.flops, self.eager.median), _rate(self.flops, self.compiled.median)))
        if len(self.precisions) > 1 or self.casts:
            by_dtype = ", ".join([f"{count} in {dtype}" for dtype, count in self.precisions.items()])
            rows.append(("operations by precision", by_dtype, f"{self.casts} casts between them"))
        for parity in self.parities:
            rounding = f"{parity.used:.1%} of what rounding explains" if parity.used else "identical"
            rows.append((f"largest difference of {parity.name}", f"{parity.largest:.3g}",
                         rounding if parity.same else "DIFFERENT"))  # fmt: skip
        return rows

    def verdict(self) -> str:
        """Return one line that says whether the results are the same, and one per output that differs."""
        if self.same:
            return "SAME: eager and compiled results agree but for rounding."
        lines = [line for parity in self.parities for line in parity.differences()]
        return "\n".join(["DIFFERENT: eager and compiled results differ by more than rounding.", *lines])

    def caution(self) -> str:
        """Return why the timings should be read with care; empty if they are steady."""
        ratio = max(timing.high / timing.low for timing in (self.eager, self.compiled))
        if ratio < UNSTEADY:
            return ""
        return f"The timings' quartiles are {ratio:.1f}x apart: something else keeps the machine busy; measure again."

    def table(self) -> Table:
        """Return the table for a `rich` console."""
        table = Table(title=f"{self.name}: eager and compiled", title_justify="left")
        table.add_column("")
        table.add_column("eager")
        table.add_column("compiled")
        for what, eager, compiled in self.rows():
            style = "bold red" if compiled == "DIFFERENT" else None
            table.add_row(what, eager, compiled, style=style)
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the table and the verdict, in colour where there is any.

        Args:
            console: where to print; the terminal if None.
        """
        console = console or Console()
        console.print(self.table())
        console.print(self.verdict(), style="green" if self.same else "bold red", markup=False, highlight=False)
        if self.caution():
            console.print(self.caution(), style="yellow", highlight=False)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, color_system=None)
        console.print(self.table())
        for text in (self.caution(), self.verdict()):
            if text:
                console.print(text, markup=False, highlight=False, soft_wrap=True)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from hybridflow.analysis.report import comparison_html

        return comparison_html(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a plot of total time against the number of calls, the break-even marked.

        Args:
            path: a file; its ending chooses the format, such as ``.svg`` or ``.png``. Needs matplotlib.
        """
        from hybridflow.analysis.report import break_even_figure, save_figure

        save_figure(break_even_figure(self), path)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs no other file: the table, the verdict and the plot. Needs matplotlib.

        Args:
            path: the file, replaced at once when the page is complete.
        """
        from hybridflow.analysis.report import break_even_figure, comparison_html, figure_svg, page
        from hybridflow.backend.files import write_text

        body = comparison_html(self) + figure_svg(break_even_figure(self))
        write_text(path, page(f"{self.name}: eager and compiled", body))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, seconds and bytes, fit for JSON."""

        def timing(found: Timing) -> dict[str, float]:
            return {"median": found.median, "low": found.low, "high": found.high, "calls": found.calls}

        return {
            "name": self.name,
            "same": self.same,
            "eager": timing(self.eager),
            "compiled": timing(self.compiled),
            "eager_first": self.eager_first,
            "first_call": {key: getattr(self.first_call, key) for key in ("total", "trace", "passes", "lower", "xla")},
            "speedup": self.speedup,
            "break_even": self.break_even,
            "flops": self.flops,
            "operations": self.operations,
            "kernels": self.kernels,
            "eager_bytes": self.eager_bytes,
            "compiled_bytes": self.compiled_bytes,
            "precisions": dict(self.precisions),
            "casts": self.casts,
            "parities": [
                {
                    "name": parity.name,
                    "same": parity.same,
                    "outputs": [
                        {"name": one.name, "same": one.same, "largest": one.largest, "used": one.used, "text": one.text}
                        for one in parity.judgements
                    ],
                }
                for parity in self.parities
            ],
        }


def compare(
    fn: Callable[..., Any],
    *args: Any,
    repeats: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    **kwargs: Any,
) -> Comparison:
    """Run a function eagerly and compiled, judge whether the results are the same, and time both.

    A compiled function is compiled anew, so that its first call can be timed. Results are judged by the definition
    of `hybridflow.analysis.same`: integers, bools, shapes and dtypes are identical, floats are as near to a float64
    run as rounding allows. Variables that the function assigns are compared too, and left as they were.

    Args:
        fn: the function, compiled or not.
        args: what to call it with.
        repeats: how many calls of each mode to time; about a second each if None.
        rtol, atol: judge floats by ``|eager - compiled| <= atol + rtol |compiled|`` instead, if one is given.
        gradients: also compare the gradients of the sum of the float results, with respect to every float tensor
            argument and every trainable Variable read.
        kwargs: what to call it with, by name.

    Returns:
        The comparison; its ``same`` is the verdict.

    Raises:
        ArgumentError: `repeats` less than 1, or a negative tolerance.

    Example:
        >>> import hybridflow as hf
        >>> found = hf.compare(lambda x: hf.tanh(x) * x, hf.asarray([1.0, 2.0]), repeats=5)
        >>> found.same, found.eager.calls
        (True, 5)
    """
    if repeats is not None and repeats < 1:
        raise ArgumentError(message(f"compare: repeats={repeats}, which is less than 1"))
    tolerance = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
    if tolerance is not None and min(tolerance) < 0:
        raise ArgumentError(message(f"compare: a negative tolerance: rtol={rtol}, atol={atol}"))
    compiled = fresh_copy(fn)
    _start_backend()
    start = time.perf_counter()
    trace, signature = compiled._trace_for(args, kwargs)
    traced = time.perf_counter() - start
    variables = trace.variables(signature)
    assigned = [variables[index] for index in trace.assigned]
    with kept(variables) as restore:
        with config.cache(False):  # what XLA takes is part of the answer
            first = traced + seconds_of(lambda: compiled(*args, **kwargs), assigned)
        restore()
        eager_bytes, eager_first = _eager_memory(lambda: _eagerly(compiled, args, kwargs))
        restore()
        eager, fast = interleave(
            [lambda: _eagerly(compiled, args, kwargs), lambda: compiled(*args, **kwargs)],
            assigned,
            repeats=repeats,
            before_block=restore,
        )
    record = trace.record
    parities = [check_parity(compiled, [(args, kwargs)], "results", tolerance)]
    if gradients:
        parities.append(check_gradients_parity(compiled, (args, kwargs), tolerance))
    lowered = compiled.lower(*args, **kwargs)
    precisions, casts = _precisions(trace.raw_graph)
    return Comparison(
        name=compiled._name,
        eager=eager,
        compiled=fast,
        eager_first=eager_first,
        first_call=FirstCall(
            first, record.trace_ms / 1e3, record.passes_ms / 1e3, record.lower_ms / 1e3, record.xla_ms / 1e3
        ),
        parities=tuple(parities),
        flops=int(graph_flops(trace.raw_graph)),
        operations=sum(1 for node in trace.raw_graph.walk() if not _is_free(node)),
        kernels=count_kernels(lowered.as_text("hlo")),
        eager_bytes=eager_bytes,
        compiled_bytes=_compiled_memory(lowered.executable.compiled),
        precisions=precisions,
        casts=casts,
    )


@cache
def _start_backend() -> None:
    """Make XLA compile something, so that its start-up is not counted as the function's first call."""
    jax.jit(lambda x: x + 1)(np.float32(0)).block_until_ready()


def _eagerly(compiled: CompiledFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with run_eagerly():
        return compiled.python_function(*args, **kwargs)


def _eager_memory(call: Callable[[], Any]) -> tuple[int, float]:
    """Return the peak of what an eager call allocates, and how long the call before it, the first one, took."""
    start = time.perf_counter()
    wait_for(call())
    first = time.perf_counter() - start
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        wait_for(call())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not already:
            tracemalloc.stop()
    return max(peak - before, 0), first


def _compiled_memory(executable: Any) -> int | None:
    """Return the bytes of temporaries and results, where the backend tells."""
    found = None
    with suppress(NotImplementedError, RuntimeError):
        found = executable.memory_analysis()
    if found is None:
        return None
    return int(found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes)


def _precisions(graph: Graph) -> tuple[dict[str, int], int]:
    """Return how many operations of a graph compute in each floating-point dtype, and how many are casts."""
    found: Counter[str] = Counter()
    casts = 0
    for node in graph.walk():
        if _is_free(node) or not is_floating(node.spec().dtype):
            continue
        edge = node.inputs[0] if node.inputs else None
        if node.op.has("conversion") and edge is not None:
            casts += edge[0].spec(edge[1]).dtype != node.spec().dtype and is_floating(edge[0].spec(edge[1]).dtype)
        elif not node.op.has("nested"):
            found[str(node.spec().dtype)] += 1
    return dict(found.most_common()), casts


def _is_free(node: Node) -> bool:
    return node.op.has("source") or node.op.has("identity")


_NO_KERNEL = ("parameter(", "constant(", "tuple(", "get-tuple-element(", "bitcast(", "copy-done(", "after-all(")


def count_kernels(hlo: str) -> int:
    """Return how many instructions of optimised HLO's entry computation do work."""
    count = 0
    inside = False
    for line in hlo.splitlines():
        if line.startswith("ENTRY "):
            inside = True
        elif inside and line.startswith("}"):
            break
        elif inside and " = " in line:
            call = line.split(" = ", 1)[1]
            count += not any(f" {name}" in call for name in _NO_KERNEL)
    return count


def _calls(count: int | None) -> str:
    if count is None:
        return "never: the compiled call is not faster"
    return f"{count} call{'' if count == 1 else 's'}"


def _bytes(count: int | None) -> str:
    return "not known" if count is None else format_bytes(count)


def _rate(flops: int, seconds: float) -> str:
    return f"{flops:,} ({flops / seconds / 1e9:.3g} GFLOP/s)"
