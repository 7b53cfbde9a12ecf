"""`hf.models.load_torch`: values from the files and state_dicts of torchvision and Hugging Face's transformers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from hybridflow.backend.process_memory import return_file
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.spec import Shape
from hybridflow.core.tensor import Tensor, as_tensor, new_tensor
from hybridflow.models.torch_names import RULES, Array, Rule, filled
from hybridflow.nn.layers.module import Module
from hybridflow.saving.files import load

_LEFT_OUT = re.compile(r".*\bnum_batches_tracked")
"""What torch counts and hybridflow does not."""
_MOST_LISTED = 8


def load_torch(model: Module, source: Any) -> None:
    """Give a model of `hf.models` the values that torchvision or transformers (Hugging Face) saved for it.

    Nothing is downloaded, and no pickle is read. If something does not fit, nothing is assigned. Values get the dtypes
    of the parameters.

    Args:
        model: the model, of the sizes that were saved.
        source: a ``.safetensors`` file, the ``.index.json`` file of several, or a mapping from names to arrays or torch
            tensors, such as ``torch_model.state_dict()``.

    Raises:
        ArgumentError: names or shapes that do not fit the model; they are named.

    Example:
        >>> import numpy as np
        >>> import hybridflow as hf
        >>> model = hf.models.LSTMLanguageModel(tokens=3, width=2, hidden=2, layers=1)
        >>> shapes = {"encoder.weight": (3, 2), "rnn.weight_ih_l0": (8, 2), "rnn.weight_hh_l0": (8, 2),
        ...           "rnn.bias_ih_l0": (8,), "rnn.bias_hh_l0": (8,), "decoder.weight": (3, 2), "decoder.bias": (3,)}
        >>> hf.models.load_torch(model, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
        >>> model.head.bias
        Variable([1., 1., 1.], dtype=float32, name='head.bias')
    """
    if not isinstance(cast(Any, model), Module):
        raise ArgumentTypeError(f"load_torch: a {type(model).__name__} is no module", got=repr(model)[:80])
    targets = {**model.named_parameters(), **model.named_buffers()}
    values, keys = _renamed(_read(source), RULES.get(type(model).__name__, ()), set(targets))
    if "head.weight" in targets and "head.weight" not in values and "tokens.weight" in values:
        values["head.weight"] = values["tokens.weight"]  # one table for both, which was saved once
    _require_shapes(values, keys, {name: variable.shape for name, variable in targets.items()})
    fitting: dict[str, Tensor] = {}
    for name, value in values.items():
        fitting[name] = new_tensor(np.array(value, targets[name].dtype if name in targets else None, order="C"))
        return_file(value)
    model.load_state_dict(fitting)


def _read(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return cast("Mapping[str, Any]", source)
    if not isinstance(source, str | os.PathLike):
        raise ArgumentTypeError("load_torch: the values are a path or a mapping from names to arrays",
                                got=type(source).__name__)
    path = Path(cast("str | os.PathLike[str]", source))
    if path.name.endswith(".index.json"):
        files = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
        return {name: value for file in files for name, value in load(path.parent / file).items()}
    if path.suffix != ".safetensors":
        raise ArgumentError(
            "load_torch: only safetensors files are read, since a pickle is code that runs when it is read",
            got=str(path), hint="Save it with safetensors.torch.save_file, or pass torch's state_dict."
        )
    return load(path)


def _require_shapes(values: Mapping[str, Array], keys: Mapping[str, str], shapes: Mapping[str, Shape]) -> None:
    """Raise an ArgumentError for the first value whose shape is not that of the model's Variable."""
    for name, value in values.items():
        if name in shapes and value.shape != shapes[name]:
            saved = keys.get(name, name)
            raise ArgumentError(f"load_torch: {saved!r} does not fit the model's {name!r}",
                                got=f"shape {value.shape}, for {shapes[name]}",
                                hint="Make the model with the sizes that were saved.")


def _renamed(
    given: Mapping[str, Any], rules: tuple[Rule, ...], known: set[str]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return arrays by the model's own names, and the names under which they were given.

    Raises:
        ArgumentError: names that no rule knows.
    """
    values: dict[str, Array] = {}
    keys: dict[str, str] = {}
    strange: list[str] = []
    for name, value in given.items():
        if _LEFT_OUT.fullmatch(name):
            continue
        for pattern, target in rules:
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            taken: dict[str, Array] = {}
            if isinstance(target, str):
                taken = {filled(target, match): _array(value)}
            elif target is not None:
                taken = target(match, _array(value))
            break
        else:
            if name not in known:
                strange.append(name)
                continue
            taken = {name: _array(value)}
        values |= taken
        keys |= dict.fromkeys(taken, name)
    if strange:
        more = f" and {len(strange) - _MOST_LISTED} more" if len(strange) > _MOST_LISTED else ""
        raise ArgumentError("load_torch: names that the model's architecture does not have",
                            got=", ".join(strange[:_MOST_LISTED]) + more,
                            hint="The names are those of torchvision or transformers; leave out others, as of heads.")
    return values, keys


def _array(value: Any) -> Array:
    """Return a NumPy array of an array, a tensor or a tensor of torch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(as_tensor(value).numpy())
