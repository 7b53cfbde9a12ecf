"""``tf.losses``: losses as one number, the mean over all examples."""

from __future__ import annotations

from typing import Any

from hybridflow.compat.v1 import nn
from hybridflow.compat.v1.functions import reduce_mean, squared_difference
from hybridflow.compat.v1.graph import GraphKeys, get_default_graph


def _mean(values: Any, name: str) -> Any:
    loss = reduce_mean(values, name=name)
    get_default_graph().add_to_collection(GraphKeys.LOSSES, loss)
    return loss


def mean_squared_error(labels: Any, predictions: Any) -> Any:
    """Add the mean of the squared differences."""
    return _mean(squared_difference(predictions, labels), "mean_squared_error")


def softmax_cross_entropy(onehot_labels: Any, logits: Any) -> Any:
    """Add the mean cross-entropy of logits and class probabilities."""
    return _mean(nn.softmax_cross_entropy_with_logits(labels=onehot_labels, logits=logits), "softmax_cross_entropy")


def sparse_softmax_cross_entropy(labels: Any, logits: Any) -> Any:
    """Add the mean cross-entropy of logits and integer classes."""
    losses = nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return _mean(losses, "sparse_softmax_cross_entropy")


def sigmoid_cross_entropy(multi_class_labels: Any, logits: Any) -> Any:
    """Add the mean cross-entropy of logits and probabilities."""
    losses = nn.sigmoid_cross_entropy_with_logits(labels=multi_class_labels, logits=logits)
    return _mean(losses, "sigmoid_cross_entropy")
