"""`hf.models.load_torch`: the values of torch's models of the same architecture give the same results.

torchvision and transformers make the models, with random values; without them, these tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import models
from hybridflow.core.errors import ArgumentError


def vision(name: str, **options: Any) -> Any:
    """Return a model of torchvision."""
    module = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    return getattr(module, name)(**options)


def language(name: str, config: str, **options: Any) -> Any:
    """Return a model of transformers."""
    module = pytest.importorskip("transformers", reason="transformers is not installed")
    return getattr(module, name)(getattr(module, config)(**options, attn_implementation="eager"))


def hugging(name: str, config: str, **options: Any) -> Any:
    """Return a model of transformers for images."""
    module = pytest.importorskip("transformers", reason="transformers is not installed")
    return getattr(module, name)(getattr(module, config)(**options))


TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 11}
PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "alexnet": (lambda: vision("alexnet", num_classes=5), lambda: models.AlexNet(classes=5), (2, 3, 64, 64)),
    "vgg": (
        lambda: vision("vgg11_bn", num_classes=5), lambda: models.vgg11(classes=5, norm=True), (1, 3, 32, 32)
    ),
    "resnet18": (lambda: vision("resnet18", num_classes=5), lambda: models.resnet18(classes=5), (2, 3, 64, 64)),
    "resnet50": (lambda: vision("resnet50", num_classes=5), lambda: models.resnet50(classes=5), (1, 3, 64, 64)),
    "wide_resnet50_2": (
        lambda: vision("wide_resnet50_2", num_classes=5), lambda: models.wide_resnet50_2(classes=5), (1, 3, 64, 64)
    ),
    "squeezenet1_0": (
        lambda: vision("squeezenet1_0", num_classes=5), lambda: models.squeezenet1_0(classes=5), (2, 3, 64, 64)
    ),
    "squeezenet1_1": (
        lambda: vision("squeezenet1_1", num_classes=5), lambda: models.squeezenet1_1(classes=5), (2, 3, 61, 64)
    ),
    "mobilenet_v2": (
        lambda: vision("mobilenet_v2", num_classes=5), lambda: models.mobilenet_v2(classes=5), (2, 3, 64, 64)
    ),
    "mobilenet_v3_small": (
        lambda: vision("mobilenet_v3_small", num_classes=5), lambda: models.mobilenet_v3_small(classes=5),
        (2, 3, 64, 64),
    ),
    "mobilenet_v3_large": (
        lambda: vision("mobilenet_v3_large", num_classes=5), lambda: models.mobilenet_v3_large(classes=5),
        (2, 3, 64, 64),
    ),
    "shufflenet": (
        lambda: vision("shufflenet_v2_x1_0", num_classes=5), lambda: models.shufflenet_v2(classes=5), (2, 3, 64, 64)
    ),
    "efficientnet_b0": (
        lambda: vision("efficientnet_b0", num_classes=5), lambda: models.efficientnet_b0(classes=5), (2, 3, 64, 64)
    ),
    "efficientnet_b5": (
        lambda: vision("efficientnet_b5", num_classes=5), lambda: models.efficientnet_b5(classes=5), (1, 3, 64, 64)
    ),
    "densenet121": (
        lambda: vision("densenet121", num_classes=5), lambda: models.densenet121(classes=5), (2, 3, 64, 64)
    ),
    "convnext": (
        lambda: vision("convnext_tiny", num_classes=5), lambda: models.convnext_tiny(classes=5), (2, 3, 64, 64)
    ),
    "vit": (
        lambda: vision("vit_b_16", num_classes=5, image_size=32), lambda: models.vit_b_16(classes=5, size=32),
        (2, 3, 32, 32),
    ),
    "hf_resnet50": (
        lambda: hugging("ResNetForImageClassification", "ResNetConfig", num_labels=5),
        lambda: models.resnet50(classes=5), (1, 3, 64, 64),
    ),
    "hf_mobilenet_v1": (
        lambda: hugging("MobileNetV1ForImageClassification", "MobileNetV1Config", num_labels=5, hidden_act="relu",
                        tf_padding=False, layer_norm_eps=1e-5),
        lambda: models.mobilenet_v1(classes=5), (2, 3, 64, 64),
    ),
    "hf_convnext": (
        lambda: hugging("ConvNextForImageClassification", "ConvNextConfig", num_labels=5, depths=[1, 1, 2, 1],
                        hidden_sizes=[8, 16, 32, 64]),
        lambda: models.ConvNeXt((1, 1, 2, 1), (8, 16, 32, 64), classes=5), (2, 3, 64, 64),
    ),
    "hf_vit": (
        lambda: language("ViTForImageClassification", "ViTConfig", hidden_size=16, num_hidden_layers=2,
                         num_attention_heads=4, intermediate_size=32, image_size=32, patch_size=8, num_labels=5),
        lambda: models.ViT(size=32, patch=8, width=16, blocks=2, heads=4, hidden=32, classes=5, epsilon=1e-12),
        (2, 3, 32, 32),
    ),
    "hf_gpt2": (
        lambda: language("GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=2, n_head=4, vocab_size=11, n_positions=9),
        lambda: models.GPT2(width=16, blocks=2, heads=4, tokens=11, length=9), (2, 7),
    ),
    "hf_bert": (
        lambda: language("BertModel", "BertConfig", **TINY, intermediate_size=64, max_position_embeddings=9),
        lambda: models.BERT(width=16, blocks=2, heads=4, tokens=11, length=9), (2, 7),
    ),
    "hf_llama": (
        lambda: language("LlamaForCausalLM", "LlamaConfig", **TINY, intermediate_size=24, num_key_value_heads=2),
        lambda: models.Llama(width=16, blocks=2, heads=4, kv_heads=2, hidden=24, tokens=11), (2, 7),
    ),
}


def shaken(torch: Any, model: Any) -> Any:
    """Return a model in evaluation mode whose vectors are not all zeros and ones, which would hide mistakes."""
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.is_floating_point() and value.ndim <= 1 and "inv_freq" not in name:
                value.add_(torch.rand_like(value) * (0.5 if "var" in name else 0.1))
            elif "layer_scale" in name or "cls_token" in name or "class_token" in name:
                value.copy_(torch.rand_like(value))
    return model.eval()


@pytest.mark.parametrize("name", PAIRS)
def test_results_are_those_of_torch(name: str):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs_made, ours_made, shape = PAIRS[name]
    torch.manual_seed(0)
    theirs = shaken(torch, theirs_made())
    with hf.nn.init.abstract():
        ours = ours_made().eval()
    models.load_torch(ours, theirs.state_dict())
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32) if len(shape) == 4 else rng.integers(0, 11, shape)
    with torch.no_grad():
        wanted: Any = theirs(torch.from_numpy(x))
    if not isinstance(wanted, torch.Tensor):
        wanted = wanted[0]
    wanted = wanted.numpy()
    found: Any = ours(x if len(shape) == 4 else x.astype(np.int32))
    found = (found[0] if isinstance(found, tuple) else found).numpy()
    scale = np.abs(wanted).max()
    assert scale > 1e-3
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * scale)


def state(model: Any) -> dict[str, Any]:
    """Return a state_dict in the names of PyTorch's example of a language model."""
    names = {"tokens": "encoder", "lstm": "rnn", "head": "decoder"}
    return {f"{names[path.split('.')[0]]}.{path.split('.')[1]}": value for path, value in model.state_dict().items()}


