"""Products of vectors and powers of matrices."""

from __future__ import annotations

from typing import Unpack

from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.ops.common import Tensor, TensorLike, broadcast_shapes, call_text, normalize_axis
from hybridflow.ops.creation import eye
from hybridflow.ops.joining import stack, unstack
from hybridflow.ops.linalg.common import factorable, numeric, require_square
from hybridflow.ops.linalg.systems import inv
from hybridflow.ops.matmul import matmul
from hybridflow.ops.shape import broadcast_to


def cross(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1, **other: Unpack[Other]) -> Tensor:
    """Compute cross products of vectors of three elements.

    Args:
        x1: numeric.
        x2: numeric.
        axis: the vectors' axis; the other axes broadcast.

    Returns:
        The products, of the broadcast shape, in the promoted dtype.

    Raises:
        ShapeError: vectors of other sizes than 3, an axis out of range, or shapes that do not broadcast.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.cross([1, 0, 0], [0, 1, 0])
        Tensor([0, 0, 1], dtype=int32)
    """
    if other:
        return respelled(cross, locals())
    a, b = numeric("cross", x1, x2)
    sizes = [x.shape[normalize_axis("cross", axis, x.ndim)] for x in (a, b)]
    if sizes != [3, 3]:
        raise ShapeError(f"cross: vectors of {sizes[0]} and {sizes[1]} elements on axis {axis}, both need 3",
                         got=call_text("cross", a.spec, b.spec), hint="Name the axis of size 3.")
    ndim = len(broadcast_shapes("cross", a.shape, b.shape))
    from_end = axis if axis < 0 else axis - ndim
    left, right = unstack(a, axis=axis), unstack(b, axis=axis)
    parts = [left[(i + 1) % 3] * right[(i + 2) % 3] - left[(i + 2) % 3] * right[(i + 1) % 3] for i in range(3)]
    return stack(parts, axis=from_end)


def matrix_power(x: TensorLike, n: int, /) -> Tensor:
    """Raise matrices to an integer power, by repeated squaring.

    Args:
        x: ``(..., n, n)``, real or complex floats.
        n: the exponent; a negative one inverts first (NaN where `inv` gives it).

    Returns:
        The powers; the identity for 0.

    Raises:
        ShapeError: a matrix that is not square.
        ArgumentError: an exponent that is not an integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.matrix_power([[1.0, 1.0], [0.0, 1.0]], 5)
        Tensor([[1., 5.],
                [0., 1.]], dtype=float32)

    Reference:
        G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, algorithm 9.2.2.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ArgumentError(f"matrix_power: the exponent {n!r} is not an integer", hint="Pass an int.")
    (base,) = factorable("matrix_power", x)
    require_square("matrix_power", base.spec)
    exponent = n.__index__()
    if exponent < 0:
        base, exponent = inv(base), -exponent
    if exponent == 0:
        return broadcast_to(eye(base.shape[-1], dtype=base.dtype), base.shape)
    result: Tensor | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else matmul(result, base)
        exponent >>= 1
        if exponent:
            base = matmul(base, base)
    assert result is not None
    return result


__all__ = ["cross", "matrix_power"]
