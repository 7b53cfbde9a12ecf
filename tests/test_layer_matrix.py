"""Every layer, with each of its attributes changed after a trace, and with inputs without elements: as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn

IDS = (2, 3)
Make = Callable[[], Any]

LAYERS: dict[str, tuple[Make, tuple[int, ...], list[tuple[int, ...]]]] = {
    "linear": (lambda: nn.Linear(4, 6), (2, 4), [(0, 4), (2, 0, 4)]),
    "linear, sized": (lambda: nn.Linear(6), (2, 4), [(2, 0), (0, 4)]),
    "embedding": (lambda: nn.Embedding(5, 4), IDS, []),
    "conv": (lambda: nn.Conv1d(4, 4, 3), (2, 4, 8), [(0, 4, 8), (2, 4, 0), (2, 4, 2), (2, 0, 8)]),
    "conv, padded": (lambda: nn.Conv2d(4, 4, 3, padding=1), (2, 4, 5, 5), [(0, 4, 5, 5), (1, 4, 0, 5)]),
    "transposed": (lambda: nn.ConvTranspose1d(4, 4, 3), (2, 4, 8), [(0, 4, 8), (2, 4, 0)]),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 2, 3), (1, 2, 3, 3), [(0, 2, 3, 3), (1, 2, 0, 3)]),
    "layer norm": (lambda: nn.LayerNorm(4), (2, 4), [(0, 4), (2, 0, 4)]),
    "rms norm": (lambda: nn.RMSNorm(4), (2, 4), [(0, 4), (2, 0, 4)]),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 6), [(0, 4, 6), (2, 4, 0)]),
    "instance norm": (lambda: nn.InstanceNorm1d(4), (2, 4, 6), [(0, 4, 6), (2, 4, 0)]),
    "batch norm": (lambda: nn.BatchNorm1d(4), (8, 4), [(0, 4), (2, 4, 0), (0, 4, 3)]),
    "batch norm 2d": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3), [(0, 4, 3, 3), (2, 4, 0, 3)]),
    "rnn": (lambda: nn.RNN(4, 4), (2, 3, 4), [(0, 3, 4), (2, 0, 4)]),
    "gru": (lambda: nn.GRU(4, 4), (2, 3, 4), [(0, 3, 4), (2, 0, 4)]),
    "lstm": (lambda: nn.LSTM(4), (2, 3, 4), [(0, 3, 4), (2, 0, 4), (2, 3, 0)]),
    "attention": (lambda: nn.MultiHeadAttention(8, 2), (2, 4, 8), [(0, 4, 8), (2, 0, 8), (2, 4, 0)]),
    "experts": (lambda: nn.MoE(4, 8, 2), (6, 4), [(0, 4), (2, 0, 4)]),
    "dropout": (lambda: nn.Dropout(0.5), (4, 4), [(0, 4), (0,)]),
    "dropout 2d": (lambda: nn.Dropout2d(0.5), (2, 4, 4, 4), [(0, 4, 4, 4), (2, 4, 0, 4)]),
    "flatten": (lambda: nn.Flatten(), (2, 3, 4), [(0, 3, 4), (2, 0, 4)]),
    "upsample": (lambda: nn.Upsample(2), (1, 2, 3, 3), [(0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 3)]),
    "max pool": (lambda: nn.MaxPool2d(2), (1, 2, 6, 6), [(0, 2, 6, 6), (1, 0, 6, 6), (1, 2, 0, 6)]),
    "avg pool": (lambda: nn.AvgPool2d(2), (1, 2, 6, 6), [(0, 2, 6, 6), (1, 0, 6, 6), (1, 2, 0, 6)]),
    "adaptive avg": (lambda: nn.AdaptiveAvgPool2d(2), (1, 2, 6, 6), [(0, 2, 6, 6), (1, 2, 0, 6)]),
    "adaptive max": (lambda: nn.AdaptiveMaxPool2d(2), (1, 2, 6, 6), [(0, 2, 6, 6), (1, 2, 0, 6)]),
    "global": (lambda: nn.GlobalAvgPool(), (1, 2, 6, 6), [(0, 2, 6, 6), (1, 0, 6, 6), (1, 2, 0, 6)]),
}
"""Each layer with the shape of an input, and shapes of inputs without elements or too few."""
QUICK = {"linear, sized", "flatten"}
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.rest) for name in LAYERS]


def argument(shape: tuple[int, ...]) -> Any:
    if shape is IDS:
        return hf.asarray(np.arange(6, dtype=np.int32).reshape(shape) % 5)
    return hf.asarray(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """Return the arrays of a result, or the error's type and text."""
    hf.random.seed(1)
    try:
        return [np.asarray(one) for one in jax.tree_util.tree_leaves(function(*args))]
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


