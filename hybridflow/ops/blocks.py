"""Elementwise jax functions on the host, in blocks of a few sizes: no new shape compiles anything.

A draw from a generator must have the same bits in both modes, so eager mode runs XLA for it, and also for functions
that NumPy lacks. Compiling a draw is slow. So arrays are cut into blocks, and each function is compiled once per
process and block size; the last block is padded. An element does not depend on its block but on its position, which
comes with the generator's state (`threefry.positions`). If draws of one size recur until their blocks have cost as much
as compiling, that size is compiled whole; the bits are the same.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.device import default_is_host
from hybridflow.core.forked import require_xla
from hybridflow.ops.threefry import STATE_WORDS, countable

_SMALL, _MIDDLE, _LARGE = 1 << 9, 1 << 13, 1 << 17
_AHEAD = 4
"""XLA may have this many blocks under way before the first one's result is waited for."""
_COMPILING = 0.15
"""The approximate time of compiling, in seconds."""
_LONGEST = 1e-3
"""The seconds that a block counts for at most; the first one of a size also compiles."""
PART = 1 << 18
"""The largest number of elements that an operation of several passes takes at once."""
_Array = np.ndarray[Any, Any]


def _cut(count: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start, end and size of at least one block; the last may be longer than the rest of the array.

    A smaller size is used while its blocks together take less time than one block of the next size.
    """
    start = 0
    while start < max(count, 1):
        left = count - start
        size = _SMALL if left <= 2 * _SMALL else _MIDDLE if left <= 5 * _MIDDLE else _LARGE
        yield start, min(start + size, count), size
        start += size


_lost: dict[Any, float] = {}
"""How many seconds draws have lost in blocks so far, by lowering, attributes and number of elements."""


def _paid(key: Any, count: int) -> bool:
    """Whether draws of one size have lost more time in blocks than compiling that size would take.

    Very large draws are never compiled, because blocks take less memory.
    """
    return _lost.get(key, 0.0) > _COMPILING and count <= 32 * _LARGE


def _lose(key: Any, seconds: float, count: int, sizes: list[int]) -> None:
    """Count the time that a draw took in blocks, less what one call for its very number would have taken."""
    lost = _lost.get(key, 0.0)
    if not lost and len(_lost) >= 256:
        _lost.clear()
    needed = count / (len(sizes) * sum(sizes))
    _lost[key] = lost + min(seconds, _LONGEST * len(sizes)) * (1 - needed)


@lru_cache(512)
def _compiled(function: Callable[..., Any], attrs: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Return a function with its attributes, compiled as it would be in a graph."""
    return jax.jit(partial(function, **dict(attrs)), compiler_options=compiler_options(backend="cpu"))


def _flat(value: _Array, shape: tuple[int, ...]) -> Callable[[int, int, int], _Array]:
    """Return the function from a block's start, end and size to the array's elements there, padded with zeros.

    The array is broadcast to a shape, and its elements are in row-major order.
    """
    full = np.broadcast_to(value, shape)
    if value.size == 1:
        number = value.reshape(())
        repeated = lru_cache(3)(lambda size: np.full(size, number))  # pyright: ignore[reportUnknownLambdaType]
        return lambda start, end, size: repeated(size)
    elements: Any = value.reshape(-1) if value.shape == shape else full.flat

    def block(start: int, end: int, size: int) -> _Array:
        part = elements[start:end]
        if end - start == size:
            return part
        filled = np.zeros(size, value.dtype)
        filled[: end - start] = part
        return filled

    return block


def _run(
    call_of: Callable[[int], Callable[..., Any]],
    inputs: list[Callable[[int, int, int], _Array]],
    count: int,
    cuts: Iterable[tuple[int, int, int]],
) -> Any:
    """Run compiled functions on every block of flat inputs and return the flat results."""
    require_xla("a draw, or a function that NumPy lacks,")
    waiting: deque[tuple[int, int, Any]] = deque()
    result: Any = None
    with enable_x64():
        for start, end, size in cuts:
            arrays: list[Any] = [one(start, end, size) for one in inputs]
            if not default_is_host():
                arrays = [jax.device_put(one, jax.local_devices(backend="cpu")[0]) for one in arrays]
            made = call_of(size)(*arrays)
            if end == count and start == 0:
                return np.asarray(made)[:count].copy()
            if result is None:
                result = np.empty(count, made.dtype)
            waiting.append((start, end, made))
            if len(waiting) > _AHEAD:
                _take(waiting, result)
        while waiting:
            _take(waiting, result)
    return result


def _take(waiting: deque[tuple[int, int, Any]], result: _Array) -> None:
    """Copy the oldest pending block into the result."""
    start, end, made = waiting.popleft()
    result[start:end] = np.asarray(made)[: end - start]


def mapped(function: Callable[..., Any], *arrays: _Array, **attrs: Any) -> _Array:
    """Apply an elementwise jax function to arrays.

    Args:
        function: a function of flat arrays, defined in a module: compiled code is cached by function.
        *arrays: its inputs, which broadcast to the shape of the first.
        **attrs: its attributes.

    Returns:
        The results, in the shape of the first input.
    """
    shape = arrays[0].shape
    call = _compiled(function, tuple(attrs.items()))
    count = arrays[0].size
    return _run(lambda size: call, [_flat(one, shape) for one in arrays], count, _cut(count)).reshape(shape)


def drawn(
    lower: Callable[..., Any], state: _Array, *parameters: _Array, shape: tuple[int, ...], first: int = 0, **attrs: Any
) -> _Array:
    """Draw random numbers with a lowering that draws every element independently.

    Args:
        lower: ``(state, *parameters, shape=, **attrs)``, taking states that say where they start; one of a module.
        state: a generator's state.
        *parameters: arrays that broadcast to the shape.
        shape: the shape of the draws.
        first: the position of their first element in the state's stream.
        **attrs: more attributes of the lowering.

    Returns:
        The bits of ``lower(state, *parameters, shape=shape, **attrs)``, for a `first` of 0.

    Raises:
        ShapeError: more elements than the position has values.
    """
    count = countable(first + math.prod(shape))

    def start_of(start: int, end: int, size: int) -> _Array:
        del end, size
        words = np.empty(STATE_WORDS + 1, np.uint32)
        words[:STATE_WORDS] = state
        words[STATE_WORDS] = first + start
        return words

    others = tuple(attrs.items())
    count -= first
    key = lower, others, count
    whole = _paid(key, count)
    cuts = [(0, count, count)] if whole else [*_cut(count)]
    begun = time.perf_counter()
    draws = _run(
        lambda size: _compiled(lower, (("shape", (size,)), *others)),
        [start_of, *[_flat(one, shape) for one in parameters]],
        count,
        cuts,
    )
    if not whole:
        _lose(key, time.perf_counter() - begun, count, [size for _, _, size in cuts])
    return draws.reshape(shape)


def each_for_itself(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of an op whose lowering draws every element independently, as `drawn` requires."""

    def kernel(state: _Array, *parameters: _Array, shape: tuple[int, ...], **attrs: Any) -> _Array:
        return drawn(lower, state, *parameters, shape=shape, **attrs)

    return kernel


def by_xla(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of an op whose lowering is elementwise, of one input, where NumPy has no such function."""

    def kernel(x: _Array) -> _Array:
        return mapped(lower, x)

    return kernel


def rows_of(value: _Array, shape: tuple[int, ...], ends: int = 1) -> _Array:
    """Return an array, broadcast to a batch shape in front of its last `ends` axes, with one axis for the batch."""
    last, count = value.shape[value.ndim - ends :], math.prod(shape)
    if value.ndim == ends:
        return np.broadcast_to(value, (count, *last))
    return np.broadcast_to(value, (*shape, *last)).reshape(count, *last)


def parts(count: int, width: int) -> Iterator[slice]:
    """Yield slices of rows of `width` elements, short enough to keep the values computed from one slice small."""
    step = max(1, PART // width)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
