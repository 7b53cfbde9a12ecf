"""`hf.models.load_torch`: values from the files and state_dicts of torchvision and Hugging Face's transformers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from hybridflow.backend.process_memory import return_file
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.spec import Shape
from hybridflow.core.tensor import Tensor, as_tensor, new_tensor
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


# -- names of torchvision and of Hugging Face's transformers ----------------------------------------------------------
# The names that torchvision and Hugging Face's transformers give to parameters, and those of `hybridflow.models`.

Array = np.ndarray[Any, Any]
Maker = Callable[[re.Match[str], Array], dict[str, Array]]
"""Makes the parameters from the match of a name and its array."""
Rule = tuple[str, str | Maker | None]
"""A pattern of a whole name, and what it becomes.

That is a template, in which ``\\1`` is a group and ``<1-1>`` a group's number less one; or a function; or None to leave
the name out.
"""

_NUMBER = re.compile(r"<(\d)([+-]\d)>")


def filled(template: str, match: re.Match[str]) -> str:
    """Return a template with the groups of a match."""
    return match.expand(_NUMBER.sub(lambda one: str(int(match[int(one[1])]) + int(one[2])), template))


def _transposed(template: str) -> Maker:
    """Return what transposes a matrix, for layers that keep their weights as (in, out)."""
    return lambda match, value: {filled(template, match): value.T}


def _split(template: str, *, transposed: bool = False) -> Maker:
    """Return what splits the joined parameters of queries, keys and values; ``{}`` stands for which of them it is."""

    def split(match: re.Match[str], value: Array) -> dict[str, Array]:
        parts = np.split(value.T if transposed else value, 3)
        return {
            filled(template, match).format(name): part
            for name, part in zip(("query", "key", "value"), parts, strict=True)
        }

    return split


def _flat(template: str) -> Maker:
    return lambda match, value: {filled(template, match): value.reshape(-1)}


def _stage(match: re.Match[str], value: Array) -> dict[str, Array]:
    """Return a parameter of torchvision's ConvNeXt, whose list alternates halvings and stages."""
    number, rest = int(match[1]), match[2]
    return {(f"stages.{number // 2}.{rest}" if number % 2 else f"halvings.{number // 2 - 1}.{rest}"): value}


def _convnext(match: re.Match[str], value: Array) -> dict[str, Array]:
    part = {"0": "depthwise", "2": "norm", "3": "mlp.0", "5": "mlp.2"}[match[3]]
    return {f"stages.{int(match[1]) // 2}.{match[2]}.{part}.{match[4]}": value}


def _shuffle(match: re.Match[str], value: Array) -> dict[str, Array]:
    stage, unit, branch, number, rest = match.groups()
    positions = ("0.0", "0.1", "1.0", "1.1") if branch == "1" else ("0.0", "0.1", "", "1.0", "1.1", "2.0", "2.1")
    return {f"stages.{int(stage) - 2}.{unit}.branch{branch}.{positions[int(number)]}.{rest}": value}


_RESNET: tuple[Rule, ...] = (
    (r"conv1\.(\w+)", r"stem.0.0.\1"),
    (r"bn1\.(\w+)", r"stem.0.1.\1"),
    (r"layer(\d)\.(\d+)\.conv(\d)\.(\w+)", r"stages.<1-1>.\2.branch.<3-1>.0.\4"),
    (r"layer(\d)\.(\d+)\.bn(\d)\.(\w+)", r"stages.<1-1>.\2.branch.<3-1>.1.\4"),
    (r"layer(\d)\.(\d+)\.downsample\.(\d\.\w+)", r"stages.<1-1>.\2.downsample.\3"),
    (r"(?:resnet\.)?embedder\.embedder\.convolution\.(\w+)", r"stem.0.0.\1"),
    (r"(?:resnet\.)?embedder\.embedder\.normalization\.(\w+)", r"stem.0.1.\1"),
    (r"(?:resnet\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.(\d)\.convolution\.(\w+)",
     r"stages.\1.\2.branch.\3.0.\4"),
    (r"(?:resnet\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.(\d)\.normalization\.(\w+)",
     r"stages.\1.\2.branch.\3.1.\4"),
    (r"(?:resnet\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.convolution\.(\w+)",
     r"stages.\1.\2.downsample.0.\3"),
    (r"(?:resnet\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.normalization\.(\w+)",
     r"stages.\1.\2.downsample.1.\3"),
    (r"classifier\.1\.(\w+)", r"fc.\1"),
)

