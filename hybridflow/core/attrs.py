"""Keys of attributes: two operations are the same only if their attributes have equal keys."""

from __future__ import annotations

import math
from typing import Any, cast

from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.spec import TensorSpec

_PLAIN = frozenset({bool, int, str, type(None), type(...)})


def attrs_key(attrs: dict[str, Any]) -> Any:
    """Return a key for a set of attributes: equal keys mean that every op treats the two sets alike."""
    return frozenset([(name, attr_key(value)) for name, value in attrs.items()])


def attr_key(value: Any) -> Any:
    """Return a key for an attribute value.

    The key includes the type and the sign of zero, since Python treats 1, 1.0 and True, or 0.0 and -0.0, as equal.
    Symbolic sizes are compared as expressions. Other objects (dtypes, constants, graphs, functions) are their own
    keys.
    """
    kind = type(value)
    if kind is tuple:
        return tuple([attr_key(item) for item in cast("tuple[Any, ...]", value)])
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return _float_key(value)
    if kind is complex:
        return complex, _float_key(value.real), _float_key(value.imag)
    if kind is SizeFloat:
        return "float of sizes", value.text()
    if kind is Dim:
        return "size", str(value)
    if kind is TensorSpec:
        return "spec", str(value)
    return value


def _float_key(value: float) -> Any:
    if math.isnan(value):
        return "nan", math.copysign(1.0, value)
    return float, value.hex()
