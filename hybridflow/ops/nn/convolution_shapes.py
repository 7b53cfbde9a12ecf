"""The sizes of a convolution on the host, the layout in which its positions lie one after another, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hybridflow.backend.parallel import POOL
from hybridflow.ops.nn.windows import Sizes

COLUMNS = 1 << 18
"""The approximate number of elements of the columns that one part of a batch makes."""
_WASTE = 1.25
"""Rows are extended to the length of the input's rows if that makes positions at most this many times more."""
_FEW = 128
"""The largest number of output positions for which the images of a part share one product."""
_SHARED = 256
"""The approximate smallest number of output positions of a product that images share."""
_PIECE = 1 << 23
"""The smallest number of multiplications for a thread."""


class Shape(NamedTuple):
    """The sizes of a convolution of arrays with channels first.

    Attributes:
        batch, groups, into, out: the numbers of images, of groups, and of input and output channels per group.
        space, window, places: the spatial sizes of the input, the kernel and the output.
    """

    batch: int
    groups: int
    into: int
    out: int
    space: Sizes
    window: Sizes
    places: Sizes
    stride: Sizes
    padding: Any
    dilation: Sizes

    @property
    def axes(self) -> tuple[int, ...]:
        """The spatial axes."""
        return tuple(range(2, 2 + len(self.space)))

    @property
    def rows(self) -> int:
        """The number of input elements that one output element reads."""
        return self.into * prod(self.window)

    @property
    def columns(self) -> int:
        """The number of output positions of an image."""
        return prod(self.places)

    @property
    def joins(self) -> bool:
        """Whether the images of a part share one product."""
        return self.batch > 1 and 0 < self.columns <= _FEW

    @property
    def work(self) -> int:
        """The number of multiplications."""
        return self.batch * self.groups * self.out * self.rows * self.columns

    def parts(self) -> list[slice]:
        """Cut the batch into parts."""
        step = max(1, COLUMNS // max(1, self.groups * self.rows * self.columns))
        if self.joins:
            step = max(step, -(-_SHARED // self.columns))
        return slices(self.batch, step)


def slices(length: int, step: int) -> list[slice]:
    """Cut a length into slices of a size; the last one may be shorter."""
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


class Lines(NamedTuple):
    """The layout of output positions in an input with flattened spatial axes, for windows that move by one.

    Attributes:
        sizes: the sizes of the padded input's spatial axes.
        grid: the sizes of the output, with each row extended to the length of the input's row.
        steps: the distance between neighbours along each spatial axis.
        length: the number of elements from the first output position to the last one, both included.
    """

    sizes: Sizes
    grid: Sizes
    steps: Sizes
    length: int

    def windows(self, padded: Any, shape: Shape) -> Any:
        """Return a view ``(n, c, *window, length)`` of a padded input."""
        batch, channel = padded.strides[:2]
        item = padded.itemsize
        inner = [step * apart * item for step, apart in zip(self.steps, shape.dilation, strict=True)]
        return np.lib.stride_tricks.as_strided(
            padded, (*padded.shape[:2], *shape.window, self.length), (batch, channel, *inner, item), writeable=False
        )

    def starts(self, shape: Shape) -> list[int]:
        """Return the offset of each element of the window from its output position."""
        offsets = product(*[range(size) for size in shape.window])
        return [
            sum([at * apart * step for at, apart, step in zip(offset, shape.dilation, self.steps, strict=True)])
            for offset in offsets
        ]

    def cut(self, shape: Shape) -> tuple[slice, ...]:
        """Return the key that selects the output positions in a grid ``(n, c, *grid)``."""
        return (slice(None), slice(None), *[slice(size) for size in shape.places])

    def inside(self, shape: Shape) -> tuple[slice, ...]:
        """Return the key that selects the input in a padded one ``(n, c, *sizes)``."""
        cut = [slice(low, low + size) for (low, _), size in zip(shape.padding, shape.space, strict=True)]
        return (slice(None), slice(None), *cut)


def lines_of(shape: Shape) -> Lines | None:
    """Return the layout, or None if windows move by more than one or the ends of rows are too much of it."""
    if shape.joins or any(step != 1 for step in shape.stride):
        return None
    sizes = tuple([size + low + high for size, (low, high) in zip(shape.space, shape.padding, strict=True)])
    grid = (shape.places[0], *sizes[1:])
    if prod(grid) > _WASTE * shape.columns:
        return None
    steps = tuple([prod(sizes[axis + 1 :]) for axis in range(len(sizes))])
    length = sum([(size - 1) * step for size, step in zip(shape.places, steps, strict=True)]) + 1
    return Lines(sizes, grid, steps, length)


def shape_of(x: Sizes, kernel: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes, groups: int) -> Shape:
    """Return the sizes of a convolution of inputs ``(n, c, *spatial)``.

    Raises:
        ValueError: the sizes do not fit; the shape rule says why.
    """
    space, window = x[2:], kernel[2:]
    if len(x) != len(kernel) or x[1] != kernel[1] * groups or kernel[0] % groups:
        raise ValueError("channels that do not match")  # `bind` then runs the shape rule, which says more
    sizes = tuple([
        (size + low + high - (wide - 1) * apart - 1) // step + 1
        for size, (low, high), wide, apart, step in zip(space, padding, window, dilation, stride, strict=True)
    ])
    if min(sizes) < 1:
        raise ValueError("a window larger than its input")
    return Shape(x[0], groups, kernel[1], kernel[0] // groups, space, window, sizes, stride, padding, dilation)


class Memory:
    """Arrays that one thread uses for part after part: fresh memory would be slower, because the system clears it."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._arrays: dict[str, Any] = {}

    def array(self, name: str, *sizes: int) -> Any:
        """Return an array of given sizes that holds anything."""
        made = self._arrays.get(name)
        if made is None or made.size < prod(sizes):
            made = self._arrays[name] = np.empty(prod(sizes), self._dtype)
        return made[: prod(sizes)].reshape(sizes)

    def zeros(self, name: str, *sizes: int) -> Any:
        """Return an array of zeros; later calls, for as many elements or fewer, find in it what was written there."""
        made = self._arrays.get(name)
        if made is None:
            made = self._arrays[name] = np.zeros(prod(sizes), self._dtype)
        return made[: prod(sizes)].reshape(sizes)


def for_parts(shape: Shape, parts: Sequence[Any], dtype: Any, task: Callable[[Any, Memory], object]) -> None:
    """Run ``task(part, memory)`` for each part of a convolution, in several threads if that pays."""
    unused: list[Memory] = []

    def piece(number: int) -> None:
        try:
            memory = unused.pop()
        except IndexError:
            memory = Memory(dtype)
        task(parts[number], memory)
        unused.append(memory)

    POOL.run_pieces(piece, len(parts), shape.work // _PIECE)
