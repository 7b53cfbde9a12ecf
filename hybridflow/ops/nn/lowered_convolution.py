"""Convolutions for XLA:CPU, image by image, for machines with few cores.

XLA:CPU's own convolution, and even more its gradient for the kernel, shares work well among many cores and is slow on
one. A loop over images takes less processor time: it makes the columns of an image and multiplies them while they are
in the cache.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hybridflow.backend.cores import usable_cores
from hybridflow.ops.nn.windows import Sizes

_MOST_CORES = {"conv": 1, "conv_kernel_gradient": 2}
"""By operation, the most cores on which the loop is faster than XLA's own way, which shares the work."""
_FEWEST_IMAGES = 4
_LEAST_WORK = 1 << 22
"""The fewest multiplications per image for which a loop over images pays."""


def is_better(name: str, x: Sizes, kernel: Sizes, places: Sizes, *, groups: int, channels_last: bool) -> bool:
    """Return whether to compute a convolution of arrays of these shapes image by image.

    Args:
        name: the operation.
        x, kernel: the shapes of the input and the kernel.
        places: the sizes of the result's spatial axes.
        groups, channels_last: as in `hf.nn.conv`.
    """
    if not all([isinstance(size, int) for size in (*x, *kernel, *places)]):  # symbolic sizes
        return False
    if groups != 1 or channels_last or x[0] < _FEWEST_IMAGES or jax.default_backend() != "cpu":
        return False
    work = _product(kernel) * _product(places)
    return work >= _LEAST_WORK and usable_cores("OMP_NUM_THREADS") <= _MOST_CORES[name]


def _product(sizes: Sizes) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _columns(x: Any, window: Sizes, places: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Return the windows of a padded image ``(c, *spatial)`` as ``(c * window, places)``."""
    channels = x.shape[0]
    parts: list[Any] = []
    for offset in product(*[range(size) for size in window]):
        first = [at * apart for at, apart in zip(offset, dilation, strict=True)]
        last = [at + (size - 1) * step + 1 for at, size, step in zip(first, places, stride, strict=True)]
        parts.append(lax.slice(x, (0, *first), (channels, *last), (1, *stride)))
    return jnp.stack(parts, 1).reshape(channels * len(parts), _product(places))


def _padded(x: Any, padding: Any) -> Any:
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *[(low, high, 0) for low, high in padding]))


def _dot(a: Any, b: Any, contract: tuple[int, int]) -> Any:
    return lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), precision=lax.Precision.HIGHEST)


def convolve(x: Any, kernel: Any, places: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute `hf.nn.conv` image by image."""
    weights = kernel.reshape(kernel.shape[0], -1)

    def one(image: Any) -> Any:
        columns = _columns(image, kernel.shape[2:], places, stride, dilation)
        return _dot(weights, columns, (1, 0)).reshape(kernel.shape[0], *places)

    return lax.map(one, _padded(x, padding))


def kernel_gradient(x: Any, g: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its kernel, which has the given shape, image by image."""
    places = g.shape[2:]

    def add(total: Any, one: Any) -> Any:
        image, slope = one
        columns = _columns(image, shape[2:], places, stride, dilation)
        return total + _dot(slope.reshape(shape[0], -1), columns, (1, 1)), None

    start = jnp.zeros((shape[0], _product(shape[1:])), g.dtype)
    return lax.scan(add, start, (_padded(x, padding), g))[0].reshape(shape)
