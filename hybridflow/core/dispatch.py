"""`bind`: the one door through which every operation goes, eager or traced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from hybridflow.backend.host import LOCAL, run_quietly
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.context import CONTEXT, NOTHING_RECORDED, Context
from hybridflow.core.device import default_is_host, device_of, device_string
from hybridflow.core.dtypes import LOW_PRECISION
from hybridflow.core.errors import DeviceError, HybridflowError, LeakError, message
from hybridflow.core.methods import TensorMethods
from hybridflow.core.node import Edge, Node, is_internal, next_sequence, user_place
from hybridflow.core.op import No, Op, on_method
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor, describe, host_array, leak_text, make_tensor

_new = object.__new__
_ndarray = np.ndarray
_NO_ATTRS: dict[str, Any] = {}


def bind(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any] = _NO_ATTRS) -> Any:
    """Apply an op to tensors: execute it, or add it to the graph being traced.

    Args:
        op: the record.
        inputs: tensors, already converted and promoted.
        attrs: hashable attributes.

    Returns:
        The output tensor, or a tuple of them if the op has several visible outputs.
    """
    context = CONTEXT.get()
    if context is not None and context.tracer is not None:
        return context.tracer.bind(op, inputs, attrs)
    kernel = op.fast_kernel
    if kernel is None or not inputs:
        return _bind_general(op, inputs, attrs, context)
    values = [tensor._value for tensor in inputs]
    for value in values:
        if type(value) is not _ndarray or value.dtype.num in LOW_PRECISION:
            return _bind_general(op, inputs, attrs, context)
    try:
        y = LOCAL.run(kernel, *values, **attrs)
    except Exception:
        # The general way runs it again and finds the words for what is wrong.
        return _bind_general(op, inputs, attrs, context)
    if type(y) is not _ndarray:
        y = as_arrays(y)
    if context is not None:
        start = context.start
        for tensor in inputs:
            edge = tensor._edge
            if edge is not None and edge[0].stamp >= start:
                if len(values) == 1 and type(y) is _ndarray:
                    # `record`, spelled out for the commonest case: one input, one output.
                    saves = op.saves
                    node = _new(Node)
                    node.op = op
                    node.inputs = (edge,)
                    node.attrs = attrs
                    node.outputs = ((y.shape, y.dtype),)
                    frame = sys._getframe(2)
                    node.where = user_place(3) if is_internal(frame) else (frame.f_code, frame.f_lasti)
                    node.saved = (y if saves.y else None, values[0] if saves.x else None)
                    node.input_specs = None
                    node.backend = "host"
                    node.scope = None
                    node.sequence = node.stamp = next_sequence()
                    result = _new(Tensor)
                    result._value = y
                    result._alt = None
                    result._edge = (node, 0)
                    return result
                edges = tuple(
                    [t._edge if t._edge is not None and t._edge[0].stamp >= start else None for t in inputs]
                )
                return record(op, edges, attrs, values, y, "host")
    if type(y) is tuple:
        return tuple([make_tensor(output) for output in y])
    result = _new(Tensor)
    result._value = y
    result._alt = None
    result._edge = None
    return result


def _bind_general(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any], context: Context | None) -> Any:
    """Bind an op eagerly, wherever its values are."""
    start = NOTHING_RECORDED if context is None else context.start
    edges = tuple([t._edge if t._edge is not None and t._edge[0].stamp >= start else None for t in inputs])
    connected = any(edges)
    if op.saves.hidden:
        attrs = {**attrs, "residuals": connected}
    outputs, values, backend = execute(op, inputs, attrs)
    if connected:
        return record(op, edges, attrs, values, outputs, backend)
    if type(outputs) is tuple:
        return tuple([make_tensor(output) for output in outputs])
    return make_tensor(outputs)


def record(
    op: Op, edges: tuple[Edge | None, ...], attrs: dict[str, Any], values: list[Any], outputs: Any, backend: str
) -> Any:
    """Make the node of an executed op and return its visible outputs, connected to it."""
    saves = op.saves
    many = type(outputs) is tuple
    node = _new(Node)
    node.op = op
    node.inputs = edges
    node.attrs = attrs
    node.outputs = tuple([(y.shape, y.dtype) for y in outputs]) if many else ((outputs.shape, outputs.dtype),)
    node.where = user_place(4)
    kept = saves.x
    saved: list[Any] = [outputs if saves.y else None]
    specs: list[Any] | None = None
    for index, value in enumerate(values):
        if kept == "all" or index in kept:
            saved.append(value)
            continue
        saved.append(None)
        if edges[index] is None:
            if specs is None:
                specs = [None] * len(values)
            specs[index] = (value.shape, value.dtype)
    node.saved = tuple(saved)
    node.input_specs = specs
    node.backend = backend
    node.scope = None
    node.sequence = node.stamp = next_sequence()
    if not many:
        result = _new(Tensor)
        result._value = outputs
        result._alt = None
        result._edge = (node, 0)
        return result
    hidden = op.hidden_outputs(attrs)
    if hidden and not saves.y:
        visible = len(outputs) - hidden
        node.saved = ((None,) * visible + outputs[visible:], *node.saved[1:])
    return visible_outputs(hidden, tuple([make_tensor(y, (node, i)) for i, y in enumerate(outputs)]))


def visible_outputs(hidden: int, outputs: tuple[Tensor, ...]) -> Any:
    """Drop the hidden outputs; if that leaves a single one of several, it comes bare."""
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
            values[index] = value = _raw(inputs[index])
            good = good and type(value) is _ndarray
        number = value.dtype.num
        dtypes = dtypes << 10 | number
        if good and number in LOW_PRECISION and "layout" not in op.traits:
            good = False
    if not good or not (values or default_is_host()):
        return _run_lowered(op, inputs, values, attrs), values, "xla"
    if dtypes not in op.accepted:
        # NumPy takes more dtypes than the op does: its shape rule judges each combination once.
        if "dynamic_shape" not in op.traits:
            op.infer(*[tensor.spec for tensor in inputs], **attrs)
        op.accepted.add(dtypes)
    try:
        outputs = run_quietly(cast(Any, kernel), *values, **attrs)
    except HybridflowError:
        raise
    except Exception as error:
        _explain(op, inputs, attrs, error)
        raise
    return (outputs if type(outputs) is _ndarray else as_arrays(outputs)), values, "xla" if low else "host"


def as_arrays(outputs: Any) -> Any:
    """Make what NumPy returned arrays: 0-d results come as scalars."""
    if type(outputs) is _ndarray:
        return outputs
    if isinstance(outputs, tuple):
        items = cast("tuple[Any, ...]", outputs)
        return tuple([item if type(item) is _ndarray else np.asarray(item) for item in items])
    return outputs if isinstance(outputs, jax.Array) else np.asarray(outputs)


def _raw(tensor: Tensor) -> Any:
    """Return a concrete value that is not yet a NumPy array: on the CPU its view, elsewhere the device's array."""
    value = tensor._value
    if value is None:
        node = cast(Edge, tensor._edge)[0]
        if node.scope is not None:
            raise LeakError(leak_text(tensor))
    return host_array(tensor) if device_of(value).platform == "cpu" else value


