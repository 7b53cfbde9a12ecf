"""`bind`: the function that every operation goes through, eager or traced."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from hybridflow.backend.host import run_quietly, runner, runner_now
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.backend.parallel import LARGE
from hybridflow.core.attrs import attrs_key
from hybridflow.core.context import Context, context_now, current
from hybridflow.core.device import default_is_host, device_of, device_string, is_host, makes_on_host
from hybridflow.core.dims import SIZES
from hybridflow.core.dtypes import LOW_PRECISION, is_differentiable
from hybridflow.core.errors import DeviceError, HybridflowError
from hybridflow.core.forked import require_xla
from hybridflow.core.inline import inlined
from hybridflow.core.node import FOREVER, Edge, user_place
from hybridflow.core.op import No, Op, Stops
from hybridflow.core.out_of_memory import explained, ran_out, read_array
from hybridflow.core.recording import recorded_node
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tensor import Tensor, describe, host_array, leaked, make_tensor

ANY_DTYPE = frozenset({"layout", "random"})
"""Traits of ops whose kernels also suit low precision: they only move elements, or let XLA compute the numbers."""
_ndarray = np.ndarray
_NO_ATTRS: dict[str, Any] = {}


@inlined(make_tensor)
def bind(  # noqa: C901 (every call would cost)
    op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any] = _NO_ATTRS
) -> Any:
    """Apply an op to tensors: execute it, or add it to the graph being traced.

    Args:
        op: the record.
        inputs: tensors, already converted and promoted.
        attrs: hashable attributes; ``residuals=True`` asks for the hidden outputs too, if the op has any.

    Returns:
        The output tensor, or a tuple of them if the op has several visible outputs.
    """
    context = context_now()
    if context is not None and context.indirect:
        if context.autocast is not None:
            inputs = context.autocast(op, inputs)
        if context.binder is not None:
            return context.binder.bind(op, inputs, attrs)
    kernel = op.fast_kernel
    if kernel is None or not inputs:
        return bind_eagerly(op, inputs, attrs, context)
    values = [tensor._value for tensor in inputs]
    dtypes = 1
    for value in values:
        if type(value) is not _ndarray:
            return bind_eagerly(op, inputs, attrs, context)
        dtypes = dtypes << 10 | value.dtype.num
        if value.size >= LARGE:
            kernel = op.large_kernel
    if dtypes not in op.accepted:  # `execute` adds the dtypes that suit both the op and its kernel
        return bind_eagerly(op, inputs, attrs, context)
    try:
        run = (runner_now() or runner()) if context is None else context.run
        y = run(kernel, *values, **attrs)
    except Exception:
        # The general path runs the op again and raises a better error.
        return bind_eagerly(op, inputs, attrs, context)
    if type(y) is not _ndarray:
        y = as_arrays(y)
    for tensor in inputs:
        edge = tensor._edge
        if edge is not None:
            start = FOREVER if context is None else context.start
            if edge[0].stamp >= start and (start != FOREVER or type(op.vjp) is not Stops):
                return record(op, _followed(inputs, start), attrs, values, y, "host")
    if type(y) is tuple:
        return tuple([make_tensor(output) for output in y])
    return make_tensor(y)


Execute = Callable[[Op, tuple[Tensor, ...], dict[str, Any]], tuple[Any, list[Any], str]]
"""A function that returns an op's raw outputs, its raw inputs and the backend, as `execute` does."""


def bind_eagerly(
    op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any], context: Context | None, run: Execute | None = None
) -> Any:
    """Bind an op eagerly, wherever its values are; `run` replaces `execute`."""
    edges = connected_edges(op, inputs, context)
    whole = False
    if op.saves.hidden:
        whole = bool(attrs.get("residuals"))
        attrs = {**attrs, "residuals": whole or edges is not None}
    outputs, values, backend = (run or execute)(op, inputs, attrs)
    if edges is not None:
        return record(op, edges, attrs, values, outputs, backend, whole)
    if type(outputs) is tuple:
        return tuple([make_tensor(output) for output in outputs])
    return make_tensor(outputs)


def connected_edges(
    op: Op, inputs: tuple[Tensor, ...], context: Context | None
) -> tuple[Edge | None, ...] | None:
    """Return the inputs' edges that the context follows, or None if the op's outputs need no recording."""
    start = FOREVER if context is None else context.start
    edges = _followed(inputs, start)
    return edges if any(edges) and (start != FOREVER or type(op.vjp) is not Stops) else None


