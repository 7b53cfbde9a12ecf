"""Every op under `hf.vmap`, with gradients, `hf.jvp` and a second `hf.vmap` around it, against a loop over slices.

The programs are made of the samples in the op records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import HybridflowError
from hybridflow.core.op import REGISTRY, No, Op, Sample
from hybridflow.core.spec import spec_of
from hybridflow.core.tensor import Tensor
from hybridflow.testing.calls import arrays_of
from hybridflow.testing.checks import samples_of

Function = Callable[..., list[Tensor]]


class Program:
    """An op's public function on a sample, as a function of the sample's arrays, and two slices of each.

    Attributes:
        op: the op.
        slices: per array, the sample's values and others of the same kind.
        float: which arrays have a gradient.
        rounding: what the roundings of the arrays are as an absolute number.
    """

    def __init__(self, op: Op, sample: Sample) -> None:
        arrays, self._chosen, self._tree, self._leaves = arrays_of(sample)
        self.op = op
        with np.errstate(invalid="ignore"):  # infinite complex numbers
            self.slices = [(x, x * x.dtype.type(0.75) if x.dtype.kind in "fc" else x) for x in arrays]
        self.float = [is_differentiable(spec_of(x).dtype) for x in arrays]
        units = [np.finfo(x.dtype).eps * np.abs(x[np.isfinite(x)]) for x in arrays if x.dtype.kind in "fc"]
        self.rounding = max([float(one.max(initial=0.0)) for one in units], default=0.0)

    def __call__(self, *xs: Tensor) -> list[Tensor]:
        given = iter(xs)
        leaves = [next(given) if one else leaf for one, leaf in zip(self._chosen, self._leaves, strict=True)]
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, leaves)
        result = self.op.public(*args, **kwargs)
        return jax.tree_util.tree_leaves(result, is_leaf=lambda y: isinstance(y, Tensor))

    def of(self, slices: list[Any]) -> Program:
        """Return the same function with other slices."""
        made = copy(self)
        made.slices = slices
        return made

    def whole(self, number: int) -> list[Tensor]:
        """Return the arrays of a slice."""
        return [hf.asarray(one[number]) for one in self.slices]

    def stacked(self, axis: int) -> list[Tensor]:
        """Return the slices stacked along an axis."""
        return [hf.stack(one, axis=axis) for one in self.slices]

    def loop(self, ask: Callable[[Function, list[Tensor]], list[Tensor]], mixed: bool) -> list[np.ndarray[Any, Any]]:
        """Return what a question gives for each slice, stacked; with `mixed`, only the first array has two slices."""
        rest = self.whole(0)[1:]
        each = [ask(self, [x, *rest] if mixed else [x, *others]) for x, *others in map(self.whole, range(2))]
        return [np.stack([np.asarray(one), np.asarray(other)]) for one, other in zip(*each, strict=True)]


def weighted(y: Tensor) -> Tensor:
    """Return the sum of a result's elements, each with a weight of its own, so that none can take another's place."""
    return hf.sum(y * hf.stop_gradient(hf.astype(1.0 / (1.0 + hf.abs(y)), hf.real(y).dtype)))


def floats(several: list[Tensor]) -> list[Tensor]:
    return [one for one in several if is_differentiable(one.dtype)]


def values(f: Function, xs: list[Tensor]) -> list[Tensor]:
    return f(*xs)


def gradients(program: Program) -> Any:
    def ask(f: Function, xs: list[Tensor]) -> list[Tensor]:
        sources = [x for x, one in zip(xs, program.float, strict=True) if one]
        with hf.GradientTape() as tape:
            tape.watch(sources)
            targets = [weighted(y) for y in floats(f(*xs))]
        return tape.gradient(targets, sources, unconnected_gradients="zero")

    return ask


def derivatives(program: Program) -> Any:
    def ask(f: Function, xs: list[Tensor]) -> list[Tensor]:
        directions = [x * 0 + 0.5 if one else None for x, one in zip(xs, program.float, strict=True)]
        return [one for one in hf.jvp(f, tuple(xs), tuple(directions))[1] if one is not None]

    return ask


def mapped(f: Function, axis: int = 0) -> Function:
    return hf.vmap(f, axis, axis)


def last_axis_first(y: Tensor) -> Tensor:
    return hf.permute_dims(y, (y.ndim - 1, *range(y.ndim - 1)))


WAYS: dict[str, Callable[[Program], tuple[Any, Callable[[], list[Tensor]]]]] = {
    "forward": lambda p: (values, lambda: mapped(p)(*p.stacked(0))),
    "last axis": lambda p: (values, lambda: [last_axis_first(y) for y in mapped(p, -1)(*p.stacked(-1))]),
    "one of them": lambda p: (
        values, lambda: hf.vmap(p, (0, *[None] * (len(p.slices) - 1)))(p.stacked(0)[0], *p.whole(0)[1:])
    ),
    "twice": lambda p: (values, lambda: [y[0] for y in mapped(mapped(p))(*[x[None] for x in p.stacked(0)])]),
    "gradient": lambda p: (gradients(p), lambda: gradients(p)(mapped(p), p.stacked(0))),
    "gradient inside": lambda p: (
        gradients(p), lambda: hf.vmap(lambda *xs: gradients(p)(p, list(xs)))(*p.stacked(0))
    ),
    "jvp": lambda p: (derivatives(p), lambda: derivatives(p)(mapped(p), p.stacked(0))),
    "gradient of two": lambda p: (
        gradients(p),
        lambda: [g[0] for g in gradients(p)(mapped(mapped(p)), [x[None] for x in p.stacked(0)])],
    ),
}


def outcome(function: Callable[[], Any]) -> Any:
    """Return what a function returns, or the error of hybridflow that it raises."""
    try:
        return function()
    except HybridflowError as error:
        return error


def close(found: Any, expected: Any, rounding: float) -> None:
    """Require equal shapes and dtypes, and values up to rounding, that of the operands included."""
    x, y = np.asarray(found), np.asarray(expected)
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    coarse = 4e-2 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else 2e-4
    x, y = x.astype(np.complex128), y.astype(np.complex128)
    finite = np.abs(y[np.isfinite(y)])
    np.testing.assert_allclose(x, y, rtol=coarse, atol=coarse * max(1.0, finite.max(initial=0.0)) + rounding)


def program_of(name: str, number: int) -> Program:
    sample = samples_of(REGISTRY[name], 0)[number]
    assert isinstance(sample, Sample)
    return Program(REGISTRY[name], sample)


def compiled(programs: list[tuple[Program, str]]) -> list[Any]:
    """Return what programs give in one compiled function, or the error of each.

    XLA takes little longer for a function of many small programs than for one of them.
    """
    errors: dict[int, HybridflowError] = {}

    def run(given: list[Any]) -> list[list[Tensor]]:
        results: list[list[Tensor]] = []
        for number, ((program, way), slices) in enumerate(zip(programs, given, strict=True)):
            found = outcome(WAYS[way](program.of(slices))[1])
            if isinstance(found, HybridflowError):
                errors[number] = found
            results.append([] if number in errors else found)
        return results

    found = outcome(lambda: hf.compile(run)([program.slices for program, _ in programs]))
    if not isinstance(found, HybridflowError):
        return [errors.get(number, one) for number, one in enumerate(found)]
    return [found] if len(programs) == 1 else [compiled([one])[0] for one in programs]


def hold(program: Program, way: str, found: Any) -> None:
    """Hold what a program gave against the loop over slices: both give the same, or an error of the same class."""
    expected = outcome(lambda: program.loop(WAYS[way](program)[0], way == "one of them"))
    if isinstance(found, HybridflowError):
        known = outcome(lambda: hf.compile(program)(*program.whole(0)))
        assert isinstance(expected, type(found)) or isinstance(known, type(found)), repr(found)
        return
    assert not isinstance(expected, HybridflowError), repr(expected)
    if "random" not in program.op.traits:
        for one, other in zip(found, expected, strict=True):
            close(one, other, program.rounding)


CASES = [
    (name, number)
    for name in sorted(name for name, op in REGISTRY.items() if not isinstance(op.samples, No))
    for number, sample in enumerate(samples_of(REGISTRY[name], 0))
    if isinstance(sample, Sample) and arrays_of(sample)[0]
]
PROGRAMS = [(*case, way) for case in CASES for way in WAYS]
SOME = random.Random(8).sample(PROGRAMS, 5)
INDEXING = [("gather", 0), ("take_along_axis", 0), ("getitem", 0), ("sort", 0)]
WITH_A_RULE_IN_JAX = [("ndtri", 0), ("i1", 0)]


@pytest.mark.parametrize("program", SOME, ids=lambda one: f"{one[0]}-{one[1]}-{one[2]}")
def test_some_ops_under_vmap(program):
    name, number, way = program
    hold(made := program_of(name, number), way, outcome(WAYS[way](made)[1]))


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("case", [*INDEXING, *WITH_A_RULE_IN_JAX], ids=lambda one: one[0])
def test_gradients_under_vmap(case, mode):
    program = program_of(*case)
    run = WAYS["gradient"](program)[1]
    hold(program, "gradient", outcome(run) if mode == "eager" else compiled([(program, "gradient")])[0])


def failures(name: str, mode: str) -> list[str]:
    """Return what is wrong with the programs of an op; compiled, those of four samples are one function."""
    wrong: list[str] = []
    samples = [number for case, number in CASES if case == name]
    for numbers in [samples[at : at + 4] for at in range(0, len(samples), 4)]:
        made = [program_of(name, number) for number in numbers]
        programs = list(product(made, WAYS))
        hf.random.seed(0)
        found = compiled(programs) if mode == "compiled" else [outcome(WAYS[way](one)[1]) for one, way in programs]
        for (program, way), one in zip(programs, found, strict=True):
            try:
                hold(program, way, one)
            except AssertionError as error:
                wrong.append(f"sample {numbers[made.index(program)]}, {way}: {error}")
    return wrong


@pytest.mark.rest
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_every_op_under_vmap(name, mode):
    assert failures(name, mode) == []