_MOBILENET_V1: tuple[Rule, ...] = (
    (r"(?:mobilenet_v1\.)?conv_stem\.convolution\.(\w+)", r"features.0.0.\1"),
    (r"(?:mobilenet_v1\.)?conv_stem\.normalization\.(\w+)", r"features.0.1.\1"),
    (r"(?:mobilenet_v1\.)?layer\.(\d+)\.convolution\.(\w+)", r"features.<1+1>.0.\2"),
    (r"(?:mobilenet_v1\.)?layer\.(\d+)\.normalization\.(\w+)", r"features.<1+1>.1.\2"),
)

_MOBILENET_V2: tuple[Rule, ...] = (
    (r"features\.1\.conv\.([12])\.(\w+)", r"features.1.block.1.<1-1>.\2"),
    (r"features\.(\d+)\.conv\.([23])\.(\w+)", r"features.\1.block.2.<2-2>.\3"),
    (r"features\.(\d+)\.conv\.(\d\.\d\.\w+)", r"features.\1.block.\2"),
)

_SHUFFLENET: tuple[Rule, ...] = (
    (r"conv1\.(\d\.\w+)", r"stem.0.\1"),
    (r"stage(\d)\.(\d+)\.branch(\d)\.(\d)\.(\w+)", _shuffle),
    (r"conv5\.(\d\.\w+)", r"last.\1"),
)

_DENSENET: tuple[Rule, ...] = (
    (r"features\.conv0\.(\w+)", r"stem.0.0.\1"),
    (r"features\.norm0\.(\w+)", r"stem.0.1.\1"),
    (r"features\.denseblock(\d)\.denselayer(\d+)\.(\w+\.\w+)", r"blocks.<1-1>.<2-1>.\3"),
    (r"features\.transition(\d)\.norm\.(\w+)", r"transitions.<1-1>.0.\2"),
    (r"features\.transition(\d)\.conv\.(\w+)", r"transitions.<1-1>.2.\2"),
    (r"features\.norm\d\.(\w+)", r"norm.\1"),
)

_CONVNEXT: tuple[Rule, ...] = (
    (r"features\.0\.(\d\.\w+)", r"stem.\1"),
    (r"features\.(\d)\.(\d+)\.block\.(\d)\.(\w+)", _convnext),
    (r"features\.(\d)\.(\d+)\.layer_scale", lambda m, x: {f"stages.{int(m[1]) // 2}.{m[2]}.scale": x.reshape(-1)}),
    (r"features\.(\d)\.(\d\.\w+)", _stage),
    (r"classifier\.0\.(\w+)", r"norm.\1"),
    (r"classifier\.2\.(\w+)", r"head.\1"),
    (r"(?:convnext\.)?embeddings\.patch_embeddings\.(\w+)", r"stem.0.\1"),
    (r"(?:convnext\.)?embeddings\.layernorm\.(\w+)", r"stem.1.\1"),
    (r"(?:convnext\.)?encoder\.stages\.(\d)\.downsampling_layer\.(\d\.\w+)", r"halvings.<1-1>.\2"),
    (r"(?:convnext\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.dwconv\.(\w+)", r"stages.\1.\2.depthwise.\3"),
    (r"(?:convnext\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.layernorm\.(\w+)", r"stages.\1.\2.norm.\3"),
    (r"(?:convnext\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.pwconv1\.(\w+)", r"stages.\1.\2.mlp.0.\3"),
    (r"(?:convnext\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.pwconv2\.(\w+)", r"stages.\1.\2.mlp.2.\3"),
    (r"(?:convnext\.)?encoder\.stages\.(\d)\.layers\.(\d+)\.layer_scale_parameter", _flat(r"stages.\1.\2.scale")),
    (r"(?:convnext\.)?layernorm\.(\w+)", r"norm.\1"),
    (r"classifier\.(\w+)", r"head.\1"),
)

