"""What the op families share: promotion, broadcasting, axes, and the helpers of gradient rules and samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.backend.host import run_quietly
from hybridflow.core.context import context_now, current
from hybridflow.core.convert import is_number
from hybridflow.core.device import default_is_host, makes_on_host, place
from hybridflow.core.dims import Size, same_shape, same_size
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import (
    DIFFERENTIABLE,
    LOW_PRECISION,
    DType,
    as_differentiable,
    as_dtype,
    check_fits,
    float32,
    kind_of,
    promote_types,
    weak_dtype,
)
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    GradientError,
    ShapeError,
)
from hybridflow.core.op import REGISTRY, Bad, Each, Op, Sample
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import TensorSpec, format_spec, make_spec
from hybridflow.core.staged_number import weak_dtype_of
from hybridflow.core.tensor import Tensor, as_tensor, asarray, describe, host_array, make_tensor
from hybridflow.core.variable import Variable

TensorLike = Any
"""Anything `hf.asarray` takes: tensors, Variables, arrays, numbers, nested lists."""
Shape = tuple[Any, ...]


# -- arguments ----------------------------------------------------------------------------------------------------


_NUMBERS = (float, int, bool)


def number_tensor(number: Any, dtype: DType) -> Tensor:
    """Return a Python number as a tensor of a dtype that can hold it.

    Raises:
        NumberRangeError: an integer outside the dtype's range.
    """
    check_fits(number, dtype)
    context = context_now()
    if (context is None or (context.tracer is None and context.device is None)) and default_is_host():
        return make_tensor(run_quietly(np.array, number, dtype))
    if makes_on_host() or (context is not None and context.tracer is not None):
        return asarray(number, dtype=dtype)
    device = None if context is None else context.device
    return make_tensor(_number_on(device, dtype, run_quietly(np.array, number, dtype).tobytes()))


def fixed_number(function: str, name: str, value: Any) -> float:
    """Return a number that an operation keeps, to which no gradient goes.

    Raises:
        GradientError: it is given as a tensor for which a gradient is recorded.
    """
    number = float(value)
    if isinstance(value, Tensor | Variable):
        read: Any = as_tensor(value)
        if (read + 0)._edge is not None:
            raise GradientError(
                f"{function}: no gradient goes to {name}, and one is recorded for the tensor that it is",
                got=str(read.spec), hint=f"Give {name}=float(t) if it is a constant, or compute with tensors."
            )
    return number


@lru_cache(maxsize=1024)
def _number_on(device: Any, dtype: DType, data: bytes) -> Any:
    """Return a number on an accelerator, where the same few numbers are used again and again."""
    return place(np.frombuffer(data, dtype).reshape(()), device)


def promote(*values: TensorLike) -> tuple[Tensor, ...]:
    """Return the operands as tensors of one dtype; Python numbers take the dtype of the other operands."""
    first = values[0]
    if type(first) is Tensor:  # what nearly every call is
        if len(values) == 1:
            return values
        other = values[1]
        if len(values) == 2 and type(other) is Tensor and first.dtype is other.dtype:
            return values
        if len(values) == 2 and type(other) in _NUMBERS and weak_dtype(cast(Any, other), first.dtype) is first.dtype:
            return first, number_tensor(other, first.dtype)
    read = _read(values)
    if read and _are_alike(read):
        return read
    tensors = [None if is_number(value) else as_tensor(value) for value in read or values]
    dtype: DType | None = None
    for tensor in tensors:
        if tensor is not None:
            dtype = tensor.dtype if dtype is None else promote_types(dtype, tensor.dtype)
    if dtype is None:
        return promote(asarray(values[0]), *values[1:])
    for tensor, value in zip(tensors, values, strict=True):
        if tensor is None:
            dtype = weak_dtype_of(value, dtype)
    result: list[Tensor] = []
    mixed = dtype is float32 and current().autocast is not None  # the operation itself decides what is cast to what
    for tensor, value in zip(tensors, values, strict=True):
        if tensor is None:
            tensor = asarray(value, dtype=dtype)
        fits = tensor.dtype == dtype or (mixed and tensor.dtype.num in LOW_PRECISION)
        result.append(tensor if fits else cast_to(tensor, dtype))
    return tuple(result)


def _read(values: tuple[TensorLike, ...]) -> tuple[Tensor, ...]:
    """Return tensors and Variables as tensors, or nothing if others are among them."""
    for value in values:
        if type(value) is not Tensor and not isinstance(value, Variable):
            return ()
    return tuple(map(as_tensor, values))


def _are_alike(tensors: tuple[Tensor, ...]) -> bool:
    dtype = tensors[0].dtype
    return all([tensor.dtype is dtype for tensor in tensors])


def promote_full(*values: TensorLike) -> tuple[Tensor, ...]:
    """Like `promote`, for operations that `hf.autocast` runs in float32: Python numbers are not rounded to less."""
    if current().autocast is None:
        return promote(*values)
    return promote(*[value if is_number(value) else widened(as_tensor(value)) for value in values])


def as_bound(op: Op, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return operands as `bind` will cast them under `hf.autocast`, for checks that come before."""
    autocast = current().autocast
    return tensors if autocast is None else cast("tuple[Tensor, ...]", autocast(op, tensors))


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, if it is of low precision and `hf.autocast` is on."""
    low = tensor.dtype.num in LOW_PRECISION and current().autocast is not None
    return cast_to(tensor, float32) if low else tensor


def promote_float(*values: TensorLike) -> tuple[Tensor, ...]:
    """Like `promote`, but integers become the default float."""
    first = values[0]
    if len(values) == 1 and type(first) is Tensor and first.dtype.num in DIFFERENTIABLE:
        return values
    tensors = promote(*values)
    if tensors[0].dtype.num in DIFFERENTIABLE:
        return tensors
    dtype = as_differentiable(tensors[0].dtype)
    return tuple([cast_to(tensor, dtype) for tensor in tensors])


def cast_to(tensor: Tensor, dtype: Any) -> Tensor:
    """Return the tensor in a dtype; the cast is an op of its own, so gradients come back in the old one."""
    if dtype is tensor.dtype:
        return tensor
    target = as_dtype(dtype)
    return tensor if tensor.dtype == target else bind(REGISTRY["astype"], (tensor,), {"dtype": target})


def known_value(tensor: Tensor) -> np.ndarray[Any, Any] | None:
    """Return the value of a tensor, or None if it is traced; in a trace only constants have one."""
    context = context_now()
    if context is None or context.tracer is None:
        return host_array(tensor)
    node = tensor._edge[0] if tensor._edge is not None else None
    return node.attrs["value"].array if node is not None and node.op is CONSTANT else None


def normalize_axis(op: str, axis: Any, ndim: int) -> int:
    """Return an axis counted from the front.

    Raises:
        AxisError: if the tensor has no such axis.
        ArgumentTypeError: True or False.
    """
    if type(axis) is not int:
        require_no_truth(op, "axis", axis)
    number = int(axis)
    if not -ndim <= number < ndim:
        raise AxisError(
            f"{op}: axis {number} is out of range for {ndim} dimensions",
            hint=f"Use an axis from {-ndim} to {ndim - 1}." if ndim else "A tensor of shape () has no axes."
        )
    return number % ndim


def normalize_axes(op: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the front, sorted; None means all of them.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int:
        return (axis if 0 <= axis < ndim else normalize_axis(op, axis, ndim),)
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    normal = [normalize_axis(op, one, ndim) for one in axes]
    if len(set(normal)) != len(normal):
        raise ShapeError(f"{op}: axis {axis} names an axis twice", hint="Name each axis once.")
    return tuple(sorted(normal))


# -- options ------------------------------------------------------------------------------------------------------


def require_no_truth(op: str, option: str, value: Any) -> None:
    """Raise if True or False, which Python treats as 1 and 0, is given where a number is meant.

    Raises:
        ArgumentTypeError: one of the two.
    """
    if isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{op}: {option}={value} is no number",
                                hint=f"Write {option}={int(value)} if that is meant.")


def truth(op: str, option: str, value: Any) -> bool:
    """Return an option as True or False; 0 and 1 are allowed.

    Raises:
        ArgumentTypeError: anything else, such as ``"no"``, which Python holds for true.
    """
    if type(value) is bool:
        return value
    if isinstance(value, int | np.integer | np.bool_) and value in (0, 1):
        return bool(value)
    raise ArgumentTypeError(f"{op}: {option}={describe(value)} is neither True nor False",
                            hint=f"Use {option}=True or False.")


def one_of(op: str, option: str, value: Any, choices: Sequence[str]) -> Any:
    """Return an option, which must be one of some words.

    Raises:
        ArgumentError: anything else.
    """
    if value in choices:
        return value
    raise ArgumentError(f"{op}: {option}={value!r} is none of {', '.join(map(repr, choices))}", hint="Use one of them.")


# -- shapes -------------------------------------------------------------------------------------------------------


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """Return the shape to which shapes broadcast.

    Raises:
        ShapeError: if two sizes differ and neither is 1.
    """
    ndim = max(map(len, shapes))
    result: list[Size] = []
    for axis in range(-ndim, 0):
        size: Size = 1
        for shape in shapes:
            if -axis > len(shape):
                continue
            other = shape[axis]
            if same_size(size, 1):
                size = other
                continue
            # In this order, equal sizes need no guard that they are not 1.
            if same_size(other, size) or same_size(other, 1) or size == other or other == 1:
                continue
            if size != 1:
                raise _no_broadcast(op, shapes, size, other, axis)
            size = other
        result.append(size)
    return tuple(result)


def _no_broadcast(op: str, shapes: Sequence[Shape], size: Size, other: Size, axis: int) -> ShapeError:
    hint = "Sizes must be equal, or one of them 1; reshape or hf.expand_dims an operand."
    if (type(size) is int) != (type(other) is int):
        known, open_size = (size, other) if type(size) is int else (other, size)
        hint = f"{open_size} is any size: declare it as {known}, or give the other that size, as hf.zeros_like does."
    return ShapeError(f"{op}: shapes do not broadcast: size {size} against {other} on axis {axis}",
                      got=f"{op}({', '.join(str(tuple(s)) for s in shapes)})", hint=hint)


def call_text(op: str, *specs: TensorSpec) -> str:
    """Format a call the way error texts show it."""
    return f"{op}({', '.join(format_spec(spec.shape, spec.dtype) for spec in specs)})"


def require_kind(op: str, kinds: Iterable[str], *specs: TensorSpec) -> None:
    """Raise unless every dtype is of one of the kinds.

    Raises:
        DTypeError: naming the dtype and the kinds accepted.
    """
    kinds = tuple(kinds)
    for spec in specs:
        if kind_of(spec.dtype) not in kinds:
            raise DTypeError(f"{op}: does not take {spec.dtype}, only {', '.join(kinds)}", got=call_text(op, *specs),
                             hint="Cast it with .astype(...).")


NUMERIC = ("int", "uint", "float", "complex")
REAL = ("int", "uint", "float")
FLOATING = ("float", "complex")
ANY = ("bool", *NUMERIC)


def pointwise(
    op: str, kinds: Iterable[str] = ANY, result: Any = None
) -> Callable[..., TensorSpec]:
    """Return the shape rule of an elementwise op on operands of one dtype.

    Args:
        op: its name, for messages.
        kinds: the dtype kinds accepted.
        result: the result's dtype, if not the operands'.
    """
    kinds = tuple(kinds)
    fixed = None if result is None else as_dtype(result)

    def infer(*specs: TensorSpec, **attrs: Any) -> TensorSpec:
        del attrs
        require_kind(op, kinds, *specs)
        dtype = specs[0].dtype
        for spec in specs[1:]:
            if spec.dtype != dtype:
                raise DTypeError(f"{op}: dtypes differ: {dtype} and {spec.dtype}", got=call_text(op, *specs))
        shape = specs[0].shape if len(specs) == 1 else broadcast_shapes(op, *[spec.shape for spec in specs])
        return make_spec(shape, fixed or dtype)

    return infer


def met_shape(*shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the shape to which jax values broadcast; jax may leave some sizes open."""
    return cast("tuple[Any, ...]", lax.broadcast_shapes(*shapes))


