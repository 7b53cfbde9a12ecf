"""Tests of deep networks as plain loops: XLA's work per layer stays constant, and shallow networks are unchanged."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.node import Node
from hybridflow.ir.fusion import BREAK
from hybridflow.ir.graph import Graph
from hybridflow.passes import PIPELINE, pipeline, run_passes
from hybridflow.passes.fusion_breaks import LIMITS
from hybridflow.passes.lib.stored import is_kept
from hybridflow.passes.outline import LIMITS as OUTLINED
from hybridflow.xla.executable import compile_graph

from .deep import main
from .networks import NETWORKS, Draw, Ours, OurStep, Theirs


def step(name: str, layers: int) -> tuple[OurStep, Graph]:
    """Return a small network's training step and its graph after the passes."""
    blocks, x = NETWORKS[name].make(Draw(smoke=True), layers)
    made = OurStep(NETWORKS[name], blocks, x)
    return made, made.compiled.graph(made.x)


def breaks(graph: Graph) -> list[Node]:
    return [node for node in graph.walk() if node.op is BREAK]


def leave_alone(monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
    """Turn off outlining in graphs of fewer nodes, however often a part repeats."""
    monkeypatch.setattr(pipeline, "PIPELINE", PIPELINE.with_limits("outline", nodes=nodes, often=1 << 30))


@pytest.mark.parametrize("outlined_from", [0, 1 << 30])
@pytest.mark.parametrize("name", ["gated", "resnet", "lstm"])
def test_xla_has_as_much_to_do_for_every_layer_however_deep_the_network_is(
    name: str, outlined_from: int, monkeypatch: pytest.MonkeyPatch
):
    leave_alone(monkeypatch, outlined_from)
    lines: dict[int, int] = {}
    for layers in (12, 16, 20):  # from about 8 layers on, there are enough breaks (`LIMITS.fewest`)
        made, _ = step(name, layers)
        lines[layers] = len(made.compiled.lower(made.x).as_text("hlo").splitlines())
    assert lines[20] - lines[16] <= 1.05 * (lines[16] - lines[12])


@pytest.fixture
def not_outlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off outlining, so that the whole computation stays in one graph."""
    leave_alone(monkeypatch, 1 << 30)


@pytest.mark.usefixtures("not_outlined")
@pytest.mark.parametrize("name", ["gated", "post_norm_mlp", "resnet", "lstm"])
def test_breaks_are_as_many_per_layer(name: str):
    counts = [len(breaks(step(name, layers)[1])) for layers in (12, 18, 24)]
    assert counts[0] > 0
    assert abs((counts[2] - counts[1]) - (counts[1] - counts[0])) <= 2  # one for every few layers


@pytest.mark.parametrize(("name", "layers"), [("mlp", 24), ("lenet", 2), ("pre_norm", 2), ("post_norm", 2)])
def test_plain_and_shallow_networks_have_no_breaks(name: str, layers: int):
    assert not breaks(step(name, layers)[1])


@pytest.mark.parametrize(("name", "few", "enough"), [("lstm", 4, 5), ("gated", 4, 5)])
def test_few_breaks_are_put_where_a_chain_grows_with_every_layer_and_is_long(name: str, few: int, enough: int):
    assert not breaks(step(name, few)[1])
    assert 0 < len(breaks(step(name, enough)[1])) < LIMITS.fewest


@pytest.mark.parametrize(("name", "layers"), [("post_norm_mlp", 3), ("post_norm", 2), ("resnet", 6)])
def test_few_breaks_are_not_put_where_every_layer_ends_its_chains(name: str, layers: int):
    _, graph = step(name, layers)
    assert len(graph.nodes) < OUTLINED.nodes  # nothing is outlined
    assert not breaks(graph)


def chain_to_the_last_kept(graph: Graph, readers: dict[Node, set[Node]]) -> dict[Node, int]:
    """Return the length of the chain of cheap nodes that ends in each node, computed independently of the pass."""

    def length(node: Node) -> int:
        if node in graph.inputs or is_kept(node, graph, len(readers[node])):
            return 0
        before = max((length(edge[0]) for edge in node.inputs if edge is not None), default=-1)
        return max(before, 0) if node.op.has("layout") else before + 1

    return {node: length(node) for node in graph.nodes}


@pytest.mark.usefixtures("not_outlined")
@pytest.mark.parametrize("name", ["gated", "post_norm", "resnet"])
def test_no_value_that_several_read_ends_a_longer_chain(name: str):
    _, graph = step(name, 12)
    assert breaks(graph)
    readers = {node: {n for n in graph.nodes if any(e is not None and e[0] is node for e in n.inputs)}
               for node in graph.nodes}
    for node, length in chain_to_the_last_kept(graph, readers).items():
        goes_on = any(not is_kept(one, graph, len(readers[one])) for one in readers[node])
        assert length < LIMITS.chain or len(readers[node]) < 2 or not goes_on or len(node.outputs) > 1


@pytest.mark.usefixtures("not_outlined")
@pytest.mark.parametrize("name", ["gated", "resnet"])
def test_a_network_with_breaks_computes_the_same(name: str):
    made, graph = step(name, 16)
    named = {variable.name: variable.numpy() for variable in made.variables}
    values = [named.get(node.attrs["name"], made.x.numpy()) for node in graph.inputs]
    others = PIPELINE.without("fusion_breaks")
    plain, _ = run_passes(made.compiled.lower(made.x).traced, pipeline=others, differentiable=False)
    assert breaks(graph)
    assert not breaks(plain)
    for a, b in zip(run(graph, values), run(plain, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_the_layers_of_a_deep_network_are_outlined_and_compute_the_same(monkeypatch: pytest.MonkeyPatch):
    blocks, x = NETWORKS["pre_norm"].make(Draw(smoke=True), 12)
    outlined, plain = [OurStep(NETWORKS["pre_norm"], blocks, x) for _ in range(2)]
    losses = [outlined.step() for _ in range(2)]
    leave_alone(monkeypatch, 1 << 30)
    np.testing.assert_allclose(losses, [plain.step() for _ in range(2)], rtol=1e-5)
    for a, b in zip(outlined.state(), plain.state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert "11 repeats of " in str(outlined.compiled.explain())
    assert "repeats of " not in str(plain.compiled.explain())


def run(graph: Graph, values: list[Any]) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(value) for value in compile_graph(graph, sizes={}).call(*values)]


@pytest.mark.parametrize("name", NETWORKS)
def test_both_sides_are_the_same_network(name: str):
    network = NETWORKS[name]
    blocks, x = network.make(Draw(smoke=True), 2)
    ours = network.forward(Ours, blocks, hf.asarray(x))
    theirs = jax.jit(lambda blocks, x: network.forward(Theirs, blocks, x))(blocks, x)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-6)


def test_the_command_runs(capsys: pytest.CaptureFixture[str]):
    assert main(["--smoke", "--layers", "2", "--peers", "jit,scan", "--rounds", "1", "mlp"]) == 0
    assert "2 layers: first" in capsys.readouterr().out
