"""Everything that Python can do with a number, done to numbers that a tensor decides and to floats that are inputs.

The table is generated: the attributes and methods of `int`, `float` and `bool`, the builtins, `operator`, `math`,
NumPy's functions, formats, libraries. Each use gives what eager Python gives, in value and type, or an error of
hybridflow that names the user's line; nothing else. ``python -m tests.test_number_uses [PART PARTS]`` runs them all.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import dataclasses
import fractions
import itertools
import json
import linecache
import math
import operator
import random
import sys
import warnings
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import HybridflowError
from tests.reference import without_xla

WAYS = {
    "branch int": "    n = 12 if c else 5\n",
    "loop int": "    n = 3\n    while k > 0:\n        n, k = n + 2, k - 1\n",
    "filtered len": "    n = len([v for v in x if v > 0])\n",
    "branch float": "    n = 0.75 if c else 2.5\n",
    "loop float": "    n = 8.0\n    while k > 0:\n        n, k = n / 4, k - 1\n",
    "whole float": "    n = 4.0 if c else -3.0\n",
    "branch bool": "    n = True if c else False\n",
    "any": "    n = any(v > 2 for v in x)\n",
    "all": "    n = all([v > 2 for v in x])\n",
    "not": "    n = not (x[0] > 9)\n",
    "bool": "    n = bool(x[0] > 9)\n",
    "in": "    n = 3.0 in x\n",
    "compared": "    m = 12 if c else 5\n    n = m > 7\n",
    "int or float": "    n = 3 if c else 0.5\n",
    "bool or int": "    n = True if c else 6\n",
    "float argument": "    n = s\n",
    "computed float": "    n = s * 2 + 1\n",
    "outside float": "    n = KEPT['rate']\n",
}
"""How the number `n` comes about."""
_UNSAFE = {
    "input", "exit", "quit", "help", "breakpoint", "open", "exec", "eval", "compile", "copyright", "credits", "license",
    "print", "globals", "locals", "vars", "dir", "super", "anext", "aiter", "memoryview", "staticmethod", "classmethod",
    "property", "object", "id", "setattr", "delattr", "issubclass", "BaseExceptionGroup", "ExceptionGroup", "type",
}
_OBJECT = set(dir(object)) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__str__",
                              "__repr__", "__format__", "__bool__"}
_SPECS = ("", "d", "x", "o", "b", "c", "e", ".3f", "g", "%", ">8", "<8", "+", "08", ",", "_", "n", "s", "!", ".2", "#x")
_BY_HAND = """
n is True; n is False; n is not True; n is None; n is n; n is 5; n is m; True is n; not (n is False)
1.0 if n is True else 2.0; n is True or n is False; operator.is_(n, True); operator.is_not(n, False); n == True
n != 1; n < 3; 0 < n < 4; n in (1, 12); n in [n]; n in {1, 12, 0.75}; n in range(20); n in {12: 1}; n in "12"
n not in (5, True); [1, 2, n].index(n); [n, n].count(n); (n, 1) == (12, 1); [n] == [n]; (n, 2) < (3, 1); max(n, 3)
min([n, 2]); sorted([n, 1, 7]); sorted([3, 1, 2], key=lambda v: v * n); sum([n, 1, 2]); sum([0.1, 0.2, n, 0.3, 0.7])
sum([n, 0.1, 0.2], 0.3); sum([[n], [2]], []); abs(-n); round(n); round(n, 1); round(n, ndigits=1); round(n, -1)
divmod(n, 3); divmod(30, n); pow(n, 2); pow(2, n); pow(n, 2, 5); pow(2, n, 5); pow(2, 3, n); n ** 2; 2 ** n; n ** -1
n << 2; n & 6; n | 1; n ^ 1; ~n; -n; +n; n // 2; n % 4; 7 / (n + 1); int(n); float(n); bool(n); complex(n); str(n)
repr(n); ascii(n); hash(n); format(n); bin(n); hex(n); oct(n); chr(n); bytes(n); bytearray(n); str(n) == "12"
repr(n) == "12"; "1" in f"{n}"; f"{n!r}"; f"{n!s:>5}"; "%d" % n; "%s" % n; "%5.2f" % n; "%x" % n; "%d %s" % (n, 1)
"%(a)d" % {"a": n}; "{}".format(n); "{:>4}".format(n); "{0!r}".format(n); "{a}".format_map({"a": n})
" ".join([str(n)]); int(str(n)); float(repr(n)); json.dumps(n); json.dumps([n]); json.dumps({"a": n})
json.loads(json.dumps(n)); pickle.loads(pickle.dumps(n)); pickle.loads(pickle.dumps([n])); copy.copy(n)
copy.deepcopy([n])[0]; struct.pack("d", n); struct.pack("i", n); struct.pack("?", n)
struct.unpack("d", struct.pack("d", n))[0]; [10, 20, 30, 40, 50, 60][n]; (1.5, 2.5, 3.5, 4.5)[n]
[x, x + 1, x * 2, x - 1, x, x][n]; "abcdefghijklmnop"[n]; b"abcdefghijklmnop"[n]; ["a", "b"][n]; [1, 2, 3][n:]
[1, 2, 3][:n]; list(range(20))[::n]; "abc" * n; [0] * n; n * (1,); x[n]; hf.asarray(list(range(20)))[n]
hf.asarray(list(range(20))).at[n].set(5); x[n:]; x[:n]; range(n); len(range(n)); len(range(2, n)); len(range(0, n, 2))
list(range(n)); sum(range(n)); range(n)[0]; 3 in range(n); bool(range(n)); range(n) == range(12)
[v for v in range(n)]; list(enumerate("ab", n)); list(enumerate("ab", start=n)); [v * n for v in (1, 2)]
list(itertools.islice([1, 2, 3], n)); list(itertools.repeat(1, n)); [v for v, _ in zip(itertools.count(n), "ab")]
list(itertools.accumulate([n, 1, 2])); list(zip([n], [1]))[0][0]; next(iter([n])); list(reversed([n, 1])); {n: 1}
{n: 1}[n]; {12: 5.0, 0.75: 6.0, True: 7.0}.get(n, 3.0); {n}; len({n, n}); frozenset([n]); set([n, 1]); dict(a=n)["a"]
{"a": n}.get("a"); dict([(n, 1)]); isinstance(n, int); isinstance(n, float); isinstance(n, bool)
isinstance(n, (int, float)); isinstance(n, str); isinstance(n, object); type(n) is int; type(n) is float
type(n) is bool; type(n) == int; type(n) in (int, float); type(n).__name__; n.__class__ is int; n.__class__.__name__
issubclass(type(n), int); callable(n); hasattr(n, "real"); hasattr(n, "is_integer"); hasattr(n, "hex")
hasattr(n, "bit_length"); hasattr(n, "tensor"); hasattr(n, "raw"); hasattr(n, "kinds"); hasattr(n, "shape")
getattr(n, "raw", 7); getattr(n, "limit", 7); getattr(n, "step", 7); getattr(n, "real", 7); getattr(n, "numerator", 7)
n.raw; n.tensor; n.step; n.foo; n.origin; decimal.Decimal(n); decimal.Decimal(str(n)); fractions.Fraction(n)
fractions.Fraction(n, 7); statistics.mean([n, 1, 2]); statistics.median([n, 1, 2]); statistics.fsum([n, 1])
time.sleep(n * 0); random.Random(n).random(); random.Random(1).randint(0, n); random.Random(1).choice([n])
time.strftime("%d", (2000, 1, n, 0, 0, 0, 0, 0, 0)); [n, n].pop(0); (lambda a=n: a)(); [a for a in [n]][0]; (n, 2)[0]
{**{"a": n}}["a"]; [*[n], 2][0]; (lambda *a: a[0])(n); (lambda **a: a["k"])(k=n); max([1, 2], key=lambda v: v * n)
n if n else 7; n and 5; n or 5; not n; all([n, 1]); any([n, 0]); list(filter(None, [n, 1]))
list(map(lambda v: v + 1, [n])); [v for v in [1, 2] if n]; list(filter(lambda v: v > 1, [n, 1, 2])); (0.5).__add__(n)
(5).__add__(n); (5).__eq__(n); (0.5).__lt__(n); True.__and__(n); int.__add__(n, 1); int.__add__(1, n)
float.__add__(1.0, n); int.bit_length(n); float.hex(n); int.__and__(n, 1); bool.__and__(n, True); float.is_integer(n)
int.from_bytes(b"a", "big") + n; int.to_bytes(n, 2, "big"); float.fromhex("1.0") + n; object.__eq__(n, n)
object.__repr__(n); operator.add(n, 1); operator.index(n); operator.truth(n); operator.not_(n); operator.neg(n)
operator.itemgetter(n)([1] * 20); operator.attrgetter("real")(n); operator.methodcaller("conjugate")(n)
operator.contains([n], n); operator.contains([1, 12], n); operator.countOf([1, n], 1); operator.indexOf([1, n], 1)
operator.length_hint([], n); operator.concat([n], [1])[0]; operator.eq(n, 1); math.floor(n); math.ceil(n)
math.trunc(n); math.isclose(n, 3); math.gcd(n, 4); math.prod([n, 2]); math.fsum([n, 0.1]); math.dist([n], [1])
math.modf(n); math.frexp(n); math.factorial(n); np.sqrt(n); np.add(n, 1); np.float64(2) * n; n * np.float32(2)
np.array([1.0, 2.0]) * n; np.ones(2) ** n; n < np.ones(2); np.asarray(n); np.array([n, 1]); np.zeros(n); np.arange(n)
np.sum([n]); np.clip(n, 0, 1); np.where(n, 1, 2); np.isscalar(n); np.float64(n); np.int32(n); np.isnan(n)
np.equal(n, 3); np.linspace(0, 1, n); np.result_type(n); np.full(2, n); np.maximum(n, 2); np.broadcast_to(n, (2,))
sys.getsizeof(n); [].append(n); dataclasses.astuple(Pair(n, 1))[0]; Pair(n, 1).a; Pair(n, 1) == Pair(n, 1)
Point(n, 1).a; Point(n, 1)._replace(b=n).b; types.SimpleNamespace(a=n).a; collections.Counter([n])
collections.deque([n])[0]; functools.partial(operator.add, n)(1); functools.reduce(operator.add, [n, 1, 2])
heapq.nlargest(1, [n, 1]); bisect.bisect([1, 2, 20], n); array.array("d", [n]); array.array("i", [n])
uuid.UUID(int=n); datetime.timedelta(seconds=n); datetime.date(2000, 1, n); textwrap.fill("a b", n)
urllib.parse.quote(n); base64.b64encode(bytes([n])); io.BytesIO(b"abc").read(n); string.Template("$a").substitute(a=n)
colorsys.rgb_to_hsv(n, 0.5, 0.5); calendar.isleap(n); ipaddress.ip_address(n); numbers.Number in type(n).__mro__
isinstance(n, numbers.Integral); isinstance(n, numbers.Real); cmath.sqrt(n); secrets.compare_digest(str(n), "1")
"".zfill(n); "a".center(n); "a".ljust(n, "-"); "abc".startswith("a", n); "abc".find("c", n)
"abc".replace("a", "b", n); "a b c".split(" ", n); "abc".encode().hex("-", n); b"a" * n; bytes([n, 1]); bytearray([n])
slice(n).indices(5); slice(0, n).stop; list("abcd").pop(n); list("abcd").insert(n, "x"); (1, 2, 3).index(n)
[3, 1].sort(key=lambda v: v * n); zlib.crc32(b"a", n); hashlib.sha256(str(n).encode()).hexdigest(); os.urandom(n * 0)
""".strip().replace("\n", ";")
_IMPORTS = (
    "array base64 bisect calendar cmath collections colorsys copy dataclasses datetime decimal fractions functools "
    "hashlib heapq io ipaddress itertools json math numbers operator os pickle random secrets statistics string struct "
    "sys textwrap time types urllib.parse uuid zlib"
)


WRITTEN = [one.strip() for one in _BY_HAND.split(";") if one.strip()]


def generated() -> list[str]:
    """Return expressions in `n`, for all names that numbers, builtins and libraries of numbers have."""
    made: list[str] = []
    for name in sorted((set(dir(int)) | set(dir(float)) | set(dir(bool))) - _OBJECT):
        made += [f"n.{name}", f"n.{name}()", f"n.{name}(2)", f"int.{name}(n)", f"float.{name}(n, 2)", f"bool.{name}(n)"]
        made += [f"(3).{name}(n)", f"(3.5).{name}(n)", f"hasattr(n, {name!r})"]
    for module in (builtins, operator, math):
        for name in sorted(vars(module)):
            value = getattr(module, name)
            failure = isinstance(value, type) and issubclass(value, BaseException)
            if name.startswith("_") or name in _UNSAFE or not callable(value) or failure:
                continue
            called = name if module is builtins else f"{module.__name__}.{name}"
            given = ("n", "n, 2", "2, n", "[n, 2]", "[1, 2, 3], n", "'ab', n")
            made += [f"{called}({one})" for one in given]
    for name in sorted(vars(np)):
        if isinstance(getattr(np, name), np.ufunc):
            made += [f"np.{name}(n)", f"np.{name}(n, 2)", f"np.{name}(2, n)"]
    for spec in _SPECS:
        made += [f"format(n, {spec!r})", f"f'{{n:{spec}}}'", f"'{{:{spec}}}'.format(n)"]
    made += [f"'%{spec}' % n" for spec in "dixobeEfFgGcrsa"]
    return list(dict.fromkeys(made))


class Pair:
    """Replaced below: a dataclass made by `exec`, as a user would have it in a file of his own."""


_names = itertools.count()
_RESULTS = {
    "number": "    return r, hf.asarray(r, dtype=hf.float64)\n",
    "one of two": "    return hf.asarray(r, dtype=hf.float64)\n",
    "text": "    return [ord(one) for one in r] + [len(r)]\n",
    "items": "    return [hf.asarray(one, dtype=hf.float64) for one in r] + [len(r)]\n",
    "tensor": "    return r\n",
    "other": "    return 1 if r else 2\n",
}
"""What a program returns, by what the use gives in eager code."""


def program(way: str, use: str, result: str) -> tuple[Any, str, int]:
    """Return a program's function, its file and the line of the use."""
    body = f"def f(x, c, k, s):\n{WAYS[way]}    m = n\n    r = {use}\n"
    line = body.count("\n")
    text = body + _RESULTS[result]
    name = f"<number use {next(_names)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"hf": hf, "np": np, "KEPT": {"rate": 0.375}}
    exec(f"import {', '.join(_IMPORTS.split())}", space)
    exec("@dataclasses.dataclass\nclass Pair:\n    a: object\n    b: object\n", space)
    exec("Point = collections.namedtuple('Point', 'a b')", space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # for `n is 5`
        exec(compile(text, name, "exec"), space)
    return space["f"], name, line


def kind_of(value: Any, way: str) -> str:
    """Return which results a program returns for what the use gives in eager code."""
    if isinstance(value, bool | int | float):
        return "one of two" if " or " in way else "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, tuple | list | bytes | bytearray | set | dict):
        numbers = all(isinstance(one, bool | int | float) for one in value)
        return "items" if numbers else "other"
    return "tensor" if isinstance(value, hf.Tensor | np.ndarray | np.generic) else "other"


def outcome(function: Any, args: Any) -> Any:
    """Return what a function returns, as arrays, or what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            leaves = function(*args)
            leaves = leaves if isinstance(leaves, tuple | list) else [leaves]
            return [np.asarray(hf.asarray(leaf)) for leaf in leaves]
        except Exception as error:
            return error


def arguments(way: str, number: int) -> tuple[Any, ...]:
    """Return the arguments of a call."""
    x = hf.asarray(np.array([3.0, 1.0, 2.0, 4.0] if number else [1.0, -1.0, 9.5, 2.0], np.float32))
    return x, hf.asarray(bool(number)), hf.asarray(3 - number), 0.25 + number


def judge(way: str, use: str) -> str:
    """Run a use in both modes; return how it went, and fail on anything that the rule does not allow."""
    peek, _, _ = program(way, use, "tensor")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = kind_of(peek(*arguments(way, 1)), way)
    except Exception:
        result = "tensor"
    function, name, line = program(way, use, result)
    compiled = hf.compile(function)
    how = ""
    for number in (1, 0):
        if way == "outside float":
            function.__globals__["KEPT"]["rate"] = 0.375 + number
        args = arguments(way, number)
        expected, found = outcome(function, args), outcome(compiled, args)
        about = f"n: {way}; {use}\neager {expected!r}\ncompiled {found!r}"
        if isinstance(found, Exception):
            alike = isinstance(expected, Exception) and type(found) is type(expected)
            lines = (line, line + 1)  # of the use, or of the return that reads what it gave
            told = isinstance(found, HybridflowError) and any(f"{name}:{one}" in str(found) for one in lines)
            assert alike or told, about
            how = "both raise" if isinstance(expected, Exception) else "refused"
            continue
        assert not isinstance(expected, Exception), about
        how = how or "same"
        for one, other in zip(expected, found, strict=True):
            assert one.dtype == other.dtype, about
            assert one.shape == other.shape, about
            close = 0.0 if one.dtype.kind in "biu" else 1e-13 if one.dtype == np.float64 else 1e-6
            np.testing.assert_allclose(
                np.asarray(other, np.float64), np.asarray(one, np.float64), rtol=close, err_msg=about
            )
    return how


def cases() -> list[tuple[str, str]]:
    """Return what is written above for all numbers, and what is generated for some of them by turns."""
    ways = itertools.cycle(random.Random(0).sample(sorted(WAYS), len(WAYS)))
    return [(way, use) for use in WRITTEN for way in WAYS] + [(next(ways), use) for use in generated() for _ in "1234"]


CASES = cases()


def draw(count: int, seed: int) -> list[tuple[str, str]]:
    """Return some cases."""
    return random.Random(seed).sample(CASES, count)


@pytest.mark.parametrize("seed", range(8))
def test_some_uses(seed: int):
    with without_xla():
        for way, use in draw(4, seed):
            judge(way, use)


@pytest.mark.rest
def test_more_uses():
    for way, use in draw(60, 8):
        judge(way, use)


# -- what is refused, and what the error says -----------------------------------------------------------------------


def refusal(function: Any, *args: Any) -> str:
    """Return the text of the error with which a function cannot be compiled; it names the file of the user's line."""
    with pytest.raises(HybridflowError) as info:
        hf.compile(function)(*args)
    text = str(info.value).split("  while compiling", maxsplit=1)[0]
    assert __file__ in text
    return text


YES = hf.asarray(True)


def test_a_refusal_cannot_be_swallowed():
    def hashed(c: Any) -> Any:
        n = 3 if c else 5
        try:
            known = {n: 1}
        except TypeError:
            known = {}
        return len(known)

    def shown(c: Any) -> Any:
        n = 3 if c else 5
        with contextlib.suppress(TypeError, ValueError):
            return len(f"{n}")
        return 7

    assert "hash: a Python number that a branch or loop on tensors decides has no value" in refusal(hashed, YES)
    assert "str: the text of a traced tensor is not known" in refusal(shown, YES)


def test_the_error_names_where_the_number_was_made_and_used():
    def f(c: Any) -> Any:
        n = 3 if c else 5
        m = n + 1
        return json.dumps({"a": [m]})

    text, start = refusal(f, YES), f.__code__.co_firstlineno
    assert text.startswith("json.dumps: a Python number")
    assert f"int made at {__file__}:{start + 2}, used at {__file__}:{start + 3}" in text
    assert "Return it, and go on outside of the compiled function; or make it a tensor, hf.asarray(n)." in text


Frozen = dataclasses.make_dataclass("Frozen", ["n"], frozen=True)  # has a __hash__ in a file called <string>


class Hashed:
    def __init__(self, n: Any) -> None:
        self.value = hash(n)

    @staticmethod
    def frozen(n: Any) -> int:
        return hash(Frozen(n))


TYPED: dict[str, Any] = {}
exec("def _hash_of(n):\n    return hash(n)", TYPED)


@pytest.mark.parametrize(("use", "place"), [
    (Hashed.frozen, f"{__file__}:{Hashed.frozen.__code__.co_firstlineno + 2}"),
    (Hashed, f"{__file__}:{Hashed.__init__.__code__.co_firstlineno + 1}"), (TYPED["_hash_of"], "<string>:2"),
], ids=["made by dataclasses", "a method with two underscores", "typed"])
def test_the_place_of_use_is_the_users_line_not_one_that_a_library_made(use: Any, place: str):
    text = refusal(lambda c: use(3 if c else 5), YES)
    assert f", used at {place}\n" in text


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda n: isinstance(n, int), "that is float or int, as a tensor decides, is asked whether it is of a type"),
        (lambda n: type(n), "is asked for its type"),
        (lambda n: n.__class__, "is asked for its type"),
        (lambda n: n.bit_length(), "is asked for its 'bit_length', which only some of them have"),
        (lambda n: n.imag, "is asked for its imaginary part"),
        (lambda n: ~n, "is an operand of ~, which floats have not"),
        (lambda n: n & 1, "is an operand of a bitwise operator, which floats have not"),
        (lambda n: range(n), "is an argument of range(), which takes no floats"),
        (lambda n: enumerate("ab", n), "is an argument of enumerate(), which takes no floats"),
        (lambda n: fractions.Fraction(n), "fractions.Fraction: a Python number that a branch or loop"),
        (lambda n: math.hypot(n, 1, 2), "math.hypot of more than two numbers: a Python number"),
        (lambda n: copy.deepcopy({"a": n})["a"] is n, None),
    ],
)
def test_a_number_of_two_types(use: Any, text: str | None):
    def f(c: Any) -> Any:
        return use(3 if c else 0.5)

    if text is None:
        assert hf.compile(f)(YES) is True
    else:
        assert text in refusal(f, YES)


