"""Edge cases of arithmetic, each with one result that holds both eagerly and compiled.

Where NumPy, XLA and C differ or leave a result open, hybridflow defines it. The only exceptions, left to XLA, are
subnormal numbers and complex division by infinities or NaN. `EDGE_CASES` lists the results row by row. The tests
evaluate each row eagerly, compiled, and compiled on constants. `table` prints the rows.

Example:
    >>> from hybridflow.testing.edge_cases import table
    >>> print(table("division by 0").splitlines()[2])
    | an integer // 0 is 0 | `x // y` | i32[3] [7, -7, 0], i32[] 0 | i32[3] [0, 0, 0] |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridflow.core.dtypes import as_dtype
from hybridflow.core.spec import format_spec

Array = np.ndarray[Any, Any]
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class EdgeCase:
    """A call whose result may surprise, or that other libraries leave open.

    Attributes:
        topic: the topic of the case.
        rule: the rule, in words.
        call: the call, as Python code on `hf` and the operands `x` and `y`.
        operands: the values of the operands.
        expected: the result: an array of its dtype, or the error it raises.
        ulp: how far a result may be off, in units in the last place; 0 requires even the same sign of a zero.
        flushed: the result that compiled code may give instead, because XLA takes subnormal numbers for 0.
    """

    topic: str
    rule: str
    call: str
    operands: tuple[Array, ...]
    expected: Array | type[Exception]
    ulp: float = 0.0
    flushed: Array | None = None

    def run(self, hf: Any, *operands: Any) -> Any:
        """Evaluate the call on the given operands, or on the case's own operands as tensors."""
        values = operands or tuple([hf.asarray(operand) for operand in self.operands])
        return eval(self.call, {"hf": hf, **dict(zip("xy", values, strict=False))})


def _of(dtype: str, value: Any) -> Array:
    """Return an array of a dtype; the dtype comes first, as in the IR."""
    return np.asarray(value, dtype=np.float64).astype(as_dtype(dtype)) if dtype == "bfloat16" else np.array(
        value, as_dtype(dtype)
    )


def i8(value: Any) -> Array:
    """Return an int8 array."""
    return _of("int8", value)


def u8(value: Any) -> Array:
    """Return a uint8 array."""
    return _of("uint8", value)


def i32(value: Any) -> Array:
    """Return an int32 array."""
    return _of("int32", value)


def f32(value: Any) -> Array:
    """Return a float32 array."""
    return _of("float32", value)


def f16(value: Any) -> Array:
    """Return a float16 array."""
    return _of("float16", value)


def bf16(value: Any) -> Array:
    """Return a bfloat16 array."""
    return _of("bfloat16", value)


def b1(value: Any) -> Array:
    """Return an array of bools."""
    return _of("bool", value)


_LOW, _HIGH = -(2**31), 2**31 - 1


def _division() -> Iterator[EdgeCase]:
    topic = "division by 0"
    yield EdgeCase(topic, "an integer // 0 is 0", "x // y", (i32([7, -7, 0]), i32(0)), i32([0, 0, 0]))
    yield EdgeCase(topic, "so is its remainder", "x % y", (i32([7, -7, 0]), i32(0)), i32([0, 0, 0]))
    yield EdgeCase(topic, "unsigned ones too", "x // y", (u8([7, 0]), u8(0)), u8([0, 0]))
    yield EdgeCase(topic, "unsigned ones too", "x % y", (u8([7, 0]), u8(0)), u8([0, 0]))
    yield EdgeCase(topic, "`/` gives a float (IEEE 754)", "x / y", (i32([7, -7, 0]), i32(0)), f32([INF, -INF, NAN]))
    yield EdgeCase(topic, "a float // 0 is infinite", "x // y", (f32([7, -7, 0]), f32(0)), f32([INF, -INF, NAN]))
    yield EdgeCase(topic, "its remainder is NaN", "x % y", (f32([7, -7, 0]), f32(0)), f32([NAN, NAN, NAN]))
    topic = "division and infinities"
    yield EdgeCase(topic, "an infinity // a number is one", "x // y", (f32([INF, -INF]), f32(-2)), f32([-INF, INF]))
    yield EdgeCase(topic, "a number // an infinity is a zero", "x // y", (f32([1, -1]), f32(INF)), f32([0.0, -0.0]))
    yield EdgeCase(topic, "its remainder has the divisor's sign", "x % y", (f32([1, -1]), f32(INF)), f32([1, INF]))


