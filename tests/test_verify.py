"""`hf.config.verify`: compiled calls that are run eagerly too, planted differences, and the state afterwards."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, IndexRangeError, MutationError, ParityError
from hybridflow.core.op import REGISTRY
from hybridflow.core.settings import SETTINGS
from hybridflow.tracing.trace import Trace

X = np.array([1.0, 2.0, 3.0], np.float32)
T = hf.asarray(X)


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces whose guards always hold, with the numbers that they were made with."""
    monkeypatch.setattr(Trace, "holding", lambda self, signature: self.first_numbers)


@pytest.fixture
def wrong_tanh() -> Iterator[None]:
    """A lowering that differs from its kernel by 1 %."""
    op = REGISTRY["tanh"]
    lower = op.lower
    object.__setattr__(op, "lower", lambda x: lower(x) * 1.01)
    op.jitted.clear()
    yield
    object.__setattr__(op, "lower", lower)
    op.jitted.clear()


def text_of(call: Callable[[], Any]) -> str:
    with pytest.raises(ParityError) as caught:
        call()
    return str(caught.value)


def line_of(function: Any, part: str) -> str:
    """Return ``FILE:LINE: SOURCE`` of the line of this file that has a text."""
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    number = next(number for number, line in enumerate(lines) if part in line and number >= first_line(function))
    return f"{__file__}:{number + 1}: {lines[number].strip()}"


def first_line(function: Any) -> int:
    return getattr(function, "python_function", function).__code__.co_firstlineno - 1


# -- planted differences ------------------------------------------------------------------------------------------


def test_a_wrong_lowering(wrong_tanh: None):
    @hf.compile
    def f(x):
        y = hf.exp(x) * 0.1
        z = hf.tanh(y)
        return hf.sum(z * z)

    with hf.config.verify(every=2):
        f(X)
        text = text_of(lambda: f(X))
    assert text.startswith("f: call 2 is not the same eager and compiled\n  the first operation that differs: tanh at ")
    assert line_of(f, "z = hf.tanh(y)") in text
    eager = np.tanh(np.exp(X) * np.float32(0.1))
    found = re.search(r"at \[(\d)\]: eager ([\d.]+), compiled ([\d.]+), float64", text)
    assert found is not None
    np.testing.assert_allclose(float(found[2]), eager[int(found[1])], rtol=1e-6)
    np.testing.assert_allclose(float(found[3]), 1.01 * eager[int(found[1])], rtol=1e-6)


def test_a_wrong_lowering_in_a_loop_and_in_a_gradient(wrong_tanh: None):
    @hf.compile
    def f(x):
        for _ in range(hf.asarray(3)):
            x = hf.tanh(x)
        return x

    w = hf.Variable(X, name="w")

    @hf.compile
    def g():
        with hf.GradientTape() as tape:
            loss = hf.sum(hf.tanh(w) ** 2)
        return tape.gradient(loss, w)

    with hf.config.verify(every=1):
        text = text_of(lambda: f(X))
        assert "the first operation that differs: " in text
        assert line_of(f, "for _ in range") in text
        assert line_of(g, "loss = hf.sum(hf.tanh(w) ** 2)") in text_of(g)


def test_a_stale_number(stale: None):
    factors = [2]

    @hf.compile
    def f(x):
        y = x + 1.0
        return y * factors[0]

    with hf.config.verify(every=1):
        f(T)
        factors[0] = 5
        text = text_of(lambda: f(T))
    assert f"the first operation that differs: multiply at {line_of(f, 'y * factors[0]')}" in text
    assert "at [0]: eager 10.0, compiled 4.0" in text
    assert "f: call 2 is" in text


def test_a_stale_branch(stale: None):
    flags = [False]

    @hf.compile
    def f(x):
        if flags[0]:
            x = x - 7.0
        return x * 2.0

    with hf.config.verify(every=1):
        f(T)
        flags[0] = True
        text = text_of(lambda: f(T))
    assert f"subtract at {line_of(f, 'x = x - 7.0')}" in text
    assert "eager [-6.0, -5.0, -4.0], compiled nothing: it was not traced" in text


