"""Rules of random draws for values that are padded up to a bound (see `hybridflow.core.padding`).

An element's random bits depend only on its position in row-major order. These positions are right if only the first
axis of a draw is open. Otherwise a flat draw is made, and each element is picked from it by its real position.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hybridflow.core.dtypes import int32
from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Padded, Size
from hybridflow.core.spec import make_spec
from hybridflow.ops.padding import together
from hybridflow.ops.padding_index import padded_positions, picked, real_positions


def drawn_by_position(b: Bounds, call: Call) -> list[Padded]:
    """Draw elements whose bits depend on how many elements come before them."""
    state, *parameters = call.xs
    (spec,) = call.specs
    axes = b.axes_of(spec)
    if state.open():
        raise NoRule("the state has an open size")
    together([Padded(make_spec(_bounds(b, spec.shape), spec.dtype), axes), *parameters], len(axes))
    if not any(axes[1:]):
        return [Padded(b.run(call, *[x.value for x in call.xs])[0], axes)]
    shape = _bounds(b, spec.shape)
    positions = b.F.reshape(real_positions(b, spec.shape), shape=(-1,))
    count = prod(shape)

    def flattened(x: Padded) -> Any:
        if not x.axes:
            return x.value
        whole = b.F.reshape(b.F.broadcast_to(x.value, shape=shape), shape=(-1,))
        return picked(b, whole, 0, padded_positions(b, b.positions(count), spec.shape))

    (flat,) = b.run(call, state.value, *map(flattened, parameters), shape=(count,))
    value = b.F.reshape(picked(b, flat, 0, positions), shape=shape)
    return [Padded(value, axes)]


def drawn_classes(b: Bounds, call: Call) -> list[Padded]:
    """Draw a class for each row of scores; the number of rows may be open."""
    state, scores = call.xs
    axes = b.axes_of(call.specs[0])
    if state.open() or any(axes[1:]) or any(scores.axes[1:]) or _first_axis_differs(scores, len(axes) + 1, axes):
        raise NoRule("a draw has an open size after its first axis")
    (value,) = b.run(call, state.value, scores.value)
    return [Padded(value, axes)]


def drawn_order(b: Bounds, call: Call) -> list[Padded]:
    """Draw an order of all numbers below the bound, and move those beyond the real size to its end."""
    axes = b.axes_of(call.specs[0])
    (size,) = call.attrs["shape"]
    (value,) = b.run(call, *[x.value for x in call.xs])
    beyond = b.F.astype(value >= b.count(size), dtype=int32)
    return [Padded(picked(b, value, 0, b.F.argsort(beyond)), axes)]


def _first_axis_differs(x: Padded, ndim: int, axes: Axes) -> bool:
    """Whether an input's first axis is open and is not the first axis of the result."""
    first = x.axes[0]
    return first is not None and not (len(x.axes) == ndim and first.same(axes[0]))


def _bounds(b: Bounds, shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple([b.bound(size) for size in shape])