def test_numbers_of_two_types_are_not_added_up_by_sum():
    def f(c: Any) -> Any:
        return hf.asarray(sum([3 if c else 0.5, 0.1, 0.2, 0.3]), dtype=hf.float64)

    if sys.version_info >= (3, 12):
        assert "is added up by sum(), which adds floats and ints differently" in refusal(f, YES)
    else:
        assert hf.compile(f)(YES).item() == f(YES).item()


def test_identity_of_numbers():
    def of_branch(c: Any) -> Any:
        n, three = 3 if c else 5, 3
        return n is three

    def of_floats(a: float, b: float) -> Any:
        return a is b

    def by_id(a: float) -> Any:
        return id(a)

    assert "is: whether two Python numbers are one object differs from call to call" in refusal(of_branch, YES)
    assert "<a float that is an input> is <a float that is an input>" in refusal(of_floats, 1.5, 1.5)
    assert "id: a Python number is another object in each call" in refusal(by_id, 1.5)
    assert hf.compile(lambda a: (a is None, a is True, a is a))(1.5)[2] is True


def test_true_and_false_decide_branches():
    def f(c: Any, x: Any) -> Any:
        flag = bool(c)
        if flag is True:
            x = x + 1
        while flag is not False:
            x, flag = x * 2, x[0] < 9
            flag = bool(flag)
        match flag:
            case True:
                return x
            case False:
                return -x

    for c in (True, False):
        args = hf.asarray(c), hf.asarray([1.0, 2.0])
        assert hf.compile(f)(*args).tolist() == f(*args).tolist()