def test_a_dropped_assignment(stale: None):
    flags, w = [False], hf.Variable(X, name="w")

    @hf.compile
    def f(x):
        if flags[0]:
            w.assign(x)
        return x * 2.0

    with hf.config.verify(every=1):
        f(T + 1)
        flags[0] = True
        text = text_of(lambda: f(T + 1))
    values = "eager [2.0, 3.0, 4.0], compiled [1.0, 2.0, 3.0], which does not assign it"
    assert f"Variable 'w': {values} (assigned at " in text
    assert f"{__file__}:{line_of(f, 'w.assign(x)').split(':')[1]})" in text
    assert "no operation differs by itself" in text
    np.testing.assert_array_equal(w.numpy(), X)


def test_a_changed_random_state(stale: None):
    flags = [False]

    @hf.compile
    def f(x):
        if flags[0]:
            hf.random.normal((2,))
        return x + hf.random.normal((3,))

    with hf.config.verify(every=1):
        f(T)
        flags[0] = True
        before = np.array(hf.random.default_generator().state)
        text = text_of(lambda: f(T))
    assert f"the first operation that differs: random_normal at {line_of(f, 'hf.random.normal((2,))')}" in text
    np.testing.assert_array_equal(np.array(hf.random.default_generator().state), before)


@pytest.mark.parametrize("place", ["a list", "an attribute", "a global", "a cell"])
def test_a_lost_write(place: str, monkeypatch: pytest.MonkeyPatch):
    log: list[int] = []
    count = 0

    class Holder:
        total = 0

    holder = Holder()

    @hf.compile
    def f(x):
        global _GLOBAL
        nonlocal count
        if place == "a list":
            log.append(1)
        elif place == "an attribute":
            holder.total = 3
        elif place == "a global":
            _GLOBAL = 4
        else:
            count = 5
        return x + 1

    text = {
        "a list": "log: [1, 1] eager, [1] compiled", "an attribute": "holder: 'total' is 3 eager, 0 compiled",
        "a global": "_GLOBAL: 4 eager, 0 compiled", "a cell": "count: 5 eager, 0 compiled",
    }[place]
    f(X)
    if place != "a list":
        holder.total, count = 0, 0
        globals()["_GLOBAL"] = 0
    monkeypatch.setattr(Trace, "repeat_effects", lambda *_: None)
    monkeypatch.setattr(Trace, "holding", lambda self, signature: self.first_numbers)
    state = [*log], vars(holder).get("total"), count, _GLOBAL
    with hf.config.verify(every=1):
        found = text_of(lambda: f(X))
    assert text in found
    assert "no operation differs by itself: what differs is what Python did" in found
    assert ([*log], vars(holder).get("total"), count, _GLOBAL) == state


_GLOBAL = 0


def test_errors_of_one_mode_are_differences(stale: None):
    flags, w = [False], hf.Variable(0.0, name="w")

    @hf.compile
    def f(x):
        w.assign_add(1.0)
        if flags[0]:
            raise KeyError("gone")
        return x[0]

    with hf.config.verify(every=1):
        f(X)
        flags[0] = True
        text = text_of(lambda: f(X))
    assert "eager raised KeyError: 'gone', compiled returned" in text
    assert w.item() == 1.0


def test_an_error_that_compiling_alone_has_is_a_difference_unless_it_says_why():
    def f(x):
        return x + 1 if not hf.is_tracing() else {}["gone"]

    with hf.config.verify(every=1):
        assert "eager returned, compiled raised KeyError: 'gone'" in text_of(lambda: hf.compile(f)(X))
        with pytest.raises(MutationError):
            hf.compile(lambda x: x.append(1))([1.0])


def test_errors_of_both_modes_are_raised_as_ever():
    w = hf.Variable(0.0, name="w")

    @hf.compile
    def f(x, i):
        w.assign_add(1.0)
        return x[i]

    @hf.compile
    def g(x):
        raise LookupError("never")

    with hf.config.verify(every=1):
        f(X, hf.asarray(1))
        with pytest.raises(IndexRangeError):
            f(X, hf.asarray(7))
        with pytest.raises(LookupError, match="never"):
            g(X)
    assert w.item() == 1.0
    assert "verified: 2 of 2 calls, all the same" in str(f.explain())


