"""Other ways to compute convolutions in XLA:CPU, for machines with few cores.

XLA:CPU is slow at some shapes, and something else that XLA can do takes a half of the time or less there:

- A loop over images lays out the windows of one image as columns, and multiplies them while they are in the cache:
  for gradients of inputs that are not padded or have few channels, and gradients of the kernel without padding.
- The columns of all images and one product: for a window of one element, for few input channels, and for small images
  with many channels, where XLA would spend the time on another layout of the kernel or its gradient.
- Zeros around the input, and then a convolution without padding: for gradients of the kernel from few images.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax

from hybridflow.backend.cores import usable_cores
from hybridflow.backend.options import is_on_cpus, jaxlib_version
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.nn.windows import Sizes

Way = Literal["plain", "images", "columns", "zeros"]
"""XLA's own way, a loop over images, columns of all images, or zeros around the input."""

_MOST_CORES = {"conv": 1, "conv_kernel_gradient": 2, "conv_input_gradient": 2}
"""By operation, the largest number of cores for which the loop is faster; XLA shares its work between cores."""
_MOST_CORES_OTHERS = 2
"""The largest number of cores for the other ways."""
_FEWEST_IMAGES = 4
_SLOW_FORWARD = (0, 12)
"""Before this version of jaxlib, XLA is also slow at the convolution itself if nothing is padded."""
_LEAST_WORK = 1 << 22
"""The smallest number of multiplications per image for which the loop is faster at the convolution itself."""
_LEAST_ROWS = 32
"""The smallest number of result channels for which the loop is faster at the gradient of the kernel."""
_LEAST_RESULT = {"conv_kernel_gradient": 128, "conv_input_gradient": 96}
"""The smallest number of elements per channel of the result for which the loop is faster at a gradient."""
_FEW_CHANNELS = 16
"""The largest number of input channels for which the loop is faster at the gradient of a padded input."""
_FEW_ROWS = 32
"""The largest number of elements under a window for which columns are faster at the convolution itself."""
_FEW_PLACES = 16
"""The largest number of elements per channel of the result for which columns are faster if the kernel is large."""
_LARGE_KERNEL = 1 << 18
"""The smallest number of elements of such a kernel; before other layouts of it cost more than the columns."""
_MOST_COLUMNS = 1 << 21
"""The largest number of elements of all columns; more would leave the cache, and take much memory."""
_SMALL_WEIGHTS = 1 << 14
"""The largest number of a kernel's elements of which there is a copy for each image."""
_VECTOR = 16
"""A multiple of the floats in a vector register: XLA needs no zeros for the gradient of the kernel if the number of
images is a multiple of this."""
_LIBRARY = (0, 11)
"""Before this version of jaxlib, on one core, a library computes convolutions of `_LEAST_ROWS` channels, padded ones
too."""


def choose(
    name: str, x: Sizes, kernel: Sizes, sizes: Sizes, *, stride: Sizes, padding: Any, groups: int, channels_last: bool
) -> Way:
    """Return the way to compute a convolution of arrays of these shapes.

    Args:
        name: the operation.
        x, kernel: the shapes of the input and the kernel.
        sizes: the sizes of the result's spatial axes.
        stride, padding, groups, channels_last: as in `hf.nn.conv`.
    """
    if not all([isinstance(size, int) for size in (*x, *kernel, *sizes)]):  # symbolic sizes
        return "plain"
    if groups != 1 or channels_last or x[0] < _FEWEST_IMAGES or not is_on_cpus():
        return "plain"
    cores = usable_cores("OMP_NUM_THREADS")
    padded = any(low or high for low, high in padding)
    if cores <= _MOST_CORES_OTHERS and name != "conv_input_gradient" and _has_better_columns(name, x[0], kernel, sizes):
        return "columns"
    if cores <= _MOST_CORES[name] and _has_better_loop(name, kernel, sizes, padded, stride):
        return "images"
    if cores <= _MOST_CORES_OTHERS and name == "conv_kernel_gradient" and padded and x[0] % _VECTOR:
        return "plain" if cores == 1 and jaxlib_version() < _LIBRARY and kernel[0] >= _LEAST_ROWS else "zeros"
    return "plain"


