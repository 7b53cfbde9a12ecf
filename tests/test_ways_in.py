"""Whatever hybridflow calls for the user runs as the user's code: converted, watched, and with all its effects.

ways_in.py has the ways in and the places that they call; read_matrix.py the state that is read there.
"""

from __future__ import annotations

import functools
import sys
import warnings
from contextlib import contextmanager
from typing import Any

import pytest
import read_matrix
import ways_in
from read_matrix import KINDS, ROUTES
from ways_in import PAIRS, WAYS, eagerly, numbers, program

import hybridflow as hf
from hybridflow.convert.build import is_converted
from hybridflow.core.errors import MutationError
from hybridflow.tracing import make_trace

QUESTIONS = [one for one in read_matrix.questions() if one[1] != "a_fresh_object"]
"""Kinds, routes and changes; as a fresh object's attributes, functions would become methods."""
MANY = 40
"""The questions for each way and place in the full matrix."""
BODIES = {
    "fit in parts", "vmap", "vmap inside", "checkpoint", "recompute", "scan", "cond", "while_loop", "custom_gradient",
    "accumulate_gradients",
}
"""Ways in that trace the code as a body of its own, which must not change Python state."""
NOT_RUN = {"export", "export of a method"}
"""Ways in that trace the code and do not run it."""
AGAIN = {*NOT_RUN, "to_jax", "the closure of L-BFGS"}
"""Ways in that trace at every run."""


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    with read_matrix.compiled_once():
        yield


def runs(name: str, place: str, f: Any, compile: Any) -> Any:
    """Return the run of a program that calls a function at a place."""
    return WAYS[name].make(program(place, f), compile)


