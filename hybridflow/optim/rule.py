"""The rules of optimizers, and the operations that are made from them.

Every operation takes ``(parameter, gradient, *slots, step, rate)`` and returns the new ``(parameter, *slots)``; `step`
is the number of updates so far. The rules are in `hybridflow.optim.rules` and `hybridflow.optim.matrix_rules`, the
public classes in `hybridflow.optim.optimizers`.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError, message
from hybridflow.core.op import Bad, No, Op, Sample, Stops, register
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ops.common import TensorSpec, call_text, make_spec, normals, positives, require_kind

CHUNK = 1 << 16
"""The number of elements that are updated at a time on the host; intermediate values then stay in the cache."""

Step = tuple[Any, ...]
"""One in-place step: a NumPy function, its operands, and the array for its result."""
Host = Callable[..., Iterable[Step]]
"""A function ``(scratch, other, parameter, gradient, *slots, *numbers)`` of arrays of one shape that returns the steps.

The first two arrays are for intermediate values. The function itself writes nothing; only running the steps does.
"""


def run_steps(steps: Iterable[Step]) -> None:
    """Run steps without letting a signal handler (such as Ctrl-C's) interrupt between two of them.

    Python calls signal handlers between its own instructions. This loop runs in C, so there are none.
    """
    deque(starmap(operator.call, steps), 0)


class Scratch:
    """Scratch arrays for one update, which all parameters of a dtype share."""

    def __init__(self) -> None:
        self._found: dict[Any, tuple[Any, Any]] = {}

    def of(self, shape: tuple[int, ...], size: int, dtype: Any) -> tuple[Any, Any]:
        """Return two scratch arrays of a shape with at most `CHUNK` elements."""
        pair = self._found.get(dtype)
        if pair is None:
            pair = self._found[dtype] = np.empty(CHUNK, dtype), np.empty(CHUNK, dtype)
        one, other = pair
        return one[:size].reshape(shape), other[:size].reshape(shape)


@dataclass(frozen=True)
class Rule:
    """How an optimizer changes a parameter.

    Attributes:
        op: its operation.
        slots: the names of the values that are kept for every parameter, such as moments.
        shapes: a function from a parameter's shape to the shapes of its slots.
        numbers: a function ``(step, rate, **attrs)`` that returns the Python numbers that all parameters share in an
            update.
        host: a function that updates one parameter's arrays in place, element by element; None for a rule that needs a
            whole parameter at once and returns new arrays.
    """

    op: Op
    slots: tuple[str, ...]
    shapes: Callable[[tuple[int, ...]], tuple[tuple[int, ...], ...]]
    numbers: Callable[..., tuple[float, ...]]
    host: Host | None

    def constants(self, dtype: Any, step: int, rate: float, attrs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the numbers of an update as arrays of a dtype, with which NumPy computes fastest."""
        return tuple([np.array(number, dtype) for number in self.numbers(step, rate, **attrs)])

    def steps(self, arrays: list[Any], numbers: tuple[Any, ...], scratch: Scratch) -> Iterable[Step]:
        """Return the steps that update C-contiguous arrays (parameter, gradient, slots); the gradient is only read."""
        host = self.host
        assert host is not None
        first = arrays[0]
        size, dtype = first.size, first.dtype
        if size <= CHUNK and first.ndim:
            return host(*scratch.of(first.shape, size, dtype), *arrays, *numbers)
        flat = [array.reshape(-1) for array in arrays]
        steps: list[Step] = []
        for start in range(0, size, CHUNK):
            part = [array[start : start + CHUNK] for array in flat]
            count = part[0].size
            steps += host(*scratch.of((count,), count, dtype), *part, *numbers)
        return steps


def same_shapes(count: int) -> Callable[[tuple[int, ...]], tuple[tuple[int, ...], ...]]:
    """Return a function that gives `count` slots the parameter's shape."""
    return lambda shape: (shape,) * count


def _infer(name: str, rule_shapes: Callable[..., Any]) -> Callable[..., Any]:
    def infer(*specs: TensorSpec, **attrs: Any) -> Any:
        del attrs
        *arrays, step, rate = specs
        require_kind(name, ("float",), *arrays, rate)
        require_kind(name, ("int",), step)
        first = arrays[0]
        slots = rule_shapes(first.shape)
        for one, shape in zip(arrays[1:], (first.shape, *slots), strict=True):
            for error, what, a, b in (
                (ShapeError, "shape", one.shape, tuple(shape)), (DTypeError, "dtype", one.dtype, first.dtype)
            ):
                if a != b:
                    raise error(
                        message(f"{name}: the parameter has {what} {first.shape if what == 'shape' else b}, its "
                                f"gradient or slot {a}", got=call_text(name, *specs),
                                hint=f"It must be {b}.")
                    )
        for one in (step, rate):
            if one.shape:
                raise ShapeError(f"{name}: step and rate must have shape ()", got=call_text(name, *specs))
        made = tuple([make_spec(shape, first.dtype) for shape in (first.shape, *slots)])
        return made if slots else made[0]

    return infer


def _samples(name: str, shapes: Callable[..., Any], tried: Any, settings: Iterable[dict[str, Any]]) -> Any:
    def samples(rng: np.random.Generator) -> Iterable[Sample | Bad]:
        for number, attrs in enumerate(settings):
            for dtype, shape in tried:
                kept = [positives(rng, *one, dtype=dtype) for one in shapes(shape)]
                step, rate = np.asarray(number * 7, np.int32), np.asarray(0.05, np.float32)
                values = (normals(rng, *shape, dtype=dtype), normals(rng, *shape, dtype=dtype), *kept, step, rate)
                yield Sample(values, attrs, gradient=False)
            _, shape = tried[0]
            longer = (shape[0] + 1, *shape[1:])
            kept = [np.ones(one, np.float32) for one in shapes(shape)]
            wrong = (np.ones(shape, np.float32), np.ones(longer, np.float32), *kept, np.int32(0), np.float32(0.1))
            yield Bad(wrong, attrs, error=ShapeError, text=f"{name}: the parameter has shape")

    return samples


ANY_SHAPES = ((np.float32, (3, 4)), (np.float64, (5,)), (np.float32, ()))
"""The dtypes and shapes with which an element-wise rule is tested."""


def make_rule(
    name: str,
    *,
    slots: tuple[str, ...],
    numbers: Callable[..., tuple[float, ...]],
    host: Host,
    lower: Callable[..., Any],
    operations: int,
    settings: Iterable[dict[str, Any]],
) -> Rule:
    """Register the operation of an element-wise rule.

    Args:
        name: the operation's name.
        slots, numbers, host: see `Rule`; every slot is like the parameter.
        lower: the rule on jax arrays, ``(count, rate, parameter, gradient, *slots, **attrs)``, with `count` the number
            of this update from 1 on; both numbers are of the parameter's dtype, float32 at least.
        operations: floating-point operations per element.
        settings: attributes to test it with.
    """

    def kernel(*values: Any, **attrs: Any) -> Any:
        *arrays, step, rate = values
        made = [np.array(array, order="C") for array in arrays]
        run_steps(rule.steps(made, rule.constants(made[0].dtype, int(step), float(rate), attrs), Scratch()))
        del made[1]
        return tuple(made) if slots else made[0]

    shapes = same_shapes(len(slots))
    record = _record(
        name, kernel, lower, shapes, lambda outputs, p, *others, **attrs: operations * p.size, ANY_SHAPES, settings,
        pointwise=True,
    )
    rule = Rule(record, slots, shapes, numbers, host)
    return rule


def make_whole_rule(
    name: str,
    *,
    slots: tuple[str, ...],
    shapes: Callable[[tuple[int, ...]], tuple[tuple[int, ...], ...]],
    formula: Callable[..., Any],
    flops: Callable[..., Any],
    tried: Any,
    settings: Iterable[dict[str, Any]],
) -> Rule:
    """Register the operation of a rule that needs a whole parameter at once.

    Args:
        name: the operation's name.
        slots, shapes: see `Rule`.
        formula: the rule, ``(xp, count, rate, parameter, gradient, *slots, **attrs)``, with `xp` `numpy` or
            `jax.numpy` and `count` as for `make_rule`.
        flops: the column of `Op`.
        tried: the dtypes and shapes to test it with.
        settings: attributes to test it with.
    """

    def kernel(*values: Any, **attrs: Any) -> Any:
        *arrays, step, rate = values
        dtype = arrays[0].dtype
        made = formula(np, dtype.type(int(step) + 1), dtype.type(rate), *arrays, **attrs)
        return tuple([np.asarray(one, dtype) for one in made])

    def lower(count: Any, rate: Any, *arrays: Any, **attrs: Any) -> Any:
        return formula(jnp, count, rate, *arrays, **attrs)

    record = _record(name, kernel, lower, shapes, flops, tried, settings, pointwise=False)
    return Rule(record, slots, shapes, lambda step, rate, **attrs: (), None)


def _record(
    name: str, kernel: Any, lower: Any, shapes: Any, flops: Callable[..., Any], tried: Any, settings: Any,
    pointwise: bool,
) -> Op:
    several = bool(shapes((1, 1)))

    def lowered(*values: Any, **attrs: Any) -> Any:
        parameter, gradient, *kept, step, rate = values
        wide = jnp.promote_types(jnp.promote_types(parameter.dtype, rate.dtype), jnp.float32)
        count = jnp.asarray(step, wide) + 1
        outputs = lower(count, jnp.asarray(rate, wide), *[jnp.asarray(x, wide) for x in (parameter, gradient, *kept)],
                        **attrs)
        made = tuple([jax.lax.convert_element_type(y, parameter.dtype) for y in outputs])
        return made if several else made[0]

    def function(*values: Any, **attrs: Any) -> tuple[Tensor, ...]:
        return bind(record, tuple([as_tensor(value) for value in values]), attrs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The rule of the optimizer {name}: the parameter and its slots after an update."
    record = Op(
        name, kernel, lowered, _infer(name, shapes), Stops("no gradient flows through an optimizer's step"),
        flops=flops, samples=_samples(name, shapes, tried, tuple(settings)), ulp=16.0,
        traits=frozenset({"inner", "updates"} if pointwise else {"inner"}),
        public=function, onnx=No("a model is exported, not its training"),
    )
    return register(record)
