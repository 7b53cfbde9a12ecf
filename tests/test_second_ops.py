"""An op with the traits of another is treated as that one is: passes and loops ask traits, and know no op itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_passes import example, examples

import hybridflow as hf
from hybridflow import ir
from hybridflow.core.dispatch import bind
from hybridflow.core.op import REGISTRY, Op
from hybridflow.core.tensor import asarray
from hybridflow.nested.checkpoint_policies import kept_nodes
from hybridflow.passes import Pass, PassContext
from hybridflow.passes.algebra import algebra
from hybridflow.passes.fusion_breaks import fusion_breaks

CALL = re.compile(r"= (\w+)\(")
KNOWN = ("nested", "source", "effect", "reads_never")
"""Ops with one of these traits belong to the engine; passes may know them."""


def owners() -> dict[str, list[str]]:
    """Return the names of the ops with each trait."""
    names: dict[str, list[str]] = {}
    for op in list(REGISTRY.values()):
        for trait in op.traits:
            names.setdefault(trait, []).append(op.name)
    return names


@pytest.fixture
def second() -> Iterator[Any]:
    """Yield a function that registers a second op like another for one test."""
    made: list[str] = []

    def like(name: str) -> Op:
        copy = replace(REGISTRY[name], name=f"second_{name}", jitted={}, accepted=set())
        REGISTRY[copy.name] = copy
        made.append(copy.name)
        return copy

    yield like
    for name in made:
        del REGISTRY[name]


def swapped() -> Iterator[Any]:
    """Yield every documented example of a pass with every op in it."""
    for one in examples():
        pass_, function = one.values
        names = dict.fromkeys(CALL.findall(example(function)[0]))
        for name in names:
            if not any(REGISTRY[name].has(trait) for trait in KNOWN):
                yield pytest.param(pass_, function, name, id=f"{one.id}-{name}")


SWAPPED = list(swapped())


@pytest.mark.parametrize(("pass_", "function", "name"), SWAPPED)
def test_a_pass_treats_a_second_op_alike(pass_: Pass, function: Any, name: str, second: Any):
    before, after = example(function)
    op = second(name)
    result = pass_(ir.parse(re.sub(rf"= {name}\(", f"= {op.name}(", before)), PassContext(False))
    assert ir.print_graph(result, elide=None, lines=False).replace(op.name, name) == after


@pytest.mark.parametrize(
    ("compare", "move", "first", "limit", "step"),
    [
        ("less", "add", 0, 10, 3), ("less_equal", "add", 0, 9, 3), ("greater", "subtract", 10, 1, 2),
        ("greater_equal", "subtract", 10, 2, 2), ("greater", "add", 9, 1, -2),
    ],
)
def test_a_loop_with_second_ops_has_a_known_number_of_steps(
    compare: str, move: str, first: int, limit: int, step: int, second: Any
):
    test, go = second(compare), second(move)

    @hf.compile
    def f(x: Any) -> Any:
        def goes_on(i: Any, x: Any) -> Any:
            return bind(test, (i, asarray(limit)))

        def body(i: Any, x: Any) -> Any:
            return bind(go, (i, asarray(step))), x * 2.0

        return hf.while_loop(goes_on, body, (first, x))

    i, count, expected = first, 0, 1.0
    while {"less": i < limit, "less_equal": i <= limit, "greater": i > limit, "greater_equal": i >= limit}[compare]:
        i, count, expected = i + (step if move == "add" else -step), count + 1, expected * 2
    (scan,) = [node for node in f.replay(1.0).graph.nodes if node.op.has("nested")]
    assert scan.op.name == "scan"
    assert scan.attrs["length"] == count
    assert [float(one) for one in f(1.0)] == [i, expected]


def test_an_unsigned_counter_may_count_down(second: Any):
    go = second("subtract")

    @hf.compile
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return bind(go, (i, asarray(np.uint8(1)))), x + 1.0

        zero, three = asarray(np.uint8(0)), asarray(np.uint8(3))
        return hf.while_loop(lambda i, x: i > zero, body, (three, x))

    assert [node.op.name for node in f.replay(0.0).graph.nodes if node.op.has("nested")] == ["scan"]
    assert [float(one) for one in f(0.0)] == [0.0, 3.0]


def test_the_elements_of_a_second_uniform_op_are_known(second: Any):
    op = second("full")
    graph = ir.parse(f"""
    graph f(%x: f32[2]) -> (f32[2]) {{
      %0 = {op.name}() {{shape=(2,), fill_value=1.0, dtype=f32}} : f32[2]
      %1 = multiply(%x, %0) : f32[2]
      return %1
    }}""")
    assert graph.outputs[0] != (graph.inputs[0], 0)
    assert algebra(graph).outputs == ((graph.inputs[0], 0),)


def test_a_policy_knows_a_value_by_a_second_name_giver(second: Any):
    op = second("checkpoint_name")
    graph = ir.parse(f"""
    graph f(%x: f32[2]) -> (f32[2]) {{
      %0 = tanh(%x) : f32[2]
      %1 = {op.name}(%0) {{name="kept"}} : f32[2]
      %2 = tanh(%1) : f32[2]
      return %2
    }}""")
    assert [node.op.name for node in kept_nodes(("names", "kept"), graph.nodes)] == [op.name]


@pytest.mark.parametrize(("name", "shape"), [("multiply", (3, 4)), ("matmul", (4, 3))])
def test_gradients_of_second_products_are_one_contraction(name: str, shape: tuple[int, ...], second: Any):
    """The gradient of a weight that all slices read is no stack of outer products."""
    op = second(name)

    def loss(w: Any, x: Any) -> Any:
        return hf.sum(hf.vmap(lambda row: bind(op, (w, row)))(x) ** 2)

    w, x = np.ones((3, 4), np.float32), np.arange(20, dtype=np.float32).reshape(5, 4)
    x = x if name == "matmul" else np.broadcast_to(x[:, None], (5, 3, 4))
    step = hf.compile(hf.grad(loss))
    plain = hf.grad(lambda w: hf.sum((x @ w.mT if name == "matmul" else w * x) ** 2))(asarray(w))
    np.testing.assert_allclose(step(w, x).numpy(), plain.numpy(), rtol=1e-5)


def test_what_a_second_gradient_of_a_kernel_reads_is_computed_once(second: Any):
    op = second("conv_kernel_gradient")
    attrs = "stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1, channels_last=False"
    graph = ir.parse(f"""
    graph f(%x: f32[8,4,32,32], %g: f32[8,16,32,32]) -> (f32[16,4,3,3]) {{
      %0 = tanh(%g) : f32[8,16,32,32]
      %1 = {op.name}(%x, %0) {{shape=(16, 4, 3, 3), {attrs}}} : f32[16,4,3,3]
      return %1
    }}""")
    assert [node.op.name for node in fusion_breaks(graph).nodes] == ["tanh", "fusion_break", op.name]


def test_every_trait_of_one_op_is_tried_with_a_second_one():
    by_hand = {"checkpoint_name", "conv_kernel_gradient", "full", "matmul", "multiply"}
    tried = {one.values[2] for one in SWAPPED} | by_hand
    alone = {trait: names[0] for trait, names in owners().items() if len(names) == 1}
    untried = {trait: name for trait, name in alone.items() if name not in tried}
    assert {trait for trait, name in untried.items() if not REGISTRY[name].has("nested")} == set()
