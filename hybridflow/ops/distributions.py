"""The operations behind the further distributions of `hf.random`; each takes a generator's state, as in `draws`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.backend.host import subnormals_flushed
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, float64, int32, kind_of, uint32, uint64
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, Stops, op
from hybridflow.ops.blocks import drawn, each_for_itself, mapped, parts, rows_of
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_lowered,
    broadcast_shapes,
    make_spec,
    no_flops,
    normals,
)
from hybridflow.ops.draws import (
    inverse_normal,
    open_unit,
    require_state,
    state_sample,
    symmetric,
    uncontracted,
    word_of,
    working_dtype,
)
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import hermitian_part
from hybridflow.ops.onnx import DRAWS
from hybridflow.ops.padding_draws import drawn_by_position
from hybridflow.ops.sizes import Shape
from hybridflow.ops.special.incomplete import quantile_slope
from hybridflow.ops.threefry import STATE_WORDS, key_of, positions, random_bits, threefry


def _infer(name: str, ends: int = 0) -> Callable[..., TensorSpec]:
    """Return the shape rule of draws whose parameters, without their last `ends` axes, broadcast to the shape."""

    def infer(state: TensorSpec, *others: TensorSpec, shape: Shape, dtype: Any, **attrs: Any) -> TensorSpec:
        del attrs
        require_state(name, state)
        batches = [other.shape[: len(other.shape) - ends] for other in others]
        met = broadcast_shapes(name, tuple(shape), *batches)
        if met != tuple(shape):
            raise ShapeError(f"{name}: parameters of shape {met} do not fit draws of shape {tuple(shape)}",
                             hint="Ask for the shape in which the parameters broadcast.")
        return make_spec(tuple(shape) + (others[0].shape[-ends:] if ends else ()), dtype)

    return infer


def integer_dtype(name: str, dtype: Any) -> Any:
    """Return a dtype that must be an integer.

    Raises:
        DTypeError: another kind of dtype.
    """
    checked = as_dtype(dtype)
    if kind_of(checked) not in ("int", "uint"):
        raise DTypeError(f"{name}: draws integers, not {checked}", hint="Pass dtype=hf.int32, for example.")
    return checked


# -- shapes of one family by location and scale -------------------------------------------------------------------


def _exponential(bits: Any, working: Any) -> Any:
    u = open_unit(bits, working)
    return lax.abs(lax.log(u))


def _gumbel(bits: Any, working: Any) -> Any:
    inner = lax.log(lax.abs(lax.log(open_unit(bits, working))))
    return lax.select(lax.lt(inner, lax.full_like(inner, 0)), lax.abs(inner), lax.neg(lax.abs(inner)))


def _laplace(bits: Any, working: Any) -> Any:
    u = symmetric(bits, working)
    size = lax.abs(lax.log1p(lax.neg(lax.abs(u))))
    return lax.select(lax.lt(u, lax.full_like(u, 0)), lax.neg(size), size)


def _logistic(bits: Any, working: Any) -> Any:
    u = open_unit(bits, working)
    return lax.sub(lax.log(u), lax.log1p(lax.neg(u)))


def _cauchy(bits: Any, working: Any) -> Any:
    u = symmetric(bits, working)
    size = lax.abs(lax.tan(lax.mul(u, lax.full_like(u, math.pi / 2))))
    return lax.select(lax.lt(u, lax.full_like(u, 0)), lax.neg(size), size)


# Each ends in a choice of signs or a magnitude, so that no product is left to be contracted with what comes next.
_STANDARD = {
    "exponential": _exponential, "gumbel": _gumbel, "laplace": _laplace, "logistic": _logistic, "cauchy": _cauchy,
}


def _standard_lower(state: Any, *, kind: str, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    drawn = _STANDARD[kind](random_bits(state, shape, word_of(dtype)), working)
    return lax.convert_element_type(drawn, dtype)


def _standard_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), "gumbel", (5,), np.dtype("float32")))
    yield Sample((state_sample(rng), "laplace", (2, 3), np.dtype("float64")))
    yield Bad((state_sample(rng)[:3], "laplace", (3,), np.dtype("float32")), error=ShapeError, text="u32[3]")


@op(
    kernel=each_for_itself(_standard_lower),
    lower=_standard_lower,
    infer=_infer("random"),
    vjp=Stops("a draw does not depend on its generator's state in a differentiable way"),
    flops=no_flops,
    samples=_standard_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_standard(state: TensorLike, kind: str, shape: Shape, dtype: Any) -> Tensor:
    """Draw from the standard member of a family of distributions that have a location and a scale."""
    return bind(random_standard.op, (as_tensor(state),), {"kind": kind, "shape": shape, "dtype": dtype})


# -- positive -----------------------------------------------------------------------------------------------------


def _lognormal_lower(state: Any, mean: Any, std: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    z = inverse_normal(symmetric(random_bits(state, shape, word_of(dtype)), working))
    center, spread = (broadcast_lowered(lax.convert_element_type(one, working), shape) for one in (mean, std))
    return lax.convert_element_type(lax.exp(lax.add(uncontracted(lax.mul(z, spread), z), center)), dtype)


def _two_samples(rng: np.random.Generator) -> Any:
    state = state_sample(rng)
    yield Sample((state, rng.random(3, np.float32), np.asarray(0.5, np.float32), (3,), np.dtype("float32")), {}, False)
    yield Bad(
        (state, normals(rng, 2, 3), normals(rng), (3,), np.dtype("float32")), error=ShapeError, text="do not fit draws"
    )


@op(
    kernel=each_for_itself(_lognormal_lower),
    lower=_lognormal_lower,
    infer=_infer("lognormal"),
    vjp=RuleFromLowering("random_lognormal"),
    saves=Saves(x="all"),
    samples=_two_samples,
    traits=("random",),
    ulp=8,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_lognormal(state: TensorLike, mean: TensorLike, std: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw numbers whose logarithm is normally distributed."""
    inputs = (as_tensor(state), as_tensor(mean), as_tensor(std))
    return bind(random_lognormal.op, inputs, {"shape": shape, "dtype": dtype})


