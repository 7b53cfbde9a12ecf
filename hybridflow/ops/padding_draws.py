"""Rules of random draws for values that are padded up to a bound (see `hybridflow.core.padding`).

An element's random bits depend on its place in row-major order alone. So what is behind the first axis of a draw must
have its real size, or the draw is taken apart: a flat one, of which each element is picked by its real place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hybridflow.core.dtypes import int32
from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Padded, Size
from hybridflow.core.spec import make_spec
from hybridflow.ops.padding import together
from hybridflow.ops.padding_index import padded_places, picked, real_places


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
    places = b.F.reshape(real_places(b, spec.shape), shape=(-1,))
    count = prod(shape)

    def in_a_row(x: Padded) -> Any:
        if not x.axes:
            return x.value
        whole = b.F.reshape(b.F.broadcast_to(x.value, shape=shape), shape=(-1,))
        return picked(b, whole, 0, padded_places(b, b.positions(count), spec.shape))

    (flat,) = b.run(call, state.value, *map(in_a_row, parameters), shape=(count,))
    value = b.F.reshape(picked(b, flat, 0, places), shape=shape)
    return [Padded(value, axes)]


def drawn_classes(b: Bounds, call: Call) -> list[Padded]:
    """Draw a class for each row of scores, of which there may be any number."""
    state, scores = call.xs
    axes = b.axes_of(call.specs[0])
    if state.open() or any(axes[1:]) or any(scores.axes[1:]) or _first(scores, len(axes) + 1, axes):
        raise NoRule("a draw has an open size behind its first axis")
    (value,) = b.run(call, state.value, scores.value)
    return [Padded(value, axes)]


def drawn_order(b: Bounds, call: Call) -> list[Padded]:
    """Draw an order: real numbers come in the same order whatever other numbers are between them."""
    axes = b.axes_of(call.specs[0])
    (size,) = call.attrs["shape"]
    (value,) = b.run(call, *[x.value for x in call.xs])
    outside = b.F.astype(value >= b.count(size), dtype=int32)
    return [Padded(picked(b, value, 0, b.F.argsort(outside)), axes)]


def _first(x: Padded, ndim: int, axes: Axes) -> bool:
    """Whether an input's first axis is open otherwise than that of the result."""
    own = x.axes[0]
    return own is not None and not (len(x.axes) == ndim and own.same(axes[0]))


def _bounds(b: Bounds, shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple([b.bound(size) for size in shape])
