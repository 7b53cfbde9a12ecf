"""The operations of `TracedArray`: NumPy's operations on the array, where hybridflow does the same with its tensor.

NumPy itself tells in which dtypes its functions compute. If hybridflow uses the same dtypes, the operation is traced
on the tensor, and the result stands for NumPy's array. If they differ, the trace ends with an error. If an operand is a
tensor, the result is a tensor too, as with NumPy's protocols in eager mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.convert import is_number
from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dtypes import LOW_PRECISION, DType, as_differentiable, as_dtype, promote_types
from hybridflow.core.errors import ArgumentTypeError, DTypeError, MutationError, message
from hybridflow.core.held import found_in_class
from hybridflow.core.methods import TensorMethods
from hybridflow.core.node import format_where, user_place
from hybridflow.core.staged_number import StagedNumber, default_dtype_of, refused, weak_dtype_of
from hybridflow.core.tensor import Tensor, describe
from hybridflow.core.traced_array import TracedArray, without_array
from hybridflow.core.traced_number import TracedNumber
from hybridflow.guards.signature import Leaf

_HINT = "Write x = hf.asarray(x) at the top of the function, which makes both modes the same, or pass a tensor."
_OPERATORS: dict[str, tuple[np.ufunc, str]] = {
    "add": (np.add, "add"), "sub": (np.subtract, "subtract"), "mul": (np.multiply, "multiply"),
    "truediv": (np.divide, "divide"), "floordiv": (np.floor_divide, "floor_divide"), "mod": (np.remainder, "remainder"),
    "pow": (np.power, "pow"), "matmul": (np.matmul, "matmul"), "and": (np.bitwise_and, "bitwise_and"),
    "or": (np.bitwise_or, "bitwise_or"), "xor": (np.bitwise_xor, "bitwise_xor"),
    "lshift": (np.left_shift, "bitwise_left_shift"), "rshift": (np.right_shift, "bitwise_right_shift"),
}
"""The NumPy function and the name of hybridflow's function for each binary operator."""
_COMPARISONS: dict[str, tuple[np.ufunc, str]] = {
    "eq": (np.equal, "equal"), "ne": (np.not_equal, "not_equal"), "lt": (np.less, "less"),
    "le": (np.less_equal, "less_equal"), "gt": (np.greater, "greater"), "ge": (np.greater_equal, "greater_equal"),
}
_UNARY: dict[str, tuple[np.ufunc, str]] = {
    "neg": (np.negative, "negative"), "pos": (np.positive, "positive"), "abs": (np.absolute, "abs"),
    "invert": (np.invert, "bitwise_invert"),
}
_OURS = {ufunc: ours for ufunc, ours in (*_OPERATORS.values(), *_COMPARISONS.values(), *_UNARY.values())}
_REDUCTIONS = frozenset({"sum", "prod", "mean", "max", "min", "argmax", "argmin", "any", "all", "std", "var"})
_ROUNDED_ON_THE_WAY = frozenset({"sum", "prod", "mean", "std", "var", "cumsum", "cumprod"})
"""Functions that NumPy computes in the array's precision, and hybridflow in float32 if that precision is low."""
_CUMULATIVE = {"cumsum": "cumulative_sum", "cumprod": "cumulative_prod"}


def array_argument(tensor: Tensor, leaf: Leaf) -> TracedArray:
    """Return the stand-in for an array among the arguments.

    Args:
        tensor: the traced tensor that holds it.
        leaf: the argument.
    """
    kind, *foreign = leaf.key[3:]
    return TracedArray(tensor, kind, f"the argument {leaf.path!r}", True, *foreign)


# -- errors -------------------------------------------------------------------------------------------------------


def _refused(array: TracedArray, what: str, why: str) -> DTypeError:
    text = message(f"{what}: {array.origin} is {_named(array.kind)}, and {why}",
                   got=f"{array!r} at {format_where(user_place(3))}", hint=_HINT)
    return refused(DTypeError(text))


def _named(kind: type) -> str:
    if kind is np.ndarray:
        return "a NumPy array"
    return f"NumPy's {kind.__name__}" if issubclass(kind, np.generic) else f"an array of {kind.__module__}"