def broadcasting(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lax primitive on operands of one dtype that broadcasts its operands."""

    def lowered(*xs: Any, **attrs: Any) -> Any:
        shape = met_shape(*[x.shape for x in xs])
        return primitive(*[broadcast_lowered(x, shape) for x in xs], **attrs)

    return lowered


def lower_offsets(rows: int, columns: int) -> Any:
    """Return the distance of every element of a matrix to the right of the diagonal, as int32."""
    column, row = [lax.broadcasted_iota(np.int32, (rows, columns), axis) for axis in (1, 0)]
    return lax.sub(column, row)


def broadcast_lowered(x: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast a jax value with lax only."""
    if tuple(x.shape) == tuple(shape):
        return x
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - len(x.shape), len(shape))))


# -- gradient rules -----------------------------------------------------------------------------------------------


def unbroadcast(F: Any, g: Any, like: Any) -> Any:
    """Sum a cotangent over the axes along which an operand was broadcast."""
    shape, target = g.shape, like.shape
    if same_shape(shape, target) if type(g) is Tensor else shape == target:
        return g
    axes = _known_broadcast_axes(shape, target) if type(g) is np.ndarray else _broadcast_axes(shape, target)
    if axes:
        g = F.sum(g, axis=axes, keepdims=False)
    return g if same_shape(g.shape, target) else F.reshape(g, target)


