"""Gradients of slices are added up in one array, with the bits of sums of whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core import slice_gradient
from hybridflow.core.slice_gradient import SliceGradient

X = np.asarray([[1.5, -0.0, 2.0], [0.25, -3.0, 1e-3], [1e5, 4.0, -0.125], [0.0, 1.0, 7.0]], np.float32)
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "one slice": lambda x: hf.sum(x[1] * -0.0),
    "rows": lambda x: sum(hf.sum(x[i] * (i - 1.5)) for i in range(4)),
    "overlapping": lambda x: hf.sum(x[:3] * 0.1) + hf.sum(x[1:, ::-1] * 0.7) + hf.sum(x[2, 1:] * 1e-3),
    "minus zeros": lambda x: hf.sum(x[0] * -0.0) + hf.sum(x[2:] * -0.0),
    "with a whole one first": lambda x: hf.sum(x * 0.3) + hf.sum(x[0] * 0.1) + hf.sum(x[1:3] * 0.2),
    "with a whole one last": lambda x: hf.sum(x[0] * 0.1) + hf.sum(x[1:3] * 0.2) + hf.sum(x * -0.0),
    "slices of slices": lambda x: sum(hf.sum(x[1:][i][:2] * 0.3 * i) for i in range(3)),
    "read by an operation": lambda x: hf.sum((x * x)[0] * 0.1) + hf.sum((x * 2.0)[1:, 0]),
}


def gradient(fn: Callable[[Any], Any], x: Any) -> Any:
    x = hf.asarray(x)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.gradient(y, x).numpy()


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_a_walk_that_is_recorded(name: str):
    x = hf.asarray(X)
    with hf.GradientTape() as outer:  # its gradients are operations on tensors, which add whole arrays
        outer.watch(x)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = PROGRAMS[name](x)
        recorded = tape.gradient(y, x)
    assert gradient(PROGRAMS[name], X).tobytes() == recorded.numpy().tobytes()
    hf.testing.assert_same(hf.compile(lambda x: hf.grad(PROGRAMS[name])(x)), X)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_other_dtypes(dtype: str):
    def fn(x: Any) -> Any:
        parts = [x[i] * x[i] for i in range(4)]
        return hf.sum(hf.real(sum(parts)) if dtype.startswith("complex") else sum(parts))

    x = np.asarray(X, dtype=hf.asarray([0.0], dtype=dtype).numpy().dtype)
    assert np.array_equal(gradient(fn, x), hf.grad(fn)(hf.asarray(x)).numpy())


def test_a_loop_over_slices_makes_one_array(monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    first = slice_gradient.SliceSum.__init__

    def counted(self: Any, one: SliceGradient) -> None:
        made.append(1)
        first(self, one)

    monkeypatch.setattr(slice_gradient.SliceSum, "__init__", counted)
    monkeypatch.setattr(SliceGradient, "__array__", lambda *_: pytest.fail("a slice became a whole array"))
    x = np.ones((50, 3), np.float32)
    found = gradient(lambda x: hf.sum(sum(x[i] * float(i) for i in range(50)) + 0.0 * hf.sum(x)), x)
    assert made == [1]
    np.testing.assert_array_equal(found[:, 0], np.arange(50))