def test_results_of_another_structure(monkeypatch: pytest.MonkeyPatch):
    f = hf.compile(lambda x: [x] if hf.is_tracing() else (x,))
    with hf.config.verify(every=1):
        assert "result: structure PyTreeDef((*,)) eager, PyTreeDef([*]) compiled" in text_of(lambda: f(X))


# -- the state afterwards -----------------------------------------------------------------------------------------


class Net(hf.nn.Module):
    def __init__(self):
        self.hidden, self.norm, self.drop = hf.nn.Linear(4, 8), hf.nn.BatchNorm(8), hf.nn.Dropout(0.2)
        self.out = hf.nn.Linear(8, 3)
        self.calls, self.history, self.extra = 0, [], np.zeros(3)

    def forward(self, x):
        self.calls += 1
        self.history.append("forward")
        return self.out(self.drop(hf.relu(self.norm(self.hidden(x)))))


def trained(every: int | None, ways: str) -> dict[str, Any]:
    """Train for 30 steps and return everything that can have changed."""
    hf.random.seed(3)
    random.seed(4)
    np.random.seed(5)
    model, metric, seen = Net(), hf.metrics.Accuracy(), []
    optimizer = hf.optim.Adam(model, rate=hf.optim.warmup_cosine(1e-2, 5, 30))
    rng = np.random.default_rng(0)
    data = rng.standard_normal((30, 8, 4)).astype(np.float32)

    @hf.compile
    def step(x, y):
        if ways == "tape":
            with hf.GradientTape() as tape:
                logits = model(x)
                loss = hf.mean(hf.nn.softmax_cross_entropy(logits, y))
            optimizer.update(tape.gradient(loss, model.trainable_variables))
        else:
            optimizer.zero_grad()
            logits = model(x)
            loss = hf.mean(hf.nn.softmax_cross_entropy(logits, y))
            loss.backward()
            optimizer.step()
        metric.update(logits, y)
        seen.append(1)
        return loss

    with hf.config.verify(every=every):
        losses = [step(x, np.argmax(x[:, :3], 1).astype(np.int32)).item() for x in data]
    if every:
        assert "all the same" in str(step.explain())
        assert "not verified" not in str(step.explain())
    return {
        **model.state_dict(), **optimizer.state_dict(), "random": hf.random.default_generator().state.numpy(),
        "losses": losses, "seen": seen, "metric": metric.result(), "calls": model.calls, "history": model.history,
        "python": random.getstate(), "numpy": np.random.get_state()[1], "extra": model.extra,
        "grads": [None if v.grad is None else v.grad.numpy() for v in model.trainable_variables],
        "traces": step.trace_count, "training": model.training,
    }


@pytest.mark.parametrize("ways", ["tape", "backward"])
def test_training_is_the_same_bit_for_bit(ways: str):
    plain, verified = trained(None, ways), trained(3, ways)
    assert plain.keys() == verified.keys()
    for name, value in plain.items():
        np.testing.assert_equal(verified[name], value, err_msg=name)


def test_a_failed_verification_changes_nothing(stale: None):
    w, log, factor = hf.Variable(X, name="w"), [1], [2.0]

    @hf.compile
    def step(x):
        log.append(2)
        w.assign_add(x * factor[0] + hf.random.normal((3,)))
        return hf.sum(w)

    with hf.config.verify(every=1):
        step(X)
        before = w.numpy(), [*log], hf.random.default_generator().state.numpy()
        factor[0] = 3
        assert "Variable 'w': at [" in text_of(lambda: step(X))
        np.testing.assert_equal((w.numpy(), [*log], hf.random.default_generator().state.numpy()), before)


# -- how it is turned on ------------------------------------------------------------------------------------------


def different() -> Any:
    return hf.compile(lambda x: x * (2.0 if hf.is_tracing() else 3.0), name="f")


def numbers_that_raise(f: Any, calls: int) -> list[int]:
    found: list[int] = []
    for _ in range(calls):
        try:
            f(X)
        except ParityError as error:
            found.append(int(str(error).split()[2]))
    return found


def test_every_call_and_every_third():
    with hf.config.verify(every=3):
        assert numbers_that_raise(different(), 7) == [3, 6]
        with hf.config.verify(every=1):
            assert numbers_that_raise(different(), 2) == [1, 2]
        with hf.config.verify(every=None):
            assert numbers_that_raise(different(), 4) == []
        assert SETTINGS.verify == 3
    assert SETTINGS.verify is None
    hf.config.verify()
    assert SETTINGS.verify == 100
    hf.config.verify(None)
    assert SETTINGS.verify is None
    assert SETTINGS.plain


