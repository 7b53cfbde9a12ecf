"""Fourier transforms: against NumPy, the same eager and compiled, gradients of what the records do not cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
MANY = ("fftn", "ifftn", "rfftn", "irfftn")


def operand(name: str, *shape: int, wide: bool = False) -> Any:
    x = RNG.standard_normal(shape)
    if name not in ("rfft", "ihfft", "rfftn"):
        x = x + 1j * RNG.standard_normal(shape)
    return x if wide else x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)


def close(found: Any, expected: Any, tolerance: float) -> None:
    found = found.numpy()
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * float(np.max(np.abs(expected))))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ONE_AXIS)
def test_one_axis(name: str, norm: str):
    for size, n in ((5, None), (6, None), (5, 7), (6, 4), (5, 3)):
        x = operand(name, size, 2)
        close(getattr(hf.fft, name)(x, n=n, axis=0, norm=norm), getattr(np.fft, name)(x, n=n, axis=0, norm=norm), 1e-6)
        wide = x.astype(np.promote_types(x.dtype, np.float64))
        close(getattr(hf.fft, name)(wide, n=n, axis=0, norm=norm), getattr(np.fft, name)(wide, n, 0, norm), 1e-14)


@pytest.mark.parametrize("name", MANY)
def test_several_axes(name: str):
    x = operand(name, 3, 2, 4)
    for s, axes in ((None, None), (None, (2, 0)), ((5, 3), (0, -1)), ((2, 6, 3), None)):
        given = tuple(range(3)) if axes is None else axes
        close(getattr(hf.fft, name)(x, s=s, axes=axes), getattr(np.fft, name)(x, s=s, axes=given), 1e-6)


@pytest.mark.parametrize("name", [*ONE_AXIS, "irfftn"])
def test_the_modes_agree(name: str):
    x = operand(name, 4, 5)
    hf.testing.assert_same(lambda x: getattr(hf.fft, name)(x * 2) + 1, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, x: xp.fft.hfft(x, n=5, norm="ortho"),
        lambda xp, x: xp.fft.ihfft(xp.real(x), n=7),
        lambda xp, x: xp.fft.irfftn(x, s=(3, 6), axes=(0, 1), norm="forward"),
        lambda xp, x: xp.fft.fft(x, n=3) * xp.fft.ifft(x, n=3, axis=0),
    ],
    ids=["hfft", "ihfft", "irfftn", "fft and ifft"],
)
def test_gradients_are_jaxs(call: Callable[[Any, Any], Any]):
    x = operand("fft", 3, 3, wide=True)

    def loss(xp: Any, x: Any) -> Any:
        y = call(xp, x)
        return xp.sum(xp.real(y) ** 3 + xp.imag(y) ** 2)

    with jax.enable_x64(True):
        expected = np.conj(jax.grad(lambda x: loss(jnp, x))(x))
    found = hf.grad(lambda x: loss(hf, x))(hf.asarray(x))
    close(found, expected, 1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.sampled_from(["backward", "ortho", "forward"]), st.integers(0, 99))
def test_inverses_undo_and_energy_is_kept(size: int, norm: str, seed: int):
    x = np.random.default_rng(seed).standard_normal(size)
    close(hf.fft.irfft(hf.fft.rfft(x, norm=norm), n=size, norm=norm), x, 1e-13)
    close(hf.fft.ifft(hf.fft.fft(x, norm=norm), norm=norm), x.astype(np.complex128), 1e-13)
    energy = float(hf.sum(hf.square(hf.abs(hf.fft.fft(x, norm="ortho")))))
    assert energy == pytest.approx(float(np.sum(x * x)), rel=1e-12)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn"])
def test_sizes_that_change_from_call_to_call(name: str):
    function = getattr(hf.fft, name)
    compiled, x = hf.compile(function), hf.asarray(np.arange(3.0, dtype=np.float32))
    for size in (1, 2, 5, 4, 1):
        options: dict[str, Any] = {"s": (size,), "axes": [0]} if name.endswith("n") else {"n": size}
        np.testing.assert_allclose(compiled(x, **options).numpy(), function(x, **options).numpy(), rtol=1e-5, atol=1e-6)


def test_frequencies_and_shifts():
    for n in (1, 4, 5):
        np.testing.assert_allclose(hf.fft.fftfreq(n, d=0.1).numpy(), np.fft.fftfreq(n, 0.1), rtol=1e-6)
        np.testing.assert_allclose(
            hf.fft.rfftfreq(n, d=0.1, dtype=hf.float64).numpy(), np.fft.rfftfreq(n, 0.1), rtol=1e-15
        )
        x = np.arange(3 * n).reshape(3, n)
        for axes in (None, 1, (0,)):
            np.testing.assert_array_equal(hf.fft.fftshift(x, axes=axes).numpy(), np.fft.fftshift(x, axes))
            np.testing.assert_array_equal(hf.fft.ifftshift(x, axes=axes).numpy(), np.fft.ifftshift(x, axes))
    assert hf.fft.fftfreq(3).dtype == hf.float32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: hf.fft.fft(hf.zeros(3), n=0), ShapeError, "fft: the transformed axis 0 has size 0"),
        (lambda: hf.fft.hfft(hf.zeros(3), norm="x"), ArgumentError, "hfft: norm='x' is not one of"),
        (lambda: hf.fft.rfft(hf.zeros(3, dtype=hf.complex64)), DTypeError, "rfft: does not take complex64"),
        (lambda: hf.fft.fftn(hf.zeros((3, 3)), axes=(0, 0)), ShapeError, "must name axes, each once"),
        (lambda: hf.fft.fftn(hf.zeros(())), ShapeError, "1 sizes for 0 axes"),
        (lambda: hf.fft.fftn(hf.zeros((2, 2)), s=(2,), axes=(0, 1)), ShapeError, "1 sizes for 2 axes"),
        (lambda: hf.fft.fftfreq(0), ArgumentError, "0 samples"),
        (lambda: hf.fft.rfftfreq(3, dtype=hf.int32), DTypeError, "the frequencies are floats, not int32"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        call()