def _explain(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any], error: Exception) -> None:
    """Let the op's own shape rule raise its better message, if the kernel failed for a reason it knows."""
    try:
        op.infer(*[tensor.spec for tensor in inputs], **attrs)
    except HybridflowError as better:
        raise better from error


def jitted(op: Op, attrs: dict[str, Any]) -> Callable[..., Any]:
    """Return the op's lowering, compiled on its own; cached by attributes (and on a graph attribute itself)."""
    cache = op.jitted
    for value in attrs.values():
        if hasattr(value, "executables"):
            cache = value.executables
    key = (op.name, *attrs.items())
    found = cache.get(key)
    if found is None:
        # A draw is compiled as it would be in a graph: other optimisations contract other products.
        options = compiler_options(eager=not (op.has("nested") or op.has("random")))
        found = cache[key] = jax.jit(partial(op.lower, **attrs), compiler_options=options)
    return found


def _run_lowered(op: Op, inputs: tuple[Tensor, ...], values: list[Any], attrs: dict[str, Any]) -> Any:
    if "dynamic_shape" not in op.traits:
        op.infer(*[tensor.spec for tensor in inputs], **attrs)
    _check_devices(op, inputs, values)
    on_host = all(type(value) is _ndarray for value in values) and (bool(values) or default_is_host())
    with enable_x64():
        if on_host and not default_is_host():
            cpu = jax.devices("cpu")[0]
            values = [jax.device_put(value, cpu) for value in values]
        outputs = jitted(op, attrs)(*values)
    if isinstance(outputs, list | tuple):
        items = cast("tuple[Any, ...]", tuple(cast(Any, outputs)))
        return tuple([np.asarray(y) for y in items]) if on_host else items
    return np.asarray(outputs) if on_host else outputs


