"""Nestings of Variables: all that takes them does, and all flatten them in one order."""

import dataclasses
import itertools
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, DepthError, NestingError

Pair = namedtuple("Pair", "second first")
Point = namedtuple("Point", "x v")


@dataclasses.dataclass
class Plain:
    x: Any
    v: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    v: Any


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any
    v: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: Any
    v: Any


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


# -- dataclasses are structures like any other --------------------------------------------------------------------


def as_dict(x, v):
    return {"x": x, "v": v}


def of(state, name):
    return state[name] if isinstance(state, dict) else getattr(state, name)


def moved(make):
    return lambda s: make(of(s, "x") + of(s, "v"), of(s, "v") * 0.5)


def energy(state):
    return hf.sum(of(state, "x") ** 2 * of(state, "v"))


def custom(make):
    @hf.custom_gradient
    def function(state):
        return moved(make)(state), lambda *g: [2 * one for one in g]

    return function


CONSTRUCTS = {
    "hf.scan": lambda make, x: hf.scan(lambda s, _: (moved(make)(s), s), make(x, x), hf.arange(3)),
    "hf.scan over": lambda make, x: hf.scan(lambda s, row: (s + of(row, "x"), s), x[0], make(x, x)),
    "hf.while_loop": lambda make, x: hf.while_loop(lambda s: hf.sum(of(s, "x")) < 11.0, moved(make), make(x, x)),
    "hf.while_loop with a counter": lambda make, x: hf.while_loop(
        lambda s, i: i < 3, lambda s, i: (moved(make)(s), i + 1), (make(x, x), 0)
    ),
    "hf.cond": lambda make, x: hf.cond(hf.sum(x) > 0, moved(make), lambda s: s, make(x, x)),
    "hf.vmap": lambda make, x: hf.vmap(moved(make))(make(x, x)),
    "hf.vmap, in_axes": lambda make, x: hf.vmap(moved(make), in_axes=(make(0, None),))(make(x, x[0])),
    "hf.grad": lambda make, x: hf.grad(energy)(make(x, x)),
    "hf.value_and_grad": lambda make, x: hf.value_and_grad(energy)(make(x, x)),
    "hf.jvp": lambda make, x: hf.jvp(moved(make), (make(x, x),), (make(x, x),)),
    "hf.vjp": lambda make, x: hf.vjp(moved(make), make(x, x))[1](make(x, x)),
    "hf.hvp": lambda make, x: hf.hvp(energy, (make(x, x),), (make(x, x),)),
    "hf.jacobian": lambda make, x: hf.jacobian(energy)(make(x, x)),
    "hf.checkpoint": lambda make, x: hf.checkpoint(moved(make))(make(x, x)),
    "hf.custom_gradient": lambda make, x: hf.grad(lambda s: energy(custom(make)(s)))(make(x, x)),
    "hf.from_jax": lambda make, x: hf.from_jax(moved(make))(make(x, x)),
    "hf.tree.map": lambda make, x: hf.tree.map(lambda a, b: a * b, make(x, x), make(x, x)),
    "hf.clip_by_global_norm": lambda make, x: hf.clip_by_global_norm(make(x, x), 0.5),
    "hf.GradientTape": lambda make, x: watched(make(x, x)),
}


def watched(state):
    with hf.GradientTape() as tape:
        tape.watch(state)
        value = energy(state)
    return tape.gradient(value, state)


