"""Checks inside compiled functions: the call is void, the error comes at a read or the next call."""

import threading

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core import pending
from hybridflow.core.errors import CheckError, IndexRangeError


class NeverReady:
    """Outcomes that are not there yet when the call returns."""

    def __init__(self, flags):
        self._flags = flags

    def is_ready(self):
        return False

    def block_until_ready(self):
        return self

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._flags)


@pytest.fixture
def late(monkeypatch):
    """Have no outcome known when a call returns, as if XLA were still computing."""
    original = pending.PendingChecks.__init__

    def init(self, flags, owner, fail):
        original(self, NeverReady(flags), owner, fail)

    monkeypatch.setattr(pending.PendingChecks, "__init__", init)
    yield
    pending.LOCAL.calls.clear()


def indices(*values):
    return hf.asarray(np.array(values, np.int32))


def make():
    table = hf.Variable([1.0, 2.0, 3.0])
    calls = hf.Variable(0)

    @hf.compile
    def take(i):
        calls.assign_add(1)
        value = table[i]
        table.assign(table * 2)
        return {"value": value, "shape": value * 0}

    return take, table, calls


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("read", [np.asarray, float, bool, str, lambda t: t + 1, lambda t: t.numpy(), repr, hf.exp])
def test_a_read_raises_and_the_variables_are_as_they_were(read):
    take, table, calls = make()
    assert take(hf.asarray(1))["value"].item() == 2.0
    result = take(hf.asarray(7))
    with pytest.raises(IndexRangeError, match=r"out of range for size 3(.|\n)*test_late_checks.py"):
        read(result["value"])
    assert table.numpy().tolist() == [2.0, 4.0, 6.0]
    assert calls.item() == 1
    with pytest.raises(IndexRangeError):
        read(result["shape"])  # every result of a void call says so
    assert take(hf.asarray(2))["value"].item() == 6.0


@pytest.mark.usefixtures("late")
def test_a_later_call_raises_though_nothing_is_read():
    take, _, calls = make()
    take(hf.asarray(-9))
    for _ in range(pending.MOST):
        take(hf.asarray(0))  # the outcome of the first is not known yet, and nobody waits for it
    with pytest.raises(IndexRangeError):
        take(hf.asarray(0))
    assert calls.item() == pending.MOST
    assert take(hf.asarray(0))["value"].item() == 2.0**pending.MOST  # a failure is not sticky
    assert calls.item() == pending.MOST + 1


@pytest.mark.usefixtures("late")
def test_a_call_that_must_wait_waits_for_several(monkeypatch):
    take, _, _ = make()
    waits = []
    monkeypatch.setattr(NeverReady, "block_until_ready", lambda self: waits.append(self))
    for _ in range(pending.MOST + 1):
        take(hf.asarray(0))
    assert not waits
    take(hf.asarray(0))
    count = pending.MOST - pending.FEWEST + 1
    assert len(pending.LOCAL.calls) == pending.FEWEST + 1
    assert len(waits) == count + 1  # the last of them first, so that the others are there
    assert waits[0] is waits[count]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("failing", [(0, 3), (3, 8), (2, 16), (8, 16)])
def test_of_several_failed_calls_the_first_raises(failing):
    @hf.compile
    def take(xs, i, bound):
        assert bound > 0
        return xs[i]

    xs, raised = hf.asarray([1.0, 2.0, 3.0]), []
    for number in range(pending.MOST + 1):
        last = number == failing[1]
        take(xs, hf.asarray(-9 if last else 0), hf.asarray(0 if number == failing[0] else 1))
    for _ in range(2):
        with pytest.raises((CheckError, IndexRangeError)) as caught:
            take(xs, hf.asarray(0), hf.asarray(1)).item()
        raised.append(caught.type)
    assert raised == [CheckError, IndexRangeError]


def test_the_next_call_raises_if_the_outcome_is_known():
    take, _, calls = make()
    try:
        take(hf.asarray(-9))
        jax.effects_barrier()
        for call in pending.LOCAL.calls:
            jax.block_until_ready(call.flags)
        with pytest.raises(IndexRangeError):
            take(hf.asarray(0))
    except IndexRangeError:
        pass  # it was known when the call returned
    assert calls.item() == 0


@pytest.mark.usefixtures("late")
def test_what_is_computed_from_a_void_result_cannot_be_read():
    take, _, _ = make()
    double = hf.compile(lambda x: x * 2)
    result = double(take(hf.asarray(5))["value"])
    with pytest.raises(IndexRangeError):
        result.numpy()


@pytest.mark.usefixtures("late")
def test_synchronize_raises():
    take, _, _ = make()
    take(hf.asarray(5))
    with pytest.raises(IndexRangeError):
        hf.synchronize()
    hf.synchronize()


@pytest.mark.usefixtures("late")
def test_another_thread_that_reads_the_result_gets_the_error():
    take, _, _ = make()
    result = take(hf.asarray(5))["value"]
    caught = []

    def read():
        try:
            result.numpy()
        except IndexRangeError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(caught) == 1


@pytest.mark.usefixtures("late")
def test_under_a_tape():
    x = hf.asarray([1.0, 2.0])
    take = hf.compile(lambda x, i: x[i] * 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        good = take(x, hf.asarray(1))
    assert tape.gradient(good, x).tolist() == [0.0, 2.0]
    with hf.GradientTape() as tape:
        tape.watch(x)
        bad = take(x, hf.asarray(2))
    with pytest.raises(IndexRangeError):
        bad.numpy()


def test_a_known_outcome_raises_at_the_call():
    take, _, calls = make()
    hf.synchronize()
    with pytest.raises(IndexRangeError):
        take(hf.asarray(3))["value"].numpy()
    assert calls.item() == 0


def test_the_first_of_several_checks_is_named():
    @hf.compile
    def f(x, i, j):
        hf.debugging.check(hf.all(x > 0), "x must be positive")
        return x[i] + x[j]

    x = hf.asarray([1.0, 2.0])
    assert f(x, hf.asarray(0), hf.asarray(1)).item() == 3.0
    for args, text in [
        ((x, hf.asarray(0), hf.asarray(9)), "size 2"),
        ((-x, hf.asarray(0), hf.asarray(9)), "x must be positive"),
    ]:
        with pytest.raises((IndexRangeError, AssertionError), match=text):
            f(*args).numpy()


def test_without_checks():
    f = hf.compile(lambda x, i: x[i])
    x = hf.asarray([1.0, 2.0])
    with hf.config.checks(False):
        assert f(x, hf.asarray(1)).item() == 2.0
        f(x, hf.asarray(5)).numpy()
        assert "greater_equal" not in str(f.graph(x, hf.asarray(1)))
    with pytest.raises(IndexRangeError):
        f(x, hf.asarray(5)).numpy()
    assert f.trace_count == 2
