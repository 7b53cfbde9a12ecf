"""Threefry-2x32: a keyed bijection of counters, so random bits are a function of a key and a position."""

from __future__ import annotations

import math
from typing import Any

from jax import lax

from hybridflow.core.dtypes import uint32, uint64
from hybridflow.core.errors import ShapeError

STATE_WORDS = 4
"""A generator's state: two words of key and two of counter."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _add(x: Any, y: Any) -> Any:
    return lax.add(x, y if x.shape == y.shape else lax.broadcast(y, x.shape))


def _rotate(x: Any, distance: int) -> Any:
    return lax.bitwise_or(
        lax.shift_left(x, lax.full_like(x, distance)), lax.shift_right_logical(x, lax.full_like(x, 32 - distance))
    )


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Encrypt counters (20 rounds).

    The rounds are written out: XLA compiles them faster than a loop, and fuses them with the code that uses the bits.

    Args:
        key: two uint32 scalars.
        counter: two uint32 arrays of one shape.

    Returns:
        Two uint32 arrays of that shape.

    Reference:
        Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    parity = lax.full_like(key[0], _PARITY)
    schedule = (key[0], key[1], lax.bitwise_xor(lax.bitwise_xor(key[0], key[1]), parity))
    x, y = _add(counter[0], schedule[0]), _add(counter[1], schedule[1])
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = lax.add(x, y)
            y = lax.bitwise_xor(_rotate(y, distance), x)
        x = _add(x, schedule[(group + 1) % 3])
        injected = schedule[(group + 2) % 3]
        y = _add(y, lax.add(injected, lax.full_like(injected, group + 1)))
    return x, y


def countable(size: int) -> int:
    """Return the number of elements of a draw, if one draw may have so many.

    Raises:
        ShapeError: there are more elements than positions.
    """
    if size > 2**32:
        raise ShapeError(f"random: one draw has at most 2**32 elements, not {size}", hint="Draw in parts.")
    return size


def positions(state: Any, shape: tuple[int, ...]) -> Any:
    """Return the elements' positions in a state's stream: 0, 1, 2, ...

    An extra word of the state gives the first position, so that a part of a draw can be drawn alone.
    """
    count: Any = math.prod(shape)
    counted = lax.iota(uint32, countable(count) if isinstance(count, int) else count)  # symbolic sizes have no value
    if state.shape[0] > STATE_WORDS:
        counted = _add(counted, lax.index_in_dim(state, STATE_WORDS, keepdims=False))
    return lax.reshape(counted, shape)


def key_of(state: Any) -> tuple[Any, Any]:
    """Return the Threefry key, two words, that selects the stream of a generator with this state."""
    words = [lax.index_in_dim(state, index, keepdims=False) for index in range(STATE_WORDS)]
    return threefry((words[0], words[1]), (words[3], words[2]))


def random_words(state: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return two independent arrays of random 32-bit words for a generator's state."""
    position = positions(state, shape)
    return threefry(key_of(state), (lax.full_like(position, 0), position))


def random_bits(state: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return uniformly distributed integers of dtype uint32 or uint64."""
    high, low = random_words(state, shape)
    if dtype == uint32:
        return high
    wide = lax.shift_left(lax.convert_element_type(high, uint64), lax.full(shape, 32, uint64))
    return lax.bitwise_or(wide, lax.convert_element_type(low, uint64))