def require_same(eager: Any, compiled: Any, what: str) -> None:
    assert type(eager) is type(compiled), (what, eager, compiled)
    if type(eager) is tuple:
        assert eager == compiled, what
        return
    for mine, its in zip(eager, compiled, strict=True):
        assert mine.dtype == its.dtype, what
        np.testing.assert_allclose(its, mine, rtol=1e-4, atol=1e-5, err_msg=what)


def others(value: Any) -> list[Any]:
    """Return other values of an attribute; not all suit every layer."""
    if type(value) is bool:
        return [not value]
    if type(value) is int:
        return [value + 1, value * 2, max(value - 1, 0)]
    if type(value) is float:
        return [value * 0.5 + 0.1]
    if type(value) is tuple and all(type(one) is int for one in value):
        return [tuple([one + 1 for one in value])]
    return ["same", "float64"] if type(value) is str else [1, True]


def made(make: Make, x: Any) -> Any:
    nn.init.seed(0)
    layer = make()
    outcome(layer, x)
    return layer


@pytest.mark.parametrize("name", NAMES)
def test_changed_attributes_are_seen(name: str):
    make, shape, _ = LAYERS[name]
    x = argument(shape)
    attributes = {
        attribute: value for attribute, value in vars(made(make, x)).items()
        if not attribute.startswith("_") and not isinstance(value, hf.Variable | nn.Module)
    }
    for attribute, value in {**attributes, "training": True}.items():
        for other in others(value)[: 1 if name in QUICK else None]:
            eager, compiled = made(make, x), made(make, x)
            function = hf.compile(lambda x, layer=compiled: layer(x))
            require_same(outcome(eager, x), outcome(function, x), name)
            setattr(eager, attribute, other)
            setattr(compiled, attribute, other)
            require_same(outcome(eager, x), outcome(function, x), f"{name}: {attribute} {value!r} -> {other!r}")


def with_gradients(function: Callable[..., Any], parameters: list[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(args)
            result = function(*args)
            loss = sum([hf.sum(one * one) for one in jax.tree_util.tree_leaves(result)], hf.asarray(0.0))
        return result, tape.gradient(loss, [*args, *parameters], unconnected_gradients="zero")

    return run


@pytest.mark.parametrize("name", NAMES)
def test_inputs_without_elements(name: str):
    make, _, shapes = LAYERS[name]
    for shape in shapes:
        for training in (True,) if name in QUICK else (True, False):
            results = []
            for wrap in (lambda function: function, hf.compile):
                nn.init.seed(0)
                layer = make().train(training)
                outcome(layer, argument(shape))
                results.append(outcome(wrap(with_gradients(layer, layer.parameters())), argument(shape)))
            require_same(*results, f"{name} of {shape}")


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.rest)])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 3, 3, 0, 4), (1, 2, 3, 3, 4, 0), (1, 2, 0, 3, 4, 4), (1, 2, 3, 0, 4, 4), (0, 2, 3, 3, 4, 4),
              (1, 0, 3, 3, 4, 4), (1, 2, 3, 3, 0, 0), (1, 2, 0, 0, 0, 0)],
)
def test_attention_without_elements(sizes: tuple[int, ...], causal: bool):
    batch, heads, queries, keys, width, values = sizes
    args = [argument((batch, heads, *more)) for more in ((queries, width), (keys, width), (keys, values))]

    def attention(*args: Any) -> Any:
        return nn.scaled_dot_product_attention(*args, is_causal=causal)

    function = with_gradients(attention, [])
    eager = outcome(function, *args)
    assert type(eager) is list
    require_same(eager, outcome(hf.compile(function), *args), str(sizes))


def test_flatten_keeps_an_empty_batch():
    assert nn.Flatten()(hf.zeros((0, 3, 4))).shape == (0, 12)


def test_what_transposed_convolutions_cannot_take_is_an_error():
    with pytest.raises(ValueError, match="conv_transpose: the input has no positions"):
        nn.conv_transpose(hf.zeros((1, 2, 0)), hf.zeros((2, 2, 3)))
    with pytest.raises(ValueError, match="output_padding 2 is not less than stride 2"):
        nn.conv_transpose(hf.zeros((1, 2, 4)), hf.zeros((2, 2, 3)), stride=2, output_padding=2)
