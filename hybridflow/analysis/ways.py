"""The ways to run a training step that `hf.advise` compares."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import jax

from hybridflow.analysis.memory import bytes_of
from hybridflow.core.attached import attached
from hybridflow.core.autocast import autocast
from hybridflow.core.dtypes import bfloat16
from hybridflow.core.mesh import Mesh
from hybridflow.core.spec import make_spec
from hybridflow.nested.accumulate import accumulate_gradients
from hybridflow.tracing.function import CompiledFunction

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