def _require_numpy(array: TracedArray, what: str) -> None:
    """Raise if an array is not NumPy's: the rules of other libraries are not known here."""
    if array.kind is not np.ndarray and not issubclass(array.kind, np.generic):
        raise _refused(array, what, f"what {array.kind.__module__} makes of that is no tensor")


def _require_same(array: TracedArray, what: str, numpy: Any, ours: Any) -> None:
    if np.dtype(numpy) != ours:
        raise _refused(array, what, f"NumPy computes in {np.dtype(numpy)} here, hybridflow in {ours}")


def kind_of(array: TracedArray) -> type:
    """Return the type of an array, for code that asks for it.

    Raises:
        DTypeError: the value is a tensor in some calls.
    """
    if not array.certain:
        raise _refused(array, "type", "a branch or loop on tensors leaves a tensor in some calls")
    return array.kind


# -- dtypes -------------------------------------------------------------------------------------------------------


def _is_plain_number(value: Any) -> bool:
    return is_number(value) or type(value) in (TracedNumber, StagedNumber, Dim, SizeFloat)


def _numpy_dtype(value: Any) -> Any:
    """Return an operand's dtype for NumPy's promotion rules, or the type of a Python number."""
    if not _is_plain_number(value):
        return np.dtype(without_array(value).dtype)
    if isinstance(value, bool):
        return np.dtype(bool)
    return next(kind for kind in (int, float, complex) if isinstance(value, kind) or type(value) is _SIZES.get(kind))


_SIZES: dict[type, type] = {int: Dim, float: SizeFloat}


def _our_dtype(operands: Sequence[Any], *, as_float: bool) -> DType:
    """Return the dtype to which hybridflow's operators convert the operands."""
    dtype: DType | None = None
    for one in operands:
        if not _is_plain_number(one):
            own = as_dtype(without_array(one).dtype)
            dtype = own if dtype is None else promote_types(dtype, own)
    for one in operands:
        if _is_plain_number(one):
            dtype = default_dtype_of(one) if dtype is None else weak_dtype_of(one, dtype)
    assert dtype is not None
    return as_differentiable(dtype) if as_float else dtype


