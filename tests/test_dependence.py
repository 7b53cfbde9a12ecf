"""Where no gradient comes to is the same around a compiled function as around the function itself."""

import itertools

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