def _overflow() -> Iterator[EdgeCase]:
    topic = "integer overflow"
    yield EdgeCase(topic, "sums wrap", "x + y", (i8([127, -128]), i8([1, -1])), i8([-128, 127]))
    yield EdgeCase(topic, "differences wrap", "x - y", (u8([0, 5]), u8([1, 6])), u8([255, 255]))
    yield EdgeCase(topic, "products wrap", "x * y", (i32([_HIGH, _LOW]), i32([2, -1])), i32([-2, _LOW]))
    yield EdgeCase(topic, "the smallest integer has no negative", "-x", (i32([_LOW]),), i32([_LOW]))
    yield EdgeCase(topic, "nor an absolute value", "abs(x)", (i8([-128, 127]),), i8([-128, 127]))
    yield EdgeCase(topic, "nor a quotient by -1", "x // y", (i8([-128]), i8(-1)), i8([-128]))
    yield EdgeCase(topic, "whose remainder is 0", "x % y", (i8([-128]), i8(-1)), i8([0]))
    yield EdgeCase(topic, "small integers are summed as int32", "hf.sum(x)", (i8([127, 127]),), i32(254))
    yield EdgeCase(topic, "which may wrap", "hf.sum(x)", (i32([_HIGH, 1]),), i32(_LOW))
    yield EdgeCase(topic, "powers wrap", "x ** y", (i32([2, 3]), i32([32, 21])), i32([0, 3**21 - 3 * 2**32 + 2**32]))
    topic = "negative powers of integers"
    yield EdgeCase(topic, "0 ** -1 is 0", "x ** y", (i32([0]), i32(-1)), i32([0]))
    yield EdgeCase(topic, "1 and -1 have inverses", "x ** y", (i32([1, -1, -1]), i32([-5, -2, -3])), i32([1, 1, -1]))
    yield EdgeCase(topic, "of others the inverse rounds to 0", "x ** y", (i32([2, -3]), i32(-1)), i32([0, 0]))
    topic = "powers of floats"
    yield EdgeCase(topic, "x ** 0 is 1, NaN ** 0 too", "x ** y", (f32([0, INF, NAN]), f32(0)), f32([1, 1, 1]))
    yield EdgeCase(topic, "1 ** y is 1", "x ** y", (f32(1), f32([NAN, INF])), f32([1, 1]))
    yield EdgeCase(topic, "0 ** -1 is infinite", "x ** y", (f32([0.0, -0.0]), f32(-1)), f32([INF, -INF]))
    yield EdgeCase(topic, "roots of negative numbers are NaN", "x ** y", (f32([-8]), f32(1 / 3)), f32([NAN]))


def _shifts() -> Iterator[EdgeCase]:
    topic = "shifts past the width"
    yield EdgeCase(topic, "to the left they give 0", "x << y", (i32([5, -5]), i32([32, 40])), i32([0, 0]))
    yield EdgeCase(topic, "to the right the sign", "x >> y", (i32([5, -5]), i32([32, 40])), i32([0, -1]))
    yield EdgeCase(topic, "unsigned ones 0", "x >> y", (u8([200]), u8([8])), u8([0]))
    yield EdgeCase(topic, "a distance below 0 is past the width", "x << y", (i32([5]), i32([-1])), i32([0]))
    yield EdgeCase(topic, "a distance below 0 is past the width", "x >> y", (i32([5, -5]), i32([-1, -1])), i32([0, -1]))