def _gamma_lower(state: Any, concentration: Any, scale: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    full, spread = (broadcast_lowered(lax.convert_element_type(x, working), shape) for x in (concentration, scale))
    # The magnitude keeps the product from being contracted with what comes next.
    return lax.convert_element_type(lax.abs(lax.mul(lax.exp(log_gamma_draw(state, full)), spread)), dtype)


def _gamma_samples(rng: np.random.Generator) -> Any:
    state = state_sample(rng)
    one = np.asarray(1.0, np.float32)
    yield Sample((state, np.asarray([0.1, 1.0, 30.0], np.float32), one, (3,), np.dtype("float32")), gradient=False)
    yield Bad((state, normals(rng, 2, 3), one, (3,), np.dtype("float32")), error=ShapeError, text="do not fit draws")


@op(
    kernel=each_for_itself(_gamma_lower),
    lower=_gamma_lower,
    infer=_infer("gamma"),
    vjp=RuleFromLowering("random_gamma"),
    saves=Saves(x="all"),
    samples=_gamma_samples,
    traits=("random",),
    ulp=64,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_gamma(
    state: TensorLike, concentration: TensorLike, scale: TensorLike, shape: Shape, dtype: Any
) -> Tensor:
    """Draw from the gamma distribution, with the implicit gradient by the concentration.

    Reference:
        Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients", 2018.
    """
    inputs = (as_tensor(state), as_tensor(concentration), as_tensor(scale))
    return bind(random_gamma.op, inputs, {"shape": shape, "dtype": dtype})


def _dirichlet_lower(state: Any, concentration: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    full = (*shape, concentration.shape[-1])
    alpha = broadcast_lowered(lax.convert_element_type(concentration, working), full)
    # By logarithms, since draws of a small concentration underflow.
    logs = log_gamma_draw(state, alpha)
    weights = _exponentials(logs - lax.stop_gradient(jnp.max(logs, axis=-1, keepdims=True)))
    return lax.convert_element_type(_shares(jnp, weights), dtype)


def _shares(xp: Any, weights: Any) -> Any:
    """Return weights times the inverse of their sum, as XLA computes them, with subnormal shares flushed to 0."""
    shares = weights * (1 / halved_sum(xp, weights))[..., None]
    return xp.where(shares < np.finfo(np.dtype(weights.dtype)).tiny, np.zeros((), weights.dtype), shares)


def _log_gamma(state: Any, alpha: Any, *, shape: Shape, working: Any) -> Any:
    return log_gamma_draw(state, broadcast_lowered(lax.convert_element_type(alpha, working), shape))


def _exponentials(x: Any) -> Any:
    return lax.abs(lax.exp(x))


def _dirichlet_kernel(state: Any, concentration: Any, *, shape: Shape, dtype: Any) -> Any:
    _require_some(concentration)
    classes = concentration.shape[-1]
    rows = rows_of(concentration, shape)
    result = np.empty(rows.shape, dtype)
    for part in parts(len(rows), classes):
        alpha = rows[part]
        first, working = part.start * classes, working_dtype(dtype)
        logs = drawn(_log_gamma, state, alpha, shape=alpha.shape, first=first, working=working)
        weights = mapped(_exponentials, logs - np.max(logs, axis=-1, keepdims=True))
        result[part] = _shares(np, weights)
    return result.reshape(*shape, classes)


def _require_some(concentration: Any) -> None:
    if not concentration.shape or concentration.shape[-1] == 0:
        raise ShapeError("dirichlet: concentrations need a last axis of at least one class", got=str(concentration))


def _dirichlet_infer(state: TensorSpec, concentration: TensorSpec, *, shape: Shape, dtype: Any) -> TensorSpec:
    _require_some(concentration)
    return _infer("dirichlet", 1)(state, concentration, shape=shape, dtype=dtype)


def _dirichlet_samples(rng: np.random.Generator) -> Any:
    state = state_sample(rng)
    yield Sample((state, np.asarray([0.01, 1.0, 30.0], np.float32), (2,), np.dtype("float32")), gradient=False)
    yield Bad((state, normals(rng), (3,), np.dtype("float32")), error=ShapeError, text="at least one class")
    yield Bad((state, normals(rng, 2, 3), (3,), np.dtype("float32")), error=ShapeError, text="size 3 against 2")


@op(
    kernel=_dirichlet_kernel,
    lower=_dirichlet_lower,
    infer=_dirichlet_infer,
    vjp=RuleFromLowering("random_dirichlet"),
    saves=Saves(x="all"),
    samples=_dirichlet_samples,
    traits=("random",),
    ulp=64,
    onnx=DRAWS,
)
def random_dirichlet(state: TensorLike, concentration: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw probabilities from the Dirichlet distribution."""
    inputs = (as_tensor(state), as_tensor(concentration))
    return bind(random_dirichlet.op, inputs, {"shape": shape, "dtype": dtype})


def _beta_lower(state: Any, a: Any, b: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    first, second = (broadcast_lowered(lax.convert_element_type(one, working), shape) for one in (a, b))
    logs = log_gamma_draw(state, jnp.stack([first, second]))
    return _share(logs[0] - logs[1], dtype=dtype)


def _share(logit: Any, *, dtype: Any) -> Any:
    return lax.convert_element_type(lax.logistic(logit), dtype)


def _beta_kernel(state: Any, a: Any, b: Any, *, shape: Shape, dtype: Any) -> Any:
    count, working = math.prod(shape), working_dtype(dtype)
    logs = [
        drawn(_log_gamma, state, one, shape=shape, first=first, working=working) for one, first in ((a, 0), (b, count))
    ]
    return mapped(_share, logs[0] - logs[1], dtype=dtype)


@op(
    kernel=_beta_kernel,
    lower=_beta_lower,
    infer=_infer("beta"),
    vjp=RuleFromLowering("random_beta"),
    saves=Saves(x="all"),
    samples=_two_samples,
    traits=("random",),
    ulp=64,
    onnx=DRAWS,
)
def random_beta(state: TensorLike, a: TensorLike, b: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw from the beta distribution, as a share of two gamma draws."""
    inputs = (as_tensor(state), as_tensor(a), as_tensor(b))
    return bind(random_beta.op, inputs, {"shape": shape, "dtype": dtype})


def _multivariate_lower(state: Any, mean: Any, covariance: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    size = mean.shape[-1]
    z = _normals(state, shape=(*shape, size), working=working)
    root = lax.linalg.cholesky(hermitian_part(lax.convert_element_type(covariance, working)), symmetrize_input=False)
    z = z[..., None, :]
    spread = halved_sum(jnp, uncontracted(root * z, z))
    return lax.convert_element_type(lax.convert_element_type(mean, working) + spread, dtype)


@subnormals_flushed()
def _multivariate_kernel(state: Any, mean: Any, covariance: Any, *, shape: Shape, dtype: Any) -> Any:
    size, working = _size_of(mean, covariance), working_dtype(dtype)
    result = np.empty((math.prod(shape), size), dtype)
    roots = rows_of(lapack.cholesky(hermitian_part(covariance.astype(working))), shape, 2)
    means = rows_of(mean.astype(working), shape)
    for part in parts(len(result), size * size):
        first, full = part.start * size, means[part].shape
        z = drawn(_normals, state, shape=full, first=first, working=working)
        result[part] = means[part] + halved_sum(np, roots[part] * z[..., None, :])
    return result.reshape(*shape, size)


def _normals(state: Any, *, shape: Shape, working: Any) -> Any:
    return inverse_normal(symmetric(random_bits(state, shape, word_of(working)), working))


def _size_of(mean: Any, covariance: Any) -> int:
    sizes = (*mean.shape[-1:], *covariance.shape[-2:])
    if len(sizes) != 3 or any(size != sizes[0] for size in sizes):
        raise ShapeError("multivariate_normal: the covariance must be square, of the size of the mean",
                         got=f"multivariate_normal({mean}, {covariance})")
    return sizes[0]


def _multivariate_infer(
    state: TensorSpec, mean: TensorSpec, covariance: TensorSpec, *, shape: Shape, dtype: Any
) -> TensorSpec:
    _size_of(mean, covariance)
    flat = make_spec(covariance.shape[:-1], covariance.dtype)
    return _infer("multivariate_normal", 1)(state, mean, flat, shape=shape, dtype=dtype)


def _multivariate_samples(rng: np.random.Generator) -> Any:
    state, float32 = state_sample(rng), np.dtype("float32")
    covariance = np.asarray([[2.0, 0.5], [0.5, 1.0]], np.float32)
    yield Sample((state, normals(rng, 2), covariance, (3,), float32), gradient=False)
    yield Bad((state, normals(rng, 3), covariance, (3,), float32), error=ShapeError, text="must be square")


@op(
    kernel=lapack.or_lowering(_multivariate_kernel),
    lower=_multivariate_lower,
    infer=_multivariate_infer,
    vjp=RuleFromLowering("random_multivariate_normal"),
    saves=Saves(x="all"),
    samples=_multivariate_samples,
    traits=("random",),
    ulp=64,
    onnx=DRAWS,
)
def random_multivariate_normal(
    state: TensorLike, mean: TensorLike, covariance: TensorLike, shape: Shape, dtype: Any
) -> Tensor:
    """Draw vectors of a mean and covariance."""
    inputs = (as_tensor(state), as_tensor(mean), as_tensor(covariance))
    return bind(random_multivariate_normal.op, inputs, {"shape": shape, "dtype": dtype})


# -- counts -------------------------------------------------------------------------------------------------------


def _poisson_lower(state: Any, rate: Any, *, shape: Shape, dtype: Any) -> Any:
    full = broadcast_lowered(lax.convert_element_type(rate, working_dtype(rate.dtype)), shape)
    return lax.convert_element_type(poisson_draw(state, full), dtype)


def _count_samples(rng: np.random.Generator) -> Any:
    state, int32 = state_sample(rng), np.dtype("int32")
    yield Sample((state, np.asarray([0.0, 0.3, 0.9], np.float32), (2, 3), int32))
    yield Bad((state, normals(rng, 2, 3), (3,), int32), error=ShapeError, text="do not fit draws")
    yield Bad((state, normals(rng, 3), (3,), "float32"), error=DTypeError, text="draws integers, not float32")


@op(
    kernel=each_for_itself(_poisson_lower),
    lower=_poisson_lower,
    infer=_infer("poisson"),
    vjp=Stops("a count has no gradient"),
    flops=no_flops,
    samples=_count_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_poisson(state: TensorLike, rate: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw how many events happen at a rate."""
    attrs = {"shape": shape, "dtype": integer_dtype("poisson", dtype)}
    return bind(random_poisson.op, (as_tensor(state), as_tensor(rate)), attrs)


def _binomial_lower(state: Any, trials: Any, p: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(p.dtype)
    n, q = (broadcast_lowered(lax.convert_element_type(one, working), shape) for one in (trials, p))
    return lax.convert_element_type(binomial_draw(state, n, q), dtype)


def _binomial_samples(rng: np.random.Generator) -> Any:
    state, int32 = state_sample(rng), np.dtype("int32")
    yield Sample((state, np.asarray([0, 5, 400], np.int32), np.asarray(0.3, np.float32), (3,), int32))
    yield Bad(
        (state, np.asarray([5, 4], np.int32), normals(rng, 3), (3,), int32), error=ShapeError, text="against"
    )


@op(
    kernel=each_for_itself(_binomial_lower),
    lower=_binomial_lower,
    infer=_infer("binomial"),
    vjp=Stops("a count has no gradient"),
    flops=no_flops,
    samples=_binomial_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_binomial(state: TensorLike, trials: TensorLike, p: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw how many of some trials succeed."""
    attrs = {"shape": shape, "dtype": integer_dtype("binomial", dtype)}
    return bind(random_binomial.op, (as_tensor(state), as_tensor(trials), as_tensor(p)), attrs)


def _geometric_lower(state: Any, p: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(p.dtype)
    u = open_unit(random_bits(state, shape, word_of(working)), working)
    q = broadcast_lowered(unfolded(state, lax.convert_element_type(p, working)), shape)
    trials = lax.ceil(lax.div(lax.log(u), lax.log1p(lax.neg(q))))
    most = np.asarray(min(np.iinfo(dtype).max, 2**31 - 1 if working.itemsize == 4 else 2**62), working)
    most = np.nextafter(most, np.asarray(0, working))
    return lax.convert_element_type(lax.clamp(np.asarray(1, working), trials, most), dtype)


@op(
    kernel=each_for_itself(_geometric_lower),
    lower=_geometric_lower,
    infer=_infer("geometric"),
    vjp=Stops("a count has no gradient"),
    flops=no_flops,
    samples=_count_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_geometric(state: TensorLike, p: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw how many trials it takes until one succeeds."""
    attrs = {"shape": shape, "dtype": integer_dtype("geometric", dtype)}
    return bind(random_geometric.op, (as_tensor(state), as_tensor(p)), attrs)


# -- choice -------------------------------------------------------------------------------------------------------


def _choice_lower(state: Any, weights: Any, *, shape: Shape, replace: bool) -> Any:
    working = working_dtype(weights.dtype)
    weights = unfolded(state, lax.convert_element_type(weights, working))
    if replace:
        return _places(jnp, _units(state, shape=shape, working=working), lax.associative_scan(lax.add, weights))
    order = jnp.argsort(_keys(state, weights, shape=weights.shape), stable=True)
    return order[: math.prod(shape)].reshape(shape).astype(int32)


def _choice_kernel(state: Any, weights: Any, *, shape: Shape, replace: bool) -> Any:
    _require_choice(weights, shape, replace)
    working = working_dtype(weights.dtype)
    weights = weights.astype(working, copy=False)
    weights = np.where(np.abs(weights) < np.finfo(working).tiny, working.type(0), weights)  # XLA flushes those
    if replace:
        return _places(np, drawn(_units, state, shape=shape, working=working), scanned_sum(weights))
    order = np.argsort(drawn(_keys, state, weights, shape=weights.shape), kind="stable")
    return order[: math.prod(shape)].reshape(shape).astype(int32)


def _units(state: Any, *, shape: Shape, working: Any) -> Any:
    return open_unit(random_bits(state, shape, word_of(working)), working)


def _places(xp: Any, unit: Any, summed: Any) -> Any:
    """Return the index of the first cumulative weight above a fraction of the last one."""
    last = summed[-1]
    return count_not_above(xp, summed, xp.minimum(unit * last, xp.nextafter(last, xp.zeros_like(last))))


def _keys(state: Any, weights: Any, *, shape: Shape) -> Any:
    """Return numbers whose ascending order is the order of successive draws.

    That order is the descending one of the log-weights plus Gumbel noise.
    """
    noise = _gumbel(random_bits(state, shape, word_of(weights.dtype)), weights.dtype)
    return lax.neg(noise + lax.log(weights))


def _choice_infer(state: TensorSpec, weights: TensorSpec, *, shape: Shape, replace: bool) -> TensorSpec:
    require_state("choice", state)
    _require_choice(weights, shape, replace)
    return make_spec(tuple(shape), int32)


def _require_choice(weights: Any, shape: Shape, replace: bool) -> None:
    if len(weights.shape) != 1 or weights.shape[0] == 0:
        raise ShapeError("choice: weights need one axis of at least one element", got=f"choice({weights})")
    if not replace and math.prod(shape) > weights.shape[0]:
        raise ArgumentError(f"choice: {math.prod(shape)} of {weights.shape[0]} elements without replacement",
                            hint="Draw fewer, or with replace=True.")


def _choice_samples(rng: np.random.Generator) -> Any:
    state, weights = state_sample(rng), np.asarray([0.0, 2.0, 1.0], np.float32)
    yield Sample((state, weights, (4, 2), True))
    yield Sample((state, weights, (2,), False))
    yield Bad((state, weights, (4,), False), error=ArgumentError, text="4 of 3 elements")
    yield Bad((state, normals(rng), (4,), True), error=ShapeError, text="one axis of at least one")


@op(
    kernel=_choice_kernel,
    lower=_choice_lower,
    infer=_choice_infer,
    vjp=Stops("an index has no gradient"),
    flops=no_flops,
    samples=_choice_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
)
def random_choice(state: TensorLike, weights: TensorLike, shape: Shape, replace: bool) -> Tensor:
    """Draw indices with probabilities in proportion to weights."""
    return bind(random_choice.op, (as_tensor(state), as_tensor(weights)), {"shape": shape, "replace": replace})


# -- sums with a fixed order of additions, and a written-out search, so that NumPy and XLA give the same bits ---------


def halved_sum(xp: Any, x: Any) -> Any:
    """Sum along the last axis, which is not empty: add its second half to its first half until one element is left.

    Args:
        xp: `numpy`, or `jax.numpy` in a lowering.
        x: ``(..., n)``.
    """
    while x.shape[-1] > 1:
        half, odd = divmod(x.shape[-1], 2)
        added = x[..., :half] + x[..., half + odd :]
        x = xp.concatenate([added, x[..., half : half + 1]], axis=-1) if odd else added
    return x[..., 0]


def scanned_sum(x: Any) -> Any:
    """Return the running sums of a NumPy array, with the additions in the order of `jax.lax.associative_scan`."""
    if x.size < 2:
        return x
    sums = np.empty_like(x)
    sums[1::2] = scanned_sum(x[:-1:2] + x[1::2])
    sums[0] = x[0]
    sums[2::2] = sums[1:-1:2] + x[2::2]
    return sums


def count_not_above(xp: Any, ascending: Any, points: Any) -> Any:
    """Return, for each point, how many of the ascending numbers are at most the point, as int32; 0 for NaN.

    There must be at least one number. The search is written out so that both modes give the same result even for
    numbers that do not ascend.
    """
    size = ascending.shape[0]
    count = xp.zeros(points.shape, np.int32)
    for bit in reversed(range(size.bit_length())):
        more = count + np.int32(1 << bit)
        inside = xp.minimum(more, np.int32(size))
        count = xp.where((more == inside) & (ascending[inside - 1] <= points), more, count)
    return count


# -- rejection samplers; every element has its own counters, so its draw does not depend on other elements ------------

Bits = tuple[Any, Any]


def _tries(state: Any, shape: tuple[int, ...], working: Any) -> Callable[[Any], Bits]:
    """Return a function that maps the number of a try to two arrays of random bits."""
    key, position = key_of(state), positions(state, shape)

    def bits(number: Any) -> Bits:
        number = lax.convert_element_type(number, uint32)
        if working != float64:
            return threefry(key, (lax.broadcast(number, shape), position))
        pairs = [threefry(key, (lax.broadcast(number * np.uint32(2) + np.uint32(i), shape), position)) for i in (0, 1)]
        first, second = (
            lax.bitwise_or(
                lax.shift_left(lax.convert_element_type(high, uint64), lax.full(shape, 32, uint64)),
                lax.convert_element_type(low, uint64),
            )
            for high, low in pairs
        )
        return first, second

    return bits


def unfolded(state: Any, parameter: Any) -> Any:
    """Return a parameter in a form that XLA does not fold at compile time, where its roundings differ.

    A parameter may be a constant in a compiled function and an input in eager mode; both must give the same draws.
    The result depends on the generator's counter, and no compiler knows that the counter never reaches its end.
    """
    last = lax.eq(lax.index_in_dim(state, STATE_WORDS - 1, keepdims=False), np.uint32(2**32 - 1))
    return jnp.where(last, jnp.zeros_like(parameter), parameter)


def _until_accepted(start: Any, wanted: Any, propose: Callable[[Any], tuple[Any, Any]]) -> Any:
    """Return the first accepted proposal for every wanted element, and the start value for the others."""

    def step(carry: Any) -> Any:
        number, missing, value = carry
        proposed, accepted = propose(number)
        taken = missing & accepted
        return number + np.uint32(1), missing & ~accepted, jnp.where(taken, proposed, value)

    carry = (jnp.zeros((), uint32), wanted, start)
    return lax.while_loop(lambda carry: jnp.any(carry[1]), step, carry)[2]


def log_gamma_draw(state: Any, concentration: Any) -> Any:
    """Draw the logarithm of gamma-distributed numbers; JAX differentiates it implicitly, to any order.

    Args:
        state: a generator's state.
        concentration: float32 or float64; NaN where it is not positive and finite.

    Reference:
        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; Figurnov, Mohamed and Mnih,
        "Implicit reparameterization gradients", 2018.
    """

    @jax.custom_jvp
    def draw(alpha: Any) -> Any:
        return _log_of_gamma(state, alpha)

    @draw.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        (alpha,), (tangent,) = primals, tangents
        log = draw(alpha)
        return log, tangent * quantile_slope(alpha, log)

    return draw(concentration)


def _log_of_gamma(state: Any, alpha: Any) -> Any:
    working, shape = alpha.dtype, alpha.shape
    alpha = unfolded(state, alpha)
    tries = _tries(state, shape, working)
    valid = (alpha > 0) & (alpha < np.inf)
    # For alpha below 1, draw with alpha + 1 and scale by a power of a uniform number.
    d = jnp.where(alpha < 1, alpha + 1, alpha) - np.asarray(1 / 3, working)
    c = 1 / lax.sqrt(9 * d)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        x, u = inverse_normal(symmetric(first, working)), open_unit(second, working)
        v = (1 + c * x) ** 3
        safe = jnp.where(v > 0, v, 1)
        return d * v, (v > 0) & (lax.log(u) < 0.5 * x * x + d - d * safe + d * lax.log(safe))

    value = _until_accepted(jnp.full(shape, np.nan, working), valid, propose)
    # Take magnitudes and choose signs, so that XLA contracts no product inside a logarithm with the sum.
    boost = lax.abs(lax.log(open_unit(tries(jnp.zeros((), uint32))[0], working))) / alpha
    size = lax.abs(lax.log(value))
    return jnp.where(value < 1, -size, size) - jnp.where(alpha < 1, boost, 0)


_LARGE_RATE = 10.0


def poisson_draw(state: Any, rate: Any) -> Any:
    """Draw Poisson-distributed counts, as floats: by inversion for small rates, else by transformed rejection.

    Args:
        state: a generator's state.
        rate: float32 or float64; NaN where it is negative or not finite.

    Reference:
        Hormann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    working, shape = rate.dtype, rate.shape
    rate = unfolded(state, rate)
    tries = _tries(state, shape, working)
    valid = (rate >= 0) & (rate < np.inf)
    small = rate < _LARGE_RATE
    u = open_unit(tries(jnp.zeros((), uint32))[0], working)
    inverted = jnp.where(valid & small, rate, 0)
    counts = jnp.where(valid & small, _by_inversion(u, lax.exp(-inverted), lambda k: inverted / (k + 1)), np.nan)
    mu = jnp.where(valid & ~small, rate, _LARGE_RATE)
    b = 0.931 + 2.53 * lax.sqrt(mu)
    a = -0.059 + 0.02483 * b
    log_inverse = lax.log(1.1239 + 1.1328 / (b - 3.4))
    squeeze = 0.9277 - 3.6224 / (b - 2)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        centred, v = open_unit(first, working) - 0.5, open_unit(second, working)
        us = 0.5 - lax.abs(centred)
        k = lax.floor((2 * a / us + b) * centred + mu + 0.43)
        quick = (us >= 0.07) & (v <= squeeze)
        hopeless = (k < 0) | ((us < 0.013) & (v > us))
        exact = lax.log(v) + log_inverse - lax.log(a / (us * us) + b) <= _log_poisson(k, mu)
        return k, quick | (~hopeless & exact)

    return _until_accepted(counts, valid & ~small, propose)


def binomial_draw(state: Any, trials: Any, p: Any) -> Any:
    """Draw binomially distributed counts, as floats: by inversion for small means, else by transformed rejection.

    Args:
        state: a generator's state.
        trials: integers, as float32 or float64; NaN where they are negative or not finite.
        p: probabilities, of the same shape and dtype; NaN where they are outside 0 to 1.

    Reference:
        Hormann, "The generation of binomial random variates", 1993.
    """
    working, shape = p.dtype, p.shape
    tries = _tries(state, shape, working)
    n, p = unfolded(state, trials), unfolded(state, p)
    valid = (n >= 0) & (n < np.inf) & (p >= 0) & (p <= 1)
    rare = jnp.where(valid, jnp.minimum(p, 1 - p), 0)
    small = n * rare < _LARGE_RATE
    u = open_unit(tries(jnp.zeros((), uint32))[0], working)
    few = jnp.where(valid & small, n, 0)
    odds = rare / (1 - rare)
    inverted = _by_inversion(u, lax.exp(few * lax.log1p(-rare)), lambda k: (few - k) / (k + 1) * odds)
    counts = jnp.where(valid & small, inverted, np.nan)
    n_, q = jnp.where(valid & ~small, n, 40), jnp.where(valid & ~small, rare, 0.5)
    spread = lax.sqrt(n_ * q * (1 - q))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * q
    log_alpha = lax.log((2.83 + 5.1 / b) * spread)
    squeeze = 0.92 - 4.2 / b
    at_mode = _log_binomial(lax.floor((n_ + 1) * q), n_, q)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        centred, v = open_unit(first, working) - 0.5, open_unit(second, working)
        us = 0.5 - lax.abs(centred)
        k = lax.floor((2 * a / us + b) * centred + n_ * q + 0.5)
        inside = (k >= 0) & (k <= n_)
        quick = (us >= 0.07) & (v <= squeeze)
        height = _log_binomial(lax.clamp(jnp.zeros_like(k), k, n_), n_, q) - at_mode
        exact = lax.log(v) + log_alpha - lax.log(a / (us * us) + b) <= height
        return k, inside & (quick | exact)

    drawn = _until_accepted(counts, valid & ~small, propose)
    return jnp.where(p > 0.5, n - drawn, drawn)


def _deviance(k: Any, mean: Any) -> Any:
    """Return ``k log(mean / k) + k - mean`` for positive `k`, without the cancellation of its terms."""
    delta = (mean - k) / k
    return k * (lax.log1p(delta) - delta)


def _stirling(k: Any) -> Any:
    """Return the correction that Stirling's formula needs to give ``log(k!)``, for `k` from 1 on."""
    square = 1 / (k * k)
    return (1 / 12 - (1 / 360 - square / 1260) * square) / k


def _log_poisson(k: Any, mean: Any) -> Any:
    """Return the logarithm of the Poisson probability of `k`.

    Reference:
        Loader, "Fast and accurate computation of binomial probabilities", 2000.
    """
    some = jnp.maximum(k, 1)
    logarithm = _deviance(some, mean) - 0.5 * lax.log(2 * math.pi * some) - _stirling(some)
    return jnp.where(k < 1, -mean, logarithm)


def _log_binomial(k: Any, n: Any, p: Any) -> Any:
    """Return the logarithm of the binomial probability of `k`; see `_log_poisson`."""
    some = lax.clamp(jnp.ones_like(k), k, n - 1)
    rest = n - some
    logarithm = _deviance(some, n * p) + _deviance(rest, n * (1 - p)) + 0.5 * lax.log(n / (2 * math.pi * some * rest))
    logarithm += _stirling(n) - _stirling(some) - _stirling(rest)
    return jnp.where(k < 1, n * lax.log1p(-p), jnp.where(k > n - 1, n * lax.log(p), logarithm))


def _by_inversion(u: Any, first: Any, ratio: Callable[[Any], Any]) -> Any:
    """Return the least counts whose distribution function reaches `u`.

    Args:
        u: uniform numbers.
        first: the probability of 0.
        ratio: a function of k that returns the probability of k + 1 divided by that of k.
    """
    most = 10 * math.ceil(_LARGE_RATE)  # far beyond any count that a uniform number reaches

    def step(carry: Any) -> Any:
        k, term, total = carry
        going = u > total
        term = jnp.where(going, term * ratio(k), term)
        return jnp.where(going, k + 1, k), term, jnp.where(going, total + term, total)

    def unfinished(carry: Any) -> Any:
        return jnp.any((u > carry[2]) & (carry[0] < most) & (carry[1] > 0))

    return lax.while_loop(unfinished, step, (jnp.zeros_like(u), first, first))[0]
