"""`hf.no_grad` in every construct that makes a graph of its own, wherever it is set, and however it is differentiated.

The oracle is the function without the construct and without `hf.no_grad`: its constants pass `hf.stop_gradient`.
"""

import asyncio
import contextlib
import itertools
import random

import numpy as np
import pytest
from modes import program, same

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import TraceError

X = np.array([0.3, -0.7, 1.1], np.float32)
DIRECTION = np.array([0.5, -1.0, 2.0], np.float32)

# -- where it is set: a function of (x, w, stopped); with `stopped`, the same without hf.no_grad ----------------------


def const(stopped, function):
    """Return what a function computes, as a constant."""
    if stopped:
        return hf.stop_gradient(function())
    with hf.no_grad():
        return function()


def a_block(x, w, stopped):
    target = const(stopped, lambda: hf.tanh(x * w))
    return (x * w - target) ** 2


def two_operations(x, w, stopped):
    target = const(stopped, lambda: hf.exp(hf.tanh(x * w)) * 0.1)
    return x * w * target + hf.sin(x * target)


def the_whole(x, w, stopped):
    return const(stopped, lambda: hf.tanh(x * w))


def a_part_of_the_result(x, w, stopped):
    return x * w + const(stopped, lambda: hf.cos(x))


def a_block_in_a_block(x, w, stopped):
    def inside():
        y = hf.sin(x)
        return y * const(stopped, lambda: hf.cos(y * w))

    return x * w * const(stopped, inside) + x


def after_an_exception(x, w, stopped):
    y = const(stopped, lambda: hf.tanh(x))
    try:
        const(stopped, lambda: [][0])
    except IndexError:
        y = y * 0.5
    return y * hf.sin(x * w)


def decorated(x, w, stopped):
    def target(v):
        return hf.tanh(v * w)

    y = hf.stop_gradient(target(x)) if stopped else hf.no_grad()(target)(x)
    return (hf.sin(x) - y) * w


def decorated_bare(x, w, stopped):
    def target(v):
        return hf.tanh(v * w), hf.cos(v)

    a, b = map(hf.stop_gradient, target(x)) if stopped else hf.no_grad(target)(x)
    return a * x + b * w


def on_again_inside(x, w, stopped):
    if stopped:
        a = hf.stop_gradient(hf.sin(x))
        return hf.cos(x * w) * a + hf.stop_gradient(hf.cos(x * w) * a)
    with hf.no_grad():
        a = hf.sin(x)
        with hf.enable_grad():
            b = hf.cos(x * w) * a
        c = b * 1
    return b + c


def on_while_on(x, w, stopped):
    if stopped:
        return hf.sin(x * w)
    with hf.enable_grad():
        return hf.sin(x * w)


def off_while_on_again(x, w, stopped):
    y = hf.sin(x) * w
    if stopped:
        return y * hf.stop_gradient(hf.cos(y))
    with hf.no_grad(), hf.enable_grad(), hf.no_grad():
        a = hf.cos(y)
    return y * a


def a_tape_inside(x, w, stopped):
    def slope():
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(hf.sin(x * w))
        return tape.gradient(y, x)

    return const(stopped, slope) * x + hf.cos(x * w)


def a_value_used_twice(x, w, stopped):
    y = const(stopped, lambda: hf.sin(x * w))
    z = y * x
    return z * const(stopped, lambda: y * y) + y


def of_a_constant_only(x, w, stopped):
    y = const(stopped, lambda: hf.sin(hf.asarray(DIRECTION)))
    return hf.tanh(x * w) * y


def what_is_read(x, w, stopped):
    y = const(stopped, lambda: w + 0 if stopped else hf.asarray(w))
    return hf.sin(x * w) * y


def sorted_there(x, w, stopped):
    order = const(stopped, lambda: hf.argsort(x))
    top = const(stopped, lambda: hf.max(x * w))
    return hf.exp(x - top)[order] * w


PLACES = {one.__name__: one for one in (
    a_block, two_operations, the_whole, a_part_of_the_result, a_block_in_a_block, after_an_exception, decorated,
    decorated_bare, on_again_inside, on_while_on, off_while_on_again, a_tape_inside, a_value_used_twice,
    of_a_constant_only, what_is_read, sorted_there,
)}

# -- what makes a graph: from a function of x to one that computes the same -------------------------------------------


