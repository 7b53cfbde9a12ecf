"""`LBFGS`: a quasi-Newton optimizer, which evaluates the loss several times per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.assignments import beside
from hybridflow.core.context import is_tracing, made_once
from hybridflow.core.dtypes import float64, int32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError
from hybridflow.core.functions import as_traced
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.optim.groups import Parameter, Rate
from hybridflow.optim.optimizer import Optimizer
from hybridflow.optim.rule import Rule
from hybridflow.optim.rules import SGD
from hybridflow.optim.writes import assign_all

_DECREASE, _CURVATURE = 1e-4, 0.9
"""The constants of the strong Wolfe conditions."""
_LEAST_CURVATURE = 1e-10
"""A pair of changes enters the history only if their product is larger."""
Array = np.ndarray[Any, Any]


class _Point(NamedTuple):
    """A point of the search line: its step size, and the loss, its slope along the line and its gradient there."""

    t: float
    loss: float
    slope: float
    gradient: Array


class _Memory:
    """The state that one call of `LBFGS.step` changes; it is written to the Variables at the end.

    Attributes:
        moves, turns: the last changes of the parameters and of the gradients, the oldest pair first.
        iterations: the number of iterations so far.
        direction, gradient, loss: those of the last iteration.
        t: the step size along the direction.
        scale: the factor of the identity that serves as the initial inverse Hessian.
    """

    def __init__(self, kept: dict[str, Variable]) -> None:
        values = {name: np.asarray(variable.numpy()) for name, variable in kept.items()}
        count = int(values["count"])
        self.moves, self.turns = [*values["moves"][:count]], [*values["turns"][:count]]
        self.iterations = int(values["iterations"])
        self.direction, self.gradient = values["direction"], values["gradient"]
        self.t, self.scale, self.loss = (float(one) for one in values["numbers"])

    def values(self, kept: dict[str, Variable]) -> dict[str, Any]:
        """Return the values to assign to the Variables."""
        shape, dtype = kept["moves"].shape, kept["moves"].dtype
        stacked = {"moves": np.zeros(cast(Any, shape), dtype), "turns": np.zeros(cast(Any, shape), dtype)}
        for number, (move, turn) in enumerate(zip(self.moves, self.turns, strict=True)):
            stacked["moves"][number], stacked["turns"][number] = move, turn
        return {
            **stacked, "count": np.asarray(len(self.moves), np.int32),
            "iterations": np.asarray(self.iterations, np.int32), "direction": self.direction,
            "gradient": self.gradient, "numbers": np.asarray([self.t, self.scale, self.loss], np.float64),
        }

    def next_direction(self, gradient: Array, history: int) -> Array:
        """Add the last change to the history, and return minus the inverse Hessian times the gradient."""
        self.iterations += 1
        if self.iterations == 1:
            self.scale = 1.0
            return -gradient
        turn, move = gradient - self.gradient, self.direction * self.t
        curvature = float(turn @ move)
        if curvature > _LEAST_CURVATURE:
            self.moves, self.turns = [*self.moves, move][-history:], [*self.turns, turn][-history:]
            self.scale = curvature / float(turn @ turn)
        direction = -gradient
        parts: list[float] = []
        pairs = [(move, turn, 1.0 / float(turn @ move)) for move, turn in zip(self.moves, self.turns, strict=True)]
        for move, turn, inverse in reversed(pairs):
            parts.append(float(move @ direction) * inverse)
            direction = direction - parts[-1] * turn
        direction = direction * self.scale
        for (move, turn, inverse), part in zip(pairs, reversed(parts), strict=True):
            direction = direction + (part - float(turn @ direction) * inverse) * move
        return direction


class LBFGS(Optimizer):
    """L-BFGS: quasi-Newton steps from the last changes of the gradient, for losses without noise.

    `step` takes a closure. The closure calls ``.backward()`` and returns the loss, or it returns the loss and the
    gradients as `Optimizer.update` takes them. Each step calls it several times; `hf.compile` it for speed. If it
    raises or is interrupted, the step changes nothing.

    What the closure assigns to the parameters, such as values that it clamps, is where the step goes on from; a line
    search, which only tries points, goes back to its start each time.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        rate: the step size, or the first one that the line search tries.
        iterations: the largest number of iterations in a step.
        evaluations: the largest number of calls of the closure in a step; ``1.25 * iterations`` if not given.
        tolerance: a step ends when no element of the gradient is larger.
        least_change: a step ends when the parameters or the loss change by less.
        history: the number of changes that are remembered.
        line_search: ``"strong_wolfe"``, or None for steps of size `rate`.

    Example:
        >>> import hybridflow as hf
        >>> w = hf.Variable([-1.0, 2.0], name="w", requires_grad=True)
        >>> opt = hf.optim.LBFGS([w], line_search="strong_wolfe")
        >>> def closure():
        ...     loss = 100 * (w[1] - w[0] ** 2) ** 2 + (1 - w[0]) ** 2
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(3):
        ...     loss = opt.step(closure)
        >>> bool(hf.max(hf.abs(w - 1.0)) < 1e-3)
        True

    Reference:
        J. Nocedal, S. Wright, "Numerical optimization", 2006, algorithms 7.4, 3.5 and 3.6.
    """

    def __init__(
        self, target: Any, rate: Rate = 1.0, *, iterations: int = 20, evaluations: int | None = None,
        tolerance: float = 1e-7, least_change: float = 1e-9, history: int = 100, line_search: str | None = None,
    ) -> None:
        for name, value in (("iterations", iterations), ("history", history)):
            if value < 1:
                raise ArgumentError(f"LBFGS: {name} must be 1 at least", got=f"{name}={value!r}")
        if line_search not in (None, "strong_wolfe"):
            raise ArgumentError(f"LBFGS: line_search={line_search!r} is neither None nor 'strong_wolfe'")
        self._iterations = iterations
        self._evaluations = iterations * 5 // 4 if evaluations is None else evaluations
        self._tolerance, self._least_change = tolerance, least_change
        self._history, self._line_search = history, line_search
        self._kept: dict[str, Variable] = {}
        super().__init__(target, rate)

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        return SGD, {**settings, "decay": 0.0}  # a rule without slots of its own

    def _parameters(self) -> list[Parameter]:
        parameters = super()._parameters()
        if not self._kept:
            count = sum([int(one.variable.size) for one in parameters])
            dtype = float64 if any([one.variable.dtype == float64 for one in parameters]) else np.dtype(np.float32)
            made = {
                "moves": np.zeros((self._history, count), dtype), "turns": np.zeros((self._history, count), dtype),
                "direction": np.zeros(count, dtype), "gradient": np.zeros(count, dtype),
                "numbers": np.zeros(3), "count": np.zeros((), int32), "iterations": np.zeros((), int32),
            }
            with made_once():
                self._kept = {
                    name: Variable(make_tensor(value), name=f"optimizer.{name}", trainable=False)
                    for name, value in made.items()
                }
        return parameters

    def _state(self) -> dict[str, Variable]:
        return super()._state() | self._kept

    def update(self, gradients: Any) -> None:
        """Raise an error: L-BFGS needs a closure, see `step`.

        Raises:
            ArgumentTypeError: always.
        """
        del gradients
        raise ArgumentTypeError("LBFGS.update: it looks for a step by evaluating the loss",
                                hint="Call opt.step(closure).")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters so that the loss decreases.

        Args:
            closure: computes the loss; see the class.

        Returns:
            The loss before the step.

        Raises:
            ArgumentTypeError: no closure.
            TraceError: in a compiled function.
        """
        if closure is None or not callable(closure):
            raise ArgumentTypeError("LBFGS.step: it needs a function that computes the loss",
                                    got=f"closure={closure!r}",
                                    hint="Pass a function that calls loss.backward() and returns the loss.")
        if is_tracing():
            raise TraceError("LBFGS.step: it decides by the loss how often to evaluate it, and cannot be compiled",
                             hint="Compile the closure instead: opt.step(hf.compile(closure)).")
        parameters = self._parameters()
        line = _Line(self, parameters, closure)
        memory, start = _Memory(self._kept), line.position()
        try:
            loss, end = self._descend(line, memory, start)
        except BaseException:
            line.move_to(start)
            raise
        kept = memory.values(self._kept)
        assign_all([
            *line.pairs(end),
            *[(variable, beside(variable, make_tensor(kept[name]))) for name, variable in self._kept.items()],
            (self._steps, self._steps.read() + 1),
        ])
        return loss

    def _descend(self, line: _Line, memory: _Memory, x: Array) -> tuple[Any, Array]:
        """Run the iterations of one step: return the loss at `x`, and a position with a smaller loss."""
        rate = self._plain.rate_at(self._steps.read())
        self._check_rate(rate)
        length = float(rate)
        first, loss, gradient = line.evaluate(x)
        x = line.left_at(x)
        evaluated = 1
        for number in range(self._iterations):
            if _largest(gradient) <= self._tolerance:
                break
            direction = memory.next_direction(gradient, self._history)
            memory.gradient, before = gradient, loss
            t = min(1.0, 1.0 / float(np.abs(gradient).sum())) * length if memory.iterations == 1 else length
            slope = float(gradient @ direction)
            memory.direction, memory.t, memory.loss = direction, t, loss
            if slope > -self._least_change:
                break
            if self._line_search is not None:
                here = _Point(0.0, loss, slope, gradient)
                point, tried = self._searched(line, x, direction, here, t, self._evaluations - evaluated)
                t, loss, gradient = point.t, point.loss, point.gradient
                x, memory.t = x + t * direction, t
                evaluated += tried
            else:
                x = x + t * direction
                if number + 1 == self._iterations:
                    break
                _, loss, gradient = line.evaluate(x)
                x = line.left_at(x)
                evaluated += 1
            if evaluated >= self._evaluations or _largest(direction * t) <= self._least_change:
                break
            if abs(loss - before) < self._least_change:
                break
        return first, x

    def _searched(
        self, line: _Line, x: Array, direction: Array, start: _Point, t: float, limit: int
    ) -> tuple[_Point, int]:
        def point(t: float) -> _Point:
            _, loss, gradient = line.evaluate(x + t * direction)
            return _Point(t, loss, float(gradient @ direction), gradient)

        return _search(point, start, t, limit, self._least_change / max(_largest(direction), 1e-300))


