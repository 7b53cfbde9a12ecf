"""NumPy's and JAX's numerical functions: quantiles, covariances, interpolation, associative scans; both modes."""

from __future__ import annotations

import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(3, 8))
CUBE = RNG.normal(size=(4, 5, 3))
HOLES = CUBE.copy()
HOLES[0, 1] = HOLES[2, :, 1] = np.nan
SHARES: list[Any] = [0.3, np.array([0.0, 0.25, 1.0]), np.array([[0.1, 0.9], [0.5, 0.77]])]


def same(name: str, *args: Any, **options: Any) -> None:
    """Compare a function with NumPy's, eager and compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(np, name)(*args, **options)

    def run(*args: Any) -> Any:
        return getattr(hf, name)(*args, **options)

    given = [hf.asarray(one) if isinstance(one, np.ndarray) else one for one in args]
    for way in (run, hf.compile(run)):
        found = way(*given)
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_quantiles(name: str, axis: int | None, keepdims: bool) -> None:
    for x, q in zip((CUBE, HOLES, HOLES), SHARES, strict=True):
        same(name, x, q, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "nearest", "midpoint"])
def test_methods_of_quantiles(method: str) -> None:
    for name, x in (("quantile", CUBE), ("nanquantile", HOLES)):
        same(name, x, np.array([0.1, 0.5, 0.33, 1.0]), axis=1, method=method)


def test_quantiles_of_percentages_of_infinities_and_their_gradients() -> None:
    same("percentile", CUBE, 30.0, axis=0)
    assert hf.quantile([-np.inf, np.inf, np.inf], [0.0, 0.8]).tolist() == [-np.inf, np.inf]
    gradient = hf.grad(lambda x: hf.sum(hf.quantile(x, [0.3, 0.6])))(hf.asarray([3.0, 1.0, 2.0, 5.0]))
    np.testing.assert_allclose(gradient.numpy(), [0.8, 0.1, 1.1, 0.0], rtol=1e-5)
    assert np.isnan(hf.compile(lambda q: hf.quantile([1.0, 2.0], q))(hf.asarray(1.5)).item())


def test_covariances() -> None:
    weights, counts = RNG.uniform(1, 2, 8), np.arange(1, 9)
    same("cov", TABLE)
    same("cov", TABLE, TABLE[:2] ** 2)
    same("cov", TABLE.T.copy(), rowvar=False)
    same("cov", TABLE[0], bias=True)
    same("cov", TABLE, ddof=2)
    same("cov", TABLE, fweights=counts, aweights=weights)
    same("cov", TABLE + 1j * TABLE[::-1])
    same("corrcoef", TABLE)
    same("corrcoef", TABLE[0], TABLE[1])
    same("corrcoef", TABLE[0])
    same("corrcoef", TABLE + 1j * TABLE[::-1])


def test_interpolation() -> None:
    points, values = np.array([0.0, 1.0, 1.5, 4.0]), np.array([3.0, -1.0, 2.0, 0.5])
    at = np.array([-1, 0, 0.3, 1.0, 1.2, 3.9, 4.0, 7.0, np.nan])
    same("interp", at, points, values)
    same("interp", at, points, values, left=9.0, right=-9.0)
    same("interp", at[:-1] * 3, points, values, period=5.0)
    same("interp", at, points[:1], values[:1])
    same("interp", at, np.array([0.0, 1.0, 1.0, 2.0]), values)


def test_numbers_for_what_is_none() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf])
    same("nan_to_num", x)
    same("nan_to_num", x, nan=3.0, posinf=1.0, neginf=2.0)
    same("nan_to_num", np.array([1, 2]))
    same("nan_to_num", np.array([complex(np.inf, np.nan), complex(2, -np.inf)]))
    assert hf.grad(lambda x: hf.sum(hf.nan_to_num(x)))(hf.asarray([1.0, np.inf])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_is_that_of_jax(count: int, reverse: bool) -> None:
    x = RNG.uniform(0.5, 1.5, (2, count)).astype(np.float32)

    def line(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    expected = jax.lax.associative_scan(line, (jnp.asarray(x), jnp.asarray(-x)), reverse=reverse, axis=1)

    def run(x: Any) -> Any:
        return hf.associative_scan(line, (x, -x), reverse=reverse, axis=-1)

    for way in (run, hf.compile(run)):
        for a, b in zip(way(hf.asarray(x)), expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5)


def test_scan_in_reverse_or_over_nothing() -> None:
    rows = np.float32(TABLE)

    def step(c: Any, x: Any) -> Any:
        return c * 0.5 + x, c * x

    expected = jax.lax.scan(step, jnp.zeros(8), jnp.asarray(rows), reverse=True)

    def backwards(rows: Any) -> Any:
        return hf.scan(step, hf.zeros(8), rows, reverse=True)

    def cubed(x: Any) -> Any:
        return hf.scan(lambda c, _: (c * c, c), x, length=3)

    for way in (backwards, hf.compile(backwards)):
        for a, b in zip(way(hf.asarray(rows)), expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)
    for way in (cubed, hf.compile(cubed)):
        last, each = way(hf.asarray(2.0))
        assert (last.item(), each.tolist()) == (256.0, [2.0, 4.0, 16.0])
    slopes = [way(hf.grad(lambda x: cubed(x)[0]))(hf.asarray(2.0)).item() for way in (lambda f: f, hf.compile)]
    assert slopes == [1024.0, 1024.0]
    assert hf.scan(lambda c, _: (c, c), hf.asarray(1.0), length=0)[1].shape == (0,)


def test_updates_that_divide_and_apply() -> None:
    x = hf.asarray([1.0, 2.0, 3.0, 4.0])
    assert x.at[[0, 0, 1]].divide(2.0).tolist() == [0.25, 1.0, 3.0, 4.0]
    assert x.at[1:3].get().tolist() == [2.0, 3.0]
    assert x.at[1:].apply(hf.square).tolist() == [1.0, 4.0, 9.0, 16.0]
    assert hf.grad(lambda x: hf.sum(x.at[[0, 0]].divide(2.0)))(x).tolist() == [0.25, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2"])
def test_transforms_over_two_axes(name: str) -> None:
    for options in ({}, {"axes": (0, 1), "s": (3, 2), "norm": "ortho"}):
        found = getattr(hf.fft, name)(CUBE, **options)
        np.testing.assert_allclose(found.numpy(), getattr(np.fft, name)(CUBE, **options), rtol=1e-10)
    np.testing.assert_allclose(hf.fft.irfft2(hf.fft.rfft2(CUBE), s=(5, 3)).numpy(), CUBE, rtol=1e-10)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: hf.quantile([1.0], 1.5), r"quantile: q has numbers outside of 0 and 1(.|\n)*percentile takes 0 to 100"),
    (lambda: hf.percentile([1.0], -1), "percentile: q has numbers outside of 0 and 100"),
    (lambda: hf.quantile(hf.zeros(0), 0.5), "quantile: axis 0 has size 0"),
    (lambda: hf.quantile([1.0], 0.5, method=cast(Any, "x")), "method='x' is none of"),
    (lambda: hf.cov(hf.zeros((1, 1, 2))), "cov: 3 dimensions"),
    (lambda: hf.cov([1.0, 2.0], [1.0, 2.0, 3.0]), "cov: 2 and 3 observations differ"),
    (lambda: hf.cov([1.0, 2.0], aweights=[1.0]), r"cov: weights of shape \(1,\) for 2 observations"),
    (lambda: hf.interp([1.0], [1.0], [1.0, 2.0]), "interp: the table must be two rows of one size"),
    (lambda: hf.associative_scan(lambda a, b: a[:1], hf.zeros((4, 2))), "associative_scan: the function returns f32"),
    (lambda: hf.associative_scan(lambda a, b: (a, b), hf.zeros((4, 2))), "its arguments are"),
    (lambda: hf.associative_scan(lambda a, b: a, []), "associative_scan: there is nothing to combine"),
    (lambda: hf.associative_scan(lambda a, b: a, [hf.zeros(2), hf.zeros(3)]), "sizes along axis 0 differ"),
    (lambda: hf.scan(lambda c, _: (c, c), 0.0, length=-1), "scan: length=-1 is no number of steps"),
    (lambda: hf.scan(lambda c, _: (c, c), 0.0, hf.zeros(2), length=3), "scan: length=3, but xs has 2 rows"),
    (lambda: hf.scan(lambda c, _: (c, c), 0.0), r"there is nothing to run over(.|\n)*or length="),
    (lambda: hf.asarray([1, 2]).at[0].divide(2), "does not take int32"),
])
def test_errors(call: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        call()
