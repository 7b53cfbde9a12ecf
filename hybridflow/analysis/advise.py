"""`hf.advise`: how a training step fits into a memory, with the figures of each way and the code that applies it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.layers import recorded, table_as_html
from hybridflow.analysis.memory import format_size
from hybridflow.core.autocast import autocast
from hybridflow.core.dtypes import bfloat16
from hybridflow.core.errors import ArgumentError, MemoryBudgetError, message
from hybridflow.core.spec import make_spec
from hybridflow.ir.costs import seconds_on_cpu
from hybridflow.nested.accumulate import accumulate_gradients
from hybridflow.tracing.budget import size_in_bytes
from hybridflow.tracing.function import CompiledFunction

_MOST = 1 << 20
"""The largest batch that is tried."""
_PARTS = (2, 4, 8, 16, 32, 64)
"""The numbers of micro-batches that are tried."""


@dataclass(frozen=True)
class Plan:
    """A way to run a step.

    Attributes:
        name: what it does.
        batch: the size of its batch.
        code: the code that applies it.
        predicted: the bytes that are needed at once, by hybridflow's prediction: all inputs, results and temporaries.
        peak: the same by XLA's own figures for the compiled step; None if it was not compiled.
        flops: the floating-point operations of a call.
        seconds: a rough time of a call on a processor, by its operations and the bytes they move.
        fits: whether `peak` is within the memory.
    """

    name: str
    batch: int
    code: str
    predicted: int
    peak: int | None
    flops: int
    seconds: float
    fits: bool


@dataclass(frozen=True)
class Advice:
    """The result of `hf.advise`; it prints as a table with the best plan's code, in notebooks too.

    Attributes:
        plans: the plans, those that fit first, the best one at the head.
        memory: the bytes that there are.
        notes: what was not possible, and why.
    """

    plans: tuple[Plan, ...]
    memory: int
    notes: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Plan | None:
        """The plan to take: it fits, keeps the batch and the precision if any plan does, and is the fastest of these.

        None if nothing fits.
        """
        return self.plans[0] if self.plans and self.plans[0].fits else None

    def table(self) -> Table:
        """Return the table for a `rich` console."""
        title = Text(f"Plans for {format_size(self.memory)}")
        table = Table(title=title, title_justify="left")
        table.add_column("plan")
        for name in ("batch", "predicted peak", "XLA's peak", "FLOPs", "rough time", "fits"):
            table.add_column(name, justify="right")
        for plan in self.plans:
            peak = "" if plan.peak is None else format_size(plan.peak)
            table.add_row(
                Text(plan.name), str(plan.batch), format_size(plan.predicted), peak, f"{plan.flops:,}",
                f"{plan.seconds:.3g} s", "yes" if plan.fits else "no",
            )  # fmt: skip
        return table

    def _text(self) -> str:
        best = self.best
        said = [*self.notes, f"{best.name}:\n\n{best.code}" if best else "Nothing fits."]
        return "\n".join(said)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()
        yield Text(self._text())

    def __str__(self) -> str:
        return f"{recorded(self.table()).export_text()}{self._text()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{table_as_html(self.table())}<pre>{self._text()}</pre>"


class _Way(NamedTuple):
    """A way to run a step that has not been costed yet.

    Attributes:
        name, code: as in `Plan`.
        function: the step, changed.
        specs: the arguments.
        batch: the size of the batch.
        options: of `hf.compile`.
        rank: what is preferred: smaller numbers.
    """

    name: str
    code: str
    function: Callable[..., Any]
    specs: tuple[Any, ...]
    batch: int
    options: dict[str, Any]
    rank: int


class _Parts(NamedTuple):
    """What accumulation needs beside the step."""

    loss: Callable[..., Any]
    model: Any
    optimizer: Any


def advise(
    step: Callable[..., Any],
    *specs: Any,
    memory: int | str,
    loss: Callable[..., Any] | None = None,
    model: Any = None,
    optimizer: Any = None,
) -> Advice:
    """Return ways to run a training step within a memory: smaller batches, recomputation, low precision, accumulation.

    Nothing runs. Each plan is compiled, and fits if XLA's own figures say so: all inputs and results, Variables
    included, and temporaries.

    Args:
        step: a function of a batch that trains a model.
        specs: its arguments: tensors, or `hf.TensorSpec` in their place. Axis 0 of the first one is the batch; other
            arguments with an axis 0 of that size belong to it. If it is None, the largest power of two that fits is
            taken.
        memory: the bytes that there are: a number, or a text such as ``"8 GiB"``.
        loss: a function of the same batch that returns the mean loss; with it, `model` and `optimizer`, accumulation of
            gradients over parts of the batch is a plan too.
        model: what `loss` is differentiated by.
        optimizer: what takes the gradients.

    Returns:
        The plans: ``.best``, ``.plans``; it prints as a table.

    Raises:
        ArgumentError: `memory` is no size, or only some of `loss`, `model` and `optimizer` are given.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(64, 256), hf.nn.tanh, hf.nn.Linear(256, 8))
        >>> optimizer = hf.optim.SGD(model, rate=0.1)
        >>> def step(x):
        ...     with hf.GradientTape() as tape:
        ...         loss = hf.mean(model(x) ** 2)
        ...     optimizer.update(tape.gradient(loss, model))
        ...     return loss
        >>> found = hf.advise(step, hf.TensorSpec([4096, 64]), memory="64 MiB")
        >>> found.best.name, found.best.peak <= 64 * 2**20
        ('as it is', True)
    """
    limit = size_in_bytes("advise: memory", memory)
    given = {"loss": loss, "model": model, "optimizer": optimizer}
    if len({one is None for one in given.values()}) > 1:
        raise ArgumentError(
            message("advise: loss, model and optimizer are given together, for plans that accumulate gradients",
                    got=", ".join([name for name, one in given.items() if one is not None]))
        )  # fmt: skip
    parts = None if loss is None else _Parts(loss, model, optimizer)
    function = step._function if isinstance(step, CompiledFunction) else step
    specs, batch = _sized(function, specs, limit)
    notes: list[str] = []
    plans: list[tuple[int, Plan]] = []
    for way in _ways(function, specs, batch, limit, parts):
        if "memory_budget" in way.options and any(plan.fits and rank <= way.rank for rank, plan in plans):
            continue  # it costs many compilations, and a plan that is no worse fits
        try:
            plans.append((way.rank, _costed(way, limit)))
        except MemoryBudgetError as why:
            notes.append(f"{way.name}: {str(why).splitlines()[0]}")
    plans += [(9, _costed(way, limit)) for way in _smaller(function, specs, batch, limit, plans)]
    plans.sort(key=lambda one: (not one[1].fits, one[0], one[1].seconds))
    return Advice(tuple([plan for _, plan in plans]), limit, tuple(notes))


def _ways(
    step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, parts: _Parts | None
) -> Iterator[_Way]:
    """Yield the ways that keep the batch; a way that spreads a step over devices belongs here too."""
    low = autocast(bfloat16)(step)
    yield _Way("as it is", "step = hf.compile(step)", step, specs, batch, {}, 0)
    yield from _budgeted("memory_budget", "step", step, specs, batch, limit, 0)
    yield _Way("autocast", "step = hf.compile(hf.autocast(hf.bfloat16)(step))", low, specs, batch, {}, 1)
    yield from _budgeted("autocast and memory_budget", "hf.autocast(hf.bfloat16)(step)", low, specs, batch, limit, 1)
    if parts is not None:
        yield from _accumulated(parts, specs, batch, limit)


def _budgeted(
    name: str, target: str, step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, rank: int
) -> Iterator[_Way]:
    """Yield a step that computes again what does not fit, if it does not fit by itself."""
    memory = _report(step, specs).memory
    left = limit - (memory.peak - memory.temporaries)
    if memory.peak > limit * 0.8 and left > 0:
        yield _Way(
            name,
            f"step = hf.compile({target}, memory_budget={left})",
            step,
            specs,
            batch,
            {"memory_budget": left},
            rank,
        )


def _accumulated(parts: _Parts, specs: tuple[Any, ...], batch: int, limit: int) -> Iterator[_Way]:
    """Yield the step with the fewest parts of the batch that fit by prediction, or with the most if none do."""
    possible = [count for count in _PARTS if batch % count == 0 and batch > count]
    for count in possible:
        step = _in_parts(parts, count, len(specs))
        if count == possible[-1] or _report(step, specs).memory.peak <= limit * 0.95:
            places = tuple(range(len(specs)))
            code = (
                "gradients_of = hf.accumulate_gradients(\n"
                f"    loss, {count}, None, batch_argnums={places}, variables=model\n"
                ")\n\n"
                "@hf.compile\n"
                "def step(*batch):\n"
                "    value, gradients = gradients_of(*batch)\n"
                "    optimizer.update(gradients)\n"
                "    return value"
            )
            yield _Way(f"accumulation of {count} parts", code, step, specs, batch, {}, 0)
            return


def _in_parts(parts: _Parts, count: int, arguments: int) -> Callable[..., Any]:
    places = tuple(range(arguments))
    gradients_of = accumulate_gradients(parts.loss, count, None, batch_argnums=places, variables=parts.model)

    def step(*batch: Any) -> Any:
        value, gradients = gradients_of(*batch)
        parts.optimizer.update(gradients)
        return value

    return step


def _smaller(
    step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, plans: Sequence[tuple[int, Plan]]
) -> Iterator[_Way]:
    """Yield the step with the largest half, quarter and so on of the batch that fits, unless the whole batch does."""
    if plans[0][1].fits:
        return
    size = batch
    while size > 1:
        size //= 2
        smaller = _with_batch(specs, batch, size)
        if size == 1 or _report(step, smaller).memory.peak <= limit:
            way = _Way(
                f"a batch of {size}", f"step = hf.compile(step)  # of batches of {size}", step, smaller, size, {}, 9
            )
            if size == 1 or _costed(way, limit).fits:
                yield way
                return


def _report(step: Callable[..., Any], specs: tuple[Any, ...], **options: Any) -> Any:
    return CompiledFunction(step, **options).cost(*specs)


def _costed(way: _Way, limit: int) -> Plan:
    compiled = CompiledFunction(way.function, **way.options)
    peak = compiled.cost(*way.specs).against_xla().xla_peak
    report = compiled.cost(*way.specs)  # once more: a memory budget is met when the step is compiled
    return Plan(
        way.name, way.batch, way.code, report.memory.peak, peak, report.flops, seconds_on_cpu(report.total),
        peak <= limit,
    )  # fmt: skip


def _sized(step: Callable[..., Any], specs: tuple[Any, ...], limit: int) -> tuple[tuple[Any, ...], int]:
    """Return the arguments with a size for the batch, and that size."""
    shape: tuple[Any, ...] = getattr(specs[0], "shape", ()) if specs else ()
    if not shape:
        raise ArgumentError(
            message("advise: the first argument is a tensor or a hf.TensorSpec with the batch as its axis 0",
                    got=repr(specs[:1])[:80])
        )  # fmt: skip
    if isinstance(shape[0], int):
        return specs, shape[0]
    size = 1
    while size < _MOST and _report(step, _with_batch(specs, shape[0], 2 * size)).memory.peak <= limit:
        size *= 2
    return _with_batch(specs, shape[0], size), size


def _with_batch(specs: tuple[Any, ...], before: Any, size: int) -> tuple[Any, ...]:
    """Return specs of another batch in place of arguments whose axis 0 has the size of the batch."""

    def changed(one: Any) -> Any:
        shape: tuple[Any, ...] = getattr(one, "shape", ())
        if not shape or shape[0] != before:
            return one
        return make_spec((size, *shape[1:]), one.dtype)

    return tuple([changed(one) for one in specs])
