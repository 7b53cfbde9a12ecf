"""`GradientTape`: what is watched and recorded, when, and by which tape."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TapeError, TapeStateError


def number(gradient: Any) -> Any:
    return None if gradient is None else gradient.item()


# -- what is watched ----------------------------------------------------------------------------------------------


def test_a_trainable_variable_is_watched_when_it_is_read():
    v = hf.Variable(3.0)

    def f():
        with hf.GradientTape() as tape:
            y = v * v
        return tape.gradient(y, v)

    assert number(both(f)) == 6.0


@pytest.mark.parametrize(
    "read",
    [lambda v: v + 0.0, lambda v: hf.sum(v), lambda v: v.read(), lambda v: 6.0 - v, lambda v: hf.asarray(v), abs,
     lambda v: v[...], lambda v: hf.where(True, v, 0.0), lambda v: np.float32(1.0) * v],
)
def test_every_way_of_reading_a_variable_watches_it(read: Any):
    v = hf.Variable(3.0)

    def f():
        with hf.GradientTape() as tape:
            y = read(v) * v
        return tape.gradient(y, v)

    assert number(both(f)) in (6.0, 0.0)  # (v + 0) v, and (6 - v) v
    assert v.item() == 3.0


def test_a_tensor_is_watched_only_when_asked():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            y = x * x
        unwatched = tape.gradient(y, x)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return unwatched, tape.gradient(y, x)

    unwatched, watched = both(f, hf.asarray(3.0))
    assert unwatched is None
    assert number(watched) == 6.0


def test_watching_does_not_reach_back():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            early = x * x
            tape.watch(x)
            y = early + 5.0 * x
        return tape.gradient(y, x)

    assert number(both(f, hf.asarray(3.0))) == 5.0


def test_watching_again_changes_nothing():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.watch([x, x])
            y = y * x
        return tape.gradient(y, x)

    assert number(both(f, hf.asarray(2.0))) == 12.0


def test_an_input_counts_from_when_it_was_watched_whatever_else_the_operation_reads():
    def f(x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as tape:
                tape.watch(w)
                early = x * w  # reads x before the inner tape watches it
                tape.watch(x)
                y = early * x
            inner = tape.gradient(y, [x, w])
        return inner, outer.gradient(y, x)

    (x, w), outer = both(f, hf.asarray(3.0), hf.asarray(2.0))
    assert (number(x), number(w), number(outer)) == (6.0, 9.0, 12.0)


def test_what_was_computed_from_something_watched_counts_wherever_it_is_watched_again():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            h = x * x
            y = h * 2.0
            tape.watch(h)
            y = y + h * 3.0
        return tape.gradient(y, [x, h])

    assert [number(g) for g in both(f, hf.asarray(2.0))] == [20.0, 5.0]


def test_a_variable_that_is_not_trainable_can_be_watched():
    v = hf.Variable(3.0, trainable=False)

    def f():
        with hf.GradientTape() as tape:
            y = v * v
        ignored = tape.gradient(y, v)
        with hf.GradientTape() as tape:
            tape.watch(v)
            y = v * v
        assert len(tape.watched_variables()) == 1
        return ignored, tape.gradient(y, v)

    ignored, watched = both(f)
    assert ignored is None
    assert number(watched) == 6.0


def test_an_integer_variable_is_not_watched():
    n = hf.Variable(3)

    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * n
        assert tape.watched_variables() == ()
        return tape.gradient(y, [x, n])

    x, n_gradient = both(f, hf.asarray(2.0))
    assert number(x) == 3.0
    assert n_gradient is None


def test_watch_takes_any_nesting():
    def f(a: hf.Tensor, b: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch({"a": a, "rest": [(b,)]})
            y = hf.sum(a * b)
        return tape.gradient(y, {"a": a, "b": b})

    found = both(f, tensor(1, 2), tensor(3, 4))
    close(found, {"a": np.array([3.0, 4.0]), "b": np.array([1.0, 2.0])})


def test_watched_variables_come_in_creation_order_once():
    a, b, c, d = (hf.Variable(float(i), name=name) for i, name in enumerate("abcd"))

    def names(compiled: bool):
        found = []

        def f(given):
            with hf.GradientTape() as tape:
                tape.watch(d)
                _ = c * a + c * 2.0 + a + given
            found.extend(v.name for v in tape.watched_variables())
            return None

        (hf.compile(f) if compiled else f)(b)
        return found

    assert names(False) == names(True) == ["a", "b", "c", "d"]


def test_variables_need_not_be_watched_by_themselves():
    a, b = hf.Variable(2.0), hf.Variable(5.0)

    def f():
        with hf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(a)
            y = a * b
        assert tape.watched_variables() == (a,)
        return tape.gradient(y, [a, b])

    got_a, got_b = both(f)
    assert number(got_a) == 5.0
    assert got_b is None


def test_unconnected_gradients():
    def f(x: hf.Tensor, other: hf.Tensor, word: str):
        with hf.GradientTape() as tape:
            tape.watch([x, other])
            y = hf.sum(x * x)
        return tape.gradient(y, [x, other], unconnected_gradients=word)

    other = hf.asarray(np.ones((2, 3)))
    assert both(f, tensor(1, 2), other, "none")[1] is None
    zero = both(f, tensor(1, 2), other, "zero")[1]
    assert (zero.dtype, zero.shape) == (np.float64, (2, 3))
    assert not zero.numpy().any()


def test_unconnected_variable_gives_zeros_of_its_own_kind():
    v = hf.Variable(np.ones((2, 2)), name="aside")

    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, v), tape.gradient(y, v, unconnected_gradients="zero")

    none, zero = both(f, hf.asarray(2.0))
    assert none is None
    assert (zero.dtype, zero.shape, zero.numpy().sum()) == (np.float64, (2, 2), 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("word", ["zeros", "NONE", "", None])
def test_another_word_for_unconnected_lists_the_choices(word: Any, compiled: bool):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x, unconnected_gradients=word)

    with pytest.raises(ArgumentError, match=r"'none', 'zero'") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))
    assert isinstance(caught.value, ValueError)
    assert repr(word) in str(caught.value)


# -- answering and reuse ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tape_that_is_not_persistent_answers_once(compiled: bool):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        tape.gradient(y, x)
        return tape.gradient(y, x)

    with pytest.raises(TapeError, match="answers once") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))
    assert isinstance(caught.value, RuntimeError)
    assert "persistent=True" in str(caught.value)


def test_a_refused_question_does_not_use_the_tape_up():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    for bad in ({"unconnected_gradients": "?"}, {"output_gradients": tensor(1, 2, 3)}):
        with pytest.raises((ArgumentError, ShapeError)):
            tape.gradient(y, x, **bad)
    with pytest.raises(TypeError):
        tape.gradient(y, 3.0)
    close(tape.gradient(y, x), np.array([2.0, 4.0]))


def test_a_persistent_tape_answers_any_number_of_times():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            z = y * x
        return [tape.gradient(y, x), tape.gradient(z, x), tape.gradient(z, y), tape.gradient(z, x)]

    assert [number(g) for g in both(f, hf.asarray(2.0))] == [4.0, 12.0, 2.0, 12.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_an_active_tape_cannot_be_entered_again(compiled: bool):
    def f(x: hf.Tensor):
        tape = hf.GradientTape()
        with tape:
            tape.watch(x)
            with tape:
                pass
        return x

    with pytest.raises(TapeStateError, match="already recording") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))
    assert isinstance(caught.value, ValueError)


def test_the_refusal_to_enter_leaves_the_tape_recording():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(TapeStateError), tape:
            pass
        y = x * x
    assert number(tape.gradient(y, x)) == 6.0


def test_entering_a_tape_later_goes_on_recording():
    def f(x: hf.Tensor):
        tape = hf.GradientTape()
        with tape:
            tape.watch(x)
            y = x * x
        outside = y * 5.0
        with tape:
            z = y * x
        return tape.gradient([z, outside], x)

    assert number(both(f, hf.asarray(2.0))) == 12.0


def test_entering_a_tape_that_has_answered_starts_anew():
    def f(x: hf.Tensor):
        tape = hf.GradientTape()
        found = []
        for factor in (1.0, 2.0):
            with tape:
                tape.watch(x)
                y = x * x * factor
            found.append(tape.gradient(y, x))
        return found

    assert [number(g) for g in both(f, hf.asarray(3.0))] == [6.0, 12.0]


def test_nothing_is_recorded_after_the_block():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        z = y * x
        return tape.gradient(z, x)

    assert both(f, hf.asarray(2.0)) is None


def test_stop_recording():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            with tape.stop_recording():
                hidden = y * 10.0
            z = y * x
        return tape.gradient(z, x), tape.gradient(hidden, x), tape.gradient(hidden * z, x)

    kept, hidden, product = both(f, hf.asarray(2.0))
    assert number(kept) == 12.0
    assert hidden is None
    assert product is None


def test_a_gradient_can_be_asked_where_recording_is_stopped():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            with tape.stop_recording():
                g = tape.gradient(y, x)
            z = g * x
        return tape.gradient(z, x)

    assert number(both(f, hf.asarray(3.0))) == 6.0  # g is a constant there


def test_pause_and_resume_know_the_state_and_the_trace():
    def twice(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.pause()
            tape.pause()
        return x

    def again(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.pause()
            tape.resume()
            tape.resume()
        return x

    def inside(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            tape.pause()
            z = y * 2
            tape.resume()
        return tape.gradient([y, z], x)

    def in_a_branch(x: Any) -> Any:
        with hf.GradientTape() as tape:
            if x > 0:
                tape.pause()
        return x

    def in_a_loop(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.pause()
            for _ in range(x.astype(hf.int32)):
                tape.resume()
        return x

    x = hf.asarray(3.0)
    for wrapped in (lambda function: function, hf.compile):
        assert wrapped(inside)(x).item() == 6.0
        with pytest.raises(TapeStateError, match="pause: this tape is not recording"):
            wrapped(twice)(x)
        with pytest.raises(TapeStateError, match="resume: this tape is already recording"):
            wrapped(again)(x)
    for function, name in ((in_a_branch, "pause"), (in_a_loop, "resume")):
        with pytest.raises(TapeError, match=f"{name}: the tape is used inside .* entered outside of it"):
            hf.compile(function)(x)


def test_stop_recording_goes_on_after_an_exception():
    x = hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(KeyError), tape.stop_recording():
            raise KeyError
        y = x * x
    assert number(tape.gradient(y, x)) == 4.0


@pytest.mark.parametrize("compiled", [False, True])
def test_stop_recording_needs_a_recording_tape(compiled: bool):
    def f(x: hf.Tensor):
        with hf.GradientTape().stop_recording():
            return x

    with pytest.raises(TapeStateError, match="not recording") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))
    assert isinstance(caught.value, ValueError)


def test_reset_forgets():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            tape.reset()
            z = x * x
            tape.watch(x)
            w = x * x * x
        return tape.gradient(y, x), tape.gradient(z, x), tape.gradient(w, x)

    y, z, w = both(f, hf.asarray(2.0))
    assert y is None
    assert z is None
    assert number(w) == 12.0


def test_reset_forgets_variables_and_the_answer():
    v = hf.Variable(2.0)
    tape = hf.GradientTape()
    with tape:
        y = v * v
    tape.gradient(y, v)
    tape.reset()
    assert tape.watched_variables() == ()
    with tape:
        y = v * v * v
    assert number(tape.gradient(y, v)) == 12.0


def test_a_gradient_inside_the_block():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
            g = tape.gradient(y, x)
        return g

    assert number(both(f, hf.asarray(3.0))) == 6.0


def test_a_tape_that_is_not_persistent_stops_recording_when_it_answers():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        g = tape.gradient(x * x, x)
        later = x * x
    assert g._edge is None
    assert later._edge is None


def test_tapes_side_by_side_do_not_see_each_other():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            y = x * x
            with hf.GradientTape() as inner:
                z = y * x
            inner_gradient = inner.gradient(z, x)
        return inner_gradient, outer.gradient(z, x)

    inner, outer = both(f, hf.asarray(2.0))
    assert inner is None
    assert number(outer) == 12.0


def test_an_inner_tape_may_watch_what_the_outer_one_computed():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            y = x * x
            with hf.GradientTape() as inner:
                inner.watch(y)
                z = y * y
            inner_gradient = inner.gradient(z, y)
        return inner_gradient, outer.gradient(z, x)

    inner, outer = both(f, hf.asarray(3.0))
    assert number(inner) == 18.0
    assert number(outer) == 108.0


# -- assignments --------------------------------------------------------------------------------------------------


def test_an_assignment_blocks_the_gradient():
    v = hf.Variable(0.0)

    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            v.assign(x * x)
            y = v * 3.0
        return tape.gradient(y, [x, v])

    x_gradient, v_gradient = both(f, hf.asarray(2.0))
    assert x_gradient is None
    assert number(v_gradient) == 3.0


def test_a_value_read_before_an_assignment_keeps_its_primal():
    def f(v: hf.Variable):
        with hf.GradientTape() as tape:
            y = v * v
            v.assign(100.0)
        return tape.gradient(y, v)

    eager, compiled = hf.Variable(3.0), hf.Variable(3.0)
    assert number(f(eager)) == 6.0
    assert number(hf.compile(f)(compiled)) == 6.0
    assert eager.item() == compiled.item() == 100.0


def test_values_of_both_sides_of_an_assignment_count():
    def f(v: hf.Variable):
        with hf.GradientTape() as tape:
            y = v * v
            v.assign(v + 1.0)
            z = y * v
        return tape.gradient(z, v)

    # z = v0^2 v1 and no gradient through the assignment: 2 v0 v1 + v0^2.
    assert number(f(hf.Variable(3.0))) == 33.0
    assert number(hf.compile(f)(hf.Variable(3.0))) == 33.0


def test_assign_add_in_a_recorded_loop():
    def f(v: hf.Variable):
        with hf.GradientTape() as tape:
            total = hf.asarray(0.0)
            for _ in range(3):
                total = total + v * v
                v.assign_add(1.0)
        return tape.gradient(total, v), total

    for run in (f, hf.compile(f)):
        gradient, total = run(hf.Variable(1.0))
        assert number(gradient) == 12.0
        assert number(total) == 14.0


def test_sgd_with_a_used_tape_is_the_same_in_both_modes():
    def step(v: hf.Variable):
        with hf.GradientTape() as tape:
            loss = hf.sum((v - 1.0) ** 2)
        v.assign_sub(tape.gradient(loss, v) * 0.1)
        return loss

    eager, compiled = hf.Variable([3.0, -2.0]), hf.Variable([3.0, -2.0])
    fast = hf.compile(step)
    for _ in range(5):
        close(step(eager), fast(compiled))
    close(eager.numpy(), compiled.numpy())
    assert fast.trace_count == 1


# -- readings of a Variable ----------------------------------------------------------------------------------------


def test_what_another_tape_read_is_a_constant():
    # A penalty on the distance from an earlier value, which a tape had watched at the time.
    def f(v: hf.Variable):
        with hf.GradientTape() as tape:
            old = v.read()
            y = old * old
        first = tape.gradient(y, v)
        v.assign_add(1.0)
        with hf.GradientTape() as tape:
            y = (v - old) ** 2 + (old - v) ** 2
        return first, tape.gradient(y, v)

    for run in (f, hf.compile(f)):
        assert [number(g) for g in run(hf.Variable(3.0))] == [6.0, 4.0]


def test_what_was_read_outside_every_tape_is_a_constant():
    def f(v: hf.Variable):
        old = v.read()
        with hf.GradientTape() as tape:
            y = v * old * old
            y = y + old * old
        later = v.read()
        return tape.gradient(y, v), later * old

    for run in (f, hf.compile(f)):
        assert [number(g) for g in run(hf.Variable(3.0))] == [9.0, 9.0]


def test_what_was_read_while_recording_was_stopped_is_a_constant():
    def f(v: hf.Variable):
        with hf.GradientTape() as tape:
            y = v * v
            with tape.stop_recording():
                old = v.read()
            y = y + old * v
        return tape.gradient(y, v)

    for run in (f, hf.compile(f)):
        assert number(run(hf.Variable(3.0))) == 9.0


def test_what_the_outer_tape_read_is_a_constant_to_the_inner_one():
    def f(v: hf.Variable):
        with hf.GradientTape(persistent=True) as outer:
            old = v.read()
            with hf.GradientTape() as inner:
                y = v * v * old
            g = inner.gradient(y, v)
            again = v * g
        return g, outer.gradient(y, v), outer.gradient(again, v)

    for run in (f, hf.compile(f)):
        # g = 2 v old, and the outer tape knows both: y' = 3 v^2, (v g)' = (2 v^3)' = 6 v^2.
        assert [number(g) for g in run(hf.Variable(2.0))] == [8.0, 12.0, 24.0]


def test_readings_inside_branches_and_loops_are_told_apart_too():
    def f(v: hf.Variable, x: hf.Tensor):
        old = v.read()

        def inner_gradient(x: hf.Tensor):
            with hf.GradientTape() as tape:
                y = v * v * old * x
            return tape.gradient(y, v)

        return hf.cond(x > 0, inner_gradient, lambda x: x, x), hf.scan(
            lambda c, _: (c + inner_gradient(x), None), hf.asarray(0.0), hf.asarray([1.0, 2.0])
        )[0]

    for run in (f, hf.compile(f)):
        assert [number(g) for g in run(hf.Variable(3.0), hf.asarray(1.0))] == [18.0, 36.0]


def test_reading_in_a_device_block_is_reading_outside_every_tape():
    v = hf.Variable(3.0)
    with hf.device("cpu"):
        old = v.read()
    with hf.GradientTape() as tape:
        y = v * old
    assert number(tape.gradient(y, v)) == 3.0


# -- exceptions, threads and tasks --------------------------------------------------------------------------------


def test_an_exception_inside_leaves_the_tape_usable():
    x = hf.asarray(3.0)
    tape = hf.GradientTape()
    found: list[hf.Tensor] = []

    def fail():
        with tape:
            tape.watch(x)
            found.append(x * x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tape.gradient(found[0] * x, x) is None  # the product is not recorded
    with pytest.raises(TapeError):
        tape.gradient(found[0], x)


def test_after_an_exception_a_tape_can_go_on():
    def f(x: hf.Tensor):
        tape = hf.GradientTape()
        try:
            with tape:
                tape.watch(x)
                y = x * x
                raise KeyError("stop")
        except KeyError:
            pass
        with tape:
            z = y * x
        return tape.gradient(z, x)

    assert number(both(f, hf.asarray(3.0))) == 27.0


def test_a_failed_operation_leaves_the_tape_recording():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(ShapeError):
            _ = x + tensor(1, 2, 3)
        y = x * x
    close(tape.gradient(y, x), np.array([2.0, 4.0]))


def test_other_threads_are_not_recorded():
    x = hf.asarray(3.0)
    v = hf.Variable(2.0)
    results: dict[str, hf.Tensor] = {}

    def work():
        results["y"] = x * x + v * v

    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        z = results["y"] * x
    assert tape.watched_variables() == ()
    assert tape.gradient(results["y"], x) is None
    assert number(tape.gradient(z, x)) == 13.0


def test_tapes_in_two_threads_do_not_mix():
    v = hf.Variable(2.0)
    other: dict[str, hf.Tensor] = {}
    mine = hf.GradientTape(persistent=True)
    theirs = hf.GradientTape(persistent=True)

    def work():
        with theirs:
            other["y"] = v * v * v
        other["g"] = theirs.gradient(other["y"], v)

    with mine:
        y = v * v
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        z = y + other["y"]
    assert number(other["g"]) == 12.0
    assert theirs.gradient(y, v) is None
    assert mine.gradient(other["y"], v) is None
    assert number(mine.gradient(z, v)) == 4.0


def test_many_threads_at_once():
    barrier = threading.Barrier(6)
    v = hf.Variable(np.arange(4, dtype=np.float32))
    errors: list[Any] = []

    def work(factor: float):
        barrier.wait()
        for _ in range(20):
            with hf.GradientTape() as tape:
                y = hf.sum(v * v * factor)
            found = tape.gradient(y, v).numpy()
            if not np.array_equal(found, 2 * factor * np.arange(4, dtype=np.float32)):
                errors.append(found)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_copied_context_records():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = contextvars.copy_context().run(lambda: x * x)
    assert number(tape.gradient(y, x)) == 6.0


def test_asyncio_tasks_have_tapes_of_their_own():
    async def task(value: float, turns: int):
        x = hf.asarray(value)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(turns):
                y = y * x
                await asyncio.sleep(0)
        return tape.gradient(y, x)

    async def main():
        return await asyncio.gather(task(2.0, 1), task(3.0, 2), task(1.0, 4))

    assert [number(g) for g in asyncio.run(main())] == [4.0, 27.0, 5.0]


def test_a_task_does_not_record_on_a_tape_entered_later_elsewhere():
    x = hf.asarray(3.0)

    async def compute(started: asyncio.Event):
        await started.wait()
        return x * x

    async def main():
        started = asyncio.Event()
        task = asyncio.create_task(compute(started))
        with hf.GradientTape() as tape:
            tape.watch(x)
            started.set()
            y = await task
        return tape.gradient(y, x)

    assert asyncio.run(main()) is None


# -- what cannot be watched or asked ------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("value", "name"), [(1.0, "float"), (np.ones(2), "ndarray"), ("x", "str"), (3, "int")])
def test_only_tensors_can_be_watched(value: Any, name: str, compiled: bool):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, value])
        return x

    with pytest.raises(ArgumentTypeError, match=f"an? {name} cannot be watched") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))
    assert isinstance(caught.value, TypeError)
    assert "hf.asarray" in str(caught.value)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.int64])
def test_integers_cannot_be_watched(dtype: Any, compiled: bool):
    def f(n: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(n)
        return n

    with pytest.raises(DTypeError, match=f"watch: {np.dtype(dtype)} has no gradient") as caught:
        (hf.compile(f) if compiled else f)(hf.asarray(np.ones(2, dtype)))
    assert isinstance(caught.value, TypeError)
    assert "astype" in str(caught.value)


def test_an_integer_variable_cannot_be_watched():
    with hf.GradientTape() as tape, pytest.raises(TypeError, match="int32 has no gradient"):
        tape.watch(hf.Variable(3))


def test_a_refused_watch_watches_nothing():
    x = hf.asarray(2.0)
    with hf.GradientTape() as tape:
        with pytest.raises(TypeError):
            tape.watch([x, hf.asarray(1)])
        y = x * x
    assert tape.gradient(y, x) is None


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("value", [1.0, np.float32(1.0), np.ones(2), "y"])
def test_only_tensors_have_gradients(value: Any, compiled: bool):
    def target(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
        return tape.gradient(value, x)

    def source(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, {"a": x, "b": value})

    for f, what in ((target, "target"), (source, "source")):
        with pytest.raises(ArgumentTypeError, match=f"the {what} is an? {type(value).__name__}, not a tensor"):
            (hf.compile(f) if compiled else f)(hf.asarray(1.0))


def test_no_target_at_all():
    x = hf.asarray(1.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
    with pytest.raises(TypeError, match="target is empty"):
        tape.gradient([], x)


def test_none_is_no_target():
    x = hf.asarray(1.0)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    with pytest.raises(TypeError, match="target is a NoneType"):
        tape.gradient([y, None], x)
    with pytest.raises(TypeError, match="source is a NoneType"):
        tape.gradient(y, None)
