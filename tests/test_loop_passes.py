"""What becomes of loops and branches: invariant values, what nothing reads, unrolling, text, and what they cost."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf
from hybridflow import ir
from hybridflow.core.node import Node
from hybridflow.ir.costs import graph_flops
from hybridflow.ir.graph import Graph
from hybridflow.passes import PIPELINE
from hybridflow.passes.loop_invariants import loop_invariants


def loops(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name in ("scan", "while", "cond")]


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def bodies(node: Node) -> Iterator[Graph]:
    for value in node.attrs.values():
        if isinstance(value, Graph):
            yield value


def compiled_graph(f: Any, *args: Any) -> Graph:
    both(f, *args)
    graph = hf.compile(f).graph(*args)
    ir.verify(graph)
    return graph


XS = hf.asarray(np.linspace(-1, 1, 6).astype(np.float32))
KINDS = ["scan", "while", "bounded"]


def loop(kind: str, step: Any, init: Any, trips: hf.Tensor) -> Any:
    """Run ``step(*state) -> state`` 6 times, in a loop whose number of steps is known or not."""
    if kind == "scan":
        return hf.scan(lambda s, _: (step(*s), None), init, XS)[0]
    bound = 9 if kind == "bounded" else None
    found = hf.while_loop(lambda i, *s: i < trips, lambda i, *s: (i + 1, *step(*s)), (0, *init), bound)
    return found[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_step_would_compute_again_is_computed_once(kind: str):
    def f(x: hf.Tensor, w: hf.Tensor, n: hf.Tensor):
        def inner(c: hf.Tensor, t: hf.Tensor):
            return c + hf.tanh(w) * t, None

        return loop(kind, lambda c: (hf.scan(inner, c * hf.exp(w + 1.0), XS)[0],), (x,), n)

    graph = compiled_graph(f, hf.asarray(0.3), hf.asarray(-0.5), hf.asarray(6))
    assert {"exp", "tanh"} <= set(names(graph))
    assert not {"exp", "tanh"} & {node.op.name for one in loops(graph) for body in bodies(one) for node in body.walk()}


def test_a_condition_is_relieved_too():
    def f(x: hf.Tensor, w: hf.Tensor):
        return hf.while_loop(lambda c: c < hf.exp(w), lambda c: (c + hf.exp(w) * 0.3,), (x,))

    graph = compiled_graph(f, hf.asarray(0.3), hf.asarray(1.5))
    assert names(graph).count("exp") == 1
    assert all("exp" not in names(body) for body in bodies(loops(graph)[0]))


def test_no_copies_per_step_are_kept_for_the_backward_pass():
    def f(w: hf.Tensor, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(w)
            y, _ = hf.scan(lambda c, t: (c * hf.exp(hf.sin(w)) + t, None), x, XS)
            loss = hf.sum(y)
        return tape.gradient(loss, w)

    graph = compiled_graph(f, hf.asarray(np.float32([0.1, 0.2])), tensor(1, 2))
    kept = [spec for node in loops(graph) for spec in node.specs if spec.shape[:1] == (6,)]
    assert [str(spec) for spec in kept] == ["f32[6,2]"]  # the carry of each step, and nothing of exp(sin(w))


def test_what_makes_things_larger_or_has_an_effect_stays(capsys: pytest.CaptureFixture[str]):
    def f(x: hf.Tensor, w: hf.Tensor):
        def step(c: hf.Tensor, t: hf.Tensor):
            hf.print(w)
            return c + hf.broadcast_to(w, (3, 2)) * t, None

        return hf.scan(step, x, XS)[0]

    graph = hf.compile(f).graph(hf.asarray(np.zeros((3, 2), np.float32)), tensor(1, 2))
    (body,) = bodies(loops(graph)[0])
    assert "broadcast_to" in names(body)
    hf.compile(f)(hf.asarray(np.zeros((3, 2), np.float32)), tensor(1, 2)).numpy()
    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_carried_values_that_nothing_needs_are_dropped(kind: str):
    def f(x: hf.Tensor, n: hf.Tensor):
        a, _, _, same = loop(kind, lambda a, b, c, same: (a * same, c + 1.0, b * 2.0, same), (x, x, x, x * 0.5), n)
        return a, same

    graph = compiled_graph(f, hf.asarray(1.5), hf.asarray(6))
    (node,) = loops(graph)
    assert node.attrs["carry"] == (1 if kind == "scan" else 2)


def test_results_of_branches_that_nothing_reads_are_dropped():
    def f(x: hf.Tensor, y: hf.Tensor):
        a, _ = hf.cond(x > 0, lambda: (x * 2.0, hf.exp(y)), lambda: (x, y))
        return a

    graph = compiled_graph(f, hf.asarray(1.0), hf.asarray(2.0))
    (node,) = loops(graph)
    assert (len(node.outputs), len(node.inputs)) == (1, 2)
    assert "exp" not in {inner.op.name for inner in graph.walk()}


def waves(*shape: int, dtype: str = "float32") -> hf.Tensor:
    return hf.asarray(np.sin(np.arange(np.prod(shape)).reshape(shape))).astype(dtype)


def recurrent_gradients(dtype: str, sources: tuple[str, ...]) -> tuple[Any, list[hf.Tensor]]:
    """Return a function of the gradients of a recurrent network's parameters, and the parameters."""
    shapes = {"u": (5, 3), "w": (3, 3), "b": (3,)}
    parameters = [waves(*shape, dtype=dtype) for shape in shapes.values()]
    wanted = [number for number, name in enumerate(shapes) if name in sources]

    def f(*parameters: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(parameters)
            u, w, b = parameters
            xs = waves(40, 4, 5, dtype=dtype) @ u
            last, ys = hf.scan(lambda h, x: (h := hf.tanh(x + h @ w + b), h * h), waves(4, 3, dtype=dtype), xs)
            loss = hf.sum(last) + hf.sum(ys)
        return tape.gradient(loss, [parameters[number] for number in wanted])

    return f, parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_weights_that_all_steps_share_are_products_after_the_loop(dtype: str):
    f, parameters = recurrent_gradients(dtype, ("u", "w", "b"))
    backward = loops(compiled_graph(f, *parameters))[-1]
    assert backward.attrs["carry"] == 1
    assert [node.op.name for body in bodies(backward) for node in body.nodes].count("matmul") == 1


@pytest.mark.parametrize(("dtype", "sources"), [("float32", ("w", "b")), ("bfloat16", ("u", "w", "b"))])
def test_sums_stay_in_a_loop_that_would_have_to_store_more_or_round_otherwise(dtype: str, sources: tuple[str, ...]):
    f, parameters = recurrent_gradients(dtype, sources)
    assert loops(hf.compile(f).graph(*parameters))[-1].attrs["carry"] == 3


def test_sums_that_a_step_reads_stay_in_the_loop():
    def running(xs: hf.Tensor):
        return hf.scan(lambda total, x: (total + hf.sum(x), total), hf.asarray(0.5), xs)

    def twice(xs: hf.Tensor):
        return hf.scan(lambda total, x: (total + (total + hf.sum(x)), x), hf.asarray(0.5), xs)

    def only_summed(xs: hf.Tensor):
        return hf.scan(lambda total, x: (hf.sum(x, axis=1) + total + hf.sum(x * 1.0, axis=1), None), hf.ones(3), xs)

    xs = waves(40, 3, 4)
    for f, carried in ((running, 1), (twice, 1), (only_summed, 0)):
        both(f, xs)
        assert [node.attrs["carry"] for node in loops(hf.compile(f).graph(xs))] == [carried] * bool(carried)


def test_only_the_residuals_that_a_gradient_reads_are_kept():
    def f(x: hf.Tensor, data: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y, _ = hf.scan(lambda c, t: (c * t + hf.sin(t), None), x, data)
        return tape.gradient(y, x)

    graph = compiled_graph(f, hf.asarray(1.0), XS)
    assert [len(node.outputs) for node in loops(graph)] == [1]  # the forward scan's results are not needed at all


def test_an_effect_keeps_its_inputs(capsys: pytest.CaptureFixture[str]):
    def f(x: hf.Tensor, y: hf.Tensor):
        def step(c: Any, t: hf.Tensor):
            hf.print(c[1])
            return (c[0] + t, c[1] * 2.0), None

        return hf.scan(step, (x, y), XS)[0][0]

    hf.compile(f)(hf.asarray(0.0), hf.asarray(1.0)).numpy()
    lines = capsys.readouterr().out.splitlines()
    assert [float(line.removeprefix("Tensor(").split(",")[0]) for line in lines] == [1, 2, 4, 8, 16, 32]


# -- unrolling ----------------------------------------------------------------------------------------------------


def steps_of(count: int, body: Any) -> Any:
    xs = hf.asarray(np.linspace(-1, 1, count).astype(np.float32))
    return lambda x: hf.scan(lambda c, t: (body(c, t), c), x, xs)


@pytest.mark.parametrize(
    ("count", "body", "unrolled"),
    [(1, lambda c, t: hf.sin(c) + t, True), (4, lambda c, t: hf.sin(c) + t, True),
     (5, lambda c, t: hf.sin(c) + t, False),
     (4, lambda c, t: hf.sin(hf.sin(hf.sin(hf.sin(hf.sin(hf.sin(hf.sin(hf.sin(c * t)))))))), False),
     (2, lambda c, t: hf.cond(c > t, lambda: c, lambda: t), False)],
)
def test_small_scans_are_unrolled(count: int, body: Any, unrolled: bool):
    graph = compiled_graph(steps_of(count, body), hf.asarray(0.5))
    assert ("scan" not in names(graph)) == unrolled


def test_unrolled_gradients_in_reverse():
    def f(x: hf.Tensor, xs: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, xs])
            c, ys = hf.scan(lambda c, t: (hf.sin(c) * t, c + t), x, xs)
            y = c + hf.sum(ys * ys)
        return tape.gradient(y, [x, xs])

    graph = compiled_graph(f, hf.asarray(0.5), tensor(1, 2, 3))
    assert not loops(graph)


# -- text and cost ------------------------------------------------------------------------------------------------


def everything(x: hf.Tensor, n: hf.Tensor):
    def step(c: hf.Tensor, t: hf.Tensor):
        c = hf.cond(c > t, lambda: hf.while_loop(lambda v: v < 2.0, lambda v: v + hf.exp(t), (c,))[0], lambda: c - t)
        return c, c * 2.0

    with hf.GradientTape() as tape:
        tape.watch(x)
        _, y = hf.while_loop(lambda i, c: i < n, lambda i, c: (i + 1, hf.sin(c) * x), (0, x), max_iterations=7)
    g = tape.gradient(y, x)
    return hf.scan(step, g, XS)


@pytest.mark.parametrize("stage", ["traced", "optimized"])
def test_text_of_nested_graphs(stage: str):
    lowered = hf.compile(everything).lower(hf.asarray(0.5), hf.asarray(3))
    graph = lowered.traced if stage == "traced" else hf.compile(everything).graph(hf.asarray(0.5), hf.asarray(3))
    ir.verify(graph)
    text = ir.print_graph(graph, elide=None, lines=False)
    again = ir.parse(text)
    ir.verify(again)
    assert ir.print_graph(again, elide=None, lines=False) == text
    assert {"scan", "while", "cond"} <= {node.op.name for node in again.walk()}


def test_nested_graphs_in_tuples_are_found():
    graph = hf.compile(lambda x: hf.scan(lambda c, t: (c * t + hf.sin(c), None), x, XS)).graph(hf.asarray(1.0))
    (body,) = bodies(loops(graph)[0])
    node = loops(graph)[0]
    node.attrs["more"] = (body, (body,))
    assert ir.graph.nested_graphs(node) == [body, body, body]


def test_flops_count_the_steps_and_the_dearer_branch():
    x = tensor(*range(8))

    def flops(f: Any) -> int:
        return graph_flops(hf.compile(f).lower(x, hf.asarray(3)).traced)

    one = flops(lambda x, n: hf.sin(x) + x)
    assert one > 0
    assert flops(lambda x, n: hf.scan(lambda c, t: (hf.sin(c) + c, None), x, XS)) == 6 * one
    assert flops(lambda x, n: hf.while_loop(lambda i, c: i < 5, lambda i, c: (i + 1, hf.sin(c) + c), (0, x))) == (
        5 * flops(lambda x, n: (hf.sin(x) + x, n + 1))
    )
    test, step = flops(lambda x, n: n < 3), flops(lambda x, n: hf.sin(x) + x)
    for bound, times in ((None, 1), (7, 7)):
        found = flops(lambda x, n, bound=bound: hf.while_loop(lambda c: n < 3, lambda c: hf.sin(c) + c, (x,), bound))
        assert times * step <= found <= times * (step + test)
    dear = flops(lambda x, n: hf.cond(n < 3, lambda: hf.sin(hf.sin(x)) + x, lambda: x + x))
    assert dear == flops(lambda x, n: (n < 3, hf.sin(hf.sin(x)) + x))
    assert flops(lambda x, n: hf.cond(n < 3, lambda: x + x, lambda: hf.sin(hf.sin(x)) + x)) == dear


def test_a_bounded_loop_ends_when_its_condition_fails(capsys: pytest.CaptureFixture[str]):
    def body(c: hf.Tensor):
        hf.print("step")
        return c * 2.0

    f = hf.compile(lambda x: hf.while_loop(lambda c: c < 10.0, body, (x,), max_iterations=1_000_000)[0])
    assert f(hf.asarray(1.0)).item() == 16.0
    assert capsys.readouterr().out.splitlines() == ["step"] * 4


def test_branches_run_once_forward_and_once_backward(capsys: pytest.CaptureFixture[str]):
    """A branch that prints prints once under a gradient too, of first and second order."""

    def f(x: hf.Tensor):
        def branch():
            hf.print("taken")
            return hf.sin(x) * x

        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = hf.cond(x > 0, branch, lambda: x)
            g = tape.gradient(y, x)
        return outer.gradient(g, x)

    found = hf.compile(f)(hf.asarray(0.5))
    close(found, np.array(2 * np.cos(0.5) - 0.5 * np.sin(0.5)))
    assert capsys.readouterr().out.splitlines() == ["taken"]


def test_the_passes_say_what_they_did():
    graph = ir.parse(ir.print_graph(hf.compile(everything).lower(hf.asarray(0.5), hf.asarray(3)).traced, elide=None))
    for one in PIPELINE.only("expose_residuals", "unused_outputs", "loop_invariants", "unroll").passes():
        once = one(graph)
        ir.verify(once)
        assert one(once) is once


def test_invariants_of_a_parsed_graph_belong_to_the_graph_around():
    text = inspect.getdoc(loop_invariants) or ""
    before = text.split("Before:\n")[1].split("\n\nAfter:")[0]
    graph = loop_invariants(ir.parse(textwrap.dedent(before)))
    ir.verify(graph)
    assert {node.scope for node in graph.nodes} == {graph.inputs[0].scope}


def test_the_backward_pass_of_a_branch_recomputes_nothing():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.cond(hf.sum(x) > 0, lambda: hf.tanh(hf.exp(x)) * x, lambda: hf.sin(x * 3.0) * x)
        return tape.gradient(y, x)

    forward, backward = loops(compiled_graph(f, tensor(1, 2)))
    made = [node.op.name for body in bodies(forward) for node in body.nodes]
    again = [node.op.name for body in bodies(backward) for node in body.nodes]
    assert {"tanh", "exp", "sin"} <= set(made)
    assert not {"tanh", "exp", "sin"} & set(again)