def _loop(ufunc: np.ufunc, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return the dtypes in which NumPy computes, first those of the operands."""
    return ufunc.resolve_dtypes((*map(_numpy_dtype, operands), *[None] * ufunc.nout))


# -- elementwise functions and operators --------------------------------------------------------------------------


def _first(operands: Sequence[Any]) -> TracedArray:
    return next(one for one in operands if type(one) is TracedArray)


def _applied(ufunc: np.ufunc, name: str, operands: Sequence[Any]) -> Any:
    """Return the result of a NumPy function on arrays and numbers, computed by hybridflow.

    Raises:
        DTypeError: NumPy's result would differ.
    """
    array = _first(operands)
    called = f"numpy.{ufunc.__name__}"
    for one in operands:
        if type(one) is TracedArray:
            _require_numpy(one, called)
    loop = _loop(ufunc, operands)
    result: Any = _our_function(name, called)(*map(without_array, operands))
    _require_same(array, called, loop[-1], result.dtype)
    if len(operands) > 1 or loop[0] == loop[-1]:
        ours = _our_dtype(operands, as_float=ufunc is np.divide)
        for dtype in loop[: len(operands)]:
            _require_same(array, called, dtype, ours)
    _require_same_values(array, ufunc, called, operands, result.dtype)
    return array.like(result)


def _require_same_values(array: TracedArray, ufunc: np.ufunc, what: str, operands: Sequence[Any], dtype: DType) -> None:
    """Raise if NumPy and hybridflow give different values of the same dtype."""
    power = operands[-1]
    if ufunc is np.power and dtype.kind in "iu":
        if type(power) is not int or power < 0:
            raise _refused(array, what, "NumPy has no negative powers of integers")
    elif ufunc is np.power and not getattr(power, "ndim", 0) and (not isinstance(power, int) or type(power) is bool):
        if type(power) is not float or power == 0.5:
            raise _refused(array, what, "NumPy takes the root for a power of 0.5, of which -inf has another")
    elif ufunc is np.floor_divide and dtype.kind == "f":
        raise _refused(array, what, "NumPy gives NaN where infinities are divided, hybridflow the infinity")
    elif ufunc is np.matmul and dtype.num in LOW_PRECISION:
        raise _refused(array, what, f"NumPy adds up in {dtype}, hybridflow in float32")


def _our_function(name: str, what: str) -> Callable[..., Any]:
    function = getattr(sys.modules["hybridflow"], name, None)
    if function is None:
        text = message(f"{what}: a compiled function does not know it", hint="Use the functions of hf.")
        raise ArgumentTypeError(text)
    return function


def _with_tensor(ufunc: np.ufunc, operands: Sequence[Any]) -> Any:
    """Return the result for an array and a tensor: as in NumPy, the tensor's ``__array_ufunc__`` decides."""
    tensor = next(one for one in operands if isinstance(one, TensorMethods))
    return cast(Any, tensor).__array_ufunc__(ufunc, "__call__", *map(without_array, operands))


_TAKEN = object()


def _is_operand(value: Any) -> bool:
    return type(value) is TracedArray or _is_plain_number(value) or isinstance(value, np.ndarray | np.generic)


def _binary(ufunc: np.ufunc, name: str, *, reflected: bool) -> Callable[[TracedArray, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        _require_numpy(self, f"numpy.{ufunc.__name__}")
        if isinstance(other, TensorMethods):
            return _with_tensor(ufunc, operands)
        if _is_operand(other):
            return _applied(ufunc, name, operands)
        if found_in_class(type(other), "__array_ufunc__", _TAKEN) is None:
            return NotImplemented  # as NumPy does: the other operand decides
        raise _refused(self, f"numpy.{ufunc.__name__}", f"NumPy makes an array of {describe(other)}")

    return operator


def _unary(ufunc: np.ufunc, name: str) -> Callable[[TracedArray], Any]:
    def operator(self: TracedArray) -> Any:
        return _applied(ufunc, name, (self,))

    return operator


def _in_place(name: str) -> Callable[[TracedArray, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        if self.kind is not np.ndarray and issubclass(self.kind, np.generic):
            return NotImplemented  # a scalar: Python falls back to the binary operator
        raise _changes(self, f"x {name}= ...", f"Write x = x {name} ..., which makes a new array.")

    return operator


def _changes(array: TracedArray, what: str, hint: str) -> MutationError:
    return MutationError(f"{what}: changes {array.origin}, {_named(array.kind)}, in place: the caller's array, eagerly",
                         got=f"{array!r} at {format_where(user_place(3))}", hint=hint)


def _array_ufunc(self: TracedArray, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Run NumPy's elementwise function on operands that include a traced array."""
    called = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if kwargs.get("out") is not None:
        raise _changes(self, called, "Write x = x + y in place of x += y, and leave `out` away.")
    if any(isinstance(one, TensorMethods) for one in inputs):
        return _with_tensor(ufunc, inputs)
    if method != "__call__" or kwargs or ufunc.nout != 1:
        raise _refused(self, called, "it is not traced in this form")
    return _applied(ufunc, _OURS.get(ufunc, ufunc.__name__), inputs)


def _array_function(self: TracedArray, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Run a function of NumPy that is also a method of arrays."""
    name = function.__name__
    if args and type(args[0]) is TracedArray and name in _AS_FUNCTIONS:
        method = getattr(args[0], name)
        return method(*args[1:], **kwargs) if callable(method) else method
    raise _refused(self, f"numpy.{name}", f"a compiled function cannot call numpy.{name} of what each call passes")


# -- methods ------------------------------------------------------------------------------------------------------


def _reduction(name: str) -> Callable[..., Any]:
    def method(self: TracedArray, axis: Any = None, dtype: Any = None, **options: Any) -> Any:
        called = f"ndarray.{name}"
        _require_numpy(self, called)
        if name in ("max", "min", "any", "all", "argmax", "argmin") and dtype is not None:
            raise _refused(self, called, "its second positional argument is an array for the result")
        if options.keys() - {"keepdims", "ddof", "correction"}:
            raise _refused(self, called, f"the options {sorted(options)} are not traced")
        if name in _ROUNDED_ON_THE_WAY and self.tensor.dtype.num in LOW_PRECISION:
            raise _refused(self, called, f"NumPy adds up in {self.tensor.dtype}, hybridflow in float32")
        given = {} if dtype is None else {"dtype": np.dtype(dtype)}
        if name in _CUMULATIVE and axis is None and self.ndim != 1:
            return getattr(self.ravel(), name)(**given)
        expected = _tried(self, name, axis=axis, **given, **options)
        if name in ("std", "var"):
            options["correction"] = options.pop("ddof", options.get("correction", 0))
        ours = _our_function(_CUMULATIVE.get(name, name), called)
        result: Any = ours(self.tensor, axis=axis, **given, **options)
        _require_same(self, called, expected, result.dtype)
        return self.like(result)

    return method


def _tried(array: TracedArray, name: str, **options: Any) -> DType:
    """Return the dtype of the result of an array method in NumPy, by calling it on an array of one element."""
    example = np.ones((1,) * array.ndim, array.tensor.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(getattr(example, name)(**options)).dtype


def _reshape(self: TracedArray, *shape: Any, order: str = "C") -> TracedArray:
    _require_numpy(self, "ndarray.reshape")
    if order != "C":
        raise _refused(self, "ndarray.reshape", f"the order {order!r} is not traced")
    sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    made = _array_like(self, PUBLIC.reshape(self.tensor, tuple(sizes)))
    if made.tensor.shape:  # of a scalar too
        made.kind = np.ndarray
    return made


def _ravel(self: TracedArray, order: str = "C") -> TracedArray:
    return _reshape(self, -1, order=order)


def _transpose(self: TracedArray, *axes: Any) -> TracedArray:
    _require_numpy(self, "ndarray.transpose")
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple | list)):
        axes = tuple(axes[0] or ())
    return _array_like(self, PUBLIC.permute_dims(self.tensor, axes or tuple(range(self.ndim))[::-1]))


def _swapaxes(self: TracedArray, first: int, second: int) -> TracedArray:
    axes = list(range(self.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return _transpose(self, *axes)


def _matrix_transpose(self: TracedArray) -> TracedArray:
    _require_numpy(self, "ndarray.mT")
    if self.ndim < 2:
        raise ValueError("matrix transpose with ndim < 2 is undefined")  # as NumPy does
    return _swapaxes(self, -1, -2)


def _squeeze(self: TracedArray, axis: Any = None) -> TracedArray:
    _require_numpy(self, "ndarray.squeeze")
    if axis is None:
        axis = tuple([axis for axis, size in enumerate(self.shape) if size == 1])
    return _array_like(self, PUBLIC.squeeze(self.tensor, axis=axis))


def _dtype(self: TracedArray) -> DType:
    if self.foreign is not None:
        raise _refused(self, "dtype", f"a traced array has none with the byte order or metadata of {self.foreign!r}")
    return self.tensor.dtype


def _copied(self: TracedArray) -> TracedArray:
    return self


def _array_like(array: TracedArray, tensor: Any) -> TracedArray:
    """Return the result of an operation that only moves elements: it stays an array, also with no dimensions."""
    return TracedArray(tensor, array.kind, array.origin, array.certain, array.foreign)


def _astype(self: TracedArray, dtype: Any, *, copy: bool = True) -> TracedArray:
    _require_numpy(self, "ndarray.astype")
    target = as_dtype(dtype)
    kinds = self.tensor.dtype.kind, target.kind
    if kinds[0] in "fc" and kinds[1] in "iu":
        raise _refused(self, "ndarray.astype", "what becomes of NaN and of numbers out of range depends on the machine")
    return _array_like_scalar(self, PUBLIC.astype(self.tensor, dtype=target))


def _array_like_scalar(array: TracedArray, tensor: Any) -> TracedArray:
    kind = tensor.dtype.type if issubclass(array.kind, np.generic) else array.kind
    return TracedArray(tensor, kind, array.origin, array.certain)


def _clip(self: TracedArray, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        raise _refused(self, "ndarray.clip", "it is called without a bound")
    clipped: Any = self if min is None else _applied(np.maximum, "maximum", (self, min))
    return clipped if max is None else _applied(np.minimum, "minimum", (clipped, max))


def _divmod(self: TracedArray, other: Any) -> Any:
    return cast(Any, self) // other, cast(Any, self) % other


def _getitem(self: TracedArray, key: Any) -> Any:
    _require_numpy(self, "x[...]")
    keys = tuple(map(without_array, key)) if isinstance(key, tuple) else without_array(key)
    return self.like(cast(Any, self.tensor)[keys], moved=True)


def _setitem(self: TracedArray, key: Any, value: Any) -> None:
    raise _changes(self, "x[...] = ...", "Write x = hf.asarray(x).at[...].set(value), which makes a new tensor.")


def _iter(self: TracedArray) -> Iterator[Any]:
    return iter([_getitem(self, index) for index in range(len(self.tensor))])


def _contains(self: TracedArray, item: Any) -> bool:
    return bool((self == item).any())


def _hash(self: TracedArray) -> int:
    if self.kind.__hash__ is None:
        raise TypeError(f"unhashable type: {self.kind.__name__!r}")
    raise _refused(self, "hash", "each call has another value")


def _by_value(name: str) -> Callable[..., Any]:
    """Return a special method of Python's numbers that needs the number: NumPy's scalars may have it."""

    def method(self: TracedArray, *args: Any) -> Any:
        del args
        if name in ("__round__", "__trunc__") and not hasattr(self.kind, name):
            raise TypeError(f"type {self.kind.__name__} doesn't define {name} method")
        raise _refused(self, name.strip("_"), "each call has another value")

    return method


def _unknown(self: TracedArray, name: str) -> Any:
    """Raise for an attribute that is not traced."""
    if name.startswith("__") or not hasattr(self.kind, name):
        hint = f" (hybridflow's tensors have one: {_HINT})" if hasattr(TensorMethods, name) else ""
        raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)
    raise _refused(self, f"{self.kind.__name__}.{name}", "a compiled function cannot use that of what each call passes")


def _of_tensor(name: str) -> Callable[..., Any]:
    def method(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        if args and name == "item":
            raise _refused(self, f"{self.kind.__name__}.item", "a tensor's item() takes no position")
        return getattr(self.tensor, name)(*args, **kwargs)

    return method


_AS_FUNCTIONS = frozenset({
    *_REDUCTIONS, *_CUMULATIVE, "reshape", "ravel", "transpose", "swapaxes", "squeeze", "clip", "shape", "ndim", "size",
    "real", "imag",
})
"""Functions of NumPy that are also methods or attributes of arrays."""


def _install() -> None:
    """Give the class its operators and methods (done once)."""
    target: Any = TracedArray
    for name, pair in _OPERATORS.items():
        setattr(target, f"__{name}__", _binary(*pair, reflected=False))
        setattr(target, f"__r{name}__", _binary(*pair, reflected=True))
        setattr(target, f"__i{name}__", _in_place(_SYMBOLS[name]))
    for name, pair in _COMPARISONS.items():
        setattr(target, f"__{name}__", _binary(*pair, reflected=False))
    for name, pair in _UNARY.items():
        setattr(target, f"__{name}__", _unary(*pair))
    for name in (*_REDUCTIONS, *_CUMULATIVE):
        setattr(target, name, _reduction(name))
    for name in ("bool", "int", "float", "complex", "index", "len", "array", "format"):
        setattr(target, f"__{name}__", _of_tensor(f"__{name}__"))
    for name in ("__round__", "__trunc__", "__floor__", "__ceil__"):
        setattr(target, name, _by_value(name))
    for name in ("item", "tolist"):
        setattr(target, name, _of_tensor(name))
    for name in ("shape", "ndim", "size", "nbytes"):
        setattr(target, name, property(lambda self, name=name: getattr(self.tensor, name)))
    target.dtype = property(_dtype)
    for name in ("real", "imag"):
        setattr(target, name, property(lambda self, name=name: _array_like(self, getattr(PUBLIC, name)(self.tensor))))
    target.T, target.mT = property(_transpose), property(_matrix_transpose)
    methods: dict[str, Any] = {
        "__array_ufunc__": _array_ufunc, "__array_function__": _array_function, "__getitem__": _getitem,
        "__setitem__": _setitem, "__iter__": _iter, "__contains__": _contains, "__hash__": _hash,
        "__getattr__": _unknown, "reshape": _reshape, "ravel": _ravel, "flatten": _ravel, "transpose": _transpose,
        "swapaxes": _swapaxes, "squeeze": _squeeze, "copy": _copied, "astype": _astype, "clip": _clip,
        "__divmod__": _divmod,
    }
    for name, function in methods.items():
        setattr(target, name, function)


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}
_install()
