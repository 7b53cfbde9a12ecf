"""The other distributions that generators draw from; the functions of `hf.random` document the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.core.dtypes import as_differentiable, float32, int32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.tensor import Tensor
from hybridflow.ops import discrete_draws, distributions, draws
from hybridflow.ops.common import (
    TensorLike,
    as_tensor,
    asarray,
    broadcast_shapes,
    cast_to,
    is_number,
    normalize_axis,
    truth,
)
from hybridflow.ops.creation import ones
from hybridflow.ops.indexing import take
from hybridflow.ops.sizes import count_elements, normalize_shape


def parameter(value: TensorLike, dtype: Any) -> Tensor:
    """Return a distribution's parameter as a tensor of a dtype."""
    if is_number(value):
        return asarray(value, dtype=dtype)
    tensor = as_tensor(value)
    return tensor if tensor.dtype == dtype else cast_to(tensor, dtype)


def shape_first(name: str, shape: Any, *others: Any) -> Any:
    """Return the shape, which comes before the distribution's parameters, and refuse what looks like a parameter.

    Raises:
        ArgumentTypeError: a number that looks like a parameter: other packages take the parameters first.
    """
    if isinstance(shape, float) or (is_number(shape) and any(isinstance(other, tuple) for other in others)):
        raise ArgumentTypeError(
            f"{name}: the shape comes first, and {shape!r} is given there", got=f"shape={shape!r}",
            hint=f"Give what is no shape by keyword: hf.random.{name}(shape, {_PARAMETERS.get(name, _USUAL)})."
        )
    return normalize_shape(name, shape)


_USUAL = "location=..., scale=..."
_PARAMETERS = {
    "normal": "mean=..., std=...", "truncated_normal": "mean=..., std=...", "lognormal": "mean=..., std=...",
    "uniform": "low=..., high=...",
    "exponential": "scale=...",
}


def _positive(name: str, what: str, value: Any, least: float = 0.0, *, open_end: bool = True) -> None:
    """Raise if a parameter is a number below, or at, its lower limit; tensors are not checked."""
    if is_number(value) and (value <= least if open_end else value < least):
        bound = f"greater than {least:g}" if open_end else f"at least {least:g}"
        raise ArgumentError(f"{name}: {what} {value} must be {bound}", got=f"{name}({what}={value})")


def _probability(name: str, value: Any, *, zero: bool = True) -> None:
    if is_number(value) and not (0 <= value <= 1 and (zero or value > 0)):
        raise ArgumentError(f"{name}: {value} is no probability", hint="Use a number from 0 to 1.")


def _full(name: str, shape: Any, *parameters: Tensor) -> Any:
    """Return the requested shape, or the one to which the parameters broadcast."""
    if shape is not None:
        return normalize_shape(name, shape)
    return broadcast_shapes(name, *[one.shape for one in parameters])


