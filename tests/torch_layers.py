"""PyTorch's own samples of its layers and losses, on hybridflow's: ``python -m pytest tests/torch_layers.py``.

The samples are those that PyTorch tests its modules with (`torch.testing._internal.common_modules`). Each layer gets
PyTorch's weights; its results and the gradients of its inputs and weights are PyTorch's, eagerly and compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal import common_modules

import hybridflow as hf
from hybridflow import nn, tree

Made = tuple[Any, Callable[..., Any]]
"""A layer of hybridflow, or None, and the function of PyTorch's inputs that calls it."""

RENAMED = {
    "eps": "epsilon", "elementwise_affine": "scale", "affine": "scale", "num_layers": "layers", "kernel_size": "window",
    "nonlinearity": "activation", "padding_idx": "padding_id", "negative_slope": "slope", "dim": "axis",
    "min_val": "low", "max_val": "high", "weight": "class_weight", "ignore_index": "ignored_id",
}
SIZES = {
    "in_channels", "out_channels", "in_features", "out_features", "num_features", "num_groups", "num_channels",
    "normalized_shape", "input_size", "hidden_size", "num_embeddings", "embedding_dim", "output_size", "embed_dim",
    "num_heads",
}
"""What is given by position here."""


def options(module: torch.nn.Module, sample: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of hybridflow's layer: what the sample gives that is not PyTorch's default."""
    kind = {"RNN": torch.nn.RNNBase, "GRU": torch.nn.RNNBase, "LSTM": torch.nn.RNNBase}.get(type(module).__name__)
    given, named = sample.constructor_input.args, dict(sample.constructor_input.kwargs)
    parameters = inspect.signature(kind or type(module)).parameters
    if kind:
        given = (type(module).__name__, *given)
    named = dict(zip(parameters, given, strict=False)) | named
    sizes, rest = [], {}
    for name, value in named.items():
        default = "tanh" if name == "nonlinearity" else parameters[name].default
        if name in SIZES or (name == "kernel_size" and "in_channels" in named):
            sizes.append(value[0] if name == "normalized_shape" and len(value) == 1 else value)
        elif name not in ("mode", "batch_first", "reduction") and (isinstance(value, np.ndarray) or value != default):
            rest[RENAMED.get(name, name)] = value
    return sizes, rest


def layer(module: torch.nn.Module, sample: Any) -> Made:
    """Return hybridflow's layer with PyTorch's weights."""
    sizes, rest = options(module, sample)
    if "window" in rest:
        sizes.append(rest.pop("window"))
    name = type(module).__name__
    kind = getattr(nn, name)
    typed = {"dtype": hf.float64} if "Pool" not in name else {}
    if name.startswith("InstanceNorm"):
        rest.pop("momentum", None)
    made = kind(*sizes, **rest, **typed)
    made.train(module.training)
    made.load_state_dict({key: value.numpy() for key, value in module.state_dict().items()}, mapping="torch")
    return made, made


def recurrent(module: torch.nn.Module, sample: Any) -> Made:
    made, _ = layer(module, sample)

    def run(x: Any, state: Any = None) -> Any:  # the samples have no batch
        y, last = made(x[None], tree.map(lambda one: one[:, None], state))
        return y[0], tree.map(lambda one: one[:, 0], last)

    return made, run


def activation(name: str, module: torch.nn.Module, sample: Any) -> Made:
    _, rest = options(module, sample)
    function = getattr(nn, name) if hasattr(nn, name) else getattr(hf, name)
    return None, partial(function, **rest)


def over_classes(function: Callable[..., Any], module: torch.nn.Module, sample: Any) -> Made:
    """Return a loss over classes: they are the last axis here, and a mean by weights is the caller's."""
    _, rest = options(module, sample)

    def run(x: Any, labels: Any) -> Any:
        axis = min(1, x.ndim - 1)
        inner = labels if labels.ndim < x.ndim else hf.moveaxis(labels, axis, -1)
        losses = function(hf.moveaxis(x, axis, -1), inner, **rest)
        if module.reduction != "mean":
            return losses if module.reduction == "none" else hf.sum(losses)
        if labels.ndim == x.ndim:
            return hf.sum(losses) / losses.size
        kept = hf.astype(labels != rest.get("ignored_id", -100), losses.dtype)
        weights = rest.get("class_weight")
        shares = kept if weights is None else kept * hf.asarray(weights)[hf.where(kept > 0, labels, 0)]
        return hf.sum(losses) / hf.sum(shares)

    return None, run


def by_element(function: Callable[..., Any], module: torch.nn.Module, sample: Any) -> Made:
    _, rest = options(module, sample)
    factor = rest.pop("class_weight", 1.0)
    reduce = {"mean": hf.mean, "sum": hf.sum, "none": lambda losses: losses}[module.reduction]
    return None, lambda *inputs: reduce(function(*inputs, **rest) * factor)


OURS: dict[str, Callable[[torch.nn.Module, Any], Made]] = {
    **dict.fromkeys(("Linear", "Embedding", "GroupNorm", "LayerNorm", "RMSNorm"), layer),
    **{f"{name}{n}d": layer for n in (1, 2, 3) for name in (
        "Conv", "ConvTranspose", "AvgPool", "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "BatchNorm",
        "InstanceNorm",
    )},
    **dict.fromkeys(("RNN", "GRU", "LSTM"), recurrent),
    **{name: partial(activation, own) for name, own in {
        "CELU": "celu", "ELU": "elu", "GELU": "gelu", "GLU": "glu", "Hardswish": "hard_swish", "Hardtanh": "hard_tanh",
        "ReLU": "relu", "ReLU6": "relu6", "LeakyReLU": "leaky_relu", "Sigmoid": "sigmoid", "LogSigmoid": "log_sigmoid",
        "SiLU": "silu", "Softmax": "softmax", "LogSoftmax": "log_softmax", "Softplus": "softplus", "SELU": "selu",
        "Softsign": "softsign", "Tanh": "tanh", "Mish": "mish",
    }.items()},
    "CrossEntropyLoss": partial(over_classes, nn.softmax_cross_entropy), "NLLLoss": partial(over_classes, nn.nll),
    "BCEWithLogitsLoss": partial(by_element, nn.sigmoid_cross_entropy), "L1Loss": partial(by_element, nn.mae),
    "MSELoss": partial(by_element, nn.mse), "HuberLoss": partial(by_element, nn.huber),
}
"""How each of PyTorch's modules is made here."""


def samples() -> Iterator[Any]:
    """Yield PyTorch's samples, each with a name that says what its options are."""
    for info in common_modules.module_db:
        if info.name.removeprefix("nn.") not in OURS:
            continue
        for training in (True, False):
            torch.manual_seed(0)
            made = info.module_inputs_func(info, "cpu", torch.float64, True, training)
            for number, sample in enumerate(made):
                projected = sample.constructor_input.kwargs.get("proj_size")
                words = sample.desc or (f"proj_{projected}" if projected else "plain")
                name = f"{info.name}-{'train' if training else 'eval'}-{number}-{words}"
                yield pytest.param(info, sample, training, id=name)


def to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    return type(value)(map(to_numpy, value)) if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize(("info", "sample", "training"), samples())
def test_a_layer_is_pytorchs(info, sample, training):
    torch.manual_seed(0)
    constructor = sample.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).to(torch.float64)
    module.train(training)
    given = (*sample.forward_input.args, *sample.forward_input.kwargs.values())
    sample.constructor_input.args = to_numpy(constructor.args)
    sample.constructor_input.kwargs = {key: to_numpy(value) for key, value in constructor.kwargs.items()}
    ours, call = OURS[info.name.removeprefix("nn.")](module, sample)
    inputs = tree.map(hf.asarray, to_numpy(given))
    leaves = [x for x in torch.utils._pytree.tree_leaves(given) if x.is_floating_point()]
    for x in leaves:
        x.requires_grad_()
    expected = [y for y in torch.utils._pytree.tree_leaves(module(*given))]
    factors = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape) for y in expected]
    weights = list(module.parameters())
    total = sum((y * f).sum() for y, f in zip(expected, factors, strict=True))
    wanted = torch.autograd.grad(total, [*leaves, *weights], allow_unused=True)

    def run(inputs):
        with hf.GradientTape() as tape:
            watched = [x for x in tree.leaves(inputs) if hf.isdtype(x.dtype, "real floating")]
            for x in watched:
                tape.watch(x)
            results = tree.leaves(call(*inputs))
            total = sum(hf.sum(y * to_numpy(f)) for y, f in zip(results, factors, strict=True))
        own = [] if ours is None else [dict(ours.named_parameters())[name] for name, _ in module.named_parameters()]
        return results, tape.gradient(total, [*watched, *own], unconnected_gradients="zero")

    for way in (run, hf.compile(run)):
        results, gradients = way(inputs)
        for y, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(y, to_numpy(other), rtol=1e-9, atol=1e-11)
        for gradient, other in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(gradient, 0 if other is None else other, rtol=1e-8, atol=1e-10)
