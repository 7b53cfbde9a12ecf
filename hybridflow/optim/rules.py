"""The rules of optimizers that work element by element; see `hybridflow.optim.rule`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.optim.rule import Rule, Step, make_rule

_add, _subtract, _multiply, _divide, _sqrt = np.add, np.subtract, np.multiply, np.divide, np.sqrt


def _kept(p: Any, kept: Any) -> list[Step]:
    """Return the step that scales a parameter by `kept` before its change: decoupled weight decay."""
    return [(_multiply, p, kept, p)] if kept != 1.0 else []


def correction(beta: float, count: float) -> float:
    """Return ``1 - beta ** count`` without cancellation."""
    return -math.expm1(count * math.log(beta)) if beta > 0 else 1.0


def corrected(beta: float, count: Any) -> Any:
    """Return `correction` for a traced count."""
    return -jnp.expm1(count * math.log(beta)) if beta > 0 else jnp.ones_like(count)


# -- stochastic gradient descent ----------------------------------------------------------------------------------


def _sgd_numbers(step: int, rate: float, *, decay: float) -> tuple[float, ...]:
    del step
    return rate, 1.0 - rate * decay


def _sgd_host(s: Any, t: Any, p: Any, g: Any, rate: Any, kept: Any) -> list[Step]:
    del t
    return [*_kept(p, kept), (_multiply, g, rate, s), (_subtract, p, s, p)]


def _sgd_lower(count: Any, rate: Any, p: Any, g: Any, *, decay: float) -> Any:
    del count
    return (_decayed(p, rate, decay) - rate * g,)


def _decayed(p: Any, rate: Any, decay: float) -> Any:
    return p * (1 - rate * decay) if decay else p


SGD = make_rule(
    "sgd", slots=(), numbers=_sgd_numbers, host=_sgd_host, lower=_sgd_lower, operations=3,
    settings=({"decay": 0.0}, {"decay": 0.1}),
)


def _momentum_numbers(step: int, rate: float, *, momentum: float, nesterov: bool, decay: float) -> tuple[float, ...]:
    del step
    return rate, 1.0 - rate * decay, momentum, nesterov


def _momentum_host(
    s: Any, t: Any, p: Any, g: Any, velocity: Any, rate: Any, kept: Any, momentum: Any, nesterov: Any
) -> list[Step]:
    del t
    steps = [*_kept(p, kept), (_multiply, velocity, momentum, velocity), (_add, velocity, g, velocity)]
    if nesterov:
        steps += [(_multiply, velocity, momentum, s), (_add, s, g, s), (_multiply, s, rate, s)]
    else:
        steps += [(_multiply, velocity, rate, s)]
    return [*steps, (_subtract, p, s, p)]


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
)


# -- Adam ---------------------------------------------------------------------------------------------------------


def _adamw_numbers(
    step: int, rate: float, *, beta1: float, beta2: float, epsilon: float, decay: float
) -> tuple[float, ...]:
    first, root = correction(beta1, step + 1), math.sqrt(correction(beta2, step + 1))
    return beta1, 1 - beta1, beta2, 1 - beta2, epsilon * root, rate * root / first, 1.0 - rate * decay


def _adamw_host(
    s: Any, t: Any, p: Any, g: Any, m: Any, v: Any,
    beta1: Any, rest1: Any, beta2: Any, rest2: Any, epsilon: Any, rate: Any, kept: Any,
) -> list[Step]:
    del t
    return [
        (_multiply, g, rest1, s),
        (_multiply, m, beta1, m),
        (_add, m, s, m),
        (_multiply, g, g, s),
        (_multiply, s, rest2, s),
        (_multiply, v, beta2, v),
        (_add, v, s, v),
        (_sqrt, v, s),
        (_add, s, epsilon, s),
        (_divide, m, s, s),
        (_multiply, s, rate, s),
        *_kept(p, kept),
        (_subtract, p, s, p),
    ]


def _adamw_lower(
    count: Any, rate: Any, p: Any, g: Any, m: Any, v: Any,
    *, beta1: float, beta2: float, epsilon: float, decay: float,
) -> Any:
    first, root = corrected(beta1, count), jnp.sqrt(corrected(beta2, count))
    m = m * beta1 + g * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    change = m / (jnp.sqrt(v) + epsilon * root) * (rate * root / first)
    return _decayed(p, rate, decay) - change, m, v


ADAMW = make_rule(
    "adamw", slots=("m", "v"), numbers=_adamw_numbers, host=_adamw_host, lower=_adamw_lower, operations=13,
    settings=({"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.0},
              {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "decay": 0.1}),
)


# -- division by the root of squares -------------------------------------------------------------------------------


def _rmsprop_numbers(
    step: int, rate: float, *, alpha: float, epsilon: float, decay: float, momentum: float = 0.0
) -> tuple[float, ...]:
    del step
    return alpha, 1 - alpha, epsilon, rate, 1.0 - rate * decay, momentum


def _rmsprop_rule(*, momentum: bool, centered: bool) -> Rule:
    """Make a rule of RMSprop. Its slots: the squares, the means if centered, the velocities with momentum."""

    def host(s: Any, t: Any, p: Any, g: Any, squares: Any, *others: Any) -> list[Step]:
        *kept, alpha, rest, epsilon, rate, rest_of_p, damping = others
        steps: list[Step] = [
            (_multiply, g, g, s), (_multiply, s, rest, s), (_multiply, squares, alpha, squares),
            (_add, squares, s, squares),
        ]
        spread = squares
        if centered:
            mean, spread = kept[0], t
            steps += [
                (_multiply, g, rest, s), (_multiply, mean, alpha, mean), (_add, mean, s, mean),
                (_multiply, mean, mean, t), (_subtract, squares, t, t), (partial(np.maximum, t, 0.0, out=t),),
            ]
        steps += [(_sqrt, spread, s), (_add, s, epsilon, s), (_divide, g, s, s)]
        if momentum:
            velocity = kept[-1]
            steps += [(_multiply, velocity, damping, velocity), (_add, velocity, s, velocity)]
            steps += [(_multiply, velocity, rate, s)]
        else:
            steps += [(_multiply, s, rate, s)]
        return [*steps, *_kept(p, rest_of_p), (_subtract, p, s, p)]

    def lower(
        count: Any, rate: Any, p: Any, g: Any, squares: Any, *kept: Any,
        alpha: float, epsilon: float, decay: float, **damping: float,
    ) -> Any:
        del count
        squares = squares * alpha + g * g * (1 - alpha)
        after: list[Any] = []
        spread = squares
        if centered:
            mean = kept[0] * alpha + g * (1 - alpha)
            spread = jnp.maximum(squares - mean * mean, 0.0)
            after.append(mean)
        change = g / (jnp.sqrt(spread) + epsilon)
        if momentum:
            change = kept[-1] * damping["momentum"] + change
            after.append(change)
        return _decayed(p, rate, decay) - change * rate, squares, *after

    name = "rmsprop" + "_centered" * centered + "_momentum" * momentum
    slots = ("squares", *("mean",) * centered, *("velocity",) * momentum)
    more = {"momentum": 0.9} if momentum else {}
    return make_rule(
        name, slots=slots, numbers=_rmsprop_numbers, host=host, lower=lower, operations=9 + 5 * centered + 2 * momentum,
        settings=({"alpha": 0.99, "epsilon": 1e-8, "decay": 0.0, **more},
                  {"alpha": 0.9, "epsilon": 1e-6, "decay": 0.1, **more}),
    )


RMSPROP = {
    (momentum, centered): _rmsprop_rule(momentum=momentum, centered=centered)
    for momentum in (False, True)
    for centered in (False, True)
}
"""The rules of RMSprop by ``(momentum, centered)``."""


def _adagrad_numbers(step: int, rate: float, *, epsilon: float, decay: float) -> tuple[float, ...]:
    del step
    return epsilon, rate, 1.0 - rate * decay


def _adagrad_host(
    s: Any, t: Any, p: Any, g: Any, squares: Any, epsilon: Any, rate: Any, kept: Any
) -> list[Step]:
    del t
    return [
        (_multiply, g, g, s), (_add, squares, s, squares),
        (_sqrt, squares, s), (_add, s, epsilon, s), (_divide, g, s, s), (_multiply, s, rate, s),
        *_kept(p, kept), (_subtract, p, s, p),
    ]


def _adagrad_lower(count: Any, rate: Any, p: Any, g: Any, squares: Any, *, epsilon: float, decay: float) -> Any:
    del count
    squares = squares + g * g
    return _decayed(p, rate, decay) - g / (jnp.sqrt(squares) + epsilon) * rate, squares


ADAGRAD = make_rule(
    "adagrad", slots=("squares",), numbers=_adagrad_numbers, host=_adagrad_host, lower=_adagrad_lower, operations=7,
    settings=({"epsilon": 1e-10, "decay": 0.0}, {"epsilon": 1e-6, "decay": 0.1}),
)


# -- others -------------------------------------------------------------------------------------------------------


def _adadelta_numbers(step: int, rate: float, *, rho: float, epsilon: float, decay: float) -> tuple[float, ...]:
    del step
    return rho, 1 - rho, epsilon, rate, 1.0 - rate * decay


def _adadelta_host(
    s: Any, t: Any, p: Any, g: Any, squares: Any, changes: Any,
    rho: Any, rest: Any, epsilon: Any, rate: Any, kept: Any,
) -> list[Step]:
    return [
        (_multiply, g, g, s), (_multiply, s, rest, s), (_multiply, squares, rho, squares), (_add, squares, s, squares),
        (_add, changes, epsilon, t), (_add, squares, epsilon, s), (_divide, t, s, t), (_sqrt, t, t),
        (_multiply, t, g, t),
        (_multiply, t, t, s), (_multiply, s, rest, s), (_multiply, changes, rho, changes), (_add, changes, s, changes),
        (_multiply, t, rate, t), *_kept(p, kept), (_subtract, p, t, p),
    ]


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
)


def _lion_numbers(step: int, rate: float, *, beta1: float, beta2: float, decay: float) -> tuple[float, ...]:
    del step
    return beta1, 1 - beta1, beta2, 1 - beta2, rate, 1.0 - rate * decay


def _lion_host(
    s: Any, t: Any, p: Any, g: Any, m: Any, beta1: Any, rest1: Any, beta2: Any, rest2: Any, rate: Any, kept: Any
) -> list[Step]:
    return [
        (_multiply, g, rest1, s), (_multiply, m, beta1, t), (_add, s, t, s), (np.sign, s, s), (_multiply, s, rate, s),
        *_kept(p, kept), (_subtract, p, s, p),
        (_multiply, g, rest2, s), (_multiply, m, beta2, m), (_add, m, s, m),
    ]


def _lion_lower(
    count: Any, rate: Any, p: Any, g: Any, m: Any, *, beta1: float, beta2: float, decay: float
) -> Any:
    del count
    change = jnp.sign(m * beta1 + g * (1 - beta1))
    return _decayed(p, rate, decay) - change * rate, m * beta2 + g * (1 - beta2)


LION = make_rule(
    "lion", slots=("m",), numbers=_lion_numbers, host=_lion_host, lower=_lion_lower, operations=10,
    settings=({"beta1": 0.9, "beta2": 0.99, "decay": 0.0}, {"beta1": 0.95, "beta2": 0.98, "decay": 0.1}),
)
