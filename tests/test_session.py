"""Graphs made by hand and the sessions that run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf


def line(name: str = "line") -> tuple[Any, ...]:
    with hf.Graph(name) as g:
        x = hf.placeholder((None, 3), name="x")
        w = hf.Variable(np.ones((3, 2), np.float32), name="w")
        y = hf.tanh(x @ w)
    return g, x, w, y


X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)


def test_a_fetch_is_computed_for_every_size():
    g, x, _, y = line()
    with hf.Session(g) as s:
        for rows in (2, 5, 1, 2):
            data = np.resize(X, (rows, 3))
            np.testing.assert_allclose(s.run(y, feed={x: data}).numpy(), np.tanh(data @ np.ones((3, 2))), rtol=1e-6)
        assert s.compile_count == 3


def test_fetches_of_any_structure():
    g, x, w, y = line()
    with g:
        z = y.sum()
    s = hf.Session(g)
    found = s.run({"y": y, "rest": [z, (w,)], "x": x}, feed={x: X})
    assert set(found) == {"y", "rest", "x"}
    np.testing.assert_allclose(found["rest"][0].numpy(), found["y"].numpy().sum(), rtol=1e-6)
    np.testing.assert_array_equal(found["rest"][1][0].numpy(), w.numpy())
    np.testing.assert_array_equal(found["x"].numpy(), X)
    assert s.run([], feed={}) == []
    assert s.run(w).shape == (3, 2)


def test_what_is_not_fetched_is_not_run_nor_fed():
    with hf.Graph() as g:
        a, b = hf.placeholder((), name="a"), hf.placeholder((), name="b")
        doubled, unused = a * 2, hf.exp(b) + a
    s = hf.Session(g)
    assert s.run(doubled, feed={a: 3.0}).item() == 6.0
    pruned = s.graph(doubled)
    assert [node.op.name for node in pruned.nodes if node.op.name != "constant"] == ["multiply"]
    assert [node.attrs["name"] for node in pruned.inputs] == ["a"]
    hf.ir.verify(pruned)
    with pytest.raises(ValueError, match=r"'b' was not fed\n  got: b: f32\[\] \(made at .*test_session"):
        s.run(unused, feed={a: 3.0})
    assert s.run(unused, feed={a: 3.0, b: 0.0}).item() == 4.0


def test_intermediate_tensors_can_be_fed():
    with hf.Graph() as g:
        a = hf.placeholder((2,), name="a")
        middle = hf.exp(a)
        out = middle + 1
    s = hf.Session(g)
    assert s.run(out, feed={middle: [1.0, 2.0]}).tolist() == [2.0, 3.0]
    assert s.run([out, middle], feed={middle: [1.0, 2.0], a: [0.0, 0.0]})[0].tolist() == [2.0, 3.0]
    pruned = s.graph(out, [middle])
    assert [node.op.name for node in pruned.nodes if node.op.name != "constant"] == ["add"]
    hf.ir.verify(pruned)


def test_wrong_feeds_are_named():
    g, x, w, y = line()
    s = hf.Session(g)
    with pytest.raises(TypeError, match=r"float64 was fed for float32\n  got: f64\[2,3\] for x: f32\[\?,3\]"):
        s.run(y, feed={x: X.astype(np.float64)})
    with pytest.raises(ValueError, match=r"another shape was fed\n  got: f32\[3,2\] for x: f32\[\?,3\] \(made at"):
        s.run(y, feed={x: X.T})
    with pytest.raises(TypeError, match="the feed has a Variable as a key"):
        s.run(y, feed={w: X})
    with pytest.raises(TypeError, match="a fetch is a str, not a tensor"):
        s.run("y", feed={x: X})
    with pytest.raises(RuntimeError, match="a tensor that graph 'line' did not make"):
        s.run(hf.asarray(1.0))


def test_open_sizes_that_meet_must_agree():
    with hf.Graph() as g:
        a, b = hf.placeholder((None,), name="a"), hf.placeholder((None,), name="b")
        c, d = a + b, a * 2
    s = hf.Session(g)
    assert s.run(c, feed={a: [1.0, 2.0], b: [3.0, 4.0]}).tolist() == [4.0, 6.0]
    assert s.run(d, feed={a: [1.0, 2.0, 3.0]}).tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(ValueError, match=r"made for sizes where \w+ is \w+, which is not so for a_0=2, b_0=3"):
        s.run(c, feed={a: [1.0, 2.0], b: [3.0, 4.0, 5.0]})


def test_variables_are_read_at_the_start_and_assigned_at_the_end():
    v = hf.Variable(1.0, name="v")
    with hf.Graph() as g:
        before = v * 10
        add = v.assign_add(1.0)
        after = v * 10
        reset = v.assign(0.0)
    assert v.numpy() == 1.0
    s = hf.Session(g)
    assert s.run([before, after]) == [10.0, 10.0]
    assert v.numpy() == 1.0
    assert [t.item() for t in s.run([before, add, after, v])] == [10.0, 2.0, 10.0, 2.0]
    assert v.numpy() == 2.0
    s.run(reset)
    assert v.numpy() == 0.0
    with pytest.raises(ValueError, match=r"Variable 'v' is assigned twice in one run\n  got: at .*test_session"):
        s.run([add, reset])
    v.assign(5.0)
    assert s.run(add).item() == 6.0


def test_a_run_that_fails_assigns_nothing():
    v = hf.Variable([1.0, 2.0], name="v")
    with hf.Graph() as g:
        index = hf.placeholder((), hf.int32, name="index")
        picked = hf.take(v, index)
        step = v.assign(v * 2)
        other = hf.placeholder((), hf.int32, name="other")
        elsewhere = hf.take(v, other)
    s = hf.Session(g)
    with pytest.raises(IndexError):
        s.run([picked, step], feed={index: 7})[0].item()
    assert v.numpy().tolist() == [1.0, 2.0]
    assert s.run([picked, step], feed={index: 1})[0].item() == 2.0
    assert v.numpy().tolist() == [2.0, 4.0]
    s.run(step, feed={index: 7})  # what is not computed is not checked
    assert s.run(elsewhere, feed={other: 0}).item() == 4.0


def test_training_by_gradients():
    w, b = hf.Variable([0.0, 0.0], name="w"), hf.Variable(0.0, name="b")
    data = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], np.float32)
    goal = data @ np.array([2.0, -1.0], np.float32) + 0.5
    with hf.Graph() as g:
        x, t = hf.placeholder((None, 2), name="x"), hf.placeholder((None,), name="t")
        loss = ((x @ w + b - t) ** 2).mean()
        dw, db, nothing = g.gradients(loss, [w, b, hf.placeholder((), name="unused")])
        steps = [w.assign_sub(0.1 * dw), b.assign_sub(0.1 * db)]
    assert nothing is None
    expected_w, expected_b = np.zeros(2), 0.0
    with hf.Session(g) as s:
        for _ in range(5):
            error = data @ expected_w + expected_b - goal
            found, _ = s.run([loss, steps], feed={x: data, t: goal})
            np.testing.assert_allclose(found.item(), (error**2).mean(), rtol=1e-5)
            expected_w = expected_w - 0.1 * 2 * (error[:, None] * data).mean(0)
            expected_b = expected_b - 0.1 * 2 * error.mean()
        assert s.compile_count == 1
    np.testing.assert_allclose(w.numpy(), expected_w, rtol=1e-5)
    np.testing.assert_allclose(b.numpy(), expected_b, rtol=1e-5)


def test_gradients_of_gradients_and_their_errors():
    with hf.Graph() as g:
        x = hf.placeholder((), name="x")
        y = x * x * x
        (first,) = g.gradients(y, [x])
        second = g.gradients(first, x)
        scaled = g.gradients([y], {"x": x}, output_gradients=[hf.asarray(10.0)])
        with pytest.raises(ValueError, match="output_gradients are unlike the targets"):
            g.gradients(y, x, output_gradients=hf.asarray([1.0]))
        with pytest.raises(TypeError, match="a float is no tensor"):
            g.gradients(y, 3.0)
    found = hf.Session(g).run([first, second, scaled["x"]], feed={x: 2.0})
    assert [one.item() for one in found] == [12.0, 12.0, 120.0]
    with pytest.raises(RuntimeError, match="its block has ended"):
        g.gradients(y, x)


def test_what_no_run_could_leave_behind_is_refused():
    w = hf.Variable([1.0, 2.0], requires_grad=True, name="w")
    with hf.Graph("g") as g:
        x = hf.placeholder((2,), name="x")
        loss = (w * x).sum()
        for ask in (loss.backward, lambda: w.grad, w.zero_grad):
            with pytest.raises(RuntimeError, match=r"w\.grad: asked for or written .* 'g'\n.*test_session"):
                ask()

        def branch(v: Any) -> Any:
            w.assign(v)
            return v

        with pytest.raises(RuntimeError, match="Variable 'w' is assigned in a branch or loop of graph 'g'"):
            hf.cond(x.sum() > 0, branch, lambda v: v, x)
        inner = (x * 2).detach().requires_grad_()
        (inner * inner).sum().backward()  # a leaf of the graph's own is no state
        slope = inner.grad
    found, run = hf.Session(g).run([slope, loss], feed={x: [1.0, 3.0]})
    assert found.tolist() == [4.0, 12.0]
    assert not run.requires_grad
    assert w.grad is None


def test_random_numbers_in_branches_move_on():
    with hf.Graph() as g:
        x = hf.placeholder((), name="x")
        drawn = hf.cond(x > 0, lambda v: v + hf.random.normal(()), lambda v: v, x)
    s = hf.Session(g)
    first, second = (s.run(drawn, feed={x: 1.0}).item() for _ in range(2))
    assert first != second
    assert s.run(drawn, feed={x: -1.0}).item() == -1.0


def test_random_numbers_are_new_in_every_run_and_repeat_by_seed():
    with hf.Graph() as g:
        first = hf.random.normal((3,))
        second = hf.random.normal((3,))
    s = hf.Session(g)
    hf.random.seed(7)
    eager = [hf.random.normal((3,)).numpy() for _ in range(4)]
    hf.random.seed(7)
    runs = [s.run([first, second]) for _ in range(2)]
    np.testing.assert_array_equal(np.concatenate([one.numpy() for run in runs for one in run]), np.concatenate(eager))
    hf.random.seed(7)
    np.testing.assert_array_equal(s.run(second).numpy(), eager[1])
    np.testing.assert_array_equal(s.run(first).numpy(), eager[2])  # a run draws for the whole graph


def test_a_graph_grows():
    g, x, _, y = line()
    s = hf.Session(g)
    s.run(y, feed={x: X})
    nodes = len(g.nodes)
    with g:
        z = y * 2
    assert len(g.nodes) > nodes
    np.testing.assert_allclose(s.run(z, feed={x: X}).numpy(), 2 * s.run(y, feed={x: X}).numpy())
    assert "tanh" in str(g)


def test_a_graphs_tensors_stay_in_it():
    g, x, _, y = line()
    text = r"a tensor has no value outside of the graph 'line': it was made by tanh at .*test_session"
    with pytest.raises(RuntimeError, match=text):
        y + 1
    with pytest.raises(RuntimeError, match=text), hf.Graph():
        y + 1
    with pytest.raises(RuntimeError, match=text):
        hf.compile(lambda v: v + y)(1.0)
    with pytest.raises(TypeError, match=r"Run it: with hf\.Session"):
        y.numpy()
    with g, pytest.raises(TypeError, match="has no value while a graph is being made"):
        bool(y.sum() > 0)
    other = hf.Session(hf.Graph("other"))
    with pytest.raises(RuntimeError, match="outside of the graph 'line'"):
        other.run(y, feed={x: X})


def test_where_graphs_and_sessions_can_be():
    g, x, _, y = line()
    with pytest.raises(RuntimeError, match="there is no graph to add it to"):
        hf.placeholder((), hf.float32)
    with hf.Graph(), pytest.raises(RuntimeError, match="entered inside a compiled function or another graph"):
        g.__enter__()
    with g, pytest.raises(RuntimeError, match="run inside a compiled function or a graph"):
        hf.Session(g).run(y, feed={x: X})
    with hf.Session(g) as s:
        pass
    with pytest.raises(RuntimeError, match="it was closed"):
        s.run(y, feed={x: X})
    traced = hf.compile(lambda v: v + 1).graph(1.0)
    with pytest.raises(RuntimeError, match="is finished: it was traced"):
        hf.Session(traced)
    with pytest.raises(KeyError), hf.Graph():
        raise KeyError("the context is restored")
    assert not hf.is_tracing()


def test_control_flow_compiled_functions_tapes_and_outer_tensors():
    outer = hf.asarray([1.0, 2.0])
    f = hf.compile(lambda v: v * outer)
    with hf.Graph() as g:
        x = hf.placeholder((2,), name="x")
        branch = hf.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)
        looped = hf.while_loop(lambda v: v.sum() < 100, lambda v: (v * 2,), (f(hf.abs(x)) + 1,), max_iterations=20)[0]
        with hf.GradientTape() as tape:
            tape.watch(x)
            loss = hf.nn.softmax(x * outer)[0]
        by_tape = tape.gradient(loss, x)
        by_graph = g.gradients(loss, x)
    s = hf.Session(g)
    for data in ([3.0, 4.0], [-3.0, -4.0]):
        array = np.array(data, np.float32)
        a, b, c, d = (one.numpy() for one in s.run([branch, looped, by_tape, by_graph], feed={x: data}))
        np.testing.assert_allclose(a, array * 2 if array.sum() > 0 else array - 1)
        start = np.abs(array) * [1.0, 2.0] + 1
        while start.sum() < 100:
            start = start * 2
        np.testing.assert_allclose(b, start)
        np.testing.assert_allclose(c, d)
        np.testing.assert_allclose(c, hf.grad(lambda v: hf.nn.softmax(v * outer)[0])(array).numpy(), rtol=1e-5)


def test_prints_happen_when_what_they_print_is_computed(capfd):
    with hf.Graph() as g:
        x = hf.placeholder((), name="x")
        y = x * 2
        hf.print("y is", y)
        z = x + 1
    s = hf.Session(g)
    s.run(z, feed={x: 1.0}).item()
    hf.synchronize()
    assert "y is" not in capfd.readouterr().out
    s.run(y, feed={x: 1.0}).item()
    hf.synchronize()
    assert "y is Tensor(2." in capfd.readouterr().out


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_graphs_run_as_their_eager_twins(data):
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from(["add", "multiply", "tanh", "sin"]), st.integers(0, 99)), max_size=8)
    )
    eager: list[Any] = [hf.asarray([0.5, -1.0]), hf.asarray([2.0, 0.25])]
    with hf.Graph() as g:
        inputs = [hf.placeholder((2,), name=f"x{i}") for i in range(2)]
        values: list[Any] = list(inputs)
        for name, pick in steps:
            op = getattr(hf, name)
            arguments = (pick % len(values), -1) if name in ("add", "multiply") else (pick % len(values),)
            values.append(op(*[values[i] for i in arguments]))
    for name, pick in steps:
        op = getattr(hf, name)
        arguments = (pick % len(eager), -1) if name in ("add", "multiply") else (pick % len(eager),)
        eager.append(op(*[eager[i] for i in arguments]))
    fetch = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=3))
    found = hf.Session(g).run([values[i] for i in fetch], feed=dict(zip(inputs, eager[:2], strict=True)))
    for one, i in zip(found, fetch, strict=True):
        np.testing.assert_allclose(one.numpy(), eager[i].numpy(), rtol=2e-6)


def test_what_reads_only_fed_values_happens_though_no_fetch_needs_them(capfd, tmp_path):
    with hf.Graph() as g:
        x, step, other = hf.placeholder((), name="x"), hf.placeholder((), hf.int32, name="step"), hf.placeholder(())
        hf.print("step is", step)
        hf.debugging.check(step >= 0, "step is below zero")
        writer = hf.summary.Writer(tmp_path)
        writer.scalar("rate", x, step)
        hf.print("never fed", other)
        one, two = hf.unstack(hf.stack([x, other]))
        hf.print("half of a pair", two)
        y = hf.asarray(2.0) * 3
    s = hf.Session(g)
    assert s.run(y, feed={x: 0.5, step: 4}).item() == 6.0
    hf.synchronize()
    assert capfd.readouterr().out == "step is Tensor(4, dtype=int32)\n"
    assert s.run(y, feed={step: 5}).item() == 6.0
    assert s.run(y, feed={one: 1.0}).item() == 6.0
    hf.synchronize()
    assert capfd.readouterr().out == "step is Tensor(5, dtype=int32)\n"
    s.run(y, feed={two: 7.0})
    s.run(x, feed={x: 7.0})
    hf.synchronize()
    assert capfd.readouterr().out == "half of a pair Tensor(7., dtype=float32)\n"
    with pytest.raises(AssertionError, match="step is below zero"):
        s.run(y, feed={step: -1}).item()
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [one.step for one in read.Tensors("rate")] == [4]