def _followed(inputs: tuple[Tensor, ...], start: int) -> tuple[Edge | None, ...]:
    """Return the edge of each input if its node's stamp is at least `start`, else None."""
    return tuple([t._edge if t._edge is not None and t._edge[0].stamp >= start else None for t in inputs])


def _passes(op: Op, outputs: tuple[Any, ...]) -> bool:
    """Whether an op's outputs require a gradient if its inputs do."""
    context = context_now()
    if context is not None and not context.grad:
        return False
    return type(op.vjp) is not Stops and any(is_differentiable(dtype) for _, dtype in outputs)


@inlined(recorded_node, make_tensor)
def record(
    op: Op, edges: tuple[Edge | None, ...], attrs: dict[str, Any], values: list[Any], outputs: Any, backend: str,
    whole: bool = False,
) -> Any:
    """Make the node of an executed op, and return its visible outputs, or all if `whole`, connected to it."""
    saves = op.saves
    many = type(outputs) is tuple
    kept: Container[int]
    saves_y = saves.y
    if saves.each is not None and None in edges:
        kept = saves.read_by([edge is not None for edge in edges])
        saves_y = -1 in kept
    elif saves.x == "all" or saves.x == "rest":
        kept = range(saves.x == "rest", len(values))
    else:
        kept = saves.x
    saved: list[Any] = [outputs if saves_y else None]
    specs: list[Any] | None = None
    for index, value in enumerate(values):
        if index in kept:
            saved.append(value)
            continue
        saved.append(None)
        if edges[index] is None:
            if specs is None:
                specs = [None] * len(values)
            specs[index] = (value.shape, value.dtype, None if value.ndim else value)
    shapes = tuple([(y.shape, y.dtype) for y in outputs]) if many else ((outputs.shape, outputs.dtype),)
    lasting = False
    for edge in edges:
        if edge is not None and edge[0].stamp is FOREVER:
            lasting = _passes(op, shapes)
            break
    where = user_place(4)
    kept_values = tuple(saved)
    node = recorded_node(op, edges, attrs, shapes, where, kept_values, specs, backend, lasting)
    if not many:
        return make_tensor(outputs, (node, 0))
    hidden = op.hidden_outputs(attrs)
    if hidden and not saves.y:
        visible = len(outputs) - hidden
        node.saved = ((None,) * visible + outputs[visible:], *kept_values[1:])
    return visible_outputs(0 if whole else hidden, tuple([make_tensor(y, (node, i)) for i, y in enumerate(outputs)]))


def visible_outputs(hidden: int, outputs: tuple[Tensor, ...]) -> Any:
    """Drop the hidden outputs; if a single visible one is left, return it without a tuple."""
    if not hidden:
        return outputs
    return outputs[0] if len(outputs) == hidden + 1 else outputs[:-hidden]


def execute(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> tuple[Any, list[Any], str]:
    """Run an op on the values of tensors; return its raw outputs, the raw inputs and the backend used."""
    values = [tensor._value for tensor in inputs]
    kernel = op.kernel
    good = type(kernel) is not No
    low = False
    dtypes = 1
    for index, value in enumerate(values):
        if type(value) is not _ndarray:
            values[index] = value = raw_input(inputs[index])
            good = good and type(value) is _ndarray
        number = value.dtype.num
        dtypes = dtypes << 10 | number
        if good and number in LOW_PRECISION and ANY_DTYPE.isdisjoint(op.traits):
            good = False
    if not good or not (values or makes_on_host()):
        return _run_lowered(op, inputs, values, attrs), values, "xla"
    if dtypes not in op.accepted:
        # NumPy takes more dtypes than the op does: the op's shape rule checks each combination once.
        op.infer(*[tensor.spec for tensor in inputs], **attrs)
        op.accepted.add(dtypes)
    try:
        outputs = run_quietly(cast(Any, kernel), *values, **attrs)
    except HybridflowError:
        raise
    except Exception as error:
        _explain(op, inputs, attrs, error)
        if ran_out(error):
            raise explained(f"{op.name}({', '.join(map(describe, inputs))})", error) from error
        raise
    return (outputs if type(outputs) is _ndarray else as_arrays(outputs)), values, "xla" if low else "host"


def as_arrays(outputs: Any) -> Any:
    """Turn NumPy's results into arrays: NumPy returns 0-d results as scalars."""
    if type(outputs) is _ndarray:
        return outputs
    if isinstance(outputs, tuple):
        items = cast("tuple[Any, ...]", outputs)
        return tuple([item if type(item) is _ndarray else np.asarray(item) for item in items])
    return outputs if isinstance(outputs, jax.Array) else np.asarray(outputs)


def raw_input(tensor: Tensor) -> Any:
    """Return a tensor's concrete value: a NumPy array on the CPU, elsewhere the device's array."""
    value = tensor._value
    if type(value) is _ndarray:
        return value  # the same tensor may be an input twice
    if value is None:
        node = cast(Edge, tensor._edge)[0]
        if node.scope is not None:
            raise leaked(tensor)
    return host_array(tensor) if is_host(device_of(value)) else value


def _explain(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any], error: Exception) -> None:
    """Raise the better message of the op's shape rule, if that rule also finds an error."""
    try:
        op.infer(*[tensor.spec for tensor in inputs], **attrs)
    except HybridflowError as better:
        raise better from error