class Distributions:
    """The methods of generators that draw with the functions of `hybridflow.ops.distributions`."""

    def _draw(self, draw: Callable[..., Tensor], *args: Any) -> Tensor:
        raise NotImplementedError

    # -- location and scale -----------------------------------------------------------------------------------

    def _standard(
        self, kind: str, shape: Any, location: TensorLike, scale: TensorLike, dtype: Any
    ) -> Tensor:
        full = shape_first(kind, shape, location, scale, dtype)
        result_dtype = draws.float_dtype(kind, dtype)
        _positive(kind, "scale", scale, open_end=False)
        plain = is_number(location) and is_number(scale) and location == 0 and scale == 1
        if plain:
            return self._draw(distributions.random_standard, kind, full, result_dtype)
        center, spread = parameter(location, result_dtype), parameter(scale, result_dtype)
        full = broadcast_shapes(kind, full, center.shape, spread.shape)
        return draws.random_scaled(self._draw(distributions.random_standard, kind, full, result_dtype), center, spread)

    def exponential(self, shape: Any = (), scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
        """Draw waiting times; see `hf.random.exponential`."""
        return self._standard("exponential", shape, 0.0, scale, dtype)

    def gumbel(
        self, shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw from the Gumbel distribution; see `hf.random.gumbel`."""
        return self._standard("gumbel", shape, location, scale, dtype)

    def laplace(
        self, shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw from the Laplace distribution; see `hf.random.laplace`."""
        return self._standard("laplace", shape, location, scale, dtype)

    def logistic(
        self, shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw from the logistic distribution; see `hf.random.logistic`."""
        return self._standard("logistic", shape, location, scale, dtype)

    def cauchy(
        self, shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw from the Cauchy distribution; see `hf.random.cauchy`."""
        return self._standard("cauchy", shape, location, scale, dtype)

    # -- positive ---------------------------------------------------------------------------------------------

    def lognormal(
        self, shape: Any = None, mean: TensorLike = 0.0, std: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw numbers whose logarithm is normal; see `hf.random.lognormal`."""
        shape = None if shape is None else shape_first("lognormal", shape, mean, std, dtype)
        result_dtype = draws.float_dtype("lognormal", dtype)
        _positive("lognormal", "std", std, open_end=False)
        center, spread = parameter(mean, result_dtype), parameter(std, result_dtype)
        full = _full("lognormal", shape, center, spread)
        return self._draw(distributions.random_lognormal, center, spread, full, result_dtype)

    def gamma(
        self, concentration: TensorLike, shape: Any = None, scale: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw from the gamma distribution; see `hf.random.gamma`."""
        result_dtype = draws.float_dtype("gamma", dtype)
        _positive("gamma", "concentration", concentration)
        _positive("gamma", "scale", scale, open_end=False)
        tensor, spread = parameter(concentration, result_dtype), parameter(scale, result_dtype)
        full = _full("gamma", shape, tensor, spread)
        return self._draw(distributions.random_gamma, tensor, spread, full, result_dtype)

    def beta(self, a: TensorLike, b: TensorLike, shape: Any = None, dtype: Any = float32) -> Tensor:
        """Draw from the beta distribution; see `hf.random.beta`."""
        result_dtype = draws.float_dtype("beta", dtype)
        _positive("beta", "a", a)
        _positive("beta", "b", b)
        first, second = parameter(a, result_dtype), parameter(b, result_dtype)
        full = _full("beta", shape, first, second)
        return self._draw(distributions.random_beta, first, second, full, result_dtype)

    def dirichlet(self, concentration: TensorLike, shape: Any = None, dtype: Any = float32) -> Tensor:
        """Draw probabilities; see `hf.random.dirichlet`."""
        result_dtype = draws.float_dtype("dirichlet", dtype)
        tensor = parameter(concentration, result_dtype)
        full = tensor.shape[:-1] if shape is None else normalize_shape("dirichlet", shape)
        return self._draw(distributions.random_dirichlet, tensor, full, result_dtype)

    def multivariate_normal(
        self, mean: TensorLike, covariance: TensorLike, shape: Any = None, dtype: Any = float32
    ) -> Tensor:
        """Draw vectors of a mean and covariance; see `hf.random.multivariate_normal`."""
        result_dtype = draws.float_dtype("multivariate_normal", dtype)
        center, spread = parameter(mean, result_dtype), parameter(covariance, result_dtype)
        batches = center.shape[:-1], spread.shape[:-2]
        full = (
            broadcast_shapes("multivariate_normal", *batches)
            if shape is None
            else normalize_shape("multivariate_normal", shape)
        )
        return self._draw(distributions.random_multivariate_normal, center, spread, full, result_dtype)

    # -- counts -----------------------------------------------------------------------------------------------

    def poisson(self, rate: TensorLike, shape: Any = None, dtype: Any = int32) -> Tensor:
        """Draw how many events happen, given the expected number; see `hf.random.poisson`."""
        _positive("poisson", "rate", rate, open_end=False)
        tensor = _float_parameter(rate)
        return self._draw(distributions.random_poisson, tensor, _full("poisson", shape, tensor), dtype)

    def binomial(self, trials: TensorLike, p: TensorLike, shape: Any = None, dtype: Any = int32) -> Tensor:
        """Draw how many of some trials succeed; see `hf.random.binomial`."""
        _positive("binomial", "trials", trials, open_end=False)
        _probability("binomial", p)
        count, tensor = as_tensor(trials), _float_parameter(p)
        full = _full("binomial", shape, count, tensor)
        return self._draw(distributions.random_binomial, count, tensor, full, dtype)

    def geometric(self, p: TensorLike, shape: Any = None, dtype: Any = int32) -> Tensor:
        """Draw how many trials it takes until one succeeds; see `hf.random.geometric`."""
        _probability("geometric", p, zero=False)
        tensor = _float_parameter(p)
        return self._draw(distributions.random_geometric, tensor, _full("geometric", shape, tensor), dtype)

    # -- choice -----------------------------------------------------------------------------------------------

    def choice(
        self, x: Any, shape: Any = (), replace: bool = True, p: TensorLike | None = None, axis: int = 0
    ) -> Tensor:
        """Draw elements of a tensor; see `hf.random.choice`."""
        replace = truth("choice", "replace", replace)
        tensor = None if isinstance(x, int | np.integer) and not isinstance(x, bool) else as_tensor(x)
        axis = 0 if tensor is None else normalize_axis("choice", axis, tensor.ndim)
        size = int(x) if tensor is None else tensor.shape[axis]
        full = normalize_shape("choice", shape)
        if size == 0 and count_elements(full) != 0:
            raise ArgumentError("choice: there is nothing to choose from", got=f"choice({x!r})"[:80])
        positions = self._places(size, full, replace, p)
        return positions if tensor is None else take_along(tensor, positions, axis)

    def _places(self, size: Any, shape: Any, replace: bool, p: TensorLike | None) -> Tensor:
        """Draw positions from 0 to ``size - 1``."""
        if p is not None:
            weights = _float_parameter(p)
            if weights.shape != (size,):
                raise ShapeError(f"choice: there are {size} elements and weights of shape {weights.shape}",
                                 hint="Give one weight per element of the axis.")
            return self._draw(distributions.random_choice, weights, shape, replace)
        if replace:
            return self._draw(discrete_draws.random_integers, 0, int(size), shape, int32)
        return self._draw(distributions.random_choice, ones((size,)), shape, False)

    def shuffle(self, x: TensorLike, axis: int = 0) -> Tensor:
        """Return a tensor's slices in another order; see `hf.random.shuffle`."""
        tensor = as_tensor(x)
        axis = normalize_axis("shuffle", axis, tensor.ndim)
        return take(tensor, self._draw(discrete_draws.random_permutation, tensor.shape[axis]), axis=axis)


def _float_parameter(value: TensorLike) -> Tensor:
    tensor = as_tensor(value)
    return parameter(tensor, as_differentiable(tensor.dtype))


def take_along(tensor: Tensor, positions: Tensor, axis: int) -> Tensor:
    """Take slices of an axis, in the shape of the positions."""
    flat = take(tensor, positions.reshape((count_elements(positions.shape),)), axis=axis)
    return flat.reshape((*tensor.shape[:axis], *positions.shape, *tensor.shape[axis + 1 :]))
