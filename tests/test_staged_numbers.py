"""Python numbers that branches and loops on tensors change: what eager Python gives, compiled gives, or it says why.

``python -m tests.test_staged_numbers COUNT [SEED [gradients]]`` runs more random programs than a test run does.
"""

# ruff: noqa: B007

from __future__ import annotations

import itertools
import linecache
import math
import operator
import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.convert import staged
from hybridflow.core.errors import DTypeError, GradientError, HybridflowError, TraceError
from tests.modes import both, same

DTYPES = ("float64", "float32", "bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool")
NUMBERS = ("True", "False", "0", "1", "3", "-7", "40", "200", "70000", "2**31", "2**40", "0.1", "-2.5", "1.0", "1e30")
EXPRESSIONS = (
    "n + 1", "n + m", "n - 1", "n * 3", "n * m", "n - 0.1", "n / 3", "n // 2", "n % 5", "-n", "abs(n)", "n * n",
    "n ** 2", "2 ** min(m, 9)", "1 - n", "n / m", "n // m", "m % n", "min(n, 2)", "max(n, 0.5)", "int(n)", "float(n)",
    "round(n)", "not n", "n & 3", "n << 2", "n >> 1", "math.sqrt(n)", "n if n > 1 else m", "n and m", "n or m",
    "n * 0.5 + 1.5", "m * n + 0.1", "n + i", "n * i", "math.floor(n)", "divmod(n, 3)[0]", "n + (n > 1)",
    "1.0", "2", "m", "~n", "n == m", "2.5 * n - m / 7", "bool(n)", "n < m < 4", "n + s", "s * n", "-(n ** -1)",
)
USES = (
    "x + n", "n - x", "x * n", "x / n", "x < n", "hf.maximum(x, n)", "hf.where(x > 0, x, n)", "x * (n + 1) - m",
    "x * n + m * 0.5", "n", "(n, x * n)", "x // n", "x[n]", "x == n", "hf.asarray([n, 1])", "sum([n, m])",
    "hf.full((2,), n)", "n == m", "[x * v for v in (n, m)]", "x * x + n", "hf.minimum(n, x) + m",
)
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
)
def test_random_programs(form, n, m, a, b, use, dtype, c, k):
    judge(program(form, n, m, a, b, use), array(dtype), c, k, 0.3)


def judge_gradients(text: str, x: Any, c: bool, k: int) -> str:
    """Take the gradient of a program in both modes; return how it went, and fail on a difference."""
    function = made(text)

    def loss(x: Any) -> Any:
        with hf.max_iterations(8):
            leaves = function(x, hf.asarray(c), hf.asarray(k), 0.3)
        total = hf.asarray(0.0)
        for leaf in leaves if isinstance(leaves, tuple | list) else [leaves]:
            tensor = hf.asarray(leaf)
            if tensor.dtype.kind != "b":
                total = total + hf.sum(tensor.astype(hf.float32))
        return total

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, compiled = outcome(hf.grad(loss), x), outcome(hf.grad(hf.compile(loss)), x)
    if isinstance(eager, Exception) or isinstance(compiled, Exception):
        assert isinstance(compiled, Exception), f"{text}\n{x, c, k}\neager {eager!r}\ncompiled {compiled}"
        return "gradient refused"
    assert eager[0].dtype == compiled[0].dtype
    np.testing.assert_allclose(
        np.asarray(compiled[0], np.float64), np.asarray(eager[0], np.float64), rtol=1e-5, err_msg=f"{text}\n{x, c, k}"
    )
    return "same gradient"


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(FORMS)), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(EXPRESSIONS),
    st.sampled_from(EXPRESSIONS), st.sampled_from(USES), st.sampled_from(["float64", "float32"]), st.booleans(),
    st.integers(0, 4),
)
def test_random_gradients(form, n, m, a, b, use, dtype, c, k):
    judge_gradients(program(form, n, m, a, b, use), array(dtype), c, k)


# -- programs that people write -------------------------------------------------------------------------------------


def nested_bounds(k, x):
    n = 2
    for i in range(k):
        for j in range(n):
            x = x + j / (i + 1)
        n = n + i % 2
    return x, n