def _broadcast_axes(shape: Shape, target: Shape) -> tuple[int, ...]:
    """Return the axes of a shape along which an operand was broadcast to it."""
    extra = len(shape) - len(target)
    grown = [i + extra for i, size in enumerate(target) if _was_broadcast(size, shape[i + extra])]
    return (*range(extra), *grown)


_known_broadcast_axes = lru_cache(1024)(_broadcast_axes)  # of sizes that are numbers


def of_operands(left: Callable[..., Any], right: Callable[..., Any]) -> Each:
    """Return the gradient rule of an op of two operands that broadcast against each other.

    Args:
        left, right: per operand, ``(F, g, y, a, b)`` to its gradient in the shape of the result.
    """
    return Each(
        lambda F, g, y, a, b: unbroadcast(F, left(F, g, y, a, b), a),
        lambda F, g, y, a, b: unbroadcast(F, right(F, g, y, a, b), b),
        local=(left, right),
    )


def _was_broadcast(size: Size, to: Size) -> bool:
    """Whether an axis of size 1 became longer; equal sizes are checked first, without a guard that they are not 1."""
    return not same_size(size, to) and (same_size(size, 1) or (size != to and size == 1))


def elements(outputs: Any, *inputs: Any, **attrs: Any) -> Any:
    """Count one FLOP per element of the result."""
    del inputs, attrs
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return first.size


