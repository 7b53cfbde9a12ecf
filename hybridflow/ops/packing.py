"""Two int4 numbers in a byte: `pack_int4` and `unpack_int4`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import int8, uint8
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Stops, op
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec, as_tensor, make_spec, normals


def packed(q: Any) -> Any:
    """Compute `pack_int4` of NumPy's or jax's arrays."""
    xp = np if isinstance(q, np.ndarray) else jnp
    if q.shape[-1] % 2:
        q = xp.concatenate([q, xp.zeros((*q.shape[:-1], 1), q.dtype)], -1)
    low, high = q[..., 0::2].astype(np.uint8), q[..., 1::2].astype(np.uint8)
    return (low & np.uint8(15)) | (high << np.uint8(4))


def unpacked(p: Any, size: int) -> Any:
    """Compute `unpack_int4` of NumPy's or jax's arrays."""
    if (size + 1) // 2 != p.shape[-1] or p.dtype != uint8:
        raise ValueError("bytes that do not fit")  # `bind` then runs the shape rule, which says more
    xp = np if isinstance(p, np.ndarray) else jnp
    low = (p << np.uint8(4)).astype(np.int8) >> np.int8(4)
    high = p.astype(np.int8) >> np.int8(4)
    return xp.stack([low, high], -1).reshape(*p.shape[:-1], 2 * p.shape[-1])[..., :size]


def onnx_unpacked(o: Any, p: Any, shape: Any) -> Any:
    """Write `unpack_int4`: the number of a nibble is ``(nibble ^ 8) - 8``."""
    low, high = o.BitwiseAnd(p, np.uint8(15)), o.BitShift(p, np.uint8(4), direction="RIGHT")
    pairs = o.Concat(o.Unsqueeze(low, o.ints([-1])), o.Unsqueeze(high, o.ints([-1])), axis=-1)
    flat = o.reshape(pairs, (*shape[:-1], 2 * ((shape[-1] + 1) // 2)))
    flat = o.Slice(flat, o.ints([0]), o.ints([shape[-1]]), o.ints([-1])) if shape[-1] % 2 else flat
    return o.cast(o.cast(o.BitwiseXor(flat, np.uint8(8)), np.int32) - 8, np.int8)


def _pack_onnx(o: Any, q: Any) -> Any:
    size, ndim = q.shape[-1], len(q.shape)
    if type(size) is not int:
        o.no("packing an axis of open size has none")
    nibbles = o.BitwiseAnd(o.cast(q, np.int32), np.int32(15))
    if size % 2:
        nibbles = o.Pad(nibbles, o.ints([0] * (2 * ndim - 1) + [1]))
    low, high = [
        o.Slice(nibbles, o.ints([start]), o.ints([size + 1]), o.ints([-1]), o.ints([2])) for start in (0, 1)
    ]
    return o.cast(low + high * 16, np.uint8)


def _pack_infer(q: TensorSpec) -> TensorSpec:
    if q.dtype != int8 or not q.shape:
        raise DTypeError("pack_int4: takes int8 of at least one axis", got=str(q))
    return make_spec((*q.shape[:-1], (q.shape[-1] + 1) // 2), uint8)


def _unpack_infer(p: TensorSpec, *, size: int) -> TensorSpec:
    if p.dtype != uint8 or not p.shape:
        raise DTypeError("unpack_int4: takes uint8 of at least one axis", got=str(p))
    if (size + 1) // 2 != p.shape[-1]:
        raise ShapeError(f"unpack_int4: {size} numbers take {(size + 1) // 2} bytes, there are {p.shape[-1]}",
                         got=str(p))
    return make_spec((*p.shape[:-1], size), int8)


def _pack_samples(rng: np.random.Generator) -> Any:
    for shape in ((3, 4), (2, 5), (1,), (0, 3)):
        yield Sample((rng.integers(-8, 8, shape).astype(np.int8),))
    yield Bad((normals(rng, 3),), error=DTypeError, text="takes int8 of at least one axis")


def _unpack_samples(rng: np.random.Generator) -> Any:
    for shape, size in (((3, 4), 8), ((2, 3), 5), ((1,), 1), ((0, 3), 6)):
        yield Sample((rng.integers(0, 256, shape).astype(np.uint8), size))
    yield Bad((np.zeros((2, 3), np.uint8), 7), error=ShapeError, text="7 numbers take 4 bytes, there are 3")
    yield Bad((np.zeros(3, np.int8), 6), error=DTypeError, text="takes uint8")


@op(
    kernel=packed,
    lower=packed,
    infer=_pack_infer,
    vjp=Stops("a stored integer has no gradient"),
    samples=_pack_samples,
    onnx=_pack_onnx,
)
def pack_int4(q: TensorLike) -> Tensor:
    """Put two int4 numbers of the last axis into each byte, the first one into the lower half.

    Args:
        q: int8 of shape ``(..., n)``, from -8 to 7; of other numbers the upper bits are dropped.

    Returns:
        uint8 of shape ``(..., (n + 1) // 2)``; an odd last byte is filled up with 0.

    Raises:
        DTypeError: `q` is not int8.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantize.pack_int4(hf.asarray([1, 2, -1], dtype="int8"))
        Tensor([33, 15], dtype=uint8)
    """
    return bind(pack_int4.op, (as_tensor(q),))


@op(
    kernel=lambda p, *, size: unpacked(p, size),
    lower=lambda p, *, size: unpacked(p, size),
    infer=_unpack_infer,
    vjp=Stops("a stored integer has no gradient"),
    samples=_unpack_samples,
    onnx=lambda o, p, *, size: onnx_unpacked(o, p, (*p.shape[:-1], size)),
)
def unpack_int4(p: TensorLike, size: int) -> Tensor:
    """Return the int4 numbers that `pack_int4` packed.

    Args:
        p: uint8 of shape ``(..., (size + 1) // 2)``.
        size: how many numbers the last axis had.

    Returns:
        int8 of shape ``(..., size)``.

    Raises:
        ShapeError: the last axis has not as many bytes as `size` numbers take.
        DTypeError: `p` is not uint8.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantize.unpack_int4(hf.asarray([33, 15], dtype="uint8"), 3)
        Tensor([ 1,  2, -1], dtype=int8)
    """
    return bind(unpack_int4.op, (as_tensor(p),), {"size": size})


__all__ = ["onnx_unpacked", "pack_int4", "packed", "unpack_int4", "unpacked"]
