"""`hf.data`: batches, orders, positions, and the thread that makes them ahead."""

from __future__ import annotations

import threading
import traceback
from itertools import chain
from typing import Any

import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError


def values(batches: Any) -> list[list[int]]:
    return [one.numpy().tolist() for one in batches]


def test_structures_and_sequences():
    x = np.arange(6).reshape(3, 2)
    (single,) = [one.numpy() for one in hf.data.Batches(x, 5)]
    np.testing.assert_array_equal(single, x)
    first = next(iter(hf.data.Batches({"x": x, "y": (x, x)}, 2)))
    assert first["x"].shape == (2, 2)
    assert first["y"][1].shape == (2, 2)
    examples = [(np.float32(i), {"n": i}) for i in range(5)]
    a, b = next(iter(hf.data.Batches(examples, 3)))
    assert a.numpy().tolist() == b["n"].numpy().tolist() == [0, 1, 2]


def test_batches_do_not_change_with_the_data():
    x = np.arange(4)
    batch = next(iter(hf.data.Batches(x, 2)))
    x[:] = 9
    assert batch.numpy().tolist() == [0, 1]


def test_orders_are_the_seeds_and_cover_all():
    data, again = (hf.data.Batches(np.arange(10), 3, shuffle=True, seed=4) for _ in range(2))
    epochs = [values(data) for _ in range(3)]
    assert epochs == [values(again) for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert all(sorted(chain(*one)) == list(range(10)) for one in epochs)
    assert len(values(hf.data.Batches(np.arange(10), 3, drop_last=True))) == 3


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_a_position_is_taken_up(ahead: int, stop: int):
    def make() -> Any:
        data = hf.data.Batches(np.arange(10), 3, shuffle=True, seed=4)
        return data.prefetch(ahead) if ahead else data

    def forever(data: Any) -> Any:
        while True:
            for one in data:
                yield one.numpy().tolist(), data.state()

    straight = forever(make())
    expected = [next(straight)[0] for _ in range(10)]
    begun = forever(make())
    seen = [next(begun) for _ in range(stop)]
    begun.close()
    other = make()
    other.restore(seen[-1][1])
    rest = forever(other)
    assert [one for one, _ in seen] + [next(rest)[0] for _ in range(10 - stop)] == expected
    for one in (straight, rest):
        one.close()


def threads() -> int:
    return sum(one.name == "hybridflow-prefetch" for one in threading.enumerate())


def test_the_thread_ends_with_the_loop():
    def endless() -> Any:
        while True:
            yield 1

    for _ in hf.data.prefetch(endless(), 2):
        assert threads() == 1
        break
    assert threads() == 0
    assert list(hf.data.prefetch(range(3))) == [0, 1, 2]
    assert threads() == 0


def test_errors_arrive_with_their_place():
    def broken(batch: Any) -> Any:
        raise KeyError("planted")

    data = hf.data.Batches(np.arange(4), 2).map(broken).prefetch(2)
    with pytest.raises(KeyError, match="planted") as caught:
        list(data)
    assert "broken" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert threads() == 0


def test_wrong_data_is_refused():
    with pytest.raises(ArgumentError, match=r"there is no batch\n  got: 0 examples"):
        hf.data.Batches(np.zeros((0, 3)), 2)
    with pytest.raises(ArgumentError, match="drop_last=True"):
        hf.data.Batches(np.zeros(3), 4, drop_last=True)
    with pytest.raises(ShapeError, match=r"\(3,\), \(4,\)"):
        hf.data.Batches((np.zeros(3), np.zeros(4)), 2)
    with pytest.raises(ArgumentError, match="size must be"):
        hf.data.Batches(np.zeros(3), 0)
    with pytest.raises(ArgumentTypeError, match="no rows and no examples"):
        hf.data.Batches(3, 2)
    with pytest.raises(ArgumentError, match="no position"):
        hf.data.Batches(np.zeros(3), 2).restore({"epoch": 0})


def test_a_loop_that_was_left_does_not_hold_up_the_end_of_the_program():
    code = """
        import hybridflow as hf
        data = iter(hf.data.prefetch(range(1000), 2))
        print(next(data))
    """
    assert run_python(code, timeout=60) == "0\n"