class Layer(nn.Module):
    """A module that calls a function."""

    def __init__(self, function):
        self.function = function

    def forward(self, x):
        return self.function(x)


def recomputed(f):
    return nn.Sequential(Layer(f)).recompute("0")


def branch(f):
    def g(x):
        if hf.sum(x) > -100.0:
            y = f(x)
        else:
            y = x * 0.0
        return y

    return g


def ternary(f):
    return lambda x: f(x) if hf.sum(x) > -100.0 else x * 0.0


def loop(f):
    def g(x):
        y = x * 0.0
        for row in x[None]:
            y = f(row)
        return y

    return g


def counted(f):
    def g(x):
        y = x * 0.0
        for number in hf.arange(2):
            y = y + f(x) * hf.astype(number, hf.float32)
        return y

    return g


def while_on_a_tensor(f):
    def g(x):
        number, y = hf.asarray(0), x * 0.0
        while number < 1:
            y, number = y + f(x), number + 1
        return y

    return g


def early(f):
    def g(x):
        if hf.sum(x) < -100.0:
            return x * 0.0
        return f(x)

    return g


MESH = hf.Mesh({"data": 1})


def while_loop(f):
    def g(x):
        return hf.while_loop(
            lambda i, y: i < 1, lambda i, y: (i + 1, y + f(x)), (hf.asarray(0), x * 0.0), max_iterations=2
        )[1]

    return g


CONSTRUCTS = {
    "plain": lambda f: f,
    "compile": hf.compile,
    "compile in compile": lambda f: hf.compile(lambda x: hf.compile(f)(x)),
    "checkpoint": hf.checkpoint,
    "checkpoint dots": lambda f: hf.checkpoint(f, policy="dots"),
    "checkpoint of compile": lambda f: hf.checkpoint(hf.compile(f)),
    "compile of checkpoint": lambda f: hf.compile(hf.checkpoint(f)),
    "recompute": recomputed,
    "vmap": lambda f: lambda x: hf.vmap(f)(x[None])[0],
    "vmap of vmap": lambda f: lambda x: hf.vmap(hf.vmap(f))(x[None, None])[0, 0],
    "vmap of compile": lambda f: lambda x: hf.vmap(hf.compile(f))(x[None])[0],
    "compile of vmap": lambda f: hf.compile(lambda x: hf.vmap(f)(x[None])[0]),
    "cond": lambda f: lambda x: hf.cond(hf.sum(x) > -100.0, f, lambda x: x * 0.0, x),
    "scan": lambda f: lambda x: hf.scan(lambda c, r: (c, f(r)), hf.asarray(0.0), x[None])[1][0],
    "carry of scan": lambda f: lambda x: hf.scan(lambda c, r: (c + f(r), r), x * 0.0, x[None])[0],
    "while_loop": while_loop,
    "if": branch,
    "ternary": ternary,
    "for": loop,
    "for over arange": counted,
    "while": while_on_a_tensor,
    "early return": early,
    "shard_map": lambda f: hf.shard_map(f, MESH, (("data",),), ("data",)),
}

# -- how it is differentiated: from a function of x to its derivative -------------------------------------------------


def by_a_tape(f, x, w):
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.sum(f(x))
    return tape.gradient(y, [x, w], unconnected_gradients="zero")


def by_backward(f, x, w):
    x = hf.asarray(x).detach().requires_grad_()
    y = hf.sum(f(x) + x * w * 0.0)
    w.zero_grad()
    y.backward()
    return [x.grad, w.grad]


def by_two_tapes(f, x, w):
    with hf.GradientTape() as outer:
        outer.watch(x)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(f(x) + x * w * 0.0)
        g = tape.gradient(y, x)
    return outer.gradient(hf.sum(g * g), [x, w], unconnected_gradients="zero")


WAYS = {
    "a tape": by_a_tape,
    ".backward()": by_backward,
    "hf.grad": lambda f, x, w: hf.grad(lambda x: hf.sum(f(x)))(x),
    "accumulated": lambda f, x, w: hf.accumulate_gradients(
        lambda x, _: hf.sum(f(x)), 2, batch_argnums=1, variables=w
    )(x, hf.zeros(2))[1],
    "hf.vjp": lambda f, x, w: hf.vjp(f, x)[1](hf.asarray(DIRECTION)),
    "hf.jvp": lambda f, x, w: hf.jvp(f, (x,), (hf.asarray(DIRECTION),))[1],
    "hf.jacobian": lambda f, x, w: hf.jacobian(f)(x),
    "hf.hvp": lambda f, x, w: hf.hvp(lambda x: hf.sum(f(x)), (x,), (hf.asarray(DIRECTION),)),
    "two tapes": by_two_tapes,
}

