"""What `hf.compare` found about one function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hybridflow.analysis.compare.figures import calls_figure
from hybridflow.analysis.compare.kernels import KernelRun
from hybridflow.analysis.compare.outputs import Grid, Shown
from hybridflow.analysis.compare.peers import Peer
from hybridflow.analysis.machine import own_cores
from hybridflow.analysis.parity import Parity
from hybridflow.analysis.statistics import Ratio, format_range, format_ratio
from hybridflow.analysis.timing import CROWDED, Timing, format_seconds
from hybridflow.core.units import format_bytes

UNSTEADY = 1.5
"""A timing is called noisy if its quartiles are further apart than this ratio."""


@dataclass(frozen=True)
class FirstCall:
    """The time of the first compiled call, in seconds, and of its parts.

    Attributes:
        total: the time until the result was computed; it is more than the sum of the parts.
        trace: the run of the Python function with traced tensors.
        passes: hybridflow's passes over the graph.
        lower: the translation of the graph to StableHLO.
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


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The result of `hf.compare` for one function; ``print(comparison)`` shows a table.

    Attributes:
        name: the function's name.
        eager, compiled: the time of one call.
        eager_first: the first eager call, in seconds.
        first_call: the first compiled call.
        parities: the judgements of the outputs; results come first, then Variables and gradients.
        flops: the number of floating-point operations of one call as `hf.cost` counts them: of the graph that runs
            compiled. An eager call may do more, such as what a pass drops; both rates are of this number.
        operations: how many operations an eager call executes, a gradient rule being one; inside of `hf.profile`, which
            has its own count of them, how many the traced graph has.
        kernels: the number of kernels of the compiled program outside loops and branches, by its optimised HLO.
        eager_bytes: the largest size of the arrays that an eager call has allocated at once on the host.
        compiled_bytes: the size of temporaries and results of the compiled call.
        precisions: the number of operations that compute in each floating-point dtype, without casts.
        casts: the number of casts between floating-point dtypes, such as those of `hf.autocast`.
        eager_kernels: how long of an eager call its kernels and gradient rules run, in seconds; the rest of the call
            is dispatch. None if that is not known.
        compiled_kernels: how long XLA's kernels run in a compiled call, in seconds; simultaneous ones count once.
        kernel_runs: these kernels with their fused operations and the user's lines; the longest first.
        peers: the same computation with other packages.
        retraces: what made a compiled function be traced again and again before it was compared, and what to write.
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
    eager_kernels: float | None = None
    compiled_kernels: float | None = None
    kernel_runs: tuple[KernelRun, ...] = ()
    peers: tuple[Peer, ...] = ()
    retraces: tuple[str, ...] = ()

    # -- what is known ----------------------------------------------------------------------------------------

    @property
    def same(self) -> bool:
        """Whether the modes agree, and the peers: everything that was compared is the same but for rounding."""
        return all(parity.same for parity in self.judged())

    def judged(self) -> list[Parity]:
        """Return what was compared, the peers' results among it."""
        return [*self.parities, *[peer.parity for peer in self.peers]]

    @property
    def ratio(self) -> Ratio:
        """How many times longer the eager call takes, with its interval."""
        return self.eager.over(self.compiled)

    @property
    def speedup(self) -> float:
        """How many times faster the compiled call is."""
        return self.ratio.value

    @property
    def break_even(self) -> int | None:
        """The number of calls from which compiling has paid off; None if it never does."""
        gain = self.eager.median - self.compiled.median
        if gain <= 0:
            return None
        return 1 + max(0, math.ceil((self.first_call.total - self.eager_first) / gain))

    @property
    def eager_dispatch(self) -> float | None:
        """How long of an eager call no kernel runs, in seconds: Python and hybridflow's dispatch."""
        return None if self.eager_kernels is None else self.eager.median - self.eager_kernels

    @property
    def compiled_dispatch(self) -> float | None:
        """How long of a compiled call no kernel runs, in seconds: looking up the trace, handing arrays in and out."""
        return None if self.compiled_kernels is None else self.compiled.median - self.compiled_kernels

    @property
    def launches(self) -> int:
        """How many kernels one compiled call launches, in loops as often as they were seen to run."""
        seen = [run.runs for run in self.kernel_runs if run.seconds is not None]
        return sum(seen) if seen else self.kernels

    @property
    def fusions(self) -> int:
        """How many of the kernels compute several operations."""
        return sum(1 for run in self.kernel_runs if run.fused > 1)

    def with_parity(self, parity: Parity) -> Comparison:
        """Return a comparison with one more thing compared."""
        return replace(self, parities=(*self.parities, parity))

    # -- showing ----------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What was compared."""
        return ", ".join([f"{self.name}: eager and compiled", *[peer.name for peer in self.peers]])

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as ``(what, eager, compiled, *peers)``."""
        peers, more = self.peers, ("",) * len(self.peers)
        rows: list[tuple[str, ...]] = [
            ("one call, median (95 %)", str(self.eager), str(self.compiled), *[str(one.timing) for one in peers]),
            ("of it in kernels", part_text(self.eager_kernels, self.eager),
             part_text(self.compiled_kernels, self.compiled), *more),
            ("dispatch", part_text(self.eager_dispatch, self.eager),
             part_text(self.compiled_dispatch, self.compiled), *more),
            ("first call", format_seconds(self.eager_first), str(self.first_call),
             *[format_seconds(one.first) for one in peers]),
            ("speed-up over eager (95 %)", "", ratio_text(self.ratio),
             *[ratio_text(self.eager.over(one.timing)) for one in peers]),
            ("break-even", "", even_text(self), *more),
            ("operations / kernels launched", f"{self.operations:,}", self._kernels_text(), *more),
            ("memory of one call", _bytes(self.eager_bytes), _bytes(self.compiled_bytes), *more),
        ]
        if self.flops:
            rates = [_rate(self.flops, one.median) for one in (self.eager, self.compiled, *[p.timing for p in peers])]
            rows.append(("FLOPs", *rates))
        if len(self.precisions) > 1 or self.casts:
            by_dtype = ", ".join([f"{count} in {dtype}" for dtype, count in self.precisions.items()])
            rows.append(("operations by precision", by_dtype, f"{self.casts} casts between them", *more))
        rows += [
            (f"{parity.name}: largest difference", "", _difference_text(parity), *more)
            for parity in self.parities
        ]
        if peers:
            cells = [_difference_text(one.parity) for one in peers]
            rows.append(("results: largest difference", "", "", *cells))
        return rows

    def _kernels_text(self) -> str:
        if not self.kernel_runs:
            return str(self.kernels)
        different = len(self.kernel_runs)
        runs = "" if self.launches == different else f"{self.launches:,}: "
        return f"{runs}{different} kernel{'' if different == 1 else 's'}, {self.fusions} of them fused"

    def grids(self) -> list[Grid]:
        """Return the table, and that of the kernels."""
        rows = self.rows()
        alarming = frozenset(number for number, row in enumerate(rows) if any("DIFFERENT" in cell for cell in row))
        head = ("", "eager", "compiled", *[peer.name for peer in self.peers])
        return [Grid(self.title, head, rows, alarming=alarming), *kernel_grids(self)]

    def findings(self) -> list[str]:
        """Return what the timings show, one sentence each, and what else was found."""
        return [
            faster_text("compiled", name, timing.over(self.compiled))
            for name, timing in self.timings().items()
            if timing is not self.compiled
        ] + self.remarks()

    def remarks(self) -> list[str]:
        """Return where there are subnormal numbers, and what makes the function be traced again and again."""
        return [*self.subnormals(), *self.retraces]

    def subnormals(self) -> list[str]:
        """Return where the function computes with subnormal numbers, if its results are not equal to the bit."""
        return sorted({f"{parity.subnormals}." for parity in self.parities if parity.subnormals})

    def differences(self) -> list[str]:
        """Return one line per output that differs."""
        return [line for parity in self.judged() for line in parity.differences()]

    def timings(self) -> dict[str, Timing]:
        """Return what was timed, by name."""
        return {"eager": self.eager, "compiled": self.compiled, **{one.name: one.timing for one in self.peers}}

    def caution(self) -> str:
        """Return why the timings should be read with care; empty if they are steady."""
        return caution_of(self.timings())

    def _agreement(self) -> str:
        if not self.peers:
            return super()._agreement()
        names = " and ".join(["eager and compiled", *[peer.name for peer in self.peers]])
        return f"SAME: {names} results agree but for rounding."

    def figure(self) -> Any:
        """Return the plot of total time against the number of calls, the break-even marked."""
        lines = {
            "eager": (self.eager_first, self.eager.median),
            "compiled, first call included": (self.first_call.total, self.compiled.median),
            **{one.name: (one.first, one.timing.median) for one in self.peers},
        }
        return calls_figure(self.name, lines, self.break_even)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, seconds and bytes, fit for JSON."""
        low, high = self.ratio.low, self.ratio.high
        return {
            "name": self.name,
            "same": self.same,
            "eager": self.eager.to_dict(),
            "compiled": self.compiled.to_dict(),
            "eager_first": self.eager_first,
            "first_call": asdict(self.first_call),
            "speedup": self.speedup,
            "speedup_interval": None if math.isinf(high) else [low, high],
            "told": self.ratio.told,
            "break_even": self.break_even,
            "flops": self.flops,
            "operations": self.operations,
            "kernels": self.kernels,
            "launches": self.launches,
            "fusions": self.fusions,
            "eager_bytes": self.eager_bytes,
            "compiled_bytes": self.compiled_bytes,
            "eager_kernels": self.eager_kernels,
            "compiled_kernels": self.compiled_kernels,
            "retraces": [*self.retraces],
            "kernel_runs": [{**asdict(run), "lines": list(run.lines)} for run in self.kernel_runs],
            "precisions": dict(self.precisions),
            "casts": self.casts,
            "by_processor": None if self.ratio.by_processor is None else self.ratio.by_processor.value,
            "parities": [parity_dict(parity) for parity in self.parities],
            "peers": [{**peer.to_dict(), "parity": parity_dict(peer.parity)} for peer in self.peers],
        }