def float_decides_a_break(x):
    total = 0.0
    for v in x:
        total += 0.1
        if total > 0.25:
            break
    return total, x * total


def index_and_factor(x, k):
    i, total = 0, hf.asarray(0.0, dtype=hf.float64)
    while i < k:
        total = total + x[i] * i * 0.1
        i += 1
    return total, i


def schedule(w, k):
    lr, best = 0.1, float("inf")
    for step in range(k):
        lr = 0.1 / (1 + 0.5 * step) if step < 4 else lr * 0.5
        w = w - lr * 2 * w
        loss = (w * w).sum()
        if loss < best:
            best = loss
    return w, lr, best


def adam(x, k):
    beta, t, m = 0.9, 0, 0.0
    while t < k:
        t += 1
        m = beta * m + (1 - beta) * 2 * x
        x = x - 0.01 * m / (1 - beta**t)
    return x, m


def argmin(x):
    low, where = 10**6, -1
    for i, v in enumerate(x):
        if v < low:
            low, where = v, i
    return low, where


def fibonacci(k):
    a, b = 0, 1
    for _ in range(k):
        a, b = b, a + b
    return a % 1000003


def cosine(x):
    for i, v in enumerate(x):
        x = x * (0.5 * (1 + math.cos(math.pi * i / 3))) + v
    return x


def first_set_in_the_loop(x):
    for i, v in enumerate(x):
        half = i / 2
        flag = i > 1
    return half * v, flag, x * half


def number_or_tensor(x):
    best = 0.0
    for v in x:
        best = v if v > best else best
    return best


def helper_returns_a_number(x, k):
    def rate(step):
        if step > 2:
            return 0.5
        return 0.25

    for i in range(k):
        x = x * rate(i)
    return x


def float_argument_changes(x, lr):
    for v in x:
        lr = lr * 0.5 if v > 1 else lr - 0.01
    return x * lr, lr


def halvings(x):
    n = 0
    with hf.max_iterations(20):
        while x > 1:
            x, n = x / 2, n + 1
    return x * n


def kahan(x):
    total, lost = 0.0, 0.0
    for i, _ in enumerate(x):
        y = 0.1 * (i + 1) - lost
        new = total + y
        lost = (new - total) - y
        total = new
    return total, lost * 1e18


def dicts_keep_their_order(x):
    state = {"n": 0, "lr": 0.1, "a": {"z": x, "y": 1}}
    for v in x:
        state = {"n": state["n"] + 1, "lr": state["lr"] * 0.9, "a": {"z": state["a"]["z"] * v, "y": 2}}
    if x[0] > 1:
        state = {"n": state["n"] * 2, "lr": 0.5, "a": state["a"]}
    first, second, third = state.values()
    return first, second * x, [one * 2 for one in third.values()]


def appended_numbers(x):
    out, rate = [], 1.0
    for i, v in enumerate(x):
        rate = rate * 0.1
        out.append({"z": rate, "i": i, "one": 1, "row": v * rate})
    second = [one * x for one in out[1].values()]
    return x.astype(hf.float64) * out[2]["z"], x.astype(hf.int8) * out[2]["one"], second, out[3]["i"] / 3


def tensors(*numbers: Any, dtype: Any = np.float32) -> hf.Tensor:
    """Make a tensor of one dimension."""
    return hf.asarray(np.array(numbers, dtype))


