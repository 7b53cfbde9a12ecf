"""`hf.cost`: closed forms, XLA as an oracle of FLOPs and temporaries, where memory goes, that nothing runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cost_models import adam, cnn, lstm, mlp, sgd, transformer, weights

import hybridflow as hf
from hybridflow.analysis.memory import bytes_of
from hybridflow.core.errors import ArgumentError
from hybridflow.core.op import MultiplyAdds
from hybridflow.ops.matmul import matmul


def spec(*shape: int | None) -> hf.TensorSpec:
    return hf.TensorSpec(shape)


def with_gradient(fn: Any) -> Any:
    """Return a function of float tensors with its gradients for all of them."""

    def run(*xs: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(list(xs))
            y = hf.sum(fn(*xs))
        return tape.gradient(y, list(xs))

    return run


# -- closed forms -------------------------------------------------------------------------------------------------

N, M, K = 48, 40, 56
CLOSED = {
    "matmul": (lambda a, b: a @ b, [(N, K), (K, M)], 2 * N * M * K),
    "batched matmul": (lambda a, b: a @ b, [(6, N, K), (6, K, M)], 6 * 2 * N * M * K),
    "einsum": (lambda a, b: hf.einsum("bik,bkj->bij", a, b), [(6, N, K), (6, K, M)], 6 * 2 * N * M * K),
    "tensordot": (lambda a, b: hf.tensordot(a, b, axes=2), [(5, 8, 7), (8, 7, 9)], 2 * 5 * 8 * 7 * 9),
    "conv": (
        lambda x, w: hf.nn.conv(x, w, padding="same"), [(4, 6, 16, 16), (8, 6, 3, 3)], 2 * 4 * 8 * 256 * 6 * 9
    ),
    "strided conv": (
        lambda x, w: hf.nn.conv(x, w, stride=2), [(4, 6, 17, 17), (8, 6, 3, 3)], 2 * 4 * 8 * 64 * 6 * 9
    ),
    "grouped conv": (
        lambda x, w: hf.nn.conv(x, w, padding="same", groups=2), [(4, 6, 16, 16), (8, 3, 3, 3)], 2 * 4 * 8 * 256 * 3 * 9
    ),
    "depthwise conv": (
        lambda x, w: hf.nn.conv(x, w, padding="same", groups=6), [(4, 6, 16, 16), (6, 1, 3, 3)], 2 * 4 * 6 * 256 * 9
    ),
    "transposed conv": (
        lambda x, w: hf.nn.conv_transpose(x, w, stride=2), [(4, 6, 16, 16), (6, 8, 3, 3)], 2 * 4 * 6 * 256 * 8 * 9
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_flops_are_those_of_the_closed_form_forward_and_backward(name: str):
    fn, shapes, flops = CLOSED[name]
    specs = [spec(*shape) for shape in shapes]
    report = hf.cost(fn, *specs)
    assert report.flops == flops == 2 * report.macs
    # Each operand's gradient is one more product of the same size; the sum's gradient is no work to speak of.
    assert hf.cost(with_gradient(fn), *specs).flops == pytest.approx(3 * flops - flops, rel=0.02)


def test_attention_is_two_products_and_a_softmax_and_five_backward():
    batch, heads, n, dim = 2, 4, 64, 32
    shape = (batch, heads, n, dim)
    product, scores = 2 * batch * heads * n * n * dim, batch * heads * n * n

    def attend(q: Any, k: Any, v: Any) -> Any:
        return hf.nn.scaled_dot_product_attention(q, k, v)

    report = hf.cost(attend, spec(*shape), spec(*shape), spec(*shape))
    assert (report.flops, 2 * report.macs) == (2 * product + 5 * scores, 2 * product)
    both = hf.cost(with_gradient(attend), spec(*shape), spec(*shape), spec(*shape))
    # Backward, the scores are computed again: one product more than the four of the gradients.
    assert both.flops == pytest.approx(7 * product + 13 * scores, rel=0.02)


def test_an_lstm_is_four_gates_per_step():
    batch, steps, width, hidden = 64, 12, 64, 128
    step, args = lstm(batch, steps, width, hidden)
    gates = steps * 2 * batch * 4 * hidden * (width + hidden)
    head = 2 * batch * hidden * 10
    cells = steps * batch * hidden
    # Backward: dW of both matrices, summed over the steps, and dh, but no dx. A cell has some 60 operations.
    sums = steps * 4 * hidden * (width + hidden)
    closed = gates + gates + sums + steps * 2 * batch * 4 * hidden * hidden + 3 * head + 60 * cells
    assert step.cost(*args).flops == pytest.approx(closed, rel=0.02)


LINALG = {
    "cholesky": (lambda n: n**3 / 3, lambda a: hf.linalg.cholesky(a), 1),
    "solve": (lambda n: 2 * n**3 / 3 + 2 * n**2, lambda a, b: hf.linalg.solve(a, b), 2),
    "det": (lambda n: 2 * n**3 / 3, lambda a: hf.linalg.det(a), 1),
    "inv": (lambda n: 2 * n**3, lambda a: hf.linalg.inv(a), 1),
    "qr": (lambda n: 8 * n**3 / 3, lambda a: hf.linalg.qr(a), 1),
}


@pytest.mark.parametrize("name", LINALG)
def test_factorisations_have_their_cubes(name: str):
    closed, fn, operands = LINALG[name]
    n = 60
    specs = [spec(n, n), spec(n, 1)][:operands]
    assert hf.cost(fn, *specs).flops == pytest.approx(closed(n), rel=0.02)


# -- XLA as an oracle ---------------------------------------------------------------------------------------------

STEPS = {
    "MLP": lambda optimizer: mlp(optimizer=optimizer),
    "CNN": lambda optimizer: cnn(optimizer=optimizer),
    "transformer": lambda optimizer: transformer(optimizer=optimizer),
    "LSTM": lambda optimizer: lstm(optimizer=optimizer),
}


MEMORY_TABLE = {
    (cells[0], cells[1].lower()): tuple(map(float, cells[2:]))
    for line in (Path(__file__).parent.parent / "notebooks" / "memory.md").read_text(encoding="utf-8").splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 6 and cells[0] in STEPS
}
"""The figures of the page on memory, by model and optimizer."""


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("name", STEPS)
def test_temporaries_and_flops_of_training_steps_are_near_xlas(
    name: str, optimizer: Any, monkeypatch: pytest.MonkeyPatch
):
    # XLA counts one image of the loops over images that compute some convolutions on few cores.
    monkeypatch.setattr("hybridflow.ops.nn.convolution.usable_cores", lambda *names: 64)
    step, args = STEPS[name](optimizer)
    found = step.cost(*args).against_xla()
    assert found.temporaries == pytest.approx(found.xla_temporaries, rel=0.25)
    shown = MEMORY_TABLE[name, optimizer.__name__.lower()]
    counted = found.flops_once / 1e6, (found.xla_flops + found.xla_transcendentals) / 1e6
    assert (found.temporaries / 2**20, found.xla_temporaries / 2**20, *counted) == pytest.approx(shown, rel=0.15)
    # XLA also counts the comparisons and limits that keep its algebra off quotients, and compute nothing.
    monkeypatch.setattr("hybridflow.ops.division.hidden_result", lambda y: y)
    monkeypatch.setattr("hybridflow.ops.division.hidden", lambda x, beside: x)
    step, args = STEPS[name](optimizer)
    plain = step.cost(*args).against_xla()
    exact = plain.xla_flops + plain.xla_transcendentals
    if name == "CNN":  # XLA leaves out the padding of its three "same" convolutions
        assert 0.85 * found.flops_once < exact < 1.05 * found.flops_once
    else:
        assert found.flops_once == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    "made",
    [
        lambda: mlp((784, 512, 512, 10), batch=64),
        lambda: mlp((128, *[128] * 8, 10), batch=1024),
        lambda: mlp((256, *[512] * 6, 10), batch=32, optimizer=adam),
        lambda: cnn(act=hf.nn.gelu),
        lambda: cnn(8, 48, act=hf.nn.silu),
        lambda: transformer(2, 128),
    ],
    ids=["parameters dominate", "deep", "optimizer dominates", "gelu", "silu", "long"],
)
def test_temporaries_are_near_xlas_whatever_dominates(made: Any):
    step, args = made()
    found = step.cost(*args).against_xla()
    assert found.temporaries == pytest.approx(found.xla_temporaries, rel=0.25)


def test_xla_counts_a_loops_body_once_and_the_table_says_so():
    w = weights(32, 32)
    x = hf.zeros((8, 32))
    report = hf.cost(lambda x: hf.scan(lambda c, _: (c @ w, None), x, hf.arange(10))[0], x)
    found = report.against_xla()
    assert found.flops == 10 * found.flops_once == 10 * 2 * 8 * 32 * 32
    assert found.xla_flops == pytest.approx(found.flops_once, rel=0.02)
    assert "once whatever its number of steps" in str(found)


def test_xla_leaves_out_padding_and_the_table_says_so():
    found = hf.cost(lambda x, w: hf.nn.conv(x, w, padding="same"), hf.zeros((2, 4, 8, 8)), weights(4, 4, 3, 3))
    check = found.against_xla()
    assert check.flops == 2 * 2 * 4 * 64 * 4 * 9
    assert check.xla_flops == 2 * 2 * 4 * (3 * 8 - 2) ** 2 * 4
    assert "leaves out multiplications by padding" in str(check)


def test_a_wrong_count_is_caught():
    original = matmul.op.flops
    try:
        matmul.op.flops = MultiplyAdds(lambda y, a, b: 2 * y.size * a.shape[-1])
        step, args = mlp((64, 32, 10), batch=16)
        found = step.cost(*args).against_xla()
    finally:
        matmul.op.flops = original
    assert found.flops_once > 1.5 * (found.xla_flops + found.xla_transcendentals)


# -- where the memory goes ----------------------------------------------------------------------------------------


def test_the_split_of_a_training_step():
    step, args = mlp((20, 30, 10), batch=50, optimizer=adam)
    memory = step.cost(*args).memory
    parameters = 4 * (20 * 30 + 30 + 30 * 10 + 10)
    assert bytes_of(memory.parameters) == bytes_of(memory.gradients) == parameters
    assert bytes_of(memory.state) == 2 * parameters + 4
    assert {one.name for one in memory.state} >= {"count", "w_m", "w_v"}
    assert bytes_of(memory.arguments) == 4 * 50 * 20 + 4 * 50
    # Kept: the hidden layer, the logits, and the cross-entropy's log-sum per row.
    assert bytes_of(memory.activations) == 4 * 50 * 30 + 4 * 50 * 10 + 4 * 50
    assert all(one.line is not None and "cost_models.py" in one.line for one in memory.activations)
    assert memory.peak >= parameters * 3 + bytes_of(memory.arguments)
    assert memory.peak_at is not None
    assert memory.peak_at.bytes == max(moment.bytes for moment in memory.timeline)
    for gaps, said in ((0, "gradients included"), (1536, "gradients included; 1.5 KiB of it are gaps")):
        rows = replace(memory, temporaries=memory.peak_at.bytes + gaps).rows()
        assert {what: remark for what, _, remark in rows}["temporaries"].endswith(said)


def test_sgd_has_no_state_and_inference_no_activations():
    w = weights(20, 30)
    step, args = mlp((20, 30, 10), batch=50)
    assert step.cost(*args).memory.state == ()
    memory = hf.cost(lambda x: hf.nn.relu(x @ w), spec(5, 20)).memory
    assert (memory.activations, memory.gradients) == ((), ())
    assert [one.name for one in memory.parameters] == ["w"]


def test_running_statistics_are_state():
    w, mean = weights(20, 30), hf.Variable(hf.zeros((30,)), trainable=False, name="mean")

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            y = x @ w
            loss = hf.sum((y - mean) ** 2)
        mean.assign(0.9 * mean + 0.1 * hf.mean(y, axis=0))
        w.assign_sub(tape.gradient(loss, w))
        return loss

    memory = hf.cost(step, spec(5, 20)).memory
    assert ([one.name for one in memory.parameters], [one.name for one in memory.state]) == (["w"], ["mean"])


def test_what_holds_a_variables_gradient_is_a_gradient():
    w = hf.Variable(hf.ones((20, 30)), name="w", requires_grad=True)

    def step(x: Any) -> Any:
        loss = hf.sum(hf.tanh(x @ w))
        loss.backward()
        return loss

    memory = hf.cost(step, spec(5, 20)).memory
    assert [one.name for one in memory.parameters] == ["w"]
    assert (memory.state, bytes_of(memory.gradients)) == ((), 4 * 20 * 30)


def test_a_memory_budget_is_costed_as_it_was_planned():
    ws = [weights(32, 32) for _ in range(6)]

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            for w in ws:
                x = hf.tanh(hf.tanh(x @ w) @ w)
            loss = hf.mean(x * x)
        return tape.gradient(loss, ws)

    x = hf.zeros((256, 32))
    plain = hf.cost(step, x)
    whole = plain.memory.temporaries or 0
    bounded = hf.compile(memory_budget=int(0.7 * whole))(step)
    before = bounded.cost(x)
    assert (before.flops, before.memory.temporaries) == (plain.flops, plain.memory.temporaries)
    assert "chooses at the first call" in before.notes[0]
    bounded(x)
    after = bounded.cost(x)
    assert after.notes == ()
    assert after.flops > plain.flops
    found = after.against_xla()
    assert found.temporaries == pytest.approx(found.xla_temporaries, rel=0.25)
    assert found.temporaries < 0.8 * whole
    assert bytes_of(after.memory.gradients) == bytes_of(plain.memory.gradients)


def test_a_view_of_an_activation_is_kept_once():
    w = weights(20, 30)

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            h = hf.exp(x @ w)
            loss = hf.sum(hf.reshape(h, (-1,)) ** 2)
        return tape.gradient(loss, w)

    kept = hf.cost(step, spec(5, 20)).memory.activations
    assert [(one.name, one.bytes) for one in kept] == [("exp", 4 * 5 * 30)]


def test_a_scans_kept_rows_count_for_every_step():
    step, args = lstm(batch=4, steps=10, width=8, hidden=16)
    rows = [one for one in step.cost(*args).memory.activations if one.name == "scan"]
    assert len(rows) >= 5
    assert all(one.bytes == 4 * 10 * 4 * 16 for one in rows if one.spec == "f32[10,4,16]")


# -- how it is asked ----------------------------------------------------------------------------------------------


def test_nothing_runs_and_a_later_call_uses_the_trace():
    seen: list[int] = []

    @hf.compile
    def f(x: Any) -> Any:
        seen.append(1)
        return x * 2

    before = f.cost(spec(3, 4))
    assert (f.trace_count, f.compile_count) == (1, 0)
    f(hf.ones((3, 4)))
    assert (f.trace_count, seen) == (1, [1])
    assert f.cost(hf.ones((3, 4))).total == before.total
    assert f.trace_count == 1


def test_variables_keep_their_values():
    step, args = mlp((4, 3, 2), batch=5)
    w = weights(4, 3)
    before = np.array(w.numpy())
    step.cost(*args)
    np.testing.assert_array_equal(w.numpy(), before)


def test_open_sizes_give_formulas():
    w = weights(20, 30)
    report = hf.cost(lambda x: hf.nn.relu(x @ w), spec(None, 20))
    assert str(report.flops) == "1230*x_0"
    assert report.memory.temporaries is None
    assert report.at(x_0=7).flops == 1230 * 7
    assert report.at(x_0=7).memory.temporaries is not None
    assert "1230*x_0" in str(report)
    with pytest.raises(ArgumentError, match=r"the open sizes are \['x_0'\]"):
        report.at(n=7)
    with pytest.raises(ArgumentError, match="XLA compiles for sizes"):
        report.against_xla()


def test_a_trace_of_open_sizes_is_costed_at_the_calls_sizes():
    f = hf.compile(lambda x: x * 2, input_signature=[spec(None, 4)])
    assert (f.cost(hf.ones((3, 4))).flops, f.cost(hf.ones((5, 4))).flops, f.trace_count) == (12, 20, 1)


class Model:
    def __init__(self) -> None:
        self.w = weights(6, 6)

    @hf.compile
    def __call__(self, x: Any, times: int) -> Any:
        for _ in range(times):
            x = x @ self.w
        return x


def test_methods_static_arguments_and_nested_compiled_functions():
    model = Model()
    assert model.__call__.cost(spec(2, 6), 3).flops == 3 * 2 * 2 * 36
    assert hf.cost(model, spec(2, 6), times=2).flops == 2 * 2 * 2 * 36
    assert hf.cost(lambda x: model(x, 2) + 1, spec(2, 6)).flops == 2 * 2 * 2 * 36 + 12


def test_control_flow_on_tensors():
    def f(x: Any) -> Any:
        while hf.sum(x) < 100:
            x = x + 1
        if hf.sum(x) > 200:
            x = x @ x
        else:
            x = x * 2
        return x

    report = hf.cost(f, spec(4, 4))
    rows = {row.name: row for row in report.nodes}
    assert rows["add"].note == "number of steps unknown: counted once"
    assert (rows["matmul"].note, rows["multiply"].note) == ("", "in the cheaper branch: not counted")
    assert any("the others have 16 FLOPs" in note for note in report.notes)
    bounded = hf.cost(lambda x: hf.while_loop(lambda v: hf.sum(v) < 9, lambda v: v + 1, (x,), 5), spec(4))
    assert next(row for row in bounded.nodes if row.name == "add").note == "at most"
    assert any("counted with all of its steps" in note for note in bounded.notes)


def test_lines_add_up_and_name_their_code():
    step, args = mlp((20, 30, 10), batch=50)
    report = step.cost(*args)
    assert sum(row.flops for row in report.lines) == report.flops
    assert report.lines[0].text == "x = hf.nn.relu(x @ w + b)"
    assert report.lines[0].activations == 4 * 50 * 30


def test_the_report_prints_and_is_plain_data():
    step, args = mlp((20, 30, 10), batch=50, optimizer=adam)
    report = step.cost(*args)
    text = str(report)
    for part in ("Cost of one call of step", "By line", "optimizer state", "temporaries", "Activations kept"):
        assert part in text
    data = report.to_dict()
    assert data["total"]["flops"] == report.flops
    assert data["memory"]["parameters"] == bytes_of(report.memory.parameters)
    assert replace(report, name="other").name == "other"


def test_a_function_of_jax_says_that_it_is_not_counted():
    import jax.numpy as jnp

    report = hf.cost(hf.from_jax(lambda x: jnp.sin(x)), spec(3))
    assert any("not hybridflow's" in note for note in report.notes)