def _casts() -> Iterator[EdgeCase]:
    topic = "casts"
    yield EdgeCase(topic, "NaN becomes the integer 0", "x.astype(hf.int32)", (f32([NAN]),), i32([0]))
    yield EdgeCase(topic, "floats out of range the nearest integer", "x.astype(hf.int8)", (f32([300, -INF, 127.9]),),
                   i8([127, -128, 127]))
    yield EdgeCase(topic, "unsigned ones too", "x.astype(hf.uint8)", (f32([-1, 256, INF, 0.9]),), u8([0, 255, 255, 0]))
    yield EdgeCase(topic, "floats are cut off towards 0", "x.astype(hf.int32)", (f32([-1.9, 1.9]),), i32([-1, 1]))
    yield EdgeCase(topic, "integers out of range wrap", "x.astype(hf.uint8)", (i32([300, -1]),), u8([44, 255]))
    yield EdgeCase(topic, "NaN and -1 are True", "x.astype(hf.bool)", (f32([NAN, -1, -0.0]),), b1([True, True, False]))
    yield EdgeCase(topic, "floats round, then to infinity", "x.astype(hf.float16)", (f32([65519, 65520, 2049]),),
                   f16([65504, INF, 2048]))
    yield EdgeCase(topic, "a Python number must fit", "x + 300", (u8([1]),), OverflowError)
    yield EdgeCase(topic, "also where nothing is added to it", "hf.asarray(-1, dtype=hf.uint8)", (), OverflowError)


def _zeros() -> Iterator[EdgeCase]:
    topic = "signed zeros"
    yield EdgeCase(topic, "x + 0.0 is not x", "x + 0.0", (f32([-0.0, 0.0]),), f32([0.0, 0.0]))
    yield EdgeCase(topic, "x - 0.0 is", "x - 0.0", (f32([-0.0, 0.0]),), f32([-0.0, 0.0]))
    yield EdgeCase(topic, "x * 0 has the sign of x", "x * 0.0", (f32([-2, 2, NAN]),), f32([-0.0, 0.0, NAN]))
    pair = f32([-0.0, 0.0]), f32([0.0, -0.0])
    yield EdgeCase(topic, "0.0 is larger than -0.0", "hf.maximum(x, y)", pair, f32([0.0, 0.0]))
    yield EdgeCase(topic, "-0.0 is smaller", "hf.minimum(x, y)", pair, f32([-0.0, -0.0]))
    yield EdgeCase(topic, "in reductions too", "hf.max(x)", (f32([-0.0, 0.0, -0.0]),), f32(0.0))
    yield EdgeCase(topic, "in reductions too", "hf.min(x)", (f32([0.0, -0.0, 0.0]),), f32(-0.0))
    yield EdgeCase(topic, "yet they are equal", "x == y", (f32([-0.0]), f32([0.0])), b1([True]))
    yield EdgeCase(topic, "sorted, they stay in order", "hf.sort(x)", (f32([0.0, -0.0, 0.0]),), f32([0.0, -0.0, 0.0]))
    for call in ("hf.sum(x)", "hf.mean(x)", "hf.sum(x[0])", "hf.sum(-abs(x))", "hf.cumulative_sum(x)[0]"):
        yield EdgeCase(topic, "no sum is -0.0", call, (f32([-0.0, -0.0]),), f32(0.0))
    yield EdgeCase(topic, "powers lose them", "x ** 0.5", (f32([-0.0, -INF]),), f32([0.0, INF]))
    yield EdgeCase(topic, "rounding and roots keep them", "hf.sqrt(hf.round(x))", (f32([-0.0]),), f32([-0.0]))
    yield EdgeCase(topic, "sign does not", "hf.sign(x)", (f32([-0.0]),), f32([0.0]))


def _nans() -> Iterator[EdgeCase]:
    topic = "NaN"
    x = f32([1, NAN, INF, NAN])
    yield EdgeCase(topic, "wins over every number", "hf.max(x)", (x,), f32(NAN))
    yield EdgeCase(topic, "wins over every number", "hf.min(x)", (x,), f32(NAN))
    yield EdgeCase(topic, "wins over every number", "hf.maximum(x, 2.0)", (x,), f32([2, NAN, INF, NAN]))
    yield EdgeCase(topic, "the first is what argmax finds", "hf.argmax(x)", (x,), i32(1))
    yield EdgeCase(topic, "the first is what argmin finds", "hf.argmin(x)", (x,), i32(1))
    yield EdgeCase(topic, "makes the median NaN", "hf.median(x)", (x,), f32(NAN))
    yield EdgeCase(topic, "is sorted last", "hf.sort(x)", (x,), f32([1, INF, NAN, NAN]))
    yield EdgeCase(topic, "first in descending order", "hf.argsort(x, descending=True)", (x,), i32([1, 3, 2, 0]))
    for call in ("max", "min"):
        rule = "gets the gradient, shared among all NaN"
        yield EdgeCase(topic, rule, f"hf.grad(hf.{call})(x)", (x,), f32([0, 0.5, 0, 0.5]))
    yield EdgeCase(topic, "is found after all numbers", "hf.searchsorted(x, y)", (f32([1, INF, NAN]), f32([NAN, 2])),
                   i32([2, 1]))
    yield EdgeCase(topic, "is in no set", "hf.isin(x, y)", (x, f32([NAN, 1])), b1([True, False, False, False]))
    yield EdgeCase(topic, "stays in clip", "hf.clip(x, 0.0, 2.0)", (x,), f32([1, NAN, 2, NAN]))
    yield EdgeCase(topic, "is not 0", "hf.count_nonzero(x)", (x,), i32(4))
    yield EdgeCase(topic, "loses to an infinity in hypot", "hf.hypot(x, y)", (f32([NAN]), f32([INF])), f32([INF]))


