"""Programs in the idioms of TensorFlow 1, Keras and PyTorch, whose results are computed again by hand."""

from __future__ import annotations

import glob
import os
import runpy
from pathlib import Path

import numpy as np
import pytest

import hybridflow as hf
import hybridflow.compat.v1 as tf

FOLDER = Path(__file__).parent / "programs_people_bring"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def tf1_linear_regression(of):
    rng = np.random.RandomState(0)
    rng.normal(0.0, 0.1, 17)
    w, b, x, y = rng.randn(), rng.randn(), of["train_x"], of["train_y"]
    for _ in range(400):
        error = w * x + b - y
        w, b = w - 0.02 * np.sum(error * x) / 17, b - 0.02 * np.sum(error) / 17
    np.testing.assert_allclose([of["weight"], of["bias"]], [w, b], rtol=1e-4)
    np.testing.assert_allclose(of["training_cost"], np.sum((w * x + b - y) ** 2) / 34, rtol=1e-3)
    assert isinstance(of["training_cost"], np.float32)


def tf1_softmax_digits(of):
    w, b = np.zeros((64, 10)), np.zeros(10)
    for i in range(200):
        rows = slice(64 * (i % 20), 64 * (i % 20 + 1))
        x = of["images"][rows].astype(np.float64)
        error = (softmax(x @ w + b) - of["labels"][rows]) / 64
        w, b = w - 0.5 * x.T @ error, b - 0.5 * error.sum(0)
    np.testing.assert_allclose(of["weights"], w, atol=1e-4)
    np.testing.assert_allclose(of["biases"], b, atol=1e-4)
    found = np.argmax(of["images"][1280:] @ w + b, 1) == of["digits"].target[1280:]
    np.testing.assert_allclose(of["test_accuracy"], found.mean(), rtol=1e-6)


def tf1_two_layers_with_summaries(of):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert (of["last_rate"], of["steps"]) == (np.float32(0.01 * 0.5**3), 150)
    np.testing.assert_array_equal(of["restored_logits"], of["logits"])
    saved = hf.load(of["path"] + ".safetensors")
    layer = [np.asarray(saved[f"layer{n}/{name}"]) for n in (1, 2) for name in ("weights", "biases")]
    hidden = np.maximum(of["images"][1280:] @ layer[0] + layer[1], 0)
    np.testing.assert_allclose(of["logits"], hidden @ layer[2] + layer[3], rtol=1e-3, atol=1e-4)
    found = np.argmax(of["logits"], 1) == of["classes"][1280:]
    np.testing.assert_allclose(of["test_accuracy"], found.mean(), rtol=1e-6)
    assert found.mean() > 0.85
    assert len(glob.glob(os.path.join(of["log_dir"], "*.safetensors"))) == 2
    read = EventAccumulator(os.path.join(of["log_dir"], "train"))
    read.Reload()
    assert {"cross_entropy", "accuracy", "layer1/summaries/mean"} <= set(read.Tags()["tensors"])
    assert [event.step for event in read.Tensors("cross_entropy")] == [0, 50, 100]
    assert read.Tags()["graph"]


def tf1_rnn(of):
    kernel, bias, w, b = [
        of["weights"][f"{name}:0"] for name in ("rnn/basic_rnn_cell/kernel", "rnn/basic_rnn_cell/bias", "softmax/W",
                                                "softmax/b")
    ]
    state = np.zeros((40, 8))
    for step in range(6):
        state = np.tanh(np.concatenate([np.eye(2)[of["bits"][:, step]], state], 1) @ kernel + bias)
        np.testing.assert_allclose(of["probabilities"][:, step], softmax(state @ w + b), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of["state"], state, rtol=1e-4, atol=1e-5)
    assert np.mean(of["training_losses"][-20:]) < 0.1 < of["training_losses"][0]


