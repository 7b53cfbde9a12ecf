"""Draws in blocks and decompositions by LAPACK have the bits of the lowering, and a new shape compiles nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.backend.host import can_flush_subnormals, subnormals_flushed
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.errors import ShapeError
from hybridflow.core.op import REGISTRY
from hybridflow.ops import blocks
from hybridflow.ops.distributions import count_not_above, scanned_sum

STATE = np.asarray([5, 2**32 - 7, 11, 0], np.uint32)
F32, F64, I32 = np.dtype("float32"), np.dtype("float64"), np.dtype("int32")
RNG = np.random.default_rng(4)
WIDE = RNG.random((3, 1)).astype(np.float32)
ROOT = RNG.standard_normal((3, 3)).astype(np.float32)

DRAWS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "uniform bfloat16": ("random_uniform", [], {"shape": (3, 9), "dtype": hf.bfloat16}),
    "normal": ("random_normal", [], {"shape": (27,), "dtype": F32}),
    "truncated float64": ("random_truncated", [], {"shape": (9,), "dtype": F64, "low": -0.0, "high": np.inf}),
    "bernoulli": ("random_bernoulli", [WIDE], {"shape": (3, 9)}),
    "gamma": ("random_gamma", [WIDE * 3, np.float32(0.7)], {"shape": (3, 9), "dtype": F32}),
    "beta": ("random_beta", [WIDE, np.full(9, 0.3, np.float32)], {"shape": (3, 9), "dtype": F32}),
    "integers int64": (
        "random_integers", [np.uint64(3), np.uint64(2**63 + 9)], {"shape": (3, 9), "dtype": np.dtype("int64")}
    ),
    "permutation": ("random_permutation", [], {"shape": (27,), "dtype": I32}),
    "categorical": ("random_categorical", [ROOT], {"shape": (5, 3)}),
    "dirichlet": ("random_dirichlet", [np.full(5, 0.004, np.float32)], {"shape": (7, 2), "dtype": F32}),
    "vectors": ("random_multivariate_normal", [ROOT[0], ROOT @ ROOT.T], {"shape": (11,), "dtype": F32}),
    "choice": ("random_choice", [RNG.random(13)], {"shape": (9,), "replace": False}),
    "choice again": ("random_choice", [RNG.random(13).astype(np.float32)], {"shape": (3, 9), "replace": True}),
}


def lowered(name: str, *inputs: Any, **attrs: Any) -> Any:
    """Run a lowering, compiled as in a graph."""
    with enable_x64():
        found = jax.jit(partial(REGISTRY[name].lower, **attrs), compiler_options=compiler_options())(*inputs)
    return jax.tree.map(np.asarray, found)


def same_bits(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", DRAWS)
def test_draws_in_blocks_have_the_bits_of_one_draw(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_SMALL", 8)
    monkeypatch.setattr(blocks, "_MIDDLE", 8)
    monkeypatch.setattr(blocks, "_LARGE", 8)
    monkeypatch.setattr(blocks, "PART", 16)
    monkeypatch.setattr(blocks, "_AHEAD", 2)
    name, inputs, attrs = DRAWS[case]
    arrays = [STATE, *[np.asarray(one) for one in inputs]]
    with np.errstate(all="ignore"):
        found: Any = REGISTRY[name].kernel(*arrays, **attrs)  # pyright: ignore
    assert same_bits(found, lowered(name, *arrays, **attrs))


@pytest.mark.parametrize("case", ["normal", "uniform bfloat16", "gamma", "truncated float64", "integers int64"])
def test_draws_that_come_back_have_the_same_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_lost", {})
    name, inputs, attrs = DRAWS[case]
    arrays = [STATE, *[np.asarray(one) for one in inputs]]
    kernel: Any = REGISTRY[name].kernel
    with np.errstate(all="ignore"):
        first = kernel(*arrays, **attrs)
        counted = dict(blocks._lost)
        monkeypatch.setattr(blocks, "_COMPILING", 0)
        assert same_bits(kernel(*arrays, **attrs), first)
    assert counted
    assert blocks._lost == counted


def test_a_size_is_compiled_when_its_blocks_have_cost_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_lost", {})
    monkeypatch.setattr(blocks, "_COMPILING", 0.0)
    generator = hf.random.Generator(3)
    generator.uniform((617,))
    compiled = [compilations(lambda: generator.uniform((619,))) > 0 for _ in range(3)]
    assert compiled == [False, True, False]
    assert compilations(lambda: generator.uniform((618,))) == 0
    for number in range(1000):
        blocks._lose(number, 1.0, 300, [512])
    assert len(blocks._lost) <= 256
    assert blocks._lost[999] == pytest.approx(blocks._LONGEST * (1 - 300 / 512))


def test_blocks_cover_every_element_once() -> None:
    for count in (0, 1, 511, 512, 513, 1024, 1025, 8192, 40960, 40961, 131073, 10**6):
        cuts = list(blocks._cut(count))
        assert cuts[0][0] == 0
        assert cuts[-1][1] == count
        assert all(first[1] == second[0] for first, second in itertools.pairwise(cuts))
        assert all(end - start <= size for start, end, size in cuts)
        assert all(end - start == size for start, end, size in cuts[:-1])


def compilations(run: Callable[[], Any]) -> int:
    """Return how often XLA compiles something while a function runs."""
    count = 0

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        nonlocal count
        del duration_secs, kwargs
        count += event.endswith("backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return count


@pytest.mark.parametrize("draw", [
    lambda n: hf.random.normal((n,), mean=1.0),
    lambda n: hf.random.bernoulli(0.3, (n, 2)),
    lambda n: hf.random.permutation(n),
    lambda n: hf.random.categorical(np.zeros((n, 3), np.float32)),
    lambda n: hf.linalg.expm(np.eye(n)),
])
def test_a_new_shape_compiles_nothing(draw: Callable[[int], Any]) -> None:
    draw(5)
    assert compilations(lambda: [draw(n) for n in (2, 7, 12)]) == 0
    assert compilations(lambda: jax.jit(lambda x: x + 1)(np.zeros(1237))) > 0


DECOMPOSITIONS = {
    "svd": {"full_matrices": False}, "svdvals": {}, "qr": {"complete": False}, "eig": {}, "eigvals": {}, "eigh": {},
}


@pytest.mark.skipif(not can_flush_subnormals(), reason="the lowering runs in both modes")
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_what_a_matrix_does_not_determine_is_the_same(name: str) -> None:
    """Columns of rounding noise shrink below the normal numbers, and are scaled to length 1."""
    matrices = [np.ones((40, 40), np.float32), np.tile(np.ones(40, np.float32), (40, 1)).cumsum(0)]
    matrices.append(np.eye(40, dtype=np.float32)[::-1] * 2)
    x = np.stack(matrices)
    op = REGISTRY[name]
    with np.errstate(all="ignore"):
        found: Any = op.kernel(x, **DECOMPOSITIONS[name])  # pyright: ignore
    expected = lowered(name, x, **DECOMPOSITIONS[name])
    for one, two in zip(found if isinstance(found, tuple) else [found],
                        expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    new = [x[:, :n, :n] for n in (3, 5)]
    assert compilations(lambda: [hf.linalg.svd(one) for one in new]) == 0


@pytest.mark.skipif(not can_flush_subnormals(), reason="not on this machine")
def test_subnormals_are_flushed_only_inside() -> None:
    small = np.full(1, np.finfo(np.float32).tiny)
    with subnormals_flushed():
        assert small * np.float32(0.5) == 0
    assert small * np.float32(0.5) > 0
    with pytest.raises(KeyError), subnormals_flushed():
        raise KeyError
    assert small * np.float32(0.5) > 0


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 100])
def test_sums_in_a_stated_order(size: int) -> None:
    x = RNG.random(size).astype(np.float32)
    assert same_bits(scanned_sum(x), np.asarray(jax.jit(partial(jax.lax.associative_scan, jax.lax.add))(x)))
    np.testing.assert_allclose(scanned_sum(x), np.cumsum(x), rtol=1e-5)
    points = RNG.random(50).astype(np.float32) * 2
    ascending = np.sort(x)
    np.testing.assert_array_equal(count_not_above(np, ascending, points), np.searchsorted(ascending, points, "right"))


def test_threads_draw_what_one_thread_draws() -> None:
    def draw(seed: int) -> Any:
        generator = hf.random.Generator(seed)
        return [generator.normal((n,)).numpy() for n in (3, 700, 1500)]

    alone = [draw(seed) for seed in range(4)]
    found: list[Any] = [None] * 4
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, draw(i))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same_bits(a, b) for one, two in zip(alone, found, strict=True) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", ["eigvalsh", "eigh", "eig", "eigvals", "expm"])
def test_a_row_is_no_square_matrix_after_one_was_accepted(name: str) -> None:
    run = getattr(hf.linalg, name)
    run(np.eye(3, dtype=np.float32))
    with pytest.raises(ShapeError, match="not square: 1 rows, 3 columns"):
        run(np.ones((1, 3), np.float32))


def test_parameters_that_do_not_fit_raise_after_others_did() -> None:
    p = np.full((1, 1, 1), 0.5, np.float32)
    assert hf.random.bernoulli(p, (2, 3, 4)).shape == (2, 3, 4)
    with pytest.raises(ShapeError, match="do not fit"):
        hf.random.bernoulli(p, (3,))


def test_the_gradient_of_a_lognormal_draw_reaches_both_parameters() -> None:
    mean, std = hf.asarray(0.25), hf.asarray(0.5)
    with hf.GradientTape() as tape:
        tape.watch((mean, std))
        x = hf.random.lognormal((9,), mean, std)
    by_mean, by_std = tape.gradient(x, (mean, std))
    z = (np.log(x.numpy()) - 0.25) / 0.5
    np.testing.assert_allclose(by_mean, x.numpy().sum(), rtol=1e-5)
    np.testing.assert_allclose(by_std, (x.numpy() * z).sum(), rtol=1e-4)