def test_bools_are_python_bools():
    """`any`, `all`, `in`, `not` and `bool` give a bool in eager code, which takes the dtype of what it meets."""

    def f(x: Any) -> Any:
        flags = (any(v > 0 for v in x), all([v > 0 for v in x]), 1.0 in x, not (x[0] > 0), bool(x[0] > 0))
        return [(x * flag, flag * 2.5, flag + 1, x * (flag * 0.5), -flag) for flag in flags]

    x = hf.asarray([1.0, -2.0]).astype(hf.float16)
    for one, other in zip(itertools.chain(*f(x)), itertools.chain(*hf.compile(f)(x)), strict=True):
        assert type(one) is type(other)
        assert np.asarray(one).tolist() == np.asarray(other).tolist()


def test_items_of_lists_at_a_position_that_a_tensor_decides():
    def f(c: Any, x: Any, i: Any) -> Any:
        n = 2 if c else -3
        table, rows = [1.5, 2.5, 4.0], (x, x * 2, {"a": x}["a"] - 1)
        return table[n], rows[n], rows[i], table[i], [(x, 1), (-x, 2), (x, 3)][i], [True, False, True][n], (7, 8, 9)[i]

    with without_xla():
        for c, i in ((True, hf.asarray(1)), (False, np.int32(-1)), (True, np.array(2))):
            args = hf.asarray(c), hf.asarray([1.0, 2.0]), i
            expected, found = f(*args), hf.compile(f)(*args)
            for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
                assert type(one) is type(other)
                assert np.asarray(one).tolist() == np.asarray(other).tolist()
        with pytest.raises(IndexError, match="list index out of range"):
            hf.compile(lambda i: [1, 2][i])(hf.asarray(2)).item()

    def texts(c: Any) -> Any:
        n = 1 if c else 0
        return len(["a", "bb"][n])

    def many(c: Any, x: Any) -> Any:
        n = 1 if c else 0
        return [x] * 65 and [x + i for i in range(65)][n]

    assert "an index of a list whose 2 items are not all tensors or numbers: a Python number" in refusal(texts, YES)
    assert "an index of 65 items: a Python number" in refusal(many, YES, hf.asarray(1.0))