_LARGE = 1 << 14
_FULLY_COMPILED = frozenset({"nested", "random", "foreign"})


def quick_to_compile(op: Op, values: Iterable[Any]) -> bool:
    """Whether a single op is compiled with options that save compile time but run slower.

    Large operands are excluded, since the slower code would cost too much there. So are ops that hold a graph, foreign
    functions, and random draws: they must be compiled as they are inside a graph, because other optimizations
    contract other products and give other roundings.
    """
    return op.traits.isdisjoint(_FULLY_COMPILED) and not any(value.size >= _LARGE for value in values)


def jitted(op: Op, attrs: dict[str, Any], values: Iterable[Any]) -> Callable[..., Any]:
    """Return the op's lowering, compiled on its own and cached by attributes.

    The cache is the op's, or that of a graph among the attributes.
    """
    cache = op.jitted
    for value in attrs.values():
        if hasattr(value, "executables"):
            cache = value.executables
    quick = quick_to_compile(op, values)
    key: Any = (op.name, quick, SETTINGS.matmul_precision, attrs_key(attrs))
    around = SIZES.get()
    if around is not None and cache is not op.jitted:
        key = (*key, *around[1].items())  # nested graphs may use sizes that their inputs do not determine
    lowered = cache.get(key)
    if lowered is None:
        options = compiler_options(eager=quick)
        lowered = cache[key] = jax.jit(partial(op.lower, **attrs), compiler_options=options)
    return lowered


def _run_lowered(op: Op, inputs: tuple[Tensor, ...], values: list[Any], attrs: dict[str, Any]) -> Any:
    op.infer(*[tensor.spec for tensor in inputs], **attrs)
    require_xla(op.name)
    _check_devices(op, inputs, values)
    on_host = all(type(value) is _ndarray for value in values) if values else makes_on_host()
    chosen = None if values else current().device
    with enable_x64(), nullcontext() if chosen is None else jax.default_device(chosen):
        if on_host and not default_is_host():
            cpu = jax.local_devices(backend="cpu")[0]
            values = [jax.device_put(value, cpu) for value in values]
        outputs = jitted(op, attrs, values)(*values)
    if isinstance(outputs, list | tuple):
        items = tuple(cast("list[Any]", outputs))
        return tuple([read_array(y) for y in items]) if on_host else items
    return read_array(outputs) if on_host else outputs


def _check_devices(op: Op, inputs: tuple[Tensor, ...], values: list[Any]) -> None:
    """Raise if inputs with more than one element live on different devices."""
    devices = {device_string(value) for value in values if value.ndim}
    if len(devices) > 1:
        raise DeviceError(f"{op.name}: inputs on different devices: {', '.join(sorted(devices))}",
                          got=f"{op.name}({', '.join(map(describe, inputs))})", hint="Move one with .to(device).")


def run_raw(op: Op, values: list[Any], attrs: dict[str, Any]) -> Any:
    """Run an op on bare arrays, without recording it."""
    return execute(op, tuple([make_tensor(value) for value in values]), attrs)[0]