X = tensors(3.0, 1.0, 2.0, 7.0, 5.0)
LOW = tensors(1.0, -2.0, 0.5).astype(hf.bfloat16)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "nested bounds": (nested_bounds, (hf.asarray(6), tensors(1, 2, dtype=np.float64))),
    "float decides a break": (float_decides_a_break, (X,)),
    "index and factor": (index_and_factor, (X, hf.asarray(4))),
    "schedule": (schedule, (X, hf.asarray(7))),
    "schedule in bfloat16": (schedule, (LOW, hf.asarray(5))),
    "adam": (adam, (hf.asarray(3.0), hf.asarray(3))),
    "argmin": (argmin, (X,)),
    "fibonacci": (fibonacci, (hf.asarray(80),)),
    "cosine": (cosine, (X,)),
    "first set in the loop": (first_set_in_the_loop, (X,)),
    "number or tensor": (number_or_tensor, (X,)),
    "helper returns a number": (helper_returns_a_number, (LOW, hf.asarray(5))),
    "float argument changes": (float_argument_changes, (LOW, 0.3)),
    "halvings": (halvings, (hf.asarray(12.0),)),
    "dicts keep their order": (dicts_keep_their_order, (X,)),
    "appended numbers": (appended_numbers, (X,)),
    "kahan": (kahan, (X,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str):
    function, args = PROGRAMS[name]
    eager, compiled = function(*args), hf.compile(function)(*args)
    same(eager, compiled, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["nested bounds", "index and factor", "schedule", "cosine", "adam", "halvings"])
def test_gradients_through_tensors_that_numbers_multiply(name: str):
    function, args = PROGRAMS[name]
    at = next(index for index, one in enumerate(args) if one.dtype.kind == "f")

    def loss(*values: Any) -> Any:
        found = function(*values)
        return hf.sum(found[0] if isinstance(found, tuple) else found)

    def bounded(*values: Any) -> Any:
        with hf.max_iterations(30):
            return loss(*values)

    eager, compiled = hf.grad(loss, at)(*args), hf.compile(hf.grad(bounded, at))(*args)
    assert eager.dtype == compiled.dtype == args[at].dtype
    np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-6)


def test_a_bounded_loop_that_would_go_on():
    with pytest.raises(TraceError, match=r"would go on after 20 steps(.|\n)*test_staged_numbers.py"):
        hf.compile(halvings)(hf.asarray(1e9)).item()
    for count, error in ((-1, ValueError), (True, TypeError), (2.0, TypeError)):
        with pytest.raises(error, match="takes a count of steps"), hf.max_iterations(count):  # pyright: ignore[reportArgumentType]
            pass


def test_an_unbounded_loop_names_the_way():
    def f(x: Any) -> Any:
        while x > 1:
            x = x / 2
        return x

    with pytest.raises(GradientError, match=r"hf\.max_iterations"):
        hf.grad(hf.compile(f))(12.0)


def test_a_number_of_two_kinds_names_both_values():
    def f(c: Any, x: Any) -> Any:
        s = 1 if c else 0.5
        return x * s

    x = tensors(1.0, 2.0)
    assert hf.compile(f)(hf.asarray(True), x).tolist() == [1.0, 2.0]
    match = r"float or int, as a tensor decides, meets int32(.|\n)*: 1 if the condition is true, 0.5 if it is false"
    with pytest.raises(DTypeError, match=match):
        hf.compile(f)(hf.asarray(True), tensors(1, 2, dtype=np.int32))


def test_a_loop_that_is_certain_to_make_a_step_decides_the_kind():
    def f(x: Any) -> Any:
        total, whole = 0, 0.5
        for i, _ in enumerate(x):
            total, whole = total + 0.5, i
        return total, whole, tensors(1, 2, dtype=np.int32) * whole

    eager, compiled = f(X), hf.compile(f)(X)
    same(eager, compiled)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "eq", "ne"])
def test_numbers_meet_symbolic_sizes(name: str):
    function = getattr(operator, name)

    def f(x: Any, k: Any) -> Any:
        n = 0
        for _ in range(k):
            n = n + 1
        size, half = x.shape[0], x.shape[0] / 2
        return function(size, n) * 1, function(n, size) * 1, function(half, n) * 1.0, function(n, half) * 1.0

    compiled = hf.compile(f, dynamic=True)
    for x in (tensors(1, 2, 3), tensors(1, 2, 3, 4), tensors(1, 2)):
        same(f(x, hf.asarray(3)), compiled(x, hf.asarray(3)))
    assert compiled.trace_count == 2


def test_numbers_that_every_step_sets_alike_are_known():
    def f(k: Any, x: Any) -> Any:
        size, width, i = 2, x.shape[0], 0
        while i < k:
            size, width, rank = 2, x.shape[0], 3
            i = i + 1
        return hf.zeros((size, rank)), hf.full((width,), i)

    both(f, hf.asarray(2), X)


