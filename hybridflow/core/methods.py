"""`TensorMethods`: the operators and methods that ops install (see `Op.method`); `methods.pyi` is generated."""

from __future__ import annotations


class TensorMethods:
    """Base of `Tensor` and `Variable`; every op with a ``method`` column adds itself here."""

    __slots__ = ()