def tf1_saved_model(of):
    x, t = of["features"], of["targets"]
    w, b, vw, vb = np.zeros((4, 1)), np.zeros(1), 0.0, 0.0
    for _ in range(50):
        error = (sigmoid(x @ w + b) - t) / 60
        vw, vb = 0.9 * vw + x.T @ error, 0.9 * vb + error.sum(0)
        w, b = w - 0.5 * vw, b - 0.5 * vb
    np.testing.assert_allclose(of["expected"], sigmoid(x @ w + b), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(of["served"], of["expected"][:7], rtol=1e-5)
    np.testing.assert_allclose(of["by_name"], of["served"], rtol=1e-6)
    loaded = hf.export.load(of["export_path"]).predict(features=x.astype(np.float32))
    np.testing.assert_allclose(loaded["probability"], of["expected"], rtol=1e-5)


def keras_classifier(of):
    assert min(of["history"]["val_loss"]) < 0.6
    logits = np.asarray(hf.train.predict(of["model"], of["x_test"]))
    found = np.argmax(logits, 1)
    assert 0.85 < float(of["found"]) == pytest.approx((found == of["y_test"]).mean())
    assert of["predictions"].tolist() == found[:5].tolist()


def keras_autoencoder(of):
    assert of["history"]["loss"][-1] < 0.8 * of["history"]["loss"][0]
    named = {name: one.numpy() for name, one in of["autoencoder"].named_parameters().items()}
    encoded = np.maximum(of["x_train"][:10] @ named["encoder.0.weight"].T + named["encoder.0.bias"], 0)
    np.testing.assert_allclose(of["encoded_imgs"], encoded, rtol=1e-4, atol=1e-5)
    decoded = sigmoid(encoded @ named["decoder.0.weight"].T + named["decoder.0.bias"])
    np.testing.assert_allclose(of["decoded_imgs"], decoded, rtol=1e-4, atol=1e-5)


def keras_regression(of):
    for model in (of["model"], of["restored"]):
        np.testing.assert_allclose(model[0].weight.numpy(), [[2.0, -1.0, 0.5]], atol=5e-3)
        np.testing.assert_allclose(model[0].bias.numpy(), [3.0], atol=5e-3)
    assert len(of["history"]["loss"]) < 60


def keras_custom_loop(of):
    assert of["train_step"].trace_count == 1
    logits = of["model"](hf.asarray(of["x"])).numpy()
    assert (np.argmax(logits, 1) == of["y"]).mean() > 0.9 < float(of["train_acc"])


def torch_classifier(of):
    assert np.mean(of["losses"][-10:]) < 0.5 * np.mean(of["losses"][:10])
    assert of["correct"] > 0.8 * 517
    of["model"].eval()
    np.testing.assert_array_equal(of["restored"](of["data"]).numpy(), of["model"](of["data"]).numpy())


def torch_char_rnn(of):
    assert of["out"] == "to be or not to "[: len(of["out"])]
    assert of["losses"][-1] < 0.3


def torch_vae(of):
    assert of["losses"][-1] < 0.8 * of["losses"][0]
    assert of["sample"].shape == (8, 64)


def torch_transfer(of):
    assert (of["total"], of["trainable"]) == (354, 258)
    for one, other in zip(of["before"], of["after"], strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert of["losses"][-1] < 0.5 * of["losses"][0]
    assert of["acc"] > 0.8


def torch_custom_function(of):
    x = np.linspace(-np.pi, np.pi, 2000)
    a, b, c, d = 0.0, -1.0, 0.0, 0.3
    for _ in range(300):
        inner = c + d * x
        p = 0.5 * (5 * inner**3 - 3 * inner)
        g = 2 * (a + b * p - np.sin(x))
        slope = g * b * 1.5 * (5 * inner**2 - 1)
        a, b, c, d = a - 5e-6 * g.sum(), b - 5e-6 * (g * p).sum(), c - 5e-6 * slope.sum(), d - 5e-6 * (slope * x).sum()
    np.testing.assert_allclose([of[n].item() for n in "abcd"], [a, b, c, d], rtol=2e-3, atol=1e-5)


def torch_gan(of):
    assert of["images"].shape == (4, 1, 8, 8)
    assert np.isfinite(of["G_losses"] + of["D_losses"]).all()
    assert of["D_losses"][-1] < of["D_losses"][0]


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_they_run(name, monkeypatch, capsys):
    tf.reset_default_graph()
    globals()[name](runpy.run_path(str(FOLDER / f"{name}.py")))
