"""`hf.nn` against jax and PyTorch: values, gradients, second order, compiled code, edge cases, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hybridflow as hf

nn = hf.nn


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def near(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    assert found is not None
    found = found.numpy() if hasattr(found, "numpy") else found
    np.testing.assert_allclose(found, np.asarray(expected), rtol=tolerance, atol=tolerance)


def gradients(fn: Callable[..., Any], *args: np.ndarray, weights: np.ndarray) -> list[Any]:
    tensors = [hf.asarray(arg) for arg in args]
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        loss = hf.sum(fn(*tensors) * weights)
    return tape.gradient(loss, tensors)


def check(fn: Callable[..., Any], reference: Callable[..., Any], *args: np.ndarray, order: int = 2) -> None:
    """Compare value, gradient and second order with a jax function, eager and compiled."""
    expected = reference(*args)
    near(fn(*args), expected)
    near(hf.compile(fn)(*args), expected)
    weights = draw(*expected.shape, seed=9)
    every = tuple(range(len(args)))

    def first(*args: Any) -> Any:
        return jax.grad(lambda *a: jnp.sum(reference(*a) * weights), argnums=every)(*args)

    def ours(*args: Any) -> list[Any]:
        return gradients(fn, *args, weights=weights)

    wanted = first(*args)
    for run in (ours, hf.compile(ours)):
        for one, two in zip(run(*args), wanted, strict=True):
            near(one, two, 2e-4)
    if order < 2:
        return
    wanted = jax.grad(lambda *a: sum(jnp.sum(jnp.sin(g)) for g in first(*a)), argnums=every)(*args)

    def second(*args: Any) -> list[Any]:
        tensors = [hf.asarray(arg) for arg in args]
        with hf.GradientTape() as tape:
            tape.watch(tensors)
            total = sum([hf.sum(hf.sin(g)) for g in ours(*tensors)], hf.asarray(0.0))
        return tape.gradient(total, tensors, unconnected_gradients="zero")

    for run in (second, hf.compile(second)):
        for one, two in zip(run(*args), wanted, strict=True):
            near(one, two, 1e-3)


# -- activations --------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (nn.relu, jax.nn.relu),
    "silu": (nn.silu, jax.nn.silu),
    "sigmoid": (nn.sigmoid, jax.nn.sigmoid),
    "softplus": (nn.softplus, jax.nn.softplus),
    "elu": (nn.elu, jax.nn.elu),
    "elu of alpha": (lambda x: nn.elu(x, 0.3), lambda x: jax.nn.elu(x, 0.3)),
    "leaky_relu": (nn.leaky_relu, jax.nn.leaky_relu),
    "leaky_relu of slope": (lambda x: nn.leaky_relu(x, 1.5), lambda x: jax.nn.leaky_relu(x, 1.5)),
    "hard_swish": (nn.hard_swish, jax.nn.hard_swish),
    "gelu": (nn.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu approximate": (lambda x: nn.gelu(x, approximate=True), lambda x: jax.nn.gelu(x, approximate=True)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    check(*ACTIVATIONS[name], draw(5, 7) * 2)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_far_out(name: str) -> None:
    """Nothing overflows, NaN stays, and both modes agree on the sign of zero."""
    fn, reference = ACTIVATIONS[name]
    x = np.asarray([-200, -89, -20, -0.0, 0.0, 20, 89, 200, np.nan], np.float32)
    eager, compiled = fn(x).numpy(), hf.compile(fn)(x).numpy()
    np.testing.assert_allclose(eager, reference(x), rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(np.signbit(eager[3:5]), np.signbit(compiled[3:5]))
    slope = gradients(fn, x[:-1], weights=np.ones(8, np.float32))[0].numpy()
    assert np.isfinite(slope).all()


def test_relu_has_slope_0_at_0() -> None:
    assert gradients(nn.relu, np.asarray([0.0, -0.0, 1.0], np.float32), weights=np.ones(3))[0].tolist() == [0, 0, 1]


def test_relu_blocks_an_infinite_gradient() -> None:
    x = np.asarray([-1.0, 1.0], np.float32)
    assert gradients(nn.relu, x, weights=np.asarray([np.inf, 2], np.float32))[0].tolist() == [0, 2]


def test_integers_become_float32_but_relu_keeps_them() -> None:
    assert nn.relu([-1, 2]).dtype == hf.int32
    assert nn.gelu([-1, 2]).dtype == hf.float32
    assert nn.softmax([1, 2]).dtype == hf.float32


# -- softmax ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, (0, 2)])
def test_softmax(axis: Any) -> None:
    x = draw(3, 4, 5)
    check(lambda x: nn.softmax(x, axis), lambda x: jax.nn.softmax(x, axis), x)
    check(lambda x: nn.log_softmax(x, axis), lambda x: jax.nn.log_softmax(x, axis), x)


def test_softmax_of_extremes() -> None:
    x = np.asarray([[1e30, -1e30, 0], [-np.inf, 0, 0], [-1e4, -1e4, -1e4]], np.float32)
    for run in (nn.softmax, hf.compile(nn.softmax)):
        near(run(x), [[1, 0, 0], [0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    near(nn.log_softmax(x[:1]), [[0, -2e30, -1e30]])


@pytest.mark.parametrize("fn", [nn.softmax, nn.log_softmax, nn.layer_norm, nn.rms_norm, nn.gelu, nn.silu])
def test_low_precision_is_computed_in_float32_and_rounded_once(fn: Callable[..., hf.Tensor]) -> None:
    x = hf.asarray(draw(4, 256), dtype="bfloat16")
    exact = fn(x.astype(hf.float32)).astype(hf.bfloat16)
    for run in (fn, hf.compile(fn)):
        found = run(x)
        assert found.dtype == hf.bfloat16
        assert (found.numpy() == exact.numpy()).mean() > 0.99
        np.testing.assert_allclose(found.astype("float32").numpy(), exact.astype("float32").numpy(), rtol=2**-7)


# -- normalisation ------------------------------------------------------------------------------------------------


def jax_layer_norm(x: Any, scale: Any = 1.0, shift: Any = 0.0, axis: Any = -1, epsilon: float = 1e-5) -> Any:
    mean, var = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) * lax.rsqrt(var + epsilon) * scale + shift


def jax_rms_norm(x: Any, scale: Any = 1.0) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def test_layer_norm() -> None:
    x, scale, shift = draw(3, 4, 5), draw(5, seed=1), draw(5, seed=2)
    check(nn.layer_norm, jax_layer_norm, x)
    check(nn.layer_norm, jax_layer_norm, x, scale, shift)
    check(lambda x, shift: nn.layer_norm(x, None, shift), lambda x, shift: jax_layer_norm(x, 1.0, shift), x, shift)
    both = draw(4, 5, seed=3)
    check(
        lambda x, scale: nn.layer_norm(x, scale, axis=(1, 2), epsilon=0.1),
        lambda x, scale: jax_layer_norm(x, scale, axis=(1, 2), epsilon=0.1),
        x,
        both,
    )


def test_layer_norm_is_one_node_with_one_rule() -> None:
    graph = str(hf.compile(nn.layer_norm).graph(draw(3, 4), draw(4), draw(4)))
    assert graph.count(" = ") == graph.count(" = layer_norm(") == 1


def test_rms_norm_and_l2_normalize() -> None:
    check(nn.rms_norm, jax_rms_norm, draw(3, 5))
    check(nn.rms_norm, jax_rms_norm, draw(3, 5), draw(5, seed=1))
    check(nn.l2_normalize, lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), draw(3, 5))
    assert nn.l2_normalize(np.zeros(3, "f")).tolist() == [0, 0, 0]
    assert np.isfinite(gradients(nn.l2_normalize, np.zeros(3, "f"), weights=np.ones(3, "f"))[0].numpy()).all()


def test_batch_norm_through_its_statistics() -> None:
    def reference(x: Any, scale: Any, shift: Any) -> Any:
        mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * scale[:, None] + shift[:, None]

    def ours(x: Any, scale: Any, shift: Any) -> hf.Tensor:
        return nn.batch_norm(x, *nn.moments(x, (0, 2)), scale, shift)

    check(ours, reference, draw(4, 3, 5), draw(3, seed=1), draw(3, seed=2))


def test_batch_norm_channels_last() -> None:
    x, mean, var = draw(2, 4, 3), draw(3, seed=1), draw(3, seed=2) ** 2
    last = nn.batch_norm(x, mean, var, channels_last=True)
    near(last, nn.batch_norm(x.transpose(0, 2, 1), mean, var).numpy().transpose(0, 2, 1))


def test_group_norm() -> None:
    torch = pytest.importorskip("torch")
    x, scale, shift = draw(2, 6, 4, 3), draw(6, seed=1), draw(6, seed=2)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, scale, shift)]
    y = torch.nn.functional.group_norm(tensors[0], 3, tensors[1], tensors[2])
    weights = draw(2, 6, 4, 3, seed=5)
    (y * torch.tensor(weights)).sum().backward()
    near(nn.group_norm(x, 3, scale, shift), y.detach().numpy())
    found = gradients(lambda x, scale, shift: nn.group_norm(x, 3, scale, shift), x, scale, shift, weights=weights)
    for one, two in zip(found, tensors, strict=True):
        near(one, two.grad.numpy(), 1e-4)


# -- losses -------------------------------------------------------------------------------------------------------


def test_cross_entropy_of_integers() -> None:
    labels = np.asarray([2, 0, 3])

    def reference(x: Any) -> Any:
        return -jax.nn.log_softmax(x)[jnp.arange(3), labels]

    check(lambda x: nn.softmax_cross_entropy(x, labels), reference, draw(3, 4))
    assert nn.softmax_cross_entropy(draw(4), 1).shape == ()
    assert nn.softmax_cross_entropy(draw(2, 3, 4), np.zeros((2, 3), "int8")).shape == (2, 3)


def test_cross_entropy_of_weights() -> None:
    def reference(x: Any, labels: Any) -> Any:
        return -(labels * jax.nn.log_softmax(x)).sum(-1)

    check(nn.softmax_cross_entropy, reference, draw(3, 4), abs(draw(3, 4, seed=1)))


def test_cross_entropy_of_hidden_classes() -> None:
    logits = np.asarray([[-np.inf, 1.0, 1.0]], np.float32)
    dense = np.asarray([[0.0, 1.0, 0.0]], np.float32)
    for labels in (dense, np.asarray([1])):
        near(nn.softmax_cross_entropy(logits, labels), [np.log(2)])
        found = gradients(lambda x, labels=labels: nn.softmax_cross_entropy(x, labels), logits, weights=np.ones(1, "f"))
        near(found[0], [[0, -0.5, 0.5]])


@pytest.mark.parametrize("bad", [4, -1, 300])
def test_labels_out_of_range_fail_in_both_modes(bad: int) -> None:
    labels = np.asarray([0, bad])
    with pytest.raises(IndexError, match=rf"label {bad} at \[1\] is not in 0 to 3"):
        nn.softmax_cross_entropy(draw(2, 4), labels)
    with pytest.raises(IndexError, match=rf"one_hot: label {bad} at \[1\] is not in 0 to 3"):
        nn.one_hot(labels, 4)
    with pytest.raises(IndexError, match="a label is not in 0 to 3"):
        hf.compile(nn.softmax_cross_entropy)(draw(2, 4), labels).numpy()
    with pytest.raises(IndexError, match=rf"label {bad} at \[1\]"):
        hf.compile(lambda x: nn.softmax_cross_entropy(x, labels))(draw(2, 4)).numpy()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("classes", [4, 128, 129, 300])
def test_labels_of_every_integer(dtype: str, classes: int) -> None:
    info = np.iinfo(dtype)
    good = np.asarray([[0, min(classes - 1, info.max)]], dtype)
    assert nn.one_hot(good, classes).shape == (1, 2, classes)
    assert nn.one_hot(good.T[::-1], classes).shape == (2, 1, classes)
    for bad in {info.min, -1, classes, info.max}:
        if info.min <= bad <= info.max and not 0 <= bad < classes:
            with pytest.raises(IndexError, match=rf"label {bad} at \[0, 0\] is not in 0 to {classes - 1}"):
                nn.one_hot(np.asarray([[bad, 0]], dtype), classes)


def test_other_losses() -> None:
    x, z = draw(3, 4) * 3, abs(draw(3, 4, seed=1))

    def sigmoid_loss(x: Any, z: Any) -> Any:
        return -z * jax.nn.log_sigmoid(x) - (1 - z) * jax.nn.log_sigmoid(-x)

    def huber(x: Any, z: Any) -> Any:
        size = abs(x - z)
        return jnp.where(size < 0.7, 0.5 * size * size, 0.7 * (size - 0.35))

    check(nn.sigmoid_cross_entropy, sigmoid_loss, x, z)
    check(nn.mse, lambda x, z: (x - z) ** 2, x, z)
    check(lambda x, z: nn.huber(x, z, 0.7), huber, x, z)
    check(nn.mse, lambda x, z: (x - z) ** 2, x, z[0])
    assert nn.sigmoid_cross_entropy([1e4, -1e4], [1.0, 0.0]).tolist() == [0, 0]


# -- convolution --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": "same"},
        {"padding": "same", "stride": (2, 3)},
        {"dilation": 2, "padding": ((1, 2), 0)},
        {"groups": 2},
    ],
    ids=str,
)
def test_conv(options: dict[str, Any]) -> None:
    x, kernel = draw(2, 4, 9, 8), draw(6, 4 // options.get("groups", 1), 3, 2, seed=1)

    def pair(value: Any) -> Any:
        return (value, value) if isinstance(value, int) else value

    padding = options.get("padding", "valid")

    def reference(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            kernel,
            pair(options.get("stride", 1)),
            padding.upper() if isinstance(padding, str) else [pair(one) for one in pair(padding)],
            rhs_dilation=pair(options.get("dilation", 1)),
            feature_group_count=options.get("groups", 1),
            precision="highest",
        )

    check(lambda x, kernel: nn.conv(x, kernel, **options), reference, x, kernel)


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_conv_channels_last(spatial: int) -> None:
    x, kernel = draw(2, 3, *[5] * spatial), draw(4, 3, *[2] * spatial, seed=1)
    last = nn.conv(np.moveaxis(x, 1, -1), np.moveaxis(kernel, (1, 0), (-2, -1)), stride=2, channels_last=True)
    near(last, np.moveaxis(nn.conv(x, kernel, stride=2).numpy(), 1, -1))


@pytest.mark.parametrize(("channels", "out", "groups"), [(8, 4, 1), (2, 40, 1), (8, 6, 2), (6, 60, 3)])
def test_kernel_gradients_of_many_and_of_few_channels(channels: int, out: int, groups: int) -> None:
    x, kernel = draw(5, channels, 9, 11), draw(out, channels // groups, 3, 3, seed=1)

    def reference(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", feature_group_count=groups, precision="highest")

    check(lambda x, kernel: nn.conv(x, kernel, padding="same", groups=groups), reference, x, kernel)


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2}, {"stride": 3, "padding": 1, "output_padding": 2}, {"groups": 2}], ids=str
)
def test_conv_transpose_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x, kernel = draw(2, 4, 5, 6), draw(4, 3, 3, 3, seed=1)
    expected = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(kernel), **options)
    near(nn.conv_transpose(x, kernel, **options), expected.numpy())
    assert nn.conv_transpose(x, kernel, stride=2, padding="same").shape == (2, 3, 10, 12)


def test_conv_in_low_precision_is_summed_in_float32() -> None:
    x = hf.asarray(np.ones((1, 512, 3, 3), "f"), dtype="bfloat16")
    kernel = hf.asarray(np.ones((1, 512, 3, 3), "f"), dtype="bfloat16")
    for run in (nn.conv, hf.compile(nn.conv)):
        assert run(x, kernel).item() == 4608


def test_conv_errors() -> None:
    x = draw(1, 3, 5, 5)
    with pytest.raises(ValueError, match=r"the input has 3 channels, the kernel takes 2 in each of 1 groups"):
        nn.conv(x, draw(4, 2, 3, 3))
    with pytest.raises(ValueError, match=r"5 output channels do not divide into 3 groups"):
        nn.conv(x, draw(5, 1, 3, 3), groups=3)
    with pytest.raises(ValueError, match=r"padding='full' is not 'valid', 'same'"):
        nn.conv(x, draw(4, 3, 3, 3), padding="full")
    with pytest.raises(ValueError, match=r"does not take an input of 3 channels"):
        nn.conv_transpose(x, draw(4, 2, 3, 3))


# -- pooling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "options"),
    [(2, {}), (3, {"stride": 2, "padding": 1}), ((3, 2), {"stride": (1, 2)}), (4, {"stride": 1})],
)
def test_pooling_is_torchs(window: Any, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x = draw(2, 3, 8, 9)
    x[0, 0, :4, :4] = 1  # ties
    for ours, theirs in ((nn.max_pool, "max_pool2d"), (nn.avg_pool, "avg_pool2d")):
        extra = {"count_include_pad": False} if theirs == "avg_pool2d" else {}
        tensor = torch.tensor(x, requires_grad=True)
        y = getattr(torch.nn.functional, theirs)(tensor, window, **options, **extra)
        weights = draw(*y.shape, seed=3)
        (y * torch.tensor(weights)).sum().backward()

        def pooled(x: Any, ours: Any = ours) -> hf.Tensor:
            return ours(x, window, **options)

        def slope(x: Any, pooled: Any = pooled, weights: Any = weights) -> Any:
            return gradients(pooled, x, weights=weights)[0]

        near(pooled(x), y.detach().numpy())
        near(hf.compile(pooled)(x), y.detach().numpy())
        near(slope(x), tensor.grad.numpy())
        near(hf.compile(slope)(x), tensor.grad.numpy())


def test_pooling_second_order() -> None:
    def reduce(fn: Any, start: float, x: Any) -> Any:
        return lax.reduce_window(x, start, fn, (1, 1, 3, 2), (1, 1, 2, 2), "VALID")

    x = draw(2, 3, 7, 6)
    check(lambda x: nn.max_pool(hf.exp(x), (3, 2), 2), lambda x: reduce(lax.max, -np.inf, jnp.exp(x)), x)
    check(lambda x: nn.avg_pool(hf.exp(x), (3, 2), 2), lambda x: reduce(lax.add, 0.0, jnp.exp(x)) / 6, x)


def test_max_pool_of_integers_and_nan() -> None:
    assert nn.max_pool(np.asarray([[[-5, -3, -9]]]), 2, 1, padding=1).tolist() == [[[-5, -3, -3, -9]]]
    for run in (nn.max_pool, hf.compile(nn.max_pool, static_argnames=("window",))):
        assert np.isnan(run(np.asarray([[[1.0, np.nan]]], "f"), 2).item())


def test_max_pool_of_whole_images() -> None:
    x = draw(2, 3, 20, 20)
    near(nn.max_pool(x, 20)[..., 0, 0], x.max((2, 3)))
    slope = gradients(lambda x: nn.max_pool(x, 20), x, weights=np.ones((2, 3, 1, 1), "f"))[0].numpy()
    assert slope.sum() == 6
    assert (slope.reshape(6, -1).argmax(-1) == x.reshape(6, -1).argmax(-1)).all()


# -- attention ----------------------------------------------------------------------------------------------------


def jax_attention(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
    scores = jnp.einsum("...nd,...md->...nm", q, k, precision="highest") / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == np.bool_ else scores + mask
    if is_causal:
        scores = jnp.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("...nm,...md->...nd", jax.nn.softmax(scores), v, precision="highest")


def test_attention() -> None:
    q, k, v = draw(2, 3, 4, 5), draw(2, 3, 6, 5, seed=1), draw(2, 3, 6, 2, seed=2)
    attend = nn.scaled_dot_product_attention
    check(attend, jax_attention, q, k, v)
    check(
        lambda q, k, v: attend(q, k, v, is_causal=True), lambda q, k, v: jax_attention(q, k, v, is_causal=True), q, k, v
    )
    mask = draw(2, 1, 4, 6, seed=3) > -0.5
    mask[..., 0] = True
    check(lambda q, k, v: attend(q, k, v, mask), lambda q, k, v: jax_attention(q, k, v, mask), q, k, v)
    check(attend, jax_attention, q, k, v, draw(4, 6, seed=4))


def test_attention_to_nothing_gives_zeros() -> None:
    q, k, v = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2)
    mask = np.ones((3, 5), bool)
    mask[1] = False

    def slopes(q: Any, k: Any, v: Any) -> list[Any]:
        return gradients(
            lambda *a: nn.scaled_dot_product_attention(*a, mask), q, k, v, weights=np.ones((3, 2), "f")
        )

    for run in (nn.scaled_dot_product_attention, hf.compile(nn.scaled_dot_product_attention)):
        y = run(q, k, v, mask).numpy()
        assert y[1].tolist() == [0, 0]
        near(y[[0, 2]], jax_attention(q[[0, 2]], k, v))
    for run in (slopes, hf.compile(slopes)):
        assert all(np.isfinite(g.numpy()).all() for g in run(q, k, v))
        assert run(q, k, v)[0].numpy()[1].tolist() == [0] * 4


def test_attention_broadcasts_leading_axes() -> None:
    q, k, v = draw(2, 3, 4, 5), draw(2, 1, 6, 5, seed=1), draw(6, 2, seed=2)
    wide = np.broadcast_to(k, (2, 3, 6, 5)), np.broadcast_to(v, (2, 3, 6, 2))
    near(nn.scaled_dot_product_attention(q, k, v), jax_attention(q, *wide))
    found = gradients(nn.scaled_dot_product_attention, q, k, v, weights=np.ones((2, 3, 4, 2), "f"))
    assert [g.shape for g in found] == [q.shape, k.shape, v.shape]


def test_attention_errors() -> None:
    q, k, v = draw(2, 4, 5), draw(2, 6, 5), draw(2, 6, 3)
    with pytest.raises(ValueError, match="query has dim 5, key 4"):
        nn.scaled_dot_product_attention(q, k[..., :4], v)
    with pytest.raises(TypeError, match="the mask is int64; it must be bool"):
        nn.scaled_dot_product_attention(q, k, v, np.ones((4, 6), np.int64))
    with pytest.raises(ValueError, match="does not broadcast to"):
        nn.scaled_dot_product_attention(q, k, v, np.ones((3, 2, 4, 6), bool))


# -- dropout, embedding, one_hot ----------------------------------------------------------------------------------


def test_dropout() -> None:
    x = np.ones((400, 250), np.float32)
    hf.random.seed(3)
    y = nn.dropout(x, 0.25)
    kept = y.numpy() != 0
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / x.size)
    assert set(np.unique(y.numpy())) == {np.float32(0), np.float32(1 / 0.75)}
    assert nn.dropout(x, 0.25, training=False).numpy().all()
    assert nn.dropout(x, 0.0).numpy().all()
    assert not nn.dropout(x, 1.0).numpy().any()
    hf.random.seed(3)
    slope = gradients(lambda x: nn.dropout(x, 0.25), x, weights=np.ones_like(x))[0]
    near(slope, y.numpy())
    with pytest.raises(ValueError, match=r"rate=1.5 is not a probability"):
        nn.dropout(x, 1.5)


def test_dropout_draws_anew_and_from_its_generator() -> None:
    x = np.ones(64, np.float32)
    fn = hf.compile(lambda x: nn.dropout(x, 0.5))
    assert fn(x).tolist() != fn(x).tolist()
    first, again = hf.random.Generator(1), hf.random.Generator(1)
    assert nn.dropout(x, 0.5, generator=first).tolist() == nn.dropout(x, 0.5, generator=again).tolist()


def test_embedding() -> None:
    ids, table = np.asarray([[1, 0], [1, -1]]), draw(4, 3)
    check(lambda table: nn.embedding(ids, table), lambda table: table[ids], table)
    with pytest.raises(IndexError, match="4"):
        nn.embedding([4], table)
    with pytest.raises(TypeError, match="labels must be integers"):
        nn.embedding([0.5], table)
    with pytest.raises(ValueError, match="needs an axis of rows"):
        nn.embedding([0], 1.0)


def test_one_hot() -> None:
    assert nn.one_hot([2, 0], 3, dtype=hf.int32).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert hf.compile(lambda ids: nn.one_hot(ids, 3))(np.asarray([[1]])).tolist() == [[[0, 1, 0]]]
    assert nn.one_hot(np.asarray([250], "uint8"), 300).numpy()[0, 250] == 1
    assert nn.one_hot(np.zeros((0, 2), int), 3).shape == (0, 2, 3)


# -- errors of normalisation --------------------------------------------------------------------------------------


def test_parameters_of_another_shape() -> None:
    x = draw(2, 3, 4)
    for _ in range(2):  # the second time, the dtypes are known already
        with pytest.raises(ValueError, match=r"layer_norm: scale and shift must have .* \(4,\), not \(3,\)"):
            nn.layer_norm(x, draw(3))
        with pytest.raises(ValueError, match=r"\(3, 4\), not \(4, 3\)"):
            nn.layer_norm(x, draw(4, 3), axis=(1, 2))
        with pytest.raises(ValueError, match=r"rms_norm: .* \(4,\), not \(1,\)"):
            nn.rms_norm(x, draw(1))
        with pytest.raises(ValueError, match=r"batch_norm: .* must have shape \(3,\), not \(4,\)"):
            nn.batch_norm(x, draw(4), draw(4))
        with pytest.raises(ValueError, match="3 channels do not divide into 2 groups"):
            nn.group_norm(x, 2)
        with pytest.raises(ValueError, match=r"softmax_cross_entropy: labels must have shape \(2, 3\), not \(2,\)"):
            nn.softmax_cross_entropy(x, np.zeros(2, int))
