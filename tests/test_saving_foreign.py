"""Weights of PyTorch's and Keras's layers in ours: the same results."""

from __future__ import annotations

import importlib.util
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.cli import main
from hybridflow.core.errors import ArgumentError, ArgumentTypeError


def compare(model: Any, other: Any, *inputs: Any) -> None:
    """Compare a model of ours with one of PyTorch in evaluation mode."""
    import torch

    with torch.no_grad():
        expected = other.eval()(*[torch.from_numpy(one) for one in inputs])
    found = model.eval()(*[hf.asarray(one) for one in inputs])
    expected, found = [one[0] if isinstance(one, tuple) else one for one in (expected, found)]
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


def saved(other: Any, path: Path) -> Path:
    """Save a model of PyTorch, its parameters and averages being no defaults, and return the path."""
    import torch

    with torch.no_grad():
        for value in other.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) * 0.5 + 0.1)
    hf.save(path, other.state_dict())
    return path


LAYERS = {
    "Linear": (lambda n: n.Linear(5, 3), (2, 5)),
    "Linear without bias": (lambda n: n.Linear(5, 3, bias=False), (2, 5)),
    "Conv1d": (lambda n: n.Conv1d(4, 6, 3, padding=1), (2, 4, 7)),
    "Conv2d": (lambda n: n.Conv2d(4, 6, (3, 2), stride=2, groups=2), (2, 4, 7, 6)),
    "Conv3d": (lambda n: n.Conv3d(2, 3, 2), (1, 2, 3, 4, 5)),
    "ConvTranspose1d": (lambda n: n.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 7)),
    "ConvTranspose2d": (lambda n: n.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 6)),
    "BatchNorm1d": (lambda n: n.BatchNorm1d(4), (3, 4)),
    "BatchNorm2d": (lambda n: n.BatchNorm2d(4), (3, 4, 5, 5)),
    "LayerNorm": (lambda n: n.LayerNorm(4), (3, 4)),
    "GroupNorm": (lambda n: n.GroupNorm(2, 4), (3, 4, 5)),
    "RMSNorm": (lambda n: n.RMSNorm(4, **({"eps": 1e-6} if n is not nn else {})), (3, 4)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_of_torch(case: str, tmp_path: Path, rng: np.random.Generator):
    torch = pytest.importorskip("torch")
    make, shape = LAYERS[case]
    other, model = make(torch.nn), make(nn)
    hf.load(saved(other, tmp_path / "one"), into=model, mapping="torch")
    compare(model, other, rng.normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}, {"bias": False}])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_of_torch(kind: str, options: Any, tmp_path: Path, rng: np.random.Generator):
    torch = pytest.importorskip("torch")
    theirs = {"num_layers" if name == "layers" else name: value for name, value in options.items()}
    other = getattr(torch.nn, kind)(3, 4, batch_first=True, **theirs)
    model = getattr(nn, kind)(3, 4, **options)
    hf.load(saved(other, tmp_path / "one"), into=model)
    compare(model, other, rng.normal(size=(2, 5, 3)).astype(np.float32))


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5, "vdim": 6}])
def test_attention_of_torch(options: Any, tmp_path: Path, rng: np.random.Generator):
    torch = pytest.importorskip("torch")
    other = torch.nn.MultiheadAttention(8, 2, batch_first=True, **options)
    model = nn.MultiHeadAttention(8, 2, bias=options.get("bias", True))
    inputs = [rng.normal(size=(2, 4, size)).astype(np.float32) for size in (8, options.get("kdim", 8), 8)]
    inputs[2] = rng.normal(size=(2, 4, options.get("vdim", 8))).astype(np.float32)
    model(*[hf.asarray(one) for one in inputs])
    hf.load(saved(other, tmp_path / "one"), into=model, mapping="torch")
    compare(model, other, *inputs)


def test_an_embedding_and_a_whole_model_of_torch_under_other_names(tmp_path: Path):
    torch = pytest.importorskip("torch")

    class Other(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 8)
            self.encoder = torch.nn.ModuleList([torch.nn.MultiheadAttention(8, 2, batch_first=True)])
            self.head = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 3), torch.nn.ReLU())
            self.register_buffer("places", torch.arange(4))

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            return self.head(self.encoder[0](x, x, x)[0])

    class Model(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Embedding(10, 8)
            self.layers = [nn.MultiHeadAttention(8, 2)]
            self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3), nn.relu)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layers[0](self.table(ids)))

    other, model = Other(), Model()
    ids = np.arange(8).reshape(2, 4)
    model(hf.asarray(ids))
    names = {"embed": "table", "encoder": "layers", "places": None}
    path = saved(other, tmp_path / "one")
    hf.load(path, into=model, mapping=["torch", names])
    compare(model, other, ids)
    with pytest.raises(ArgumentError, match=r"missing: table.weight, layers.0.query.weight.*embed.weight.*places"):
        hf.load(path, into=model, mapping="torch")
    with pytest.raises(ArgumentTypeError, match="no module of hybridflow"):
        hf.save(tmp_path / "two", other)


