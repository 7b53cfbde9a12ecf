"""One walk: however a gradient is asked for, it is the same to the bit; compiled, it is the same but for rounding.

More programs than in CI: ``pytest tests/test_one_walk.py --hypothesis-profile=thorough``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import HF, UNARY, Program, Step, programs

import hybridflow as hf
from hybridflow.autodiff import walk
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.op import REGISTRY, No, Op, Sample
from hybridflow.testing.checks import samples_of

Gradients = list[np.ndarray[Any, Any] | None]
Loss = Callable[..., Any]


@dataclass
class Case:
    """A program whose values are all read again, and of which some steps are checkpoints.

    Attributes:
        program: the program.
        numbers: what its values are multiplied by where they are read again.
        checkpoints: the numbers of the steps that run in a checkpoint, with three readings of what they are given.
        variables: whether what is differentiated are Variables, which are read each time; tensors otherwise.
    """

    program: Program
    numbers: list[float]
    checkpoints: frozenset[int]
    variables: bool = False

    @property
    def floats(self) -> list[int]:
        """The numbers of the inputs that are differentiated."""
        return [i for i, one in enumerate(self.program.inputs) if is_differentiable(one.dtype)]

    def sources(self) -> list[np.ndarray[Any, Any]]:
        """Return what is differentiated."""
        return [self.program.inputs[i] for i in self.floats]

    def loss(self) -> Loss:
        """Return a function of the inputs that are floats, with Variables of its own."""
        program = self.program
        state = SimpleNamespace(variables=[hf.Variable(one) for one in program.variables])

        def loss(*sources: Any) -> Any:
            hf.random.seed(3)
            values: list[Any] = list(map(hf.asarray, program.inputs))
            for i, source in zip(self.floats, sources, strict=True):
                values[i] = source
            for number, step in enumerate(program.steps):
                values.append(self._run(number, step, state, [values[i] for i in step.inputs]))
            total: Any = 0.0
            for number, one in enumerate(values):
                if is_differentiable(one.dtype):
                    a, b, c = [self.numbers[(number + k) % len(self.numbers)] for k in range(3)]
                    total = total + hf.sum(hf.astype(one * a + one * b + one * c, "float32"))
            return total

        return loss

    def _run(self, number: int, step: Step, state: Any, xs: list[Any]) -> Any:
        if number not in self.checkpoints or step.name not in UNARY or not is_differentiable(xs[0].dtype):
            return step.run(HF, state, *xs)
        return hf.checkpoint(lambda x: step.run(HF, state, x * 0.5 + x * 0.25 + x * 0.3))(*xs)


@st.composite
def cases(draw: Any) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    program = draw(programs())
    marked = draw(st.sets(st.integers(0, 11)))
    return Case(program, rng.uniform(-2, 2, 7).round(3).tolist(), frozenset(marked), draw(st.booleans()))


# -- ways of asking -------------------------------------------------------------------------------------------------


def taped(loss: Loss, xs: Sequence[Any], **options: Any) -> Any:
    with hf.GradientTape(**options) as tape:
        tape.watch([x for x in xs if isinstance(x, hf.Tensor)])
        y = loss(*xs)
    return tape.gradient(y, list(xs))


def plain(loss: Loss, xs: list[Any]) -> Any:
    return taped(loss, xs)


def persistent(loss: Loss, xs: list[Any]) -> Any:
    return taped(loss, xs, persistent=True)


def nested(loss: Loss, xs: list[Any]) -> Any:
    with hf.GradientTape() as outer:
        outer.watch([x for x in xs if isinstance(x, hf.Tensor)])
        return taped(loss, xs)


def under_an_idle_tape(loss: Loss, xs: list[Any]) -> Any:
    with hf.GradientTape():
        return taped(loss, xs)


def value_and_grad(loss: Loss, xs: list[Any]) -> Any:
    return list(hf.value_and_grad(loss, argnums=tuple(range(len(xs))))(*xs)[1])


def vjp(loss: Loss, xs: list[Any]) -> Any:
    _, pullback = hf.vjp(loss, *xs)
    return list(pullback(hf.asarray(np.float32(1))))


def backward(loss: Loss, xs: list[Any]) -> Any:
    leaves = [(hf.Variable if isinstance(x, hf.Variable) else hf.tensor)(x.numpy(), requires_grad=True) for x in xs]
    loss(*leaves).backward()
    return [leaf.grad for leaf in leaves]


def run_eagerly(loss: Loss, xs: list[Any]) -> Any:
    with hf.config.run_eagerly():
        return hf.compile(lambda *xs: taped(loss, xs))(*xs)


def plain_where_calls_run_eagerly(loss: Loss, xs: list[Any]) -> Any:
    with hf.config.run_eagerly():
        return taped(loss, xs)


WAYS = {persistent: plain, nested: plain, under_an_idle_tape: plain, value_and_grad: plain, vjp: plain,
        backward: plain, run_eagerly: plain_where_calls_run_eagerly}
"""Ways of asking, each with the one that it must be equal to: compiled functions that a program calls may round."""
OF_ONE_VALUE = {value_and_grad, vjp, backward}
"""Ways to which what they differentiate is one value; a Variable is several to a tape, if a checkpoint reads it too."""


def gradients(way: Callable[..., Any], case: Case) -> Gradients:
    found = way(case.loss(), list(map(hf.Variable if case.variables else hf.asarray, case.sources())))
    return [None if one is None else np.array(one) for one in found]


def same_bits(a: np.ndarray[Any, Any] | None, b: np.ndarray[Any, Any] | None) -> bool:
    """Whether two gradients are equal to the bit (every NaN is as good as another); None counts as zeros."""
    if a is None or b is None:
        one = b if a is None else a
        return one is None or not one.any()
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    found = [np.where(one != one, np.asarray(np.nan, one.dtype), one).tobytes() for one in (a, b)]
    return found[0] == found[1]


def differing(case: Case) -> list[str]:
    """Return the ways of asking whose gradients differ from a plain tape's."""
    expected = {way: gradients(way, case) for way in set(WAYS.values())}
    return [
        way.__name__
        for way, like in WAYS.items()
        if not (case.variables and way in OF_ONE_VALUE)
        and not all(same_bits(a, b) for a, b in zip(expected[like], gradients(way, case), strict=True))
    ]


