"""Converting the saved values of PyTorch's or Keras's layers for the same kinds of layers in hybridflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.nn.layers.attention import MultiHeadAttention
from hybridflow.nn.layers.convolution import Conv, ConvTranspose
from hybridflow.nn.layers.linear import Embedding, Linear
from hybridflow.nn.layers.module import Module
from hybridflow.nn.layers.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from hybridflow.nn.layers.recurrent import GRU, LSTM, RNN

Array = np.ndarray[Any, Any]
Take = Callable[[str], "Array | None"]
"""A function that removes an array from a layer's saved values, by its name there, and returns it, or None."""
Rule = Callable[[Any, Take], "Mapping[str, Array | None]"]
"""A function that returns a layer's arrays by hybridflow's names."""


def renamed(values: Mapping[str, Array], mapping: Any, modules: Mapping[str, Module]) -> dict[str, Array]:
    """Return values by their paths in hybridflow's modules.

    Args:
        values: the values by their paths in the file.
        mapping: see `hybridflow.load`.
        modules: the modules that the values are for, by path.

    Raises:
        ArgumentTypeError: a step of the mapping has a wrong type.
        ArgumentError: the name of a scheme is not known or there are no modules for it, or two values get one path.
    """
    steps: list[Any] = list(cast(Any, mapping)) if isinstance(mapping, Sequence) and not isinstance(mapping, str) else [
        mapping
    ]
    schemes = [step for step in steps if isinstance(step, str)]
    for scheme in schemes:
        if scheme not in _SCHEMES:
            raise ArgumentError(f"load: mapping={scheme!r} is not known",
                                hint=f"Choose of {', '.join(map(repr, _SCHEMES))}.")
        if not modules:
            raise ArgumentError(f"load: mapping={scheme!r} goes by layers, and there are none",
                                hint="Give the model as into=.")
    renamed = dict(values)
    if "keras" in schemes:
        renamed = _moved(renamed, lambda path: path.replace("/", "."))
    for step in steps:
        if not isinstance(step, str):
            renamed = _moved(renamed, _function(step))
    for scheme in schemes:
        renamed = _SCHEMES[scheme](renamed, modules)
    return renamed


def step_for(paths: Iterable[str], modules: Mapping[str, Module]) -> str | None:
    """Return the next step if values have the names of PyTorch's layers and not of ours; else None."""
    names = dict.fromkeys(paths, np.zeros(()))
    if _torch(names, modules).keys() == names.keys():
        return None
    return 'They have the names of PyTorch\'s layers: mapping="torch" gives them those of the same layers here.'


def _function(step: Any) -> Callable[[str], str | None]:
    """Return a step of a mapping as a function from path to path."""
    if callable(step):
        return cast("Callable[[str], str | None]", step)
    if not isinstance(step, Mapping):
        raise ArgumentTypeError(f"load: a {type(step).__name__} is no mapping of paths", got=repr(step)[:80],
                                hint='Give {"theirs": "ours"}, a function from path to path, "torch" or "keras".')
    prefixes = sorted(cast("Mapping[str, str | None]", step).items(), key=lambda item: -len(item[0]))

    def move(path: str) -> str | None:
        for theirs, ours in prefixes:
            if path == theirs:
                return ours
            if theirs == "" or path.startswith(f"{theirs}."):
                rest = path[len(theirs) :].removeprefix(".")
                return None if ours is None else f"{ours}.{rest}" if ours else rest
        return path

    return move


def _moved(values: Mapping[str, Array], move: Callable[[str], str | None]) -> dict[str, Array]:
    moved: dict[str, Array] = {}
    origin: dict[str, str] = {}
    for path, value in values.items():
        to = move(path)
        if to is None:
            continue
        if to in moved:
            raise ArgumentError(f"load: the mapping gives {origin[to]!r} and {path!r} one path", got=to)
        moved[to], origin[to] = value, path
    return moved


