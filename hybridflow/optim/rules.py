"""The optimizers' rules as operations: one application of a rule is one node, and on the host one pass in place.

Every operation takes ``(parameter, gradient, *slots, step, rate)`` and gives ``(parameter, *slots)`` anew; `step` is
the number of the updates so far. The public classes are in `hybridflow.optim.optimizers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
"""How many elements are updated at a time on the host, so that what lies between two operations stays in the cache."""

Host = Callable[..., None]
"""``(scratch, parameter, gradient, *slots, *numbers)``: writes flat arrays of one length; two scratch arrays of it."""


@dataclass(frozen=True)
class Rule:
    """How an optimizer changes a parameter.

    Attributes:
        op: its operation.
        slots: the names of what it keeps for every parameter, each of the parameter's shape and dtype.
        numbers: ``(step, rate, **attrs)`` to the Python numbers that one update of all parameters shares.
        host: writes one parameter's arrays.
    """

    op: Op
    slots: tuple[str, ...]
    numbers: Callable[..., tuple[float, ...]]
    host: Host

    def constants(self, dtype: Any, step: int, rate: float, attrs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the numbers of an update of parameters of a dtype as arrays, which NumPy is quickest with."""
        return tuple([np.array(number, dtype) for number in self.numbers(step, rate, **attrs)])

    def write(self, arrays: list[Any], numbers: tuple[Any, ...]) -> None:
        """Apply the rule to C-contiguous arrays, parameter, gradient and slots, in place but for the gradient."""
        size = arrays[0].size
        host = self.host
        if size <= CHUNK and arrays[0].ndim:
            host(np.empty_like(arrays[0]), *arrays, *numbers)
            return
        flat = [array.reshape(-1) for array in arrays]
        scratch = np.empty(min(size, CHUNK), flat[0].dtype)
        for start in range(0, size, CHUNK):
            part = [array[start : start + CHUNK] for array in flat]
            host(scratch[: part[0].size], *part, *numbers)


def correction(beta: float, count: float) -> float:
    """Return ``1 - beta ** count`` to the last place."""
    return -math.expm1(count * math.log(beta)) if beta > 0 else 1.0


def corrected(beta: float, count: Any) -> Any:
    """Return `correction` of a traced count."""
    return -jnp.expm1(count * math.log(beta)) if beta > 0 else jnp.ones_like(count)


def _infer(name: str, slots: int) -> Callable[..., Any]:
    def infer(*specs: TensorSpec, **attrs: Any) -> Any:
        del attrs
        *arrays, step, rate = specs
        require_kind(name, ("float",), *arrays, rate)
        require_kind(name, ("int",), step)
        first = arrays[0]
        for one in arrays[1:]:
            for error, what, a, b in (
                (ShapeError, "shape", one.shape, first.shape), (DTypeError, "dtype", one.dtype, first.dtype)
            ):  # fmt: skip
                if a != b:
                    raise error(
                        message(f"{name}: the parameter has {what} {b}, its gradient or slot {a}",
                                got=call_text(name, *specs), hint="They must be alike.")
                    )  # fmt: skip
        for one in (step, rate):
            if one.shape:
                raise ShapeError(message(f"{name}: step and rate must have shape ()", got=call_text(name, *specs)))
        made = make_spec(first.shape, first.dtype)
        return (made,) * (1 + slots) if slots else made

    return infer


