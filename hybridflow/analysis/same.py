"""What "the same" means: the one definition that comparisons and tests use.

Shapes, dtypes, integers and bools of two runs must be identical. Floats may round differently (a fused
multiply-add rounds once where separate operations round twice), so they are judged against a float64 run of the
program, by Monte Carlo arithmetic.

Let ``r`` be the graph's result in float64. In each of ``k`` sample runs, also in float64, the result ``z`` of every
operation is replaced by ``z (1 + u eps xi)``, where ``u`` is the operation's error bound in ulp (`Op.ulp`), ``eps``
the spacing of the dtype that the operation has in the program, and ``xi`` uniform in [-1, 1]; the inputs of
operations that add many numbers, whose bound is relative to the sum of the magnitudes, are perturbed likewise, and a
log of a sum of exponentials has an error relative to its largest input besides (trait ``log_sum``).
Values leave the dtype's range as they do in the program: above the largest number they become infinite, below the
smallest normal one they may be flushed to zero. With ``s`` the largest deviation of a sample from ``r``, a mode's
result ``m`` agrees, element by element, if

    |m - r|  <=  SAFETY s + eps |r| + tiny

Elements where the two modes give the same number agree whatever ``r`` is. An element of a sample run that is not
finite where ``r`` is, or an integer that changes, has no stable value, and may differ between the modes. The sign
of a zero is no difference here; the checks of each op compare it.

Reference:
    D. S. Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic", UCLA CSD-970002, 1997.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.analysis.float64 import Float64Run, widen_array
from hybridflow.core.dtypes import DType, kind_of
from hybridflow.ir.graph import Graph

LEAST_SAMPLES, SAMPLES = 4, 24
SAFETY = 8.0
Array = np.ndarray[Any, Any]
Sides = tuple[str, str]
SIDES: Sides = ("eager", "compiled")


@dataclass(frozen=True)
class Judgement:
    """What was found about one output.

    Attributes:
        name: the output's name.
        same: whether the two modes agree.
        largest: the largest difference of the two modes (1 for a bool that differs).
        allowed: the difference that rounding explains, at the element that uses most of its allowance.
        used: the part of the allowance used there: above 1 is a difference; 0 if the modes are identical.
        text: where and how they differ, empty if they agree.
    """

    name: str
    same: bool
    largest: float
    allowed: float
    used: float
    text: str


def judge(
    graph: Graph,
    inputs: Sequence[Array],
    eager: Sequence[Array],
    compiled: Sequence[Array],
    *,
    names: Sequence[str] | None = None,
    tolerance: tuple[float, float] | None = None,
    sides: Sides = SIDES,
) -> list[Judgement]:
    """Judge whether two runs of a program gave the same results.

    Args:
        graph: the program, as traced (before its passes).
        inputs: the values of the graph's inputs.
        eager: the values of the graph's first outputs in one run.
        compiled: the same of the other run.
        names: the outputs' names.
        tolerance: ``(relative, absolute)`` to judge floats by instead, if given.
        sides: what the texts call the two runs.

    Returns:
        One judgement per output.
    """
    names = names or [f"output {index}" for index in range(len(eager))]
    judgements: dict[int, Judgement] = {}
    open_outputs: list[int] = []
    for index, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        settled = _settled(names[index], a, b, tolerance, sides)
        if settled is None:
            open_outputs.append(index)
        else:
            judgements[index] = settled
    if open_outputs:
        allowances = _allowances(graph, inputs, open_outputs, eager, compiled)
        for index, allowance in zip(open_outputs, allowances, strict=True):
            judgements[index] = allowance.judge(names[index], eager[index], compiled[index], sides)
    return [judgements[index] for index in range(len(eager))]


def _settled(
    name: str, a: Array, b: Array, tolerance: tuple[float, float] | None, sides: Sides
) -> Judgement | None:
    """Judge an output that needs no reference, if that is possible."""
    for what, left, right in (("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype)):
        if left != right:
            return Judgement(name, False, np.inf, 0.0, np.inf, f"{what} {left} {sides[0]}, {right} {sides[1]}")
    if bool(np.all(_equal(a, b))):
        return Judgement(name, True, 0.0, 0.0, 0.0, "")
    if tolerance is None:
        return None
    relative, absolute = tolerance
    wide_a, wide_b = widen_array(a), widen_array(b)
    allowed = absolute + relative * np.abs(wide_b) if _is_float(a.dtype) else np.zeros(a.shape)
    return _verdict(name, wide_a, wide_b, _used(_distance(wide_a, wide_b), allowed), allowed, None, sides)


@dataclass
class _Allowance:
    """The reference of one output and how far a result may be from it."""

    dtype: DType
    reference: Array
    spread: Array
    unstable: Array

    def add(self, sample: Array) -> None:
        """Take one more sample into account."""
        if not _is_float(self.dtype):
            self.unstable |= sample != self.reference
            return
        finite = np.isfinite(self.reference)
        self.unstable |= (np.isfinite(sample) != finite) | (~finite & ~_equal(sample, self.reference))
        deviation = np.where(finite, _distance(sample, self.reference), 0.0)
        np.maximum(self.spread, np.where(np.isnan(deviation), np.inf, deviation), out=self.spread)

    def allowed(self) -> Array:
        """Return the largest distance from the reference that counts as rounding."""
        if not _is_float(self.dtype):
            return np.where(self.unstable, np.inf, 0.0)
        info = jnp.finfo(self.dtype)
        magnitude = np.where(np.isfinite(self.reference), np.abs(self.reference), 0.0)
        bound = SAFETY * self.spread + float(info.eps) * magnitude + float(info.tiny)
        return np.where(self.unstable, np.inf, bound)

    def used(self, a: Array, b: Array) -> Array:
        """Return, per element, the part of the allowance that the worse mode uses; 0 where the modes agree."""
        allowed = self.allowed()
        wide_a, wide_b = widen_array(a), widen_array(b)
        worse = np.maximum(
            _used(_distance(wide_a, self.reference), allowed), _used(_distance(wide_b, self.reference), allowed)
        )
        return np.where(_equal(a, b), 0.0, worse)

    def judge(self, name: str, a: Array, b: Array, sides: Sides) -> Judgement:
        """Judge an output."""
        return _verdict(name, widen_array(a), widen_array(b), self.used(a, b), self.allowed(), self.reference, sides)


def _allowances(
    graph: Graph, inputs: Sequence[Array], wanted: Sequence[int], eager: Sequence[Array], compiled: Sequence[Array]
) -> list[_Allowance]:
    """Run the program in float64, then with rounding errors, until these explain every difference, or do not."""
    run = Float64Run(graph, inputs)
    references = run.exact()
    allowances = [
        _Allowance(
            eager[index].dtype,
            references[index],
            np.zeros(eager[index].shape),
            np.zeros(eager[index].shape, dtype=bool),
        )
        for index in wanted
    ]
    rng = np.random.default_rng(0)
    for count in range(1, SAMPLES + 1):
        sample = run.perturbed(rng)
        for index, allowance in zip(wanted, allowances, strict=True):
            allowance.add(sample[index])
        # More samples only widen the allowance, so what is explained by a margin now stays explained.
        if count >= LEAST_SAMPLES and all(
            np.max(allowance.used(eager[index], compiled[index])) <= 0.5
            for index, allowance in zip(wanted, allowances, strict=True)
        ):
            break
    return allowances


def _is_float(dtype: DType) -> bool:
    return kind_of(dtype) in ("float", "complex")


def _equal(a: Array, b: Array) -> Array:
    """Return where two arrays hold the same number; NaN is the same as NaN."""
    same = a == b
    return np.asarray(same | ((a != a) & (b != b)))


def _distance(a: Array, b: Array) -> Array:
    """Return ``|a - b|``, 0 where they are equal and infinite where only one of them is a number."""
    with np.errstate(all="ignore"):
        wide = np.float64 if a.dtype.kind in "biu" else a.dtype
        distance = np.abs(np.asarray(a, dtype=wide) - np.asarray(b, dtype=wide))
    distance = np.where(np.isnan(distance), np.inf, distance)
    return np.where(_equal(a, b), 0.0, distance)


def _used(distance: Array, allowed: Array) -> Array:
    """Return ``distance / allowed`` where 0 of nothing is 0 and anything of an unbounded allowance is 0."""
    with np.errstate(all="ignore"):
        part = distance / allowed
    return np.where(np.isinf(allowed) | (distance == 0), 0.0, np.where(allowed == 0, np.inf, part))


def _verdict(
    name: str, a: Array, b: Array, used: Array, allowed: Array, reference: Array | None, sides: Sides
) -> Judgement:
    flat = int(np.argmax(used))
    index = tuple(int(i) for i in np.unravel_index(flat, used.shape))
    most = float(used[index])
    largest = float(np.max(_distance(a, b)))
    if most <= 1:
        return Judgement(name, True, largest, float(allowed[index]), most, "")
    count = int(np.sum(used > 1))
    text = f"at {list(index)}: {sides[0]} {a[index]!s}, {sides[1]} {b[index]!s}"
    if reference is not None:
        text += f", float64 {reference[index]!s}"
    text += f"; allowed {float(allowed[index]):.3g}; {count} of {used.size} elements differ"
    return Judgement(name, False, largest, float(allowed[index]), most, text)
