"""Every op under `hf.vmap`, with gradients, `hf.jvp` and a second `hf.vmap` around it, against a loop over slices.

The programs are made of the samples in the op records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
        slices: per array, the sample's values and others of the same kind.
        float: which arrays have a gradient.
        rounding: what the roundings of the arrays are as an absolute number.
    """

    def __init__(self, op: Op, sample: Sample) -> None:
        arrays, self._chosen, self._tree, self._leaves = arrays_of(sample)
        self._public: Any = op.public
        self.slices = [(x, x * x.dtype.type(0.75) if x.dtype.kind in "fc" else x) for x in arrays]
        self.float = [is_differentiable(spec_of(x).dtype) for x in arrays]
        units = [np.finfo(x.dtype).eps * np.abs(x[np.isfinite(x)]) for x in arrays if x.dtype.kind in "fc"]
        self.rounding = max([float(one.max(initial=0.0)) for one in units], default=0.0)

    def __call__(self, *xs: Tensor) -> list[Tensor]:
        given = iter(xs)
        leaves = [next(given) if one else leaf for one, leaf in zip(self._chosen, self._leaves, strict=True)]
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, leaves)
        result = self._public(*args, **kwargs)
        return jax.tree_util.tree_leaves(result, is_leaf=lambda y: isinstance(y, Tensor))

    def whole(self, number: int) -> list[Tensor]:
        """Return the arrays of a slice."""
        return [hf.asarray(one[number]) for one in self.slices]

    def stacked(self, axis: int) -> list[Tensor]:
        """Return the slices stacked along an axis."""
        return [hf.asarray(np.stack(one, axis=axis)) for one in self.slices]

    def loop(self, ask: Callable[[Function, list[Tensor]], list[Tensor]]) -> list[np.ndarray[Any, Any]]:
        """Return what a question gives for each slice, stacked."""
        each = [ask(self, self.whole(number)) for number in range(2)]
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


WAYS: dict[str, Any] = {
    "forward": lambda p: (values, lambda: mapped(p)(*p.stacked(0))),
    "last axis": lambda p: (values, lambda: [np.moveaxis(y, -1, 0) for y in mapped(p, -1)(*p.stacked(-1))]),
    "one of them": None,  # see `one_of_them`
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


def one_of_them(p: Program) -> Any:
    """Map the first array alone; every slice gets the others as they are in the sample."""
    rest = p.whole(0)[1:]
    expected = [p(x, *rest) for x in map(hf.asarray, p.slices[0])]
    found = hf.vmap(p, (0, *[None] * len(rest)))(p.stacked(0)[0], *rest)
    return [np.stack([np.asarray(one), np.asarray(other)]) for one, other in zip(*expected, strict=True)], found


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


def check(name: str, number: int, way: str, compiled: bool = False) -> str:
    """Hold a program against the loop over slices: both give the same, or an error of the same class."""
    op = REGISTRY[name]
    sample = samples_of(op, 0)[number]
    assert isinstance(sample, Sample)
    program = Program(op, sample)
    if not program.slices:
        return "no arrays"
    hf.random.seed(0)
    if way == "one of them":
        both = outcome(lambda: one_of_them(program))
        expected, found = both if isinstance(both, tuple) else (both, both)
    else:
        ask, run = WAYS[way](program)
        expected, found = outcome(lambda: program.loop(ask)), outcome(hf.compile(run) if compiled else run)
    if isinstance(found, HybridflowError):
        known = outcome(lambda: hf.compile(program)(*program.whole(0)))
        assert isinstance(expected, type(found)) or isinstance(known, type(found)), repr(found)
        return "refused"
    assert not isinstance(expected, HybridflowError), repr(expected)
    if "random" in op.traits:
        return "random"
    for one, other in zip(found, expected, strict=True):
        close(one, other, program.rounding)
    return "same"


CASES = [
    (name, number)
    for name in sorted(name for name, op in REGISTRY.items() if not isinstance(op.samples, No))
    for number, sample in enumerate(samples_of(REGISTRY[name], 0))
    if isinstance(sample, Sample)
]
PROGRAMS = [(*case, way) for case in CASES for way in WAYS]
SOME = random.Random(8).sample(PROGRAMS, 5)
INDEXING = [("gather", 0), ("take_along_axis", 0), ("getitem", 0), ("sort", 0)]
WITH_A_RULE_IN_JAX = [("ndtri", 0), ("i1", 0)]


@pytest.mark.parametrize("program", SOME, ids=lambda one: f"{one[0]}-{one[1]}-{one[2]}")
def test_some_ops_under_vmap(program):
    check(*program)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", [*INDEXING, *WITH_A_RULE_IN_JAX], ids=lambda one: one[0])
def test_gradients_under_vmap(case, compiled):
    check(*case, "gradient", compiled)


@pytest.mark.rest
@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one[0]}-{one[1]}")
def test_every_op_under_vmap(case):
    """All programs of a sample, eager, and its gradient in a compiled function."""
    for way in WAYS:
        check(*case, way)
    check(*case, "gradient", compiled=True)