def test_a_function_of_its_own():
    f = hf.compile(lambda x: x * (2.0 if hf.is_tracing() else 3.0), name="f", verify=2)
    assert numbers_that_raise(f, 4) == [2, 4]
    g = hf.compile(lambda x: x * (2.0 if hf.is_tracing() else 3.0), verify=False)
    with hf.config.verify(every=1):
        assert numbers_that_raise(g, 3) == []
    assert "not verified: verify=False" in str(g.explain())

    class Model:
        @hf.compile(verify=1)
        def call(self, x):
            return x * (2.0 if hf.is_tracing() else 3.0)

    assert "call: call 1 is not the same" in text_of(lambda: Model().call(X))


@pytest.mark.parametrize(
    ("every", "error", "text"),
    [
        (0, ArgumentError, "every 0 calls, which is less than 1"),
        (-3, ArgumentError, "every -3 calls, which is less than 1"),
        (1.5, ArgumentTypeError, "every how many calls is an integer\n  got: 1.5"),
        ("10", ArgumentTypeError, "every how many calls is an integer\n  got: '10'"),
    ],
)
def test_what_is_no_number_of_calls(every: Any, error: type[Exception], text: str):
    with pytest.raises(error, match=re.escape(f"verify: {text}")):
        hf.config.verify(every=every)
    with pytest.raises(error, match=re.escape(f"compile: verify: {text}")):
        hf.compile(lambda x: x, verify=every)


def test_true_is_no_number_of_calls():
    with pytest.raises(ArgumentTypeError, match="verify=True does not say every how many calls"):
        hf.compile(lambda x: x, verify=True)
    with pytest.raises(ArgumentTypeError, match="is an integer"):
        hf.config.verify(every=True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("2", "[2, 4]"), ("", "[]"), ("off", "[]"), ("0", "HYBRIDFLOW_VERIFY='0' does not say"), ("x", "='x' does not")],
)
def test_the_environment(value: str, shown: str):
    program = (
        "import hybridflow as hf\nf, found = hf.compile(lambda x: x * (2.0 if hf.is_tracing() else 3.0)), []\n"
        "for n in range(1, 6):\n    try: f(hf.ones(3))\n    except AssertionError: found.append(n)\nprint(found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "HYBRIDFLOW_VERIFY": value}
    )
    assert shown in done.stdout + done.stderr


def test_off_it_leaves_the_fast_path_alone():
    f = hf.compile(lambda x: x + 1)
    x = hf.asarray(X)
    with hf.config.verify(every=1):
        f(x)
        f(x)
    f(x)
    way = f.__call__
    assert way.__code__.co_filename.endswith("(written)")
    assert "verif" not in "".join([*way.__code__.co_names, *way.__globals__])
    assert f.trace_count == 1
    hits = f.cache_info().hits
    f(x)
    assert f.cache_info().hits == hits


# -- kinds of calls -----------------------------------------------------------------------------------------------


def test_compiled_inside_compiled_is_verified_once():
    inner = hf.compile(lambda x: x * 2.0, name="inner")
    outer = hf.compile(lambda x: inner(x) + 1.0, name="outer")
    with hf.config.verify(every=1):
        outer(X)
        outer(X)
    assert "verified: 2 of 2 calls, all the same" in str(outer.explain())
    assert inner.explain().verified == ()


def test_a_call_under_a_tape_keeps_its_gradient():
    w = hf.Variable(X, name="w")
    f = hf.compile(lambda x: hf.sum(w * x * x))
    x = hf.asarray(X)
    with hf.config.verify(every=1), hf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    np.testing.assert_allclose(tape.gradient(y, [x, w])[0].numpy(), 2 * X * X)
    assert f.explain().verified == ("verified: 1 of 1 calls, all the same",)


