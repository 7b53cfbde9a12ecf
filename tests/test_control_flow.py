"""`hf.cond`, `hf.scan`, `hf.while_loop`: values, structures, Variables, checks and errors, eager and compiled."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, IndexRangeError, ShapeError
from hybridflow.nested.loops import iterate

State = namedtuple("State", "position velocity")


# -- cond ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [3.0, -3.0, 0.0])
def test_cond(x: float):
    def f(x: hf.Tensor):
        return hf.cond(x > 0, lambda x: x * 2.0, lambda x: x - 1.0, x)

    assert both(f, hf.asarray(x)).item() == (x * 2 if x > 0 else x - 1)


def test_cond_is_one_trace_for_both_branches():
    f = hf.compile(lambda x: hf.cond(x > 0, lambda: x * 2.0, lambda: x - 1.0))
    assert [f(hf.asarray(x)).item() for x in (3.0, -3.0)] == [6.0, -4.0]
    assert f.trace_count == 1


@pytest.mark.parametrize("pred", [True, False, np.bool_(True), np.array(False), hf.asarray(True)])
def test_predicates(pred: Any):
    found = both(lambda x: hf.cond(pred, lambda x: x + 1.0, lambda x: x - 1.0, x), hf.asarray(0.0))
    assert found.item() == (1.0 if bool(pred) else -1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("pred", [1, 0.0, np.ones(2, np.bool_), np.array([True]), hf.asarray(1)])
def test_a_predicate_that_is_no_bool(pred: Any, compiled: bool):
    def f(x: hf.Tensor):
        return hf.cond(pred, lambda x: x, lambda x: x, x)

    with pytest.raises(DTypeError, match=r"cond: the condition must be a bool of shape \(\)") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(0.0))
    assert isinstance(caught.value, TypeError)
    assert "hf.all" in str(caught.value)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    "build",
    [lambda x: (x, x * 2), lambda x: [x, {"a": x + 1}], lambda x: State(x, -x), lambda x: {"a": (x, None)},
     lambda x: None],
)
def test_structures_of_results(build: Any, sign: float):
    def f(x: hf.Tensor):
        return hf.cond(x > 0, lambda: build(x), lambda: build(x * 10.0))

    found = both(f, hf.asarray(sign))
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(build(1.0))
    close(found, build(np.array(sign if sign > 0 else sign * 10)))


def test_structures_of_operands():
    def f(x: hf.Tensor, p: hf.Tensor):
        return hf.cond(p, lambda d, s: d["a"] + s.position, lambda d, s: d["a"] * s.velocity, {"a": x}, State(x, 3.0))

    for p, expected in ((True, 4.0), (False, 6.0)):
        assert both(f, hf.asarray(2.0), hf.asarray(p)).item() == expected


def test_numbers_become_tensors_in_both_modes():
    def f(p: hf.Tensor):
        one = hf.cond(p, lambda: 1.5, lambda: 2.5)
        two = hf.cond(p, lambda x: x.dtype == hf.float32, lambda x: x.dtype == hf.int32, 1.0)
        assert isinstance(one, hf.Tensor)
        return one, two, hf.cond(p, lambda x: x, lambda x: x + 1, 3)

    for p in (True, False):
        both(f, hf.asarray(p))


def test_captured_values_and_variables():
    v = hf.Variable(3.0)
    outside = hf.asarray(10.0)

    def f(x: hf.Tensor):
        inner = x * 2.0
        return hf.cond(x > 0, lambda: inner * v + outside, lambda: inner - outside)

    for x, expected in ((1.0, 16.0), (-1.0, -12.0)):
        assert both(f, hf.asarray(x)).item() == expected
    fast = hf.compile(f)
    assert fast(hf.asarray(1.0)).item() == 16.0
    v.assign(100.0)
    assert fast(hf.asarray(1.0)).item() == 210.0
    assert fast.trace_count == 1


def test_nested_conds():
    def f(x: hf.Tensor):
        return hf.cond(
            x > 0,
            lambda: hf.cond(x > 10, lambda: x * 100.0, lambda: x * 10.0),
            lambda: hf.cond(x < -10, lambda: -x, lambda: x),
        )

    fast = hf.compile(f)
    for x in (20.0, 5.0, -5.0, -20.0):
        same(f(hf.asarray(x)), fast(hf.asarray(x)))
    assert fast.trace_count == 1


def test_branches_that_return_what_they_got():
    def f(x: hf.Tensor, y: hf.Tensor):
        p = hf.sum(x) > 0
        return hf.cond(p, lambda a, b: (a, b), lambda a, b: (b, a), x, y), hf.cond(p, lambda: x, lambda: y)

    both(f, tensor(1, 2), tensor(3, 4))
    both(f, tensor(-1, -2), tensor(3, 4))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32", "int64", "uint8", "bool", "complex64"])
def test_dtypes_of_results(dtype: str):
    def f(x: hf.Tensor, p: hf.Tensor):
        return hf.cond(p, lambda x: x, lambda x: x[::-1], x)

    for p in (True, False):
        found = both(f, hf.asarray([1, 0], dtype=dtype), hf.asarray(p))
        assert str(found.dtype) == dtype


def test_the_branches_must_agree():
    x = tensor(1, 2)
    for second, error, text in (
        (lambda: x[0], ShapeError, r"result 0 has shape \(2,\) if true and \(\) if false"),
        (lambda: x.astype(hf.float64), DTypeError, "result 0 is float32 if true and float64 if false"),
        (lambda: (x, x), ArgumentError, r"different structures\s+got: \* if true, \(\*, \*\) if false"),
        (lambda: None, ArgumentError, "different structures"),
    ):
        with pytest.raises(error, match=text):
            hf.compile(lambda p, second=second: hf.cond(p, lambda: x, second))(hf.asarray(True))


def test_an_exception_in_a_branch():
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hf.cond(True, fail, lambda: 1.0)
    with pytest.raises(KeyError, match="mine"):
        hf.compile(lambda p: hf.cond(p, lambda: 1.0, fail))(hf.asarray(True))
    assert hf.cond(True, lambda: 1.0, fail).item() == 1.0


def test_a_tensor_of_a_branch_does_not_leak():
    kept: list[hf.Tensor] = []

    def keep(x: hf.Tensor):
        kept.append(x * 2.0)
        return x

    f = hf.compile(lambda x: hf.cond(x > 0, keep, lambda x: x, x) + kept[0], autograph=False)
    with pytest.raises(TypeError, match=r"list\.append\(\.\.\.\)"):
        f(hf.asarray(1.0))


# -- scan ---------------------------------------------------------------------------------------------------------


def test_scan_is_jax_s():
    def step(n: Any):
        def run(carry: Any, x: Any):
            a, b = carry
            a = n.tanh(a * x["u"] + b)
            return (a, b + x["v"]), (a * 2.0, {"sum": n.sum(a)})

        return run

    xs = {"u": np.linspace(-1, 1, 10).reshape(5, 2), "v": np.arange(5.0)}
    init = (np.array([0.5, -0.5]), np.array(0.1))

    def f(init: Any, xs: Any):
        return hf.scan(step(hf), init, xs)

    found = both(f, jax.tree_util.tree_map(hf.asarray, init), jax.tree_util.tree_map(hf.asarray, xs), rtol=1e-12)
    with jax.enable_x64(True):
        expected = jax.tree_util.tree_map(np.asarray, jax.lax.scan(step(jnp), init, xs))
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    close(found, expected, rtol=1e-12)


def test_scan_without_outputs_and_without_a_carry():
    def f(xs: hf.Tensor):
        total, nothing = hf.scan(lambda c, x: (c + x, None), hf.asarray(0.0), xs)
        empty, squares = hf.scan(lambda c, x: (c, x * x), (), xs)
        assert nothing is None
        assert empty == ()
        return total, squares

    total, squares = both(f, tensor(1, 2, 3))
    assert total.item() == 6.0
    close(squares, np.array([1.0, 4.0, 9.0]))


def test_a_scan_of_no_steps():
    def f(xs: hf.Tensor):
        return hf.scan(lambda c, x: (c * 2.0, {"y": x * c, "n": hf.argmax(hf.stack([c, x]))}), hf.asarray(3.0), xs)

    carry, ys = both(f, hf.asarray(np.zeros((0,), np.float32)))
    assert carry.item() == 3.0
    assert (ys["y"].shape, ys["y"].dtype) == ((0,), np.float32)
    assert (ys["n"].shape, ys["n"].dtype) == ((0,), np.int32)


def test_a_scan_of_no_steps_makes_tensors_of_numbers():
    def f(xs: hf.Tensor):
        return hf.scan(lambda c, x: ({"a": c["a"] + 1, "b": c["b"] * x}, x), {"a": 1, "b": 2.5}, xs)

    carry, _ = both(f, hf.asarray(np.zeros((0,), np.float32)))
    assert all(isinstance(one, hf.Tensor) for one in carry.values())


def test_a_scan_of_no_steps_has_the_shapes_of_its_outputs():
    def f(xs: hf.Tensor):
        return hf.scan(lambda c, x: (c, (hf.stack([x, x]), x.astype(hf.int64))), hf.asarray(0.0), xs)

    _, (a, b) = both(f, hf.asarray(np.zeros((0, 3), np.float64)))
    assert (a.shape, a.dtype, b.shape, b.dtype) == ((0, 2, 3), np.float64, (0, 3), np.int64)


def test_scan_takes_numbers_and_arrays():
    total, ys = both(lambda: hf.scan(lambda c, x: (c + 1, c * 10), 0, np.zeros(3)))
    assert (total.item(), total.dtype) == (3, np.int32)
    assert ys.tolist() == [0, 10, 20]


def test_scan_reads_captured_values_and_variables():
    w = hf.Variable(np.float32([[0.5, 0.1], [0.0, 0.5]]))

    def f(x: hf.Tensor, bias: hf.Tensor):
        scale = bias * 2.0
        return hf.scan(lambda h, x: (hf.tanh(w @ h + x * scale), h), hf.asarray(np.zeros(2, np.float32)), x)

    both(f, hf.asarray(np.float32([[1, 2], [3, 4], [5, 6]])), hf.asarray(0.25))


def test_nested_scans():
    def f(xs: hf.Tensor):
        def outer(c: hf.Tensor, row: hf.Tensor):
            inner, ys = hf.scan(lambda c, x: (c + x * row[0], c), c, row)
            return inner * 0.5, ys

        return hf.scan(outer, hf.asarray(0.0), xs)

    found = both(f, hf.asarray(np.arange(6, dtype=np.float32).reshape(2, 3)))

    def by_jax(xs: Any):
        def outer(c: Any, row: Any):
            inner, ys = jax.lax.scan(lambda c, x: (c + x * row[0], c), c, row)
            return inner * 0.5, ys

        return jax.lax.scan(outer, jnp.float32(0.0), xs)

    close(found, by_jax(np.arange(6, dtype=np.float32).reshape(2, 3)))


def test_a_scan_in_a_cond_in_a_scan():
    def f(xs: hf.Tensor):
        def outer(c: hf.Tensor, row: hf.Tensor):
            c = hf.cond(
                hf.sum(row) > 3.0, lambda c: hf.scan(lambda c, x: (c * 0.5 + x, None), c, row)[0], lambda c: c - 1.0, c
            )
            return c, c

        return hf.scan(outer, hf.asarray(0.0), xs)

    _, ys = both(f, hf.asarray(np.arange(6, dtype=np.float32).reshape(3, 2)))
    close(ys, np.array([-1.0, 3.75, 7.9375]))


def test_the_trace_of_a_scan_does_not_grow_with_its_length():
    f = hf.compile(lambda xs: hf.scan(lambda c, x: (c + x, c * x), hf.asarray(0.0), xs))
    graphs = [str(f.graph(hf.asarray(np.ones(n, np.float32)))) for n in (30, 300)]
    assert len(graphs[0].splitlines()) == len(graphs[1].splitlines())


CARRY_ERRORS = [
    (lambda c: c.astype(hf.float64), DTypeError, r"carried value.* is float32 before and float64 after a step"),
    (lambda c: hf.stack([c, c]), ShapeError, r"has shape \(2,\) before and \(2, 2\) after a step"),
    (lambda c: (c, c), ArgumentError, r"change their structure\s+got: \* before, \(\*, \*\) after"),
    (lambda c: hf.argmax(c), DTypeError, "is float32 before and int32 after"),
    (lambda c: None, ArgumentError, "change their structure"),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("change", "error", "text"), CARRY_ERRORS)
def test_a_carry_that_changes(change: Any, error: Any, text: str, compiled: bool):
    def f(c: hf.Tensor):
        return hf.scan(lambda c, x: (change(c), x), c, tensor(1, 2, 3))

    with pytest.raises(error, match=f"scan: [^!]*{text}"):
        (hf.compile(f) if compiled else f)(tensor(5, 6))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_changing_carry_is_named(compiled: bool):
    def f(c: hf.Tensor):
        return hf.scan(lambda s, x: ({"a": s["a"], "b": [s["b"][0] * 1j]}, x), {"a": c, "b": [c]}, tensor(1, 2))

    with pytest.raises(DTypeError, match=r"carried value\['b'\]\[0\] is float32 before and complex64 after a step"):
        (hf.compile(f) if compiled else f)(tensor(5, 6))


@pytest.mark.parametrize("compiled", [False, True])
def test_what_scan_does_not_take(compiled: bool):
    x = tensor(1, 2, 3)
    for call, error, text in (
        (lambda: hf.scan(lambda c, x: (c, x), x, []), ArgumentError, "nothing to run over"),
        (lambda: hf.scan(lambda c, x: (c, x), x, hf.asarray(1.0)), ShapeError, r"shape \(\) has no leading axis"),
        (lambda: hf.scan(lambda c, x: (c, x), x, (x, x[:2])), ShapeError, "leading sizes differ: 3 and 2"),
        (lambda: hf.scan(lambda c, x: c, x, x), ArgumentTypeError, r"must return \(carry, y\)"),
        (lambda: hf.scan(lambda c, x: (c, c, c), x, x), ArgumentTypeError, r"must return \(carry, y\)"),
    ):
        with pytest.raises(error, match=text):
            (hf.compile(call) if compiled else call)()


# -- while --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [None, 10, 3])
def test_while_loop(bound: int | None):
    def f(n: hf.Tensor, x: hf.Tensor):
        return hf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2.0), (0, x), max_iterations=bound)

    fast = hf.compile(f)
    for n in (0, 1, 5):
        eager, compiled = f(hf.asarray(n), hf.asarray(1.5)), fast(hf.asarray(n), hf.asarray(1.5))
        same(eager, compiled)
        steps = n if bound is None else min(n, bound)
        assert (eager[0].item(), eager[1].item()) == (steps, 1.5 * 2**steps)
    assert fast.trace_count == 1


@pytest.mark.parametrize("bound", [None, 8])
def test_while_loop_is_jax_s(bound: int | None):
    def f(x: hf.Tensor):
        return hf.while_loop(
            lambda s: s["norm"] > 0.1, lambda s: {"x": s["x"] * 0.5, "norm": hf.sum(s["x"] ** 2)},
            ({"x": x, "norm": hf.asarray(np.float32(np.inf))},), max_iterations=bound,
        )

    (found,) = both(f, tensor(1, -2))
    expected = jax.lax.while_loop(
        lambda s: s["norm"] > 0.1, lambda s: {"x": s["x"] * 0.5, "norm": jnp.sum(s["x"] ** 2)},
        {"x": jnp.float32([1, -2]), "norm": jnp.float32(np.inf)},
    )
    close(found, expected)


@pytest.mark.parametrize("bound", [None, 5])
@pytest.mark.parametrize("kind", [tuple, list])
def test_one_loop_variable(bound: int | None, kind: Any):
    def f(x: hf.Tensor):
        found = hf.while_loop(lambda x: x < 10.0, lambda x: x * 2.0, kind([x]), max_iterations=bound)
        assert type(found) is kind
        return found

    (found,) = both(f, hf.asarray(1.0))
    assert found.item() == 16.0


@pytest.mark.parametrize("bound", [None, 5])
def test_a_loop_without_a_trip(bound: int | None):
    def f(x: hf.Tensor):
        return hf.while_loop(
            lambda x, y: x < 0.0, lambda x, y: (x - 1.0, {"y": x}), (x, {"y": x * 3.0}), max_iterations=bound
        )

    x, y = both(f, hf.asarray(1.0))
    assert (x.item(), y["y"].item()) == (1.0, 3.0)


def test_a_bound_of_zero():
    def f(x: hf.Tensor):
        return hf.while_loop(lambda x: x < 9.0, lambda x: x + 1.0, (x,), max_iterations=0)

    (found,) = both(f, hf.asarray(1.0))
    assert found.item() == 1.0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bound", [-1, 2.5, "3", True])
def test_a_bound_that_is_no_count(bound: Any, compiled: bool):
    def f(x: hf.Tensor):
        return hf.while_loop(lambda x: x < 9.0, lambda x: x + 1.0, (x,), max_iterations=bound)

    with pytest.raises((ArgumentError, ArgumentTypeError), match="max_iterations"):
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))


@pytest.mark.parametrize("bound", [None, 4])
def test_while_reads_captured_values_and_variables(bound: int | None):
    v = hf.Variable(2.0)

    def f(x: hf.Tensor, limit: hf.Tensor):
        top = limit * 2.0
        return hf.while_loop(lambda x: x < top * v, lambda x: x * v + limit, (x,), max_iterations=bound)

    both(f, hf.asarray(1.0), hf.asarray(5.0))


@pytest.mark.parametrize("bound", [None, 6])
def test_nested_loops(bound: int | None):
    def f(x: hf.Tensor):
        def outer(i: Any, x: Any):
            _, x = hf.while_loop(lambda j, x: j < i, lambda j, x: (j + 1, x + j * 1.0), (0, x), max_iterations=bound)
            return i + 1, hf.cond(x > 2.0, lambda: x * 0.5, lambda: x)

        return hf.while_loop(lambda i, x: i < 5, outer, (0, x), max_iterations=bound)

    both(f, hf.asarray(0.0))


@pytest.mark.parametrize("bound", [None, 5])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("change", "error", "text"), CARRY_ERRORS[:2] + CARRY_ERRORS[3:4])
def test_a_loop_variable_that_changes(change: Any, error: Any, text: str, compiled: bool, bound: int | None):
    def f(c: hf.Tensor):
        return hf.while_loop(lambda c: hf.sum(c) < 100.0, lambda c: (change(c),), (c,), max_iterations=bound)

    with pytest.raises(error, match=f"while_loop: [^!]*{text}"):
        (hf.compile(f) if compiled else f)(tensor(5, 6))


@pytest.mark.parametrize("bound", [None, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_another_number_of_loop_variables(compiled: bool, bound: int | None):
    def f(c: hf.Tensor):
        return hf.while_loop(lambda a, b: a < b, lambda a, b: (a + 1.0, b, b), (c, c + 3.0), max_iterations=bound)

    with pytest.raises(ArgumentError, match="change their structure"):
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))


@pytest.mark.parametrize("bound", [None, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_condition_that_is_no_bool(compiled: bool, bound: int | None):
    def f(x: hf.Tensor):
        return hf.while_loop(lambda x: x, lambda x: x, (x,), max_iterations=bound)

    with pytest.raises(DTypeError, match="while_loop: the condition must be a bool of shape"):
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))


def test_a_counter_keeps_its_dtype():
    def f(n: hf.Tensor):
        return hf.while_loop(lambda i: i < n, lambda i: i + 1, (hf.asarray(0, dtype="uint8"),))

    (found,) = both(f, hf.asarray(7, dtype="uint8"))
    assert (found.item(), found.dtype) == (7, np.uint8)


# -- Variables ----------------------------------------------------------------------------------------------------


def test_assigning_before_and_after_control_flow_keeps_program_order():
    def f(v: hf.Variable, x: hf.Tensor):
        v.assign_add(1.0)
        a = hf.cond(x > 0, lambda: v * x, lambda: v - x)
        v.assign(a)
        b, _ = hf.scan(lambda c, t: (c + v * t, None), hf.asarray(0.0), tensor(1, 2))
        v.assign(b * 2.0)
        return v.read()

    eager, compiled = hf.Variable(2.0), hf.Variable(2.0)
    fast = hf.compile(f)
    for x in (2.0, -2.0):
        same(f(eager, hf.asarray(x)), fast(compiled, hf.asarray(x)))
        assert eager.item() == compiled.item()


# -- checks -------------------------------------------------------------------------------------------------------


def failing(kind: str) -> Any:
    """Return a function of (x, i) that takes x[i] inside a body, and the index that is bad there."""

    def in_cond(x: hf.Tensor, i: hf.Tensor):
        return hf.cond(i >= 0, lambda: hf.take(x, i), lambda: hf.asarray(-1.0))

    def in_scan(x: hf.Tensor, i: hf.Tensor):
        steps = hf.asarray([0, 1, 2])
        return hf.scan(lambda c, k: (c + hf.take(x, i - 2 + k), None), hf.asarray(0.0), steps)[0]

    def in_while(x: hf.Tensor, i: hf.Tensor):
        return hf.while_loop(lambda k, s: k < 3, lambda k, s: (k + 1, s + hf.take(x, i - 2 + k)), (0, 0.0))[1]

    def in_bounded_while(x: hf.Tensor, i: hf.Tensor):
        return hf.while_loop(
            lambda k, s: k < 3, lambda k, s: (k + 1, s + hf.take(x, i - 2 + k)), (0, hf.asarray(0.0)), max_iterations=4
        )[1]

    def in_condition(x: hf.Tensor, i: hf.Tensor):
        return hf.while_loop(lambda k: hf.take(x, k) < 3.0, lambda k: k + i, (hf.asarray(0),))[0].astype(hf.float32)

    def nested(x: hf.Tensor, i: hf.Tensor):
        def step(c: hf.Tensor, k: hf.Tensor):
            c = hf.cond(k > 0, lambda c: hf.while_loop(lambda j, c: j < k, lambda j, c: (j + 1, c + hf.take(x, i)),
                                                       (0, c))[1], lambda c: c, c)
            return c, None

        return hf.scan(step, hf.asarray(0.0), hf.asarray([0, 1, 2]))[0]

    return {"cond": in_cond, "scan": in_scan, "while": in_while, "bounded while": in_bounded_while,
            "condition": in_condition, "nested": nested}[kind]


BODIES = ["cond", "scan", "while", "bounded while", "condition", "nested"]


@pytest.mark.parametrize("kind", BODIES)
def test_a_bad_index_in_a_body_fails_the_call_and_changes_nothing(kind: str):
    body = failing(kind)

    def f(v: hf.Variable, x: hf.Tensor, i: hf.Tensor):
        v.assign_add(1.0)
        y = body(x, i)
        v.assign_add(y)
        return y

    x = tensor(1, 2, 3, 4)
    good, bad = hf.asarray(2), hf.asarray(9)
    eager, compiled = hf.Variable(0.0), hf.Variable(0.0)
    fast = hf.compile(f)
    same(f(eager, x, good), fast(compiled, x, good))
    before = compiled.item()
    assert before == eager.item()
    for _ in range(2):
        with pytest.raises(IndexRangeError, match=r"out of range for size 4 on axis 0"):
            fast(compiled, x, bad).item()
        assert compiled.item() == before
    with pytest.raises(IndexRangeError, match=r"size 4"):
        f(hf.Variable(0.0), x, bad)
    same(f(eager, x, good), fast(compiled, x, good))
    assert compiled.item() == eager.item()
    assert fast.trace_count == 1


def test_the_check_of_a_branch_that_is_not_taken_holds():
    def f(x: hf.Tensor, i: hf.Tensor):
        return hf.cond(i < 4, lambda: hf.take(x, i), lambda: hf.take(x, i - 9))

    for i in (2, 9, 10):
        both(f, tensor(1, 2, 3, 4), hf.asarray(i))


def test_a_loop_without_a_trip_checks_nothing_of_its_body():
    def f(x: hf.Tensor, i: hf.Tensor, bound: Any):
        return hf.while_loop(lambda s: s < -1.0, lambda s: s + hf.take(x, i), (0.0,), max_iterations=bound)

    for bound in (None, 3):
        both(f, tensor(1, 2), hf.asarray(9), bound)


def test_the_check_of_a_scan_of_no_steps_holds():
    def f(x: hf.Tensor, i: hf.Tensor, xs: hf.Tensor):
        return hf.scan(lambda c, t: (c + hf.take(x, i) + t, None), hf.asarray(0.0), xs)[0]

    both(f, tensor(1, 2), hf.asarray(1), hf.asarray(np.zeros((0,), np.float32)))
    both(f, tensor(1, 2), hf.asarray(9), hf.asarray(np.zeros((0,), np.float32)))


@pytest.mark.parametrize("kind", ["cond", "scan", "bounded while", "nested"])
def test_a_bad_index_in_a_body_under_a_tape(kind: str):
    body = failing(kind) if kind != "nested" else failing("scan")
    v = hf.Variable(1.0)

    def step(x: hf.Tensor, i: hf.Tensor):
        with hf.GradientTape() as tape:
            y = body(x * v, i)
        g = tape.gradient(y, v)
        v.assign_sub(g)
        return g

    compiled = hf.compile(lambda x, i: body(x, i))

    def outside(x: hf.Tensor, i: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = compiled(x, i)
        return tape.gradient(y, x)

    x, bad = tensor(1, 2, 3, 4), hf.asarray(9)
    for run in (step, hf.compile(step), outside):
        with pytest.raises(IndexRangeError, match="out of range"):
            run(x, bad).numpy()
        assert v.item() == 1.0


# -- numbers, and what converted code asks for --------------------------------------------------------------------


def test_a_number_in_a_branch_takes_the_other_ones_dtype():
    def f(x: hf.Tensor, p: hf.Tensor):
        return (
            hf.cond(p, lambda: x, lambda: 1), hf.cond(p, lambda: 2.5, lambda: x),
            hf.cond(p, lambda: (None, x), lambda: (None, 0)),
        )

    x = hf.asarray(np.array(3.0, np.float16))
    for p in (True, False):
        a, b, (nothing, c) = hf.compile(f)(x, hf.asarray(p))
        assert nothing is None
        assert [str(one.dtype) for one in (a, b, c)] == ["float16"] * 3
        assert [a.item(), b.item(), c.item()] == ([3.0, 2.5, 3.0] if p else [1.0, 3.0, 0.0])


def test_a_float_in_a_branch_beside_an_integer_tensor():
    f = hf.compile(lambda x, p: hf.cond(p, lambda: x, lambda: 0.5))
    for p, expected in ((True, 3.0), (False, 0.5)):
        found = f(hf.asarray(3), hf.asarray(p))
        assert (found.item(), str(found.dtype)) == (expected, "float32")


def test_a_number_that_does_not_fit_the_other_branchs_dtype():
    with pytest.raises(OverflowError):
        hf.compile(lambda x, p: hf.cond(p, lambda: x, lambda: 300))(hf.asarray(3, dtype="uint8"), hf.asarray(True))


def test_a_float_argument_in_a_branch():
    f = hf.compile(lambda x, rate: hf.cond(x > 0, lambda: x, lambda: rate * 2.0))
    assert [f(hf.asarray(-1.0, dtype="float64"), rate).item() for rate in (0.1, 0.7)] == [0.2, 1.4]
    assert f.trace_count == 1


@pytest.mark.parametrize("loop", ["while", "bounded", "scan"])
def test_a_number_that_a_step_returns_takes_the_carried_dtype(loop: str):
    def f(x: hf.Tensor):
        if loop == "scan":
            return hf.scan(lambda c, t: (2, c), x, tensor(1, 2))
        return hf.while_loop(lambda c: c < 2, lambda c: 2, (x,), max_iterations=3 if loop == "bounded" else None)

    both(f, hf.asarray(np.float16(1.5)))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [(lambda x: x.astype(hf.float64), DTypeError, "variable 'b' is float32 before and float64 after a step"),
     (lambda x: hf.stack([x, x]), ShapeError, r"variable 'b' has shape \(\) before and \(2,\) after a step"),
     (lambda x: None, ArgumentError, r"variable 'b' changes its structure in a step\s+got: \* before, None after"),
     (lambda x: {"k": x}, ArgumentError, r"variable 'b' changes its structure in a step\s+got: \* before, .*k")],
)
def test_messages_name_the_loop_variable(change: Any, error: Any, text: str):
    def loop(x: hf.Tensor):
        return iterate(lambda a, b: a < 3.0, lambda a, b: (a + 1.0, change(b)), (x, x), None, ["a", "b"])

    with pytest.raises(error, match=text):
        hf.compile(loop)(hf.asarray(1.0))


def test_a_dtype_error_names_the_lines_that_made_the_results():
    def f(x: hf.Tensor):
        return hf.cond(x > 0, lambda: x * 2.0, lambda: x.astype(hf.int32))

    with pytest.raises(DTypeError, match=r"f32\[\] at .*test_control_flow\.py:\d+, i32\[\] at .*test_control_flow"):
        hf.compile(f)(hf.asarray(1.0))
