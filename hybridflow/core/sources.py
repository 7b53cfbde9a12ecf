"""The sources of a graph: inputs, whose values come from the call, and constants, which the graph holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.errors import LeakError
from hybridflow.core.op import No, Op, register
from hybridflow.core.spec import TensorSpec, make_spec


class Constant:
    """An array as an attribute: hashable, compared by dtype, shape and bits."""

    __slots__ = ("_hash", "array")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        a, b = self.array, other.array
        return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.array.dtype.num, self.array.shape, self.array.tobytes()))
        return self._hash

    def __repr__(self) -> str:
        return f"Constant({self.array!r})"


def _no_value(*_: Any, **__: Any) -> Any:
    raise LeakError("input: has no value outside a call", hint="Pass one value per input of the graph.")


def _constant_lower(*, value: Constant) -> Any:
    return value.array


def _constant_infer(*, value: Constant) -> TensorSpec:
    return make_spec(value.array.shape, value.array.dtype)


INPUT = register(
    Op("input", No("given at the call"), _no_value, _no_value, No("a source"), traits=frozenset({"source"}),
       onnx=No("a model declares its inputs"))
)
CONSTANT = register(
    Op("constant", _constant_lower, _constant_lower, _constant_infer, No("a constant"), traits=frozenset({"source"}),
       onnx=lambda o, *, value: o.value(value.array))
)
