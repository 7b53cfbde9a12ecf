"""Where no gradient comes to is the same around a compiled function as around the function itself."""

import itertools

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import HybridflowError

STEPS = {
    "cast": lambda v: v.astype(hf.int32).astype(hf.float32),
    "floor": hf.floor,
    "double": lambda v: v * 2.0,
    "int": lambda v: v.astype(hf.int32),
    "greater": lambda v: v > 1.0,
    "detach": lambda v: v.detach(),
}
RESULTS = {
    "one": lambda a, b: a,
    "sum": lambda a, b: a + b,
    "pair": lambda a, b: (a, b * 2.0),
}


def gradients(inside, outside, result, *, compiled, backward):
    x, z = [hf.Variable(value, requires_grad=backward) for value in ([1.5, 2.5], [1.0, 1.0])]

    def f(a, b):
        for name in inside:
            a = STEPS[name](a)
        return RESULTS[result](a, b)

    function = hf.compile(f) if compiled else f

    def loss():
        found = function(x, z)
        total = 0.0
        for one in found if isinstance(found, tuple) else (found,):
            for name in outside:
                one = STEPS[name](one)
            total = total + hf.sum(one.astype(hf.float32))
        return total

    try:
        if backward:
            loss().backward()
            found = [one.grad for one in (x, z)]
        else:
            with hf.GradientTape() as tape:
                value = loss()
            found = tape.gradient(value, [x, z])
    except HybridflowError as error:
        return str(error).splitlines()[0]
    return [None if one is None else one.tolist() for one in found]


@pytest.mark.parametrize("backward", [False, True], ids=["tape", "backward"])
@pytest.mark.parametrize("result", RESULTS)
def test_none_zeros_and_errors_are_those_of_the_function(result, backward):
    insides = [("cast",), ("floor",), ("int",), ("greater",), ("detach",), ("cast", "double")]
    for inside, outside in itertools.product(insides, [(), ("floor",), ("cast",)]):
        eager, compiled = [
            gradients(inside, outside, result, compiled=mode, backward=backward) for mode in (False, True)
        ]
        assert compiled == eager, (inside, outside)


def in_a_branch(a, b):
    """Two values that a branch chooses; one of them depends on `a` by the choice alone."""
    place, height = hf.asarray(1.0), hf.sum(a)
    for _ in range(3):
        new = place + 0.3 * hf.sum(b)
        if height < height * new + 5.0:
            place, height = new, height * new
    return place


def in_a_loop_of_known_length(a, b):
    place, height = hf.asarray(1.0), hf.sum(a)
    step = hf.asarray(0)
    while step < 3:
        place, height = place + hf.sum(b), height * place
        step = step + 1
    return place


def in_a_loop_on_values(a, b):
    place, height = hf.asarray(1.0), hf.sum(a)
    while place < 20.0:
        place, height = place + hf.sum(b), height * place
    return place


def in_a_scan(a, b):
    def step(state, row):
        place, height, last = state
        return (place * 2.0, height + row, place), (place + hf.sum(b), last)

    (_, _, last), (rows, lasts) = hf.scan(step, (hf.asarray(1.0), hf.sum(a), hf.asarray(0.0)), a)
    return hf.sum(rows) + last + hf.sum(lasts)


def in_two_steps(a, b):
    """What is carried takes two steps to come from `a` to the result."""
    first, second, third = hf.sum(a), hf.sum(b), hf.asarray(0.0)
    while third < 4.0:
        first, second, third = first * 2.0, hf.abs(first), hf.abs(second) + third + 1.0
    return third


def behind_a_floor(a, b):
    place, height = hf.asarray(0.0), hf.sum(b)
    while place < 6.0:
        place, height = place + hf.floor(hf.sum(a)), height + place
    return place


def in_a_call(a, b):
    return hf.compile(lambda a, b: (hf.sum(a) * 2.0, hf.sum(b) * 3.0))(a, b)[1]


PROGRAMS = [in_a_branch, in_a_loop_of_known_length, in_a_loop_on_values, in_a_scan, in_two_steps, behind_a_floor,
            in_a_call]


@pytest.mark.parametrize("around", ["tape", "inside", "checkpoint"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_carried_together_does_not_depend_on_each_other(program, around):
    a, b = hf.asarray([1.5, 2.5]), hf.asarray([1.0, 1.5])

    def taken(f):
        f = hf.checkpoint(f) if around == "checkpoint" else f

        def found(a, b):
            with hf.max_iterations(30), hf.GradientTape() as tape:
                tape.watch([a, b])
                value = f(a, b)
            return tape.gradient(value, [a, b])

        return found

    expected = taken(program)(a, b)
    got = taken(hf.compile(program))(a, b) if around == "tape" else hf.compile(taken(program))(a, b)
    assert [one is None for one in got] == [one is None for one in expected]
    for one, other in zip(got, expected, strict=True):
        if other is not None:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
