"""The operation behind Python numbers that depend on tensors."""

from __future__ import annotations

from typing import Any

from jax import lax

from hybridflow.core.op import No, Op, Stops, register


def _rounded(x: Any) -> Any:
    return lax.select(lax.eq(x, x), x, lax.full_like(x, float("nan")))


NUMBER = register(
    Op(
        "number",
        lambda x: x,  # pyright: ignore[reportUnknownLambdaType]
        _rounded,
        lambda x: x,  # pyright: ignore[reportUnknownLambdaType]
        Stops("a Python number has no gradient"),
        samples=No("made of Python numbers that tensors decide; tested in tests/test_staged_numbers.py"),
        traits=frozenset({"pointwise", "layout"}),
        onnx="Identity",
    )
)
"""An identity that XLA does not see through, so that it does not fuse the operations before and after it."""