def _reductions() -> Iterator[EdgeCase]:
    topic = "empty reductions"
    none = np.zeros((0, 2), np.float32)
    for call, result in (("sum", [0, 0]), ("prod", [1, 1]), ("mean", [NAN, NAN]), ("var", [NAN, NAN]),
                         ("logsumexp", [-INF, -INF])):
        yield EdgeCase(topic, "have the value of no element", f"hf.{call}(x, axis=0)", (none,), f32(result))
    yield EdgeCase(topic, "have the value of no element", "hf.all(x, axis=0)", (none,), b1([True, True]))
    yield EdgeCase(topic, "have the value of no element", "hf.any(x, axis=0)", (none,), b1([False, False]))
    yield EdgeCase(topic, "have the value of no element", "hf.matmul(x, y)", (none.T, none), f32([[0, 0], [0, 0]]))
    for call in ("max", "min", "argmax", "argmin"):
        yield EdgeCase(topic, "are an error where there is no such value", f"hf.{call}(x, axis=0)", (none,), ValueError)
    topic = "ties"
    x = i32([2, 3, 3, 1, 1])
    yield EdgeCase(topic, "the first is found", "hf.argmax(x)", (x,), i32(1))
    yield EdgeCase(topic, "the first is found", "hf.argmin(x)", (x,), i32(3))
    yield EdgeCase(topic, "keep their order", "hf.argsort(x)", (x,), i32([3, 4, 0, 1, 2]))
    yield EdgeCase(topic, "descending too", "hf.argsort(x, descending=True)", (x,), i32([1, 2, 0, 3, 4]))
    yield EdgeCase(topic, "the first are taken", "hf.top_k(x, 2).indices", (x,), i32([1, 2]))


def _accumulation() -> Iterator[EdgeCase]:
    topic = "accumulation"
    for make, name in ((f16, "float16"), (bf16, "bfloat16")):
        rule = f"{name} is accumulated in float32"
        ones = make(np.ones(4097))
        yield EdgeCase(topic, rule, "hf.sum(x)", (ones,), make(4097))
        yield EdgeCase(topic, rule, "hf.mean(x)", (ones,), make(1))
        yield EdgeCase(topic, rule, "hf.cumulative_sum(x)[-1]", (ones,), make(4097))
        yield EdgeCase(topic, rule, "hf.matmul(x, x)", (ones,), make(4097))
        yield EdgeCase(topic, rule, "hf.var(x)", (ones,), make(0))
    yield EdgeCase(topic, "the result may still be too large", "hf.sum(x)", (f16(np.full(2, 65504)),), f16(INF))
    tenth = np.full(1_000_000, 0.1, np.float32)
    total = f32(np.sum(tenth.astype(np.float64)))
    pairwise = np.log2(tenth.size)  # one rounding per halving
    rule = "long sums are as good as pairwise ones"
    yield EdgeCase(topic, rule, "hf.sum(x)", (tenth,), total, pairwise)
    yield EdgeCase(topic, rule, "hf.cumulative_sum(x)[-1]", (tenth,), total, pairwise)
    both = np.stack([tenth, tenth], 1)
    yield EdgeCase(topic, "along any axis", "hf.sum(x, axis=0)", (both,), f32([total, total]), pairwise)


