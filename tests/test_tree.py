"""Nestings of Variables: all that takes them does, and all flatten them in one order."""

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError

Pair = namedtuple("Pair", "second first")


def variable(value):
    return hf.Variable([float(value)], name=f"v{value}")


class Model(hf.nn.Module):
    def __init__(self):
        self.z, self.a = {"y": variable(5)}, [variable(8)]


NESTINGS = {
    "a dict of dicts": lambda: {"z": {"b": variable(3), "a": variable(2)}, "a": variable(1)},
    "a list of dicts": lambda: [{"w": variable(2), "b": variable(1)}, {"w": variable(4), "b": variable(3)}],
    "a tuple": lambda: (variable(1), [variable(2), {"q": (variable(3),)}]),
    "a named tuple": lambda: {"p": Pair(variable(1), {"z": variable(3), "a": variable(2)})},
    "numbers as keys": lambda: {10: variable(2), 9: {1: variable(1)}},
    "a dict": lambda: {"z": variable(2), "a": variable(1)},
    "an ordered dict": lambda: {"o": OrderedDict(z=variable(1), a=variable(2))},
    "a default dict": lambda: {"o": defaultdict(list, z=variable(2), a=variable(1))},
    "a model in a dict": lambda: {"m": Model(), "a": variable(1)},
}


def step(tree, optimizer):
    """Make one step on a loss in which each leaf has another factor; return the gradients."""
    with hf.GradientTape() as tape:
        loss = sum(hf.sum(one * one) * (place + 1.0) for place, one in enumerate(hf.tree.leaves(tree)))
    gradients = tape.gradient(loss, tree)
    optimizer.update(gradients)
    return gradients


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", NESTINGS)
def test_all_that_takes_variables_takes_a_nesting_in_one_order(name, compiled, tmp_path):
    tree = NESTINGS[name]()
    leaves, structure = hf.tree.flatten(tree)
    before = [one.numpy().copy() for one in leaves]
    optimizer, ema = hf.optim.SGD(tree, rate=0.01), hf.optim.EMA(tree, 0.5)
    gradients = (hf.compile(step) if compiled else step)(tree, optimizer)
    wanted = [2 * (place + 1) * value for place, value in enumerate(before)]
    assert [g.numpy().tolist() for g in hf.tree.leaves(gradients)] == [w.tolist() for w in wanted]
    after = [(value - np.float32(0.01) * g).tolist() for value, g in zip(before, wanted, strict=True)]
    np.testing.assert_allclose([one.numpy() for one in leaves], after, rtol=1e-6)
    assert [*map(id, optimizer._named().values())] == [*map(id, leaves)]
    ema.update()
    np.testing.assert_allclose([one.numpy() for one in ema.variables()], (np.add(before, after)) / 2, rtol=1e-6)
    if name in ("a tuple", "an ordered dict"):
        optimizer.update([0.0 * one for one in hf.tree.leaves(gradients)])  # a list, in the order of the leaves
    else:
        with pytest.raises(ArgumentError, match="a list of gradients for parameters in a dict"):
            optimizer.update([0.0 * one for one in hf.tree.leaves(gradients)])
    hf.save(tmp_path / "one", {"tree": tree, "optimizer": optimizer, "ema": ema})
    for one in leaves:
        one.assign(one * 0)
    hf.load(tmp_path / "one", into={"tree": tree, "optimizer": optimizer, "ema": ema})
    np.testing.assert_allclose([one.numpy() for one in leaves], after, rtol=1e-6)
    list(hf.train.Run(tmp_path / "run", data=[1], variables=tree, optimizer=optimizer, progress=False).steps(1))
    doubled = hf.tree.map(lambda one: one * 2, tree)
    np.testing.assert_allclose([one.numpy() for one in hf.tree.leaves(doubled)], np.multiply(after, 2), rtol=1e-6)
    assert hf.tree.leaves(hf.tree.unflatten(structure, range(len(leaves)))) == [*range(len(leaves))]


ORDERED = {"z": 1.0, "a": {"y": 2.0, "b": 3.0}}
FLATTEN = {
    "hf.grad": lambda f, x: hf.grad(f)(x),
    "hf.value_and_grad": lambda f, x: hf.value_and_grad(f)(x)[1],
    "hf.vjp": lambda f, x: hf.vjp(f, x)[1](hf.asarray(1.0))[0],
    "hf.jacobian": lambda f, x: hf.jacobian(f)(x),
    "hf.compile": lambda f, x: hf.compile(hf.grad(f))(x),
    "hf.vmap": lambda f, x: hf.tree.map(hf.sum, hf.vmap(hf.grad(f))(hf.tree.map(lambda one: one[None], x))),
    "hf.clip_by_global_norm": lambda f, x: hf.clip_by_global_norm(hf.grad(f)(x), 1e9)[0],
    "hf.checkpoint": lambda f, x: hf.grad(hf.checkpoint(f))(x),
}


@pytest.mark.parametrize("way", FLATTEN)
def test_the_order_of_a_dict_is_that_of_its_sorted_keys(way):
    def f(x):
        return x["z"] * 5 + x["a"]["y"] * 6 + x["a"]["b"] * 7

    found = FLATTEN[way](f, hf.tree.map(hf.asarray, ORDERED))
    assert [one.item() for one in hf.tree.leaves(found)] == [7, 6, 5]


def test_a_compiled_function_sees_what_is_added_to_a_nesting():
    params = {"w": hf.Variable(1.0)}
    f = hf.compile(lambda x: sum(hf.tree.leaves(hf.tree.map(lambda one: one * x, params))))
    assert f(hf.asarray(2.0)).item() == 2
    params["b"] = hf.Variable(10.0)
    assert f(hf.asarray(2.0)).item() == 22


def test_control_flow_in_the_function_of_map():
    f = hf.compile(lambda tree: hf.tree.map(lambda one: one if one > 0 else -one, tree))
    assert hf.tree.map(hf.Tensor.item, f({"a": hf.asarray(-1.0), "b": [hf.asarray(2.0)]})) == {"a": 1.0, "b": [2.0]}