def test_what_needs_the_number_itself_says_so():
    def shape(k: Any) -> Any:
        n = 2
        while k > 0:
            n, k = n + 1, k - 1
        return hf.zeros((n,))

    def listed(k: Any) -> Any:
        n = 0
        while k > 0:
            n, k = n + 1, k - 1
        return ["a", "b"][n]

    for function in (shape, listed):
        with pytest.raises(TypeError, match=r"a Python number that a branch or loop on tensors decides(.|\n)*made at"):
            hf.compile(function)(hf.asarray(1))


def test_dicts_in_another_order_are_another_structure():
    def branch(x: Any) -> Any:
        state = {"b": x, "a": x}
        if x[0] > 1:
            state = {"a": x, "b": x}
        return list(state)

    def loop(x: Any) -> Any:
        state = {"b": x, "a": x}
        for v in x:
            state = {"a": x * v, "b": x}
        return list(state)

    for function in (branch, loop):
        with pytest.raises(TraceError, match=r"'state' (has another|changes its) structure"):
            hf.compile(function)(X)


def test_printed_numbers(capsys: pytest.CaptureFixture[str]):
    def f(x: Any) -> Any:
        n, rate = 0, 0.1
        for v in x:
            n, rate = n + 1, rate / 2
            print(n, rate, f"{n:>3}|{rate:.3f}|{v:.1f}|{n!r}|{{}}", [n > 1])
        return n

    f(X)
    eager = capsys.readouterr().out
    hf.compile(f)(X)
    assert capsys.readouterr().out == eager


def test_arithmetic_is_that_of_doubles_step_by_step():
    def f(k: Any, a: float) -> Any:
        s, t = 0.1, 1.0
        for i in range(k):
            s = s * a + t * i - s * s
            t = t / 3.0 / 7.0 + s * 1.1
        return hf.asarray(s, dtype=hf.float64), hf.asarray(t, dtype=hf.float64)

    for seed in range(5):
        a = 0.37 + seed / 7
        eager, compiled = f(hf.asarray(9), a), hf.compile(f)(hf.asarray(9), a)
        assert [one.item() for one in compiled] == [one.item() for one in eager]


def test_a_fusion_of_products_and_sums_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    def f(k: Any) -> Any:
        s, t = 0.1, 0.7
        for i in range(k):
            s, t = s * 1.1 + t * 0.3, t * t + s * 0.7 - i * 0.1
        return hf.asarray(s, dtype=hf.float64)

    counts = [hf.asarray(k) for k in range(2, 9)]
    eager = [f(k).item() for k in counts]
    assert list(map(hf.Tensor.item, map(hf.compile(f), counts))) == eager
    monkeypatch.setattr(staged, "bind", lambda op, inputs: inputs[0])
    assert list(map(hf.Tensor.item, map(hf.compile(f), counts))) != eager


def test_integers_are_exact_or_raise():
    def f(k: Any, x: Any) -> Any:
        n = 3
        while k > 0:
            n, k = n * n, k - 1
        return hf.asarray(n, dtype=hf.int64)

    compiled = hf.compile(f)
    assert compiled(hf.asarray(5), X).item() == 3**32
    with pytest.raises(OverflowError, match="larger than 2"):
        compiled(hf.asarray(6), X).item()


def main(count: int, seed: int, gradients: bool) -> None:
    """Run random programs and count how they went."""
    rng = random.Random(seed)
    found: dict[str, int] = {}
    failed = 0
    for _ in range(count):
        text = program(
            rng.choice(sorted(FORMS)), *[rng.choice(NUMBERS) for _ in "nm"], *[rng.choice(EXPRESSIONS) for _ in "ab"],
            rng.choice(USES),
        )
        try:
            dtype, c, k = rng.choice(DTYPES), rng.random() < 0.5, rng.randrange(5)
            how = judge(text, array(dtype), c, k, 0.3)
            if gradients and dtype in ("float64", "float32"):
                how = judge_gradients(text, array(dtype), c, k)
        except Exception as error:
            failed += 1
            print(f"--- {type(error).__name__}: {error}"[:1500])
            how = "DIFFERENT"
        found[how] = found.get(how, 0) + 1
    for how, times in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{times:6d}  {how}")
    print(f"{count} programs, {failed} different")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, "gradients" in sys.argv)
