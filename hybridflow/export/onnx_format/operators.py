"""The namespace of ONNX's operators on named values, for the builders in the `onnx` column of ops."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dtypes import DType, as_dtype, bfloat16, float32, float64, int32, int64
from hybridflow.export.onnx_format.package import element_type, onnx_module, type_text

if TYPE_CHECKING:
    from hybridflow.export.onnx_format.model import Writer
    from hybridflow.ir.graph import Graph


class NoCounterpartError(Exception):
    """Raised by an operation's `onnx` function if ONNX has no operators for its attributes or dtypes."""


class Value:
    """A named value of an ONNX graph; arithmetic with other values and with numbers adds operators.

    Attributes:
        name: its name.
        dtype: its dtype.
        shape: its sizes; None for an intermediate value of a builder.
    """

    __slots__ = ("_operators", "dtype", "name", "shape")

    def __init__(self, operators: Operators, name: str, dtype: DType, shape: tuple[Any, ...] | None) -> None:
        self._operators = operators
        self.name = name
        self.dtype = dtype
        self.shape: Any = shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __add__(self, other: Any) -> Value:
        return self._operators.Add(self, other)

    def __radd__(self, other: Any) -> Value:
        return self._operators.Add(other, self)

    def __sub__(self, other: Any) -> Value:
        return self._operators.Sub(self, other)

    def __rsub__(self, other: Any) -> Value:
        return self._operators.Sub(other, self)

    def __mul__(self, other: Any) -> Value:
        return self._operators.Mul(self, other)

    def __rmul__(self, other: Any) -> Value:
        return self._operators.Mul(other, self)

    def __truediv__(self, other: Any) -> Value:
        return self._operators.Div(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._operators.Div(other, self)

    def __neg__(self) -> Value:
        return self._operators.Neg(self)


class Operators:
    """ONNX's operators as methods: ``o.MatMul(a, b)``, ``o.Softmax(x, axis=1)``.

    Inputs are values, arrays, numbers, or None for an input that is left out. A number takes the dtype of the first
    value of the same type in the schema. If the operator does not accept a dtype, its operands are cast to a wider one
    and its result is cast back.
    """

    def __init__(self, writer: Writer, opset: int) -> None:
        self._writer = writer
        self._opset = opset

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.emit, name)

    def emit(
        self, name: str, *inputs: Any, outputs: int = 1, dtypes: Sequence[Any] = (), **attributes: Any
    ) -> Any:
        """Add an operator and return its result, or a tuple of its results.

        Args:
            name: its name.
            *inputs: its inputs.
            outputs: the number of results.
            dtypes: the results' dtypes, if the operator's schema does not determine them.
            **attributes: its attributes.
        """
        if any(is_open(one) for value in attributes.values() if isinstance(value, list | tuple) for one in value):
            self.no(f"its {name} takes no sizes that are left open")
        schema, opset = _schema(name, self._opset), self._opset
        formals = _formals(schema.inputs, len(inputs))
        values = [
            x if x is None or isinstance(x, Value) else self.value(x, _like(name, opset, formal, formals, inputs))
            for x, formal in zip(inputs, formals, strict=True)
        ]
        cast_back: dict[str, tuple[DType, DType]] = {}
        dtypes_by_type: dict[str, DType] = {}
        for position, (value, formal) in enumerate(zip(values, formals, strict=True)):
            if value is None:
                continue
            wide = _accepted(name, opset, formal, value.dtype)
            if wide != value.dtype:
                cast_back[formal.type_str] = value.dtype, wide
                values[position] = self.cast(value, wide)
            dtypes_by_type[formal.type_str] = wide
        results: list[Value] = []
        names = self._writer.add(name, ["" if v is None else v.name for v in values], outputs, attributes)
        for index, (made, formal) in enumerate(zip(names, _formals(schema.outputs, outputs), strict=True)):
            dtype = dtypes[index] if dtypes else _fixed(name, opset, formal.type_str) or dtypes_by_type[formal.type_str]
            result = Value(self, made, dtype, None)
            narrow = cast_back.get(formal.type_str)
            results.append(result if narrow is None else self.cast(result, narrow[0]))
        return results[0] if outputs == 1 else tuple(results)

    # -- constants ----------------------------------------------------------------------------------------------

    def value(self, x: Any, dtype: Any = None) -> Value:
        """Return a value unchanged, a number or array as a constant (of a dtype), an open size as it is computed."""
        if isinstance(x, Value):
            return x
        if is_open(x):
            return self.cast(self.reshape(self.size(x), ()), dtype)
        if type(x) is SizeFloat:
            return self.cast(self._size_float(x), dtype)
        array = np.asarray(x) if dtype is None or isinstance(x, np.ndarray) else np.asarray(x, as_dtype(dtype))
        return Value(self, self._writer.constant(array), as_dtype(array.dtype), array.shape)

    def ints(self, sizes: Iterable[Any]) -> Value:
        """Return integers as a 1-d tensor of int64; symbolic sizes are computed from the inputs' shapes."""
        sizes = tuple(sizes)
        if not any(is_open(size) for size in sizes):
            return self.value(np.array(sizes, np.int64))
        return self.Concat(*[self.size(size) for size in sizes], axis=0)

    def size(self, size: Any) -> Value:
        """Return a size, which may be symbolic, as an int64 tensor of shape (1,)."""
        if not is_open(size):
            return self.value(np.array([size], np.int64))
        total: Any = None
        for monomial, factor in size.terms.items():
            term: Any = None
            for atom in monomial:
                one = self._atom(atom)
                term = one if term is None else term * one
            term = self.value(np.array([factor], np.int64)) if term is None else term if factor == 1 else term * factor
            total = term if total is None else total + term
        return total

    def _size_float(self, x: SizeFloat) -> Value:
        name = _OF_SIZES.get(x.function)
        if name is None:
            self.no(f"{getattr(x.function, '__name__', x.function)} of open sizes has none")
        return self.emit(name, *[self.value(one, float64) for one in x.operands])

    def _atom(self, atom: Any) -> Value:
        if isinstance(atom, str):
            return Value(self, self._writer.symbol(atom), int64, (1,))
        left, right = self.size(atom.left), self.size(atom.right)
        rest = self.Mod(left, right)  # it has the divisor's sign
        return rest if atom.kind == "%" else (left - rest) / right

    # -- shapes and dtypes ----------------------------------------------------------------------------------------

    def cast(self, x: Value, dtype: Any) -> Value:
        """Convert a value to a dtype, unless it has that dtype already."""
        dtype = as_dtype(dtype)
        return x if x.dtype == dtype else self.Cast(x, to=element_type(dtype), dtypes=[dtype])

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """Reshape a value; a single symbolic size among plain ones is left to the operator."""
        open_sizes = [is_open(size) for size in shape]
        if sum(open_sizes) == 1 and all(opened or size > 0 for opened, size in zip(open_sizes, shape, strict=True)):
            shape = [-1 if opened else size for opened, size in zip(open_sizes, shape, strict=True)]
        return self.Reshape(x, self.ints(shape), allowzero=int(not all(open_sizes) and 0 in list(map(_plain, shape))))

    # -- graphs ---------------------------------------------------------------------------------------------------

    def inline(self, graph: Graph, values: Sequence[Value]) -> list[Value]:
        """Add a graph's operators and return its outputs."""
        return self._writer.inline(graph, values)

    def body(
        self, name: str, specs: Sequence[tuple[str, Any]], build: Callable[..., Sequence[Value]]
    ) -> Any:
        """Return a nested graph, which may read every value around it.

        Args:
            name: its name.
            specs: name and spec of each input.
            build: a function from the inputs to the outputs.
        """
        return self._writer.body(name, specs, build)

    def no(self, why: str) -> NoReturn:
        """Raise `NoCounterpartError`: ONNX has no counterpart of this node."""
        raise NoCounterpartError(why)