@pytest.mark.parametrize("kind", [Point, Plain, Frozen, Slots, FrozenSlots])
@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_a_structure_of_any_kind_is_taken_apart_everywhere(construct, kind):
    x = hf.asarray([[1.0, 2.0], [0.5, 0.25]])

    def kinds(result):
        return [type(one).__name__ for one in hf.tree.leaves(result, lambda one: type(one) in (kind, dict))]

    def expected(make):
        return CONSTRUCTS[construct](make, x)

    for run in (CONSTRUCTS[construct], lambda make, x: hf.compile(lambda x: CONSTRUCTS[construct](make, x))(x)):
        found, same = run(kind, x), expected(as_dict)
        assert kinds(found) == [one.replace("dict", kind.__name__) for one in kinds(same)]
        named = hf.tree.map(lambda one: as_dict(one.x, one.v) if type(one) is kind else one, found,
                            is_leaf=lambda one: type(one) is kind)
        for a, b in zip(hf.tree.leaves(named), hf.tree.leaves(same), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("kind", [Point, Plain, Frozen])
def test_structures_in_structures(kind):
    start = kind(kind(hf.ones(2), hf.ones(2)), hf.ones(2))
    found = hf.scan(lambda s, _: (kind(moved(kind)(s.x), s.v), None), start, hf.arange(2))[0]
    assert type(found) is type(found.x) is kind
    np.testing.assert_array_equal(found.x.x, [2.5, 2.5])


@pytest.mark.parametrize("kind", [Point, Frozen, FrozenSlots])
def test_a_changing_number_of_a_dataclass_is_an_input(kind):
    f = hf.compile(lambda x, config: x * config.x if config.v == "scale" else x)
    for rate in (0.1, 0.2, 0.3, 0.4):
        np.testing.assert_allclose(f(hf.asarray(2.0), kind(rate, "scale")), 2 * rate, rtol=1e-6)
    assert f.trace_count == 1
    assert f(hf.asarray(2.0), kind(0.5, "keep")).item() == 2
    assert f.trace_count == 2


TOO_DEEP = {
    "leaves": lambda s: hf.tree.leaves(s),
    "leaves, asked for each": lambda s: hf.tree.leaves(s, lambda one: one is None),
    "map": lambda s: hf.tree.map(lambda one: one, s),
    "map of two": lambda s: hf.tree.map(lambda one, other: one, s, s),
    "an argument": lambda s: hf.compile(lambda s: hf.tree.leaves(s)[0])(s),
    "read from outside": lambda s: hf.compile(lambda x: hf.tree.leaves(s)[0] * x)(hf.ones(())),
    "a result": lambda s: hf.compile(lambda x: s)(hf.ones(())),
    "sources": lambda s: taped().gradient(hf.ones(()), s),
    "hf.jvp": lambda s: hf.jvp(lambda s: hf.tree.leaves(s)[0], (s,), (s,)),
    "hf.vmap": lambda s: hf.vmap(lambda s: hf.tree.leaves(s)[0])(s),
    "hf.scan": lambda s: hf.scan(lambda c, x: (c, x), s, hf.ones(2)),
    "an optimizer": lambda s: hf.optim.SGD(s, rate=0.1),
    "shard": lambda s: hf.distribute.shard(s, hf.Mesh({"data": 1})),
}


def taped():
    with hf.GradientTape() as tape:
        pass
    return tape


def nested(kind, depth):
    value = hf.Variable(1.0)
    for _ in range(depth):
        value = kind([("k", value)]) if kind is dict else kind([value])
    return value


@pytest.mark.parametrize(("way", "kind"), [*zip(TOO_DEEP, itertools.cycle([list, tuple, dict]))])
def test_what_is_nested_without_end_is_refused_and_nothing_else_breaks(way, kind):
    """A walk of jax's that fails while it asks a function would leave Python unable to call anything in C."""
    itself = [hf.Variable(1.0)]
    itself.append(itself)
    for value in (nested(kind, 100_000), itself):
        with pytest.raises((NestingError, DepthError), match="nested"):
            TOO_DEEP[way](value)
        assert sorted([2, 1], key=lambda one: one) == [1, 2]
        assert hf.tree.leaves(nested(kind, 90), lambda one: one is None)


@pytest.mark.parametrize("depth", [50, 300, 700])
def test_what_is_nested_deep_works_in_both_modes(depth):
    tree = nested(list, depth)
    for run in (lambda f: f, hf.compile):
        assert run(lambda s: hf.tree.leaves(s)[0] * 2)(tree).item() == 2
        assert run(lambda x: hf.tree.leaves(tree, lambda one: one is None)[0] * x)(hf.ones(())).item() == 1
