"""Lookup of rows of a table."""

from __future__ import annotations

from hybridflow.core.errors import ShapeError
from hybridflow.ops.common import Tensor, TensorLike, as_tensor
from hybridflow.ops.indexing import selected
from hybridflow.ops.nn.labels import integer_labels


def embedding(ids: TensorLike, table: TensorLike) -> Tensor:
    """Take the row of a table for every id.

    Args:
        ids: integers of any shape; negative ones count from the end.
        table: ``(rows, ...)``; the gradient of a row is the sum over the ids that took it.

    Returns:
        ``(*ids.shape, *table.shape[1:])`` in the table's dtype.

    Raises:
        IndexRangeError: an id is outside the table's rows.
        DTypeError: the ids are not integers.
        ShapeError: the table has shape ().

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.embedding([1, 0, 1], [[1.0, 2.0], [3.0, 4.0]])
        Tensor([[3., 4.],
                [1., 2.],
                [3., 4.]], dtype=float32)
    """
    rows = as_tensor(table)
    if not rows.shape:
        raise ShapeError("embedding: the table needs an axis of rows", got=str(rows.spec))
    return selected("embedding", rows, (integer_labels("embedding", ids),), (0,))
