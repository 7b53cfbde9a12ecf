"""Numbers at the ends of dtypes, shapes with nothing in them, axes from the end: eager, compiled and NumPy agree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.testing.calls import difference

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
NUMPY = {"permute_dims": "transpose", "concat": "concatenate", "bitwise_invert": "invert"}


def agree(fn: Callable[[Any], list[Any]], x: np.ndarray[Any, Any], expected: list[Any]) -> None:
    """Compare a list of results, eager and from one compilation, with NumPy's, to the bit but for the dtype."""
    found = fn(hf.asarray(x))
    assert len(found) == len(expected)
    for number, (a, b, y) in enumerate(zip(found, hf.compile(fn)(x), expected, strict=True)):
        text = difference(b.numpy(), a.numpy(), 0)
        assert text is None, f"compiled result {number} of {x.dtype}{x.shape}: {text}"
        with np.errstate(all="ignore"):
            text = difference(a.numpy(), np.asarray(y).astype(a.dtype), 0)
        assert text is None, f"result {number} of {x.dtype}{x.shape}: {text}"


def numpy_of(name: str) -> Any:
    return getattr(np, NUMPY.get(name, name))


EXACT = ["abs", "negative", "square", "sign", "floor", "ceil", "round", "trunc"]
TRUTH = ["isnan", "isinf", "isfinite", "logical_not"]


def pointwise(names: list[str]) -> Callable[[Any], list[Any]]:
    return lambda x: [getattr(hf, name)(x) for name in names]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_at_the_ends_of_their_range(dtype: str):
    info = np.iinfo(dtype)
    names = [*EXACT, *TRUTH, "bitwise_invert"]
    for x in (np.array([info.min, info.max, 0, 1, info.max - 1], dtype), np.array(info.min, dtype), np.zeros(0, dtype)):
        with np.errstate(all="ignore"):
            expected = [numpy_of(name)(x) for name in names]
        agree(pointwise(names), x, expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_pairs_of_integers_at_the_ends(dtype: str):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 1, 7], dtype)
    y = np.array([[info.min], [info.max], [1], [3]], dtype)
    names = ["add", "subtract", "multiply", "maximum", "minimum", "less", "equal", "bitwise_xor"]
    safe = np.where(y == 0, np.ones_like(y), y)
    bits = np.array([[0], [1], [3], [7]], dtype)
    with np.errstate(all="ignore"):
        expected = [numpy_of(name)(x, y) for name in names] + [x // safe, x % safe, x << bits, x >> bits]
    agree(
        lambda x: [getattr(hf, name)(x, y) for name in names] + [x // safe, x % safe, x << bits, x >> bits], x, expected
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_at_the_ends_of_their_range(dtype: str):
    info = np.finfo(dtype)
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, info.max, info.min, info.tiny, 0.5, -2.5], dtype)
    names = [*EXACT, *TRUTH, "sqrt", "signbit"]
    for part in (x, x[2], x[:0].reshape(0, 3)):
        with np.errstate(all="ignore"):
            expected = [numpy_of(name)(part) for name in names]
        agree(pointwise(names), np.asarray(part), expected)


AXIS = {
    "sum": "sum", "prod": "prod", "any": "any", "all": "all", "flip": "flip", "sort": "sort", "diff": "diff",
    "cumulative_sum": "cumsum", "cumulative_prod": "cumprod", "count_nonzero": "count_nonzero", "max": "max",
    "min": "min", "argmax": "argmax", "argmin": "argmin", "expand_dims": "expand_dims",
}
"""Functions of an axis, and what NumPy calls them."""
NEED_ONE = ("max", "min", "argmax", "argmin")


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1), (3, 0, 2), (0, 1, 3)], ids=str)
def test_axes_from_either_end(shape: tuple[int, ...]):
    x = np.random.default_rng(5).integers(-4, 5, shape).astype(np.int32)
    chosen = [(name, axis) for name in AXIS for axis in range(-3, 3) if shape[axis] or name not in NEED_ONE]
    expected = [getattr(np, AXIS[name])(x, axis=axis) for name, axis in chosen]
    agree(lambda x: [getattr(hf, name)(x, axis=axis) for name, axis in chosen], x, expected)


