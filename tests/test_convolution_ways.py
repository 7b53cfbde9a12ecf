"""Each way of computing a convolution gives what the others do: by lines on the host, image by image in XLA."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.backend import parallel
from hybridflow.backend.parallel import POOL
from hybridflow.core.op import REGISTRY
from hybridflow.ops.nn import convolution, convolution_shapes, host_convolution
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


WAYS: dict[str, dict[str, Any]] = {
    "rows": {"_ROWS": 1 << 30, "_TURNED": 1 << 30},
    "lines": {"_ROWS": 0, "_TURNED": 1 << 30, "_WASTE": 100.0},
    "turned": {"_ROWS": 1 << 30, "_TURNED": 0},
    "shifted": {"_CHANNELS": 1, "_LARGE": 0, "_FEW": 0, "_WASTE": 100.0},
}
"""The ways on the host, each with the limits that choose it."""


def by_hand(way: str, *case: Any) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_convolution, "_CHANNELS", 1 << 30)
        for name, value in WAYS[way].items():
            for module in (host_convolution, convolution_shapes):
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        with np.errstate(all="ignore"):
            return all_three(on_host, *case)


@settings(deadline=None, max_examples=60)
@given(convolutions())
def test_every_way_on_the_host_is_the_convolution(case: Any):
    expected = by_hand("rows", *case)
    for way in ("lines", "turned", "shifted"):
        for a, b in zip(by_hand(way, *case), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=way)


def test_threads_do_not_change_the_bits(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=size).astype(np.float32) for size in ((9, 16, 20, 20), (32, 16, 3, 3), (9, 32, 20, 20))]
    taken: list[int] = []
    results: list[list[Any]] = []
    for threads in (1, 3):
        monkeypatch.setattr(POOL, "threads", threads)
        monkeypatch.setattr(POOL, "resume", 0.0)
        monkeypatch.setattr(parallel, "_PAUSE", 0.0)  # a worker may be late on a loaded machine
        monkeypatch.setattr(convolution_shapes, "_PIECE", 1)
        run = POOL.run_pieces
        with monkeypatch.context() as patch:
            patch.setattr(POOL, "run_pieces", lambda *args, run=run: (taken.append(POOL._parts(args[2])), run(*args)))
            results.append(all_three(on_host, *arrays, {**PADDED, "dilation": (1, 1)}))
    assert taken == [1, 1, 1, 3, 3, 3]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", ["images", "columns", "zeros"])
@settings(deadline=None, max_examples=6)
@given(case=convolutions())
def test_every_other_way_is_the_convolution(way: str, case: Any):
    expected = all_three(on_host, *case)
    choose, small = convolution.choose, convolution._SMALL_WEIGHTS
    try:
        convolution.choose = lambda name, *shapes, groups, **more: "plain" if groups > 1 else way
        found = all_three(lowered, *case)
        if way == "columns":  # as one product for all images
            convolution._SMALL_WEIGHTS = 0
            found += all_three(lowered, *case)
    finally:
        convolution.choose, convolution._SMALL_WEIGHTS = choose, small
    for a, b in zip(found, expected * (len(found) // 3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "kernel"])
def test_what_is_not_finite_does_not_spread_between_rows(where: str, value: float):
    rng = np.random.default_rng(0)
    x, kernel, g = rng.normal(size=(1, 6, 9, 9)), rng.normal(size=(2, 6, 3, 3)), rng.normal(size=(1, 2, 7, 7))
    attrs = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1, "channels_last": False}
    (x if where == "x" else kernel)[0, 0, 0, 0] = value
    expected = by_hand("rows", x, kernel, g, attrs)
    for way in ("lines", "turned", "shifted"):
        for a, b in zip(by_hand(way, x, kernel, g, attrs), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, err_msg=way)


CPU_ONLY = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other ways are for XLA:CPU")
PLAIN: Any = {"groups": 1, "channels_last": False, "stride": (1, 1), "padding": ((0, 0), (0, 0))}
PADDED: Any = {**PLAIN, "padding": ((1, 1), (1, 1))}


def ways(x: Any, kernel: Any, sizes: Any, attrs: Any = PADDED) -> list[str]:
    """Return the ways for a convolution, the gradient of its input and that of its kernel."""
    return [convolution.choose(name, x, kernel, sizes, **attrs) for name in NAMES]


def at(monkeypatch: Any, cores: int, jaxlib: tuple[int, ...]) -> None:
    monkeypatch.setattr(convolution, "usable_cores", lambda *names: cores)
    monkeypatch.setattr(convolution, "jaxlib_version", lambda: jaxlib)


@CPU_ONLY
def test_other_ways_are_for_few_cores(monkeypatch: Any):
    shapes = (60, 32, 26, 26), (64, 32, 3, 3), (24, 24)
    for cores, expected in ((1, ["images"] * 3), (2, ["plain", "images", "images"]), (8, ["plain"] * 3)):
        at(monkeypatch, cores, (0, 10, 2))
        assert ways(*shapes, PLAIN) == expected
    library, other = ((0, 10, 2), "plain"), ((0, 12, 0), "zeros")
    for cores, (jaxlib, kernel_gradient) in ((1, library), (2, (library[0], "zeros")), (2, other), (1, other)):
        at(monkeypatch, cores, jaxlib)
        assert ways(*shapes) == ["plain", "plain", kernel_gradient]
        assert ways((64, *shapes[0][1:]), *shapes[1:]) == ["plain"] * 3  # vector registers are full
    assert ways(*shapes, PLAIN) == ["plain", "images", "images"]
    assert ways(*shapes, {**PLAIN, "groups": 2}) == ways(*shapes, {**PLAIN, "channels_last": True}) == ["plain"] * 3
    assert ways((2, *shapes[0][1:]), *shapes[1:], PLAIN) == ["plain"] * 3  # a loop of two


@CPU_ONLY
def test_columns_are_for_few_channels_small_images_and_small_windows(monkeypatch: Any):
    at(monkeypatch, 2, (0, 10, 2))
    assert ways((16, 3, 32, 32), (64, 3, 3, 3), (32, 32)) == ["columns", "images", "plain"]
    assert ways((16, 512, 4, 4), (512, 512, 3, 3), (4, 4)) == ["columns", "plain", "columns"]
    assert ways((16, 64, 16, 16), (256, 64, 1, 1), (16, 16), PLAIN) == ["columns", "images", "columns"]
    assert ways((16, 64, 4, 4), (64, 64, 3, 3), (4, 4)) == ["plain"] * 3  # a small kernel
    large = ways((64, 3, 224, 224), (64, 3, 3, 3), (224, 224))  # too many columns
    assert large == ["plain", "images", "plain"]
    assert ways((4, 16, 64, 64), (16, 16, 3, 3), (64, 64)) == ["plain", "images", "zeros"]
    assert ways((5, 512, 4, 4), (16, 512, 3, 3), (4, 4)) == ["plain", "plain", "zeros"]
    at(monkeypatch, 8, (0, 10, 2))
    assert ways((16, 512, 4, 4), (512, 512, 3, 3), (4, 4)) == ["plain"] * 3


SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "few channels": ((4, 1, 12, 12), (8, 1, 3, 3), {}),
    "one element": ((4, 20, 7, 7), (12, 20, 1, 1), {"stride": 2}),
    "padded": ((4, 4, 12, 12), (6, 4, 3, 3), {"padding": "same"}),
    "small images": ((4, 170, 3, 3), (172, 170, 3, 3), {"padding": 1}),
}


@CPU_ONLY
@pytest.mark.parametrize("name", SHAPES)
def test_a_compiled_step_is_the_eager_one_also_under_vmap_and_twice_differentiated(name: str, monkeypatch: Any):
    at(monkeypatch, 1, (0, 12, 0))
    shape, window, attrs = SHAPES[name]
    rng = np.random.default_rng(0)
    x, kernel = [hf.asarray((rng.standard_normal(one) / 4).astype(np.float32)) for one in (shape, window)]
    taken: list[str] = []
    choose = convolution.choose
    monkeypatch.setattr(
        convolution, "choose", lambda *args, **more: taken.append(choose(*args, **more)) or taken[-1]
    )

    def loss(x: Any, kernel: Any) -> Any:
        return hf.sum(hf.nn.conv(x, kernel, **attrs) ** 2)

    def twice(x: Any, kernel: Any) -> Any:
        return hf.grad(lambda w: hf.sum(hf.grad(loss)(x, w) ** 2))(kernel)

    for function in (hf.grad(loss, 1), twice):
        hf.testing.assert_same(function, x, kernel)
    assert {"columns", "zeros"} & set(taken)
    pair = hf.stack([x, x * 2])
    mapped = hf.compile(hf.vmap(hf.grad(loss, 1), in_axes=(0, None)))(pair, kernel)
    for found, one in zip(mapped.numpy(), (x, x * 2), strict=True):
        expected = hf.grad(loss, 1)(one, kernel).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
