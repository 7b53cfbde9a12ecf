"""What the linear algebra ops share: shape rules of matrices, transposes in gradient rules, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hybridflow.core.dims import same_size
from hybridflow.core.dtypes import LOW_PRECISION, complex64, complex128, float32, float64, kind_of
from hybridflow.core.errors import DTypeError, ShapeError, message
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec, as_tensor, call_text, cast_to, promote, promote_float

REAL_OF = {complex64: float32, complex128: float64}
"""The dtype of the parts of complex numbers."""


def real_dtype(dtype: Any) -> Any:
    """Return the dtype of absolute values."""
    return REAL_OF.get(dtype, dtype)


def factorable(name: str, *values: TensorLike) -> tuple[Tensor, ...]:
    """Return operands in one of the dtypes that matrices are factored in.

    Raises:
        DTypeError: float16 or bfloat16.
    """
    tensors = promote_float(*values)
    for tensor in tensors:
        if tensor.dtype.num in LOW_PRECISION:
            raise DTypeError(
                message(f"{name}: does not take {tensor.dtype}", got=call_text(name, *[one.spec for one in tensors]),
                        hint="Matrices are factored in float32 or wider; cast with .astype(hf.float32).")
            )  # fmt: skip
    return tensors


def numeric(name: str, *values: TensorLike) -> tuple[Tensor, ...]:
    """Return operands in one numeric dtype.

    Raises:
        DTypeError: bool operands.
    """
    tensors = promote(*values)
    if kind_of(tensors[0].dtype) == "bool":
        raise DTypeError(
            message(f"{name}: does not take bool", got=call_text(name, *[one.spec for one in tensors]),
                    hint="Cast it with .astype(...).")
        )  # fmt: skip
    return tensors


def as_float(x: TensorLike) -> Tensor:
    """Return a tensor of floats or complex numbers; integers become float32."""
    tensor = as_tensor(x)
    return tensor if kind_of(tensor.dtype) in ("float", "complex") else cast_to(tensor, float32)


def require_matrix(name: str, x: TensorSpec, *specs: TensorSpec) -> None:
    """Raise unless a spec is a matrix or a stack of them.

    Raises:
        ShapeError: fewer than two dimensions.
    """
    if len(x.shape) < 2:
        raise ShapeError(
            message(f"{name}: needs a matrix, the operand has {len(x.shape)} dimensions",
                    got=call_text(name, x, *specs), hint="Pass (..., m, n).")
        )  # fmt: skip


def require_square(name: str, x: TensorSpec, *specs: TensorSpec) -> None:
    """Raise unless a spec is a square matrix or a stack of them.

    Raises:
        ShapeError: fewer than two dimensions, or different last sizes.
    """
    require_matrix(name, x, *specs)
    rows, columns = x.shape[-2:]
    if not same_size(rows, columns) and rows != columns:
        raise ShapeError(
            message(f"{name}: the matrix is not square: {rows} rows, {columns} columns",
                    got=call_text(name, x, *specs), hint="Pass (..., n, n).")
        )  # fmt: skip


def is_square(x: Any) -> bool:
    """Whether an array is a square matrix or a stack of them; NumPy's own errors do not say why they came."""
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2]


# -- gradient rules -----------------------------------------------------------------------------------------------


def transposed(F: Any, x: Any) -> Any:
    """Swap the last two axes."""
    ndim = len(x.shape)
    return F.permute_dims(x, axes=(*range(ndim - 2), ndim - 1, ndim - 2))


def conjugated(F: Any, x: Any) -> Any:
    """Return the conjugate of complex numbers, real ones as they are."""
    return F.conj(x) if x.dtype.kind == "c" else x


def adjoint(F: Any, x: Any) -> Any:
    """Swap the last two axes and conjugate."""
    return conjugated(F, transposed(F, x))


def with_axes(F: Any, x: Any, count: int) -> Any:
    """Add axes of size 1 at the end."""
    return F.reshape(x, shape=(*x.shape, *[1] * count))


# -- kernels ------------------------------------------------------------------------------------------------------


def nan_of(dtype: Any) -> Any:
    """Return NaN in a dtype; both parts of a complex one."""
    return dtype.type(complex(np.nan, np.nan)) if dtype.kind == "c" else dtype.type(np.nan)


def each_matrix(solve: Callable[..., Any], result: Any, *stacks: Any) -> Any:
    """Fill a stack of results matrix by matrix, with NaN where the solver finds none.

    Args:
        solve: takes one matrix of every stack.
        result: ``(..., m, n)``, filled here and returned.
        *stacks: of the batch shape of `result`.
    """
    for index in np.ndindex(result.shape[:-2]):
        try:
            result[index] = solve(*[stack[index] for stack in stacks])
        except np.linalg.LinAlgError:
            result[index] = nan_of(result.dtype)
    return result


# -- samples ------------------------------------------------------------------------------------------------------


def gaussian(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw standard normal numbers, complex ones for a complex dtype."""
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x, dtype=dtype)


def well_conditioned(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw matrices with well separated singular values between 1 and 2."""
    rows, columns = shape[-2:]
    u, _, vh = np.linalg.svd(gaussian(rng, *shape, dtype=np.promote_types(dtype, np.float64)), full_matrices=False)
    values = np.linspace(2.0, 1.0, min(rows, columns))
    return np.asarray((u * values) @ vh, dtype=dtype)


def positive_definite(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw Hermitian matrices with eigenvalues from 1 to 3."""
    q, _ = np.linalg.qr(gaussian(rng, *shape, dtype=np.promote_types(dtype, np.float64)))
    values = np.linspace(1.0, 3.0, shape[-1])
    return np.asarray((q * values) @ np.conj(np.swapaxes(q, -1, -2)), dtype=dtype)


def cubes(factor: float) -> Callable[..., Any]:
    """Return the FLOPs of a factorisation of n-by-n matrices: ``factor * n**3`` each."""

    def flops(outputs: Any, x: TensorSpec, *rest: Any, **attrs: Any) -> Any:
        del outputs, rest, attrs
        return int(factor * 6) * x.size * x.shape[-1] // 6

    return flops


def flatten(groups: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the members of several groups in one list."""
    return [one for group in groups for one in group]
