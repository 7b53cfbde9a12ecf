"""`hf.debugging.locate`: the op and the line of the first value that is wrong."""

from pathlib import Path

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn


def here(text):
    """Return the line of this file that has a text, as a report gives it."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{__file__}:{next(i for i, line in enumerate(lines, 1) if text in line)}"


class Model:
    def __init__(self):
        self.weight = hf.Variable([4.0, -1.0], name="weight")

    def loss(self, x):
        root = hf.sqrt(self.weight)  # NaN of the weight
        self.weight.assign_add(x)
        return hf.sum(root * x)

    compiled = hf.compile(loss)


def straight(x):
    y = hf.log(x)  # infinity of a zero
    return hf.sum(y * x)


def helper(x):
    return {"out": (straight(x["in"]), 1.0)}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("function", [straight, helper])
def test_the_first_infinity(function, compiled):
    x = hf.asarray([1.0, 0.0])
    found = hf.debugging.locate(hf.compile(function) if compiled else function, {"in": x} if function is helper else x)
    assert found
    assert (found.kind, found.phase, found.op, found.where) == ("inf", "forward", "log", here("# infinity of a zero"))
    assert str(found) == (
        f"the first infinity, in the forward pass: log\n  at {found.where}: y = hf.log(x)  # infinity of a zero\n"
        "  log(f32[2]) : f32[2]\n  input 0: f32[2] from 0 to 1\n"
        "  output 0: f32[2] from 0 to 0, 1 of 2 infinite, first at [1]"
    )


@pytest.mark.parametrize("name", ["loss", "compiled"])
def test_methods_and_their_variables_which_stay(name):
    model = Model()
    found = hf.debugging.locate(getattr(model, name), hf.asarray([1.0, 1.0]))
    assert (found.kind, found.op, found.where) == ("nan", "sqrt", here("# NaN of the weight"))
    assert model.weight.numpy().tolist() == [4.0, -1.0]
    model.weight.assign([4.0, 1.0])
    found = hf.debugging.locate(getattr(model, name), hf.asarray([1.0, 1.0]))
    assert not found
    assert str(found) == "every value is finite and every check holds"
    assert model.weight.numpy().tolist() == [4.0, 1.0]


def by_tape(x):
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.sum(hf.sqrt(x))  # its gradient is infinite
    return tape.gradient(y, x)


def by_grad_of_a_loop(x):
    def last(x):
        return hf.scan(lambda c, one: (hf.sqrt(c) * one, c), 0.0, x)[0]  # infinite in the loop

    return hf.grad(last)(x)


@pytest.mark.parametrize(
    ("function", "text", "of", "depth"),
    [(by_tape, "# its gradient is infinite", "sqrt", 0), (by_grad_of_a_loop, "# infinite in the loop", "scan", 1)],
)
def test_gradients(function, text, of, depth):
    found = hf.debugging.locate(function, hf.asarray([1.0, 0.0]))
    assert (found.kind, found.phase, found.where) == ("inf", "backward", here(text))
    assert found.op == f"divide, for the gradient of {of}"
    assert len(found.within) == depth
    assert str(found).startswith("the first infinity, in the backward pass: divide, for the gradient of")


def in_python_control_flow(x):
    while hf.sum(x) < 100:
        if x[0] > 10:
            x = hf.sqrt(-x)  # of a negative number
        x = x * 3
    return x


def in_bodies(x):
    def body(c, one):
        return hf.cond(one > 0, lambda: c / one, lambda: hf.sqrt(one)), c  # of a negative number too

    return hf.scan(body, 1.0, x)[0]


def test_inside_branches_and_loops():
    found = hf.debugging.locate(in_python_control_flow, hf.asarray([1.0, 2.0]))
    assert (found.kind, found.op, found.where) == ("nan", "sqrt", here("# of a negative number"))
    assert [one.split(" at ")[0] for one in found.within] == ["while", "cond"]
    assert f"in cond at {here('if x[0] > 10')}" in str(found)
    found = hf.debugging.locate(in_bodies, hf.asarray([1.0, 2.0, -1.0]))
    assert (found.kind, found.op, found.where) == ("nan", "sqrt", here("# of a negative number too"))
    assert not hf.debugging.locate(in_bodies, hf.asarray([1.0, 2.0, 3.0]))


def checked(x):
    hf.debugging.check(hf.all(x < 3), "must be below 3")  # the check
    return hf.log(x)


def checked_in_a_loop(x):
    return hf.scan(lambda c, one: (c, checked(one)), 0.0, x)[1]


@pytest.mark.parametrize("function", [checked, checked_in_a_loop])
def test_checks_that_do_not_hold(function):
    found = hf.debugging.locate(function, hf.asarray([1.0, 4.0]))
    assert (found.kind, found.text, found.where) == ("check", "must be below 3", here("# the check"))
    assert str(found).startswith("a check does not hold, in the forward pass\n  at ")
    assert not hf.debugging.locate(function, hf.asarray([1.0, 2.0]))


def test_an_index_out_of_range():
    found = hf.debugging.locate(lambda x, i: x[i], hf.asarray([1.0, 2.0]), hf.asarray([5]))
    assert found.kind in ("check", "error")
    assert "out of range" in found.text


def test_arguments_that_are_wrong_already():
    found = hf.debugging.locate(lambda batch: batch["x"] * 2, {"x": hf.asarray([1.0, float("nan")])})
    assert (found.kind, found.text) == ("nan", "batch['x'] is given with a NaN")
    assert found.outputs == ("f32[2] from 1 to 1, 1 of 2 NaN, first at [1]",)


def test_infinities_that_are_meant_are_no_finding():
    def masked(x, mask):
        return hf.nn.softmax(hf.where(mask, x, -float("inf")))

    x, mask = hf.asarray([1.0, 2.0]), hf.asarray([True, False])
    assert not hf.debugging.locate(masked, x, mask)
    found = hf.debugging.locate(lambda x: x - x, hf.asarray([float("inf")]))
    assert (found.kind, found.op) == ("nan", "subtract")


def test_open_sizes_and_low_precision():
    f = hf.compile(lambda x: hf.log(x.astype(hf.bfloat16)), input_signature=[hf.TensorSpec([None])])
    assert hf.debugging.locate(f, [1.0, 0.0, 2.0]).op == "log"
    assert not hf.debugging.locate(f, np.ones(5))


def test_the_module_is_named():
    class Half(nn.Module):
        def __init__(self, wrong: bool):
            self.inner, self.wrong = nn.Linear(2, 2), wrong

        def forward(self, x):
            y = self.inner(x)
            return hf.log(y * 0.0 - 1.0) if self.wrong else y

    class Net(nn.Module):
        def __init__(self):
            self.blocks = [Half(False), Half(True), Half(False)]

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return hf.sum(x)

    net, x = Net(), hf.ones((3, 2))
    for fn in (net, hf.compile(net), hf.compile(lambda x: net(x))):
        found = hf.debugging.locate(fn, x)
        assert (found.op, found.module) == ("log", "blocks.1 (Half)")
        assert "\n  in the module blocks.1 (Half)\n" in str(found)
    compiled = hf.compile(lambda x: net(x))
    compiled(x)
    hf.debugging.locate(compiled, x)
    assert compiled.trace_count == 1
    net.blocks[1].wrong = False
    for one in net.blocks[1].inner.parameters():
        one.assign(hf.zeros(one.shape))
    net.blocks[2].inner.weight.assign([[float("inf"), 0.0], [0.0, 0.0]])
    found = hf.debugging.locate(hf.grad(lambda net: net(x) * 0.0), net)
    assert (found.kind, found.module) == ("nan", "blocks.2.inner (Linear)")


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2)])
def test_loops_without_steps(shape):
    def total(xs):
        return hf.scan(lambda c, x: (c + (total(x) if xs.ndim > 1 else x), c), hf.asarray(0.0), xs)[0]

    compiled = hf.compile(total)
    with hf.config.verify(every=1):
        assert compiled(hf.zeros(shape)).item() == 0.0
    assert "every value is finite" in str(hf.debugging.locate(compiled, hf.zeros(shape)))