def input_elements(outputs: Any, *inputs: Any, **attrs: Any) -> Any:
    """Count one FLOP per element of the first input (reductions)."""
    del outputs, attrs
    return inputs[0].size


def no_flops(outputs: Any, *inputs: Any, **attrs: Any) -> int:
    """Count none: the op moves data only."""
    del outputs, inputs, attrs
    return 0


# -- samples ------------------------------------------------------------------------------------------------------


def normals(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Draw standard normal numbers."""
    return np.asarray(rng.standard_normal(shape), dtype=as_dtype(dtype))


def positives(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Draw numbers from 0.5 to 2."""
    return np.asarray(rng.uniform(0.5, 2.0, shape), dtype=as_dtype(dtype))


def integers(rng: np.random.Generator, low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    """Draw integers from `low` up to but without `high`."""
    return np.asarray(rng.integers(low, high, shape), dtype=as_dtype(dtype))


def unary_samples(
    draw: Callable[..., Any] = normals, *, bad_kind: Sequence[Bad] = (), low: bool = True
) -> Callable[[np.random.Generator], Iterable[Sample | Bad]]:
    """Return samples of an elementwise op of one operand: 2-d, 0-d, empty, float64 and bfloat16."""

    def samples(rng: np.random.Generator) -> Iterable[Sample | Bad]:
        yield Sample((draw(rng, 3, 4),))
        yield Sample((draw(rng),))
        yield Sample((draw(rng, 0, 2),))
        yield Sample((draw(rng, 5, dtype=np.float64),))
        if low:
            yield Sample((draw(rng, 2, 3, dtype="bfloat16"),), gradient=False)
        yield from bad_kind

    return samples


def binary_samples(
    draw: Callable[..., Any] = normals, *, more: Sequence[Sample | Bad] = (), crossed: bool = True
) -> Callable[[np.random.Generator], Iterable[Sample | Bad]]:
    """Return samples of an elementwise op of two operands: equal, broadcast, scalar, empty shapes; a bad one.

    Args:
        draw: draws an operand.
        more: further samples.
        crossed: whether there is one in which both operands broadcast.
    """

    def samples(rng: np.random.Generator) -> Iterable[Sample | Bad]:
        yield Sample((draw(rng, 3, 4), draw(rng, 3, 4)))
        yield Sample((draw(rng, 3, 4), draw(rng, 4)))
        if crossed:
            yield Sample((draw(rng, 3, 1), draw(rng, 2, 1, 4)))
        yield Sample((draw(rng, 2), 2.0))
        yield Sample((draw(rng), draw(rng)))
        yield Sample((draw(rng, 0, 3), draw(rng, 3)))
        yield Sample((draw(rng, 4, dtype=np.float64), draw(rng, 4)))
        yield Sample((draw(rng, 2, 3, dtype="bfloat16"), draw(rng, 3, dtype="bfloat16")), gradient=False)
        yield Bad((draw(rng, 3), draw(rng, 4)), error=ShapeError, text="size 3 against 4")
        yield from more

    return samples


__all__ = [
    "ANY",
    "FLOATING",
    "NUMERIC",
    "REAL",
    "Bad",
    "Sample",
    "Shape",
    "Tensor",
    "TensorLike",
    "TensorSpec",
    "Variable",
    "as_bound",
    "as_tensor",
    "asarray",
    "binary_samples",
    "broadcast_lowered",
    "broadcast_shapes",
    "broadcasting",
    "call_text",
    "cast_to",
    "elements",
    "input_elements",
    "integers",
    "is_number",
    "known_value",
    "make_spec",
    "met_shape",
    "no_flops",
    "normalize_axes",
    "normalize_axis",
    "normals",
    "of_operands",
    "one_of",
    "pointwise",
    "positives",
    "promote",
    "promote_float",
    "promote_full",
    "require_kind",
    "truth",
    "unary_samples",
    "unbroadcast",
    "widened",
]
