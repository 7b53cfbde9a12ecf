"""What `assign_add` and `assign_sub` write to: memory that nobody else has, and no other."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf

SHAPE = (70, 90)


def address(tensor: Any) -> int:
    return tensor.numpy().ctypes.data


def ones(value: float = 1.0) -> Any:
    return hf.asarray(np.full(SHAPE, value, np.float32))


def test_a_temporary_becomes_the_value():
    w = hf.Variable(ones(5.0))
    before = w.read()
    seen: list[int] = []

    def step(scale: float) -> Any:
        made = ones() * scale
        seen.append(address(made))
        return made

    w.assign_sub(step(2.0))
    assert address(w.read()) == seen[0]
    w.assign_add(step(4.0))
    assert address(w.read()) == seen[1]
    assert np.all(w.numpy() == 7.0)
    assert np.all(before.numpy() == 5.0)


KEEPERS: list[Callable[[Any], Any]] = [
    lambda t: t,
    lambda t: [t],
    lambda t: t.numpy(),
    lambda t: memoryview(t.numpy()),
    lambda t: hf.reshape(t, (90, 70)),
    lambda t: t[:3],
    lambda t: hf.Variable(t),
    lambda t: t.__dlpack__(),
    lambda t: hf.compile(lambda x: x + 0.0)(t),
    lambda t: np.asarray(t),
    lambda t: memoryview(t) if sys.version_info >= (3, 12) else t,
    lambda t: np.asarray(type("Other", (), {"__array_interface__": t.__array_interface__})()),
    lambda t: iter([t]),
]


@pytest.mark.parametrize("keep", KEEPERS)
def test_what_somebody_has_stays(keep: Callable[[Any], Any]):
    w = hf.Variable(ones(5.0))
    held: list[Any] = []

    def made() -> Any:
        tensor = ones() * 3.0
        held.append(keep(tensor))
        return tensor

    w.assign_sub(made())
    w.assign_add(made())
    w.assign_sub(held[0] if type(held[0]) is hf.Tensor and held[0].shape == SHAPE else made())
    assert np.all(w.numpy() == 2.0)
    for one in held:
        if isinstance(one, hf.Tensor | hf.Variable | np.ndarray | memoryview):
            assert np.all(np.asarray(one) == 3.0)
        elif isinstance(one, list):
            assert np.all(one[0].numpy() == 3.0)


def test_a_view_of_what_somebody_has():
    w, flat, wide = hf.Variable(ones(5.0)), hf.ones(70 * 90), hf.ones((140, 90))
    w.assign_sub(hf.reshape(flat, SHAPE))
    w.assign_sub(wide[:70])
    assert np.all(w.numpy() == 3.0)
    assert np.all(flat.numpy() == 1.0)
    assert np.all(wide.numpy() == 1.0)


def test_a_name_keeps_a_tensor():
    w, step = hf.Variable(ones(5.0)), ones()
    w.assign_sub(step)
    by_attribute = type("Holder", (), {"step": step})
    w.assign_sub(by_attribute.step)
    list(map(w.assign_sub, [step]))
    w.assign_sub(*(step,))
    w.assign_sub(value=step)
    assert np.all(step.numpy() == 1.0)
    assert np.all(w.numpy() == 0.0)


@pytest.mark.parametrize("function", [hf.exp, hf.sqrt, lambda x: x * x, hf.nn.relu])
def test_what_a_recording_saved_stays(function: Callable[[Any], Any]):
    w, x = hf.Variable(ones(5.0)), hf.Variable(ones(4.0))
    with hf.GradientTape(persistent=True) as tape:
        y = hf.sum(function(x.read()))
        again = hf.sum(function(x.read()))
    expected = tape.gradient(y, x).numpy()
    with hf.GradientTape() as second:
        inner = [function(x.read())]
        target = hf.sum(inner[0])
    w.assign_sub(inner.pop())
    w.assign_sub(tape.gradient(again, x))
    np.testing.assert_array_equal(second.gradient(target, x).numpy(), expected)


def test_leaves_and_their_gradients():
    w = hf.Variable(ones(5.0), requires_grad=True)
    hf.sum(w * w).backward()
    w.assign_sub(w.grad * 0.1)
    np.testing.assert_allclose(w.numpy(), 4.0, rtol=1e-6)
    np.testing.assert_allclose(w.grad.numpy(), 10.0, rtol=1e-6)
    before = w.grad.numpy()
    w.assign_sub(w.grad)
    np.testing.assert_array_equal(w.grad.numpy(), before)


@pytest.mark.parametrize("make", [
    lambda: hf.broadcast_to(hf.asarray(np.float32(1)), SHAPE), lambda: ones().mT.mT, lambda: ones().astype(hf.float64),
    lambda: hf.ones((90, 70)).mT, lambda: hf.compile(lambda: hf.ones(SHAPE))(),
])
def test_other_operands(make: Callable[[], Any]):
    w = hf.Variable(ones(5.0))
    if make().dtype != w.dtype:
        with pytest.raises(TypeError):
            w.assign_sub(make())
        assert np.all(w.numpy() == 5.0)
        return
    w.assign_sub(make())
    w.assign_sub(make())
    assert np.all(w.numpy() == 3.0)


def test_wrong_shapes_are_named():
    w = hf.Variable(ones())
    with pytest.raises(ValueError, match="70"):
        w.assign_sub(hf.ones((90, 70)) * 2.0)


def test_the_old_value_is_freed():
    w = hf.Variable(ones())
    old = weakref.ref(w._value)
    w.assign_sub(ones() * 2.0)
    assert old() is None


def test_a_tape_that_records_reads():
    w = hf.Variable(ones(2.0))
    with hf.GradientTape() as tape:
        y = hf.sum(w * 3.0)
        w.assign_sub(ones() * 1.0)
        y = y + hf.sum(w * w)
    assert np.all(w.numpy() == 1.0)
    assert tape.gradient(y, w) is not None
