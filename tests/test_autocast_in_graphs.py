"""`hf.autocast` in every construct that makes a graph of its own, wherever it is set, with gradients.

The oracle is the function without the construct, in eager code.
"""

import itertools
import random

import numpy as np
import pytest
from test_no_grad_in_graphs import CONSTRUCTS, MESH, WAYS, X

import hybridflow as hf

W = np.linspace(-1.0, 1.0, 9, dtype=np.float32).reshape(3, 3)


def product(x, w):
    return (hf.astype(x, "float32") * w) @ hf.asarray(W)


def inside(f, x, w):
    def g(x):
        with hf.autocast():
            y = product(x, w)
        return hf.astype(y, "float32") * x

    return f(g)(x)


def decorated(f, x, w):
    return f(lambda x: hf.astype(hf.autocast(hf.float16)(lambda: product(x, w))(), "float32") + x)(x)


def around(f, x, w):
    with hf.autocast():
        y = f(lambda x: hf.astype(product(x, w), "float32") * x)(x)
    return y + product(x, w)


def off_inside(f, x, w):
    def g(x):
        y = hf.astype(product(x, w), "float32")
        with hf.autocast(enabled=False):
            return y + product(x, w)

    with hf.autocast():
        return f(g)(x)


def left_by_an_exception(f, x, w):
    def g(x):
        y = x
        try:
            with hf.autocast():
                y = hf.astype(product(x, w), "float32")
                [][0]
        except IndexError:
            y = y + x
        return y + product(x, w)

    return f(g)(x)


def the_dtype_that_comes_out(f, x, w):
    with hf.autocast():
        y = product(x, w) * 1
        return y.astype("float32") + (1.0 if f(lambda x: x * 1)(y).dtype == hf.bfloat16 else 0.0)


PLACES = {
    one.__name__: one
    for one in (inside, decorated, around, off_inside, left_by_an_exception, the_dtype_that_comes_out)
}
REFUSED = {("for over arange", "the_dtype_that_comes_out")}
"""The loop begins with another dtype than a step gives, which is an error in a compiled function."""
PROGRAMS = [
    one for one in itertools.product(CONSTRUCTS, PLACES, ("a tape", ".backward()", "hf.jvp"), (False, True))
    if one[0] != "recompute" and one[:2] not in REFUSED  # a model is not changed while it is traced
]
FIRST = random.Random(48).sample([one for one in PROGRAMS if not one[3]], 5)


def derivative(construct, place, way, whole):
    """Return a derivative of a function in a construct, as arrays."""
    w = hf.Variable(0.8, requires_grad=True)

    def f(x):
        return PLACES[place](CONSTRUCTS[construct], x, w)

    options = {"mesh": MESH} if construct == "shard_map" else {}
    ask = hf.compile(lambda x: WAYS[way](f, x, w), **options) if whole else lambda x: WAYS[way](f, x, w)
    found = ask(hf.asarray(X))
    return [one.numpy() for one in (found if isinstance(found, list | tuple) else [found])]


@pytest.mark.parametrize(
    "program", [*FIRST, *[pytest.param(one, marks=pytest.mark.rest) for one in PROGRAMS if one not in FIRST]],
    ids=lambda one: "-".join([*one[:3], "compiled" if one[3] else "eager"]),
)
def test_autocast_is_the_same_in_a_graph_of_its_own(program):
    expected = derivative("plain", *program[1:3], whole=False)
    for one, other in zip(derivative(*program), expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