def _subnormals() -> Iterator[EdgeCase]:
    topic = "subnormal numbers"
    x = f32([1e-40, -3e-39])
    for call, kept in (("x * 1.0", x), ("-x", -x), ("abs(x)", abs(x))):
        yield EdgeCase(topic, "survive what computes nothing", call, (x,), kept)
    rule = "eager results keep them; compiled code may take them for 0, as an operand too"
    yield EdgeCase(topic, rule, "x * 0.5", (x,), x * np.float32(0.5), flushed=f32([0.0, -0.0]))
    yield EdgeCase(topic, rule, "x + x", (x,), x + x, flushed=f32([0.0, -0.0]))
    yield EdgeCase(topic, rule, "x == 0", (x,), b1([False, False]), flushed=b1([True, True]))


    rule = "are sorted and found in their order"
    several = f32([2e-40, -3e-39, 0.0, 1e-40, -1e-45, -0.0])
    order = i32([1, 4, 2, 5, 3, 0])
    yield EdgeCase(topic, rule, "hf.sort(x)", (several,), several[order])
    yield EdgeCase(topic, rule, "hf.argsort(x)", (several,), order)
    yield EdgeCase(topic, rule, "hf.argsort(x, descending=True)", (several,), i32([0, 3, 2, 5, 4, 1]))
    yield EdgeCase(topic, rule, "hf.top_k(x, 2).indices", (several,), i32([0, 3]))
    yield EdgeCase(topic, rule, "hf.argmax(x)", (several,), i32(0))
    yield EdgeCase(topic, rule, "hf.argmin(x)", (several,), i32(1))
    yield EdgeCase(topic, rule, "hf.searchsorted(x, y)", (several[order], several), i32([5, 0, 2, 4, 1, 2]))


def _matrices() -> Iterator[EdgeCase]:
    topic = "matrices that cannot be factored"
    singular, nan = f32([[1, 2], [2, 4]]), f32(np.full((2, 2), NAN))
    one = f32(np.eye(2))
    yield EdgeCase(topic, "an exactly singular matrix has no inverse: NaN", "hf.linalg.inv(x)", (singular,), nan)
    rule = "only that matrix of a stack"
    yield EdgeCase(topic, rule, "hf.linalg.inv(x)", (np.stack([singular, one]),), np.stack([nan, one]))
    rule = "no solution"
    yield EdgeCase(topic, rule, "hf.linalg.solve(x, y)", (singular, f32([1, 2])), f32([NAN, NAN]))
    yield EdgeCase(topic, "its determinant is 0", "hf.linalg.det(x)", (singular,), f32(0))
    rule = "of sign 0, the logarithm -inf"
    yield EdgeCase(topic, rule, "hf.linalg.slogdet(x).sign", (singular,), f32(0))
    yield EdgeCase(topic, rule, "hf.linalg.slogdet(x).logabsdet", (singular,), f32(-INF))
    rule = "not positive definite: NaN in the triangle"
    yield EdgeCase(topic, rule, "hf.linalg.cholesky(x)", (f32([[1, 2], [2, 1]]),), f32([[NAN, 0], [NAN, NAN]]))
    rule = "a NaN anywhere is NaN everywhere"
    some = f32([[NAN, 1], [1, 2]])
    for call in ("hf.linalg.eigvalsh(x)", "hf.linalg.svdvals(x)"):
        yield EdgeCase(topic, rule, call, (some,), f32([NAN, NAN]))
    yield EdgeCase(topic, rule, "hf.linalg.pinv(x)", (some,), nan)
    yield EdgeCase(topic, "an empty matrix has determinant 1", "hf.linalg.det(x)", (f32(np.ones((0, 0))),), f32(1))


EDGE_CASES: tuple[EdgeCase, ...] = (
    *_division(), *_overflow(), *_shifts(), *_casts(), *_zeros(), *_nans(), *_reductions(), *_accumulation(),
    *_subnormals(), *_matrices(),
)
"""Every edge case."""


def _text(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    spec = format_spec(value.shape, as_dtype(value.dtype))
    return f"{spec} {value.tolist()}" if value.size <= 8 else f"{spec} of {value.flat[0]!s}"


def table(topic: str | None = None) -> str:
    """Return the edge cases as a Markdown table.

    Args:
        topic: the topic to show; None shows all.
    """
    rows = [
        f"| {case.rule} | `{case.call}` | {', '.join(map(_text, case.operands))} | {_text(case.expected)} |"
        for case in EDGE_CASES if topic in (None, case.topic)
    ]
    return "\n".join(["| rule | call | x, y | result |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
