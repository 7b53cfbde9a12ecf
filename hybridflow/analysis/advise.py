"""`hf.advise`: how a training step fits into a memory, with the figures of each way and the code that applies it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.memory import bytes_of, format_size
from hybridflow.core.attached import attached
from hybridflow.core.autocast import autocast
from hybridflow.core.dtypes import bfloat16
from hybridflow.core.errors import ArgumentError, LayoutError, MemoryBudgetError
from hybridflow.core.mesh import Mesh
from hybridflow.core.report import Report
from hybridflow.core.spec import make_spec
from hybridflow.ir.costs import seconds_on_cpu
from hybridflow.nested.accumulate import accumulate_gradients
from hybridflow.tracing.budget import size_in_bytes
from hybridflow.tracing.function import CompiledFunction

_MOST = 1 << 20
"""The largest batch that is tried."""


@dataclass(frozen=True)
class Plan:
    """A way to run a step.

    Attributes:
        name: what it does.
        batch: the size of its batch, on all devices together.
        code: the code that applies it.
        predicted: the bytes that a device needs at once, by hybridflow's prediction: all inputs, results and
            temporaries.
        peak: the same by XLA's own figures for the compiled step.
        flops: the floating-point operations of a call, on all devices together.
        seconds: a rough time of a call, by its operations and the bytes they move, if each device is a processor; what
            devices send one another is not in it.
        fits: whether `peak` is within the memory.
    """

    name: str
    batch: int
    code: str
    predicted: int
    peak: int
    flops: int
    seconds: float
    fits: bool
    devices: int = 1
    """How many devices share the batch."""


@dataclass(frozen=True, repr=False)
class Advice(Report):
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
            table.add_row(
                Text(plan.name), str(plan.batch), format_size(plan.predicted), format_size(plan.peak),
                f"{plan.flops:,}", f"{plan.seconds:.3g} s", "yes" if plan.fits else "no",
            )
        return table

    def parts(self) -> list[Any]:
        """Return the table, the notes, and the code of the best plan."""
        best = self.best
        return [self.table(), *self.notes, f"{best.name}:\n\n{best.code}" if best else "Nothing fits."]


def advise(
    step: Callable[..., Any],
    *specs: Any,
    memory: int | str,
    loss: Callable[..., Any] | None = None,
    model: Any = None,
    optimizer: Any = None,
    devices: int | None = None,
) -> Advice:
    """Return ways to run a training step within a memory.

    They are: recomputation, low precision, accumulation of gradients, several devices, smaller batches. Nothing runs.
    Each plan is compiled, and fits if XLA's own figures say so: all inputs and results, Variables included, and
    temporaries.

    Args:
        step: a function of a batch that trains a model.
        specs: its arguments: tensors, or `hf.TensorSpec` in their place. Axis 0 of the first one is the batch; other
            arguments with an axis 0 of that size belong to it. If it is None, the largest power of two that fits is
            taken.
        memory: the bytes that there are, on each device: a number, or a text such as ``"8 GiB"``.
        loss: a function of the same batch that returns the mean loss; with it, `model` and `optimizer`, accumulation of
            gradients over parts of the batch is a plan too.
        model: the module that the step trains. With it, plans compute its blocks again (`Module.recompute`), and share
            the batch and its Variables among devices (FSDP).
        optimizer: what takes the gradients of `loss`.
        devices: the largest number of devices that a plan may use; by default all that there are.

    Returns:
        The plans: ``.best``, ``.plans``; it prints as a table.

    Raises:
        ArgumentError: `memory` is no size, `loss` and `optimizer` are not given together and with `model`, or `devices`
            is less than 1.
        LayoutError: there are fewer devices than `devices`.

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
    parts = _parts(loss, model, optimizer)
    if devices is not None and devices < 1:
        raise ArgumentError(f"advise: devices={devices}, which is less than 1")
    if devices is not None:
        Mesh({"data": devices})  # raises if there are fewer
    function = step._function if isinstance(step, CompiledFunction) else step
    specs, batch = _sized(function, specs, limit)
    notes: list[str] = []
    plans: list[tuple[int, Plan]] = []
    for way in ways_to_run(function, specs, batch, limit, parts, devices):
        if "memory_budget" in way.options and any(plan.fits and rank <= way.rank for rank, plan in plans):
            continue  # it costs many compilations, and a plan that is no worse fits
        try:
            plans.append((way.rank, _costed(way, limit)))
        except (MemoryBudgetError, LayoutError) as why:
            notes.append(f"{way.name}: {str(why).splitlines()[0]}")
    plans += [(9, _costed(way, limit)) for way in _smaller(function, specs, batch, limit, plans)]
    plans.sort(key=lambda one: (not one[1].fits, one[0], one[1].seconds))
    return Advice(tuple([plan for _, plan in plans]), limit, tuple(notes))


