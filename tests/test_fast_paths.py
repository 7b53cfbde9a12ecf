"""What eager steps run on is the same as the general way, which it leaves out for speed."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.autodiff import backprop, host_walk, quick, tape
from hybridflow.backend.host import RUNNER


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [hf.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


# -- programs whose gradients both ways must agree on ---------------------------------------------------------------


def chain(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.tanh(x @ w + v) * x)


def fan_out(x: Any, w: Any, v: Any) -> Any:
    # Five contributions to x, three of them summed into one buffer.
    return hf.mean(x * 2.0 + x * x + hf.exp(x) * v) + hf.sum(x @ w) + hf.sum(x)


def several_outputs(x: Any, w: Any, v: Any) -> Any:
    a, b = hf.split(x @ w, 2, axis=-1)
    q, r = hf.linalg.qr(x @ w)
    return hf.sum(a * b) + hf.sum(q) * 0.1 + hf.sum(r * v)


def stopped(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.where(x > 0, x @ w, hf.stop_gradient(x)) * hf.astype(x > v, "float32"))


def custom(x: Any, w: Any, v: Any) -> Any:
    @hf.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2.0, lambda g: g * 2.0

    return hf.sum(doubled(x @ w) * v)


def unused(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.sin(x))


def low_precision(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.astype(hf.astype(x, "bfloat16") @ hf.astype(w, "bfloat16"), "float32") * v)


PROGRAMS = [chain, fan_out, several_outputs, stopped, custom, unused, low_precision]


def gradients(program: Callable[..., Any], variables: bool) -> list[Any]:
    sources = arrays((4, 4), (4, 4), (4,))
    if variables:
        sources = [hf.Variable(source) for source in sources]
    with hf.GradientTape() as tape:
        if not variables:
            tape.watch(sources)
        y = program(*sources)
    return [None if one is None else one.numpy() for one in tape.gradient(y, sources)]


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "quick_gradients", lambda *_: None)
    monkeypatch.setattr(backprop, "wanted_inputs", lambda *_: None)


def agree(program: Callable[..., Any], variables: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    found = gradients(program, variables)
    with monkeypatch.context() as patch:
        slow(patch)
        expected = gradients(program, variables)
    if [one is None for one in found] != [one is None for one in expected]:
        return False
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None]
    return all(a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, 1e-6, 1e-6) for a, b in pairs)


@pytest.mark.parametrize("variables", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_quick_gradient_is_the_general_one(program: Any, variables: bool, monkeypatch: pytest.MonkeyPatch):
    assert agree(program, variables, monkeypatch)


def test_most_programs_take_the_quick_way(monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []
    real = quick.quick_gradients

    def noted(*given: Any) -> Any:
        found = real(*given)
        if found is not None:
            taken.append(program.__name__)
        return found

    monkeypatch.setattr(tape, "quick_gradients", noted)
    for program in PROGRAMS:
        gradients(program, False)
    assert taken == [program.__name__ for program in PROGRAMS]


def drops_a_contribution(found: Any, add: Any) -> Any:
    return add(found[-1], found[-2])


def forgets_the_second_input(nodes: Any, sources: Any) -> Any:
    order = host_walk.wanted_inputs(nodes, sources)
    assert order is not None
    return {node: wanted if len(wanted) < 2 else (wanted[0], *[False] * (len(wanted) - 1))
            for node, wanted in order.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [(host_walk, "add_up", drops_a_contribution), (backprop, "wanted_inputs", forgets_the_second_input)],
)
def test_planted_faults_are_found(where: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(where, name, fault)
    assert not all(agree(program, False, monkeypatch) for program in PROGRAMS)


def test_contributions_are_summed_into_an_array_of_their_own():
    parts = [np.full(3, 2.0**k, np.float32) for k in range(4)]
    total = host_walk.add_up(host_walk.Contributions(parts), np.add)
    assert np.array_equal(total, np.full(3, 15, np.float32))
    assert [part[0] for part in parts] == [1, 2, 4, 8]


def test_a_tensor_watched_late_counts_from_then_on(monkeypatch: pytest.MonkeyPatch):
    (x,) = arrays((3,))
    with hf.GradientTape() as first:
        first.watch(x)
        with hf.GradientTape() as tape:
            y = x * x
            tape.watch(x)
            z = y * x
    assert np.allclose(tape.gradient(z, x).numpy(), (x * x).numpy())


# -- runners of threads ---------------------------------------------------------------------------------------------


def test_a_copied_context_runs_in_another_thread():
    x = hf.asarray(np.ones((300, 300), np.float32))
    hf.exp(x)
    assert RUNNER.get() is not None
    copied, found = contextvars.copy_context(), list[float]()
    go = threading.Barrier(2)

    def work() -> None:
        go.wait()
        found.extend([float(hf.sum(hf.exp(x) / (x - x) + x)) for _ in range(200)])  # and nobody is warned

    thread = threading.Thread(target=copied.run, args=(work,))
    thread.start()
    work()
    thread.join()
    assert len(found) == 400
    assert set(found) == {float("inf")}
