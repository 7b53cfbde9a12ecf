"""`hf.optimize`: roots of systems of equations and minima of functions, with gradients by what is around them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridflow.autodiff.functional import fresh, value_and_grad, vjp
from hybridflow.autodiff.graph_ops import call, inline
from hybridflow.autodiff.vectorize import InnerBuilder, canonical, trace_inner
from hybridflow.core import structures
from hybridflow.core.attached import attached as _attached
from hybridflow.core.context import is_tracing
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, TraceError
from hybridflow.core.functions import as_traced
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import format_where, user_place
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.nested.bodies import leaves_like, leaves_of, several
from hybridflow.nested.custom_gradient import custom_gradient
from hybridflow.nested.loops import while_loop
from hybridflow.ops.choice import where
from hybridflow.ops.common import promote_float, require_kind
from hybridflow.ops.comparison import isfinite, logical_and, logical_not, logical_or
from hybridflow.ops.creation import eye, full_like, ones_like, zeros_like
from hybridflow.ops.einsum import outer
from hybridflow.ops.elementwise import abs, stop_gradient
from hybridflow.ops.joining import concat
from hybridflow.ops.linalg import solve
from hybridflow.ops.reductions import all, max, sum
from hybridflow.ops.shape import matrix_transpose, reshape
from hybridflow.transforms.forward import jacobian
from hybridflow.transforms.vmap import keep_checks


class RootResult(NamedTuple):
    """What `root` found; gradients pass through `x` only.

    Attributes:
        x: the root, in the structure of ``x0``.
        success: whether the search ended at a root.
        fun: the function's value there.
        nit: the number of steps.
    """

    x: Any
    success: Tensor
    fun: Any
    nit: Tensor


class MinimizeResult(NamedTuple):
    """What `minimize` found; gradients pass through `x` and `fun` only.

    Attributes:
        x: the minimum, in the structure of ``x0``.
        success: whether the gradient there is as small as was asked for.
        fun: the function's value there.
        jac: its gradient there, in the structure of ``x0``.
        hess_inv: ``(n, n)``, the estimate of the inverse Hessian; `n` counts all elements of ``x0``.
        nit: the number of steps.
    """

    x: Any
    success: Tensor
    fun: Tensor
    jac: Any
    hess_inv: Tensor
    nit: Tensor


@with_foreign_keywords
def root(
    fun: Callable[..., Any], x0: Any, args: Sequence[Any] = (), *, tol: float | None = None, maxiter: int = 100
) -> RootResult:
    """Find ``x`` for which ``fun(x)`` is 0, by Newton's method with steps that are halved until they lead down.

    The gradient is that of the implicit function, to any order: by `args`, and by what else `fun` reads. It does not
    depend on `x0` or on the steps, and is NaN where the search did not succeed.

    `fun` is called once, with tensors without values, as under `hf.vmap`. A step solves a system with the Jacobian,
    ``(n, n)`` for the `n` elements of `x0`.

    Args:
        fun: ``fun(x, *args)`` returns the structure and shapes of `x`.
        x0: where the search begins: floats in any nesting; integers become float32.
        args: further arguments of `fun`.
        tol: the search ends after a step that is at most this large, relative to ``1 + abs(x)``; the square root of
            the dtype's precision if left out, after which Newton's method is as exact as the dtype.
        maxiter: the largest number of steps.

    Returns:
        A `RootResult`.

    Raises:
        ArgumentError: the value has another structure, `x0` is empty, or the number of steps is none.
        ShapeError: the value has other shapes than `x`.
        DTypeError: complex values, or a value of another dtype than `x`.

    Example:
        >>> import hybridflow as hf
        >>> def solved(a):
        ...     return hf.optimize.root(lambda x: x * x - a, 1.0).x
        >>> solved(4.0), hf.grad(solved)(4.0)
        (Tensor(2., dtype=float32), Tensor(0.25, dtype=float32))

    Reference:
        J. E. Dennis and R. B. Schnabel, Numerical Methods for Unconstrained Optimization and Nonlinear Equations, 1983,
        chapter 6; M. Blondel et al., "Efficient and Modular Implicit Differentiation", NeurIPS 2022.
    """
    space, most = _Space("root", x0), _count("root", maxiter)
    limit = math.sqrt(np.finfo(space.start.dtype).eps) if tol is None else tol

    given = _Given("root", lambda x: [space.packed(as_traced(fun)(space.unpacked(x), *args))], space.start)

    def equations(x: Tensor) -> Tensor:
        return given.searched(x)[0]

    def goes_on(x: Tensor, value: Tensor, size: Tensor, going: Tensor, nit: Tensor) -> Tensor:
        del x, value
        return logical_and(logical_and(size > limit, going), nit < most)

    def step(x: Tensor, value: Tensor, size: Tensor, going: Tensor, nit: Tensor) -> tuple[Any, ...]:
        del going
        direction = -solve(jacobian(equations)(x), value)
        size, norm = max(abs(direction) / (1 + abs(x))), sum(value * value)

        def halves(length: Tensor, moved: Tensor) -> Tensor:
            lower = sum(moved * moved) <= (1 - 2e-4 * length) * norm
            return logical_and(logical_not(lower), logical_and(size > limit, length > _SHORTEST))

        def half(length: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
            del moved
            return length / 2, equations(x + length / 2 * direction)

        length, moved = while_loop(halves, half, (ones_like(size), equations(x + direction)))
        going = logical_and(isfinite(size), length > _SHORTEST)
        return where(going, x + length * direction, x), where(going, moved, value), size, going, nit + 1

    state = (space.start, equations(space.start), full_like(space.start[0], np.inf), np.True_, np.int32(0))
    x, value, size, going, nit = while_loop(goes_on, step, state)
    success = logical_and(logical_and(size <= limit, going), all(isfinite(value)))
    found = given.implicit(0, x, success)
    given.outputs(found)
    return RootResult(space.unpacked(found), success, space.unpacked(stop_gradient(value)), nit)


@with_foreign_keywords
def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: Sequence[Any] = (),
    *,
    method: str = "BFGS",
    tol: float | None = None,
    maxiter: int | None = None,
) -> MinimizeResult:
    """Find a local minimum of ``fun(x)``, by the method of Broyden, Fletcher, Goldfarb and Shanno.

    The gradient is that of the implicit function that makes ``fun``'s gradient 0, to any order: by `args`, and by what
    else `fun` reads. It does not depend on `x0` or on the steps, and is NaN where the search did not succeed.

    `fun` is called once, with tensors without values, as under `hf.vmap`. The search keeps a matrix ``(n, n)`` for the
    `n` elements of `x0`, and the gradient solves a system with the Hessian.

    Args:
        fun: ``fun(x, *args)`` returns a float of shape ``()``.
        x0: where the search begins: floats in any nesting; integers become float32.
        args: further arguments of `fun`.
        method: ``"BFGS"``.
        tol: the search ends where the largest element of the gradient is at most this large. If left out, it is 1e-5
            for float64 and 1e-3 for narrower floats, whose rounding is larger.
        maxiter: the largest number of steps; 200 for each element of `x0` if left out.

    Returns:
        A `MinimizeResult`.

    Raises:
        ArgumentError: another method, `x0` is empty, or the number of steps is none.
        ShapeError: the value has another shape than ``()``.
        DTypeError: complex values, or a value of another dtype than `x`.

    Example:
        >>> import hybridflow as hf
        >>> def lowest(a):
        ...     return hf.optimize.minimize(lambda x: (x - a) ** 2, 0.0).x
        >>> lowest(3.0), hf.grad(lowest)(3.0)
        (Tensor(3., dtype=float32), Tensor(1., dtype=float32))

    Reference:
        J. Nocedal and S. J. Wright, Numerical Optimization, 2006, section 6.1; A. S. Lewis and M. L. Overton,
        "Nonsmooth optimization via quasi-Newton methods", 2013, for the search along a line; W. W. Hager and H. Zhang,
        "A new conjugate gradient method with guaranteed descent and an efficient line search", 2005, for its end at
        the limit of rounding; M. Blondel et al., "Efficient and Modular Implicit Differentiation", NeurIPS 2022.
    """
    if method != "BFGS":
        raise ArgumentError(f"minimize: method={method!r} is not one of ['BFGS']")
    space = _Space("minimize", x0)
    size, exact = space.start.shape[0], space.start.dtype == np.float64
    most = 200 * size if maxiter is None else _count("minimize", maxiter)
    limit = tol if tol is not None else 1e-5 if exact else 1e-3

    def objective(x: Tensor) -> Tensor:
        return space.scalar(as_traced(fun)(space.unpacked(x), *args))

    given = _Given("minimize", lambda x: value_and_grad(objective)(x), space.start)

    def goes_on(x: Tensor, value: Tensor, slope: Tensor, inverse: Tensor, going: Tensor, nit: Tensor) -> Tensor:
        del x, value, inverse
        return logical_and(logical_and(max(abs(slope)) > limit, going), nit < most)

    def step(x: Tensor, value: Tensor, slope: Tensor, inverse: Tensor, going: Tensor, nit: Tensor) -> tuple[Any, ...]:
        del going
        direction = -(inverse @ slope)
        length, value, after = _along(given.searched, x, value, slope, direction)
        moved, change = length * direction, after - slope
        curvature = sum(moved * change)
        good = logical_and(isfinite(curvature), curvature > 0)
        divisor = where(good, curvature, 1)
        # After the first step the estimate gets the size of the inverse Hessian along that step.
        first = where(logical_and(good, nit == 0), curvature / where(good, sum(change * change), 1), 1)
        turn = eye(size, dtype=x.dtype) - outer(moved, change) / divisor
        updated = turn @ (first * inverse) @ matrix_transpose(turn) + outer(moved, moved) / divisor
        return x + moved, value, after, where(good, updated, inverse), length > 0, nit + 1

    value, slope = given.searched(space.start)
    state = (space.start, value, slope, eye(size, dtype=space.start.dtype), np.True_, np.int32(0))
    x, _, slope, inverse, _, nit = while_loop(goes_on, step, state)
    success = max(abs(slope)) <= limit
    found = given.implicit(1, x, success)
    return MinimizeResult(
        space.unpacked(found), success, given.outputs(found)[0], space.unpacked(slope), inverse, nit
    )


def _along(
    searched: Callable[[Tensor], Sequence[Tensor]], x: Tensor, value: Tensor, slope: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how far to go in a direction, with the value and the slope there; 0 if nothing is low enough.

    The length is doubled until it is too long, then the interval is halved: the first place counts that is lower and
    less steep (the conditions of Wolfe), or less steep and as low as far as rounding tells.
    """
    steep = sum(slope * direction)
    noise = 8 * np.finfo(x.dtype).eps * abs(value)

    def rates(length: Tensor, after: Tensor, slope_after: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether a length is too long, and whether it is too short."""
        rate = sum(slope_after * direction)
        lower = after <= value + _LOWER * length * steep
        level = logical_and(after <= value + noise, rate <= (2 * _LOWER - 1) * steep)
        return logical_not(logical_or(lower, level)), logical_not(rate >= _FLATTER * steep)

    def goes_on(short: Tensor, long: Tensor, length: Tensor, after: Tensor, slope_after: Tensor) -> Tensor:
        is_long, is_short = rates(length, after, slope_after)
        is_open = logical_and(long - short > _SHORTEST * short + _TINIEST, length < _LONGEST)
        return logical_and(logical_or(is_long, is_short), is_open)

    def step(short: Tensor, long: Tensor, length: Tensor, after: Tensor, slope_after: Tensor) -> tuple[Tensor, ...]:
        is_long, _ = rates(length, after, slope_after)
        short, long = where(is_long, short, length), where(is_long, length, long)
        length = where(isfinite(long), (short + long) / 2, 2 * short)
        return short, long, length, *searched(x + length * direction)

    zero, one = zeros_like(steep), ones_like(steep)
    state = (zero, one * np.inf, one, *searched(x + direction))
    _, _, length, after, slope_after = while_loop(goes_on, step, state)
    is_long, _ = rates(length, after, slope_after)
    good = logical_not(logical_or(is_long, logical_not(all(isfinite(slope_after)))))
    return where(good, length, zero), where(good, after, value), where(good, slope_after, slope)


_LOWER, _FLATTER = 1e-4, 0.9
"""The parts of the first descent that a step must reach, and of the first slope that it may leave."""
_SHORTEST, _TINIEST, _LONGEST = 1e-6, 1e-12, 2.0**30
"""The smallest part of an interval that is still halved, and the shortest and the longest step, by the first one."""


class _Space:
    """The structure of what is looked for, and its elements in one row."""

    def __init__(self, name: str, x0: Any) -> None:
        self._name = name
        leaves, self._tree = leaves_of(x0)
        if not builtins.sum(leaf.size for leaf in leaves):
            raise ArgumentError(f"{name}: x0 is empty", hint="Pass one float at least.")
        self._like = list(promote_float(*leaves))
        require_kind(name, ("float",), self._like[0].spec)
        self.start = stop_gradient(self._row(self._like))

    @staticmethod
    def _row(leaves: Sequence[Tensor]) -> Tensor:
        return concat([reshape(leaf, (-1,)) for leaf in leaves], axis=0)

    def unpacked(self, x: Tensor) -> Any:
        """Return a row's elements in the structure."""
        leaves: list[Tensor] = []
        first = 0
        for leaf in self._like:
            leaves.append(reshape(x[first : first + leaf.size], leaf.shape))
            first += leaf.size
        return structures.unflatten(self._tree, leaves)

    def packed(self, values: Any) -> Tensor:
        """Return what a function returned as a row."""
        return self._row(leaves_like(self._name, ("value", "x"), values, self._like, self._tree))

    def scalar(self, value: Any) -> Tensor:
        """Return what a function returned, which is one number of the dtype of x."""
        number = zeros_like(self.start[0])
        return leaves_like(self._name, ("value", "number"), value, [number], structures.structure(number))[0]


class _Given:
    """A user's function as a graph of x and of what the function reads around it, which are its captures.

    Args:
        name: the search, for messages.
        function: returns its results at a row.
        like: a row.
    """

    def __init__(self, name: str, function: Callable[[Tensor], Sequence[Tensor]], like: Tensor) -> None:
        self._name = name
        graph, self._captures, self._checks, _ = trace_inner(_Builder(name), function, [like.spec], ["x"])
        self._graph = graph if is_tracing() else canonical(graph)
        self._has_bodies = builtins.any(node.op.has("nested") for node in graph.nodes)
        self._fixed = [stop_gradient(capture) for capture in self._captures]

    def _run(self, x: Tensor, captures: Sequence[Tensor]) -> list[Tensor]:
        if self._has_bodies and not is_tracing():  # loops and branches in graphs run in programs of XLA only
            return several(call(x, *captures, graph=self._graph))
        return inline(self._graph, [x, *captures])

    def searched(self, x: Tensor) -> list[Tensor]:
        """Return the results, through which no gradient passes to the captures."""
        return self._run(x, self._fixed)[: len(self._graph.outputs) - len(self._checks)]

    def outputs(self, x: Tensor) -> list[Tensor]:
        """Return the results for a place at which the function's checks must hold."""
        results = self._run(x, self._captures)
        first = len(results) - len(self._checks)
        keep_checks(self._name, self._checks, results[first:])
        return results[:first]

    def implicit(self, index: int, x: Tensor, success: Tensor) -> Tensor:
        """Return x as the function of the captures that keeps the results of one number at 0."""

        def equations(x: Tensor, captures: Sequence[Tensor]) -> Tensor:
            return self._run(x, captures)[index]

        @custom_gradient
        def solution(x: Tensor, success: Tensor, *captures: Tensor) -> Any:
            def rule(g: Tensor) -> list[Tensor | None]:
                y = solution(x, success, *captures)  # so that the gradient has gradients
                matrix = jacobian(lambda y: equations(y, captures))(y)
                weights = where(success, -solve(matrix_transpose(matrix), g), np.nan)
                wanted = [i for i, one in enumerate(captures) if is_differentiable(one.dtype)]

                def by_captures(*some: Tensor) -> Tensor:
                    given = dict(zip(wanted, some, strict=True))
                    return equations(y, [given.get(i, one) for i, one in enumerate(captures)])

                result: list[Tensor | None] = [None] * (2 + len(captures))
                if wanted:
                    _, back = vjp(by_captures, *[captures[i] for i in wanted])
                    for i, gradient in zip(wanted, back(weights), strict=True):
                        result[2 + i] = gradient
                return result

            return fresh(x), rule

        return solution(stop_gradient(x), success, *self._captures)


class _Builder(InnerBuilder):
    """The tracer of a function whose root or minimum is looked for."""

    def assign_variable(self, variable: Variable, value: Tensor) -> None:
        """Raise an error: a search calls the function as often as it needs.

        Raises:
            TraceError: always.
        """
        del value
        raise TraceError(f"{self.name}: the function assigns Variable {variable.name!r}, in every step of the search",
                         got=f"{variable.spec} at {format_where(user_place(2))}",
                         hint="Return what is to be assigned of the result, and assign it after the search.")


def _count(name: str, maxiter: Any) -> int:
    if isinstance(maxiter, bool) or not isinstance(maxiter, int) or maxiter < 1:
        raise ArgumentError(f"{name}: maxiter={maxiter!r} is no number of steps", hint="Pass a whole number.")
    return maxiter


__all__ = ["MinimizeResult", "RootResult", "minimize", "root"]
_attached("name_module")("hf.optimize", __name__)
