"""What must hold on an accelerator: values live there, and ops, tapes and compiled functions agree with the host.

Where there is none, `test_stand_in` runs these tests with a second CPU device in its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import DeviceError, HybridflowError
from hybridflow.core.op import REGISTRY, No, Op, Sample
from hybridflow.core.pending import MOST_AWAY

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
    for here, there in zip(_arrays(_on("cpu", op)), _arrays(_on(hf.ones(()).device, op)), strict=True):
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
        y, number = hf.asarray([1.0, 2.0]), hf.asarray(1.0)
    x = hf.asarray([1.0, 2.0])
    with pytest.raises(DeviceError, match=r"\.to\(device\)"):
        _ = x + y
    assert (x + number).device == x.device


def test_a_compiled_step_is_the_eager_one() -> None:
    w = hf.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))

    def step(x: hf.Tensor) -> hf.Tensor:
        with hf.GradientTape() as tape:
            loss = hf.sum(hf.tanh(x @ w))
        w.assign_sub(tape.gradient(loss, w) * 0.1)
        return loss

    hf.testing.assert_same(step, hf.asarray(np.ones((2, 4), np.float32)))
    assert w.device != "cpu"


NEW: dict[str, Callable[[], Any]] = {
    "asarray": lambda: hf.asarray([1.0]),
    "zeros": lambda: hf.zeros(2),
    "full": lambda: hf.full((2,), 3.0),
    "arange": lambda: hf.arange(3),
    "eye": lambda: hf.eye(2),
    "a compiled function without inputs": lambda: hf.compile(lambda: hf.ones(3))(),
    "a draw": lambda: hf.random.normal((2,)),
    "a large draw": lambda: hf.random.uniform((300, 300)),
    "a permutation": lambda: hf.random.permutation(4),
    "a generator's draw": lambda: hf.random.Generator(0).normal((3,)),
    "a Variable": lambda: hf.Variable([1.0]).read(),
    "weights": lambda: hf.nn.Linear(64, 128).weight,
    "a moving average": lambda: hf.nn.BatchNorm1d(3).running_mean,
    "a layer's result": lambda: hf.nn.LSTM(3, 4)(hf.ones((2, 5, 3)))[0],
    "a batch": lambda: next(iter(hf.data.Batches(np.ones((8, 3), np.float32), 4))),
    "a prediction": lambda: hf.train.predict(lambda x: x * 2, np.arange(5, dtype=np.float32), batch_size=2),
}


@pytest.mark.parametrize("make", NEW.values(), ids=NEW)
def test_new_values_are_where_the_block_says(make: Callable[[], Any]) -> None:
    there = hf.asarray(0.0).device
    assert there != "cpu"
    assert make().device == there
    with hf.device("cpu"):
        assert make().device == "cpu"
    assert make().device == there


def test_likeness_includes_the_device() -> None:
    x = hf.ones(2, device="cpu")
    assert hf.zeros_like(x).device == "cpu"
    assert hf.zeros_like(hf.ones(2)).device == hf.ones(2).device
    assert hf.zeros_like(x, device=hf.ones(2).device).device != "cpu"


def test_a_seed_and_a_state_leave_a_generator_where_it_is() -> None:
    with hf.device("cpu"):
        generator = hf.random.Generator(0)
    generator.seed(1)
    generator.state = hf.asarray(generator.state.numpy())
    assert generator.normal((2,)).device == "cpu"


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda net: hf.optim.SGD(net, 0.1, momentum=0.9),
    "AdamW": lambda net: hf.optim.AdamW(net, 0.01),
}


def _trained(optimizer: Callable[[Any], Any], compiled: bool, device: str) -> Any:
    rng = np.random.default_rng(1)
    with hf.device(device):
        hf.nn.init.seed(0)
        net = hf.nn.Sequential(hf.nn.Linear(8, 16), hf.nn.BatchNorm1d(16), hf.nn.ReLU(), hf.nn.Linear(16, 3))
        rule = optimizer(net)
        x, y = hf.asarray(rng.standard_normal((32, 8)).astype(np.float32)), hf.asarray(rng.integers(0, 3, 32))

        def step(x: Any, y: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = hf.mean(hf.nn.softmax_cross_entropy(net(x), y))
            rule.update(tape.gradient(loss, net))
            return loss

        run = hf.compile(step) if compiled else step
        losses = [run(x, y).item() for _ in range(8)]
    assert {one.device for one in (*net.parameters(), *rule.variables()) if one.ndim} == {x.device}
    return losses


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_model_trains_as_on_the_host(optimizer: Callable[[Any], Any]) -> None:
    there = hf.asarray(0.0).device
    host = _trained(optimizer, False, "cpu")
    for compiled in (False, True):
        np.testing.assert_allclose(_trained(optimizer, compiled, there), host, rtol=1e-3)


@pytest.mark.parametrize("read", [False, True], ids=["not read", "read"])
def test_a_failed_check_is_raised_when_a_result_is_read_or_some_calls_later(read: bool) -> None:
    total = hf.Variable(0.0)

    @hf.compile
    def step(x: Any) -> Any:
        hf.debugging.check(hf.all(x > 0), "positive")
        total.assign_add(hf.sum(x))
        return total.read()

    good, bad = hf.ones(3), hf.asarray([1.0, -1.0, 1.0])
    step(good).item()
    step(good)
    result = step(bad)
    with pytest.raises(HybridflowError, match="positive"):  # noqa: PT012 (any of the calls may raise it)
        if read:
            result.item()
        for _ in range(MOST_AWAY + 1):
            step(good)
    hf.synchronize()
    step(good)
    assert total.read().item() % 3 == 0


def test_large_values_on_the_host_go_to_both_devices() -> None:
    total = hf.compile(lambda x: hf.sum(x * 2))
    with hf.device("cpu"):
        x = hf.ones((300, 300))
        assert total(x).device == "cpu"
    assert total(x).device == hf.ones(2).device
    with hf.device("cpu"):
        assert total(x).item() == 180_000.0


def test_a_compiled_call_on_another_device_is_refused() -> None:
    double, weight = hf.compile(lambda x: x * 2), hf.Variable([1.0, 2.0])
    scaled = hf.compile(lambda x: x * weight)
    x = hf.ones(2)
    with hf.device("cpu"):
        with pytest.raises(DeviceError, match=f"takes a value on {x.device}"):
            double(x)
        with pytest.raises(DeviceError, match=f"takes a value on {x.device}"):
            scaled(hf.ones(2))
    assert double(x).device == x.device
    assert scaled(x).tolist() == [1.0, 2.0]


def test_a_comparison_reads_both_sides() -> None:
    comparison = hf.compare(lambda x: hf.exp(x) / hf.sum(x), hf.ones(3))
    assert comparison.same
