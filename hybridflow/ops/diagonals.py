"""Diagonals of matrices."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dims import Dim, same_size
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, op
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec, as_tensor, call_text, make_spec, no_flops, normals
from hybridflow.ops.onnx import positions, scattered, sliced, zeros
from hybridflow.ops.padding_index import diagonal_of, on_diagonal
from hybridflow.ops.reductions import sum as reduce_sum


def _start(offset: int) -> tuple[int, int]:
    """Return the row and the column at which a diagonal starts."""
    return max(-offset, 0), max(offset, 0)


def _length(rows: Any, columns: Any, offset: int) -> Any:
    if same_size(rows, columns) and not offset:
        return rows
    row, column = _start(offset)
    return max(0, min(rows - row, columns - column))


def _diagonal_infer(x: TensorSpec, *, offset: int) -> TensorSpec:
    if len(x.shape) < 2:
        raise ShapeError(f"diagonal: needs 2 dimensions at least, there are {len(x.shape)}",
                         got=call_text("diagonal", x), hint="Pass a matrix or a stack of them.")
    rows, columns = x.shape[-2:]
    return make_spec((*x.shape[:-2], _length(rows, columns, offset)), x.dtype)


def _diagonal_kernel(x: Any, *, offset: int) -> Any:
    return np.diagonal(x, offset=offset, axis1=-2, axis2=-1)


def _diagonal_lower(x: Any, *, offset: int) -> Any:
    rows, columns = x.shape[-2:]
    row, column = _start(offset)
    size = _length(rows, columns, offset)
    if not size:
        return lax.full((*x.shape[:-2], 0), 0, x.dtype)
    # In row-major order the elements of a diagonal are columns + 1 apart.
    flat = lax.reshape(x, (*x.shape[:-2], rows * columns))
    begin = row * columns + column
    return lax.slice_in_dim(flat, begin, begin + (size - 1) * (columns + 1) + 1, columns + 1, axis=flat.ndim - 1)


def _diagonal_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 3),))
    yield Sample((normals(rng, 2, 2, 4, dtype="float64"),), {"offset": 1})
    yield Sample((normals(rng, 3, 2),), {"offset": -2})
    yield Sample((normals(rng, 2, 2, dtype="bfloat16"),), {"offset": 5}, gradient=False)
    yield Bad((normals(rng, 3),), error=ShapeError, text="needs 2 dimensions at least, there are 1")


def _diagonal_onnx(o: Any, x: Any, *, offset: int) -> Any:
    rows, columns = x.shape[-2:]
    row, column = _start(offset)
    size = _length(rows, columns, offset)
    flat = o.reshape(x, (*x.shape[:-2], rows * columns))
    begin = row * columns + column
    return sliced(o, flat, [*[(0, one, 1) for one in x.shape[:-2]], (begin, size, columns + 1)],
                  (*x.shape[:-2], rows * columns))


@op(
    kernel=_diagonal_kernel,
    lower=_diagonal_lower,
    infer=_diagonal_infer,
    vjp=lambda F, g, y, x, *, offset: (
        F.embed_diagonal(g, rows=x.shape[-2], columns=x.shape[-1], offset=offset),
    ),
    flops=no_flops,
    samples=_diagonal_samples,
    traits=("layout",),
    ulp=0,
    onnx=_diagonal_onnx,
    padded=diagonal_of,
)
def diagonal(x: TensorLike, /, offset: int = 0, **other: Unpack[Other]) -> Tensor:
    """Take a diagonal of matrices.

    Args:
        x: ``(..., m, n)``, any dtype.
        offset: which diagonal: 0 the main one, above it if positive.

    Returns:
        ``(..., k)``, where k is 0 for a diagonal outside the matrix.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.diagonal([[1, 2], [3, 4]])
        Tensor([1, 4], dtype=int32)
    """
    if other:
        return respelled(diagonal, locals())
    return bind(diagonal.op, (as_tensor(x),), {"offset": int(offset)})


def _embed_infer(x: TensorSpec, *, rows: Any, columns: Any, offset: int) -> TensorSpec:
    expected = _length(rows, columns, offset)
    if not x.shape or not (same_size(x.shape[-1], expected) or x.shape[-1] == expected):
        raise ShapeError(f"embed_diagonal: a diagonal of shape {x.shape} where one of {expected} elements is needed",
                         got=call_text("embed_diagonal", x),
                         hint=f"The matrix is {rows} by {columns}, offset {offset}.")
    return make_spec((*x.shape[:-1], rows, columns), x.dtype)


def _embed_kernel(x: Any, *, rows: int, columns: int, offset: int) -> Any:
    row, column = _start(offset)
    size = x.shape[-1]
    if size != _length(rows, columns, offset):
        raise ValueError
    result = np.zeros((*x.shape[:-1], rows, columns), x.dtype)
    along = np.arange(size)
    result[..., row + along, column + along] = x
    return result


def _embed_lower(x: Any, *, rows: int, columns: int, offset: int) -> Any:
    row, column = _start(offset)
    size, shape = x.shape[-1], (*x.shape[:-1], rows, columns)
    if not size:
        return lax.full(shape, 0, x.dtype)
    begin = row * columns + column
    length = (size - 1) * (columns + 1) + 1
    pads = [(0, 0, 0)] * (x.ndim - 1) + [(begin, rows * columns - begin - length, columns)]
    return lax.reshape(lax.pad(x, np.zeros((), x.dtype), pads), shape)


def _embed_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3),), {"rows": 3, "columns": 3})
    yield Sample((normals(rng, 2, 2, dtype="float64"),), {"rows": 4, "columns": 3, "offset": 1})
    yield Sample((normals(rng, 2, dtype="bfloat16"),), {"rows": 3, "columns": 2, "offset": -1}, gradient=False)
    yield Sample((normals(rng, 2, 0),), {"rows": 2, "columns": 2, "offset": 2}, gradient=False)
    yield Bad((normals(rng, 3),), {"rows": 2, "columns": 2}, error=ShapeError, text="where one of 2 elements is needed")


def _embed_onnx(o: Any, x: Any, *, rows: Any, columns: Any, offset: int) -> Any:
    shape = (*x.shape[:-1], rows, columns)
    row, column = _start(offset)
    if type(x.shape[-1]) is Dim:
        o.no("a diagonal of open size has none")
    diagonal = np.arange(x.shape[-1])
    index = positions(o, shape, (..., row + diagonal, column + diagonal))
    return scattered(o, zeros(o, shape, x.dtype), index, x, shape)


@op(
    kernel=_embed_kernel,
    lower=_embed_lower,
    infer=_embed_infer,
    vjp=lambda F, g, y, x, *, rows, columns, offset: (F.diagonal(g, offset=offset),),
    flops=no_flops,
    samples=_embed_samples,
    traits=("layout",),
    ulp=0,
    onnx=_embed_onnx,
    padded=on_diagonal,
)
def embed_diagonal(
    x: TensorLike, /, *, rows: int | None = None, columns: int | None = None, offset: int = 0, **other: Unpack[Other]
) -> Tensor:
    """Make matrices with a given diagonal and zeros elsewhere: the adjoint of `diagonal`.

    Args:
        x: ``(..., k)``, any dtype.
        rows: the number of rows; just enough, together with `columns`, if not given.
        columns: the number of columns.
        offset: which diagonal: 0 the main one, above it if positive.

    Returns:
        ``(..., rows, columns)``.

    Raises:
        ShapeError: a diagonal of another size than the matrix has.

    Example:
        >>> import hybridflow as hf
        >>> hf.embed_diagonal([1, 2])
        Tensor([[1, 0],
                [0, 2]], dtype=int32)
    """
    if other:
        return respelled(embed_diagonal, locals())
    tensor = as_tensor(x)
    size: Any = tensor.shape[-1] + abs(offset) if tensor.shape else 1
    attrs = {
        "rows": size if rows is None else rows,
        "columns": size if columns is None else columns,
        "offset": int(offset),
    }
    return bind(embed_diagonal.op, (tensor,), attrs)


def trace(x: TensorLike, /, offset: int = 0, *, dtype: Any = None) -> Tensor:
    """Add up a diagonal of matrices.

    Args:
        x: ``(..., m, n)``, numeric.
        offset: which diagonal: 0 the main one, above it if positive.
        dtype: the dtype to cast to before adding; as for `sum` if not given.

    Returns:
        ``(...)``.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.trace([[1, 2], [3, 4]])
        Tensor(5, dtype=int32)
    """
    return reduce_sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


__all__ = ["diagonal", "embed_diagonal", "trace"]
