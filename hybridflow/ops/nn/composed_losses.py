"""Further losses per example, composed of other operations."""

from __future__ import annotations

from typing import Unpack

from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.ops.along_axis import take_along_axis
from hybridflow.ops.choice import where
from hybridflow.ops.common import Tensor, TensorLike, call_text, normalize_axis, promote_float
from hybridflow.ops.elementwise import abs as magnitude
from hybridflow.ops.nn.common import paired
from hybridflow.ops.nn.labels import check_labels, integer_labels, known_labels, label_weights, weighted
from hybridflow.ops.nn.normalization import l2_normalize
from hybridflow.ops.nn.rectifiers import relu
from hybridflow.ops.reductions import sum as total
from hybridflow.ops.shape import expand_dims, squeeze
from hybridflow.ops.transcendental import log


def mae(prediction: TensorLike, target: TensorLike, **other: Unpack[Other]) -> Tensor:
    """Return the absolute error, elementwise.

    Args:
        prediction: floating-point; integers become float32.
        target: of a shape that broadcasts.

    Returns:
        The losses, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Kink:
        There is no derivative where both are equal; the gradient there is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.mae([1.0, 2.0], [1.0, 5.0])
        Tensor([0., 3.], dtype=float32)
    """
    if other:
        return respelled(mae, locals())
    first, second = paired("mae", prediction, target)
    return magnitude(first - second)


def hinge(prediction: TensorLike, target: TensorLike, **other: Unpack[Other]) -> Tensor:
    """Return ``max(0, 1 - target * prediction)``, elementwise.

    Args:
        prediction: floating-point scores; integers become float32.
        target: -1 or 1, of a shape that broadcasts.

    Returns:
        The losses, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Kink:
        There is no derivative where the loss becomes 0; the gradient there is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.hinge([0.5, 2.0], [1.0, 1.0])
        Tensor([0.5, 0. ], dtype=float32)

    Reference:
        Cortes and Vapnik, "Support-vector networks", 1995.
    """
    if other:
        return respelled(hinge, locals())
    first, second = paired("hinge", prediction, target)
    return relu(1.0 - second * first)


def nll(
    log_probabilities: TensorLike,
    labels: TensorLike,
    *,
    class_weight: TensorLike | None = None,
    ignored_id: int | None = None,
    **other: Unpack[Other],
) -> Tensor:
    """Return minus the log-probability of the labels, one loss per example.

    Args:
        log_probabilities: ``(..., classes)``, floating-point, for example from `log_softmax`.
        labels: integers ``(...)`` from 0 to ``classes - 1``.
        class_weight: ``(classes,)``, factors of the losses of the classes.
        ignored_id: an integer that stands for no label: the loss of such an example is 0.

    Returns:
        ``(...)``, in the dtype of the log-probabilities.

    Raises:
        ShapeError: the labels do not have the shape of the log-probabilities without the classes, or there is not one
            weight per class.
        IndexRangeError: a label is neither a class nor ignored.
        DTypeError: the labels are not integers.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.nll(hf.log([[0.25, 0.75], [0.5, 0.5]]), [0, 1])
        Tensor([1.3862944, 0.6931472], dtype=float32)
    """
    if other:
        return respelled(nll, locals())
    (scores,) = promote_float(log_probabilities)
    classes = integer_labels("nll", labels)
    if scores.shape[:-1] != classes.shape or not scores.shape:
        raise ShapeError("nll: labels must have the shape of the log-probabilities without the classes",
                         got=call_text("nll", scores.spec, classes.spec))
    known, kept = known_labels(classes, ignored_id)
    check_labels("nll", known, scores.shape[-1])
    losses = -squeeze(take_along_axis(scores, expand_dims(known, axis=-1), axis=-1), axis=-1)
    return weighted(losses, label_weights("nll", known, scores.shape[-1], scores.dtype, class_weight, None), kept)


def cosine_similarity(
    a: TensorLike, b: TensorLike, axis: int = -1, *, epsilon: float = 1e-12, **other: Unpack[Other]
) -> Tensor:
    """Return the cosine of the angle between vectors.

    Args:
        a, b: floating-point, of shapes that broadcast; integers become float32.
        axis: the axis of the vectors.
        epsilon: the smallest divisor, so that a vector of zeros has cosine 0.

    Returns:
        The broadcast shape without the axis, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast, or an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.cosine_similarity([[1.0, 0.0], [1.0, 1.0]], [2.0, 0.0])
        Tensor([1.        , 0.70710677], dtype=float32)
    """
    if other:
        return respelled(cosine_similarity, locals())
    first, second = promote_float(a, b)
    if axis >= 0:
        axis -= max(first.ndim, second.ndim)
    for tensor in (first, second):
        normalize_axis("cosine_similarity", axis, tensor.ndim)
    one, two = (l2_normalize(tensor, axis, epsilon=epsilon) for tensor in (first, second))
    return total(one * two, axis=axis)


def kl_div(target: TensorLike, log_prediction: TensorLike, **other: Unpack[Other]) -> Tensor:
    """Return the Kullback-Leibler divergence of predicted from true probabilities, one loss per example.

    A class of true probability 0 adds nothing, whatever its prediction, and no gradient flows to it.

    Args:
        target: probabilities ``(..., classes)``, floating-point.
        log_prediction: logarithms of predicted probabilities, for example from `log_softmax`, of a shape that
            broadcasts.

    Returns:
        ``sum(target * (log(target) - log_prediction))`` over the last axis, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast, or have no axis of classes.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.kl_div([0.0, 1.0], hf.log([0.5, 0.5]))
        Tensor(0.6931472, dtype=float32)

    Reference:
        Kullback and Leibler, "On information and sufficiency", 1951.
    """
    if other:
        return respelled(kl_div, locals())
    truth, scores = promote_float(target, log_prediction)
    if not truth.shape and not scores.shape:
        raise ShapeError("kl_div: probabilities need a last axis of classes", got=call_text("kl_div", truth.spec))
    some = truth > 0
    known, predicted = where(some, truth, 1.0), where(some, scores, 0.0)
    return total(where(some, known * (log(known) - predicted), 0.0), axis=-1)


__all__ = ["cosine_similarity", "hinge", "kl_div", "mae", "nll"]
