"""Python numbers that branches and loops on tensors change: what eager Python gives, compiled gives, or it says why.

``python -m tests.test_staged_numbers COUNT [SEED]`` runs more random programs than a test run does.
"""

from __future__ import annotations

import itertools
import linecache
import math
import random
import sys
import warnings
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.errors import HybridflowError

DTYPES = ("float64", "float32", "bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool")
NUMBERS = ("True", "False", "0", "1", "3", "-7", "40", "200", "70000", "2**31", "2**40", "0.1", "-2.5", "1.0", "1e30")
EXPRESSIONS = (
    "n + 1", "n + m", "n - 1", "n * 3", "n * m", "n - 0.1", "n / 3", "n // 2", "n % 5", "-n", "abs(n)", "n * n",
    "n ** 2", "2 ** min(m, 9)", "1 - n", "n / m", "n // m", "m % n", "min(n, 2)", "max(n, 0.5)", "int(n)", "float(n)",
    "round(n)", "not n", "n & 3", "n << 2", "n >> 1", "math.sqrt(n)", "n if n > 1 else m", "n and m", "n or m",
    "n * 0.5 + 1.5", "m * n + 0.1", "n + i", "n * i", "math.floor(n)", "divmod(n, 3)[0]", "n + (n > 1)",
    "1.0", "2", "m", "~n", "n == m", "2.5 * n - m / 7", "bool(n)", "n < m < 4", "n + s", "s * n", "-(n ** -1)",
)  # fmt: skip
USES = (
    "x + n", "n - x", "x * n", "x / n", "x < n", "hf.maximum(x, n)", "hf.where(x > 0, x, n)", "x * (n + 1) - m",
    "x * n + m * 0.5", "n", "(n, x * n)", "x // n", "x[n]", "x == n", "hf.asarray([n, 1])", "sum([n, m])",
    "hf.full((2,), n)", "n == m", "[x * v for v in (n, m)]", "x * x + n", "hf.minimum(n, x) + m",
)  # fmt: skip
FORMS = {
    "if": "    if c:\n        n = {a}\n    else:\n        n = {b}\n",
    "one": "    if c:\n        n = {a}\n",
    "ternary": "    n = {a} if c else {b}\n",
    "while": "    while k > 0:\n        n = {a}\n        k = k - 1\n",
    "for": "    for i in range(k):\n        n = {a}\n",
    "rows": "    for i, row in enumerate(x):\n        n = {a}\n        m = {b}\n",
    "nested": "    while k > 0:\n        if k > 2:\n            n = {a}\n        else:\n            n = {b}\n"
    "        k -= 1\n",
    "break": "    while True:\n        n = {a}\n        k -= 1\n        if k < 0:\n"
    "            break\n        m = {b}\n",
    "both": "    while k > 0:\n        n, m = m, {a}\n        k = k - 1\n    if c:\n        m = {b}\n",
    "decides": "    for row in x:\n        n = {a}\n        if n > 2:\n            m = {b}\n",
}
_names = itertools.count()


def program(form: str, n: str, m: str, a: str, b: str, use: str) -> str:
    """Return a program's source."""
    body = FORMS[form].format(a=a, b=b)
    return f"def f(x, c, k, s):\n    n, m, i = {n}, {m}, 0\n{body}    return {use}\n"


def made(text: str) -> Any:
    """Return the function of a source text."""
    name = f"<staged number {next(_names)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"hf": hf, "math": math}
    exec(compile(text, name, "exec"), space)
    return space["f"]


def outcome(function: Any, *args: Any) -> Any:
    """Return a function's results as arrays, or what it raises."""
    try:
        leaves = function(*args)
        leaves = leaves if isinstance(leaves, tuple | list) else [leaves]
        return [np.asarray(hf.asarray(leaf)) for leaf in leaves]
    except (HybridflowError, ArithmeticError, ValueError, TypeError, IndexError) as error:
        return error


def judge(text: str, x: Any, c: bool, k: int, s: float) -> str:
    """Run a program in both modes; return how it went, and fail on a difference that nothing tells."""
    function = made(text)
    args = (x, hf.asarray(c), hf.asarray(k), s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, compiled = outcome(function, *args), outcome(hf.compile(function), *args)
    if isinstance(eager, Exception):
        assert isinstance(compiled, Exception), f"{text}\n{args}\neager {eager!r}\ncompiled {compiled}"
        return "both raise"
    if isinstance(compiled, Exception):
        known = isinstance(compiled, HybridflowError | ArithmeticError | ValueError | TypeError)
        assert known, f"{text}\n{args}\n{compiled!r}"
        return f"refused: {str(compiled).splitlines()[0]}"
    for one, other in zip(eager, compiled, strict=True):
        assert one.dtype == other.dtype, f"{text}\n{args}\neager {eager}\ncompiled {compiled}"
        assert one.shape == other.shape
        tolerance = 1e-6 if one.dtype == np.float32 else 1e-14 if one.dtype == np.float64 else 0
        np.testing.assert_allclose(
            np.asarray(other, np.float64), np.asarray(one, np.float64), rtol=tolerance, err_msg=f"{text}\n{args}"
        )
    return "same"


def array(dtype: str) -> hf.Tensor:
    """Return an argument of a dtype."""
    return hf.asarray(np.array([1, 0, 3])).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(FORMS)), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(EXPRESSIONS),
    st.sampled_from(EXPRESSIONS), st.sampled_from(USES), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 4),
)  # fmt: skip
def test_random_programs(form, n, m, a, b, use, dtype, c, k):
    judge(program(form, n, m, a, b, use), array(dtype), c, k, 0.3)


def main(count: int, seed: int) -> None:
    """Run random programs and count how they went."""
    rng = random.Random(seed)
    found: dict[str, int] = {}
    failed = 0
    for _ in range(count):
        text = program(
            rng.choice(sorted(FORMS)), *[rng.choice(NUMBERS) for _ in "nm"], *[rng.choice(EXPRESSIONS) for _ in "ab"],
            rng.choice(USES),
        )  # fmt: skip
        try:
            how = judge(text, array(rng.choice(DTYPES)), rng.random() < 0.5, rng.randrange(5), 0.3)
        except Exception as error:
            failed += 1
            print(f"--- {type(error).__name__}: {error}"[:1500])
            how = "DIFFERENT"
        found[how] = found.get(how, 0) + 1
    for how, times in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{times:6d}  {how}")
    print(f"{count} programs, {failed} different")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
