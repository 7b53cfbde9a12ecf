"""Fast paths of operators, methods and one-operand functions.

If all operands are host tensors of one dtype that NumPy handles well, a call skips conversion, promotion, attributes
and devices. Every other call goes through the public function and `bind`. Both paths give the same result, which is
tested for every op that has both.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from hybridflow.backend.host import run_quietly, runner, runner_now
from hybridflow.backend.parallel import LARGE, for_large
from hybridflow.core.context import context_now
from hybridflow.core.errors import ArgumentTypeError, HybridflowError
from hybridflow.core.inline import inlined
from hybridflow.core.methods import TensorMethods
from hybridflow.core.node import FOREVER
from hybridflow.core.op import No, Op, Stops, on_public
from hybridflow.core.recording import called_from, followed, recorded_node
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable

_ndarray = np.ndarray
_getframe = sys._getframe
_NO_ATTRS: dict[str, Any] = {}
_NUMBER = object()
"""A marker instead of the spec of a 0-d operand, which is recorded with its value."""
_DTYPES = "i1 i2 i4 i8 u1 u2 u4 u8 f4 f8"
_FLOATS = "f4 f8"
_REALS = frozenset({np.dtype(name).num for name in _FLOATS.split()})


_BETTER_SAID = (ValueError, RuntimeError, MemoryError)
"""Errors of kernels for which the general path, which runs the op again, raises a better error."""


def _accepted(op: Op, operands: int, dtypes: str) -> frozenset[int]:
    """Return the numbers of the dtypes that the op takes without a cast."""
    good: set[int] = set()
    for dtype in map(np.dtype, dtypes.split()):
        try:
            op.infer(*[make_spec((1, 1), dtype)] * operands)
        except HybridflowError:
            continue
        good.add(dtype.num)
    return frozenset(good)


def _call_like(a: Any, b: Any, y: Any, kernel: Any, for_a: Any, for_b: Any) -> tuple[Any, ...]:
    """Return the data that calls of a binary operator share if their operands have the same shapes and dtype.

    These are the operands' shapes and dtype, the kernel, the result's shape and specs, and the specs to record for the
    left and for the right operand if it is neither recorded nor saved.

    Args:
        a, b: the operands.
        y: the result.
        kernel: the function that computed it.
        for_a, for_b: which of ``(y, a, b)`` are saved if only the left, or only the right, operand is recorded.
    """
    left, right = [
        None if kept is not None and kept[index] else (x.shape, x.dtype, None) if x.ndim else _NUMBER
        for x, kept, index in ((a, for_b, 1), (b, for_a, 2))
    ]
    return (
        a.shape, b.shape, a.dtype, kernel, y.shape, ((y.shape, y.dtype),),
        (left, None) if type(left) is tuple else left, (None, right) if type(right) is tuple else right,
    )


@inlined(followed, called_from, recorded_node, make_tensor)
def _binary(op: Op, public: Callable[..., Any]) -> Callable[[Any, Any], Any]:  # noqa: C901 (every call would cost)
    """Make a binary operator."""
    kernel = cast(Callable[..., Any], op.kernel)
    large_kernel = for_large(kernel)
    saves, nothing = op.saves, (None, None, None)
    for_both = _of_saved(saves.y, saves.keeps(0), saves.keeps(1))
    for_a, for_b = [_of_saved(-1 in read, 0 in read, 1 in read) for read in map(saves.read_by, _ONE_OF_TWO)]
    passes = type(op.vjp) is not Stops
    fast: frozenset[int] | None = None
    usual: Any = None  # the accepted dtype that came last
    usual_call: tuple[Any, ...] = (None,) * 8  # the last result of `_call_like`
    usual_place: Any = (None, 0)  # the last caller: another call from there costs only a comparison

    def operator(self: Any, other: Any) -> Any:  # noqa: C901
        nonlocal fast, usual, usual_call, usual_place
        if type(other) is not Tensor or type(self) is not Tensor:
            self, other = _quick(self, other), _quick(other, self)
            if type(other) is not Tensor or type(self) is not Tensor:
                return public(self, other) if _operand(other) and _operand(self) else NotImplemented
        a = self._value
        b = other._value
        context = context_now()
        if (
            type(a) is not _ndarray
            or type(b) is not _ndarray
            or (dtype := a.dtype) is not b.dtype
            or (context is not None and context.indirect)
        ):
            return public(self, other)
        if dtype is not usual:
            if fast is None:
                fast = _accepted(op, 2, _DTYPES)
            if dtype.num not in fast:
                return public(self, other)
            usual = dtype
        start = FOREVER if context is None else context.start
        edge_a, lasting = followed(self._edge, start, False, passes)
        edge_b, lasting = followed(other._edge, start, lasting, passes)
        run = (runner_now() or runner()) if context is None else context.run
        if (edge_a is None and edge_b is None) or (context is None and not passes):
            try:
                y = run(kernel if a.size < LARGE else large_kernel, a, b)
            except _BETTER_SAID:
                return public(self, other)
            if type(y) is not _ndarray:
                y = np.asarray(y)
            return make_tensor(y)
        shape_a, shape_b, dtype_before, chosen, shape, outputs, specs_a, specs_b = usual_call
        try:
            if dtype is dtype_before and a.shape == shape_a and b.shape == shape_b:
                y = run(chosen, a, b)
            else:
                y = run(kernel if a.size < LARGE else large_kernel, a, b)
                usual_call = _call_like(a, b, y, kernel if a.size < LARGE else large_kernel, for_a, for_b)
                _, _, _, _, shape, outputs, specs_a, specs_b = usual_call
        except _BETTER_SAID:
            return public(self, other)
        if not shape:
            y = np.asarray(y)  # it came as a scalar
        if edge_b is None:  # save only what the other operand's gradient reads
            kept = for_a
            specs = specs_b if specs_b is not _NUMBER else (None, ((), dtype, b))
        elif edge_a is None:
            kept = for_b
            specs = specs_a if specs_a is not _NUMBER else (((), dtype, a), None)
        else:
            kept = for_both
            specs = None
        saved = nothing
        if kept is not None:
            keep_y, keep_a, keep_b = kept
            saved = (y if keep_y else None, a if keep_a else None, b if keep_b else None)
        where, usual_place = called_from(_getframe(1), usual_place)
        edges = (edge_a, edge_b)
        node = recorded_node(op, edges, _NO_ATTRS, outputs, where, saved, specs, "host", lasting)
        return make_tensor(y, (node, 0))

    return operator


_ONE_OF_TWO = (True, False), (False, True)


def _of_saved(y: bool, a: bool, b: bool) -> tuple[bool, bool, bool] | None:
    """Return which of the result and the operands are saved, or None if none are."""
    return (y, a, b) if y or a or b else None


@inlined(followed, called_from, recorded_node, make_tensor)
def _unary(op: Op, public: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a function of one operand; a kernel may have an attribute `of_reals`, a faster kernel for real numbers."""
    kernel = cast(Callable[..., Any], getattr(op.kernel, "of_reals", op.kernel))
    large_kernel = for_large(kernel)
    save_x, save_y = op.saves.keeps(0), op.saves.y
    passes = type(op.vjp) is not Stops
    fast: frozenset[int] | None = None
    usual: Any = None  # the accepted dtype that came last
    usual_call: tuple[Any, ...] = (None, None, None, None)  # the operand's shape and dtype, the kernel and specs
    usual_place: Any = (None, 0)  # the last caller: another call from there costs only a comparison

    @functools.wraps(public)
    def function(x: Any) -> Any:
        nonlocal fast, usual, usual_call, usual_place
        if type(x) is not Tensor:
            return public(x)
        value = x._value
        context = context_now()
        if type(value) is not _ndarray or (context is not None and context.indirect):
            return public(x)
        dtype = value.dtype
        if dtype is not usual:
            if fast is None:
                fast = _accepted(op, 1, _FLOATS)
            if dtype.num not in fast:
                return public(x)
            usual = dtype
        start = FOREVER if context is None else context.start
        edge, lasting = followed(x._edge, start, False, passes)
        run = (runner_now() or runner()) if context is None else context.run
        if edge is None or (context is None and not passes):
            try:
                y = run(kernel if value.size < LARGE else large_kernel, value)
            except _BETTER_SAID:
                return public(x)
            if type(y) is not _ndarray:
                y = np.asarray(y)
            return make_tensor(y)
        shape, dtype_before, chosen, outputs = usual_call
        try:
            if dtype is dtype_before and value.shape == shape:
                y = run(chosen, value)
            else:
                chosen = kernel if value.size < LARGE else large_kernel
                y = run(chosen, value)
                shape, outputs = value.shape, ((y.shape, y.dtype),)
                usual_call = shape, dtype, chosen, outputs
        except _BETTER_SAID:
            return public(x)
        if not shape:
            y = np.asarray(y)  # it came as a scalar
        saved = (y if save_y else None, value if save_x else None)
        where, usual_place = called_from(_getframe(1), usual_place)
        edges = (edge,)
        node = recorded_node(op, edges, _NO_ATTRS, outputs, where, saved, None, "host", lasting)
        return make_tensor(y, (node, 0))

    return function


