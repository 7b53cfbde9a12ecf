"""Random numbers: streams, their parity with compiled code, distributions, gradients, errors."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.ops.threefry import threefry

DRAWS: dict[str, Callable[[], hf.Tensor]] = {
    "normal": lambda: hf.random.normal((33,)),
    "normal scaled": lambda: hf.random.normal((33,), mean=3.0, std=0.1),
    "normal float64": lambda: hf.random.normal((33,), "float64"),
    "normal bfloat16": lambda: hf.random.normal((33,), "bfloat16"),
    "uniform": lambda: hf.random.uniform((33,)),
    "uniform scaled": lambda: hf.random.uniform((33,), -0.3, 1.7),
    "uniform float64": lambda: hf.random.uniform((33,), -0.3, 1.7, "float64"),
    "truncated_normal": lambda: hf.random.truncated_normal((33,), mean=1.0, std=0.2),
    "integers": lambda: hf.random.integers(-3, 12, (33,)),
    "integers int64": lambda: hf.random.integers(-(2**40), 2**40, (33,), "int64"),
    "bernoulli": lambda: hf.random.bernoulli(0.3, (33,)),
    "categorical": lambda: hf.random.categorical([0.1, 0.7, -1.0], (33,)),
    "permutation": lambda: hf.random.permutation(33),
    "dropout": lambda: hf.nn.dropout(np.ones(33, np.float32), 0.4),
}


def equal(a: hf.Tensor, b: hf.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


# -- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_has_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    words = [np.uint32(word) for word in (*key, *counter)]
    found = jax.jit(lambda a, b, c, d: threefry((a, b), (c, d)))(*words)
    assert tuple(map(int, found)) == expected


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_the_run_eager_and_compiled(name: str) -> None:
    draw = DRAWS[name]
    compiled = hf.compile(lambda: draw())
    hf.random.seed(5)
    eager = [draw(), draw(), draw()]
    hf.random.seed(5)
    assert all(equal(one, compiled()) for one in eager)
    hf.random.seed(5)
    mixed = [draw(), compiled(), draw()]
    assert all(equal(one, two) for one, two in zip(eager, mixed, strict=True))
    assert not equal(eager[0], eager[1])
    assert not equal(eager[1], eager[2])


def test_draws_do_not_depend_on_what_they_are_compiled_with() -> None:
    weights = np.ones((1000, 3), np.float32)

    def with_much_else() -> tuple[hf.Tensor, ...]:
        noise = hf.random.normal((1000,))
        return noise, noise * 2 + 1, hf.tanh(noise) * noise, noise @ weights, hf.sum(noise)

    hf.random.seed(1)
    alone = hf.random.normal((1000,))
    hf.random.seed(1)
    assert equal(hf.compile(with_much_else)()[0], alone)


def test_bits_do_not_depend_on_64_bit_mode() -> None:
    from hybridflow.ops import discrete_draws, draws

    state = np.asarray([1, 2, 3, 4], np.uint32)
    for lower in (
        lambda s: draws.random_normal.op.lower(s, shape=(65,), dtype=np.dtype("float32")),
        lambda s: discrete_draws.random_integers.op.lower(
            s, np.uint32(3), np.uint32(1000), shape=(65,), dtype=np.dtype("int32")
        ),
        lambda s: discrete_draws.random_permutation.op.lower(s, shape=(65,), dtype=np.dtype("int32")),
    ):
        with jax.enable_x64(True):
            wide = np.asarray(jax.jit(lower)(state))
        with jax.enable_x64(False):
            narrow = np.asarray(jax.jit(lower)(state))
        assert wide.dtype == narrow.dtype
        assert wide.tobytes() == narrow.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("low", "high"), [(-0.3, 1.7), (2.1, 7.3), (-5.9, -1.1)])
def test_scaled_draws_round_twice_in_both_modes(dtype: str, low: float, high: float) -> None:
    def run() -> tuple[hf.Tensor, ...]:
        return (
            hf.random.uniform((1003,), low, high, dtype),
            hf.random.normal((1003,), dtype, low, high - low),
            hf.random.truncated_normal((1003,), low, high, dtype, low, high - low),
        )

    hf.random.seed(1)
    eager = run()
    hf.random.seed(1)
    for one, two in zip(eager, hf.compile(run)(), strict=True):
        assert equal(one, two)


def test_generators_are_independent_and_repeatable() -> None:
    first, again, other = hf.random.Generator(3), hf.random.Generator(3), hf.random.Generator(4)
    a = first.normal((8,))
    assert equal(a, again.normal((8,)))
    assert not equal(a, other.normal((8,)))
    children = first.spawn(3)
    draws = [child.uniform((8,)) for child in children]
    assert not equal(draws[0], draws[1])
    assert not equal(draws[1], draws[2])
    assert equal(draws[2], again.spawn(3)[2].uniform((8,)))


def test_unseeded_generators_differ() -> None:
    assert not equal(hf.random.Generator().uniform((8,)), hf.random.Generator().uniform((8,)))


def test_the_state_can_be_saved_and_restored() -> None:
    generator = hf.random.Generator(1)
    generator.normal((3,))
    saved = generator.state.numpy()
    expected = generator.normal((3,))
    generator.state = saved
    assert equal(generator.normal((3,)), expected)
    generator.state = saved
    for other in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert equal(other.normal((3,)), expected)


def test_the_counter_carries() -> None:
    generator = hf.random.Generator(1)
    start = generator.state.numpy().copy()
    start[2] = 2**32 - 1
    generator.state = start
    generator.uniform((1,))
    assert generator.state.numpy()[2:].tolist() == [0, 1]


def test_a_failed_draw_leaves_the_state() -> None:
    generator = hf.random.Generator(1)
    before = generator.state.numpy().tolist()
    with pytest.raises(ValueError, match="size 3 against 2"):
        generator.bernoulli(np.asarray([0.5, 0.5], np.float32), (3,))
    with pytest.raises(TypeError, match="draws floating-point numbers"):
        generator.normal((3,), "int32")
    assert generator.state.numpy().tolist() == before


def test_a_failed_compiled_call_leaves_the_state() -> None:
    generator = hf.random.Generator(1)

    @hf.compile
    def step(ids: hf.Tensor) -> hf.Tensor:
        return generator.normal((3,)) + hf.sum(hf.nn.one_hot(ids, 3))

    step([0, 1])
    before = generator.state.numpy().tolist()
    with pytest.raises(IndexError, match="label"):
        step([0, 3]).numpy()
    assert generator.state.numpy().tolist() == before


def test_threads_never_share_a_draw() -> None:
    generator = hf.random.Generator(1)
    found: list[bytes] = []

    def run() -> None:
        found.extend([generator.uniform((4,)).numpy().tobytes() for _ in range(20)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 80


def test_seeding_inside_a_compiled_function() -> None:
    @hf.compile
    def run() -> hf.Tensor:
        hf.random.seed(9)
        return hf.random.uniform((4,))

    first = run()
    assert equal(first, run())
    hf.random.seed(9)
    assert equal(first, hf.random.uniform((4,)))


# -- distributions ------------------------------------------------------------------------------------------------

N = 200_000


@pytest.fixture(scope="module")
def generator() -> hf.random.Generator:
    return hf.random.Generator(2024)


def near(value: float, expected: float, deviation: float) -> None:
    """Assert that a mean of N draws lies within 5 of its standard errors."""
    assert abs(value - expected) < 5 * deviation / np.sqrt(N)


def test_normal_moments_and_quantiles(generator: hf.random.Generator) -> None:
    x = generator.normal((N,), mean=2.0, std=3.0).numpy().astype(np.float64)
    z = (x - 2) / 3
    near(z.mean(), 0, 1)
    near((z**2).mean(), 1, np.sqrt(2))
    near((z**3).mean(), 0, np.sqrt(15))
    near((z**4).mean(), 3, np.sqrt(96))
    for level, share in ((-1.0, 0.158655254), (0.0, 0.5), (2.0, 0.977249868)):
        near((z < level).mean(), share, np.sqrt(share * (1 - share)))
    near((z[1:] * z[:-1]).mean(), 0, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_uniform_stays_inside(generator: hf.random.Generator, dtype: str) -> None:
    x = generator.uniform((N,), dtype=dtype)
    assert x.dtype == hf.asarray(0, dtype=dtype).dtype
    values = x.numpy().astype(np.float64)
    assert values.min() >= 0
    assert values.max() < 1
    half_step = {"float32": 0, "float64": 0, "bfloat16": 2.0**-9, "float16": 2.0**-12}[dtype]
    near(values.mean() + half_step, 0.5, np.sqrt(1 / 12))
    near((values**2).mean() + half_step, 1 / 3, np.sqrt(4 / 45))


def test_uniform_never_returns_its_end(generator: hf.random.Generator) -> None:
    x = generator.uniform((N,), 1.0, float(np.nextafter(np.float32(1), np.float32(2)))).numpy()
    assert set(x.tolist()) == {1.0}
    assert set(generator.uniform((5,), 3.0, 3.0).tolist()) == {3.0}


def test_integers_are_even(generator: hf.random.Generator) -> None:
    counts = np.bincount(generator.integers(0, 7, (N,)).numpy(), minlength=7)
    assert counts.size == 7
    for count in counts:
        near(count / N, 1 / 7, np.sqrt(6 / 49))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-128, 128, "int8"), (0, 2**32, "uint32"), (-(2**63), 2**63, "int64"), (2**63, 2**64, "uint64"), (5, 6, "int32")],
)
def test_integers_reach_their_whole_range(
    generator: hf.random.Generator, low: int, high: int, dtype: str
) -> None:
    x = [int(v) for v in generator.integers(low, high, (2000,), dtype).numpy()]
    assert min(x) >= low
    assert max(x) < high
    assert max(x) - min(x) >= (high - low) * 0.9 - 1


def test_bernoulli_categorical_permutation(generator: hf.random.Generator) -> None:
    near(generator.bernoulli(0.2, (N,)).numpy().mean(), 0.2, 0.4)
    assert generator.bernoulli(1.0, (100,)).numpy().all()
    assert not generator.bernoulli(0.0, (100,)).numpy().any()
    p = np.asarray([0.1, 0.6, 0.3])
    counts = np.bincount(generator.categorical(np.log(p), (N,)).numpy(), minlength=3)
    for count, share in zip(counts, p, strict=True):
        near(count / N, share, np.sqrt(share * (1 - share)))
    assert sorted(generator.permutation(1000).tolist()) == list(range(1000))
    positions = np.asarray([generator.permutation(5).tolist().index(0) for _ in range(300)])
    assert abs(positions.mean() - 2) < 5 * np.sqrt(2 / 300)
    table = np.arange(12).reshape(4, 3)
    shuffled = generator.permutation(table, axis=1).numpy()
    assert sorted(shuffled[0].tolist()) == [0, 1, 2]
    assert (shuffled - shuffled[:1] == np.arange(0, 12, 3)[:, None]).all()


def test_truncated_normal(generator: hf.random.Generator) -> None:
    x = generator.truncated_normal((N,), -1.0, 2.0).numpy().astype(np.float64)
    assert x.min() >= -1
    assert x.max() <= 2
    density = [0.24197072, 0.05399097]
    mass = 0.97724987 - 0.15865525
    near(x.mean(), (density[0] - density[1]) / mass, 1)
    shifted = generator.truncated_normal((1000,), mean=10.0, std=0.5).numpy()
    assert shifted.min() >= 9
    assert shifted.max() <= 11


# -- gradients ----------------------------------------------------------------------------------------------------


def test_gradients_flow_to_the_parameters() -> None:
    mean, std = hf.asarray([1.0, 2.0]), hf.asarray(0.5)
    low, high = hf.asarray(-1.0), hf.asarray([1.0, 3.0])
    generator, again = hf.random.Generator(1), hf.random.Generator(1)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch([mean, std, low, high])
        x = generator.normal((4, 2), mean=mean, std=std)
        u = generator.uniform((2,), low, high)
    z, unit = again.normal((4, 2)).numpy(), again.uniform((2,)).numpy()
    np.testing.assert_allclose(x.numpy(), z * np.float32(0.5) + np.asarray([1, 2], np.float32), rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(x, mean).numpy(), [4, 4])
    np.testing.assert_allclose(tape.gradient(x, std).numpy(), z.sum(), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(u, low).numpy(), (1 - unit).sum(), rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(u, high).numpy(), unit, rtol=1e-6)


def test_parameters_broadcast_with_the_shape() -> None:
    generator = hf.random.Generator(1)
    assert generator.normal(mean=np.zeros((3, 1), "f"), std=np.ones(2, "f")).shape == (3, 2)
    assert generator.uniform((5, 1), np.zeros(2, "f")).shape == (5, 2)
    assert generator.bernoulli(np.full((3,), 0.5, "f")).shape == (3,)
    assert generator.categorical(np.zeros((3, 4), "f")).shape == (3,)
    assert generator.categorical(np.zeros((3, 4), "f"), (7, 3)).shape == (7, 3)


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda r: r.seed(-1), ValueError, "seed: -1 is negative"),
        (lambda r: r.seed(1.5), TypeError, "seed: a float is no seed"),
        (lambda r: r.uniform((2,), 3, 1), ValueError, "low 3 is greater than high 1"),
        (lambda r: r.normal((2,), std=-1.0), ValueError, "std -1.0 is negative"),
        (lambda r: r.truncated_normal((2,), 1, 1), ValueError, "low 1 is not less than high 1"),
        (lambda r: r.integers(3, 3), ValueError, "low must be less than high, got 3 and 3"),
        (lambda r: r.integers(0, 300, dtype="uint8"), ValueError, "uint8 holds 0 to 255, not 0 to 299"),
        (lambda r: r.integers(0, 3, dtype="float32"), TypeError, "draws integers, not float32"),
        (lambda r: r.uniform((2,), dtype="int32"), TypeError, "uniform: draws floating-point numbers, not int32"),
        (lambda r: r.bernoulli(1.5), ValueError, "1.5 is no probability"),
        (lambda r: r.categorical(np.zeros((3, 4), "f"), (2,)), ValueError, "size 2 against 3"),
        (lambda r: r.normal((2.5,)), TypeError, "is not a size"),
        (lambda r: r.uniform((-1,)), ValueError, "uniform: -1 is not a size"),
        (lambda r: r.normal((2, -2)), ValueError, "normal: -2 is not a size"),
        (lambda r: r.integers(0, 3, (-1,)), ValueError, "integers: -1 is not a size"),
        (lambda r: r.bernoulli(0.5, (-1,)), ValueError, "bernoulli: -1 is not a size"),
        (lambda r: r.permutation(-1), ValueError, "permutation: -1 is not a size"),
    ],
)
def test_errors(call: Callable[[hf.random.Generator], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(hf.random.Generator(0))
