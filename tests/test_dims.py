"""Symbolic sizes: arithmetic against integers, guards, and what specialises."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridflow.core.dims import Dim, DimScope, evaluate, same_size, substitute
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import asarray


@pytest.fixture
def scope() -> DimScope:
    return DimScope()


def symbols(scope: DimScope, **hints: int) -> list[Any]:
    return [scope.symbol(name, hint) for name, hint in hints.items()]


def test_floats_of_sizes_are_those_of_integers(scope: DimScope):
    (a,) = symbols(scope, a=4)
    functions = [
        lambda n: n / 2, lambda n: 3 / n, lambda n: n * 0.5, lambda n: 0.5 + n, lambda n: 2.5 - n, lambda n: n**-0.5,
        lambda n: n // 1.5, lambda n: 7.5 % n, lambda n: -(n / 3), lambda n: abs(n / 3 - 5), lambda n: (n / 2) ** n,
    ]
    for function in functions:
        number = function(a)
        assert isinstance(number, float)
        for size in (4, 7):
            assert number.at({"a": size}) == function(size)
    assert scope.guards == []
    assert a / 2 == 2.0
    assert f"{a / 8:.2f} {a / 2} {round(a / 3)} {(a / 2).hex()}" == f"0.50 2.0 1 {2.0.hex()}"
    assert math.sqrt(a * 4.0) == 4.0
    assert hash(a / 2) == hash(2.0)
    assert [str(guard) for guard in scope.guards] == ["a == 4 is True"]
    with pytest.raises(ZeroDivisionError):
        1 / (a - 4.0)
    with pytest.raises(AttributeError, match="'float' object has no attribute 'shape'"):
        _ = (a / 2).shape


# -- arithmetic ---------------------------------------------------------------------------------------------------

OPERATIONS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw a Python expression over the sizes a, b and small integers, without divisions by zero."""
    depth = draw(st.integers(1, 4))
    text = draw(st.sampled_from(["a", "b", "3"]))
    for _ in range(depth):
        op = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
        other = draw(st.sampled_from(["a", "b", "2", "5", "(a + 1)", "(b * 2)"]))
        text = f"({text} {op} {other})" if op in ("//", "%") or draw(st.booleans()) else f"({other} {op} {text})"
    return text, ["a", "b"]