_SMALL = 6e4
"""Floats below this fit every float dtype."""


def _quick(value: Any, like: Any) -> Any:
    """Return an operand as a tensor if that is quick: a Variable, or a Python float that meets a float tensor."""
    if type(value) is Variable:
        return value.read()
    if type(value) is float and -_SMALL < value < _SMALL and isinstance(like, Tensor | Variable):
        array = like._value
        context = context_now()
        if type(array) is _ndarray and array.dtype.num in _REALS and (context is None or not context.indirect):
            return make_tensor(run_quietly(np.array, value, array.dtype))
    return value


_FOREIGN = {"torch": "hf.asarray(t.detach().numpy())", "tensorflow": "hf.asarray(t.numpy())"}


def _operand(value: Any) -> bool:
    """Whether a value can be an operand: a tensor, Variable, number or array.

    Raises:
        ArgumentTypeError: it is a tensor of another framework.
    """
    if isinstance(value, TensorMethods | bool | int | float | complex | np.ndarray | np.generic | jax.Array):
        return True
    package = type(value).__module__.partition(".")[0]
    if package in _FOREIGN and "Tensor" in type(value).__name__:
        text = f"an operand is a {package}.{type(value).__name__}, the other a tensor of hybridflow"
        raise ArgumentTypeError(text, hint=f"Convert it first: {_FOREIGN[package]}.")
    return False