def _has_better_columns(name: str, batch: int, kernel: Sizes, sizes: Sizes) -> bool:
    rows, places = _product(kernel[1:]), _product(sizes)
    if _product(kernel[2:]) == 1:  # the columns are the input
        return True
    if batch * rows * places > _MOST_COLUMNS:
        return False
    if places <= _FEW_PLACES and _product(kernel) >= _LARGE_KERNEL:
        return True
    return name == "conv" and rows <= _FEW_ROWS


def _has_better_loop(name: str, kernel: Sizes, sizes: Sizes, padded: bool, stride: Sizes) -> bool:
    if name == "conv":
        return not padded and _product(kernel) * _product(sizes) >= _LEAST_WORK and jaxlib_version() < _SLOW_FORWARD
    if _product(sizes) < _LEAST_RESULT[name]:
        return False
    if name == "conv_kernel_gradient":
        return not padded and kernel[0] >= _LEAST_ROWS
    return set(stride) <= {1} and (not padded or kernel[1] <= _FEW_CHANNELS)


def _product(sizes: Sizes) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _columns(x: Any, window: Sizes, sizes: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Return the windows of padded images ``(..., c, *spatial)`` as ``(..., c * window, length)``."""
    *outer, channels = x.shape[: x.ndim - len(sizes)]
    parts: list[Any] = []
    for offset in product(*[range(size) for size in window]):
        first = [at * apart for at, apart in zip(offset, dilation, strict=True)]
        last = [at + (size - 1) * step + 1 for at, size, step in zip(first, sizes, stride, strict=True)]
        start, stop = (*[0] * len(outer), 0, *first), (*outer, channels, *last)
        parts.append(lax.slice(x, start, stop, (*[1] * len(outer), 1, *stride)))
    return jnp.stack(parts, len(outer) + 1).reshape(*outer, channels * len(parts), _product(sizes))


def with_zeros(x: Any, padding: Any) -> Any:
    """Put zeros around images ``(n, c, *spatial)``."""
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


def convolve_images(x: Any, kernel: Any, sizes: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute `hf.nn.conv` image by image."""
    weights = kernel.reshape(kernel.shape[0], -1)

    def one(image: Any) -> Any:
        columns = _columns(image, kernel.shape[2:], sizes, stride, dilation)
        return _dot(weights, columns, (1, 0)).reshape(kernel.shape[0], *sizes)

    return _map_images(one, with_zeros(x, padding), (kernel.shape[0], *sizes))


def kernel_gradient_images(x: Any, g: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its kernel, which has the given shape, image by image."""

    def add(total: Any, one: Any) -> Any:
        image, slope = one
        columns = _columns(image, shape[2:], g.shape[2:], stride, dilation)
        return total + _dot(columns, slope.reshape(shape[0], -1), (1, 1)), None  # XLA is slower the other way round

    start = jnp.zeros((_product(shape[1:]), shape[0]), g.dtype)
    return lax.scan(add, start, (with_zeros(x, padding), g))[0].T.reshape(shape)


def convolve_columns(x: Any, kernel: Any, sizes: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute `hf.nn.conv` by the columns of all images."""
    weights = kernel.reshape(kernel.shape[0], -1)
    columns = _columns(with_zeros(x, padding), kernel.shape[2:], sizes, stride, dilation)
    precision = SETTINGS.matmul_precision
    if columns.shape[2] <= _FEW_PLACES or kernel.size > _SMALL_WEIGHTS:
        y = lax.dot_general(weights, columns, (((1,), (1,)), ((), ())), precision=precision).swapaxes(0, 1)
    else:  # a product for each image leaves the result in order
        each = jnp.broadcast_to(weights, (x.shape[0], *weights.shape))
        y = lax.dot_general(each, columns, (((2,), (1,)), ((0,), (0,))), precision=precision)
    return y.reshape(x.shape[0], kernel.shape[0], *sizes)


def kernel_gradient_columns(x: Any, g: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its kernel, which has the given shape, by the columns of all images."""
    columns = _columns(with_zeros(x, padding), shape[2:], g.shape[2:], stride, dilation)
    slopes, both = g.reshape(*g.shape[:2], -1), (0, 2)
    made = lax.dot_general(slopes, columns, ((both, both), ((), ())), precision=SETTINGS.matmul_precision)
    return made.reshape(shape)


def input_gradient_images(g: Any, kernel: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
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
