"""Convolutions for XLA:CPU, image by image, for machines with few cores.

XLA:CPU is slow at two kinds of convolution: gradients of the kernel for large images, and gradients of inputs that are
not padded. A loop over images takes half the time: it lays out the windows of one image as columns and multiplies them
while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hybridflow.backend.cores import usable_cores
from hybridflow.backend.options import jaxlib_version
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.nn.windows import Sizes

_MOST_CORES = {"conv": 1, "conv_kernel_gradient": 2, "conv_input_gradient": 2}
"""By operation, the largest number of cores for which the loop is faster; XLA shares its work between cores."""
_FEWEST_IMAGES = 4
_SLOW_FORWARD = (0, 12)
"""Before this version of jaxlib, XLA is also slow at the convolution itself if nothing is padded."""
_LEAST_WORK = 1 << 22
"""The smallest number of multiplications per image for which the loop is faster at the convolution itself."""
_LEAST_ROWS = 32
"""The smallest number of result channels for which the loop is faster at the gradient of the kernel."""
_LEAST_RESULT = {"conv_kernel_gradient": 128, "conv_input_gradient": 96}
"""The smallest number of elements per channel of the result for which the loop is faster at a gradient."""


def is_better(
    name: str, x: Sizes, kernel: Sizes, sizes: Sizes, *, stride: Sizes, padding: Any, groups: int, channels_last: bool
) -> bool:
    """Return whether to compute a convolution of arrays of these shapes image by image.

    Args:
        name: the operation.
        x, kernel: the shapes of the input and the kernel.
        sizes: the sizes of the result's spatial axes.
        stride, padding, groups, channels_last: as in `hf.nn.conv`.
    """
    if not all([isinstance(size, int) for size in (*x, *kernel, *sizes)]):  # symbolic sizes
        return False
    if groups != 1 or channels_last or x[0] < _FEWEST_IMAGES or jax.default_backend() != "cpu":
        return False
    if usable_cores("OMP_NUM_THREADS") > _MOST_CORES[name]:
        return False
    padded = any(low or high for low, high in padding)
    if name == "conv":
        return not padded and _product(kernel) * _product(sizes) >= _LEAST_WORK and jaxlib_version() < _SLOW_FORWARD
    if _product(sizes) < _LEAST_RESULT[name]:
        return False
    if name == "conv_kernel_gradient":
        return kernel[0] >= _LEAST_ROWS
    return set(stride) <= {1} and not padded


def _product(sizes: Sizes) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _columns(x: Any, window: Sizes, sizes: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Return the windows of a padded image ``(c, *spatial)`` as ``(c * window, length)``."""
    channels = x.shape[0]
    parts: list[Any] = []
    for offset in product(*[range(size) for size in window]):
        first = [at * apart for at, apart in zip(offset, dilation, strict=True)]
        last = [at + (size - 1) * step + 1 for at, size, step in zip(first, sizes, stride, strict=True)]
        parts.append(lax.slice(x, (0, *first), (channels, *last), (1, *stride)))
    return jnp.stack(parts, 1).reshape(channels * len(parts), _product(sizes))


def _padded(x: Any, padding: Any) -> Any:
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *[(low, high, 0) for low, high in padding]))


def _dot(a: Any, b: Any, contract: tuple[int, int]) -> Any:
    return lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), precision=SETTINGS.matmul_precision)


def _map_images(function: Callable[[Any], Any], images: Any, shape: Sizes) -> Any:
    """Apply a function to each image, as `lax.map` does.

    `lax.map` writes results into an array of zeros, which XLA would allocate at the program's start and keep until the
    loop.
    """

    def step(results: Any, item: Any) -> Any:
        number, image = item
        return lax.dynamic_update_index_in_dim(results, function(image), number, 0), None

    count = images.shape[0]
    initial = jnp.broadcast_to(images[(0,) * images.ndim], (count, *shape))  # zeros would be allocated too early
    return lax.scan(step, initial, (jnp.arange(count), images))[0]


def convolve(x: Any, kernel: Any, sizes: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute `hf.nn.conv` image by image."""
    weights = kernel.reshape(kernel.shape[0], -1)

    def one(image: Any) -> Any:
        columns = _columns(image, kernel.shape[2:], sizes, stride, dilation)
        return _dot(weights, columns, (1, 0)).reshape(kernel.shape[0], *sizes)

    return _map_images(one, _padded(x, padding), (kernel.shape[0], *sizes))


def kernel_gradient(x: Any, g: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its kernel, which has the given shape, image by image."""

    def add(total: Any, one: Any) -> Any:
        image, slope = one
        columns = _columns(image, shape[2:], g.shape[2:], stride, dilation)
        return total + _dot(columns, slope.reshape(shape[0], -1), (1, 1)), None  # XLA is slower the other way round

    start = jnp.zeros((_product(shape[1:]), shape[0]), g.dtype)
    return lax.scan(add, start, (_padded(x, padding), g))[0].T.reshape(shape)


def input_gradient(g: Any, kernel: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its input, which has the given shape, image by image."""
    weights = kernel.reshape(kernel.shape[0], -1)
    zero = jnp.zeros((), g.dtype)
    offsets = [*product(*[range(size) for size in kernel.shape[2:]])]

    def margins(offset: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """Return the padding before, after and between the products of one element of the window."""
        around = [(0, 0, 0)]
        for at, apart, step, size, count, (low, _) in zip(
            offset, dilation, stride, shape[2:], g.shape[2:], padding, strict=True
        ):
            first = at * apart - low
            around.append((first, size - 1 - (first + (count - 1) * step), step - 1))
        return around

    def one(slope: Any) -> Any:
        columns = _dot(weights, slope.reshape(kernel.shape[0], -1), (0, 0))
        columns = columns.reshape(kernel.shape[1], len(offsets), *g.shape[2:])
        total = lax.pad(columns[:, 0], zero, margins(offsets[0]))
        for number, offset in enumerate(offsets[1:], 1):
            total = total + lax.pad(columns[:, number], zero, margins(offset))
        return total

    return _map_images(one, g, tuple(shape[1:]))