def test_bfloat16_of_torch(tmp_path: Path):
    torch = pytest.importorskip("torch")
    hf.save(tmp_path / "one", {"x": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "y": torch.tensor(3)})
    found = hf.load(tmp_path / "one")
    assert (found["x"].dtype, found["x"].tolist(), found["y"].item()) == (hf.bfloat16, [1.5, -2.0], 3)


# -- mappings of paths ------------------------------------------------------------------------------------------------


def test_paths_go_by_their_beginnings_or_a_function(tmp_path: Path):
    hf.save(tmp_path / "one", {"a.x": 1, "a.b.x": 2, "ab": 3, "c": 4})

    def names(mapping: Any) -> dict[str, Any]:
        return {path: one.item() for path, one in hf.load(tmp_path / "one", mapping=mapping).items()}

    assert names({"a": "z", "a.b": "y", "c": None}) == {"z.x": 1, "y.x": 2, "ab": 3}
    assert names({"": "m"}) == {"m.a.x": 1, "m.a.b.x": 2, "m.ab": 3, "m.c": 4}
    assert names({"a": ""}) == {"x": 1, "b.x": 2, "ab": 3, "c": 4}
    assert names([{"a": "z"}, {"z": "y"}]) == {"y.x": 1, "y.b.x": 2, "ab": 3, "c": 4}
    assert names(lambda path: path[::-1] if "." in path else None) == {"x.a": 1, "x.b.a": 2}
    for mapping, error, text in (
        ({"ab": "c"}, ArgumentError, "gives 'ab' and 'c' one path"),
        ("tensorflow", ArgumentError, "Choose of 'torch', 'keras'"),
        ("torch", ArgumentError, "goes by layers, and there are none"),
        ([3], ArgumentTypeError, "an int is no mapping of paths"),
    ):
        with pytest.raises(error, match=text):
            names(mapping)


# -- Keras ------------------------------------------------------------------------------------------------------------

KERAS = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
from keras import layers as L
rng = np.random.default_rng(0)
made = {
    "dense": (L.Dense(3), (2, 5)),
    "conv": (L.Conv2D(6, (3, 2), groups=2), (2, 7, 6, 4)),
    "depthwise": (L.DepthwiseConv2D(3, depth_multiplier=2), (2, 7, 6, 4)),
    "transposed": (L.Conv2DTranspose(6, 3, strides=2), (2, 5, 4, 3)),
    "embedding": (L.Embedding(10, 4), None),
    "batch": (L.BatchNormalization(), (3, 4)),
    "layer": (L.LayerNormalization(), (3, 4)),
    "group": (L.GroupNormalization(2), (3, 5, 4)),
    "rms": (L.RMSNormalization(), (3, 4)),
    "lstm": (L.LSTM(4, return_sequences=True), (2, 5, 3)),
    "gru": (L.GRU(4, return_sequences=True), (2, 5, 3)),
    "rnn": (L.SimpleRNN(4, return_sequences=True), (2, 5, 3)),
    "both": (L.Bidirectional(L.LSTM(4, return_sequences=True)), (2, 5, 3)),
    "attention": (L.MultiHeadAttention(2, 3, output_shape=6), (2, 5, 6)),
}
arrays = {}
for name, (layer, shape) in made.items():
    x = np.arange(6).reshape(2, 3) if shape is None else rng.normal(size=shape).astype("float32")
    inputs = (x, x) if name == "attention" else (x,)
    layer(*inputs)
    layer.set_weights([rng.uniform(0.1, 0.6, w.shape).astype(w.dtype) for w in layer.get_weights()])
    for w in layer.variables:
        arrays["w/" + name + "/" + w.path.partition("/")[2]] = np.asarray(w)
    arrays["x/" + name], arrays["y/" + name] = x, np.asarray(layer(*inputs))