def _samples(name: str, slots: tuple[str, ...], settings: Iterable[dict[str, Any]]) -> Any:
    def samples(rng: np.random.Generator) -> Iterable[Sample | Bad]:
        for number, attrs in enumerate(settings):
            for dtype, shape in ((np.float32, (3, 4)), (np.float64, (5,)), (np.float32, ())):
                kept = [positives(rng, *shape, dtype=dtype) for _ in slots]
                step, rate = np.asarray(number * 7, np.int32), np.asarray(0.05, np.float32)
                values = (normals(rng, *shape, dtype=dtype), normals(rng, *shape, dtype=dtype), *kept, step, rate)
                yield Sample(values, attrs, gradient=False)
            kept = [np.ones(2, np.float32) for _ in slots]
            yield Bad((np.ones(2, np.float32), np.ones(3, np.float32), *kept, np.int32(0), np.float32(0.1)), attrs,
                      error=ShapeError, text=f"{name}: the parameter has shape")  # fmt: skip

    return samples


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
    """Register the operation of a rule.

    Args:
        name: the operation's name.
        slots, numbers, host: see `Rule`.
        lower: the rule on jax arrays, ``(count, rate, parameter, gradient, *slots, **attrs)``, with `count` the number
            of this update from 1 on; both numbers are of the parameter's dtype, float32 at least.
        operations: floating-point operations per element.
        settings: attributes to test it with.
    """

    def kernel(*values: Any, **attrs: Any) -> Any:
        *arrays, step, rate = values
        made = [np.array(array, order="C") for array in arrays]
        rule.write(made, rule.constants(made[0].dtype, int(step), float(rate), attrs))
        del made[1]
        return tuple(made) if slots else made[0]

    def lowered(*values: Any, **attrs: Any) -> Any:
        parameter, gradient, *kept, step, rate = values
        wide = jnp.promote_types(jnp.promote_types(parameter.dtype, rate.dtype), jnp.float32)
        count = jnp.asarray(step, wide) + 1
        outputs = lower(count, jnp.asarray(rate, wide), *[jnp.asarray(x, wide) for x in (parameter, gradient, *kept)],
                        **attrs)  # fmt: skip
        made = tuple([jax.lax.convert_element_type(y, parameter.dtype) for y in outputs])
        return made if slots else made[0]

    def flops(outputs: Any, *inputs: Any, **attrs: Any) -> Any:
        del outputs, attrs
        return operations * inputs[0].size

    def function(*values: Any, **attrs: Any) -> tuple[Tensor, ...]:
        return bind(record, tuple([as_tensor(value) for value in values]), attrs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The rule of the optimizer {name}: the parameter and its slots after an update."
    record = Op(
        name, kernel, lowered, _infer(name, len(slots)),
        Stops("no gradient flows through an optimizer's step"), flops=flops,
        samples=_samples(name, slots, tuple(settings)), traits=frozenset({"inner"}), ulp=16.0,
        public=function, onnx=No("a model is exported, not its training"),
    )  # fmt: skip
    register(record)
    rule = Rule(record, slots, numbers, host)
    return rule


# -- stochastic gradient descent ----------------------------------------------------------------------------------


def _sgd_numbers(step: int, rate: float, *, decay: float) -> tuple[float, ...]:
    del step
    return rate, 1.0 - rate * decay


def _sgd_host(scratch: Any, p: Any, g: Any, rate: float, kept: float) -> None:
    if kept != 1.0:
        np.multiply(p, kept, p)
    np.multiply(g, rate, scratch)
    np.subtract(p, scratch, p)


def _sgd_lower(count: Any, rate: Any, p: Any, g: Any, *, decay: float) -> Any:
    del count
    return (_decayed(p, rate, decay) - rate * g,)


def _decayed(p: Any, rate: Any, decay: float) -> Any:
    return p * (1 - rate * decay) if decay else p


SGD = make_rule(
    "sgd", slots=(), numbers=_sgd_numbers, host=_sgd_host, lower=_sgd_lower, operations=3,
    settings=({"decay": 0.0}, {"decay": 0.1}),
)  # fmt: skip


def _momentum_numbers(step: int, rate: float, *, momentum: float, nesterov: bool, decay: float) -> tuple[float, ...]:
    del step
    return rate, 1.0 - rate * decay, momentum, nesterov


def _momentum_host(
    scratch: Any, p: Any, g: Any, velocity: Any, rate: float, kept: float, momentum: float, nesterov: bool
) -> None:
    if kept != 1.0:
        np.multiply(p, kept, p)
    np.multiply(velocity, momentum, velocity)
    np.add(velocity, g, velocity)
    if nesterov:
        np.multiply(velocity, momentum, scratch)
        np.add(scratch, g, scratch)
        np.multiply(scratch, rate, scratch)
    else:
        np.multiply(velocity, rate, scratch)
    np.subtract(p, scratch, p)


def _momentum_lower(
    count: Any, rate: Any, p: Any, g: Any, velocity: Any, *, momentum: float, nesterov: bool, decay: float
) -> Any:
    del count
    velocity = momentum * velocity + g
    change = g + momentum * velocity if nesterov else velocity
    return _decayed(p, rate, decay) - rate * change, velocity


MOMENTUM = make_rule(
    "sgd_momentum", slots=("velocity",), numbers=_momentum_numbers, host=_momentum_host, lower=_momentum_lower,
    operations=5, settings=({"momentum": 0.9, "nesterov": False, "decay": 0.0},
                            {"momentum": 0.9, "nesterov": True, "decay": 0.1}),
)  # fmt: skip


# -- Adam ---------------------------------------------------------------------------------------------------------


def _adamw_numbers(
    step: int, rate: float, *, beta1: float, beta2: float, epsilon: float, decay: float
) -> tuple[float, ...]:
    first, root = correction(beta1, step + 1), math.sqrt(correction(beta2, step + 1))
    return beta1, 1 - beta1, beta2, 1 - beta2, epsilon * root, rate * root / first, 1.0 - rate * decay


def _adamw_host(
    scratch: Any, p: Any, g: Any, m: Any, v: Any,
    beta1: float, rest1: float, beta2: float, rest2: float, epsilon: float, rate: float, kept: float,
) -> None:  # fmt: skip
    multiply = np.multiply
    multiply(g, rest1, scratch)
    multiply(m, beta1, m)
    np.add(m, scratch, m)
    multiply(g, g, scratch)
    multiply(scratch, rest2, scratch)
    multiply(v, beta2, v)
    np.add(v, scratch, v)
    np.sqrt(v, scratch)
    np.add(scratch, epsilon, scratch)
    np.divide(m, scratch, scratch)
    multiply(scratch, rate, scratch)
    if kept != 1.0:
        multiply(p, kept, p)
    np.subtract(p, scratch, p)


def _adamw_lower(
    count: Any, rate: Any, p: Any, g: Any, m: Any, v: Any,
    *, beta1: float, beta2: float, epsilon: float, decay: float,
) -> Any:  # fmt: skip
    first, root = corrected(beta1, count), jnp.sqrt(corrected(beta2, count))
    m = m * beta1 + g * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    change = m / (jnp.sqrt(v) + epsilon * root) * (rate * root / first)
    return _decayed(p, rate, decay) - change, m, v


ADAMW = make_rule(
    "adamw", slots=("m", "v"), numbers=_adamw_numbers, host=_adamw_host, lower=_adamw_lower, operations=13,
    settings=({"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.0},
              {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "decay": 0.1}),
)  # fmt: skip


# -- one slot of squares ------------------------------------------------------------------------------------------


def _rmsprop_numbers(step: int, rate: float, *, alpha: float, epsilon: float, decay: float) -> tuple[float, ...]:
    del step
    return alpha, 1 - alpha, epsilon, rate, 1.0 - rate * decay


def _scaled_by_root(scratch: Any, p: Any, g: Any, squares: Any, epsilon: float, rate: float, kept: float) -> None:
    """Move a parameter against the gradient, divided by the root of its squares."""
    np.sqrt(squares, scratch)
    np.add(scratch, epsilon, scratch)
    np.divide(g, scratch, scratch)
    np.multiply(scratch, rate, scratch)
    if kept != 1.0:
        np.multiply(p, kept, p)
    np.subtract(p, scratch, p)


def _rmsprop_host(
    scratch: Any, p: Any, g: Any, squares: Any, alpha: float, rest: float, epsilon: float, rate: float, kept: float
) -> None:
    np.multiply(g, g, scratch)
    np.multiply(scratch, rest, scratch)
    np.multiply(squares, alpha, squares)
    np.add(squares, scratch, squares)
    _scaled_by_root(scratch, p, g, squares, epsilon, rate, kept)


def _rmsprop_lower(
    count: Any, rate: Any, p: Any, g: Any, squares: Any, *, alpha: float, epsilon: float, decay: float
) -> Any:
    del count
    squares = squares * alpha + g * g * (1 - alpha)
    return _decayed(p, rate, decay) - g / (jnp.sqrt(squares) + epsilon) * rate, squares


RMSPROP = make_rule(
    "rmsprop", slots=("squares",), numbers=_rmsprop_numbers, host=_rmsprop_host, lower=_rmsprop_lower, operations=9,
    settings=({"alpha": 0.99, "epsilon": 1e-8, "decay": 0.0}, {"alpha": 0.9, "epsilon": 1e-6, "decay": 0.1}),
)  # fmt: skip


def _adagrad_numbers(step: int, rate: float, *, epsilon: float, decay: float) -> tuple[float, ...]:
    del step
    return epsilon, rate, 1.0 - rate * decay


def _adagrad_host(scratch: Any, p: Any, g: Any, squares: Any, epsilon: float, rate: float, kept: float) -> None:
    np.multiply(g, g, scratch)
    np.add(squares, scratch, squares)
    _scaled_by_root(scratch, p, g, squares, epsilon, rate, kept)


def _adagrad_lower(count: Any, rate: Any, p: Any, g: Any, squares: Any, *, epsilon: float, decay: float) -> Any:
    del count
    squares = squares + g * g
    return _decayed(p, rate, decay) - g / (jnp.sqrt(squares) + epsilon) * rate, squares


ADAGRAD = make_rule(
    "adagrad", slots=("squares",), numbers=_adagrad_numbers, host=_adagrad_host, lower=_adagrad_lower, operations=7,
    settings=({"epsilon": 1e-10, "decay": 0.0}, {"epsilon": 1e-6, "decay": 0.1}),
)  # fmt: skip


# -- others -------------------------------------------------------------------------------------------------------


def _adadelta_numbers(step: int, rate: float, *, rho: float, epsilon: float, decay: float) -> tuple[float, ...]:
    del step
    return rho, 1 - rho, epsilon, rate, 1.0 - rate * decay


def _adadelta_host(
    scratch: Any, p: Any, g: Any, squares: Any, changes: Any,
    rho: float, rest: float, epsilon: float, rate: float, kept: float,
) -> None:  # fmt: skip
    np.multiply(g, g, scratch)
    np.multiply(scratch, rest, scratch)
    np.multiply(squares, rho, squares)
    np.add(squares, scratch, squares)
    np.add(changes, epsilon, scratch)
    change = scratch / (squares + epsilon)
    np.sqrt(change, change)
    np.multiply(change, g, change)
    np.multiply(change, change, scratch)
    np.multiply(scratch, rest, scratch)
    np.multiply(changes, rho, changes)
    np.add(changes, scratch, changes)
    np.multiply(change, rate, change)
    if kept != 1.0:
        np.multiply(p, kept, p)
    np.subtract(p, change, p)


def _adadelta_lower(
    count: Any, rate: Any, p: Any, g: Any, squares: Any, changes: Any, *, rho: float, epsilon: float, decay: float
) -> Any:
    del count
    squares = squares * rho + g * g * (1 - rho)
    change = jnp.sqrt((changes + epsilon) / (squares + epsilon)) * g
    return _decayed(p, rate, decay) - change * rate, squares, changes * rho + change * change * (1 - rho)


ADADELTA = make_rule(
    "adadelta", slots=("squares", "changes"), numbers=_adadelta_numbers, host=_adadelta_host, lower=_adadelta_lower,
    operations=15, settings=({"rho": 0.9, "epsilon": 1e-6, "decay": 0.0}, {"rho": 0.8, "epsilon": 1e-5, "decay": 0.1}),
)  # fmt: skip


def _lion_numbers(step: int, rate: float, *, beta1: float, beta2: float, decay: float) -> tuple[float, ...]:
    del step
    return beta1, 1 - beta1, beta2, 1 - beta2, rate, 1.0 - rate * decay


def _lion_host(
    scratch: Any, p: Any, g: Any, m: Any,
    beta1: float, rest1: float, beta2: float, rest2: float, rate: float, kept: float,
) -> None:  # fmt: skip
    np.multiply(g, rest1, scratch)
    np.add(scratch, m * beta1, scratch)
    np.sign(scratch, scratch)
    np.multiply(scratch, rate, scratch)
    if kept != 1.0:
        np.multiply(p, kept, p)
    np.subtract(p, scratch, p)
    np.multiply(g, rest2, scratch)
    np.multiply(m, beta2, m)
    np.add(m, scratch, m)


def _lion_lower(
    count: Any, rate: Any, p: Any, g: Any, m: Any, *, beta1: float, beta2: float, decay: float
) -> Any:
    del count
    change = jnp.sign(m * beta1 + g * (1 - beta1))
    return _decayed(p, rate, decay) - change * rate, m * beta2 + g * (1 - beta2)


LION = make_rule(
    "lion", slots=("m",), numbers=_lion_numbers, host=_lion_host, lower=_lion_lower, operations=10,
    settings=({"beta1": 0.9, "beta2": 0.99, "decay": 0.0}, {"beta1": 0.95, "beta2": 0.98, "decay": 0.1}),
)  # fmt: skip