class _Line:
    """The parameters as one vector, and the loss as a function of it."""

    def __init__(self, optimizer: Optimizer, wolfe: list[Parameter], closure: Callable[[], Any]) -> None:
        self._optimizer = optimizer
        self._found = wolfe
        self._closure = closure
        self._wide = np.result_type(*[one.variable.dtype for one in wolfe], np.float32)

    def _flat(self, arrays: list[Any]) -> Array:
        return np.concatenate([np.asarray(array, self._wide).reshape(-1) for array in arrays])

    def position(self) -> Array:
        """Return the parameters' values."""
        return self._flat([one.variable.numpy() for one in self._found])

    def pairs(self, x: Array) -> list[tuple[Variable, Any]]:
        """Return every parameter with its value at a position."""
        made: list[tuple[Variable, Any]] = []
        start = 0
        for one in self._found:
            variable, size = one.variable, int(one.variable.size)
            part = x[start : start + size].reshape(cast(Any, variable.shape)).astype(variable.dtype)
            made.append((variable, beside(variable, make_tensor(part))))
            start += size
        return made

    def move_to(self, x: Array) -> None:
        """Assign a position to the parameters."""
        assign_all(self.pairs(x))

    def left_at(self, x: Array) -> Array:
        """Return where the closure left the parameters, which were at `x`: elsewhere if it assigned to them."""
        found = [np.asarray(one.variable.numpy()) for one in self._found]
        given = [value.numpy() for _, value in self.pairs(x)]
        same = all([np.array_equal(a, b, equal_nan=True) for a, b in zip(found, given, strict=True)])
        return x if same else self._flat(found)

    def evaluate(self, x: Array) -> tuple[Tensor, float, Array]:
        """Return the loss at a position, as a tensor and as a number, and its gradient."""
        self.move_to(x)
        self._optimizer.zero_grad()
        given = as_traced(self._closure)()
        if isinstance(given, tuple):
            loss, gradients = cast("tuple[Any, Any]", given)
        else:
            loss, gradients = given, [cast(Any, one.variable).grad for one in self._found]
        try:
            number = (loss := as_tensor(loss)).item()
        except (ArgumentTypeError, ShapeError) as error:
            raise ArgumentTypeError("LBFGS.step: the closure returns no loss", got=f"a {type(given).__name__}",
                                    hint="Return the loss, or (loss, gradients).") from error
        tensors = self._optimizer.checked(gradients)
        return loss, number, self._flat([tensor.numpy() for tensor in tensors])