def _by_rules(
    values: Mapping[str, Array], modules: Mapping[str, Module], rules: Iterable[tuple[Any, Rule]]
) -> dict[str, Array]:
    """Return values with those of layers that have a rule converted to hybridflow's names; the others are unchanged."""
    renamed = dict(values)
    for path, module in modules.items():
        prefix = f"{path}." if path else ""

        def take(name: str, prefix: str = prefix) -> Array | None:
            return renamed.pop(prefix + name, None)

        for kind, rule in rules:
            if isinstance(module, kind):
                made = rule(module, take)
                renamed.update({prefix + name: array for name, array in made.items() if array is not None})
    return renamed


def _turned(array: Array | None, *axes: int) -> Array | None:
    """Return an array with its axes in another order.

    An array with another number of axes is returned unchanged; its shape then makes the assignment fail.
    """
    if array is None or array.ndim != len(axes):
        return array
    return np.ascontiguousarray(array.transpose(axes))


# -- PyTorch ----------------------------------------------------------------------------------------------------------


def _torch(values: Mapping[str, Array], modules: Mapping[str, Module]) -> dict[str, Array]:
    return _by_rules(values, modules, [(MultiHeadAttention, _torch_attention), (BatchNorm, _torch_batch_norm)])


def _torch_attention(layer: MultiHeadAttention, take: Take) -> Mapping[str, Array | None]:
    names = ("query", "key", "value")
    made = {"out.weight": take("out_proj.weight"), "out.bias": take("out_proj.bias")}
    for part, short in zip(names, "qkv", strict=True):
        made[f"{part}.weight"] = take(f"{short}_proj_weight")
    for end in ("weight", "bias"):
        joined = take(f"in_proj_{end}")
        if joined is not None and joined.ndim:
            rows = len(joined) // 3
            made |= {f"{part}.{end}": joined[at * rows : at * rows + rows] for at, part in enumerate(names)}
    return made


def _torch_batch_norm(layer: BatchNorm, take: Take) -> Mapping[str, Array | None]:
    take("num_batches_tracked")  # PyTorch needs it only if momentum is None, which hybridflow does not have
    return {}


# -- Keras ------------------------------------------------------------------------------------------------------------


_NUMBERED = re.compile(r"(?<![^.])((?:(?:forward|backward)_)?(?:lstm|gru|simple_rnn)(?:_cell)?)_\d+(?=\.)")
"""The name of a part of a recurrent layer, with the number that Keras counts up in each process."""


def _keras(values: Mapping[str, Array], modules: Mapping[str, Module]) -> dict[str, Array]:
    kept = {
        _NUMBERED.sub(r"\1", path): value for path, value in values.items() if not path.endswith("seed_generator_state")
    }
    return _by_rules(kept, modules, [
        (MultiHeadAttention, _keras_attention), (Linear, _keras_linear), (ConvTranspose, _keras_transposed),
        (Conv, _keras_conv), (Embedding, _keras_embedding), (BatchNorm, _keras_batch_norm),
        ((LayerNorm, GroupNorm, InstanceNorm), _keras_norm), (RMSNorm, _keras_rms_norm),
        ((LSTM, RNN, GRU), _keras_recurrent),
    ])


def _keras_linear(layer: Linear, take: Take) -> Mapping[str, Array | None]:
    return {"weight": _turned(take("kernel"), 1, 0)}


def _keras_attention(layer: MultiHeadAttention, take: Take) -> Mapping[str, Array | None]:
    made: dict[str, Array | None] = {}
    for part in ("query", "key", "value"):
        kernel, bias = take(f"{part}.kernel"), take(f"{part}.bias")  # (features, heads, size), (heads, size)
        made[f"{part}.weight"] = None if kernel is None else _turned(kernel.reshape(len(kernel), -1), 1, 0)
        made[f"{part}.bias"] = None if bias is None else bias.reshape(-1)
    kernel = take("attention_output.kernel")  # (heads, size, width)
    made["out.weight"] = None if kernel is None else _turned(kernel.reshape(-1, kernel.shape[-1]), 1, 0)
    made["out.bias"] = take("attention_output.bias")
    return made