class Watched:
    """What is seen of the traces in a block.

    Attributes:
        count: how many there are.
        unconverted: the user's functions, and layers, that ran unconverted in one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.unconverted: set[str] = set()

    def _profile(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        users = code.co_filename in USERS or (code.co_filename in LAYERS and code.co_name in ("forward", "__call__"))
        if event == "call" and users and not is_converted(code):
            self.unconverted.add(code.co_qualname)

    def call(self, call: Any, arguments: Any) -> Any:
        """Run what a trace calls."""
        self.count += 1
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            return call(arguments)
        finally:
            sys.setprofile(before)


Watched.call.__code__ = Watched.call.__code__.replace(co_filename="<frozen watched>")  # not the user's
USERS = {__file__, ways_in.__file__}
LAYERS = {sys.modules[kind.__module__].__file__ for kind in (hf.nn.Module, hf.nn.Sequential)}


@contextmanager
def watched():
    """Watch the traces in a block."""
    seen, real = Watched(), make_trace.make_trace

    def made(function: Any, call: Any, *args: Any, **options: Any) -> Any:
        return real(function, functools.partial(seen.call, call), *args, **options)

    make_trace.make_trace = made
    try:
        yield seen
    finally:
        make_trace.make_trace = real


# -- state --------------------------------------------------------------------------------------------------------


def asked(name: str, place: str, question: tuple[str, str, str]) -> Any:
    """Return how compiled runs differ from eager ones, before and after a change; None if they do not."""
    kind, by, change = question
    h = KINDS[kind].make(2.0)
    route = ROUTES[by](KINDS[kind].read, h)
    f = (lambda t: route.function(t, *route.args)) if route.args else route.function
    compiled, eager = runs(name, place, f, hf.compile), runs(name, place, f, eagerly)
    found, expected = [numbers(compiled()), numbers(compiled())], [numbers(eager())] * 2
    if change == "put":
        route.put(KINDS[kind].make(5.0))
    else:
        KINDS[kind].changes[change](h)
    found.append(numbers(compiled()))
    expected.append(numbers(eager()))
    same = found == [pytest.approx(one, rel=1e-5, nan_ok=True) for one in expected]
    return None if same else (found, expected)


def wrong_answers(name: str, count: int, step: int) -> list[Any]:
    """Return what differs for some questions at every place that a way calls, or at every third one."""
    wrong = []
    for number, (other, place) in enumerate(PAIRS):
        if other != name or number % step != step - 1:
            continue
        for turn in range(count):
            question = QUESTIONS[(number + turn * len(PAIRS)) * 7919 % len(QUESTIONS)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", hf.EffectWarning)
                warnings.filterwarnings("ignore", "functools.partial will be a method", FutureWarning)
                answer = asked(name, place, question)
            if answer is not None:
                wrong.append((place, question, answer))
    return wrong


@pytest.mark.parametrize("name", WAYS)
def test_state_is_never_stale(name):
    assert not wrong_answers(name, 1, 3)


@pytest.mark.rest
@pytest.mark.parametrize("name", WAYS)
def test_state_is_never_stale_by_any_route(name):
    assert not wrong_answers(name, MANY, 1)


# -- control flow, conversion, traces -----------------------------------------------------------------------------


def flow(t: Any) -> Any:
    """Return a multiple of a tensor, by every kind of control flow on it."""
    rows = hf.reshape(hf.asarray(t), (-1,))
    total = rows[0] * 0
    for row in rows:
        if row > 0.5:
            total = total + row
        else:
            total = total - row
    count = hf.stop_gradient(total) + 5
    while count > 3:
        count = count * 0.5
    assert hf.all(hf.abs(rows) < 1e6), "a large number"
    return t * (count if hf.sum(rows) < 1000 else 0.5)


def some_places(name: str) -> list[str]:
    """Return one place of each kind that a way calls."""
    return [one for one in ("forward", "a loss", "a metric object", "a schedule", "a hook") if one in WAYS[name].places]


def decided(t: Any) -> Any:
    """Return a multiple of a tensor, by a condition on it."""
    return t * 2 if hf.sum(hf.asarray(t)) < 1000 else t * 3


def as_eager(name: str, place: str, f: Any) -> list[float]:
    """Return the numbers of an eager run; of each row by itself where eager code has no value to decide by."""
    if name.startswith("vmap"):
        model = program(place, f).model
        return numbers([model(hf.asarray(row)) for row in ways_in.X])
    return numbers(runs(name, place, f, eagerly)())


def check_conversion(name: str, place: str) -> None:
    run = runs(name, place, decided, hf.compile)
    with watched() as first:
        found = numbers(run())
    assert found == pytest.approx(as_eager(name, place, decided), rel=1e-5)
    assert not first.unconverted
    with watched() as again:
        assert numbers(run()) == found
    if name not in AGAIN:
        assert (first.count > 0, again.count) == (True, 0)


@pytest.mark.parametrize(("name", "place"), PAIRS[::3])
def test_what_is_called_is_converted_and_traced_once(name, place):
    check_conversion(name, place)


@pytest.mark.rest
@pytest.mark.parametrize("name", WAYS)
def test_what_is_called_anywhere_is_converted_and_traced_once(name):
    for place in WAYS[name].places:
        check_conversion(name, place)


@pytest.mark.parametrize("name", WAYS)
def test_control_flow_on_tensors_is_converted(name):
    for place in some_places(name):
        found = numbers(runs(name, place, flow, hf.compile)())
        assert found == pytest.approx(as_eager(name, place, flow), rel=1e-5), place


@pytest.mark.asserts
@pytest.mark.parametrize("name", WAYS)
def test_an_assertion_holds_by_every_way(name):
    def fails(t: Any) -> Any:
        assert hf.sum(t) > 1e6, "a small number"
        return t

    with pytest.raises(AssertionError, match="a small number"):
        numbers(runs(name, WAYS[name].places[0], fails, hf.compile)())


def test_a_function_that_runs_unconverted_is_noticed():
    """Of the instrument itself: what it does not notice, no test here would."""
    alone = hf.no_convert(lambda t: t * 2)
    with watched() as seen:
        hf.compile(lambda t: alone(t) + t)(hf.asarray(1.0))
        hf.compile(lambda t: t + 1)(hf.asarray(1.0))
    assert seen.count == 2
    assert [name.rpartition(".")[2] for name in seen.unconverted] == ["<lambda>"]


# -- effects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WAYS)
def test_what_a_call_does_to_python_state_happens_at_every_call(name):
    for place in some_places(name):
        log: list[float] = []

        def logs(t: Any) -> Any:
            log.append(1.0)  # noqa: B023 (it runs in this turn of the loop only)
            return t * 2

        run = runs(name, place, logs, hf.compile)
        if name in BODIES and place not in ways_in.UPDATE:
            with pytest.raises(MutationError, match=r"\.append\(\.\.\.\).* at"):
                run()
            continue
        run()
        first = len(log)
        run()
        after, before = len(log), first
        log.clear()
        eager = runs(name, place, logs, eagerly)
        eager()
        assert (before, after) == ((0, 0) if name in NOT_RUN else (len(log), 2 * len(log))), place


@pytest.mark.parametrize("name", [name for name, one in WAYS.items() if "forward" in one.places])
def test_a_model_that_counts_its_calls(name):
    counts = []
    for compile in (hf.compile, eagerly):
        model = ways_in.Counting()
        run = WAYS[name].make(program("forward", None)._replace(model=model), compile)
        if compile is hf.compile and name in BODIES:
            with pytest.raises(MutationError, match=r"\.count.* at"):
                run()
            return
        for _ in range(3):
            run()
        counts.append(model.count)
    assert counts[0] == (0 if name in NOT_RUN else counts[1])
    assert counts[1] >= 3


TAKEN = {
    "vmap": hf.vmap, "checkpoint": hf.checkpoint, "jacobian": hf.jacobian, "no way": lambda function: function,
    "vjp": lambda function: lambda x: hf.vjp(function, x)[0],
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=[*TAKEN])
@pytest.mark.parametrize("partial", [False, True], ids=["with slots", "partial"])
def test_what_is_handed_to_a_transformation_is_watched(take, partial):
    settings = {"k": 2.0}
    error = ways_in.Loss(lambda t: t * settings["k"])
    function = functools.partial(error, target=1.0) if partial else lambda x: error(x, 1.0)
    taken = take(function)
    compiled = hf.compile(lambda x: taken(x))
    for k in (2.0, 5.0):
        settings["k"] = k
        assert numbers(compiled(hf.asarray(ways_in.X))) == pytest.approx(numbers(taken(hf.asarray(ways_in.X))))
    error.f = lambda t: t + 7
    assert numbers(compiled(hf.asarray(ways_in.X))) == pytest.approx(numbers(taken(hf.asarray(ways_in.X))))