def _largest(x: Array) -> float:
    return float(np.abs(x).max(initial=0.0))


def _search(
    point: Callable[[float], _Point], start: _Point, t: float, limit: int, narrow: float
) -> tuple[_Point, int]:
    """Search along a line for a point that satisfies the strong Wolfe conditions.

    Args:
        point: a function that evaluates a step size.
        start: the point at step size 0.
        t: the first step size to try.
        limit: the largest number of evaluations.
        narrow: the search ends at an interval narrower than this.

    Returns:
        The point, and the number of evaluations.
    """

    def rises(one: _Point) -> bool:
        return one.loss > start.loss + _DECREASE * one.t * start.slope

    def is_flat(one: _Point) -> bool:
        return abs(one.slope) <= -_CURVATURE * start.slope

    before, now = start, point(t)
    tries = 0
    while True:  # go further until the minimum lies between two points
        if tries >= limit:
            before = start
            break
        if rises(now) or (tries > 1 and now.loss >= before.loss):
            break
        if is_flat(now):
            return now, tries + 1
        if now.slope >= 0:
            break
        t = _lowest(before, now, now.t + 0.01 * (now.t - before.t), 10 * now.t)
        before, now = now, point(t)
        tries += 1
    ends = [before, now]
    low = 0 if before.loss <= now.loss else 1
    stuck = False
    while tries < limit and abs(ends[1].t - ends[0].t) >= narrow:
        t, stuck = _inside(ends, stuck)
        now = point(t)
        tries += 1
        if rises(now) or now.loss >= ends[low].loss:
            ends[1 - low] = now
            low = 0 if ends[0].loss <= ends[1].loss else 1
            continue
        if is_flat(now):
            return now, tries + 1
        if now.slope * (ends[1 - low].t - ends[low].t) >= 0:
            ends[1 - low] = ends[low]
        ends[low] = now
    return ends[low], tries + 1


def _inside(ends: list[_Point], stuck: bool) -> tuple[float, bool]:
    """Return the step size to try between two points, and whether the best guess was too near to one of them."""
    left, right = sorted([ends[0].t, ends[1].t])
    t = _lowest(ends[0], ends[1], left, right)
    margin = 0.1 * (right - left)
    if min(right - t, t - left) >= margin:
        return t, False
    if stuck or t >= right or t <= left:
        return (right - margin if abs(t - right) < abs(t - left) else left + margin), False
    return t, True


def _lowest(a: _Point, b: _Point, least: float, most: float) -> float:
    """Return the minimum, within bounds, of the cubic that fits values and slopes at two points."""
    if a.t > b.t:
        a, b = b, a
    middle = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = middle * middle - a.slope * b.slope
    if not square >= 0:
        return (least + most) / 2
    root = math.sqrt(square)
    divisor = b.slope - a.slope + 2 * root
    if divisor == 0:
        return (least + most) / 2
    return min(max(b.t - (b.t - a.t) * ((b.slope + root - middle) / divisor), least), most)