def kernel_grids(comparison: Comparison, title: str = "Kernels of a compiled call") -> list[Grid]:
    """Return the table of a compiled call's kernels, none if they are not known."""
    rows = [
        (
            run.operations, str(run.fused), str(run.runs),
            "not seen" if run.seconds is None else format_seconds(run.seconds), ", ".join(run.lines), run.name,
        )
        for run in comparison.kernel_runs
    ]
    head = ("operations", "fused", "runs", "time", "lines", "kernel")
    return [Grid(title, head, rows, long=True)] if rows else []


def parity_dict(parity: Parity) -> dict[str, Any]:
    """Return what was judged as plain values."""
    outputs = [
        {"name": one.name, "same": one.same, "largest": one.largest, "used": one.used, "text": one.text}
        for one in parity.judgements
    ]
    return {"name": parity.name, "same": parity.same, "outputs": outputs}


def faster_text(what: str, than: str, ratio: Ratio) -> str:
    """Return a text that says which of two is faster, or that this cannot be told.

    Args:
        what, than: their names.
        ratio: the second's time divided by the first's.
    """
    if ratio.by_processor is not None:
        return (
            f"{what} against {than}: {ratio} by the clock, while other programs took {ratio.others:.1f} of "
            f"{len(own_cores())} cores, so that threads waited for one. Of the processor's time, "
            f"{faster_text(what, than, ratio.by_processor)}"
        )
    if not ratio.told:
        if ratio.high == math.inf:
            return f"{what} against {than}: {format_ratio(ratio.value)}, but the turns are too few to be sure."
        text = f"{what} against {than}: no difference can be told: {ratio}"
        if ratio.low <= 1 <= ratio.high:
            return f"{text}."
        return f"{text} turn by turn, but from turn to turn the times vary more than that."
    if ratio.value >= 1:
        return f"{what} is {format_ratio(ratio.value)} faster than {than} ({format_range(ratio.low, ratio.high)})."
    low, high = 1 / ratio.high, 1 / ratio.low
    return f"{what} is {format_ratio(1 / ratio.value)} slower than {than} ({format_range(low, high)})."