def derivative(construct, place, way, whole, stopped=False):
    """Return a derivative of a function in a construct, as arrays."""
    w = hf.Variable(0.8, requires_grad=True)
    f = CONSTRUCTS[construct](lambda x: PLACES[place](x, w, stopped))
    options = {"mesh": MESH} if construct == "shard_map" else {}
    ask = hf.compile(lambda x: WAYS[way](f, x, w), **options) if whole else lambda x: WAYS[way](f, x, w)
    found = ask(hf.asarray(X))
    return [one.numpy() for one in (found if isinstance(found, list | tuple) else [found])]


def check(construct, place, way, whole):
    """Hold a program against the same one without `hf.no_grad` and without the construct."""
    expected = derivative("plain", place, way, whole=False, stopped=True)
    found = derivative(construct, place, way, whole)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


PROGRAMS = list(itertools.product(CONSTRUCTS, PLACES, WAYS, (False, True)))
FIRST = random.Random(48).sample(PROGRAMS, 16)


@pytest.mark.parametrize(
    "program", [*FIRST, *[pytest.param(one, marks=pytest.mark.rest) for one in PROGRAMS if one not in FIRST]],
    ids=lambda one: "-".join([*one[:3], "compiled" if one[3] else "eager"]),
)
def test_what_is_computed_under_no_grad_is_a_constant(program):
    check(*program)


def an_assignment(x, w, stopped):
    a = x * w
    b = const(stopped, lambda: w * 0.5 + hf.tanh(x)[0])
    w.assign(b)
    return a * w + hf.sin(x) * b


def an_assignment_inside(x, w, stopped):
    const(stopped, lambda: w.assign(w * 0.5 + hf.tanh(x)[0]).read())
    return hf.sin(x * w) + const(stopped, lambda: w * 1)


ASSIGNING = [one for one in CONSTRUCTS if "vmap" not in one and one not in ("shard_map", "for over arange")]
"""The constructs in which a Variable may be assigned, and that run the function once."""


