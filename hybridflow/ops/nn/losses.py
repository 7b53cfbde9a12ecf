"""Losses per example; they do not reduce over the batch."""

from __future__ import annotations

from typing import Any, Unpack, cast

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_differentiable, int32, kind_of
from hybridflow.core.errors import ArgumentError, IndexRangeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, on_host, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    binary_samples,
    call_text,
    cast_to,
    integers,
    make_spec,
    normals,
    promote_float,
    require_kind,
    unbroadcast,
)
from hybridflow.ops.host_rows import extremum
from hybridflow.ops.kinds import real_pair
from hybridflow.ops.nn.activations import softplus
from hybridflow.ops.nn.common import REAL_FLOAT, compute_dtype, lower_narrow, lower_wide, narrow, paired, wide
from hybridflow.ops.nn.labels import check_labels, known_labels, label_weights, one_hot, weighted, weights_by_class
from hybridflow.ops.nn.softmax import lower_spread
from hybridflow.ops.onnx import log_1p
from hybridflow.ops.padding import per_row
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum

# -- softmax cross-entropy ----------------------------------------------------------------------------------------


def _require_classes(logits: TensorSpec, labels: TensorSpec, expected: tuple[Any, ...]) -> None:
    require_kind("softmax_cross_entropy", REAL_FLOAT, logits)
    if not logits.shape:
        raise ShapeError("softmax_cross_entropy: logits need a last axis of classes",
                         got=call_text("softmax_cross_entropy", logits, labels))
    if labels.shape != expected:
        raise ShapeError(
            f"softmax_cross_entropy: labels must have shape {expected}, not {labels.shape}",
            got=call_text("softmax_cross_entropy", logits, labels),
            hint="Integer labels have the logits' shape without the last axis, dense labels the whole shape."
        )


def _row_specs(logits: TensorSpec, residuals: bool) -> Any:
    loss = make_spec(logits.shape[:-1], logits.dtype)
    return (loss, make_spec(logits.shape[:-1], compute_dtype(logits.dtype))) if residuals else loss


