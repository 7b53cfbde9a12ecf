"""The further distributions of `hf.random`: shape of the distribution, parity, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hybridflow as hf

stats = pytest.importorskip("scipy.stats")
N = 20_000


@pytest.fixture(scope="module")
def generator() -> hf.random.Generator:
    return hf.random.Generator(77)


def equal(a: hf.Tensor, b: hf.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


CONTINUOUS = {
    "exponential": (lambda g: g.exponential((N,), 2.0), stats.expon(scale=2)),
    "laplace": (lambda g: g.laplace((N,), 1.0, 2.0), stats.laplace(1, 2)),
    "gumbel": (lambda g: g.gumbel((N,), -1.0), stats.gumbel_r(-1)),
    "logistic": (lambda g: g.logistic((N,), scale=0.5), stats.logistic(0, 0.5)),
    "cauchy": (lambda g: g.cauchy((N,)), stats.cauchy()),
    "lognormal": (lambda g: g.lognormal((N,), 1.0, 0.5), stats.lognorm(0.5, scale=np.e)),
    "gamma": (lambda g: g.gamma(np.full(N, 3.0, np.float32), scale=2.0), stats.gamma(3, scale=2)),
    "gamma below 1": (lambda g: g.gamma(0.4, (N,), dtype="float64"), stats.gamma(0.4)),
    "beta": (lambda g: g.beta(0.5, 2.0, (N,)), stats.beta(0.5, 2)),
}
COUNTS = {
    "poisson": (lambda g: g.poisson(3.0, (N,)), stats.poisson(3)),
    "poisson above 10": (lambda g: g.poisson(np.full(N, 30.0, np.float32)), stats.poisson(30)),
    "binomial": (lambda g: g.binomial([[20], [1000]], [0.3, 0.02], (N // 4, 2, 2))[:, 0, 0], stats.binom(20, 0.3)),
    "binomial by rejection": (lambda g: g.binomial(300, 0.6, (N,)), stats.binom(300, 0.6)),
    "geometric": (lambda g: g.geometric(0.2, (N,)), stats.geom(0.2)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str, generator: hf.random.Generator):
    draw, expected = CONTINUOUS[name]
    x = draw(generator).numpy().astype(np.float64)
    assert stats.kstest(x, expected.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(x.argsort()[1:], x.argsort()[:-1])[0, 1]) < 5 / np.sqrt(N)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str, generator: hf.random.Generator):
    draw, expected = COUNTS[name]
    x = draw(generator)
    assert x.dtype == hf.int32
    low, high = int(expected.ppf(0.001)), int(expected.ppf(0.999))
    values = np.clip(x.numpy(), low, high)
    found = np.bincount(values, minlength=high + 1)[low:]
    shares = np.asarray([expected.cdf(low), *expected.pmf(np.arange(low + 1, high)), expected.sf(high - 1)])
    assert stats.chisquare(found, shares * x.size).pvalue > 1e-3


@pytest.mark.always
def test_large_counts(generator: hf.random.Generator):
    """float32 has no digits left for the logarithms of factorials of a million."""
    rng = np.random.default_rng(0)
    for x, mean, variance in (
        (generator.poisson(np.full(N, 1e6, np.float32)), 1e6, 1e6),
        (generator.binomial(1_000_000, np.full(N, 0.3, np.float32)), 3e5, 2.1e5),
    ):
        z = (x.numpy() + rng.uniform(-0.5, 0.5, N) - mean) / np.sqrt(variance)
        assert stats.kstest(z, "norm").pvalue > 1e-3


def test_vectors(generator: hf.random.Generator):
    covariance = np.asarray([[2.0, 0.5], [0.5, 1.0]], np.float32)
    x = generator.multivariate_normal([1.0, -2.0], covariance, (N,)).numpy().astype(np.float64)
    np.testing.assert_allclose(x.mean(0), [1, -2], atol=0.06)
    np.testing.assert_allclose(np.cov(x.T), covariance, atol=0.12)
    p = generator.dirichlet([0.01, 1.0, 3.0], (N,)).numpy().astype(np.float64)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(p.mean(0), np.asarray([0.01, 1, 3]) / 4.01, atol=0.01)
    assert stats.kstest(p[:, 1], stats.beta(1, 3.01).cdf).pvalue > 1e-3


def test_choice(generator: hf.random.Generator):
    weights = np.asarray([0.0, 1.0, 0.0, 3.0, 0.0], np.float32)
    x = generator.choice(5, (N,), p=weights).numpy()
    assert set(x.tolist()) == {1, 3}
    assert stats.chisquare(np.bincount(x)[[1, 3]], np.asarray([0.25, 0.75]) * N).pvalue > 1e-3
    plain = generator.choice([5.0, 6.0, 7.0], (N,)).numpy()
    assert stats.chisquare(np.unique(plain, return_counts=True)[1]).pvalue > 1e-3
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    chosen = generator.choice(table, (2, 2), replace=False, axis=1).numpy()
    assert chosen.shape == (3, 2, 2)
    assert len(set(chosen[0].ravel().tolist())) == 4
    np.testing.assert_array_equal(chosen - chosen[:1], np.broadcast_to([[[0]], [[4]], [[8]]], (3, 2, 2)))
    first = [generator.choice(3, (2,), replace=False, p=[0.2, 0.0, 0.8]).tolist() for _ in range(100)]
    assert {tuple(sorted(one)) for one in first} <= {(0, 2)}
    assert 60 < sum(one[0] == 2 for one in first) < 95


def test_shuffle_keeps_slices_whole(generator: hf.random.Generator):
    table = np.arange(30).reshape(10, 3)
    shuffled = generator.shuffle(table).numpy()
    assert sorted(shuffled[:, 0].tolist()) == table[:, 0].tolist()
    np.testing.assert_array_equal(shuffled - shuffled[:, :1], np.broadcast_to([0, 1, 2], (10, 3)))
    assert hf.random.shuffle(table, axis=1).shape == (10, 3)


def test_split_gives_independent_repeatable_streams():
    hf.random.seed(3)
    first = [one.normal((N,)).numpy() for one in hf.random.split(3)]
    hf.random.seed(3)
    assert all(np.array_equal(a, b.normal((N,)).numpy()) for a, b in zip(first, hf.random.split(3), strict=True))
    correlation = np.corrcoef(np.stack([*first, hf.random.normal((N,)).numpy()]))
    assert np.abs(correlation - np.eye(4)).max() < 5 / np.sqrt(N)


PARITY: dict[str, Callable[[], hf.Tensor]] = {
    "standard": lambda: hf.random.gumbel((33,)) + hf.random.laplace((33,), 0.3, 1.7) + hf.random.exponential((33,)),
    "gamma": lambda: hf.random.gamma([0.1, 0.9, 40.0], (11, 3), scale=0.7),
    "dirichlet": lambda: hf.random.dirichlet([0.1, 0.9], (11,)),
    "lognormal": lambda: hf.random.lognormal((33,), 0.1, 0.3),
    "vectors": lambda: hf.random.multivariate_normal([0.1, 0.7], [[2.0, 0.5], [0.5, 1.0]], (11,)),
    "counts": lambda: hf.random.poisson([0.1, 20.0], (9, 2)) + hf.random.geometric([0.3, 0.9], (9, 2)),
    "binomial": lambda: hf.random.binomial([5, 100], 0.3, (9, 2)),
    "choice": lambda: hf.random.choice(5, (33,), p=[0.1, 0.7, 0.3, 0.2, 0.1]),
}


@pytest.mark.parametrize("name", PARITY)
def test_the_same_bits_eager_and_compiled(name: str):
    draw = PARITY[name]
    compiled = hf.compile(lambda: (draw(), hf.random.uniform((2,))))
    hf.random.seed(5)
    eager = draw(), hf.random.uniform((2,))
    hf.random.seed(5)
    for one, two in zip(eager, compiled(), strict=True):
        assert equal(one, two)


def test_gradients_flow_to_location_and_scale():
    location, scale = hf.asarray(0.5), hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch((location, scale))
        mean = hf.mean(hf.random.laplace((N,), location, scale))
    by_location, by_scale = tape.gradient(mean, (location, scale))
    np.testing.assert_allclose(by_location, 1.0, rtol=1e-5)
    np.testing.assert_allclose(by_scale, (mean.item() - 0.5) / 2, atol=1e-3)


def test_implicit_gradients():
    """A concentration moves a draw as it moves the quantile that the draw is."""
    values = np.asarray([0.2, 1.5, 30.0])
    alpha, scale = hf.asarray(values.astype(np.float32)), hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch((alpha, scale))
        x = hf.random.gamma(alpha, scale=scale)
    by_alpha, by_scale = tape.gradient(x, (alpha, scale))
    np.testing.assert_allclose(by_scale, hf.sum(x).item() / 2, rtol=1e-5)
    quantile = stats.gamma(values).cdf(x.numpy() / 2)
    expected = (stats.gamma(values + 1e-4).ppf(quantile) - stats.gamma(values - 1e-4).ppf(quantile)) / 1e-4
    np.testing.assert_allclose(by_alpha, expected, rtol=2e-2)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda g: g.gamma(-1.0), ValueError, "concentration -1.0 must be greater than 0"),
        (lambda g: g.beta(1.0, 0), ValueError, "b 0 must be greater than 0"),
        (lambda g: g.laplace((2,), scale=-1.0), ValueError, "scale -1.0 must be at least 0"),
        (lambda g: g.lognormal(std=-1.0), ValueError, "std -1.0 must be at least 0"),
        (lambda g: g.poisson(-1.0), ValueError, "rate -1.0 must be at least 0"),
        (lambda g: g.geometric(0.0), ValueError, "no probability"),
        (lambda g: g.binomial(3, 1.5), ValueError, "no probability"),
        (lambda g: g.exponential((2,), dtype="int32"), TypeError, "draws floating-point numbers"),
        (lambda g: g.poisson(1.0, dtype="float32"), TypeError, "draws integers"),
        (lambda g: g.choice(3, (4,), replace=False), ValueError, "4 of 3 elements without replacement"),
        (lambda g: g.choice(3, (4,), p=[0.5, 0.5]), ValueError, "3 elements and weights of shape"),
        (lambda g: g.choice(0, (4,)), ValueError, "nothing to choose from"),
        (lambda g: g.dirichlet(1.0), ValueError, "at least one class"),
        (lambda g: g.gamma([1.0, 2.0], (3,)), ValueError, "size 3 against 2"),
        (lambda g: g.multivariate_normal([1.0, 2.0], [[1.0]]), ValueError, "must be square"),
    ],
)
def test_errors_leave_the_state(call: Callable[[hf.random.Generator], object], error: type[Exception], text: str):
    generator = hf.random.Generator(1)
    before = generator.state.numpy().copy()
    with pytest.raises(error, match=text):
        call(generator)
    np.testing.assert_array_equal(generator.state.numpy(), before)


def test_what_is_no_parameter_gives_nan_or_0():
    x = hf.random.gamma([np.nan, -1.0, 0.0, np.inf, 2.0]).numpy()
    assert np.isnan(x).tolist() == [True, True, True, True, False]
    assert hf.random.poisson([np.nan, -1.0, 0.0]).tolist() == [0, 0, 0]


DRAWN = {
    "gamma": lambda a: hf.random.gamma(a, dtype="float64"),
    "beta": lambda a: hf.random.beta(a, 2.0, dtype="float64"),
    "dirichlet": lambda a: hf.random.dirichlet(a, dtype="float64")[0],
}


@pytest.mark.parametrize("mode", [lambda f: f, hf.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", DRAWN)
def test_gradients_of_any_order_and_jvp_of_gamma_draws(name: str, mode: Callable[..., Callable[..., hf.Tensor]]):
    def again(f: Callable[[hf.Tensor], hf.Tensor]) -> Callable[[hf.Tensor], hf.Tensor]:
        def run(x: hf.Tensor) -> hf.Tensor:
            hf.random.seed(3)
            return hf.sum(f(x))

        return run

    x = hf.asarray(np.array([0.3, 1.0, 4.0]))
    draw = DRAWN[name]
    slope = hf.grad(again(draw))(x)
    hf.random.seed(3)
    directional = mode(lambda x: hf.jvp(draw, (x,), (hf.ones_like(x),))[1])(x)
    np.testing.assert_allclose(hf.sum(directional), hf.sum(slope), rtol=1e-9)
    hf.random.seed(3)
    second = mode(hf.grad(lambda x: hf.sum(hf.grad(lambda x: hf.sum(draw(x)))(x))))(x)
    if name == "gamma":  # the derivatives are those of the quantile that was drawn
        hf.random.seed(3)
        share = hf.special.gammainc(x, draw(x))
        quantile = lambda a: hf.sum(hf.special.gammaincinv(a, share))  # noqa: E731
        np.testing.assert_allclose(slope, hf.grad(quantile)(x), rtol=1e-9)
        np.testing.assert_allclose(second, hf.grad(lambda a: hf.sum(hf.grad(quantile)(a)))(x), rtol=1e-7)
    assert np.isfinite(second.numpy()).all()