def small() -> Any:
    return models.LSTMLanguageModel(tokens=5, width=3, hidden=4, layers=1)


def test_a_safetensors_file_is_read(tmp_path: Any):
    first, second = small(), small()
    hf.save(tmp_path / "a.safetensors", state(first))
    models.load_torch(second, tmp_path / "a.safetensors")
    assert all((second.state_dict()[path] == value).all() for path, value in first.state_dict().items())


def test_the_index_of_several_files_is_read(tmp_path: Any):
    first, second = small(), small()
    values = state(first)
    weights: dict[str, str] = {}
    for number, name in enumerate(values):
        file = f"model-{number % 2}.safetensors"
        weights[name] = file
    for file in set(weights.values()):
        hf.save(tmp_path / file, {name: value for name, value in values.items() if weights[name] == file})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    models.load_torch(second, tmp_path / "model.safetensors.index.json")
    assert all((second.state_dict()[path] == value).all() for path, value in first.state_dict().items())


def test_values_get_the_dtypes_of_the_parameters():
    first, second = small(), small()
    models.load_torch(second, {name: value.astype(np.float16) for name, value in state(first).items()})
    assert second.head.bias.dtype == np.float32
    assert (second.head.bias.numpy() == first.head.bias.numpy().astype(np.float16)).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda values: values | {"classifier.weight": np.ones(3)},
            "names that the model's architecture does not have",
        ),
        (lambda values: {name: value for name, value in values.items() if "bias_ih" not in name}, "lstm.bias_ih_l0"),
        (
            lambda values: values | {"decoder.bias": np.ones(4, np.float32)},
            "'decoder.bias' does not fit the model's 'head.bias'",
        ),
        (lambda _: "weights.bin", "only safetensors files are read"),
        (lambda _: 3, "a path or a mapping"),
    ],
)
def test_what_does_not_fit_is_an_error_and_nothing_changes(change: Callable[..., Any], text: str):
    model = small()
    before = model.state_dict()
    with pytest.raises((ArgumentError, TypeError), match=text):
        models.load_torch(model, change(state(small())))
    assert all((model.state_dict()[path] == value).all() for path, value in before.items())