np.savez(sys.argv[1], **arrays)
"""
OURS: dict[str, Any] = {
    "dense": lambda: nn.Linear(5, 3),
    "conv": lambda: nn.Conv2d(4, 6, (3, 2), groups=2, channels_last=True),
    "depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4, channels_last=True),
    "transposed": lambda: nn.ConvTranspose2d(3, 6, 3, stride=2, channels_last=True),
    "embedding": lambda: nn.Embedding(10, 4),
    "batch": lambda: nn.BatchNorm(4, epsilon=1e-3),
    "layer": lambda: nn.LayerNorm(4, epsilon=1e-3),
    "group": lambda: nn.GroupNorm(2, 4, epsilon=1e-3),
    "rms": lambda: nn.RMSNorm(4, epsilon=1e-6),
    "lstm": lambda: nn.LSTM(3, 4),
    "gru": lambda: nn.GRU(3, 4),
    "rnn": lambda: nn.RNN(3, 4),
    "both": lambda: nn.LSTM(3, 4, bidirectional=True),
    "attention": lambda: nn.MultiHeadAttention(6, 2),
}


@pytest.fixture(scope="module")
def keras_results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Keras computed, in a process of its own."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    path = tmp_path_factory.mktemp("keras") / "results.npz"
    subprocess.run([sys.executable, "-W", "ignore", "-c", KERAS, str(path)], check=True, timeout=300)
    return np.load(path)


@pytest.mark.parametrize("case", OURS)
def test_layers_of_keras(case: str, keras_results: Any, tmp_path: Path):
    start = f"w/{case}/"
    values = {name[2:]: keras_results[name] for name in keras_results.files if name.startswith(start)}
    hf.save(tmp_path / "one", values)
    model = OURS[case]().eval()
    x, y = keras_results[f"x/{case}"], keras_results[f"y/{case}"]
    given = hf.asarray(np.moveaxis(x, -1, 1) if case == "group" else x)
    model(given)
    hf.load(tmp_path / "one", into={case: model}, mapping="keras")
    found = model(given)
    found = found[0] if isinstance(found, tuple) else found
    expected = np.moveaxis(y, -1, 1) if case == "group" else y
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


PARTS = ("query", "key", "value")


class Block(nn.Module):
    def __init__(self):
        self.norm, self.attn = nn.BatchNorm(8), nn.MultiHeadAttention(8, 2, features=8)

    def forward(self, x):
        return self.attn(x)


def pytorchs(block):
    """Return the values of a block under PyTorch's names."""
    values = block.state_dict()
    for end in ("weight", "bias"):
        values[f"attn.in_proj_{end}"] = np.concatenate([values.pop(f"attn.{one}.{end}") for one in PARTS])
        values[f"attn.out_proj.{end}"] = values.pop(f"attn.out.{end}")
    return values | {"norm.num_batches_tracked": np.asarray(0)}


def test_a_state_dict_with_the_names_of_pytorchs_layers(tmp_path):
    own, x = Block(), hf.random.normal((2, 3, 8))
    values = pytorchs(own)
    hf.save(tmp_path / "theirs.safetensors", values)
    ways = [lambda block, **how: block.load_state_dict(values, **how),
            lambda block, **how: hf.load(tmp_path / "theirs.safetensors", into=block, **how)]
    for way in ways:
        with pytest.raises(ArgumentError, match=r'names of PyTorch\'s layers: mapping="torch"'):
            way(Block())
        with pytest.raises(ArgumentError, match="strict=False takes what is there"):
            way(nn.Linear(3, 3))
        block = Block()
        way(block, mapping="torch")
        hf.testing.assert_same(lambda v, block=block: block(v), x)
        assert hf.all(block(x) == own(x))
    with pytest.raises(ArgumentError, match="of another shape"):
        Block().load_state_dict({**values, "attn.out_proj.bias": np.zeros(3, np.float32)}, mapping="torch")


def test_what_pytorchs_attention_is_called_with_says_what_it_is_here():
    attend, x = nn.MultiHeadAttention(8, 2), hf.ones((1, 3, 8))
    assert attend(x, need_weights=False).shape == (1, 3, 8)
    for keyword, said in [("attn_mask", "Write mask="), ("key_padding_mask", "lengths="), ("need_weights", "alone"),
                          ("msk", r"Did you mean mask=\? It takes: query")]:
        with pytest.raises(TypeError, match=said):
            attend(x, **{keyword: x})
    with pytest.raises(AttributeError, match="True where a query may attend"):
        nn.MultiheadAttention(8, 2)


def of_numpy(save):
    file = io.BytesIO()
    save(file, np.ones(2))
    return file.getvalue()


KINDS = {
    "a safetensors file": lambda path: hf.save(path, {"a": hf.ones(2)}),
    "an artifact": lambda path: hf.export.save(path, lambda x: x, hf.TensorSpec([2])),
    "an ONNX model": lambda path: path.write_bytes(bytes.fromhex("080a120a687962726964666c6f77")),
    "arrays of NumPy": lambda path: path.write_bytes(of_numpy(np.savez)),
    "an array of NumPy": lambda path: path.write_bytes(of_numpy(np.save)),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"a": [1, 2, 3]})),
    "an HDF5 file": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n and more"),
    "the folder of a run": lambda path: (path.mkdir(), hf.save(path / "step-000001.safetensors", {"a": hf.ones(2)})),
    "a folder": lambda path: path.mkdir(),
}
READERS = {
    "hf.load": ("a safetensors file", hf.load),
    "hf.export.load": ("an artifact", hf.export.load),
    "inspect": ("an artifact", lambda path: main(["inspect", str(path)])),
    "run": ("an artifact", lambda path: main(["run", str(path), __file__, f"{path}.npz"])),
    "serve": ("an artifact", lambda path: main(["serve", str(path)])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_says_what_a_file_is_and_what_reads_it(reader, kind, tmp_path, capsys):
    own, read = READERS[reader]
    if kind == own or (reader == "serve" and "folder" in kind):  # it serves folders of artifacts
        return
    path = tmp_path / "a"
    KINDS[kind](path)
    try:
        failed = read(path)
        text = capsys.readouterr().err
        assert failed, "it was read"
    except (OSError, ValueError) as error:
        text = str(error)
    text = re.sub(r"\s", "", text)  # a terminal folds it
    assert re.sub(r"\s", "", f"{str(path)!r} is {kind}") in text
    assert f"reads{re.sub('an? | ', '', own)}s" in text
    assert text.endswith(".")  # with a next step