def _parts(loss: Any, model: Any, optimizer: Any) -> Parts:
    given = {"loss": loss, "model": model, "optimizer": optimizer}
    if (loss is None) != (optimizer is None) or (loss is not None and model is None):
        raise ArgumentError(
            "advise: loss and optimizer are given together, with model, for plans that accumulate gradients",
            got=", ".join([name for name, one in given.items() if one is not None])
        )
    return Parts(loss, model, optimizer)


def _smaller(
    step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, plans: Sequence[tuple[int, Plan]]
) -> Iterator[Way]:
    """Yield the step with the largest half, quarter and so on of the batch that fits, unless the whole batch does."""
    if plans[0][1].fits:
        return
    size = batch
    while size > 1:
        size //= 2
        smaller = with_batch(specs, batch, size)
        if size == 1 or report_of_step(step, smaller).memory.peak <= limit:
            way = Way(
                f"a batch of {size}", f"step = hf.compile(step)  # of batches of {size}", step, smaller, size, {}, 9
            )
            if size == 1 or _costed(way, limit).fits:
                yield way
                return


def _costed(way: Way, limit: int) -> Plan:
    with way.applied():
        compiled = CompiledFunction(way.function, **way.options)
        peak = compiled.cost(*way.specs).against_xla().xla_peak
        report = compiled.cost(*way.specs)  # once more: a memory budget is met when the step is compiled
        predicted = predicted_peak(way, report)
    return Plan(
        way.name, way.batch, way.code, predicted, peak, report.flops, seconds_on_cpu(report.total) / way.devices,
        peak <= limit, way.devices,
    )


def _sized(step: Callable[..., Any], specs: tuple[Any, ...], limit: int) -> tuple[tuple[Any, ...], int]:
    """Return the arguments with a size for the batch, and that size."""
    shape: tuple[Any, ...] = getattr(specs[0], "shape", ()) if specs else ()
    if not shape:
        raise ArgumentError("advise: the first argument is a tensor or a hf.TensorSpec with the batch as its axis 0",
                            got=repr(specs[:1])[:80])
    if isinstance(shape[0], int):
        return specs, shape[0]
    size = 1
    while size < _MOST and report_of_step(step, with_batch(specs, shape[0], 2 * size)).memory.peak <= limit:
        size *= 2
    return with_batch(specs, shape[0], size), size


# -- the ways to run a training step that `hf.advise` compares --------------------------------------------------------

_PARTS = (2, 4, 8, 16, 32, 64)
"""The numbers of micro-batches that are tried."""


class Way(NamedTuple):
    """A way to run a step that has not been costed yet.

    Attributes:
        name, code: as in `Plan`.
        function: the step, changed.
        specs: the arguments.
        batch: the size of the batch.
        options: of `hf.compile`.
        rank: what is preferred: smaller numbers.
        devices: how many devices share the batch.
        applied: returns the context in which the function is traced.
    """

    name: str
    code: str
    function: Callable[..., Any]
    specs: tuple[Any, ...]
    batch: int
    options: dict[str, Any]
    rank: int
    devices: int = 1
    applied: Callable[[], AbstractContextManager[None]] = nullcontext


