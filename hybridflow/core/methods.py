"""`TensorMethods`: the operators and methods that ops install (see `Op.method`); `methods.pyi` is generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TensorMethods:
    """Base of `Tensor` and `Variable`; every op with a ``method`` column adds itself here."""

    __slots__ = ()


def add_method(name: str, function: Callable[..., Any], *, as_property: bool = False) -> None:
    """Give tensors a method, or a property, that is not an op of its own."""
    setattr(TensorMethods, name, property(function) if as_property else function)