@given(cases())
def test_every_way_of_asking_gives_the_same_bits(case: Case) -> None:
    assert not differing(case)


@settings(max_examples=6)
@given(cases())
def test_compiled_gradients_are_the_same_but_for_rounding(case: Case) -> None:
    hf.testing.assert_same(case.loss(), *map(hf.asarray, case.sources()), gradients=True)


SAMPLED = [op for op in REGISTRY.values() if op.public is not None and not isinstance(op.samples, No)]


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_every_rule_gives_the_same_bits_under_another_tape(op: Op) -> None:
    rng = np.random.default_rng(0)
    samples = [one for one in samples_of(op, 0) if isinstance(one, Sample) and one.gradient]
    for sample in samples[:2]:  # it is the same rule for each
        given = [hf.asarray(one) if isinstance(one, np.ndarray) else one for one in sample.args]
        xs = [one for one in given if isinstance(one, hf.Tensor) and is_differentiable(one.dtype)]

        def results(op: Op = op, given: Any = given, kwargs: Any = sample.kwargs) -> list[Any]:
            assert op.public is not None
            leaves = jax.tree.leaves(op.public(*given, **kwargs))
            return [one for one in leaves if isinstance(one, hf.Tensor) and is_differentiable(one.dtype)]

        seeds = [hf.asarray(rng.standard_normal(one.shape).astype(one.dtype)) for one in results()]
        if not xs or not seeds:
            continue
        found: list[Any] = []
        for around in (nullcontext(), hf.GradientTape()):
            with around:
                with hf.GradientTape() as tape:
                    tape.watch(xs)
                    ys = results()
                found.append(tape.gradient(ys, xs, output_gradients=seeds))
        for a, b in zip(*found, strict=True):
            assert same_bits(*[None if one is None else np.asarray(one) for one in (a, b)])


# -- faults ---------------------------------------------------------------------------------------------------------


def fan_out(size: int) -> Case:
    """A value that is read three times, so that the order of additions shows."""
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    return Case(Program([x], []), [0.3, -1.7, 0.9], frozenset())


class Swapped(walk.Contributions):
    """Two additions of tensors in another order, arrays in the right one."""

    def __init__(self, far: Any, near: Any) -> None:
        swap = isinstance(far, hf.Tensor)
        super().__init__(near if swap else far, far if swap else near)


def test_two_additions_that_are_swapped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = fan_out(1000)
    assert not differing(case)
    monkeypatch.setattr(walk, "Contributions", Swapped)
    assert differing(case) == ["nested", "under_an_idle_tape"]


def test_the_order_of_additions_is_the_stated_one() -> None:
    """The last reading's contribution comes first; the first one is added last."""
    case = fan_out(1000)
    a, b, c = [np.float32(number) for number in case.numbers]
    (found,) = gradients(plain, case)
    np.testing.assert_array_equal(found, np.full(1000, (b + a) + c, np.float32))
