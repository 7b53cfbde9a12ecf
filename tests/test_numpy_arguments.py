"""NumPy's arrays among the arguments: a compiled function does what the array does eagerly, or says that it cannot."""

from __future__ import annotations

import copy
import functools
import io
import numbers
import operator
import warnings
from collections import abc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import DTypeError, HybridflowError, MutationError
from hybridflow.core.staged_number import tried

DTYPES = "bool int8 int32 int64 uint8 uint64 float16 float32 float64 complex64"
OPERATORS = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "eq",
    "ne", "lt", "le", "gt", "ge",
]
REFUSALS = HybridflowError, TypeError, ValueError, AttributeError, IndexError, OverflowError


def example(dtype: Any, shape: tuple[int, ...] = (3, 3)) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 5, shape) if np.dtype(dtype).kind in "iub" else rng.normal(size=shape)
    return np.asarray(numbers).astype(dtype)


def leaves_of(result: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result)]


def same_or_refused(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether a compiled function gives what it gives eagerly, dtypes included; False if it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = leaves_of(hf.compile(fn)(*copy.deepcopy(args)))
        except REFUSALS:
            return False
        eager = leaves_of(fn(*copy.deepcopy(args)))
    assert len(eager) == len(compiled)
    for one, other in zip(eager, compiled, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        accuracy = 1e-2 if one.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(other, one, rtol=accuracy, atol=accuracy)
    return True


# -- everything that arrays have ----------------------------------------------------------------------------------


_COMPILED = (np.dtype("float32"),)


def sweep(ways: dict[str, Callable[[Any], Any]], array: Any) -> set[str]:
    """Compile those of many uses of an array that can be compiled, compare them, and return their names."""

    def compilable(x: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, use in ways.items():
            try:
                with tried():
                    found[name] = use(x)
            except REFUSALS:
                continue
        return found

    compiled = hf.compile(compilable, autograph=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = None
        if array.dtype in _COMPILED:
            values = compiled(array.copy())
            found = {name: leaves_of(value) for name, value in values.items()}
        else:  # dtypes and shapes tell, and take a tenth of the time
            traced = io.StringIO()  # to trace for a graph alone undoes what is written to a list

            def noted(x: Any) -> Any:
                made = compilable(x)
                traced.write("\n".join(sorted(made)))
                return made

            specs = hf.compile(noted, autograph=False).graph(array.copy()).output_specs
            found = {name: [spec] for name, spec in zip(traced.getvalue().splitlines(), specs, strict=True)}
        for name, results in found.items():
            for one, other in zip(leaves_of(ways[name](array.copy())), results, strict=True):
                assert (name, one.dtype, one.shape) == (name, other.dtype, other.shape)
                if values is not None:
                    np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5, err_msg=name)
    return set(found)


def applied(run: Callable[[Any, Any], Any], other: Any, x: Any) -> Any:
    return run(x, other)


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_operators_do_the_same_or_say_that_they_cannot(dtype: str) -> None:
    others = [2, 2.5, True, np.float64(1.5), np.int8(1), example("int32"), example("float32"), example(dtype)]
    ways: dict[str, Callable[[Any], Any]] = {}
    for name in OPERATORS:
        for index, other in enumerate(others):
            run = getattr(operator, name)
            ways[f"{name} left {index}"] = functools.partial(applied, run, other)
            ways[f"{name} right {index}"] = functools.partial(run, other)
    assert {"eq left 7", "ne right 7"} <= sweep(ways, example(dtype))


def asked(name: str) -> Callable[[Any], Any]:
    def use(x: Any) -> Any:
        found = getattr(x, name)
        result = found() if callable(found) else found
        return hf.asarray(result) if isinstance(result, int | tuple) else result

    return use


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64", "complex64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_whatever_an_array_has_is_the_same_or_refused(dtype: str, shape: tuple[int, ...]) -> None:
    known = {"dtype", "dump", "tofile", "reshape"}
    names = [name for name in dir(np.ndarray) if not name.startswith("__") and name not in known]
    assert {"shape", "T", "copy", "ravel"} <= sweep({name: asked(name) for name in names}, example(dtype, shape))


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float16", "float32", "float64"])
def test_numpys_functions_do_the_same_or_say_that_they_cannot(dtype: str) -> None:
    ufuncs = {name: one for name in dir(np) if isinstance(one := getattr(np, name), np.ufunc)}
    ways = {name: (lambda x, one=one: one(*[x] * one.nin)) for name, one in ufuncs.items()}
    for name in ("sum", "mean", "ravel", "concat", "sort", "clip"):
        ways[f"np.{name}"] = functools.partial(getattr(np, name))
    array = np.asarray(np.abs(example(dtype)) + np.asarray(1, dtype), dtype)
    assert {"equal", "np.ravel"} <= sweep(ways, array)


# -- where a difference was silent ---------------------------------------------------------------------------------

DIFFERS: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("int / int", lambda x: x / 2, np.array([1, 3], np.int32)),
    ("int * float", lambda x: x * 1.5, np.array([1, 3], np.int32)),
    ("int > float", lambda x: x > 0.5, np.array([1, 3], np.int32)),
    ("uint8 / 255.0", lambda x: x / 255.0, np.array([1, 3], np.uint8)),
    ("sum", lambda x: x.sum(), np.array([1, 3], np.int32)),
    ("mean", lambda x: x.mean(), np.array([1, 3], np.int32)),
    ("argmax", lambda x: x.argmax(), np.array([1, 3], np.float32)),
    ("np.exp", lambda x: np.exp(x), np.array([1, 3], np.int32)),
    ("scalar", lambda x: x / 2, np.int32(3)),
    ("in a dict", lambda d: d["k"][0] / 2, {"k": [np.int64(3)]}),
    ("to int", lambda x: x.astype(np.int32), np.array([np.nan], np.float32)),
    ("float //", lambda x: x // 1, np.array([np.inf], np.float32)),
    ("int ** negative", lambda x: x ** np.int32(-1), np.array([2], np.int32)),
    ("root of -inf", lambda x: x**0.5, np.array([-np.inf], np.float32)),
    ("a list beside it", lambda x: x * [1, 2], np.array([1, 3], np.float32)),
    ("compared with None", lambda x: x == None, np.array([1, 3], np.float32)),  # noqa: E711
    ("sorted", lambda x: sorted(x)[0] / 2, np.array([3, 1], np.int32)),
    ("sum of some", lambda x: sum(one for one in x if one > 1) / 2, np.array([3, 1], np.int32)),
    ("another library", lambda x: x / 2, jax.numpy.arange(3)),
]


@pytest.mark.parametrize(("what", "fn", "array"), DIFFERS, ids=[one[0] for one in DIFFERS])
def test_what_numpy_does_otherwise_is_an_error_that_names_the_argument(
    what: str, fn: Callable[[Any], Any], array: Any
) -> None:
    with pytest.raises(DTypeError, match=r"the argument ['\"][xd]") as caught:
        hf.compile(fn, name=what)(array)
    assert "hf.asarray(x)" in str(caught.value)
    tensors = jax.tree_util.tree_map(hf.asarray, array)
    if what not in ("np.exp", "int ** negative", "a list beside it", "compared with None"):
        np.testing.assert_array_equal(leaves_of(hf.compile(fn)(tensors)), leaves_of(fn(tensors)))


def test_asarray_at_the_top_makes_both_modes_the_same() -> None:
    def halved(x: Any) -> Any:
        x = hf.asarray(x)
        return x / 2

    x = np.array([1, 3], np.int32)
    eager, compiled = halved(x), hf.compile(halved)(x)
    assert eager.dtype == compiled.dtype == hf.float32
    assert eager.tolist() == compiled.tolist() == [0.5, 1.5]


def in_place(x: Any) -> Any:
    x += 1
    return x


def set_item(x: Any) -> Any:
    x[0] = 1
    return x


@pytest.mark.parametrize("name", ["ravel", "flatten"])
def test_flat_in_another_order_is_refused(name: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert hf.compile(lambda x: getattr(x, name)("C"))(x).tolist() == [*range(6)]
    with pytest.raises(DTypeError, match="the order 'F' is not traced"):
        hf.compile(lambda x: getattr(x, name)(order="F"))(x)


@pytest.mark.parametrize("fn", [in_place, set_item, lambda x: np.add(x, 1, out=x), lambda x: x.sort()])
def test_what_changes_the_callers_array_is_an_error(fn: Callable[[Any], Any]) -> None:
    x = np.array([3.0, 1.0], np.float32)
    with pytest.raises((MutationError, DTypeError)):
        hf.compile(fn)(x)
    assert x.tolist() == [3.0, 1.0]


def test_a_scalar_is_no_array_that_could_change() -> None:
    assert hf.compile(in_place)(np.float32(1)).item() == 2.0


# -- what an array is ----------------------------------------------------------------------------------------------


KINDS = [np.ones(2, np.float32), np.array(1.0), np.float32(1), np.float64(1), np.int8(1)]


@pytest.mark.parametrize("array", KINDS, ids=repr)
def test_its_type_is_the_arrays(array: Any) -> None:
    def asked(x: Any) -> Any:
        kinds = np.ndarray, np.generic, np.floating, float, int, hf.Tensor
        return [isinstance(x, kind) for kind in kinds], type(x) is type(array), hasattr(x, "at"), type(x + x) is type(x)

    assert same_or_refused(asked, array)


def test_a_trace_of_an_array_is_none_of_a_tensor() -> None:
    f = hf.compile(lambda x: hf.asarray(isinstance(x, np.ndarray)))
    x = np.ones(2, np.float32)
    assert [bool(f(one)) for one in (x, hf.asarray(x), x, hf.asarray(x))] == [True, False, True, False]
    assert f.trace_count == 2


def test_a_tensor_among_the_operands_makes_a_tensor() -> None:
    w = hf.Variable([1.0, 2.0])
    x = np.array([1, 3], np.int32)
    for fn in (lambda x: x * w / 2, lambda x: w * x / 2, lambda x: x @ w / 2, lambda x: hf.exp(x) / 2, lambda x: x < w):
        assert same_or_refused(fn, x)


def test_functions_of_hybridflow_take_it_as_they_do_eagerly() -> None:
    x = example("float32")
    assert same_or_refused(lambda x: hf.grad(lambda y: hf.sum(y * y / 2))(x), x)
    assert same_or_refused(lambda x: hf.vmap(lambda row: row / 2)(x), example("int32"))
    assert same_or_refused(lambda x: (hf.stack([x, x]), hf.where(x > 0, x, 0), hf.asarray([x[0, 0], 1.0])), x)
    assert same_or_refused(lambda x: hf.cond(True, lambda y: y / 2, lambda y: y * 1.0, x), example("int32"))
    assert same_or_refused(lambda x: hf.scan(lambda c, row: (c + row / 2, row), hf.zeros((3,)), x), example("int32"))


def test_run_eagerly_gives_the_function_the_array_itself() -> None:
    f = hf.compile(lambda x: x + np.ones(2))
    x = np.ones(2, np.float32)
    with hf.config.run_eagerly():
        eager = f(x)
    assert eager.dtype == f(x).dtype == hf.float64


def test_an_input_signature_says_that_it_is_a_tensor() -> None:
    f = hf.compile(lambda x: x / 2, input_signature=[hf.TensorSpec([None], hf.int32)])
    x = np.array([1, 3], np.int32)
    assert f(x).dtype == hf.float32
    with hf.config.run_eagerly():
        assert f(x).dtype == hf.float32


def test_it_is_printed_and_handed_to_python_as_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(x: Any, one: Any) -> Any:
        print(x, x[0], one, f"{x}")
        return hf.pure_callback(lambda x, one: x * one, hf.TensorSpec((2,), hf.float32), x, one)

    x = np.array([1.0, 3.0], np.float32), np.float32(2)
    shown(*x)
    eager = capsys.readouterr().out
    compiled = hf.compile(shown)
    for _ in range(2):
        assert compiled(*x).tolist() == [2.0, 6.0]
        assert capsys.readouterr().out == eager == "[1. 3.] 1.0 2.0 [1. 3.]\n"


# -- control flow --------------------------------------------------------------------------------------------------


def total_of_rows(x: Any) -> Any:
    total = 0.0
    for number in x[0]:
        total = total + number
    return total / 2


def doubled_until(x: Any) -> Any:
    while x.sum() < 100:
        x = x * 2
    return x


def either(x: Any) -> Any:
    y = x * 2 if x.max() > 1 else x
    return y / 2


def tensor_or_array(x: Any) -> Any:
    y = hf.exp(x) if x.max() > 1 else x
    return y / 2


def tensor_after_a_step(x: Any) -> Any:
    h = x
    for _ in range(hf.asarray(3)):
        h = hf.tanh(h * 2)
    return h + h


def kept_rows(x: Any) -> Any:
    rows = []
    for row in x:
        twice = row + row
        rows.append(twice)
    return rows


LOOPS = [total_of_rows, doubled_until, either, tensor_or_array, tensor_after_a_step, kept_rows]


@pytest.mark.parametrize("fn", LOOPS)
def test_it_stays_an_array_in_branches_and_loops(fn: Callable[[Any], Any]) -> None:
    assert same_or_refused(fn, np.abs(example("float32")) + 1)
    same_or_refused(fn, np.abs(example("int32")) + 1)


def test_a_branch_that_leaves_an_array_or_a_tensor_cannot_be_asked_which() -> None:
    def asked(x: Any) -> Any:
        y = hf.exp(x) if x.max() > 1 else x
        return hf.asarray(isinstance(y, hf.Tensor))

    with pytest.raises(DTypeError, match="in some calls"):
        hf.compile(asked)(example("float32"))


def test_sizes_may_be_open() -> None:
    f = hf.compile(lambda x: (x + x.shape[0], x.reshape(-1).sum() / x.size, x[1:]), dynamic=True)
    for rows in (4, 6, 8):
        x = example("float32", (rows, 3))
        eager = leaves_of((x + rows, x.sum() / x.size, x[1:]))
        for one, other in zip(leaves_of(f(x)), eager, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
            assert one.dtype == other.dtype
    assert f.trace_count <= 2


def test_matrices_are_transposed():
    for shape in ((2, 3), (2, 3, 4)):
        assert same_or_refused(lambda x: (x.mT, x.T, x + x.mT.mT), example("float32", shape))
    compiled = hf.compile(lambda x: x.mT)
    with pytest.raises(ValueError, match="ndim < 2"):
        compiled(example("float32", (3,)))


def test_the_byte_order_of_an_array_is_seen_or_refused() -> None:
    native, swapped = np.array([1, 2], "f4"), np.array([1, 2], ">f4")
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, a: x * a, lambda x, a: x + a[0:1], lambda x, a: x + a.T.sum(),
        lambda x, a: x * (a + 1).dtype.itemsize, lambda x, a: x * hf.asarray(a).dtype.itemsize,
        lambda x, a: x + sum(a), lambda x, a: x * a[0].dtype.itemsize,
    ]
    for function in functions:
        compiled = hf.compile(function)
        for array in (native, swapped):
            np.testing.assert_array_equal(compiled(hf.ones(1), array), function(hf.ones(1), array))
    reads: list[Callable[[Any], Any]] = [lambda a: a.dtype, lambda a: a.T.dtype, lambda a: a.copy()[0:1].dtype]
    for read in reads:
        compiled = hf.compile(lambda x, a, read=read: x * (2 if read(a) == np.dtype("f4") else 3))
        assert compiled(hf.ones(1), native).item() == 2.0
        with pytest.raises(DTypeError, match="argument 'a' is a NumPy array, and a traced array has none"):
            compiled(hf.ones(1), swapped)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "array",
    [np.ones(2), np.ones(()), np.ones(2, "i4"), np.float32(1), np.int32(1), np.bool_(True), jax.numpy.ones(2)],
)
def test_an_array_is_an_instance_of_the_same_classes(array: Any) -> None:
    kinds: list[Any] = [
        abc.Hashable, abc.Sized, abc.Iterable, abc.Container, abc.Sequence, abc.Mapping, abc.Callable, numbers.Number,
        numbers.Integral, np.ndarray, np.generic, np.floating, float, (int, np.ndarray), np.ndarray | int, object,
    ]
    found: list[list[bool]] = []

    def f(x: Any, a: Any) -> Any:
        found.append([isinstance(a, kind) for kind in kinds])
        return x

    f(hf.ones(1), array)
    hf.compile(f)(hf.ones(1), array)
    assert found[0] == found[1]


def said_of(n):
    """Return a number that tells what an argument is taken for."""
    said = (isinstance(n, np.ndarray), isinstance(n, np.generic), isinstance(n, hf.Tensor), isinstance(n, np.floating),
            isinstance(n, float), type(n) is hf.Tensor, hasattr(n, "at"), hasattr(n, "tolist"), n.dtype.kind == "f",
            n.dtype.itemsize == 8)
    return float(sum([2**place * one for place, one in enumerate(said)]))


def of_what(x, n):
    return x * said_of(n)


HANDED_ON = {
    "by position": (of_what, lambda g, x, n: g(x, n)),
    "by name": (lambda x, *, n: of_what(x, n), lambda g, x, n: g(x, n=n)),
    "in a list": (lambda x, several: of_what(x, several[0]), lambda g, x, n: g(x, [n])),
    "in a dict": (lambda x, table: of_what(x, table["k"][0]), lambda g, x, n: g(x, {"k": (n, 1)})),
    "twice": (lambda x, a, b: of_what(x, a) * (a is b), lambda g, x, n: g(x, n, n)),
    "to the third": (lambda x, n: hf.compile(of_what)(x, n), lambda g, x, n: g(x, n)),
    "changed": (of_what, lambda g, x, n: g(x, -n) + g(x, n * n)),
    "made": (of_what, lambda g, x, n: g(x, np.ones(2)) + g(x, n)),
    "by a decorator": (hf.no_grad()(of_what), lambda g, x, n: g(x, n)),
    "to a checkpoint": (hf.checkpoint(of_what), lambda g, x, n: g(x, n)),
    "to a gradient": (hf.grad(of_what), lambda g, x, n: g(x, n)),
    "to rows": (of_what, lambda g, x, n: hf.vmap(g, in_axes=(0, None))(hf.stack([x, x]), n)[0]),
}
HANDED = (np.float32(1.5), np.float64(1.5), np.int32(2), np.array(1.5), np.array([1.5, 2.5], "f"), np.arange(3))


@pytest.mark.parametrize("handed_on", HANDED_ON)
def test_an_array_that_is_handed_on_stays_one(handed_on):
    function, call = HANDED_ON[handed_on]
    inner = hf.compile(function)
    outer = hf.compile(lambda x, n: call(inner, x, n))
    for n in HANDED:
        assert outer(hf.asarray(1.0), n).item() == call(function, hf.asarray(1.0), n).item(), repr(n)


def test_an_array_beside_a_spec_stays_one():
    inner = hf.compile(lambda x, n=None: of_what(x, n), input_signature=[hf.TensorSpec([])])
    outer = hf.compile(lambda x, n: inner(x, n))
    for n in HANDED:
        expected = said_of(n)
        assert (inner(1.0, n).item(), outer(1.0, n).item()) == (expected, expected)
        with hf.config.run_eagerly():
            assert inner(1.0, n).item() == expected
