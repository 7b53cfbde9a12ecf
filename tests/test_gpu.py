"""What must hold on an accelerator: values live there, and ops, tapes and compiled functions agree with the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import DeviceError
from hybridflow.core.op import REGISTRY, No, Op, Sample

pytestmark = pytest.mark.gpu

OPS = [op for op in REGISTRY.values() if not isinstance(op.samples, No) and op.public is not None]


def _first_sample(op: Op) -> Sample:
    samples: Any = op.samples
    return next(one for one in samples(np.random.default_rng(0)) if isinstance(one, Sample))


def _arrays(result: Any) -> list[Any]:
    found = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result)]
    return [array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in found]


def _on(device: str, op: Op) -> Any:
    sample = _first_sample(op)
    with hf.device(device):
        args = [hf.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in sample.args]
        return op.public(*args, **sample.kwargs)  # type: ignore[misc]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_op_gives_the_hosts_result(op: Op) -> None:
    for here, there in zip(_arrays(_on("cpu", op)), _arrays(_on("gpu", op)), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


def test_values_live_on_the_default_device_and_move() -> None:
    x = hf.asarray([1.0, 2.0])
    assert x.device != "cpu"
    assert (x * 2).device == x.device
    assert x.to("cpu").device == "cpu"
    with hf.device("cpu"):
        assert hf.asarray([1.0]).device == "cpu"


def test_inputs_on_two_devices_are_refused() -> None:
    with hf.device("cpu"):
        y = hf.asarray([1.0, 2.0])
    with pytest.raises(DeviceError, match=r"\.to\(device\)"):
        _ = hf.asarray([1.0, 2.0]) + y


def test_a_compiled_step_is_the_eager_one() -> None:
    w = hf.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))

    def step(x: hf.Tensor) -> hf.Tensor:
        with hf.GradientTape() as tape:
            loss = hf.sum(hf.tanh(x @ w))
        w.assign_sub(tape.gradient(loss, w) * 0.1)
        return loss

    hf.testing.assert_same(step, hf.asarray(np.ones((2, 4), np.float32)))
    assert w.device != "cpu"
