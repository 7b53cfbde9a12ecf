"""Rules of linear algebra for values that are padded up to a bound (see `hybridflow.core.padding`).

Where the number of matrices is open, those beyond the real number are identities, so that nothing fails or takes long
there. An open size of the matrices themselves has no rule: a larger matrix rounds differently, and rounding decides
whether a matrix counts as singular.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Open, Padded
from hybridflow.ops.padding import outer, together


def each_matrix(b: Bounds, call: Call) -> list[Padded]:
    """Compute a function of each matrix of a stack; the number of matrices may be open."""
    x, *others = call.xs
    if any([other.open() for other in others]):
        raise NoRule("an input other than the first has an open size")
    values = b.run(call, _continued(b, x).value, *[other.value for other in others])
    return [Padded(value, _of_stack(x.axes[:-2], value.ndim)) for value in values]


def systems(b: Bounds, call: Call) -> list[Padded]:
    """Solve the systems of equations of a stack; the number of systems may be open."""
    a, right = call.xs
    vector = len(right.axes) == 1
    (value,) = b.run(call, _continued(b, a).value, right.value)
    own = right.axes[-1 if vector else -2 :]
    stack = together([outer(one) for one in ((a,) if vector else (a, right))], value.ndim - len(own))
    return [Padded(value, (*stack, *[one and one.anything for one in own]))]


def _continued(b: Bounds, x: Padded) -> Padded:
    """Return a stack that continues with identities beyond its real size.

    Raises:
        NoRule: the size of the matrices is open.
    """
    if any(x.axes[-2:]):
        raise NoRule("the size of the matrices is open, and roundings would differ in larger ones")
    rows, columns = x.value.shape[-2:]
    value = x.value
    for axis in x.open():
        identity = b.F.eye(rows, columns, dtype=value.dtype)
        value = b.F.where(b.inside(x, axis), value, identity)
    return x._replace(value=value)


def _of_stack(axes: Sequence[Open | None], ndim: int) -> Axes:
    stack = [one and one.anything for one in axes[:ndim]]
    return (*stack, *[None] * (ndim - len(stack)))
