"""Integer labels: checks and the one-hot form."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, float32, int32, kind_of
from hybridflow.core.errors import DTypeError, IndexRangeError, ShapeError, message
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Stops, op
from hybridflow.ir.builder import add_check
from hybridflow.ops.arithmetic import multiply
from hybridflow.ops.choice import where
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    cast_to,
    integers,
    known_value,
    make_spec,
    no_flops,
    normals,
    require_kind,
)
from hybridflow.ops.comparison import greater_equal, less, logical_and, not_equal
from hybridflow.ops.creation import full
from hybridflow.ops.indexing import take
from hybridflow.ops.onnx import in_range
from hybridflow.ops.padding_nn import coded
from hybridflow.ops.reductions import all as all_of
from hybridflow.ops.sizes import normalize_shape

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def integer_labels(name: str, ids: TensorLike) -> Tensor:
    """Return labels as a tensor.

    Raises:
        DTypeError: the labels are not integers.
    """
    tensor = as_tensor(ids)
    if kind_of(tensor.dtype) not in ("int", "uint"):
        raise DTypeError(f"{name}: labels must be integers, not {tensor.dtype}", got=str(tensor.spec),
                         hint="Cast them with .astype(hf.int32).")
    return tensor


def check_labels(name: str, labels: Tensor, classes: Any) -> None:
    """Check that labels are from 0 to classes - 1: now if their values are known, else when the call runs.

    Raises:
        IndexRangeError: a label is out of range. If the values are known, the message names the first such label.
    """
    array = known_value(labels)
    if array is None or type(classes) is not int:
        wide = labels if labels.dtype.itemsize == 8 else cast_to(labels, int32)
        inside = logical_and(greater_equal(wide, 0), less(wide, full((), classes, dtype=wide.dtype)))
        text = message(
            f"{name}: a label is not in 0 to {classes - 1}", got=str(labels.spec),
            hint="Labels count from 0; ignored_id= of a loss leaves out examples that have none.",
        )
        add_check(all_of(inside), IndexRangeError, text)
    elif array.size and not _are_below(array, classes):
        position = tuple([int(i) for i in np.argwhere((array < 0) | (array >= classes))[0]])
        raise IndexRangeError(f"{name}: label {array[position]} at {list(position)} is not in 0 to {classes - 1}",
                              got=f"{name}: {labels.spec}, {classes} classes",
                              hint="Labels count from 0; ignored_id= of a loss leaves out examples that have none.")


def _are_below(labels: Any, classes: int) -> bool:
    """Return whether labels are from 0 to classes - 1; negative ones are large when read as unsigned."""
    dtype = labels.dtype
    if classes <= 1 << (8 * dtype.itemsize - 1):
        return bool(np.maximum.reduce(labels.view(_UNSIGNED[dtype.itemsize]), axis=None) < classes)
    return bool(labels.min() >= 0 and labels.max() < classes)


def known_labels(labels: Tensor, ignored_id: int | None) -> tuple[Tensor, Tensor | None]:
    """Return labels with 0 in place of those that are ignored, and which are kept; None if all are."""
    if ignored_id is None or not np.iinfo(labels.dtype).min <= ignored_id <= np.iinfo(labels.dtype).max:
        return labels, None
    array = known_value(labels)
    if array is not None and not (array == ignored_id).any():
        return labels, None
    kept = not_equal(labels, ignored_id)
    return where(kept, labels, 0), kept


def weights_by_class(name: str, class_weight: TensorLike, classes: Any, dtype: Any) -> Tensor:
    """Return the weights of classes in a dtype.

    Raises:
        ShapeError: there is not one weight for each class.
    """
    weights = as_tensor(class_weight)
    if weights.shape != (classes,):
        raise ShapeError(f"{name}: class_weight has one weight for each of the {classes} classes",
                         got=f"class_weight of shape {weights.shape}")
    return cast_to(weights, dtype)


def label_weights(
    name: str, labels: Tensor, classes: Any, dtype: Any, class_weight: TensorLike | None, kept: Tensor | None
) -> Tensor | None:
    """Return the weight of each label, 0 for those that are ignored; None if all are 1.

    Args:
        name: the caller, for messages.
        labels: the labels, which are classes.
        classes: the number of classes.
        dtype: the dtype of the weights.
        class_weight: the weights of the classes.
        kept: which labels are not ignored.

    Raises:
        ShapeError: there is not one weight for each class.
    """
    if class_weight is None:
        return None if kept is None else cast_to(kept, dtype)
    weights = take(weights_by_class(name, class_weight, classes, dtype), labels)
    return weights if kept is None else where(kept, weights, 0)


def weighted(losses: Tensor, weights: Tensor | None, kept: Tensor | None) -> Tensor:
    """Return losses times the weights of their labels; 0 for labels that are ignored, whatever their losses are."""
    known = losses if kept is None else where(kept, losses, 0)
    return known if weights is None else multiply(known, weights)


# -- one_hot ------------------------------------------------------------------------------------------------------


def _one_hot_kernel(ids: Any, *, classes: int, dtype: Any) -> Any:
    columns = ids.reshape(-1)
    rows = np.arange(columns.size)
    result = np.zeros((columns.size, classes), dtype)
    inside = (columns >= 0) & (columns < classes)
    if not inside.all():
        rows, columns = rows[inside], columns[inside]
    result[rows, columns] = 1
    return result.reshape(*ids.shape, classes)


def _one_hot_lower(ids: Any, *, classes: int, dtype: Any) -> Any:
    if ids.dtype.itemsize < 4:
        ids = lax.convert_element_type(ids, int32)  # so that the positions cannot wrap
    shape = (*ids.shape, classes)
    position = lax.broadcasted_iota(ids.dtype, shape, ids.ndim)
    match = lax.eq(lax.broadcast_in_dim(ids, shape, tuple(range(ids.ndim))), position)
    return lax.convert_element_type(match, dtype)


def _one_hot_infer(ids: TensorSpec, *, classes: Any, dtype: Any) -> TensorSpec:
    require_kind("one_hot", ("int", "uint"), ids)
    return make_spec((*ids.shape, classes), dtype)


def _one_hot_samples(rng: np.random.Generator) -> Any:
    yield Sample((integers(rng, 0, 5, 3, 2), 5, np.dtype(np.float32)))
    yield Sample((integers(rng, 0, 5), 5, np.dtype(np.int32)))
    yield Sample((integers(rng, 0, 5, 0), 5, np.dtype(np.float64)))
    yield Sample((integers(rng, 0, 100, 4, dtype="int8"), 300, np.dtype(np.bool_)))
    yield Sample((integers(rng, -2, 7, 6), 5, np.dtype(np.float32)))
    yield Bad((normals(rng, 3), 5, np.dtype(np.float32)), error=DTypeError, text="does not take float32")


def _one_hot_onnx(o: Any, x: Any, *, classes: Any, dtype: Any) -> Any:
    each = o.Unsqueeze(o.cast(x, np.int64), o.ints([-1]))
    return o.cast(o.Equal(each, in_range(o, 0, classes)), dtype)


@op(
    name="one_hot",
    kernel=_one_hot_kernel,
    lower=_one_hot_lower,
    infer=_one_hot_infer,
    vjp=Stops("integers have no gradient"),
    flops=no_flops,
    samples=_one_hot_samples,
    ulp=0,
    onnx=_one_hot_onnx,
    padded=coded,
)
def one_hot_rows(ids: TensorLike, classes: Any, dtype: Any) -> Tensor:
    """Return one row per label with 1 in its column. Labels are not checked: an invalid one gives a row of zeros."""
    return bind(one_hot_rows.op, (as_tensor(ids),), {"classes": classes, "dtype": dtype})


def one_hot(ids: TensorLike, classes: int, *, dtype: Any = float32, **other: Unpack[Other]) -> Tensor:
    """Return a vector per label with 1 at the label's position and 0 elsewhere.

    Args:
        ids: integers from 0 to ``classes - 1``, of any shape.
        classes: the number of classes.
        dtype: the result's dtype.

    Returns:
        ``(*ids.shape, classes)`` in the dtype.

    Raises:
        IndexRangeError: a label is not a class.
        DTypeError: the labels are not integers.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.one_hot([2, 0], 3)
        Tensor([[0., 0., 1.],
                [1., 0., 0.]], dtype=float32)
    """
    if other:
        return respelled(one_hot, locals())
    tensor = integer_labels("one_hot", ids)
    (size,) = normalize_shape("one_hot", classes)
    check_labels("one_hot", tensor, size)
    return one_hot_rows(tensor, size, as_dtype(dtype))