@pytest.mark.parametrize("whole", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("place", [an_assignment, an_assignment_inside])
@pytest.mark.parametrize("construct", [
    one if one in ("compile", "checkpoint") else pytest.param(one, marks=pytest.mark.rest) for one in ASSIGNING
])
def test_what_is_assigned_under_no_grad(construct, place, whole):
    def derivative(construct, way, *, stopped, whole):
        w = hf.Variable(0.8, requires_grad=True)
        f = CONSTRUCTS[construct](lambda x: place(x, w, stopped))
        ask = hf.compile(lambda x: WAYS[way](f, x, w)) if whole else lambda x: WAYS[way](f, x, w)
        found = ask(hf.asarray(X))
        return [*(found if isinstance(found, list) else [found]), w]

    for way in ("a tape", ".backward()", "hf.grad"):
        expected = derivative("plain", way, stopped=True, whole=False)
        for one, other in zip(derivative(construct, way, stopped=False, whole=whole), expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("place", PLACES)
def test_in_a_graph_made_by_hand(place):
    w = hf.Variable(0.8, requires_grad=True)
    with hf.Graph() as graph:
        x = hf.placeholder(X.shape, name="x")
        y = PLACES[place](x, w, stopped=False)
        slopes = graph.gradients(hf.sum(y + x * w * 0.0), [x, w])
        none = graph.gradients(hf.sum(const(False, lambda: x * w)), [x, w])
    with hf.Session(graph) as session:
        found = session.run(slopes, feed={x: X})
    expected = derivative("plain", place, "a tape", whole=False, stopped=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=2e-4, atol=2e-5)
    assert none == [None, None]


@pytest.mark.parametrize("mode", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_a_tape_inside_records_for_itself_alone(mode):
    w = hf.Variable(X, requires_grad=True)

    def run(x):
        with hf.GradientTape() as outer, hf.no_grad():
            enabled = [hf.is_grad_enabled()]
            with hf.GradientTape() as tape:
                enabled.append(hf.is_grad_enabled())
                y = hf.sum(w * w * x)
        return tape.gradient(y, w), outer.gradient(y, w, unconnected_gradients="zero"), y.requires_grad, enabled

    inner, outer, requires, enabled = mode(run)(hf.asarray(X))
    np.testing.assert_allclose(inner, 2 * X * X, rtol=1e-6)
    assert not outer.numpy().any()
    assert not bool(requires)
    assert [bool(one) for one in enabled] == [False, True]


@pytest.mark.parametrize("switch", [hf.no_grad, hf.enable_grad])
def test_decorated_functions(switch):
    async def waits(x):
        await asyncio.sleep(0)
        return (x * 2).requires_grad

    x = hf.tensor(X, requires_grad=True)
    assert asyncio.run(switch()(waits)(x)) is (switch is hf.enable_grad)
    with pytest.raises(TypeError, match=f"{switch.__name__}: .*numbers is a generator function, which runs after it"):

        @switch()
        def numbers():
            yield 1

    with pytest.raises(TypeError, match=f"{switch.__name__}: an int cannot be called"):
        switch(3)


# -- names that a branch or a loop in the block may leave as they were, and sources that it computed -------------------

KEEPS = {
    "a branch": ["if hf.sum(v) > {limit}:", "    v = v / hf.sum(v)"],
    "both branches": ["if hf.sum(v) > {limit}:", "    v = v * 2", "else:", "    u = hf.sin(u)"],
    "a ternary": ["v = v * 2 if hf.sum(v) > {limit} else v"],
    "names that change places": ["if hf.sum(v) > {limit}:", "    v, u = u, v"],
    "a branch in a branch": ["if hf.sum(v) > {limit}:", "    if hf.sum(u) > {limit}:", "        v = v * 2"],
    "cond": ["v = hf.cond(hf.sum(v) > {limit}, lambda: v * 2, lambda: v)"],
    "rows": ["for e in x:", "    if e > {limit}:", "        v = v * e"],
    "rows that step": ["for e in x:", "    v = v * e"],
    "scan": ["v, _ = hf.scan(lambda c, e: (hf.cond(e > {limit}, lambda: c * e, lambda: c), e), v, x)"],
    "while": ["while hf.sum(v) > {limit}:", "    v = v * 0.5 - 0.1"],
    "while_loop": ["v = hf.while_loop(lambda v: hf.sum(v) > {limit}, lambda v: v * 0.5 - 0.1, v)"],
    "range": ["for _ in range(hf.sum(v > {limit}).astype('int32')):", "    v = v * 0.5"],
    "no name": ["u = v * 2 if hf.sum(v) > {limit} else v * 3"],
    "recording again": ["with hf.enable_grad():", "    if hf.sum(v) > {limit}:", "        v = v * 2"],
}
BLOCKS = {
    "a block": "    with hf.no_grad():\n        {code}\n",
    "a function": "    @hf.no_grad()\n    def inner(v, u):\n        {code}\n        return v, u\n"
    "    v, u = inner(v, u)\n",
    "a block in a branch": "    if hf.sum(x) > -100:\n        with hf.no_grad():\n            {code}\n",
}


def outside(f, x):
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, unconnected_gradients="zero")


def backward(f, x):
    x = x.detach().requires_grad_()
    f(x).backward()
    return x.grad


ASKED = {
    "outside": lambda f: lambda x: outside(hf.compile(f), x),
    "inside": lambda f: hf.compile(lambda x: outside(f, x)),
    "grad": lambda f: hf.compile(hf.grad(f)),
    "backward": lambda f: hf.compile(lambda x: backward(f, x)),
    "backward outside": lambda f: lambda x: backward(hf.compile(f), x),
}


@pytest.mark.parametrize("kept", KEEPS)
@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_block_leaves_as_it_was_keeps_its_gradient(block, kept, tmp_path):
    for limit in (-50, 0.2, 50):
        lines = [line.format(limit=limit) for line in KEEPS[kept]]
        depth = BLOCKS[block].partition("{code}")[0].rpartition("\n")[2]
        code = BLOCKS[block].format(code=f"\n{depth}".join(lines))
        if limit == -50 and kept in ("while", "while_loop"):
            continue  # it would not end
        text = f"def f(x):\n    v, u = hf.sin(x), x * x\n{code}    return hf.sum(v * v + u)\n"
        space = program(text, tmp_path / f"{limit}.py", hf=hf)
        expected = outside(space["f"], hf.asarray(X)).numpy()
        for asked, way in ASKED.items():
            np.testing.assert_allclose(
                way(space["f"])(hf.asarray(X)).numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=f"{asked}, {limit}"
            )


ROWS = {
    "the last": "for r in x: v = r",
    "one of them": "for r in x:\n            if hf.sum(r) > 0.3: v = r",
    "until one": "for v in x:\n            if hf.sum(v) > 0.3: break",
    "numbered": "for i, r in enumerate(x): v = r",
    "in pairs": "for r, q in zip(x, x): v = q",
    "backwards": "for r in reversed(x): v = r",
    "in a loop": "for q in x:\n            for r in x: v = r",
}


@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_a_block_takes_are_constants_outside_of_it(rows, tmp_path):
    text = f"def f(x):\n    v = x[0] * 0\n    with hf.no_grad():\n        {ROWS[rows]}\n    return hf.sum(v * x)\n"
    space = program(text, tmp_path / "f.py", hf=hf)
    x = hf.asarray([[0.3, -0.2, 0.5], [0.1, 0.2, 0.4]])
    same(outside(hf.compile(space["f"]), x), outside(space["f"], x))


SOURCES = {
    "watched": ("tape.watch(h)", "y = g(h)", "h"),
    "watched in the block": ("with hf.no_grad(): tape.watch(h)", "y = g(h)", "h"),
    "watched late": ("z = h * 2", "tape.watch(h)", "y = g(h) + g(z)", "h"),
    "between": ("tape.watch(h)", "z = h * 2", "y = g(z)", "z"),
    "its own source too": ("tape.watch([h, x])", "y = g(h) + g(x)", "[h, x]"),
}
ALONE = {
    "a leaf": "h.requires_grad_(); g(h).backward(); return h.grad",
    "a detached leaf": "h = h.detach().requires_grad_(); g(h).backward(); return h.grad",
    "grad": "return hf.grad(g)(h)",
    "vjp": "return hf.vjp(g, h)[1](hf.asarray(1.0))[0]",
    "jvp": "return hf.jvp(g, (h,), (h,))[1]",
    "twice": "return hf.grad(lambda h: hf.sum(hf.grad(g)(h)))(h)",
}
MADE = (
    "with hf.no_grad(): h = hf.sin(x) * 2", "h = hf.no_grad()(lambda x: hf.sin(x) * 2)(x)",
    "with hf.no_grad(): h = hf.stack([e * 2 for e in x])",
)


@pytest.mark.parametrize("source", [*SOURCES, *ALONE])
@pytest.mark.parametrize("made", MADE)
def test_gradients_by_what_a_block_computed(made, source, tmp_path):
    lines = [ALONE.get(source)]
    if source in SOURCES:
        *steps, of = SOURCES[source]
        lines = ["with hf.GradientTape() as tape:", *[f"    {one}" for one in steps], f"return tape.gradient(y, {of})"]
    text = "\n    ".join(["def f(x):", made, *lines])
    space = program(text, tmp_path / "f.py", hf=hf, g=lambda h: hf.sum(h * h * h))
    same(space["f"](hf.asarray(X)), hf.compile(space["f"])(hf.asarray(X)), rtol=1e-5)


# -- what a block asks for itself: gradients that are taken in it, and whether recording is on ------------------------

INSIDE = [one for one in CONSTRUCTS if one != "recompute"]  # which is set before a call
TAKEN = [one for one in itertools.product(INSIDE, WAYS) if one[1] != ".backward()"]  # which needs hf.enable_grad
FIRST_TAKEN = [*random.Random(46).sample(TAKEN, 10), ("cond", "hf.grad"), ("while", "a tape"), ("if", "two tapes")]


def in_a_block(f):
    def run(x):
        with hf.no_grad():
            return f(x)

    return run


@pytest.mark.parametrize(
    ("construct", "way"),
    [*FIRST_TAKEN, *[pytest.param(*one, marks=pytest.mark.rest) for one in TAKEN if one not in FIRST_TAKEN]],
)
def test_a_block_takes_gradients(construct, way):
    """They are those of its function, and constants to whoever differentiates the whole."""
    w, x = hf.Variable(0.8), hf.asarray(X)
    options = {"mesh": MESH} if construct == "shard_map" else {}

    def taken(construct):
        return in_a_block(lambda x: WAYS[way](CONSTRUCTS[construct](lambda x: hf.sin(x * w) * x), x, w))

    def whole(f):
        return lambda x: hf.sum(hf.sin(x)) * sum([hf.sum(one) for one in hf.tree.leaves(f(x))])

    same(hf.compile(taken(construct), **options)(x), taken("plain")(x), rtol=2e-4, atol=2e-5)
    expected = outside(whole(taken("plain")), x)
    same(outside(hf.compile(whole(taken(construct)), **options), x), expected, rtol=2e-4, atol=2e-5)


def test_what_a_branch_hands_on_in_a_tape_in_a_block_is_used_in_it():
    def picked(x, outside):
        with hf.no_grad(), hf.GradientTape() as tape:
            tape.watch(x)
            v = x * 2
            if hf.sum(x) > 0.5:
                v = v * x
            y, constant = hf.sum(v), v.detach()
        return tape.gradient(y, x) + (v if outside else constant)

    same(hf.compile(picked)(hf.asarray(X), False), picked(hf.asarray(X), False))
    with pytest.raises(TraceError, match=r"leaves as it was, in a tape's block in hf\.no_grad"):
        hf.compile(picked)(hf.asarray(X), True)


def in_a_tape(f):
    def run(x):
        with hf.GradientTape():
            return f(x)

    return run


def recording_again(f):
    return in_a_block(lambda x: hf.enable_grad()(f)(x))


AROUND = {
    "": lambda f: f, "no_grad": in_a_block, "tape": in_a_tape, "no_grad in a tape": lambda f: in_a_tape(in_a_block(f)),
    "a tape in no_grad": lambda f: in_a_block(in_a_tape(f)), "enable_grad in no_grad": recording_again,
}


@pytest.mark.parametrize("construct", [one for one in INSIDE if one != "shard_map"])
def test_whether_recording_is_on_in_a_construct(construct):
    made = CONSTRUCTS[construct](lambda x: x * (2.0 if hf.is_grad_enabled() else 3.0))
    for inner in AROUND.values():
        asked = inner(made)
        compiled = hf.compile(asked)
        for outer in ("", "no_grad", "", "tape", "a tape in no_grad", "no_grad in a tape"):
            same(AROUND[outer](compiled)(hf.asarray(X)), AROUND[outer](asked)(hf.asarray(X)))


def test_a_leaf_reaches_what_asks_whether_recording_is_on():
    def doubled(x):
        return x * (2.0 if hf.is_grad_enabled() else 3.0)

    compiled, x = hf.compile(doubled), hf.tensor(X, requires_grad=True)
    hf.sum(compiled(x)).backward()
    same(x.grad, hf.full((3,), 2.0))
    same(in_a_block(compiled)(x), in_a_block(doubled)(x))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("tape", [False, True])
def test_whether_recording_is_on_around_the_call(gradient, tape):
    def enabled(x):
        with hf.no_grad():
            inside = hf.is_grad_enabled()
        return x * (1 + 2 * hf.is_grad_enabled() + 4 * inside)

    compiled = hf.compile(enabled)
    for _ in range(2):
        for around in (hf.enable_grad() if gradient else hf.no_grad(), hf.no_grad(), hf.enable_grad()):
            with around, hf.GradientTape() if tape else contextlib.nullcontext():
                assert compiled(2.0) == enabled(2.0)


def test_recording_again_inside_of_a_tape_in_a_block():
    def cubed(x, again):
        with hf.no_grad(), hf.GradientTape() as tape:
            tape.watch(x)
            v = x * x
            with hf.enable_grad() if again else contextlib.nullcontext():
                v = v * x
        return tape.gradient(v, x)

    def picked(x):
        with hf.no_grad(), hf.GradientTape() as tape:
            tape.watch(x)
            place = hf.argmax(x)  # an integer has no gradient
            with hf.enable_grad():
                v = x[place] * 2
        return tape.gradient(v, x)

    same(hf.compile(cubed)(hf.asarray(X), False), cubed(hf.asarray(X), False))
    same(hf.compile(picked)(hf.asarray(X)), picked(hf.asarray(X)))
    with pytest.raises(TraceError, match=r"inside of a tape that was entered in hf\.no_grad"):
        hf.compile(cubed)(hf.asarray(X), True)
