"""`hf.integrate`: initial value problems of ordinary differential equations, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from hybridflow.core import structures
from hybridflow.core.attached import attached as _attached
from hybridflow.core.errors import ArgumentError, CheckError, ShapeError, message
from hybridflow.core.functions import as_traced
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.ir.builder import require
from hybridflow.nested.bodies import leaves_like, leaves_of
from hybridflow.nested.loops import while_loop
from hybridflow.nested.scans import scan
from hybridflow.ops.choice import clip, maximum, minimum, where
from hybridflow.ops.common import promote_float, require_kind
from hybridflow.ops.comparison import isfinite, logical_and, logical_or
from hybridflow.ops.elementwise import abs, sign, stop_gradient
from hybridflow.ops.joining import concat
from hybridflow.ops.reductions import all, sum
from hybridflow.ops.shape import expand_dims

_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""The weights of the slopes so far in each stage; the last stage is the result."""
_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
"""The difference between the weights of orders 5 and 4."""
_Values = list[Any]


@with_foreign_keywords
def odeint(
    func: Callable[..., Any],
    y0: Any,
    t: Any,
    args: Sequence[Any] = (),
    *,
    rtol: float = 1e-6,
    atol: float = 1e-6,
    mxstep: int = 500,
) -> Any:
    """Solve ``dy/dt = func(y, t)`` from a first value on.

    Steps of Dormand and Prince's method of order 5 are made as long as the estimate of their error allows. The gradient
    is that of the steps that were made, whose lengths count as constants: it is exact for the numbers that come out.
    It passes to `y0`, `t`, `args` and whatever else `func` reads, and may be differentiated again. In a compiled
    function it keeps `mxstep` states for each time.

    Args:
        func: ``func(y, t, *args)`` returns the slope, in the structure and shapes of `y`.
        y0: the value at the first time: floats in any nesting; integers become float32.
        t: ``(n,)``, the times, all increasing or all decreasing.
        args: further arguments of `func`.
        rtol, atol: the error that each step may have, relative to the value, and in units of it.
        mxstep: the largest number of steps between two times.

    Returns:
        The structure of `y0`, with the values at all times along a new first axis of size ``n``.

    Raises:
        ShapeError: `t` is no row, or the slope has another shape than the value.
        ArgumentError: the slope has another structure, or the number of steps is none.
        DTypeError: complex values.
        CheckError: the steps did not suffice, or a value is not finite.

    Example:
        >>> import hybridflow as hf
        >>> y = hf.integrate.odeint(lambda y, t: -y, 1.0, [0.0, 1.0, 2.0])
        >>> hf.round(y * 1000) / 1000
        Tensor([1.   , 0.368, 0.135], dtype=float32)

    Reference:
        J. R. Dormand and P. J. Prince, "A family of embedded Runge-Kutta formulae", Journal of Computational and
        Applied Mathematics 6, 1980; E. Hairer, S. P. Norsett and G. Wanner, Solving Ordinary Differential Equations I,
        1993, section II.4, for the control of steps.
    """
    if isinstance(mxstep, bool) or not isinstance(cast(Any, mxstep), int) or mxstep < 1:
        raise ArgumentError(f"odeint: mxstep={mxstep} is no number of steps", hint="Pass a whole number.")
    leaves, tree = leaves_of(y0)
    *values, times = cast(_Values, promote_float(*leaves, t))
    require_kind("odeint", ("float",), times.spec)
    if times.ndim != 1 or times.shape[0] == 0:
        raise ShapeError(f"odeint: times of shape {times.shape}", hint="Pass a row of times, the first included.")
    direction = sign(times[-1] - times[0])

    def slope(ys: _Values, at: Any) -> _Values:
        made = as_traced(func)(structures.unflatten(tree, ys), at, *args)
        return leaves_like("odeint", ("slope", "value"), made, ys, tree)

    def size(errors: _Values, ys: _Values, others: _Values) -> Any:
        """Return the root of the mean square of errors, in units of what is allowed."""
        shares = [e / (maximum(abs(a), abs(b)) * rtol + atol) for e, a, b in zip(errors, ys, others, strict=True)]
        total: Any = sum_of([sum(one * one) for one in shares])
        return (total / max(1, sum_of([one.size for one in shares]))) ** 0.5

    def moved(ys: _Values, first: _Values, at: Any, length: Any) -> tuple[_Values, _Values, Any]:
        """Return the value and slope after a step, and the size of its error."""
        slopes, now = [first], ys
        for weights, part in zip(_STAGES, _TIMES, strict=True):
            now = [y + length * weighed(weights, [s[i] for s in slopes]) for i, y in enumerate(ys)]
            slopes.append(slope(now, at + length * part))
        errors = [stop_gradient(length * weighed(_ERROR, [s[i] for s in slopes])) for i in range(len(ys))]
        return now, slopes[-1], size(errors, [stop_gradient(y) for y in ys], [stop_gradient(y) for y in now])

    def to_next(state: Any, end: Any) -> Any:
        def goes_on(ys: Any, first: Any, at: Any, length: Any) -> Any:
            del ys, first, length
            return (end - at) * direction > 0

        def step(ys: Any, first: Any, at: Any, length: Any) -> Any:
            rest = end - at
            is_last = abs(length) >= abs(rest)
            used = where(is_last, rest, length)
            new, after, error = moved(ys, first, at, used)
            good = error <= 1
            factor = where(isfinite(error), clip(0.9 * maximum(error, 1e-10) ** -0.2, 0.2, 10), 0.2)
            following = stop_gradient(where(logical_and(good, is_last), length, used * factor))
            ys = [where(good, b, a) for a, b in zip(ys, new, strict=True)]
            first = [where(good, b, a) for a, b in zip(first, after, strict=True)]
            return ys, first, where(good, where(is_last, end, at + used), at), following

        state = while_loop(goes_on, step, tuple(state), max_iterations=mxstep)
        reached = logical_or((end - state[2]) * direction <= 0, end != end)
        return tuple(state), (state[0], reached)

    slopes = slope(values, times[0])
    speed, level = size(slopes, values, values), size(values, values, values)
    start = where(logical_or(speed < 1e-5, level < 1e-5), 1e-6, 0.01 * level / maximum(speed, 1e-5))
    start = minimum(start, abs(times[-1] - times[0])) * direction
    state = (values, slopes, times[0], stop_gradient(start))
    _, (rows, reached) = scan(to_next, state, times[1:])
    hint = "Pass more with mxstep=, or allow more error; the equation may be stiff, or its solution infinite."
    require(all(reached), CheckError, message(f"odeint: {mxstep} steps between two times do not suffice", hint=hint))
    whole = [concat([expand_dims(y, 0), row], axis=0) for y, row in zip(values, rows, strict=True)]
    return structures.unflatten(tree, whole)


def weighed(weights: Sequence[float], terms: Sequence[Any]) -> Any:
    """Return a weighted sum."""
    return sum_of([term * weight for weight, term in zip(weights, terms, strict=True) if weight])


def sum_of(terms: Sequence[Any]) -> Any:
    """Return the sum of tensors or numbers."""
    total, *rest = terms
    for one in rest:
        total = total + one
    return total


__all__ = ["odeint"]
_attached("name_module")("hf.integrate", __name__)