def _check_devices(op: Op, inputs: tuple[Tensor, ...], values: list[Any]) -> None:
    """Raise if inputs with more than one element live on different devices."""
    places = {device_string(value) for value in values if value.ndim}
    if len(places) > 1:
        raise DeviceError(
            message(
                f"{op.name}: inputs on different devices: {', '.join(sorted(places))}",
                got=f"{op.name}({', '.join(map(describe, inputs))})",
                hint="Move one with .to(device).",
            )
        )


def run_raw(op: Op, values: list[Any], attrs: dict[str, Any]) -> Any:
    """Run an op on bare arrays, outside the recording."""
    return execute(op, tuple([make_tensor(value) for value in values]), attrs)[0]


# -- operators ----------------------------------------------------------------------------------------------------


def _fast_dtypes(op: Op) -> frozenset[int]:
    """Return the dtypes (by number) that the kernel takes as they are and NumPy is good at."""
    good: set[int] = set()
    for dtype in map(np.dtype, "i1 i2 i4 i8 u1 u2 u4 u8 f4 f8".split()):
        spec = make_spec((1, 1), dtype)
        try:
            op.infer(spec, spec)
        except HybridflowError:
            continue
        good.add(dtype.num)
    return frozenset(good)


def _binary_method(op: Op, public: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Make an operator: two host tensors of one dtype skip everything that cannot concern them."""
    kernel = cast(Callable[..., Any], op.kernel)
    saves = op.saves
    save_a, save_b, save_y = saves.keeps(0), saves.keeps(1), saves.y
    fast: frozenset[int] | None = None

    def operator(self: Any, other: Any) -> Any:
        nonlocal fast
        if type(other) is not Tensor or type(self) is not Tensor:
            return public(self, other) if _operand(other) else NotImplemented
        a = self._value
        b = other._value
        context = CONTEXT.get()
        if (
            type(a) is not _ndarray
            or type(b) is not _ndarray
            or a.dtype is not b.dtype
            or (context is not None and context.tracer is not None)
        ):
            return public(self, other)
        if fast is None:
            fast = _fast_dtypes(op)
        if a.dtype.num not in fast:
            return public(self, other)
        try:
            y = LOCAL.run(kernel, a, b)
        except ValueError:
            return public(self, other)
        if type(y) is not _ndarray:
            y = np.asarray(y)
        result = _new(Tensor)
        result._value = y
        result._alt = None
        if context is None:
            result._edge = None
            return result
        start = context.start
        edge_a = self._edge
        if edge_a is not None and edge_a[0].stamp < start:
            edge_a = None
        edge_b = other._edge
        if edge_b is not None and edge_b[0].stamp < start:
            edge_b = None
        if edge_a is None and edge_b is None:
            result._edge = None
            return result
        node = _new(Node)
        node.op = op
        node.inputs = (edge_a, edge_b)
        node.attrs = _NO_ATTRS
        node.outputs = ((y.shape, y.dtype),)
        frame = sys._getframe(1)
        node.where = (frame.f_code, frame.f_lasti)
        node.saved = (y if save_y else None, a if save_a else None, b if save_b else None)
        if (edge_a is None and not save_a) or (edge_b is None and not save_b):
            node.input_specs = ((a.shape, a.dtype), (b.shape, b.dtype))
        else:
            node.input_specs = None
        node.backend = "host"
        node.scope = None
        node.sequence = node.stamp = next_sequence()
        result._edge = (node, 0)
        return result

    return operator


def _operand(value: Any) -> bool:
    """Whether a value can be an operand: tensors, numbers, arrays and what Variables hold."""
    return isinstance(value, TensorMethods | bool | int | float | complex | np.ndarray | np.generic | jax.Array)


def _reflected(public: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return public(other, self) if _operand(other) else NotImplemented

    return operator


def _unary_method(public: Callable[..., Any]) -> Callable[[Any], Any]:
    def operator(self: Any) -> Any:
        return public(self)

    return operator


_UNARY = frozenset({"__neg__", "__pos__", "__abs__", "__invert__"})
_NO_FAST = frozenset({"__getitem__"})


def _install_methods(op: Op, public: Callable[..., Any]) -> None:
    for name in op.method:
        if name.startswith("__r") and name.endswith("__") and name not in ("__round__", "__rshift__"):
            method: Callable[..., Any] = _reflected(public)
        elif name in _UNARY:
            method = _unary_method(public)
        elif name.startswith("__") and name not in _NO_FAST and type(op.kernel) is not No:
            method = _binary_method(op, public)
        else:
            method = public
        setattr(TensorMethods, name, method)


on_method(_install_methods)


def add_method(name: str, function: Callable[..., Any], *, as_property: bool = False) -> None:
    """Give tensors a method, or a property, that is not an op of its own."""
    setattr(TensorMethods, name, property(function) if as_property else function)