class Parts(NamedTuple):
    """What plans need beside the step; None if it was not given."""

    loss: Callable[..., Any] | None
    model: Any
    optimizer: Any


def ways_to_run(
    step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, parts: Parts, devices: int | None
) -> Iterator[Way]:
    """Yield the ways that keep the batch."""
    low = autocast(bfloat16)(step)
    yield Way("as it is", "step = hf.compile(step)", step, specs, batch, {}, 0)
    if parts.model is not None:
        yield from _recomputed(parts.model, step, specs, batch)
    yield from _budgeted("memory_budget", "step", step, specs, batch, limit, 0)
    if parts.model is not None:
        yield from _sharded(parts.model, step, specs, batch, limit, devices)
    yield Way("autocast", "step = hf.compile(hf.autocast(hf.bfloat16)(step))", low, specs, batch, {}, 2)
    yield from _budgeted("autocast and memory_budget", "hf.autocast(hf.bfloat16)(step)", low, specs, batch, limit, 2)
    if parts.loss is not None:
        yield from _accumulated(parts.loss, parts, specs, batch, limit)


def _recomputed(model: Any, step: Callable[..., Any], specs: tuple[Any, ...], batch: int) -> Iterator[Way]:
    """Yield the step of a model whose blocks are computed again for their gradients, if it has blocks."""
    blocks = _blocks(model)
    if not blocks:
        return
    lists = [path.rpartition(".")[0] for path in blocks]
    patterns = dict.fromkeys([f"{path}.*" if path else "[0-9]*" for path in lists])
    lines = [f'model.recompute("{pattern}")\n' for pattern in patterns]
    yield Way(
        f"{len(blocks)} checkpoints", f"{''.join(lines)}step = hf.compile(step)", step, specs, batch, {}, 0,
        applied=lambda: _policies_kept(model, patterns),
    )


def _blocks(model: Any) -> list[str]:
    """Return the paths of a model's blocks: the outermost members of lists that are more than lists of such members."""
    modules = model.named_modules()
    members = [path for path in modules if path.rpartition(".")[2].isdecimal()]
    found = {path: [other for other in modules if other.startswith(f"{path}.")] for path in members}
    blocks = [path for path, inside in found.items() if any(not _is_member(path, one, found) for one in inside)]
    return [path for path in blocks if not any(path.startswith(f"{other}.") for other in blocks)]


def _is_member(path: str, other: str, found: Mapping[str, list[str]]) -> bool:
    """Whether a module inside of another one is in one of its direct members, which has modules inside itself."""
    first = other[len(path) + 1 :].split(".")[0]
    return bool(found.get(f"{path}.{first}"))


@contextmanager
def _policies_kept(model: Any, patterns: Iterable[str]) -> Generator[None]:
    """Compute modules again in the block; afterwards each does as before."""
    before = [(one, vars(one).get("recomputed")) for one in model.named_modules().values()]
    try:
        for pattern in patterns:
            model.recompute(pattern)
        yield
    finally:
        for one, policy in before:
            if policy is None:
                vars(one).pop("recomputed", None)
            else:
                one.recomputed = policy


def _sharded(
    model: Any, step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, devices: int | None
) -> Iterator[Way]:
    """Yield the step on the fewest devices that fit by prediction, or on the most if none do."""
    most = len(jax.devices()) if devices is None else devices
    counts = [1 << power for power in range(1, most.bit_length()) if 1 << power < most] + [most] * (most > 1)
    for count in counts:
        way = _on_devices(model, step, specs, batch, count)
        if count == most or predicted_peak(way, report_of_step(step, specs)) <= limit * 0.95:
            yield way
            return