OF_AXES = [
    "sum", "prod", "mean", "max", "min", "any", "all", "var", "std", "flip", "count_nonzero", "expand_dims", "squeeze",
    "logsumexp",
]


@pytest.mark.parametrize("name", OF_AXES)
def test_an_axis_named_twice_or_out_of_range_is_an_error_in_both_modes(name: str):
    x = hf.zeros((1, 1, 1))
    for run in (getattr(hf, name), hf.compile(getattr(hf, name))):
        with pytest.raises(ValueError, match="names an axis twice"):
            run(x, axis=(0, 0))
        with pytest.raises(ValueError, match="axis 9 is out of range"):
            run(x, axis=9)


def test_a_huge_broadcast_of_nothing():
    x = np.zeros((0, 1), np.float32)
    y = hf.broadcast_to(x, (0, 2**40))
    assert y.shape == (0, 2**40)
    assert hf.sum(y).item() == 0.0
    assert hf.compile(lambda x: hf.broadcast_to(x, (0, 2**31 - 1)) + 1.0)(x).shape == (0, 2**31 - 1)


@pytest.mark.parametrize("function", [hf.maximum, hf.minimum])
@pytest.mark.parametrize("number", [0.0, -0.0, 2.0, -2.0, np.nan])
def test_zeros_keep_their_sign_beside_a_number(function: Any, number: float) -> None:
    x = np.array([0.0, -0.0, 3.0, -3.0, np.nan, np.inf, -np.inf], np.float32)
    eager = function(x, np.float32(number)).numpy()
    compiled = hf.compile(lambda x: function(x, np.float32(number)))(x).numpy()
    np.testing.assert_array_equal(eager, compiled)
    found, expected = (np.signbit(np.where(np.isnan(y), 0, y)) for y in (eager, compiled))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("k", [-9, -1, 0, 2, 9])
def test_triangles_have_the_elements_of_numpy(dtype: str, k: int) -> None:
    x = np.random.default_rng(1).integers(-3, 4, (2, 3, 4)).astype(dtype)
    if x.dtype.kind in "fc":
        x[0, 1, :3] = np.nan, np.inf, -0.0
    for one in (x, x.swapaxes(-1, -2), x[..., ::-1], x[:, :0]):
        for ours, theirs in ((hf.tril, np.tril), (hf.triu, np.triu)):
            found = ours(one, k=k).numpy()
            assert found.dtype == one.dtype
            assert found.tobytes() == theirs(one, k).tobytes()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_pool_of_zeros_of_both_signs_takes_the_positive_one(channels_last: bool, padding: int) -> None:
    x = np.random.default_rng(3).choice(
        np.array([0.0, -0.0, -1.0, np.nan], np.float32), (2, 6, 6, 6), p=[0.2, 0.6, 0.15, 0.05]
    )
    pool = partial(hf.nn.max_pool, window=2, padding=padding, channels_last=channels_last)
    agree(lambda x: [pool(x)], x, [pool(hf.asarray(x.astype(np.float64)))])
    at = (0, slice(0, 2), slice(0, 2), 0) if channels_last else (0, 0, slice(0, 2), slice(0, 2))
    for zeros in ([[-0.0, 0.0], [-0.0, -0.0]], [[0.0, -0.0], [-0.0, -1.0]], [[-0.0, -1.0], [-0.0, 0.0]]):
        window = np.full((1, 2, 2, 1) if channels_last else (1, 1, 2, 2), -1.0, np.float32)
        window[at] = zeros
        assert not np.signbit(pool(hf.asarray(window), padding=0).numpy()).any()


