"""Further activations, norms and losses against jax and torch, and gradients where branches are guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.ops import nn
from tests.modes import both, close
from tests.test_nn import check, draw

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu6": (nn.relu6, jax.nn.relu6),
    "hard_sigmoid": (nn.hard_sigmoid, jax.nn.hard_sigmoid),
    "hard_tanh": (nn.hard_tanh, jax.nn.hard_tanh),
    "celu": (lambda x: nn.celu(x, 0.7), lambda x: jax.nn.celu(x, 0.7)),
    "selu": (nn.selu, jax.nn.selu),
    "mish": (nn.mish, jax.nn.mish),
    "log_sigmoid": (nn.log_sigmoid, jax.nn.log_sigmoid),
    "swish": (lambda x: nn.swish(x, 1.7), lambda x: x * jax.nn.sigmoid(1.7 * x)),
    "glu": (lambda x: nn.glu(x, 0), lambda x: jax.nn.glu(x, 0)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str):
    check(*ACTIVATIONS[name], draw(4, 3) * 4)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS.keys() - {"glu"}))
def test_far_out(name: str):
    fn, reference = ACTIVATIONS[name]
    x = np.asarray([-200, -89, -20, 0.0, 20, 89, 200, np.nan], np.float32)
    np.testing.assert_allclose(both(fn, x), reference(x), rtol=1e-5, atol=1e-30)
    slope = both(hf.grad(lambda x: hf.sum(fn(x))), x[:-1])
    assert np.isfinite(slope.numpy()).all()


def test_kinks():
    def slope(fn, x):
        return both(hf.grad(lambda x: hf.sum(fn(x))), np.asarray(x, np.float32)).tolist()

    assert slope(nn.relu6, [0.0, 3.0, 6.0]) == [0, 1, 0]
    close(np.asarray(slope(nn.hard_sigmoid, [-3.0, 0.0, 3.0])), np.asarray([0, 1 / 6, 0]))
    assert slope(nn.hard_tanh, [-1.0, 0.0, 1.0, 2.0]) == [1, 1, 1, 0]
    assert slope(nn.celu, [0.0]) == [1]
    assert slope(lambda x: nn.mae(x, 1.0), [0.0, 1.0, 2.0]) == [-1, 0, 1]
    assert slope(lambda x: nn.hinge(x, 1.0), [0.0, 1.0, 2.0]) == [-1, 0, 0]


def test_swish_and_glu():
    x = hf.asarray(draw(3))
    assert nn.swish(x).tolist() == nn.silu(x).tolist()
    assert hf.compile(nn.swish).graph(x).nodes[0].op.name == "silu"
    close(hf.grad(lambda beta: hf.sum(nn.swish(x, beta)))(2.0), jax.grad(
        lambda beta: jnp.sum(x.numpy() * jax.nn.sigmoid(beta * x.numpy())))(2.0))
    with pytest.raises(ValueError, match="size 3 has no two halves"):
        nn.glu(x)


def test_instance_norm_is_torchs():
    torch = pytest.importorskip("torch")
    x, scale, shift = draw(2, 3, 4, 5), draw(3), draw(3)
    found = both(nn.instance_norm, x, scale, shift)
    expected = torch.nn.functional.instance_norm(*map(torch.tensor, (x,)), weight=torch.tensor(scale),
                                                 bias=torch.tensor(shift))
    close(found, expected.numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="batch, channels and space"):
        nn.instance_norm(draw(2, 3))


def _log_softmax(x: Any) -> Any:
    return jax.nn.log_softmax(x)


def test_losses_of_classes():
    logits, labels = draw(4, 5), np.asarray([0, 4, 2, 2])
    check(
        lambda x: nn.softmax_cross_entropy(x, labels, label_smoothing=0.2),
        lambda x: -jnp.sum((jax.nn.one_hot(labels, 5) * 0.8 + 0.04) * _log_softmax(x), -1),
        logits,
    )
    dense = np.random.default_rng(1).dirichlet(np.ones(5), 4).astype(np.float32)
    check(
        lambda x, p: nn.softmax_cross_entropy(x, p, label_smoothing=0.2),
        lambda x, p: -jnp.sum((p * 0.8 + 0.04 * jnp.sum(p, -1, keepdims=True)) * _log_softmax(x), -1),
        logits, dense, order=1,
    )
    check(lambda x: nn.nll(nn.log_softmax(x), labels), lambda x: -_log_softmax(x)[jnp.arange(4), labels], logits,
          order=1)
    check(
        lambda p, x: nn.kl_div(p, nn.log_softmax(x)),
        lambda p, x: jnp.sum(p * (jnp.log(p) - _log_softmax(x)), -1),
        dense, logits, order=1,
    )
    for bad in (lambda: nn.nll(logits, labels[:3]), lambda: nn.kl_div(1.0, 0.0)):
        with pytest.raises(ValueError, match=r"nll|kl_div"):
            bad()
    with pytest.raises(ValueError, match="is no share"):
        nn.softmax_cross_entropy(logits, labels, label_smoothing=1.5)
    with pytest.raises(IndexError, match="not in 0 to 4"):
        nn.nll(logits, labels + 1)


def test_label_smoothing_is_torchs():
    torch = pytest.importorskip("torch")
    logits, labels = draw(4, 5), np.asarray([0, 4, 2, 2])
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits), torch.tensor(labels), label_smoothing=0.1, reduction="none"
    )
    close(both(lambda x: nn.softmax_cross_entropy(x, labels, label_smoothing=0.1), logits), expected.numpy())


def test_other_losses():
    a, b = draw(4, 3), draw(4, 3, seed=2)
    check(nn.mae, lambda a, b: jnp.abs(a - b), a, b, order=1)
    signs = np.sign(b)
    check(lambda x: nn.hinge(x, signs), lambda x: jnp.maximum(0, 1 - signs * x), a, order=1)

    def cosine(a, b):
        return jnp.sum(a * b, -1) / (jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1))

    check(nn.cosine_similarity, cosine, a, b)
    close(both(lambda a, b: nn.cosine_similarity(a, b, 0), a, b[:, :1]), cosine(a.T, b[:, :1].T))


# -- one and three spatial axes -----------------------------------------------------------------------------------


def _is_torchs(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> None:
    torch = pytest.importorskip("torch")
    expected = [torch.tensor(x, requires_grad=True) for x in arrays]
    result = theirs(*expected, **options)
    result.pow(2).sum().backward()
    tensors = [hf.asarray(x) for x in arrays]
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        y = ours(*tensors, **options)
        loss = hf.sum(y * y)
    close(y, result.detach().numpy(), atol=1e-4)
    for one, other in zip(tape.gradient(loss, tensors), expected, strict=True):
        close(one, other.grad.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("spatial", [1, 3])
def test_convolutions_and_pooling_of_other_spatial_axes_are_torchs(spatial: int):
    functional = pytest.importorskip("torch").nn.functional
    x = draw(2, 4, *[5] * spatial)
    options = {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}
    _is_torchs(nn.conv, getattr(functional, f"conv{spatial}d"), x, draw(6, 2, *[2] * spatial), **options)
    _is_torchs(nn.conv_transpose, getattr(functional, f"conv_transpose{spatial}d"), x, draw(4, 3, *[3] * spatial),
               **options)
    for kind in ("max", "avg"):
        ours, theirs = getattr(nn, f"{kind}_pool"), getattr(functional, f"{kind}_pool{spatial}d")
        _is_torchs(lambda x, ours=ours: ours(x, 3, 2), lambda x, theirs=theirs: theirs(x, 3, 2), x)


# -- guarded branches ---------------------------------------------------------------------------------------------

ZERO = np.zeros(3, np.float32)
GUARDED: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "kl_div of hidden classes": (
        lambda x: nn.kl_div(np.asarray([0.0, 0.5, 0.5], np.float32), hf.where(np.asarray([True, False, False]),
                                                                               -np.inf, x)), ZERO),
    "kl_div of target 0": (lambda p: nn.kl_div(p, ZERO), np.asarray([0.0, 0.5, 0.5], np.float32)),
    "kl_div of both": (
        lambda p: nn.kl_div(p, np.asarray([-np.inf, 0, 0], np.float32)), np.asarray([0.0, 0.5, 0.5], np.float32)),
    "cosine of zeros": (lambda x: nn.cosine_similarity(x, np.ones(3, np.float32)), ZERO),
    "l2_normalize of zeros": (nn.l2_normalize, ZERO),
    "layer_norm of equal": (nn.layer_norm, ZERO + 2),
    "instance_norm of equal": (lambda x: nn.instance_norm(hf.reshape(x, (1, 1, 3))), ZERO + 2),
    "softmax of -inf": (lambda x: nn.softmax(hf.where(np.asarray([True, False, False]), -np.inf, x)), ZERO),
    "log_softmax of -inf": (
        lambda x: nn.log_softmax(hf.where(np.asarray([True, False, False]), -np.inf, x))[1:], ZERO),
    "logsumexp of -inf": (lambda x: nn.logsumexp(hf.where(np.asarray([True, False, False]), -np.inf, x)), ZERO),
    "attention to masked": (
        lambda x: nn.scaled_dot_product_attention(
            hf.reshape(x, (1, 3, 1)), hf.reshape(x, (1, 3, 1)), hf.reshape(x, (1, 3, 1)),
            np.zeros((3, 3), bool)), ZERO + 1),
    "where guards log": (lambda x: hf.where(x > 0, hf.log(hf.where(x > 0, x, 1.0)), 0.0), ZERO),
    "norm of zeros": (lambda x: hf.linalg.vector_norm(x), ZERO),
    "sigmoid loss far out": (lambda x: nn.sigmoid_cross_entropy(x, 1.0), ZERO - 1e4),
}


@pytest.mark.parametrize("name", GUARDED)
def test_no_nan_behind_a_guard(name: str):
    fn, x = GUARDED[name]
    first = hf.grad(lambda x: hf.sum(fn(x)))
    assert np.isfinite(both(first, hf.asarray(x)).numpy()).all()
    second = hf.grad(lambda x: hf.sum(first(x)))
    assert np.isfinite(both(second, hf.asarray(x)).numpy()).all()