def test_signatures_sizes_and_concrete_functions():
    f = hf.compile(lambda x: hf.sum(x * 2.0), input_signature=[hf.TensorSpec([None])])
    g = hf.compile(lambda x: hf.cumulative_sum(x), dynamic=True)
    h = f.concrete(hf.TensorSpec([None]))
    with hf.config.verify(every=1):
        for count in (2, 3, 5, 9):
            f([1.0] * count)
            g(hf.ones(count))
            h([2.0] * count)
    assert f.explain().verified == ("verified: 8 of 8 calls, all the same",)
    assert g.explain().verified == ("verified: 4 of 4 calls, all the same",)


@pytest.mark.parametrize("what", ["print", "callback", "iterator", "created", "observed"])
def test_what_is_left_out_says_why(what: str, capsys: pytest.CaptureFixture[str]):
    numbers, holder, model = iter(range(9)), [None], hf.nn.Linear(3, 2)

    @hf.compile
    def f(x):
        if what == "print":
            hf.print("x", hf.sum(x))
        elif what == "callback":
            return hf.pure_callback(np.sort, hf.TensorSpec([3], "float32"), x)
        elif what == "iterator":
            return x * next(numbers)
        elif what == "created":
            if holder[0] is None:
                holder[0] = hf.Variable(0.0, name="mine")
            holder[0].assign_add(1.0)
        else:
            return model(x)
        return x + 1

    seen = model.watch() if what == "observed" else None
    with hf.config.verify(every=1):
        if what == "iterator":
            with pytest.warns(hf.EffectWarning):
                f(X)
        else:
            f(X)
    if seen is not None:
        seen.stop() if hasattr(seen, "stop") else seen.close()
    reason = {
        "print": f"print at {line_of(f, 'hf.print(').split(': ')[0]} runs Python at every call",
        "callback": f"pure_callback at {line_of(f, 'return hf.pure_callback').split(': ')[0]} runs Python",
        "iterator": "it reads what cannot be watched", "created": "it created 1 Variables, such as 'mine'",
        "observed": "modules are observed",
    }[what]
    lines = f.explain().verified
    assert lines[0] == "verified: 0 of 1 calls, all the same"
    assert lines[1].startswith(f"not verified: {reason}")
    assert lines[1].endswith(" (1 calls)")
    assert lines[1] in f.explain()._repr_html_().replace("&#x27;", "'")
    assert [str(one.label) for one in f.explain().tree().children][-2:] == [*lines]
    assert str(f.explain()).splitlines()[-2:] == [*lines]
    assert capsys.readouterr().out.count("Tensor(") == (what == "print")
    assert next(numbers) == (what == "iterator")


def test_fit_evaluate_and_predict():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((24, 4)).astype(np.float32)
    y = np.argmax(x[:, :3], 1).astype(np.int32)
    found: list[Any] = []
    for every in (None, 1):
        hf.random.seed(1)
        model = hf.nn.Sequential(hf.nn.Linear(4, 8), hf.nn.BatchNorm(8), hf.nn.Dropout(0.2), hf.nn.Linear(8, 3))
        optimizer = hf.optim.Adam(model, rate=0.01)
        with hf.config.verify(every=every):
            history = hf.train.fit(
                model, x, y, loss=hf.nn.softmax_cross_entropy, optimizer=optimizer, epochs=2, batch_size=8,
                metrics=hf.metrics.Accuracy(), progress=False,
            )
            right = hf.train.evaluate(model, x, y, metrics=hf.metrics.Accuracy())
            predicted = np.asarray(hf.train.predict(model, x))
        found.append((history, right, predicted, model.state_dict()))
        if every:
            assert optimizer._fit_step._compiled.explain().verified[0].startswith("verified: 6 of 6 calls")
    np.testing.assert_equal(found[0], found[1])


def test_threads_count_together_and_do_not_see_one_another():
    w = hf.Variable(0.0, name="w")
    f = hf.compile(lambda x: hf.sum(x) * w + 1.0)
    step = hf.compile(lambda: (w.assign_add(1.0), w.assign_sub(1.0), None)[2])
    errors: list[Exception] = []

    def run(function: Any, *args: Any) -> None:
        try:
            for _ in range(10):
                function(*args)
        except Exception as error:
            errors.append(error)

    with hf.config.verify(every=2):
        threads = [threading.Thread(target=run, args=one) for one in [(f, X)] * 3 + [(step,)]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert f.explain().verified == ("verified: 15 of 30 calls, all the same",)
    assert w.item() == 0.0