def _reflected(forward: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return forward(other, self) if _operand(other) else NotImplemented

    return operator


def _is_unary(op: Op, public: Callable[..., Any]) -> bool:
    """Whether the public function is its kernel on one operand, without attributes."""
    if isinstance(op.kernel, No) or op.saves.hidden or "pointwise" not in op.traits:
        return False
    return len(inspect.signature(public).parameters) == 1


def _is_binary(name: str, op: Op, public: Callable[..., Any]) -> bool:
    """Whether a method is an operator whose kernel takes the two operands as they are."""
    return name.startswith("__") and name.endswith("__") and _takes_two(op, public)


def _takes_two(op: Op, public: Callable[..., Any]) -> bool:
    """Whether the public function is its kernel on two operands, without attributes."""
    if isinstance(op.kernel, No) or op.saves.hidden:
        return False
    parameters = inspect.signature(public).parameters.values()
    return len(parameters) == 2 and all(one.kind is inspect.Parameter.POSITIONAL_ONLY for one in parameters)


def _is_reflected(name: str) -> bool:
    return name.startswith("__r") and name.endswith("__") and f"__{name[3:]}" in _REFLECTABLE


_REFLECTABLE = frozenset({
    "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__",
    "__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
})


def expose(op: Op, public: Callable[..., Any]) -> Callable[..., Any]:
    """Install an op's methods, and return the function that users call."""
    exposed = _unary(op, public) if _is_unary(op, public) else public
    for name in op.method:
        if _is_reflected(name):
            method = _reflected(_binary(op, public) if _takes_two(op, public) else public)
        elif _is_binary(name, op, public):
            method = _binary(op, public)
        else:
            method = exposed
        setattr(TensorMethods, name, method)
    return exposed


on_public(expose)


def add_method(
    name: str,
    function: Callable[..., Any],
    *,
    as_property: bool = False,
    setter: Callable[[Any, Any], None] | None = None,
) -> None:
    """Give tensors a method, or a property, that is not an op of its own."""
    setattr(TensorMethods, name, property(function, setter) if as_property else function)