def _on_devices(model: Any, step: Callable[..., Any], specs: tuple[Any, ...], batch: int, count: int) -> Way:
    mesh = Mesh({"data": count})
    code = (
        f'mesh = hf.Mesh({{"data": {count}}})\n'
        'hf.distribute.shard(model, mesh, fsdp="data")\n'
        'step = hf.compile(step, mesh=mesh, batch="data")'
    )
    return Way(
        f"FSDP over {count} devices", code, step, specs, batch, {"mesh": mesh, "batch": "data"}, 1, count,
        lambda: _laid_out(model, mesh),
    )


@contextmanager
def _laid_out(model: Any, mesh: Mesh) -> Generator[None]:
    """Let functions see the Variables of a model on a mesh in the block; their values stay where they are."""
    placements = attached("fsdp_placements")(model, mesh, "data")
    before = [(variable, variable._placement) for variable, _ in placements]
    try:
        for variable, placement in placements:
            variable._placement = placement
        yield
    finally:
        for variable, placement in before:
            variable._placement = placement


def predicted_peak(way: Way, report: Any) -> int:
    """Return the bytes that a device needs at once.

    Args:
        way: the way.
        report: the cost of a call.
    """
    if way.devices == 1:
        return report.memory.peak
    share = with_batch(way.specs, way.batch, -(-way.batch // way.devices))
    own = report_of_step(way.function, share).memory
    split = sum(bytes_of(one) for one in (own.parameters, own.state))
    return bytes_of(own.arguments) + bytes_of(own.results) + own.temporaries + -(-split // way.devices)


def _budgeted(
    name: str, target: str, step: Callable[..., Any], specs: tuple[Any, ...], batch: int, limit: int, rank: int
) -> Iterator[Way]:
    """Yield a step that computes again what does not fit, if it does not fit by itself."""
    memory = report_of_step(step, specs).memory
    left = limit - (memory.peak - memory.temporaries)
    if memory.peak > limit * 0.8 and left > 0:
        yield Way(
            name,
            f"step = hf.compile({target}, memory_budget={left})",
            step,
            specs,
            batch,
            {"memory_budget": left},
            rank,
        )


def _accumulated(
    loss: Callable[..., Any], parts: Parts, specs: tuple[Any, ...], batch: int, limit: int
) -> Iterator[Way]:
    """Yield a step that splits the batch into as few parts as are predicted to fit into memory.

    If no number of parts fits, it is the step with the most.
    """
    possible = [count for count in _PARTS if batch % count == 0 and batch > count]
    for count in possible:
        step = _in_parts(loss, parts, count, len(specs))
        if count == possible[-1] or report_of_step(step, specs).memory.peak <= limit * 0.95:
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
            yield Way(f"accumulation of {count} parts", code, step, specs, batch, {}, 0)
            return


def _in_parts(loss: Callable[..., Any], parts: Parts, count: int, arguments: int) -> Callable[..., Any]:
    places = tuple(range(arguments))
    gradients_of = accumulate_gradients(loss, count, None, batch_argnums=places, variables=parts.model)

    def step(*batch: Any) -> Any:
        value, gradients = gradients_of(*batch)
        parts.optimizer.update(gradients)
        return value

    return step


def report_of_step(step: Callable[..., Any], specs: tuple[Any, ...]) -> Any:
    """Return the cost of a call of a step on one device, which nothing compiles."""
    return CompiledFunction(step).cost(*specs)


def with_batch(specs: tuple[Any, ...], before: Any, size: int) -> tuple[Any, ...]:
    """Return specs of another batch in place of arguments whose axis 0 has the size of the batch."""

    def changed(one: Any) -> Any:
        shape: tuple[Any, ...] = getattr(one, "shape", ())
        if not shape or shape[0] != before:
            return one
        return make_spec((size, *shape[1:]), one.dtype)

    return tuple([changed(one) for one in specs])