_VIT: tuple[Rule, ...] = (
    (r"conv_proj\.(\w+)", r"patches.\1"),
    (r"class_token", "token"),
    (r"encoder\.pos_embedding", "positions"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.ln_(\d\.\w+)", r"blocks.\1.norm\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_(\w+)", _split(r"blocks.\1.attend.{}.\2")),
    (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.out_proj\.(\w+)", r"blocks.\1.attend.out.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.0\.(\w+)", r"blocks.\1.mlp.0.\2"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.3\.(\w+)", r"blocks.\1.mlp.2.\2"),
    (r"encoder\.ln\.(\w+)", r"norm.\1"),
    (r"heads\.head\.(\w+)", r"head.\1"),
    (r"(?:vit\.)?embeddings\.cls_token", "token"),
    (r"(?:vit\.)?embeddings\.position_embeddings", "positions"),
    (r"(?:vit\.)?embeddings\.patch_embeddings\.projection\.(\w+)", r"patches.\1"),
    (r"(?:vit\.)?encoder\.layer\.(\d+)\.attention\.attention\.(\w+\.\w+)", r"blocks.\1.attend.\2"),
    (r"(?:vit\.)?encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)", r"blocks.\1.attend.out.\2"),
    (r"(?:vit\.)?encoder\.layer\.(\d+)\.layernorm_before\.(\w+)", r"blocks.\1.norm1.\2"),
    (r"(?:vit\.)?encoder\.layer\.(\d+)\.layernorm_after\.(\w+)", r"blocks.\1.norm2.\2"),
    (r"(?:vit\.)?encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)", r"blocks.\1.mlp.0.\2"),
    (r"(?:vit\.)?encoder\.layer\.(\d+)\.output\.dense\.(\w+)", r"blocks.\1.mlp.2.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.attention\.q_proj\.(\w+)", r"blocks.\1.attend.query.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.attention\.k_proj\.(\w+)", r"blocks.\1.attend.key.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.attention\.v_proj\.(\w+)", r"blocks.\1.attend.value.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.attention\.o_proj\.(\w+)", r"blocks.\1.attend.out.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.layernorm_before\.(\w+)", r"blocks.\1.norm1.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.layernorm_after\.(\w+)", r"blocks.\1.norm2.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.mlp\.fc1\.(\w+)", r"blocks.\1.mlp.0.\2"),
    (r"(?:vit\.)?layers\.(\d+)\.mlp\.fc2\.(\w+)", r"blocks.\1.mlp.2.\2"),
    (r"(?:vit\.)?layernorm\.(\w+)", r"norm.\1"),
    (r"classifier\.(\w+)", r"head.\1"),
)

_GPT2: tuple[Rule, ...] = (
    (r"(?:transformer\.)?wte\.(\w+)", r"tokens.\1"),
    (r"(?:transformer\.)?wpe\.(\w+)", r"positions.\1"),
    (r"(?:transformer\.)?h\.(\d+)\.ln_(\d\.\w+)", r"blocks.\1.norm\2"),
    (r"(?:transformer\.)?h\.(\d+)\.attn\.c_attn\.weight", _split(r"blocks.\1.attend.{}.weight", transposed=True)),
    (r"(?:transformer\.)?h\.(\d+)\.attn\.c_attn\.bias", _split(r"blocks.\1.attend.{}.bias")),
    (r"(?:transformer\.)?h\.(\d+)\.attn\.c_proj\.weight", _transposed(r"blocks.\1.attend.out.weight")),
    (r"(?:transformer\.)?h\.(\d+)\.attn\.c_proj\.bias", r"blocks.\1.attend.out.bias"),
    (r"(?:transformer\.)?h\.(\d+)\.mlp\.c_fc\.weight", _transposed(r"blocks.\1.mlp.0.weight")),
    (r"(?:transformer\.)?h\.(\d+)\.mlp\.c_fc\.bias", r"blocks.\1.mlp.0.bias"),
    (r"(?:transformer\.)?h\.(\d+)\.mlp\.c_proj\.weight", _transposed(r"blocks.\1.mlp.2.weight")),
    (r"(?:transformer\.)?h\.(\d+)\.mlp\.c_proj\.bias", r"blocks.\1.mlp.2.bias"),
    (r"(?:transformer\.)?ln_f\.(\w+)", r"norm.\1"),
    (r"(?:transformer\.)?h\.\d+\.attn\.(?:masked_)?bias|lm_head\.weight", None),  # masks, and the tokens' table again
)

_BERT: tuple[Rule, ...] = (
    (r"(?:bert\.)?embeddings\.word_embeddings\.(\w+)", r"tokens.\1"),
    (r"(?:bert\.)?embeddings\.position_embeddings\.(\w+)", r"positions.\1"),
    (r"(?:bert\.)?embeddings\.token_type_embeddings\.(\w+)", r"segments.\1"),
    (r"(?:bert\.)?embeddings\.LayerNorm\.(\w+)", r"norm.\1"),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.attention\.self\.(\w+\.\w+)", r"blocks.\1.attend.\2"),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)", r"blocks.\1.attend.out.\2"),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(\w+)", r"blocks.\1.norm1.\2"),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)", r"blocks.\1.mlp.0.\2"),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.output\.dense\.(\w+)", r"blocks.\1.mlp.2.\2"),
    (r"(?:bert\.)?encoder\.layer\.(\d+)\.output\.LayerNorm\.(\w+)", r"blocks.\1.norm2.\2"),
    (r"(?:bert\.)?pooler\.dense\.(\w+)", r"pooler.\1"),
    (r"(?:bert\.)?embeddings\.position_ids|cls\..*", None),
)