_OF_SIZES: dict[Any, str] = {
    operator.add: "Add", operator.sub: "Sub", operator.mul: "Mul", operator.truediv: "Div", operator.pow: "Pow",
    operator.neg: "Neg", operator.abs: "Abs", math.sqrt: "Sqrt",
}
"""The Python functions that traces apply to sizes, each with ONNX's operator."""


def is_open(size: Any) -> bool:
    """Return whether a size is symbolic; `isinstance` cannot tell, because a symbolic size passes as an int."""
    return type(size) is Dim


def _plain(size: Any) -> Any:
    return -1 if is_open(size) else size


# -- schemas ------------------------------------------------------------------------------------------------------

_WIDER: dict[str, tuple[DType, ...]] = {
    "bfloat16": (float32,), "float16": (float32,), "uint32": (int64,),
    **dict.fromkeys(("bool", "int8", "int16", "uint8", "uint16"), (int32, int64, float32)), "int32": (int64,),
}
"""For each dtype, the wider dtypes that hold all its numbers, narrowest first."""


_MOVES = frozenset([
    "Cast", "Concat", "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop", "Pad", "Reshape", "Scan",
    "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
])
"""Operators that run on bfloat16: runtimes can move it, but not compute with it, whatever the schemas say."""


@lru_cache(None)
def _schema(operator: str, opset: int) -> Any:
    return onnx_module("defs").get_schema(operator, opset, "")


@lru_cache(None)
def _allowed(operator: str, opset: int, type_text: str) -> frozenset[str]:
    for constraint in _schema(operator, opset).type_constraints:
        if constraint.type_param_str == type_text:
            return frozenset(constraint.allowed_type_strs)
    return frozenset([type_text])


def _accepted(operator: str, opset: int, formal: Any, dtype: DType) -> DType:
    """Return the narrowest dtype, the given one or wider, that an operator accepts at an input."""
    allowed = _allowed(operator, opset, formal.type_str)
    if dtype == bfloat16 and operator not in _MOVES and type_text(float32) in allowed:
        return float32
    for one in (dtype, *_WIDER.get(dtype.name, ())):
        if type_text(one) in allowed:
            return one
    raise NoCounterpartError(f"its {operator} takes no {dtype}")


def _like(operator: str, opset: int, formal: Any, formals: Sequence[Any], inputs: Sequence[Any]) -> DType:
    """Return the dtype for a number among an operator's inputs: the only one allowed, or that of inputs of its type."""
    alike = [x.dtype for x, other in zip(inputs, formals, strict=True)
             if isinstance(x, Value) and other.type_str == formal.type_str]
    return _fixed(operator, opset, formal.type_str) or (alike[0] if alike else float32)


def _formals(formals: Sequence[Any], count: int) -> list[Any]:
    """Return the formal parameter of each of `count` arguments; the last formal may repeat."""
    return [formals[min(index, len(formals) - 1)] for index in range(count)]


@lru_cache(None)
def _fixed(operator: str, opset: int, type_text: str) -> DType | None:
    """Return the dtype of a parameter that allows only one; None if it allows several."""
    allowed = _allowed(operator, opset, type_text)
    (text,) = allowed if len(allowed) == 1 else ("",)
    names = {"tensor(float)": "float32", "tensor(double)": "float64"}
    return as_dtype(names.get(text, text[7:-1])) if text.startswith("tensor(") else None