OVERFLOWING = [(300, "uint8"), (-1, "uint8"), (128, "int8"), (-129, "int8"), (2**31, "int32"), (-1, "uint64")]


@pytest.mark.parametrize(("number", "dtype"), OVERFLOWING)
def test_a_number_that_does_not_fit_is_an_error_in_both_modes(number: int, dtype: str) -> None:
    def fn(x: Any) -> Any:
        return x + hf.asarray(number, dtype=dtype)

    for run in (fn, hf.compile(fn)):
        with pytest.raises(OverflowError):
            run(hf.zeros((2,), dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_times_a_float_are_float32(dtype: str) -> None:
    def fn(x: Any) -> Any:
        return x * 2.0, 2.0 * x, x + 0.5

    for run in (fn, hf.compile(fn)):
        for found, expected in zip(run(hf.asarray([1, 3], dtype=dtype)), ([2, 6], [2, 6], [1.5, 3.5]), strict=True):
            assert found.dtype == hf.float32
            assert found.tolist() == expected


# -- draws ---------------------------------------------------------------------------------------------------------

ENDS = [0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-30, 1e-3, 10.0, 1e5, 3e9, 1e30, 3.4028235e38, -3.4028235e38]
SHARES = [0.0, 1.0, 0.5, np.nan, 1.5, -0.5, 1e-30, 0.99999994, np.inf]
DRAWS: dict[str, tuple[Callable[..., Any], list[float], list[float]]] = {
    "normal": (lambda a, b: hf.random.normal((4,), mean=a, std=b), ENDS, ENDS),
    "lognormal": (lambda a, b: hf.random.lognormal((4,), a, b), ENDS, ENDS),
    "gamma": (lambda a, b: hf.random.gamma(a, (4,), b), ENDS, [1.0, 0.0, np.nan, 1e38]),
    "beta": (lambda a, b: hf.random.beta(a, b, (4,)), ENDS, ENDS),
    "dirichlet": (lambda a, b: hf.random.dirichlet(hf.stack([a, b, a])), ENDS, ENDS),
    "categorical": (lambda a, b: hf.random.categorical(hf.stack([a, b, a]), (4,)), ENDS, ENDS),
    "poisson": (lambda a, b: hf.random.poisson(a * b, (4,)), ENDS, [1.0]),
    "binomial": (lambda a, b: hf.random.binomial(a, b, (4,)), ENDS, SHARES),
    "geometric": (lambda a, b: hf.random.geometric(a * b, (4,)), SHARES, [1.0]),
    "choice": (lambda a, b: hf.random.choice(3, (4,), p=hf.stack([a, b, a])), SHARES, SHARES),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_at_the_ends_of_their_parameters_are_the_same_in_both_modes(name: str) -> None:
    draw, first, second = DRAWS[name]
    compiled = hf.compile(draw)
    tiny = np.finfo(np.float32).tiny
    for a in first:
        for b in second:
            found: list[Any] = []
            for run in (draw, compiled):
                hf.random.seed(1)
                try:
                    y = run(hf.asarray(np.float32(a)), hf.asarray(np.float32(b))).numpy()
                except hf.HybridflowError as error:
                    found.append(type(error))
                    continue
                found.append(np.where(np.abs(y) < tiny, 0, y) if y.dtype == np.float32 else y)
            assert found[0] is found[1] or isinstance(found[0], np.ndarray), (a, b, found)
            np.testing.assert_array_equal(found[1], found[0], err_msg=f"{name}({a}, {b})")


# -- low precision -------------------------------------------------------------------------------------------------

LOW = {"float16": [6e4, 11.0, 300.0, 6.2e-5], "bfloat16": [3e38, 88.0, 1e20, 1e-20]}
OF_ONE = [
    "sqrt", "rsqrt", "exp", "log", "log1p", "asin", "acosh", "atanh", "tanh", "erf", "sigmoid", "nn.silu", "nn.gelu",
    "nn.softplus", "nn.mish", "nn.softsign",
]


@pytest.mark.parametrize("dtype", LOW)
def test_derivatives_of_special_values_in_low_precision(dtype: str) -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, *LOW[dtype], *[-one for one in LOW[dtype]]]
    x = hf.asarray(np.array(numbers, np.float32)).astype(dtype)
    def orders(x: Any) -> list[Any]:
        found: list[Any] = []
        for name in OF_ONE:
            function = functools.reduce(getattr, name.split("."), hf)
            slope = hf.grad(lambda x, function=function: hf.sum(function(x)))
            found += [function(x), slope(x), hf.grad(lambda x, slope=slope: hf.sum(slope(x)))(x)]
        return found

    for number, (one, other) in enumerate(zip(orders(x), hf.compile(orders)(x), strict=True)):
        name, order = OF_ONE[number // 3], number % 3
        a, b = (y.astype(hf.float32).numpy() for y in (one, other))
        least = float(np.finfo(np.float16).tiny) if dtype == "float16" else 1e-36
        np.testing.assert_allclose(b, a, rtol=0.05, atol=least, err_msg=f"derivative {order} of {name}")



@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("other", ["float32", "complex64"])
@pytest.mark.parametrize("product", [
    lambda b, x, dtype: b.astype(dtype) * x, lambda b, x, dtype: hf.sum(x * b.astype(dtype)),
    lambda b, x, dtype: (x == x).astype(dtype) * x,
    lambda b, x, dtype: hf.where(b, hf.ones((), dtype=dtype), hf.zeros((), dtype=dtype)) * x,
])
def test_nan_and_infinity_times_a_bool(dtype: str, other: str, product: Any) -> None:
    b = hf.asarray([True, False, True, False])
    x = hf.asarray([np.inf, np.inf, np.nan, np.nan]).astype(other)
    eager, compiled = np.asarray(product(b, x, dtype)), np.asarray(hf.compile(product)(b, x, dtype))
    np.testing.assert_array_equal(np.isnan(eager.real), np.isnan(compiled.real))
    np.testing.assert_array_equal(np.isnan(eager.imag), np.isnan(compiled.imag))


SIGNS: dict[str, Callable[[Any], Any]] = {
    "x + 0.0": lambda v: v + 0.0, "0.0 + x": lambda v: 0.0 + v, "x + 0": lambda v: v + 0, "x - 0.0": lambda v: v - 0.0,
    "x + -0.0": lambda v: v + -0.0, "x - -0.0": lambda v: v - (-0.0), "x - a": lambda v: v - hf.asarray(-0.0),
    "0.0 - x": lambda v: 0.0 - v, "x + zeros": lambda v: v + hf.zeros_like(v), "x * 1": lambda v: v * 1.0,
    "x * -1": lambda v: v * -1.0, "x / 1": lambda v: v / 1.0, "-(0 - x)": lambda v: -(0.0 - v),
    "x + x": lambda v: v + v, "where": lambda v: hf.where(v == 0, v, v + 0.0),
    "sum": lambda v: hf.sum(hf.expand_dims(v, 0), axis=0), "mean": lambda v: hf.mean(hf.expand_dims(v, 0), axis=0),
    "maximum": lambda v: hf.maximum(v, -0.0),
}


@pytest.mark.parametrize("name", SIGNS)
def test_zeros_keep_their_sign_in_every_way_to_run(name: str) -> None:
    f = SIGNS[name]
    x = hf.asarray([-0.0, 2.0, 0.0])
    with np.errstate(divide="ignore"):
        expected = [1 / f(row).numpy() for row in x]
    rows = lambda v: hf.scan(lambda c, row: (c, f(row)), hf.asarray(0.0), v)[1]  # noqa: E731
    for run in (f, hf.compile(f), hf.compile(rows), hf.vmap(f), hf.compile(hf.vmap(f))):
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(1 / run(x).numpy(), expected)
