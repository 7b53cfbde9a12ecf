"""`hf.debugging.table`: formulas, values, adjoints and tangents, against numbers worked out by hand."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from modes import close
from programs import Program, programs

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, CheckError, ShapeError

PROGRAMS = int(os.environ.get("HYBRIDFLOW_PROGRAMS", "8"))


def rows(table: hf.debugging.ValueTable) -> list[tuple[Any, ...]]:
    def numbers(array: Any) -> Any:
        return None if array is None else array.tolist()

    return [(row.name, row.formula, *map(numbers, (row.value, row.adjoint, row.tangent))) for row in table.rows]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_product_of_a_sum(compiled: bool):
    def f(a: Any, b: Any, c: Any) -> Any:
        return (a + b) * c

    table = hf.debugging.table(hf.compile(f) if compiled else f, 2.0, 3.0, 4.0)
    # By hand: v1 = 2 + 3, v2 = 5 * 4; adjoints v2 = 1, v1 = c = 4, c = v1 = 5, a = b = 4; for da = 1: v1 = 1, v2 = 4.
    assert rows(table) == [
        ("a", "", 2.0, 4.0, 1.0), ("b", "", 3.0, 4.0, None), ("c", "", 4.0, 5.0, None),
        ("v1", "a + b", 5.0, 4.0, 1.0), ("v2", "v1 * c", 20.0, 1.0, 4.0),
    ]
    assert [row.is_result for row in table.rows] == [False] * 4 + [True]
    assert table["v1"].where is not None
    assert table["v1"].where.startswith(__file__)
    other = hf.debugging.table(f, 2.0, 3.0, 4.0, tangents={"b": 1.0, "c": 2.0})
    assert rows(other)[3:] == [("v1", "a + b", 5.0, 4.0, 1.0), ("v2", "v1 * c", 20.0, 1.0, 4.0 + 5.0 * 2.0)]


class Two(nn.Module):
    """Two layers with weights that are easy to work with by hand."""

    def __init__(self) -> None:
        self.w = hf.Variable([[1.0, 2.0], [-1.0, 1.0]], name="w")
        self.v = hf.Variable([3.0, -1.0], name="v")

    def forward(self, x: Any) -> Any:
        return self.v @ nn.relu(self.w @ x)


def test_a_network_of_two_layers():
    net = Two()

    def loss(x: Any, y: Any) -> Any:
        return (net(x) - y) ** 2

    table = hf.debugging.table(loss, hf.asarray([1.0, -1.0]), 2.0)
    # By hand: w x = [1 - 2, -1 - 1] = [-1, -2], relu = 0 there: all dead, so the loss is (0 - 2)**2 = 4.
    assert [row[:4] for row in rows(table)] == [
        ("x", "", [1.0, -1.0], [0.0, 0.0]), ("y", "", 2.0, 4.0),
        ("w", "", [[1.0, 2.0], [-1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]), ("v", "", [3.0, -1.0], [0.0, 0.0]),
        ("v1", "w @ x", [-1.0, -2.0], [0.0, 0.0]), ("v2", "relu(v1)", [0.0, 0.0], [-12.0, 4.0]),
        ("v3", "v @ v2", 0.0, -4.0), ("v4", "v3 - y", -2.0, -4.0), ("v5", "square(v4)", 4.0, 1.0),
    ]
    table = hf.debugging.table(loss, hf.asarray([1.0, 3.0]), 2.0, tangents={"x": [0.0, 1.0]})
    # By hand: w x = [7, 2], v . h = 21 - 2 = 19, loss = 17**2 = 289; d loss / d (v . h) = 34, dh = 34 v = [102, -34],
    # dv = 34 h = [238, 68], dw = dh x^T, dx = w^T dh = [102 + 34, 204 - 34].
    # Forward for dx = [0, 1]: w dx = [2, 1], v . = 5, loss: 2 * 17 * 5 = 170, which is dx[1] above.
    assert rows(table) == [
        ("x", "", [1.0, 3.0], [136.0, 170.0], [0.0, 1.0]), ("y", "", 2.0, -34.0, None),
        ("w", "", [[1.0, 2.0], [-1.0, 1.0]], [[102.0, 306.0], [-34.0, -102.0]], None),
        ("v", "", [3.0, -1.0], [238.0, 68.0], None),
        ("v1", "w @ x", [7.0, 2.0], [102.0, -34.0], [2.0, 1.0]),
        ("v2", "relu(v1)", [7.0, 2.0], [102.0, -34.0], [2.0, 1.0]),
        ("v3", "v @ v2", 19.0, 34.0, 5.0), ("v4", "v3 - y", 17.0, 34.0, 5.0), ("v5", "square(v4)", 289.0, 1.0, 170.0),
    ]
    # Forward mode needs a pass for each of 2 + 1 + 4 + 2 elements, reverse mode one for the one result.
    costs = table.costs
    assert (costs.inputs, costs.results) == (9, 1)
    assert costs.value == hf.cost(loss, hf.asarray([1.0, 3.0]), hf.asarray(2.0)).flops == 8 + 2 + 4 + 1 + 1
    assert costs.value < costs.reverse == costs.all_by_reverse < costs.all_by_forward
    assert costs.all_by_forward == costs.value + 9 * (costs.forward - costs.value)
    assert net.w.numpy().tolist() == [[1.0, 2.0], [-1.0, 1.0]]


def test_forward_mode_is_cheaper_for_few_inputs_and_many_results():
    def curve(t: Any) -> Any:
        return hf.sin(t * hf.arange(1.0, 65.0))

    costs = hf.debugging.table(curve, 0.5).costs
    assert (costs.inputs, costs.results) == (1, 64)
    assert costs.all_by_forward < costs.all_by_reverse


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(programs(for_jax=True))
def test_both_modes_agree_with_each_other_and_with_the_tape(program: Program):
    inputs = [hf.asarray(one) for one in program.inputs]
    with hf.GradientTape(watch_accessed_variables=False) as tape:
        watched = [one for one in inputs if one.dtype == hf.float32]
        tape.watch(watched)
        results = program.function()(*inputs)
    targets = [one for one in results if one.dtype == hf.float32]
    if not targets:
        with pytest.raises(ArgumentTypeError, match="nothing to differentiate"):
            hf.debugging.table(program.function(), *inputs)
        return
    expected = tape.gradient(targets, watched)
    names = [f"inputs[{i}]" for i in range(len(inputs))]
    rng = np.random.default_rng(0)
    start = {
        name: rng.normal(size=one.shape).astype(np.float32)
        for name, one in zip(names, inputs, strict=True) if one.dtype == hf.float32
    }
    table = hf.debugging.table(program.function(), *inputs, tangents=start)
    floats = [table[name].adjoint for name in start]
    finite = [np.isfinite(np.asarray(one)).all() for one in (*results, *[e for e in expected if e is not None])]
    for found, wanted in zip(floats, expected, strict=True):
        assert (found is None) == (wanted is None)
        if found is not None:
            size = np.abs(np.asarray(wanted)[np.isfinite(wanted)]).max(initial=1.0)
            np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-6 * float(size))
    if all(finite):  # the derivative of the sum of results, both ways
        last = {row.name: row for row in table.rows if row.is_result}
        forward = sum(float(row.tangent.sum()) for row in last.values() if row.tangent is not None)
        pairs = [(table[name].adjoint, one) for name, one in start.items() if table[name].adjoint is not None]
        scale = sum(float(np.abs(np.float64(a) * t).sum()) for a, t in pairs)
        assert abs(forward - sum(float((np.float64(a) * t).sum()) for a, t in pairs)) <= 1e-4 * max(scale, 1.0)


def test_branches_loops_draws_and_effects(capsys: pytest.CaptureFixture[str]):
    total = hf.Variable(0.0, name="total")

    def f(x: Any) -> Any:
        hf.print("seen", x)
        total.assign_add(hf.sum(x))
        y = hf.cond(hf.sum(x) > 0, lambda: x * x, lambda: x)
        last, _ = hf.scan(lambda c, row: (c * row, c), hf.asarray(1.0), y)
        return last + 0 * hf.random.normal(())

    hf.random.seed(0)
    table = hf.debugging.table(f, hf.asarray([1.0, 2.0, 3.0]), tangents={"x": [0.0, 1.0, 0.0]})
    assert capsys.readouterr().out == "seen Tensor([1., 2., 3.], dtype=float32)\n"
    # (x1 x2 x3)**2 = 36; its derivative for x2 is 2 * 36 / 2
    (result,) = [row for row in table.rows if row.is_result]
    assert (result.value, result.tangent) == (36.0, 36.0)
    assert table["x"].adjoint is not None
    close(table["x"].adjoint, np.array([72.0, 36.0, 24.0], np.float32))
    assert total.item() == 0.0
    assert float(hf.random.normal(())) == float([hf.random.seed(0), hf.random.normal(())][1])  # nothing was drawn


def test_how_it_is_shown():
    table = hf.debugging.table(lambda x, big: hf.sum(x < big) * hf.sum(big * 2), hf.asarray([[1.0]]), hf.ones((4, 5)))
    text = str(table)
    assert "f32[4,5] from 1 to 1" in text
    assert "adjoint: the derivative of v7 with respect to the value" in text
    assert "tangent: the derivative of the value for dx = [[1]]" in text
    assert "x &lt; big" in table._repr_html_()
    data = json.loads(json.dumps(table.to_dict()))
    assert [row["formula"] for row in data["rows"]][2:5] == [
        "x < big", "astype(v1, dtype=i32)", "sum(v2, axis=(0, 1))",
    ]
    assert data["rows"][2] == {
        "name": "v1", "formula": "x < big", "value": [[False] * 5] * 4, "adjoint": None, "tangent": None,
        "shape": [4, 5], "dtype": "bool", "is_result": False, "where": data["rows"][2]["where"],
    }
    assert data["costs"].keys() == {"value", "reverse", "forward", "inputs", "results"}


def test_names_never_meet():
    def f(v1: Any, pair: Any) -> Any:
        return v1 * pair["a"] - 3.5

    table = hf.debugging.table(f, 2.0, {"a": 5.0})
    assert [(row.name, row.formula) for row in table.rows] == [
        ("v1", ""), ("pair['a']", ""), ("v2", "v1 * pair['a']"), ("v3", "v2 - 3.5"),
    ]


def test_what_is_wrong_is_said():
    def f(x: Any, n: Any) -> Any:
        hf.debugging.check(hf.all(x > 0), "must be positive")
        return hf.sum(x) * hf.asarray(n)

    x = hf.asarray([1.0, 2.0])
    with pytest.raises(ArgumentError, match=r"tangent of 'y', which is no input\n.*Inputs of floats: \['x'\]"):
        hf.debugging.table(f, x, hf.asarray(2), tangents={"y": 1.0})
    with pytest.raises(ArgumentError, match="tangent of 'n', which has no derivative"):
        hf.debugging.table(f, x, hf.asarray(2), tangents={"n": 1})
    with pytest.raises(ShapeError, match=r"tangent of 'x' has shape \(3,\), the input \(2,\)"):
        hf.debugging.table(f, x, hf.asarray(2), tangents={"x": [1.0, 2.0, 3.0]})
    with pytest.raises(CheckError, match="must be positive"):
        hf.debugging.table(f, -x, hf.asarray(2))
    with pytest.raises(ArgumentTypeError, match="nothing to differentiate"):
        hf.debugging.table(lambda x: x > 0, x)
    with pytest.raises(ArgumentError, match="has no value 'v9'"):
        hf.debugging.table(f, x, hf.asarray(2))["v9"]
