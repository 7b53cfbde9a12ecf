"""Rules of linear algebra for values that are padded up to a bound (see `hybridflow.core.padding`).

Where a stack's size is open, the matrices beyond it are identities, so that nothing fails or takes long there. Where
the size of square matrices is open, they continue as an identity: ``[[A, 0], [0, I]]`` has the inverse, the factors and
the determinant of ``A``, and the rows beyond the real size have no part in the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Open, Padded, Rule
from hybridflow.ops.padding import outer, together


def each_matrix(b: Bounds, call: Call) -> list[Padded]:
    """Compute something of each matrix of a stack, whose size may be open."""
    x, *others = call.xs
    if any(x.axes[-2:]) or any([other.open() for other in others]):
        raise NoRule("the size of the matrices is open")
    made = b.run(call, _continued(b, x).value, *[other.value for other in others])
    return [Padded(value, _of_stack(x.axes[:-2], value.ndim)) for value in made]


def square_matrices(kept: int) -> Rule:
    """Return the rule of an operation on square matrices, whose size may be open.

    Args:
        kept: how many axes a matrix has in the result.
    """

    def rule(b: Bounds, call: Call) -> list[Padded]:
        (x,) = call.xs
        _require_square(x)
        made = b.run(call, _continued(b, x).value)
        rows = [one and one.anything for one in x.axes[-2:]]
        return [Padded(value, (*_of_stack(x.axes[:-2], value.ndim - kept), *rows[:kept])) for value in made]

    return rule


def systems(b: Bounds, call: Call) -> list[Padded]:
    """Solve systems of equations, with 0 on the right beyond the real size."""
    a, right = call.xs
    _require_square(a)
    vector = len(right.axes) == 1
    row = 0 if vector else len(right.axes) - 2
    _require_same(a.axes[-1], right.axes[row])
    right = b.filled(right, row, 0)
    (value,) = b.run(call, _continued(b, a).value, right.value)
    own = right.axes[row:]
    stack = together([outer(one) for one in ((a,) if vector else (a, right))], value.ndim - len(own))
    return [Padded(value, (*stack, *[one and one.anything for one in own]))]


def _continued(b: Bounds, x: Padded) -> Padded:
    """Return matrices that continue as identities beyond the real sizes."""
    rows, columns = x.value.shape[-2:]
    value = x.value
    for axis in x.open():
        one = b.F.eye(rows, columns, dtype=value.dtype)
        value = b.F.where(b.inside(x, axis), value, one)
    return x._replace(value=value)


def _of_stack(axes: Sequence[Open | None], ndim: int) -> Axes:
    stack = [one and one.anything for one in axes[:ndim]]
    return (*stack, *[None] * (ndim - len(stack)))


def _require_square(x: Padded) -> None:
    rows, columns = x.axes[-2:]
    _require_same(rows, columns)
    if rows is not None and len(rows.sizes) > 1:
        raise NoRule("the size of the matrices is folded from others")


def _require_same(one: Open | None, other: Open | None) -> None:
    if (one is None) != (other is None) or (one is not None and not one.same(other)):
        raise NoRule("an open size of the matrices is not that of what it meets")
