"""What nodes cost and what is alive when: closed forms, trip counts, branches, symbolic sizes."""

from __future__ import annotations

from typing import Any

import pytest

import hybridflow as hf
from hybridflow.ir.costs import graph_cost, graph_flops, node_cost, node_costs
from hybridflow.ir.liveness import liveness


def zeros(*shape: int) -> hf.Tensor:
    return hf.zeros(shape)


def graph_of(fn: Any, *args: Any, **options: Any) -> hf.Graph:
    compiled: hf.CompiledFunction[..., Any] = hf.compile(**options)(fn)
    return compiled.graph(*args)


def test_a_matrix_product_counts_pairs():
    cost = graph_cost(graph_of(lambda x, y: x @ y, zeros(3, 4), zeros(4, 5)))
    assert cost == (2 * 3 * 4 * 5, 3 * 4 * 5, 4 * (12 + 20), 4 * 15)
    assert cost.moved == 4 * (12 + 20 + 15)


def test_a_value_read_twice_by_a_node_is_read_once():
    assert graph_cost(graph_of(lambda x: x * x, zeros(8))).read == 32


def test_views_and_constants_move_nothing():
    cost = graph_cost(graph_of(lambda x: hf.reshape(x, (4, 2)) * 2.0, zeros(8)))
    assert (cost.read, cost.written) == (32 + 4, 32)


def test_a_scan_counts_its_body_once_per_step():
    def f(x: Any, w: Any) -> Any:
        return hf.scan(lambda c, _: (hf.tanh(c @ w), c), x, hf.arange(5))[1]

    graph = graph_of(f, zeros(2, 3), zeros(3, 3))
    costs = {one.node.op.name: one for one in node_costs(graph)}
    assert costs["matmul"].cost.flops == 5 * 2 * 2 * 3 * 3
    assert (costs["matmul"].runs, costs["matmul"].exact, costs["matmul"].inside) == (5, True, ("scan_body",))
    assert sum(node_cost(node).flops for node in graph.nodes) == graph_cost(graph).flops == graph_flops(graph)


def test_a_bounded_loop_counts_at_most_and_an_unbounded_one_once():
    def f(x: Any, bound: int | None) -> Any:
        return hf.while_loop(lambda v: hf.sum(v) < 10, lambda v: v + 1, (x,), max_iterations=bound)

    for bound, runs, bounded in ((7, 7, True), (None, 1, False)):
        found = node_costs(graph_of(lambda x, b=bound: f(x, b), zeros(4)))
        adds = next(one for one in found if one.node.op.name == "add" and one.inside == ("while_body",))
        assert (adds.runs, adds.exact, adds.bounded) == (runs, False, bounded)


def test_of_two_branches_the_dearer_counts():
    def f(x: Any) -> Any:
        return hf.cond(hf.sum(x) > 0, lambda: x @ x, lambda: x * 2)

    found = {one.node.op.name: one for one in node_costs(graph_of(f, zeros(4, 4)))}
    assert found["matmul"].taken
    assert not found["multiply"].taken
    assert graph_cost(graph_of(f, zeros(4, 4))).flops == 2 * 64 + 16


def test_symbolic_sizes_give_formulas_and_numbers():
    graph = graph_of(lambda x, w: x @ w, zeros(5, 3), zeros(3, 2), input_signature=[hf.TensorSpec([None, 3])])
    assert str(graph_cost(graph).flops) == "12*x_0"
    assert graph_cost(graph, {"x_0": 7}).flops == 84
    assert liveness(graph, {"x_0": 7}).outputs == 7 * 2 * 4


def test_liveness_frees_what_is_read_last():
    def f(x: Any) -> Any:
        a = hf.exp(x)
        b = hf.sin(a)
        return hf.sum(hf.cos(b))

    live = liveness(graph_of(f, zeros(100)))
    assert live.bytes == (400, 800, 800, 404)
    assert live.at is not None
    assert (live.peak, live.at.op.name, live.outputs, live.temporaries) == (800, "sin", 4, 800)
    assert [(edge[0].op.name, size) for edge, size in live.alive] == [("exp", 400), ("sin", 400)]


def test_views_keep_alive_what_they_view():
    def f(x: Any) -> Any:
        view = hf.reshape(hf.exp(x), (10, 10))
        return hf.sum(hf.sin(x)) + hf.sum(view)

    live = liveness(graph_of(f, zeros(100)))
    assert max(live.bytes) == 804


def test_values_that_are_not_stored_take_nothing():
    graph = graph_of(lambda x: hf.sum(hf.exp(x)), zeros(100))
    assert liveness(graph, keeps=lambda edge: edge[0].op.name != "exp").peak == 4


def test_what_runs_inside_a_node_is_alive_while_it_runs():
    def f(x: Any) -> Any:
        return hf.scan(lambda c, _: (hf.tanh(hf.exp(c)), hf.sum(c)), x, hf.arange(3))[0]

    assert liveness(graph_of(f, zeros(100))).peak >= 800


@pytest.mark.parametrize(
    ("subscripts", "flops", "macs"),
    [("ij,jk->ik", 48, 24), ("ij,ij->ij", 6, 0), ("ij->i", 6, 0), ("ij->ji", 0, 0), ("ij,jk,km->im", 72, 36)],
)
def test_einsum_counts_pairs_where_it_sums_products(subscripts: str, flops: int, macs: int):
    sizes = {"i": 2, "j": 3, "k": 4, "m": 2}
    xs = [zeros(*[sizes[label] for label in term]) for term in subscripts.split("->")[0].split(",")]
    cost = graph_cost(graph_of(lambda *xs: hf.einsum(subscripts, *xs), *xs))
    assert (cost.flops, cost.macs) == (flops, macs)