def test_a_number_does_not_leave_the_call():
    kept: list[Any] = []

    def f(c: Any) -> Any:
        n = 3 if c else 5
        kept.append(n)
        return n

    assert "stores a traced tensor outside of itself" in refusal(f, YES)
    assert kept == []


def test_texts_of_numbers(capsys: pytest.CaptureFixture[str]):
    def printed(c: Any) -> Any:
        n = 3 if c else 5
        print(f"{[n, n]} {n:>4} {{}}", (n,))
        print(n, file=sys.stderr)
        return n

    def raises(c: Any) -> Any:
        n = 3 if c else 5
        assert n < 9, f"n is {n:>3}"
        if n < 4:
            raise ValueError(f"n is {n:.2f} or {n!r}")
        return n

    printed(YES)
    eager = capsys.readouterr()
    hf.compile(printed)(YES)
    hf.synchronize()
    assert capsys.readouterr() == eager
    with pytest.raises(ValueError, match="n is <int of each call> or <int of each call>"):
        hf.compile(raises)(YES).item()


def test_sums_are_those_of_the_running_python():
    def f(k: Any, s: float) -> Any:
        n = 0.1
        while k > 0:
            n, k = n * 0.3, k - 1
        sums = sum([n, 1e16, 0.3, -1e16, 3]), sum([s, 1e16, 0.1, -1e16], s), sum([s, n, 1e9, 0.7]), sum([1, 2, n, 4])
        return [hf.asarray(one, dtype=hf.float64) for one in sums]

    for s in (0.7, 1.1):
        eager, compiled = f(hf.asarray(3), s), hf.compile(f)(hf.asarray(3), s)
        assert [one.item() for one in eager] == [one.item() for one in compiled]


def main(part: int, parts: int) -> None:
    """Run every use (or a part of them), and count how they went."""
    found: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    every = draw(len(CASES), 0)[part::parts]
    for way, use in every:
        try:
            with without_xla():
                how = judge(way, use)
        except Exception as error:
            how = "DIFFERENT"
            failed.setdefault(use, []).append(way)
            print(f"--- {way}: {use}\n{type(error).__name__}: {error}"[:700], flush=True)
        found[how] = found.get(how, 0) + 1
    print(found, f"{len(every)} uses")
    for use, ways in sorted(failed.items()):
        print(f"{use:50s} {', '.join(ways)}")


if __name__ == "__main__":
    part, parts = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (0, 1)
    main(part, parts)