def caution_of(timings: dict[str, Timing]) -> str:
    """Return why timings should be read with care; empty if they are steady.

    Args:
        timings: what was timed, by name.
    """
    reasons: list[str] = []
    spread = {name: timing.high / timing.low for name, timing in timings.items() if timing.low > 0}
    name = max(spread, key=lambda one: spread[one], default="")
    if name and spread[name] >= UNSTEADY:
        reasons.append(f"the quartiles of {name} are {spread[name]:.1f}x apart")
    others = max([timing.others or 0.0 for timing in timings.values()], default=0.0)
    if others >= CROWDED * len(own_cores()):
        reasons.append(f"other programs took {others:.1f} of {len(own_cores())} cores")
    cut = next((one for one in timings.values() if len(one.turns) < one.planned), None)
    short = "" if cut is None else (
        f"The time was over after {len(cut.turns)} of {cut.planned} turns: give more seconds= to tell more."
    )
    if not reasons:
        return short
    noisy = f"Noisy: {', and '.join(reasons)}. Measure again when nothing else runs, or with more repeats."
    return f"{short} {noisy}".lstrip()


def part_text(seconds: float | None, timing: Timing) -> str:
    """Format a part of a call and its share."""
    if seconds is None:
        return "not known"
    return f"{format_seconds(seconds)} ({seconds / timing.median:.0%})"


def ratio_text(ratio: Ratio) -> str:
    """Format a ratio for a table, with whether it tells a difference."""
    by = "" if ratio.by_processor is None else f"; of the processor's time {format_ratio(ratio.by_processor.value)}"
    return f"{ratio}{by}" if ratio.told or ratio.high == math.inf else f"{ratio}{by}, not told apart"


def parity_text(parity: Parity) -> str:
    """Format how far results are apart."""
    if not parity.same:
        return "DIFFERENT"
    return f"{parity.used:.1%} of what rounding explains" if parity.used else "identical"


def calls_text(count: int | None) -> str:
    """Format a break-even."""
    if count is None:
        return "never: the compiled call is not faster"
    return f"{count:,} call{'' if count == 1 else 's'}"


def even_text(comparison: Comparison) -> str:
    """Format a comparison's break-even, which says nothing where the modes cannot be told apart."""
    if_at_all = "" if comparison.break_even is None or comparison.ratio.told else ", if faster at all"
    return calls_text(comparison.break_even) + if_at_all


def same_text(parities: Sequence[Parity]) -> str:
    """Format whether everything that was compared is the same."""
    return "same" if all(parity.same for parity in parities) else "DIFFERENT"


def _bytes(count: int | None) -> str:
    return "not known" if count is None else format_bytes(count)


def _difference_text(parity: Parity) -> str:
    return f"from eager: {parity.largest:.3g}, {parity_text(parity)}"


def _rate(flops: int, seconds: float) -> str:
    return f"{flops:,} ({flops / seconds / 1e9:.3g} GFLOP/s)"
