"""`tape.why_none`: one sentence for every cause of a missing gradient; branches that were not taken."""

from __future__ import annotations

import inspect
import re
import weakref
from typing import Any

import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf


def line_of(function: Any, text: str) -> str:
    """Return ``FILE:LINE`` of the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if text in line and "line_of" not in line]
    return f"{__file__}:{first + offset}"


def in_both(fn: Any, *args: Any) -> tuple[str, str]:
    """Return what `fn` hands to its first argument, run eagerly and compiled."""
    found: list[str] = []

    def run(*tensors: Any):
        fn(found.append, *tensors)
        return None

    run(*args)
    hf.compile(run)(*args)
    eager, compiled = found
    return eager, compiled


def one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text


def test_not_watched():
    def f(tell: Any, x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(w)
            y = x * w
        assert tape.gradient(y, x) is None
        tell(tape.why_none(y, x))

    for text in in_both(f, hf.asarray(1.0), hf.asarray(2.0)):
        assert text == "The source was not watched: call tape.watch(source) before computing the target from it."
        assert one_sentence(text)


def test_watched_too_late():
    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            y = x * x
            tape.watch(x)
        assert tape.gradient(y, x) is None
        tell(tape.why_none(y, x))

    eager, compiled = in_both(f, hf.asarray(1.0))
    assert eager == "There is no path: the target was not computed from the source while the tape recorded."
    assert compiled == "The source was watched too late: the target was computed from it before that."


def test_a_variable_that_was_not_read():
    v = hf.Variable(1.0, name="bias")

    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        assert tape.gradient(y, v) is None
        tell(tape.why_none(y, v))

    for text in in_both(f, hf.asarray(1.0)):
        assert text.startswith("The Variable 'bias' was not watched: it was not read while the tape recorded")
        assert one_sentence(text)


def test_a_variable_that_is_not_trainable():
    v = hf.Variable(1.0, name="mean", trainable=False)

    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * v
        tell(tape.why_none(y, v))

    for text in in_both(f, hf.asarray(1.0)):
        assert text == "The Variable 'mean' was not watched: it is not trainable; call tape.watch(variable)."


def test_accessed_variables_are_not_watched():
    v = hf.Variable(1.0, name="weight")

    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            y = x * v
        tell(tape.why_none(y, v))

    for text in in_both(f, hf.asarray(1.0)):
        assert text == (
            "The Variable 'weight' was not watched: the tape has watch_accessed_variables=False; "
            "call tape.watch(variable)."
        )


def numpy_in_the_middle(tell: Any, x: hf.Tensor):
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = x * x
        array = h.numpy() + 1.0  # leaves
        y = hf.asarray(array) * 2.0
    assert tape.gradient(y, x) is None
    tell(tape.why_none(y, x))


def float_in_the_middle(tell: Any, x: hf.Tensor):
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = hf.sum(x * x)
        number = float(h)  # leaves
        y = x.shape[0] * hf.asarray(number)
    assert tape.gradient(y, x) is None
    tell(tape.why_none(y, x))


def array_function_in_the_middle(tell: Any, x: hf.Tensor):
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = np.sort(np.asarray(x))  # leaves
        y = hf.asarray(h) * 1.0
    assert tape.gradient(y, x) is None
    tell(tape.why_none(y, x))


def list_in_the_middle(tell: Any, x: hf.Tensor):
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = (x * 2.0).tolist()  # leaves
        y = hf.asarray(h) * 1.0
    assert tape.gradient(y, x) is None
    tell(tape.why_none(y, x))


@pytest.mark.parametrize(
    "function", [numpy_in_the_middle, float_in_the_middle, array_function_in_the_middle, list_in_the_middle]
)
def test_left_through_numpy(function: Any):
    found: list[str] = []
    function(found.append, tensor(1, 2))
    place = line_of(function, "# leaves")
    assert found == [f"The path left through NumPy at {place}: only hybridflow operations are recorded."]


def test_a_nested_list_of_tensors_does_not_leave():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.asarray([x, x * 2.0, 1.0])
            z = hf.sum(y * y)
        return tape.gradient(z, x)

    assert both(f, hf.asarray(3.0)).item() == 30.0


def test_where_a_value_left_is_forgotten_once_the_tape_has_answered():
    x = tensor(1, 2)
    tape = hf.GradientTape()
    with tape:
        tape.watch(x)
        h = x * x
        node = weakref.ref(h._edge[0])
        h.numpy()
        y = h * 2.0
    del h
    assert node() is not None
    tape.gradient(y, x)
    del y
    assert node() is None


def test_a_custom_gradient_that_gives_none():
    @hf.custom_gradient
    def cut(x: hf.Tensor):
        return x * 2.0, lambda g: None

    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = cut(x * 3.0) * 4.0
        assert tape.gradient(y, x) is None
        tell(tape.why_none(y, x))

    for text in in_both(f, hf.asarray(1.0)):
        assert text.startswith("The path goes through custom_")
        assert f" at {__file__}:" in text
        assert text.endswith("its gradient rule passes nothing back.")


def test_integers():
    def f(tell: Any, x: hf.Tensor, n: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            k = hf.argmax(x)
            y = x * n
        tell(tape.why_none(k, x) + "|" + tape.why_none(y, n))

    for text in in_both(f, tensor(1, 2), hf.asarray(3)):
        target, source = text.split("|")
        assert target == "The target is int32: integers and bools have no gradient."
        assert source == "The source is int32: integers and bools have no gradient."


@pytest.mark.parametrize(
    ("step", "op"),
    [(lambda x: hf.floor(x) * 2.0, "floor"), (hf.sign, "sign"), (hf.stop_gradient, "stop_gradient")],
)
def test_an_operation_that_passes_no_gradient(step: Any, op: str):
    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = step(x)
        if tape.gradient(y, x) is None:
            tell(tape.why_none(y, x))
        else:
            tell("not none")

    for text in in_both(f, tensor(1, 2)):
        if text != "not none":
            assert text.startswith(f"The path goes through {op} at {__file__}:")
            assert one_sentence(text)


def test_the_cast_to_integers_is_named():
    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x.astype(hf.int32).astype(hf.float32)
        tell(tape.why_none(y, x))

    for text in in_both(f, tensor(1, 2)):
        assert "int32" in text
        assert f"{__file__}:" in text
        assert one_sentence(text)


def assigned(tell: Any, x: hf.Tensor, v: hf.Variable):
    with hf.GradientTape() as tape:
        tape.watch(x)
        v.assign(x * 2.0)  # cut
        y = v * 3.0
    assert tape.gradient(y, x) is None
    tell(tape.why_none(y, x))


def test_assigned():
    v = hf.Variable(0.0, name="state")
    for text in in_both(lambda tell, x: assigned(tell, x, v), hf.asarray(1.0)):
        place = line_of(assigned, "# cut")
        assert place in text
        assert "assign" in text
        assert one_sentence(text)


def test_an_assignment_that_the_target_never_sees_is_not_blamed():
    w, seen, unseen = hf.Variable(1.0), hf.Variable(1.0), hf.Variable(1.0, name="unseen", trainable=False)
    with hf.GradientTape() as tape:
        unseen.assign(w * 2.0)
        loss = seen * seen
    assert tape.gradient(loss, w) is None
    assert tape.why_none(loss, w) == (
        "There is no path: the target was not computed from the source while the tape recorded."
    )


def test_a_value_that_was_only_looked_at_is_not_blamed():
    w, x = hf.Variable(1.0), hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        assert (w * 2.0).item() == 2.0
        loss = x * x
    assert tape.why_none(loss, w).startswith("There is no path")


def test_the_assignment_that_is_on_the_way_is_blamed_and_the_first_of_several():
    w, other = hf.Variable(1.0), hf.Variable(1.0, name="other")
    first, second = hf.Variable(1.0, name="first", trainable=False), hf.Variable(1.0, name="second")
    with hf.GradientTape() as tape:
        other.assign(w * 3.0)
        first.assign(w * 2.0)
        second.assign(first + 1.0)
        loss = second * second
    text = tape.why_none(loss, w)
    assert text.startswith("The path was cut where a value was assigned to Variable 'first' at ")

    with hf.GradientTape() as tape:
        before = second * second
        second.assign(w * 2.0)
    assert tape.why_none(before, w).startswith("There is no path")  # it was read before
    with hf.GradientTape() as tape:
        second.assign(w)
        loss = second.read()
    assert "assigned to Variable 'second'" in tape.why_none(loss, w)


def test_the_eager_text_names_the_assigned_variable():
    found: list[str] = []
    assigned(found.append, hf.asarray(1.0), hf.Variable(0.0, name="state"))
    place = line_of(assigned, "# cut")
    assert found == [
        f"The path was cut where a value was assigned to Variable 'state' at {place}: "
        "no gradient flows through an assignment."
    ]


def test_no_path():
    def f(tell: Any, x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, w])
            y = w * w
            _ = x * w
        tell(tape.why_none(y, x))

    for text in in_both(f, hf.asarray(1.0), hf.asarray(2.0)):
        assert text == "There is no path: the target was not computed from the source while the tape recorded."


def test_computed_after_the_block():
    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        z = y * 2.0
        tell(tape.why_none(z, x))

    for text in in_both(f, hf.asarray(1.0)):
        assert "no path" in text
        assert "while the tape recorded" in text


def test_a_gradient_that_is_not_none():
    v = hf.Variable(2.0)

    def f(tell: Any, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            h = x * v
            y = h * h
        tell("|".join([tape.why_none(y, x), tape.why_none(y, v), tape.why_none(y, h), tape.why_none(y, y)]))

    for text in in_both(f, hf.asarray(1.0)):
        assert set(text.split("|")) == {"It is not None: the target depends on the source."}


def test_several_targets_and_nested_tapes():
    def f(tell: Any, x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(w)
                y = x * w
            inner_text = inner.why_none(y, x)
        tell(inner_text + "|" + outer.why_none(y, x))

    for text in in_both(f, hf.asarray(1.0), hf.asarray(2.0)):
        inner, outer = text.split("|")
        assert inner.startswith("The source was not watched")
        assert outer.startswith("It is not None")


def test_asking_why_uses_nothing_up():
    x = hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    for _ in range(3):
        assert tape.why_none(y, x).startswith("It is not None")
    assert tape.gradient(y, x).item() == 4.0
    assert tape.why_none(y, x).startswith("It is not None")


def test_only_tensors_can_be_asked_about():
    x = hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    with pytest.raises(TypeError, match="the target is a float"):
        tape.why_none(2.0, x)
    with pytest.raises(TypeError, match="the source is an ndarray"):
        tape.why_none(y, np.ones(2))


# -- branches that were not taken ---------------------------------------------------------------------------------


def test_a_variable_of_the_branch_not_taken():
    """Zeros where a branch that was compiled could have read it, None where it was never read; equal as zeros."""
    a, b, aside = (hf.Variable(float(i + 2), name=name) for i, name in enumerate(["a", "b", "aside"]))

    def f(x: hf.Tensor, word: str):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.cond(x > 0, lambda: x * a, lambda: x * b)
        return tape.gradient(y, [x, a, b, aside], unconnected_gradients=word)

    x = hf.asarray(3.0)
    eager = f(x, "none")
    compiled = hf.compile(f)(x, "none")
    assert [None if g is None else g.item() for g in eager] == [2.0, 3.0, None, None]
    assert [None if g is None else g.item() for g in compiled] == [2.0, 3.0, 0.0, None]
    close(both(f, x, "zero"), [np.array(2.0), np.array(3.0), np.array(0.0), np.array(0.0)])
    close(both(f, hf.asarray(-3.0), "zero"), [np.array(3.0), np.array(0.0), np.array(-3.0), np.array(0.0)])


def test_a_variable_of_the_branch_not_taken_from_a_tape_outside():
    a, b, aside = hf.Variable(2.0), hf.Variable(5.0, name="b"), hf.Variable(1.0)

    def program(x: hf.Tensor):
        return hf.cond(x > 0, lambda: x * a, lambda: x * b)

    def f(x: hf.Tensor, program: Any, word: str):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = program(x)
        return tape.gradient(y, [x, a, b, aside], unconnected_gradients=word), tape.why_none(y, b)

    x = hf.asarray(3.0)
    eager, why = f(x, program, "none")
    compiled, why_compiled = f(x, hf.compile(program), "none")
    assert [None if g is None else g.item() for g in eager] == [2.0, 3.0, None, None]
    assert [None if g is None else g.item() for g in compiled] == [2.0, 3.0, 0.0, None]
    assert "not read" in why
    assert "branch" in why
    assert why_compiled.startswith("It is not None")
    one, _ = f(x, program, "zero")
    other, _ = f(x, hf.compile(program), "zero")
    close(one, other)


# -- inside compiled functions and vmap ---------------------------------------------------------------------------


def pass_on(x: hf.Tensor):
    return hf.stop_gradient(x) * 0.0 + x


def cut(x: hf.Tensor):
    return hf.nextafter(pass_on(x), 9.0) * 2.0


def rounded(x: hf.Tensor):
    return hf.astype(hf.astype(x, hf.int32), hf.float32)


@pytest.mark.parametrize("wrap", [
    hf.compile,
    lambda f: lambda x: hf.vmap(f)(hf.stack([x, x])),
    lambda f: hf.compile(lambda x: hf.vmap(f)(hf.stack([x, x]))),
    lambda f: hf.compile(lambda x: hf.compile(pass_on)(hf.compile(f)(x))),
    lambda f: lambda x: hf.vmap(hf.vmap(f))(hf.reshape(x, (1, 1))),
])
def test_the_operation_inside_is_named(wrap: Any):
    x = hf.asarray(2.0)
    for function, text in ((cut, "nextafter"), (rounded, "astype")):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = wrap(function)(x)
        assert tape.gradient(y, x) is None
        assert tape.why_none(y, x).startswith(f"The path goes through {text} at {__file__}:")


def test_a_result_that_does_not_depend_on_it():
    x, z = hf.asarray(2.0), hf.asarray(3.0)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch([x, z])
        y = hf.compile(lambda x, z: (x * 2.0, z))(x, z)[0]
    assert tape.gradient(y, z) is None
    assert re.match(r"Result 0 of .+ at .+ does not depend on it", tape.why_none(y, z))
