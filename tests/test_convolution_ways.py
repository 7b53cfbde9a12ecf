"""Each way of computing a convolution gives what the others do: by lines on the host, image by image in XLA."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.op import REGISTRY
from hybridflow.ops.nn import host_convolution, lowered_convolution
from hybridflow.ops.nn.windows import paddings, reach

NAMES = ("conv", "conv_input_gradient", "conv_kernel_gradient")


@st.composite
def convolutions(draw: Any) -> Any:
    """Draw the arrays of a convolution, the gradient of its result, and its attributes."""
    axes, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    into, out = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    window = tuple(draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes)))
    stride = draw(st.sampled_from([(1,) * axes] * 3 + [(2,) * axes]))
    dilation = tuple(draw(st.lists(st.integers(1, 2), min_size=axes, max_size=axes)))
    space = tuple([(size - 1) * apart + draw(st.integers(1, 6)) for size, apart in zip(window, dilation, strict=True)])
    padding = tuple([(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(axes)])
    pads = paddings("conv", padding, space, reach(window, dilation), stride)
    attrs = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups, "channels_last": False}
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x = rng.normal(size=(draw(st.integers(1, 4)), into * groups, *space))
    kernel = rng.normal(size=(out * groups, into, *window))
    places = hf.nn.conv(x, kernel, stride=stride, padding=pads, dilation=dilation, groups=groups).shape
    return x, kernel, rng.normal(size=places), attrs


def all_three(run: Any, x: Any, kernel: Any, g: Any, attrs: Any) -> list[Any]:
    """Return a convolution and its two gradients."""
    calls = (x, kernel), (g, kernel), (x, g)
    shapes = {}, {"shape": x.shape}, {"shape": kernel.shape}
    with jax.enable_x64(True):
        return [
            np.asarray(run(REGISTRY[name], *given, **shape, **attrs))
            for name, given, shape in zip(NAMES, calls, shapes, strict=True)
        ]


def lowered(op: Any, *arrays: Any, **attrs: Any) -> Any:
    return jax.jit(lambda *xs: op.lower(*xs, **attrs))(*arrays)


def on_host(op: Any, *arrays: Any, **attrs: Any) -> Any:
    return op.kernel(*arrays, **attrs)


@settings(deadline=None, max_examples=60)
@given(convolutions())
def test_columns_as_lines_are_columns_cut_into_rows(case: Any):
    before = host_convolution._ROWS
    try:
        host_convolution._ROWS = 1 << 30
        expected = all_three(on_host, *case)
        host_convolution._ROWS = 0
        host_convolution._WASTE = 100.0
        found = all_three(on_host, *case)
    finally:
        host_convolution._ROWS, host_convolution._WASTE = before, 1.25
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=6)
@given(convolutions())
def test_image_by_image_is_the_convolution(case: Any):
    expected = all_three(on_host, *case)
    better = lowered_convolution.is_better
    try:
        lowered_convolution.is_better = lambda name, *shapes, groups, **more: groups == 1
        found = all_three(lowered, *case)
    finally:
        lowered_convolution.is_better = better
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "kernel"])
def test_what_is_not_finite_does_not_spread_between_rows(where: str, value: float):
    rng = np.random.default_rng(0)
    x, kernel, g = rng.normal(size=(1, 6, 9, 9)), rng.normal(size=(2, 6, 3, 3)), rng.normal(size=(1, 2, 7, 7))
    attrs = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1, "channels_last": False}
    (x if where == "x" else kernel)[0, 0, 0, 0] = value
    ways = []
    for rows in (0, 1 << 30):
        before, host_convolution._ROWS = host_convolution._ROWS, rows
        try:
            with np.errstate(all="ignore"):
                ways.append(all_three(on_host, x, kernel, g, attrs))
        finally:
            host_convolution._ROWS = before
    for a, b in zip(*ways, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_image_by_image_is_for_few_cores(monkeypatch: Any):
    shapes = (64, 32, 26, 26), (64, 32, 3, 3), (24, 24)
    plain: Any = {"groups": 1, "channels_last": False, "stride": (1, 1), "padding": ((0, 0), (0, 0))}
    names = ("conv", "conv_kernel_gradient", "conv_input_gradient")
    monkeypatch.setattr(lowered_convolution, "jaxlib_version", lambda: (0, 10, 2))
    for cores, expected in ((1, [True, True, True]), (2, [False, True, True]), (8, [False, False, False])):
        monkeypatch.setattr(lowered_convolution, "usable_cores", lambda *names, cores=cores: cores)
        chosen = [lowered_convolution.is_better(name, *shapes, **plain) for name in names]
        assert chosen == expected or jax.default_backend() != "cpu"
    monkeypatch.setattr(lowered_convolution, "usable_cores", lambda *names: 1)
    padded = {**plain, "padding": ((1, 1), (1, 1))}
    for name in names:
        assert not lowered_convolution.is_better(name, (2, 3, 5, 5), (4, 3, 3, 3), (3, 3), **plain)
        assert not lowered_convolution.is_better(name, *shapes, **{**plain, "groups": 2})
        assert lowered_convolution.is_better(name, *shapes, **padded) == (name == "conv_kernel_gradient")
    monkeypatch.setattr(lowered_convolution, "jaxlib_version", lambda: (0, 12, 0))
    assert not lowered_convolution.is_better("conv", *shapes, **plain)