def _kernel_rows(logits: Any, labels: Any, expected: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return the logits shifted to a maximum of 0, the log of the sum of their exponentials, and the maximum."""
    if labels.shape != expected or not logits.ndim:
        raise ValueError("labels of another shape")  # `bind` then runs the shape rule, which says more
    largest = extremum(np.maximum, logits, (logits.ndim - 1,), True, -np.inf)
    shifted = logits - largest
    return shifted, np.log(add_up(np.exp(shifted), (logits.ndim - 1,), False)), largest[..., 0]


def _lower_rows(logits: Any) -> tuple[Any, Any, Any]:
    full = lower_wide(logits)
    axis = (full.ndim - 1,)
    largest = lax.reduce_max(full, axes=axis)
    shifted = lax.sub(full, lower_spread(largest, full.shape, axis))
    return shifted, lax.log(float_sum(lax.exp(shifted), axis)), largest


def _probabilities(F: Any, logits: Any, log_sum: Any) -> Any:
    return F.exp(wide(F, logits) - F.reshape(log_sum, shape=(*log_sum.shape, 1)))


def _integer_kernel(logits: Any, labels: Any, *, residuals: bool) -> Any:
    shifted, log_sum, largest = _kernel_rows(logits, labels, logits.shape[:-1])
    rows = shifted.reshape(-1, shifted.shape[-1])
    picked = rows[np.arange(rows.shape[0]), labels.reshape(-1)].reshape(labels.shape)
    loss = log_sum - picked
    return (loss, log_sum + largest) if residuals else loss


def _integer_lower(logits: Any, labels: Any, *, residuals: bool) -> Any:
    shifted, log_sum, largest = _lower_rows(logits)
    if labels.dtype.itemsize < 4:
        labels = lax.convert_element_type(labels, int32)
    axis = (shifted.ndim - 1,)
    position = lax.broadcasted_iota(labels.dtype, shifted.shape, axis[0])
    match = lax.eq(lower_spread(labels, shifted.shape, axis), position)
    picked = lax.reduce_sum(lax.select(match, shifted, lax.full_like(shifted, 0)), axes=axis)
    loss = lower_narrow(lax.sub(log_sum, picked), logits.dtype)
    return (loss, lax.add(log_sum, largest)) if residuals else loss


def _integer_infer(logits: TensorSpec, labels: TensorSpec, *, residuals: bool) -> Any:
    require_kind("softmax_cross_entropy", ("int", "uint"), labels)
    _require_classes(logits, labels, logits.shape[:-1])
    return _row_specs(logits, residuals)


def _integer_vjp(F: Any, g: Any, y: Any, logits: Any, labels: Any) -> Any:
    probabilities = _probabilities(F, logits, y[1])
    target = F.one_hot(labels, classes=logits.shape[-1], dtype=probabilities.dtype)
    column = F.reshape(wide(F, g), shape=(*g.shape, 1))
    return narrow(F, column * (probabilities - target), logits.dtype), None


def _integer_host(g: Any, y: Any, logits: Any, labels: Any) -> Any:
    if not logits.size or logits.ndim < 2:
        return None
    rows = np.subtract(logits.reshape(-1, logits.shape[-1]), y[1].reshape(-1, 1))
    np.exp(rows, out=rows)
    rows[np.arange(rows.shape[0]), labels.reshape(-1)] -= rows.dtype.type(1)
    rows *= g.reshape(-1, 1)
    return rows.reshape(logits.shape), None


def _integer_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), integers(rng, 0, 4, 3)))
    yield Sample((normals(rng, 2, 3, 4), integers(rng, 0, 4, 2, 3, dtype="int64")))
    yield Sample((normals(rng, 4), integers(rng, 0, 4)))
    yield Sample((normals(rng, 0, 4), integers(rng, 0, 4, 0)))
    yield Sample((normals(rng, 3, 200) * 40, integers(rng, 0, 100, 3, dtype="int8")))
    yield Sample((normals(rng, 3, 4, dtype=np.float64), integers(rng, 0, 4, 3)))
    yield Sample((normals(rng, 3, 4, dtype="bfloat16"), integers(rng, 0, 4, 3)), gradient=False)
    bad = (normals(rng, 3, 4), integers(rng, 0, 4, 2))
    yield Bad(bad, error=ShapeError, text="labels must have shape (3,), not (2,)")
    yield Bad((normals(rng, 3, 4), np.asarray([0, 4, 1])), error=IndexRangeError, text="is not in 0 to 3")
    yield Bad((normals(rng), integers(rng, 0, 4)), error=ShapeError, text="last axis of classes")


def _integer_onnx(o: Any, logits: Any, labels: Any, *, residuals: bool = False) -> Any:
    index = o.Unsqueeze(o.cast(labels, np.int64), o.ints([-1]))
    picked = o.GatherElements(o.LogSoftmax(logits, axis=-1), index, axis=logits.ndim - 1)
    y = -o.Squeeze(picked, o.ints([-1]))
    return (y, o.ReduceLogSumExp(logits, o.ints([-1]), keepdims=0)) if residuals else y


@op(
    name="softmax_cross_entropy_integer",
    kernel=_integer_kernel,
    lower=_integer_lower,
    infer=_integer_infer,
    vjp=on_host(_integer_vjp, _integer_host),
    saves=Saves(x=(0, 1), hidden=1),
    flops=lambda y, logits, labels, **attrs: 5 * logits.size,
    samples=_integer_samples,
    traits=("log_sum", "full_precision"),
    ulp=64,
    onnx=_integer_onnx,
    padded=per_row(),
)
def _with_integers(logits: TensorLike, labels: TensorLike) -> Tensor:
    scores = as_tensor(logits)
    scores = cast_to(scores, as_differentiable(scores.dtype))
    classes = as_tensor(labels)
    if scores.shape:
        check_labels("softmax_cross_entropy", classes, scores.shape[-1])
    return bind(_with_integers.op, (scores, classes))


def _dense_kernel(logits: Any, labels: Any, *, residuals: bool) -> Any:
    shifted, log_sum, largest = _kernel_rows(logits, labels, logits.shape)
    terms = labels * (log_sum[..., None] - shifted)
    loss = add_up(np.where(labels == 0, logits.dtype.type(0), terms), (logits.ndim - 1,), False)
    return (loss, log_sum + largest) if residuals else loss


def _dense_lower(logits: Any, labels: Any, *, residuals: bool) -> Any:
    shifted, log_sum, largest = _lower_rows(logits)
    weights, axis = lower_wide(labels), (shifted.ndim - 1,)
    terms = lax.mul(weights, lax.sub(lower_spread(log_sum, shifted.shape, axis), shifted))
    # A class of weight 0 adds nothing, even where its probability is 0.
    zero = lax.full_like(terms, 0)
    loss = float_sum(lax.select(lax.eq(weights, zero), zero, terms), axis)
    loss = lower_narrow(loss, logits.dtype)
    return (loss, lax.add(log_sum, largest)) if residuals else loss


def _dense_infer(logits: TensorSpec, labels: TensorSpec, *, residuals: bool) -> Any:
    _require_classes(logits, labels, logits.shape)
    return _row_specs(logits, residuals)


def _dense_vjp(F: Any, g: Any, y: Any, logits: Any, labels: Any) -> Any:
    column = F.reshape(wide(F, g), shape=(*g.shape, 1))

    def of_logits() -> Any:
        weights = wide(F, labels)
        total = F.sum(weights, axis=(len(labels.shape) - 1,), keepdims=True)
        return narrow(F, column * (_probabilities(F, logits, y[1]) * total - weights), logits.dtype)

    def of_labels() -> Any:
        surprise = F.reshape(y[1], shape=(*y[1].shape, 1)) - wide(F, logits)
        return narrow(F, column * surprise, labels.dtype)

    return of_logits, of_labels


def _dense_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), rng.dirichlet(np.ones(4), 3).astype(np.float32)))
    yield Sample((normals(rng, 2, 3, 4), normals(rng, 2, 3, 4)))
    yield Sample((normals(rng, 4, dtype=np.float64), rng.random(4)))
    yield Sample((normals(rng, 0, 4), normals(rng, 0, 4)))
    yield Sample((normals(rng, 3, 4, dtype="bfloat16"), normals(rng, 3, 4, dtype="bfloat16")), gradient=False)
    yield Bad((normals(rng, 3, 4), normals(rng, 3)), error=ShapeError, text="labels must have shape (3, 4), not (3,)")
    yield Bad((normals(rng), normals(rng)), error=ShapeError, text="last axis of classes")


def _dense_onnx(o: Any, logits: Any, labels: Any, *, residuals: bool = False) -> Any:
    terms = o.Where(o.Equal(labels, 0), 0, labels * o.LogSoftmax(logits, axis=-1))
    y = -o.ReduceSum(terms, o.ints([-1]), keepdims=0)
    return (y, o.ReduceLogSumExp(logits, o.ints([-1]), keepdims=0)) if residuals else y


@op(
    kernel=_dense_kernel,
    lower=_dense_lower,
    infer=_dense_infer,
    vjp=_dense_vjp,
    saves=Saves(x=(0, 1), hidden=1),
    flops=lambda y, logits, labels, **attrs: 7 * logits.size,
    samples=_dense_samples,
    traits=("log_sum", "full_precision"),
    ulp=64,
    onnx=_dense_onnx,
    padded=per_row(),
)
def softmax_cross_entropy(
    logits: TensorLike,
    labels: TensorLike,
    *,
    label_smoothing: float = 0.0,
    class_weight: TensorLike | None = None,
    ignored_id: int | None = None,
    **other: Unpack[Other],
) -> Tensor:
    """Return minus the log-probability of the labels under ``softmax(logits)``, one loss per example.

    Args:
        logits: ``(..., classes)``, floating-point.
        labels: integers ``(...)`` from 0 to ``classes - 1``, or weights ``(..., classes)`` of the classes.
        label_smoothing: the share of each example's weight that is spread evenly over all classes.
        class_weight: ``(classes,)``, factors of the losses of the classes.
        ignored_id: an integer that stands for no label: the loss of such an example is 0. `hf.mean` counts it;
            `hf.nn.cross_entropy`, PyTorch's name, divides by the weights of the labels that are left.

    Returns:
        ``(...)``, in the logits' dtype. float16 and bfloat16 are computed in float32 and rounded once.

    Raises:
        ShapeError: the labels do not have the shape of the logits, with or without the classes; or there is not one
            weight per class.
        IndexRangeError: an integer label is neither a class nor ignored.
        ArgumentError: a share outside 0 to 1, or an ignored label beside labels that are weights.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.softmax_cross_entropy([[0.0, 0.0], [0.0, 100.0]], [1, 1])
        Tensor([0.6931472, 0.       ], dtype=float32)
        >>> hf.nn.softmax_cross_entropy([[0.0, 0.0], [0.0, 0.0]], [1, -1], class_weight=[1.0, 2.0], ignored_id=-1)
        Tensor([1.3862944, 0.       ], dtype=float32)
    """
    if other:
        return respelled(softmax_cross_entropy, locals())
    given = as_tensor(labels)
    if kind_of(given.dtype) not in ("int", "uint"):
        if ignored_id is not None:
            raise ArgumentError("softmax_cross_entropy: only an integer label can be ignored",
                                got=f"labels {given.spec}, ignored_id={ignored_id}",
                                hint="Give such examples weights of 0.")
        scores, shares = promote_float(logits, given)
        return _dense_loss(scores, shares, label_smoothing, class_weight)
    classes, kept = known_labels(given, ignored_id)
    if label_smoothing:
        (scores,) = promote_float(logits)
        if scores.shape:
            classes = one_hot(classes, scores.shape[-1], dtype=scores.dtype)
        return weighted(_dense_loss(scores, classes, label_smoothing, class_weight), None, kept)
    losses = _with_integers(logits, classes)
    if class_weight is None:
        return weighted(losses, None, kept)
    count = as_tensor(logits).shape[-1]
    return weighted(
        losses, label_weights("softmax_cross_entropy", classes, count, losses.dtype, class_weight, None), kept
    )


def _dense_loss(logits: Tensor, labels: Tensor, smoothing: float, class_weight: TensorLike | None) -> Tensor:
    """Return the losses for labels that are weights of the classes."""
    weights: Any = _smoothed(labels, smoothing) if smoothing else labels
    if class_weight is not None and labels.shape:
        weights = weights * weights_by_class("softmax_cross_entropy", class_weight, labels.shape[-1], labels.dtype)
    return bind(softmax_cross_entropy.op, promote_float(logits, weights))


def _smoothed(labels: Tensor, smoothing: float) -> Tensor:
    """Spread a share of the weight of dense labels evenly over all classes.

    Raises:
        ArgumentError: a share outside 0 to 1.
    """
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"softmax_cross_entropy: label_smoothing={smoothing} is no share",
                            hint="Use one from 0 to 1.")
    weights = cast(Any, labels)
    if not labels.shape:
        return labels
    classes = labels.shape[-1]
    return weights * (1 - smoothing) + weights.sum(axis=-1, keepdims=True) * (smoothing / classes)


# -- elementwise losses -------------------------------------------------------------------------------------------


def _sigmoid_loss_kernel(logits: Any, labels: Any) -> Any:
    zero = logits.dtype.type(0)
    return np.maximum(logits, zero) - logits * labels + np.log1p(np.exp(-np.abs(logits)))


def _sigmoid_loss_lower(logits: Any, labels: Any) -> Any:
    x, z = lower_wide(logits), lower_wide(labels)
    tail = lax.log1p(lax.exp(lax.neg(lax.abs(x))))
    return lower_narrow(lax.add(lax.sub(lax.max(x, lax.full_like(x, 0)), lax.mul(x, z)), tail), logits.dtype)


def _sigmoid_loss_vjp(F: Any, g: Any, y: Any, logits: Any, labels: Any) -> Any:
    del y
    return (
        lambda: unbroadcast(F, g * (F.sigmoid(logits) - labels), logits),
        lambda: unbroadcast(F, -(g * logits), labels),
    )


@real_pair(
    _sigmoid_loss_kernel, _sigmoid_loss_lower,
    vjp=_sigmoid_loss_vjp, saves=Saves(x=(0, 1)), samples=binary_samples(crossed=False), traits=("full_precision",),
    flops=lambda y, logits, labels: 7 * y.size, ulp=16,
    onnx=lambda o, x, z: o.Relu(x) - x * z + log_1p(o, o.Exp(-o.Abs(x))),
)
def sigmoid_cross_entropy(
    logits: TensorLike, labels: TensorLike, *, pos_weight: TensorLike | None = None, **other: Unpack[Other]
) -> Tensor:
    """Return ``-labels * log(p) - (1 - labels) * log(1 - p)`` for ``p = sigmoid(logits)``, elementwise.

    Args:
        logits: floating-point.
        labels: probabilities (0 or 1 for certain labels), of a shape that broadcasts.
        pos_weight: a factor of the first term, of a shape that broadcasts; often one per class, negative examples for
            each positive one.

    Returns:
        The losses, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.sigmoid_cross_entropy([0.0, -100.0], [1.0, 1.0])
        Tensor([  0.6931472, 100.       ], dtype=float32)
        >>> hf.nn.sigmoid_cross_entropy([0.0, 0.0], [1.0, 0.0], pos_weight=3.0)
        Tensor([2.0794415, 0.6931472], dtype=float32)
    """
    if other:
        return respelled(sigmoid_cross_entropy, locals())
    scores, truth = paired("sigmoid_cross_entropy", logits, labels)
    if pos_weight is None:
        return bind(sigmoid_cross_entropy.op, (scores, truth))
    x, z, weight = cast(Any, scores), cast(Any, truth), cast_to(as_tensor(pos_weight), scores.dtype)
    return weight * z * softplus(-x) + (1 - z) * softplus(x)


def _mse_kernel(prediction: Any, target: Any) -> Any:
    difference = prediction - target
    return difference * difference


def _mse_lower(prediction: Any, target: Any) -> Any:
    difference = lax.sub(prediction, target)
    return lax.mul(difference, difference)


def _mse_vjp(F: Any, g: Any, y: Any, prediction: Any, target: Any) -> Any:
    del y
    slope = g * ((prediction - target) * 2)
    return lambda: unbroadcast(F, slope, prediction), lambda: unbroadcast(F, -slope, target)


def _mse_onnx(o: Any, prediction: Any, target: Any) -> Any:
    error = prediction - target
    return error * error


@real_pair(
    _mse_kernel, _mse_lower,
    vjp=_mse_vjp, saves=Saves(x=(0, 1)), samples=binary_samples(crossed=False),
    traits=("commutative", "full_precision"), flops=lambda y, prediction, target: 2 * y.size, onnx=_mse_onnx,
)
def mse(prediction: TensorLike, target: TensorLike, **other: Unpack[Other]) -> Tensor:
    """Return the squared error, elementwise; take its mean with `hf.mean`.

    Args:
        prediction: floating-point; integers become float32.
        target: of a shape that broadcasts.

    Returns:
        The losses, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.mse([1.0, 2.0], [1.0, 5.0])
        Tensor([0., 9.], dtype=float32)
    """
    if other:
        return respelled(mse, locals())
    return bind(mse.op, paired("mse", prediction, target))


def _huber_kernel(prediction: Any, target: Any, *, delta: float) -> Any:
    kind = prediction.dtype.type
    size = np.abs(prediction - target)
    inner = np.minimum(size, kind(delta))
    return inner * (size - inner * kind(0.5))


def _huber_lower(prediction: Any, target: Any, *, delta: float) -> Any:
    size = lax.abs(lax.sub(prediction, target))
    inner = lax.min(size, lax.full_like(size, delta))
    return lax.mul(inner, lax.sub(size, lax.mul(inner, lax.full_like(size, 0.5))))


def _huber_vjp(F: Any, g: Any, y: Any, prediction: Any, target: Any, *, delta: float) -> Any:
    del y
    difference = prediction - target
    slope = g * (difference - F.relu(difference - delta) + F.relu(-difference - delta))
    return lambda: unbroadcast(F, slope, prediction), lambda: unbroadcast(F, -slope, target)


def _huber_onnx(o: Any, prediction: Any, target: Any, *, delta: float) -> Any:
    error = o.Abs(prediction - target)
    near = o.Min(error, delta)
    return near * (error - near * 0.5)


@real_pair(
    _huber_kernel, _huber_lower,
    vjp=_huber_vjp, saves=Saves(x=(0, 1)), samples=binary_samples(crossed=False),
    traits=("commutative", "full_precision"), flops=lambda y, prediction, target, *, delta: 5 * y.size, ulp=8,
    onnx=_huber_onnx,
)
def huber(prediction: TensorLike, target: TensorLike, delta: float = 1.0, **other: Unpack[Other]) -> Tensor:
    """Return half the squared error up to `delta` and a linear loss beyond it, elementwise.

    Args:
        prediction: floating-point; integers become float32.
        target: of a shape that broadcasts.
        delta: the error beyond which the loss is linear.

    Returns:
        The losses, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.huber([1.0, 5.0], [0.0, 0.0])
        Tensor([0.5, 4.5], dtype=float32)

    Reference:
        Huber, "Robust estimation of a location parameter", 1964.
    """
    if other:
        return respelled(huber, locals())
    return bind(huber.op, paired("huber", prediction, target), {"delta": float(delta)})


__all__ = ["huber", "mse", "sigmoid_cross_entropy", "softmax_cross_entropy"]
