"""The rules of optimizers that need a whole matrix at once; see `hybridflow.optim.rule`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.backend import products
from hybridflow.core.op import MultiplyAdds
from hybridflow.optim.rule import make_whole_rule, same_shapes

# -- Adafactor ----------------------------------------------------------------------------------------------------


def _shrunk(p: Any, rate: Any, decay: float) -> Any:
    return p * (1 - rate * decay) if decay else p


def _root_mean_square(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.mean(x * x))


def _changed(
    xp: Any, count: Any, rate: Any, p: Any, g: Any, spread: Any,
    *, smallest: Any, epsilon: float, threshold: float, decay: float,
) -> Any:
    """Return the updated parameter, given a running mean of the gradient's squares."""
    step = xp.maximum(_root_mean_square(xp, p), epsilon) * xp.minimum(rate, 1 / xp.sqrt(count))
    change = g / xp.sqrt(xp.maximum(spread, smallest * smallest))
    change = change / xp.maximum(_root_mean_square(xp, change) / threshold, 1.0)
    return _shrunk(p, rate, decay) - step * change


def _smallest(epsilon1: float | None, p: Any) -> Any:
    return np.finfo(p.dtype).eps if epsilon1 is None else epsilon1


def _adafactor(
    xp: Any, count: Any, rate: Any, p: Any, g: Any, rows: Any, columns: Any,
    *, beta2_decay: float, epsilon1: float | None, epsilon2: float, threshold: float, decay: float,
) -> Any:
    new = count**beta2_decay
    squares = g * g
    rows = rows + (xp.mean(squares, axis=-1, keepdims=True) - rows) * new
    columns = columns + (xp.mean(squares, axis=-2, keepdims=True) - columns) * new
    smallest = _smallest(epsilon1, p)
    spread = rows * columns / xp.maximum(xp.mean(rows, axis=-2, keepdims=True), smallest)
    p = _changed(xp, count, rate, p, g, spread, smallest=smallest, epsilon=epsilon2, threshold=threshold, decay=decay)
    return p, rows, columns


def _adafactor_vector(
    xp: Any, count: Any, rate: Any, p: Any, g: Any, squares: Any,
    *, beta2_decay: float, epsilon1: float | None, epsilon2: float, threshold: float, decay: float,
) -> Any:
    squares = squares + (g * g - squares) * count**beta2_decay
    p = _changed(xp, count, rate, p, g, squares, smallest=_smallest(epsilon1, p), epsilon=epsilon2,
                 threshold=threshold, decay=decay)
    return p, squares


_ADAFACTOR = (
    {"beta2_decay": -0.8, "epsilon1": None, "epsilon2": 1e-3, "threshold": 1.0, "decay": 0.0},
    {"beta2_decay": -0.5, "epsilon1": 1e-6, "epsilon2": 1e-2, "threshold": 0.5, "decay": 0.1},
)


def _sides(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the means over the last axis, and over the one before."""
    return (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])


ADAFACTOR = make_whole_rule(
    "adafactor", slots=("rows", "columns"), shapes=_sides, formula=_adafactor,
    flops=lambda outputs, p, *others, **attrs: 14 * p.size,
    tried=((np.float32, (3, 4)), (np.float64, (2, 5, 3))), settings=_ADAFACTOR,
)
ADAFACTOR_VECTOR = make_whole_rule(
    "adafactor_vector", slots=("squares",), shapes=same_shapes(1), formula=_adafactor_vector,
    flops=lambda outputs, p, *others, **attrs: 13 * p.size,
    tried=((np.float32, (5,)), (np.float64, (4,))), settings=_ADAFACTOR,
)


# -- Muon ---------------------------------------------------------------------------------------------------------


def _orthogonal(xp: Any, x: Any, coefficients: tuple[float, float, float], rounds: int, epsilon: float) -> Any:
    """Bring the singular values of a matrix near 1: each round applies an odd polynomial of degree 5 to them."""
    a, b, c = coefficients
    product: Any = products.matmul if xp is np else partial(jnp.matmul, precision="highest")
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / xp.maximum(xp.sqrt(xp.sum(x * x)), epsilon)
    for _ in range(rounds):
        gram = product(x, x.T)
        x = a * x + product(b * gram + c * product(gram, gram), x)
    return x.T if tall else x


def _muon(
    xp: Any, count: Any, rate: Any, p: Any, g: Any, velocity: Any,
    *, momentum: float, nesterov: bool, coefficients: tuple[float, float, float], rounds: int, epsilon: float,
    scale: str, decay: float,
) -> Any:
    del count
    velocity = velocity + (g - velocity) * (1 - momentum)
    change = g + (velocity - g) * momentum if nesterov else velocity
    change = _orthogonal(xp, change, coefficients, rounds, epsilon)
    rows, columns = p.shape
    size = math.sqrt(max(1, rows / columns)) if scale == "original" else 0.2 * math.sqrt(max(rows, columns))
    return _shrunk(p, rate, decay) - rate * size * change, velocity


def _muon_macs(outputs: Any, p: Any, *others: Any, rounds: int, **attrs: Any) -> Any:
    del outputs, others, attrs
    rows, columns = p.shape
    short, long = (columns, rows) if rows > columns else (rows, columns)
    return rounds * (2 * short * short * long + short * short * short)


def _muon_others(outputs: Any, p: Any, *others: Any, rounds: int, **attrs: Any) -> Any:
    del outputs, others, attrs
    short = p.shape[1] if p.shape[0] > p.shape[1] else p.shape[0]
    return 8 * p.size + rounds * (3 * short * short + 2 * p.size)


MUON = make_whole_rule(
    "muon", slots=("velocity",), shapes=same_shapes(1), formula=_muon,
    flops=MultiplyAdds(_muon_macs, _muon_others),
    tried=((np.float32, (3, 4)), (np.float64, (4, 3))),
    settings=(
        {"momentum": 0.95, "nesterov": True, "coefficients": (3.4445, -4.775, 2.0315), "rounds": 5, "epsilon": 1e-7,
         "scale": "original", "decay": 0.1},
        {"momentum": 0.9, "nesterov": False, "coefficients": (2.0, -1.5, 0.5), "rounds": 2, "epsilon": 1e-7,
         "scale": "adam", "decay": 0.0},
    ),
)