def _keras_conv(layer: Conv, take: Take) -> Mapping[str, Array | None]:
    kernel = take("kernel")  # (*window, in / groups, out)
    if kernel is None:
        return {}
    window = range(kernel.ndim - 2)
    if kernel.shape[-2] == layer.groups == layer.in_channels > 1:  # depthwise: (*window, channels, kernels per channel)
        turned = cast(Array, _turned(kernel, kernel.ndim - 2, kernel.ndim - 1, *window))
        return {"weight": turned.reshape(-1, 1, *kernel.shape[:-2])}
    return {"weight": _turned(kernel, kernel.ndim - 1, kernel.ndim - 2, *window)}


def _keras_transposed(layer: ConvTranspose, take: Take) -> Mapping[str, Array | None]:
    kernel = take("kernel")  # (*window, out, in)
    if kernel is None:
        return {}
    return {"weight": _turned(kernel, kernel.ndim - 1, kernel.ndim - 2, *range(kernel.ndim - 2))}


def _keras_embedding(layer: Embedding, take: Take) -> Mapping[str, Array | None]:
    return {"weight": take("embeddings")}


def _keras_norm(layer: Any, take: Take) -> Mapping[str, Array | None]:
    return {"weight": take("gamma"), "bias": take("beta")}


def _keras_batch_norm(layer: BatchNorm, take: Take) -> Mapping[str, Array | None]:
    averages = {"running_mean": take("moving_mean"), "running_var": take("moving_variance")}
    return {**_keras_norm(layer, take), **averages}


def _keras_rms_norm(layer: RMSNorm, take: Take) -> Mapping[str, Array | None]:
    return {"weight": take("scale")}


def _keras_recurrent(layer: Any, take: Take) -> Mapping[str, Array | None]:
    cell = "lstm" if isinstance(layer, LSTM) else "gru" if isinstance(layer, GRU) else "simple_rnn"
    gates = {
        "_l0": ["", f"{cell}_cell.", f"forward_{cell}.{cell}_cell."],
        "_l0_reverse": [f"backward_{cell}.{cell}_cell."],
    }
    made: dict[str, Array | None] = {}
    for suffix, prefixes in gates.items():
        for prefix in prefixes:
            given, own, bias = take(f"{prefix}kernel"), take(f"{prefix}recurrent_kernel"), take(f"{prefix}bias")
            if given is not None:
                made |= {f"weight_ih{suffix}": _gates(layer, given), f"weight_hh{suffix}": _gates(layer, own)}
            if bias is not None:
                made |= {f"bias_ih{suffix}": _biases(layer, bias)[0], f"bias_hh{suffix}": _biases(layer, bias)[1]}
    return made


def _gates(layer: Any, kernel: Array | None) -> Array | None:
    """Return a kernel as rows, with its gates in hybridflow's order: Keras's GRU has the update gate first."""
    if kernel is None or kernel.ndim != 2:
        return kernel
    return _reset_first(layer, np.ascontiguousarray(kernel.T))


def _biases(layer: Any, bias: Array) -> tuple[Array, Array]:
    """Return the bias of the input's product and that of the state's product."""
    if isinstance(layer, GRU):
        if bias.ndim != 2:
            raise ArgumentError("load: a GRU of Keras with reset_after=False computes something else than ours does",
                                got=f"bias: {bias.shape}", hint="Train it with reset_after=True, Keras's default.")
        return _reset_first(layer, bias[0]), _reset_first(layer, bias[1])
    return bias, np.zeros_like(bias)


def _reset_first(layer: Any, rows: Array) -> Array:
    if not isinstance(layer, GRU):
        return rows
    n = len(rows) // 3
    return np.concatenate([rows[n : 2 * n], rows[:n], rows[2 * n :]])


_SCHEMES = {"torch": _torch, "keras": _keras}
