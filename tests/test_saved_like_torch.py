"""What is saved for gradients is no more than PyTorch saves: operation by operation, and for whole models.

Both sides count unique storages. Numbers that PyTorch keeps as Python scalars are arrays of one element here, so those
are left out; parameters are left out where a model has them. PyTorch's figures come from its own hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.autodiff.recorded_memory import RecordedMemory

torch = pytest.importorskip("torch")
TF = torch.nn.functional


def torch_saves(function: Callable[..., Any], *tensors: Any, parameters: Any = ()) -> int:
    """Return the bytes of the unique storages that PyTorch saves, parameters excluded."""
    skipped = {one.untyped_storage().data_ptr() for one in parameters}
    found: dict[int, Any] = {}

    def pack(x: Any) -> Any:
        storage = x.untyped_storage()
        if storage.data_ptr() not in skipped:
            found[storage.data_ptr()] = storage  # kept, so that no address is used again
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function(*tensors)
    return sum(storage.nbytes() for storage in found.values())


def counted(memory: RecordedMemory) -> int:
    return sum(one.bytes for one in memory if one.kind != "parameter" and one.spec.size > 1)


# -- operations ---------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 64)).astype(np.float32)
P = np.abs(X) + np.float32(0.5)
IMAGE = RNG.standard_normal((2, 8, 16, 16)).astype(np.float32)
KERNEL = RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)
IDS = RNG.integers(0, 64, 128).astype(np.int32)
LABELS = RNG.integers(0, 64, 64).astype(np.int32)
PICKS = RNG.integers(0, 64, (64, 8)).astype(np.int32)
Q, K, V = RNG.standard_normal((3, 2, 4, 32, 16)).astype(np.float32)
POSITIVE = (X @ X.T + 64 * np.eye(64)).astype(np.float32)
CHANNEL = P[:4, :8]
UNARY = {
    **{name: (getattr(hf, name), getattr(torch, name), X) for name in (
        "tanh", "exp", "abs", "sin", "cos", "tan", "expm1", "square", "sum", "mean", "max", "tril", "erf",
    )},
    **{name: (getattr(hf, name), getattr(torch, name), P) for name in ("log", "sqrt", "rsqrt", "reciprocal", "log1p")},
    **{name: (getattr(hf.nn, name), getattr(TF, name), X) for name in (
        "relu", "relu6", "gelu", "silu", "sigmoid", "softplus", "elu", "celu", "selu", "leaky_relu", "mish",
        "softsign",
    )},
    "hard_swish": (hf.nn.hard_swish, TF.hardswish, X),
    "hard_sigmoid": (hf.nn.hard_sigmoid, TF.hardsigmoid, X),
    "gelu_tanh": (lambda x: hf.nn.gelu(x, approximate=True), lambda x: TF.gelu(x, approximate="tanh"), X),
    "dropout": (lambda x: hf.nn.dropout(x, 0.5), lambda x: TF.dropout(x, 0.5), X),
    "softmax": (hf.nn.softmax, lambda x: TF.softmax(x, -1), X),
    "log_softmax": (hf.nn.log_softmax, lambda x: TF.log_softmax(x, -1), X),
    "logsumexp": (hf.nn.logsumexp, lambda x: torch.logsumexp(x, -1), X),
    "layer_norm": (hf.nn.layer_norm, lambda x: TF.layer_norm(x, (64,)), X),
    "rms_norm": (hf.nn.rms_norm, lambda x: TF.rms_norm(x, (64,)), X),
    "l2_normalize": (hf.nn.l2_normalize, TF.normalize, X),
    "group_norm": (lambda x: hf.nn.group_norm(x, 2), lambda x: TF.group_norm(x, 2), IMAGE),
    "max_pool": (lambda x: hf.nn.max_pool(x, 2), lambda x: TF.max_pool2d(x, 2), IMAGE),
    "avg_pool": (lambda x: hf.nn.avg_pool(x, 2), lambda x: TF.avg_pool2d(x, 2), IMAGE),
    "max_along": (lambda x: hf.max(x, axis=1), lambda x: torch.amax(x, 1), X),
    "prod": (lambda x: hf.prod(x, axis=1), lambda x: torch.prod(x, 1), X),
    "var": (lambda x: hf.var(x, axis=1), lambda x: torch.var(x, 1), X),
    "std": (lambda x: hf.std(x, axis=1), lambda x: torch.std(x, 1), X),
    "norm": (hf.linalg.vector_norm, torch.linalg.vector_norm, X),
    "cumulative_sum": (lambda x: hf.cumulative_sum(x, axis=1), lambda x: torch.cumsum(x, 1), X),
    "cumulative_prod": (lambda x: hf.cumulative_prod(x, axis=1), lambda x: torch.cumprod(x, 1), X),
    "sort": (lambda x: hf.sort(x, axis=1), lambda x: torch.sort(x, 1)[0], X),
    "pow_3": (lambda x: x**3, lambda x: x**3, X),
    "pow_half": (lambda x: x**0.5, lambda x: x**0.5, P),
    "of_a_number_to_the": (lambda x: 2.0**x, lambda x: 2.0**x, X),
    "times_a_number": (lambda x: x * 2.0, lambda x: x * 2.0, X),
    "by_a_number": (lambda x: x / 2.0, lambda x: x / 2.0, X),
    "number_by": (lambda x: 1.0 / x, lambda x: 1.0 / x, P),
    "modulo_a_number": (lambda x: x % 2.0, lambda x: x % 2.0, X),
    "times_a_constant": (lambda x: x * hf.asarray(P), lambda x: x * torch.tensor(P), X),
    "clip": (lambda x: hf.clip(x, -1.0, 1.0), lambda x: torch.clamp(x, -1, 1), X),
    "reshape": (lambda x: hf.reshape(x, (32, 128)), lambda x: x.reshape(32, 128), X),
    "getitem": (lambda x: x[3:9, ::2], lambda x: x[3:9, ::2], X),
    "rows": (lambda x: x[hf.asarray(IDS)], lambda x: x[torch.tensor(IDS).long()], X),
    "pad": (lambda x: hf.pad(x, 1), lambda x: TF.pad(x, (1, 1, 1, 1)), X),
    "astype": (lambda x: hf.astype(x, hf.float64), lambda x: x.double(), X),
    "fft": (lambda x: hf.real(hf.fft.fft(x)), lambda x: torch.fft.fft(x).real, X),
    "cholesky": (hf.linalg.cholesky, torch.linalg.cholesky, POSITIVE),
    "inv": (hf.linalg.inv, torch.linalg.inv, POSITIVE),
    "det": (hf.linalg.det, torch.linalg.det, X / 8),
    "eigh": (lambda x: hf.linalg.eigh(x)[0], lambda x: torch.linalg.eigh(x)[0], POSITIVE),
    "qr": (lambda x: hf.linalg.qr(x)[0], lambda x: torch.linalg.qr(x)[0], X),
    "mean_of_labels": (
        lambda x: hf.nn.softmax_cross_entropy(x, LABELS),
        lambda x: TF.cross_entropy(x, torch.tensor(LABELS).long(), reduction="none"), X,
    ),
}
SEVERAL = {
    **{name: (getattr(hf, name), getattr(torch, name), (X, P)) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "atan2", "hypot", "logaddexp", "copysign",
        "remainder", "matmul",
    )},
    "power": (hf.power, torch.pow, (P, X)),
    "where": (lambda x, y: hf.where(x > 0, x, y), lambda x, y: torch.where(x > 0, x, y), (X, P)),
    "concat": (lambda a, b: hf.concat([a, b]), lambda a, b: torch.cat([a, b]), (X, P)),
    "outer": (hf.linalg.outer, torch.outer, (X[0], P[0])),
    "einsum": (lambda a, b: hf.einsum("bhqd,bhkd->bhqk", a, b), lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b),
               (Q, K)),
    "solve": (hf.linalg.solve, torch.linalg.solve, (POSITIVE, P)),
    "conv": (lambda x, k: hf.nn.conv(x, k, padding=1), lambda x, k: TF.conv2d(x, k, padding=1), (IMAGE, KERNEL)),
    "conv_transpose": (hf.nn.conv_transpose, TF.conv_transpose2d, (IMAGE, KERNEL)),
    "layer_norm_with_parameters": (
        hf.nn.layer_norm, lambda x, a, b: TF.layer_norm(x, (64,), a, b), (X, X[0], X[1]),
    ),
    "rms_norm_with_parameters": (hf.nn.rms_norm, lambda x, s: TF.rms_norm(x, (64,), s), (X, X[0])),
    "batch_norm": (
        lambda x, a, b: hf.nn.batch_norm(x, *hf.nn.moments(x, (0, 2, 3)), a, b),
        lambda x, a, b: TF.batch_norm(x, None, None, a, b, True), (IMAGE, CHANNEL[0], CHANNEL[1]),
    ),
    "mse": (hf.nn.mse, lambda a, b: TF.mse_loss(a, b, reduction="none"), (X, P)),
    "huber": (hf.nn.huber, lambda a, b: TF.huber_loss(a, b, reduction="none"), (X, P)),
    "sigmoid_cross_entropy": (
        lambda a, b: hf.nn.sigmoid_cross_entropy(a, hf.stop_gradient(b)),
        lambda a, b: TF.binary_cross_entropy_with_logits(a, b.detach(), reduction="none"), (X, P),
    ),
    "attention": (hf.nn.scaled_dot_product_attention, TF.scaled_dot_product_attention, (Q, K, V)),
    "causal_attention": (
        lambda q, k, v: hf.nn.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, K, V),
    ),
}
PAIRS = {**{name: (ours, theirs, (x,)) for name, (ours, theirs, x) in UNARY.items()}, **SEVERAL}


@pytest.mark.parametrize("name", PAIRS)
def test_an_operation_saves_no_more(name):
    ours, theirs, arrays = PAIRS[name]
    expected = torch_saves(theirs, *[torch.tensor(array, requires_grad=True) for array in arrays])
    tensors = [hf.asarray(array) for array in arrays]
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        y = ours(*tensors)
    assert counted(tape.memory()) <= expected
    del y


def test_a_first_layer_saves_its_input_only():
    """The weight is read by the gradient of the input alone, which nobody asks for."""
    w = hf.Variable(X)
    with hf.GradientTape() as tape:
        y = hf.asarray(P) @ w
    assert [(one.op, one.kind) for one in tape.memory()] == [("matmul", "input")]
    del y


def test_group_norm_with_parameters_saves_no_more():
    scale, shift = (torch.tensor(one, requires_grad=True) for one in CHANNEL[:2])
    image = torch.tensor(IMAGE, requires_grad=True)
    expected = torch_saves(lambda x: TF.group_norm(x, 2, scale, shift), image, parameters=(scale, shift))
    x, a, b = hf.asarray(IMAGE), hf.Variable(CHANNEL[0]), hf.Variable(CHANNEL[1])
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.nn.group_norm(x, 2, a, b)
    assert counted(tape.memory()) <= expected
    del y


def test_attention_is_not_quadratic_in_what_it_saves():
    def saved(length: int) -> int:
        q = hf.ones((1, 2, length, 8))
        with hf.GradientTape() as tape:
            tape.watch(q)
            y = hf.nn.scaled_dot_product_attention(q, q, q, is_causal=True)
        found = counted(tape.memory())
        del y
        return found

    assert saved(256) == 4 * saved(64)


# -- models -------------------------------------------------------------------------------------------------------


def mlp() -> tuple[Any, Any, list[Any]]:
    layers = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 128), torch.nn.GELU(),
        torch.nn.Linear(128, 64),
    )

    def ours(w: list[Any], x: Any) -> Any:
        h = hf.nn.dropout(hf.nn.relu(x @ w[0].mT + w[1]), 0.1)
        h = hf.nn.gelu(h @ w[2].mT + w[3])
        return hf.mean(hf.nn.softmax_cross_entropy(h @ w[4].mT + w[5], LABELS))

    return lambda x: TF.cross_entropy(layers(x), torch.tensor(LABELS).long()), ours, [X, layers]


def cnn() -> tuple[Any, Any, list[Any]]:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.AvgPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(256, 64),
    )

    def ours(w: list[Any], x: Any) -> Any:
        h = hf.nn.conv(x, w[0], padding=1) + hf.reshape(w[1], (16, 1, 1))
        h = hf.nn.batch_norm(h, *hf.nn.moments(h, (0, 2, 3)), w[2], w[3])
        h = hf.nn.max_pool(hf.nn.relu(h), 2)
        h = hf.nn.relu(hf.nn.conv(h, w[4], padding=1) + hf.reshape(w[5], (16, 1, 1)))
        h = hf.reshape(hf.nn.avg_pool(h, 2), (2, 256))
        return hf.mean(hf.nn.softmax_cross_entropy(h @ w[6].mT + w[7], LABELS[:2]))

    return lambda x: TF.cross_entropy(net(x), torch.tensor(LABELS[:2]).long()), ours, [IMAGE, net]


def transformer() -> tuple[Any, Any, list[Any]]:
    """A pre-norm block with causal attention."""
    parts = torch.nn.ModuleList([
        torch.nn.LayerNorm(64), torch.nn.Linear(64, 192), torch.nn.Linear(64, 64), torch.nn.LayerNorm(64),
        torch.nn.Linear(64, 256), torch.nn.Linear(256, 64),
    ])

    def theirs(x: Any) -> Any:
        h = parts[1](parts[0](x)).reshape(4, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
        a = TF.scaled_dot_product_attention(h[0], h[1], h[2], is_causal=True)
        x = x + parts[2](a.transpose(1, 2).reshape(4, 16, 64))
        x = x + parts[5](TF.gelu(parts[4](parts[3](x))))
        return (x * x).mean()

    def ours(w: list[Any], x: Any) -> Any:
        h = hf.nn.layer_norm(x, w[0], w[1]) @ w[2].mT + w[3]
        h = hf.permute_dims(hf.reshape(h, (4, 16, 3, 4, 16)), (2, 0, 3, 1, 4))
        a = hf.nn.scaled_dot_product_attention(h[0], h[1], h[2], is_causal=True)
        x = x + (hf.reshape(hf.permute_dims(a, (0, 2, 1, 3)), (4, 16, 64)) @ w[4].mT + w[5])
        h = hf.nn.layer_norm(x, w[6], w[7]) @ w[8].mT + w[9]
        x = x + (hf.nn.gelu(h) @ w[10].mT + w[11])
        return hf.mean(x * x)

    return theirs, ours, [X.reshape(4, 16, 64), parts]


def lstm() -> tuple[Any, Any, list[Any]]:
    cell = torch.nn.ParameterList([
        torch.nn.Parameter(0.1 * torch.randn(64, 128)), torch.nn.Parameter(0.1 * torch.randn(32, 128)),
        torch.nn.Parameter(torch.zeros(128)),
    ])

    def run(w: Any, x: Any, h: Any, c: Any, sigmoid: Any, tanh: Any, split: Any) -> Any:
        for t in range(4):
            i, f, o, g = split(x[t] @ w[0] + h @ w[1] + w[2])
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(c)
        return (h * h).mean()

    def theirs(x: Any) -> Any:
        zeros = torch.zeros(16, 32)
        return run(cell, x, zeros, zeros, torch.sigmoid, torch.tanh, lambda z: z.split(32, -1))

    def ours(w: list[Any], x: Any) -> Any:
        zeros = hf.zeros((16, 32))
        return run(w, x, zeros, zeros, hf.nn.sigmoid, hf.tanh, lambda z: hf.split(z, 4, -1))

    return theirs, ours, [X.reshape(4, 16, 64), cell]


@pytest.mark.parametrize("model", [mlp, cnn, transformer, lstm], ids=lambda model: model.__name__)
def test_a_model_saves_no_more(model):
    theirs, ours, (array, module) = model()
    given = list(module.parameters())
    expected = torch_saves(theirs, torch.tensor(array), parameters=given)
    parameters = [hf.Variable(one.detach().numpy()) for one in given]
    with hf.GradientTape() as tape:
        loss = ours(parameters, hf.asarray(array))
    memory = tape.memory()
    assert counted(memory) <= expected, str(memory)
    if model is not mlp:  # which drops at random
        np.testing.assert_allclose(loss.item(), theirs(torch.tensor(array)).item(), rtol=1e-5)
