"""What devices send one another inside `hf.shard_map`."""

from __future__ import annotations

from collections.abc import Sequence

from hybridflow.core.context import current
from hybridflow.core.errors import LayoutError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ops import collectives
from hybridflow.ops.common import TensorLike, normalize_axis


def _size(name: str, axis: str) -> int:
    """Return the number of devices along a mesh axis, inside `hf.shard_map`."""
    mesh = getattr(current().tracer, "manual", None)
    if mesh is None:
        raise LayoutError(f"{name}: there are no parts outside of hf.shard_map",
                          hint="Call it in the function given to it.")
    if axis not in mesh.shape:
        raise LayoutError(f"{name}: the mesh has no axis {axis!r}", got=str(mesh),
                          hint=f"Its axes: {', '.join(mesh.axes)}.")
    return mesh.shape[axis]


def psum(x: TensorLike, axis: str) -> Tensor:
    """Return the sum of a value over the devices along a mesh axis.

    Args:
        x: each device's value, of any shape.
        axis: the mesh axis.

    Returns:
        The shape and dtype of `x`, the same on all of these devices.

    Raises:
        LayoutError: outside of `hf.shard_map`, or the mesh has no such axis.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"data": 1})
        >>> hf.shard_map(lambda x: hf.distribute.psum(x, "data"), mesh, [("data",)], (None,))(hf.asarray([1.0]))
        Tensor([1.], dtype=float32)
    """
    size = _size("psum", axis)
    return collectives.psum(as_tensor(x), axis=axis, size=size)


def pmean(x: TensorLike, axis: str) -> Tensor:
    """Return the mean of a value over the devices along a mesh axis; see `psum`.

    Args:
        x: each device's value, of any shape; floating-point.
        axis: the mesh axis.
    """
    return psum(x, axis) * (1.0 / _size("pmean", axis))


def all_gather(x: TensorLike, axis: str, dim: int = 0) -> Tensor:
    """Return the values of the devices along a mesh axis, joined along a dimension.

    Args:
        x: each device's value, with one dimension at least.
        axis: the mesh axis.
        dim: the dimension.

    Returns:
        The shape of `x` with that dimension as many times as large.

    Raises:
        LayoutError: outside of `hf.shard_map`, or the mesh has no such axis.
        AxisError: `x` has no such dimension.
    """
    size, tensor = _size("all_gather", axis), as_tensor(x)
    return collectives.all_gather(tensor, axis=axis, size=size, dim=normalize_axis("all_gather", dim, tensor.ndim))


def psum_scatter(x: TensorLike, axis: str, dim: int = 0) -> Tensor:
    """Return a part of the sum over the devices along a mesh axis: each device gets one, along a dimension.

    Args:
        x: each device's value, with one dimension at least.
        axis: the mesh axis.
        dim: the dimension, whose size the number of devices divides.

    Returns:
        The shape of `x` with that dimension divided.

    Raises:
        LayoutError: outside of `hf.shard_map`, the mesh has no such axis, or it does not divide the dimension.
        AxisError: `x` has no such dimension.
    """
    size, tensor = _size("psum_scatter", axis), as_tensor(x)
    return collectives.psum_scatter(tensor, axis=axis, size=size, dim=normalize_axis("psum_scatter", dim, tensor.ndim))


def ppermute(x: TensorLike, axis: str, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Send each device's value to another device along a mesh axis.

    Args:
        x: each device's value, of any shape.
        axis: the mesh axis.
        pairs: pairs ``(source, target)`` of positions along the axis, each at most once a source and a target.

    Returns:
        The value that was sent to the device; zeros if none was.

    Raises:
        LayoutError: outside of `hf.shard_map`, the mesh has no such axis, or the pairs are no such pairs.
    """
    size = _size("ppermute", axis)
    given = tuple([(int(source), int(target)) for source, target in pairs])
    for ends in ([source for source, _ in given], [target for _, target in given]):
        if len(set(ends)) < len(ends) or not all([0 <= end < size for end in ends]):
            raise LayoutError(f"ppermute: pairs are of different positions from 0 to {size - 1}", got=str(given)[:80])
    return collectives.ppermute(as_tensor(x), axis=axis, size=size, pairs=given)


def all_to_all(x: TensorLike, axis: str, split: int, join: int) -> Tensor:
    """Split each device's value, send every device along a mesh axis its part, and join what arrives.

    Args:
        x: each device's value.
        axis: the mesh axis.
        split: the dimension that is split, whose size the number of devices divides.
        join: the dimension along which parts are joined, in the order of the devices.

    Returns:
        The shape of `x` with one dimension divided and the other multiplied.

    Raises:
        LayoutError: outside of `hf.shard_map`, the mesh has no such axis, or it does not divide the dimension.
        AxisError: `x` has no such dimension.
    """
    size, tensor = _size("all_to_all", axis), as_tensor(x)
    split, join = [normalize_axis("all_to_all", one, tensor.ndim) for one in (split, join)]
    return collectives.all_to_all(tensor, axis=axis, size=size, split=split, join=join)


def axis_index(axis: str) -> Tensor:
    """Return the position of the device along a mesh axis, int32 of shape ().

    Args:
        axis: the mesh axis.

    Raises:
        LayoutError: outside of `hf.shard_map`, or the mesh has no such axis.
    """
    return collectives.axis_index(axis=axis, size=_size("axis_index", axis))