_LLAMA: tuple[Rule, ...] = (
    (r"(?:model\.)?embed_tokens\.(\w+)", r"tokens.\1"),
    (r"(?:model\.)?layers\.(\d+)\.input_layernorm\.(\w+)", r"blocks.\1.norm1.\2"),
    (r"(?:model\.)?layers\.(\d+)\.post_attention_layernorm\.(\w+)", r"blocks.\1.norm2.\2"),
    (r"(?:model\.)?layers\.(\d+)\.self_attn\.q_proj\.(\w+)", r"blocks.\1.attend.query.\2"),
    (r"(?:model\.)?layers\.(\d+)\.self_attn\.k_proj\.(\w+)", r"blocks.\1.attend.key.\2"),
    (r"(?:model\.)?layers\.(\d+)\.self_attn\.v_proj\.(\w+)", r"blocks.\1.attend.value.\2"),
    (r"(?:model\.)?layers\.(\d+)\.self_attn\.o_proj\.(\w+)", r"blocks.\1.attend.out.\2"),
    (r"(?:model\.)?layers\.(\d+)\.mlp\.(gate|up|down)_proj\.(\w+)", r"blocks.\1.mlp.\2.\3"),
    (r"model\.norm\.(\w+)", r"norm.\1"),
    (r"lm_head\.(\w+)", r"head.\1"),
    (r".*rotary_emb\.inv_freq", None),
)

_LSTM: tuple[Rule, ...] = (
    (r"encoder\.(\w+)", r"tokens.\1"),
    (r"rnn\.(\w+)", r"lstm.\1"),
    (r"decoder\.(\w+)", r"head.\1"),
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "ResNet": _RESNET,
    "MobileNetV1": _MOBILENET_V1,
    "MobileNetV2": _MOBILENET_V2,
    "ShuffleNetV2": _SHUFFLENET,
    "DenseNet": _DENSENET,
    "ConvNeXt": _CONVNEXT,
    "ViT": _VIT,
    "GPT2": _GPT2,
    "BERT": _BERT,
    "Llama": _LLAMA,
    "LSTMLanguageModel": _LSTM,
}
"""The rules of each class of models; of the other classes, torchvision's names are their own."""
