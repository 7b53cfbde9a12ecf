"""What the operations of `hf.special` share: SciPy's kernels, lowerings, gradient rules made from derivatives, a kind.

A kernel is SciPy's function; a lowering is jax's, or a formula of this package. Lowerings and gradient rules compute
float16 and bfloat16 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.core.errors import DTypeError
from hybridflow.core.op import Each, No, Saves
from hybridflow.ops.common import Bad, Sample, positives, unbroadcast
from hybridflow.ops.kinds import Kind
from hybridflow.ops.nn.common import lower_narrow, lower_wide, narrow, wide

Slope = Callable[..., Any]
"""A derivative by one input, ``(F, y, *xs, **attrs)``; a value that the operation does not save is its spec."""


def scipys(name: str) -> Callable[..., Any]:
    """Return the kernel of one operand that calls the function of `scipy.special` with a name."""
    return lambda x: by_scipy(name, x)


def by_scipy(name: str, *xs: Any) -> Any:
    """Call the function of `scipy.special` with a name."""
    from scipy import special  # slow to import, and most programs need none

    return np.asarray(getattr(special, name)(*xs), dtype=xs[0].dtype)


def widened(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that computes float16 and bfloat16 in float32."""

    def lowered(*xs: Any, **attrs: Any) -> Any:
        return lower_narrow(lower(*[lower_wide(x) for x in xs], **attrs), xs[0].dtype)

    return lowered


def jaxes(name: str) -> Callable[..., Any]:
    """Return the lowering that calls the function of `jax.scipy.special` with a name."""

    def lower(*xs: Any) -> Any:
        from jax.scipy import special

        return getattr(special, name)(*xs)

    return lower


def rule(saves: Saves, *slopes: Slope) -> Any:
    """Return the gradient rule of an operation from its derivative by each of its inputs."""

    def of(index: int, slope: Slope) -> Callable[..., Any]:
        def gradient(F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> Any:
            values = [wide(F, x) if saves.keeps(i) else x for i, x in enumerate(xs)]
            product = wide(F, g) * slope(F, wide(F, y) if saves.y else y, *values, **attrs)
            return unbroadcast(F, narrow(F, product, g.dtype), xs[index])

        return gradient

    rules = [of(index, slope) for index, slope in enumerate(slopes)]
    return Each(*rules) if len(rules) > 1 else lambda F, g, y, x, **attrs: (rules[0](F, g, y, x, **attrs),)


NO_OPERATOR = No("ONNX has no operator for it")


def row_samples(*draws: Callable[..., Any], more: Sequence[Sample | Bad] = ()) -> Callable[..., Any]:
    """Return samples of an elementwise operation, each operand drawn by its own function; the last ones broadcast.

    Gradients are checked for few of them: those of some lowerings take long to compile.
    """

    def samples(rng: np.random.Generator) -> Any:
        yield Sample(tuple([draw(rng, 3, 4) for draw in draws]), gradient=len(draws) == 1)
        yield Sample(tuple([draw(rng) for draw in draws]), gradient=False)
        yield Sample(tuple([draw(rng, 0, 2) for draw in draws]), gradient=False)
        yield Sample(tuple([draw(rng, 5, dtype=np.float64) for draw in draws]))
        yield Sample(tuple([draw(rng, 2, 3, dtype="bfloat16") for draw in draws]), gradient=False)
        if len(draws) > 1:
            operands = [draw(rng, *(3, 4)[index:]) for index, draw in enumerate(draws)]
            yield Sample(tuple(operands), gradient=len(draws) == 2)
        yield from more
        bad = np.array([1j], np.complex64)
        yield Bad((bad,) * len(draws), error=DTypeError, text="does not take complex64")

    return samples


def few_samples(*draws: Callable[..., Any]) -> Callable[..., Any]:
    """Return few samples, for derivatives, which take long to compile; their rule is that of the lowering."""

    def samples(rng: np.random.Generator) -> Any:
        for dtype in ("float32", "float64"):
            yield Sample(tuple([draw(rng, 3, dtype=dtype) for draw in draws]), gradient=False)

    return samples


special = Kind(("float",), samples=row_samples(positives))
"""Functions of one real float; those of more broadcast."""


def horner(coefficients: Sequence[float], x: Any) -> Any:
    """Return a polynomial, whose constant term comes first, at x: an array, a tensor or a jax value."""
    result: Any = coefficients[-1]
    for one in reversed(coefficients[:-1]):
        result = result * x + one
    return result


_ATANH = [2 / (2 * k + 3) for k in range(16)]


def log1p_less(xp: Any, t: Any, whole: Any = None) -> Any:
    """Return ``log(1 + t) - t`` without cancellation, in any namespace; `whole` is ``1 + t`` if known.

    Near 0 it is a series in ``r = t / (2 + t)``, since ``log(1 + t) = 2 atanh(r)`` and ``t - 2 r = t r``.
    """
    near = abs(t) < 0.6
    small, large = xp.where(near, t, 0), xp.where(near, 1, t)
    logarithm = xp.log1p(large) if whole is None else xp.log(xp.where(near, 1, whole))
    r = small / (2 + small)
    return xp.where(near, r * (r * r * horner(_ATANH, r * r) - small), logarithm - large).astype(t.dtype)


_EXP_REST = [1 / math.factorial(k) for k in range(2, 20)]


def expm1_less(t: Any) -> Any:
    """Return ``exp(t) - 1 - t`` of a jax value without cancellation."""
    near = abs(t) < 1
    small = jnp.where(near, t, 0)
    return jnp.where(near, small * small * horner(_EXP_REST, small), jnp.expm1(t) - t)