@pytest.mark.always
@settings(derandomize=True, deadline=None)
@given(expressions(), st.integers(1, 50), st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_expressions_are_those_of_integers(drawn: Any, a: int, b: int, other_a: int, other_b: int):
    text, _ = drawn
    scope = DimScope()
    symbolic = eval(text, {}, dict(zip("ab", symbols(scope, a=a, b=b), strict=True)))
    assert evaluate(symbolic, {"a": a, "b": b}) == eval(text, {}, {"a": a, "b": b})
    assert evaluate(symbolic, {"a": other_a, "b": other_b}) == eval(text, {}, {"a": other_a, "b": other_b})
    assert scope.guards == []


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_with_integers_on_either_side(op: Any, scope: DimScope):
    (a,) = symbols(scope, a=7)
    for number in (1, 2, 3, 10):
        assert evaluate(op(a, number), {"a": 7}) == op(7, number)
        assert evaluate(op(number, a), {"a": 7}) == op(number, 7)
        assert evaluate(op(a, number), {"a": 4}) == op(4, number)


def test_polynomials_are_normalised(scope: DimScope):
    a, b = symbols(scope, a=3, b=5)
    assert str((a + b) * (a + b)) == str(a * a + 2 * a * b + b * b)
    assert same_size((a + 1) * (a - 1), a * a - 1)
    assert same_size(a + b, b + a)
    assert same_size(a * b * 2 - b * a, a * b)
    assert hash(a * b + 1) == hash(1 + b * a)
    assert type(a - a) is int
    assert a - a == 0
    assert (a + 2) - a == 2
    assert a * 0 == 0
    assert scope.guards == []


def test_exact_divisions(scope: DimScope):
    a, b = symbols(scope, a=6, b=5)
    assert same_size((a * b * 4) // (b * 2), a * 2)
    assert same_size((a * b + a) // a, b + 1)
    assert (a * 6) % 3 == 0
    assert (a * b) % a == 0
    assert (a + b) // (a + b) == 1
    assert scope.guards == []
    assert not same_size(a // 4, 1)
    assert evaluate(a // 4 * 4 + a % 4, {"a": 11}) == 11


def test_powers_and_quotients(scope: DimScope):
    (a,) = symbols(scope, a=6)
    assert same_size(a**3, a * a * a)
    assert a**0 == 1
    quotient, rest = divmod(a, 4)
    assert (evaluate(quotient, {"a": 11}), evaluate(rest, {"a": 11})) == (2, 3)
    assert scope.guards == []
    assert (a / 4, 3 / a, a**-1, a**9, abs(a - 10)) == (1.5, 0.5, 1 / 6, 6**9, 4)


def test_printing(scope: DimScope):
    a, b = symbols(scope, a=3, b=5)
    assert str(a) == repr(a) == "a"
    assert str(2 * a + 1) == "2*a+1"
    assert str(-a) == "-a"
    assert str(a * b - 3 * b) == "a*b-3*b"
    assert str(a * a) == "a*a"
    assert str(a // 2) == "((a)//(2))"
    assert str((a + 1) % b) == "((a+1)%(b))"


# -- guards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compare", "text"),
    [(lambda a: a == 4, "a == 4 is True"), (lambda a: a == 1, "a == 1 is False"), (lambda a: a != 4, "a == 4 is True"),
     (lambda a: a < 5, "a < 5 is True"), (lambda a: a <= 3, "a <= 3 is False"), (lambda a: a > 4, "a > 4 is False"),
     (lambda a: a >= 4, "a >= 4 is True"), (lambda a: bool(a), "a == 0 is False"), (lambda a: not a, "a == 0 is False"),
     (lambda a: a % 2 == 0, "((a)%(2)) == 0 is True"), (lambda a: int(a), "a == 4 is True"),
     (lambda a: range(a), "a == 4 is True"), (lambda a: operator.gt(5, a), "a < 5 is True"),
     (lambda a: operator.eq(4, a), "a == 4 is True"), (abs, "a >= 0 is True"),
     (lambda a: 2**a, "a == 4 is True"), (lambda a: float(a / 2), "a == 4 is True"),
     (math.sqrt, "a == 4 is True"), (float, "a == 4 is True"), (lambda a: [0] * a, "a == 4 is True")],
)
def test_a_comparison_is_a_guard(compare: Any, text: str, scope: DimScope):
    (a,) = symbols(scope, a=4)
    compare(a)
    assert [str(guard) for guard in scope.guards] == [text]
    assert scope.holds({"a": 4})


def test_guards_decide_which_sizes_may_use_the_trace(scope: DimScope):
    a, b = symbols(scope, a=4, b=8)
    assert a < b
    assert a % 2 == 0
    assert b != 1
    for sizes, holds in (({"a": 4, "b": 8}, True), ({"a": 6, "b": 7}, True), ({"a": 8, "b": 8}, False),
                         ({"a": 5, "b": 9}, False), ({"a": 0, "b": 1}, False)):
        assert scope.holds(sizes) is holds


def test_one_and_zero_are_told_apart(scope: DimScope):
    one, many = symbols(scope, one=1, many=3)
    assert one == 1
    assert many != 1
    assert not scope.holds({"one": 2, "many": 3})
    assert not scope.holds({"one": 1, "many": 1})
    assert scope.holds({"one": 1, "many": 0})


def test_equal_expressions_take_no_guard(scope: DimScope):
    a, b = symbols(scope, a=4, b=4)
    assert a + 1 == 1 + a
    assert not same_size(a, b)
    assert scope.guards == []
    assert a == b
    assert len(scope.guards) == 1


def test_every_comparison_agrees_with_the_hints(scope: DimScope):
    a, b = symbols(scope, a=4, b=6)
    for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        for left, right in itertools.product([(a, 4), (b, 6), (a + 2, 6), (4, 4)], repeat=2):
            assert bool(op(left[0], right[0])) is op(left[1], right[1])


def test_comparing_with_other_things(scope: DimScope):
    (a,) = symbols(scope, a=4)
    assert (a == "4") is False
    assert a != None  # noqa: E711
    assert scope.guards == []
    for call in (lambda: a + "x", lambda: a < "x", lambda: a - None, lambda: None - a, lambda: "x" // a,
                 lambda: a % None, lambda: None // a, lambda: a / "x"):
        with pytest.raises(TypeError):
            call()


# -- use ----------------------------------------------------------------------------------------------------------


def test_substitute(scope: DimScope):
    a, b = symbols(scope, a=4, b=6)
    value = (a, 3, (a * b, slice(a, None, b)), "text", [a])
    assert substitute(value, {"a": 2, "b": 5})[:4] == (2, 3, (10, slice(2, None, 5)), "text")
    assert isinstance(substitute(value, {"a": 2, "b": 5})[4][0], Dim)  # attributes are hashable: no lists


def test_specs_of_symbolic_sizes(scope: DimScope):
    a, b = symbols(scope, a=4, b=6)
    spec = make_spec((a, 3, a * b), asarray(1.0).dtype)
    assert str(spec) == "f32[a,3,a*b]"
    assert str(spec.size) == "3*a*a*b"
    assert evaluate(spec.nbytes, {"a": 2, "b": 1}) == 48
    assert spec == make_spec((a, 3, b * a), spec.dtype)
    assert scope.guards == []
