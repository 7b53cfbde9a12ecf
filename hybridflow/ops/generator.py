"""`hf.random.Generator`: a stream of random numbers, a key and a counter in a Variable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.core.assignments import beside
from hybridflow.core.context import context_now, context_of
from hybridflow.core.device import place
from hybridflow.core.dtypes import as_differentiable, float32, int32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.tensor import Tensor, asarray, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ops import discrete_draws, distributions, draws
from hybridflow.ops.common import (
    TensorLike,
    as_tensor,
    broadcast_shapes,
    cast_to,
    fixed_number,
    is_number,
    normalize_axis,
    truth,
)
from hybridflow.ops.creation import ones
from hybridflow.ops.indexing import take
from hybridflow.ops.sizes import count_elements, normalize_shape

# -- the other distributions that generators draw from; the functions of `hf.random` document the arguments -----------


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


def _initial_state(seed: Any) -> np.ndarray[Any, Any]:
    """Return the initial state for a seed; without a seed, take it from the operating system's entropy."""
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ArgumentTypeError(f"seed: a {type(seed).__name__} is no seed", hint="Use an integer from 0 on.")
        if seed < 0:
            raise ArgumentError(f"seed: {seed} is negative", hint="Use an integer from 0 on.")
    key = np.random.SeedSequence(None if seed is None else int(seed)).generate_state(2, np.uint32)
    return np.concatenate([key, np.zeros(2, np.uint32)])


def _here(state: Tensor) -> Tensor:
    """Return a state on the device that `hf.device` names for what is drawn."""
    context = context_now()
    if context is None or context.device is None or context.tracer is not None:
        return state
    return make_tensor(place(state._value, context.device))


class RandomState(Variable):
    """The Variable with a generator's key and counter; under `hf.vmap`, every slice has a state of its own."""

    __slots__ = ()

    moves_on = True


class Generator(Distributions):
    """A stream of random numbers.

    Args:
        seed: an integer from 0 on; without one, the operating system's entropy chooses the stream.

    Example:
        >>> import hybridflow as hf
        >>> first, second = hf.random.Generator(7), hf.random.Generator(7)
        >>> bool(hf.all(first.normal((3,)) == second.normal((3,))))
        True
    """

    def __init__(self, seed: int | None = None) -> None:
        self._state = RandomState(_initial_state(seed), name="random_state", trainable=False)
        self._lock = threading.Lock()

    @property
    def state(self) -> Tensor:
        """The key and counter as they are now, u32[4]: keep it, and set it later to return to this position."""
        return self._state.read()

    @state.setter
    def state(self, value: TensorLike) -> None:
        self._move_to(value)

    def named_variables(self) -> dict[str, Variable]:
        """Return the Variable that holds the state, by name."""
        return {"state": self._state}

    def seed(self, seed: int | None = None) -> None:
        """Start the stream of a seed from its beginning.

        Args:
            seed: an integer from 0 on; without one, the operating system's entropy chooses the stream.

        Raises:
            ArgumentError: a negative seed.
            ArgumentTypeError: a seed that is no integer.
        """
        self._move_to(_initial_state(seed))

    def split(self, count: int = 2) -> list[Generator]:
        """Return generators whose streams are independent of this one and of each other; see `hf.random.split`."""
        keys = self.integers(0, 2**32, (count, 2), "uint32").numpy()
        return [_with_state(np.concatenate([key, np.zeros(2, np.uint32)])) for key in keys]

    spawn = split  # NumPy's name for it

    def __deepcopy__(self, memo: dict[int, Any]) -> Generator:
        return _with_state(self._state.numpy())

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_state, (np.array(self._state.numpy()),)

    def __repr__(self) -> str:
        return f"<Generator state={self._state.read()!r}>"

    def _move_to(self, state: TensorLike) -> None:
        """Assign the state; it stays on its device, whatever `hf.device` says."""
        tensor = as_tensor(state) if hasattr(state, "dtype") else asarray(state, dtype=self._state.dtype)
        self._state.assign(beside(self._state, tensor))

    def _draw(self, draw: Callable[..., Tensor], *args: Any) -> Tensor:
        """Draw, and advance the counter if the draw succeeded."""
        with self._lock:
            state = self._state.read()
            result = draw(_here(state), *args)
            self._state.assign(draws.random_advance(state))
        return result

    def uniform(
        self, shape: Any = (), low: TensorLike = 0.0, high: TensorLike = 1.0, dtype: Any = float32
    ) -> Tensor:
        """Draw numbers evenly distributed over [low, high).

        Args:
            shape: the shape; broadcasts with the bounds.
            low: the least value; a tensor's gradient flows.
            high: the end, never drawn unless it equals `low`; a tensor's gradient flows.
            dtype: a floating-point dtype.

        Returns:
            The draws, in the dtype.

        Raises:
            DTypeError: a dtype that is no float.
            ArgumentError: numbers with ``low > high``.
        """
        shape = shape_first("uniform", shape, low, high)
        result_dtype = draws.float_dtype("uniform", dtype)
        if is_number(low) and is_number(high):
            if low > high:
                raise ArgumentError(f"uniform: low {low} is greater than high {high}", hint="Exchange them.")
            if low == 0 and high == 1:
                return self._draw(draws.random_uniform, shape, result_dtype)
        first, last = parameter(low, result_dtype), parameter(high, result_dtype)
        full = broadcast_shapes("uniform", shape, first.shape, last.shape)
        return draws.random_between(self._draw(draws.random_uniform, full, result_dtype), first, last)

    def normal(
        self, shape: Any = (), dtype: Any = float32, mean: TensorLike = 0.0, std: TensorLike = 1.0
    ) -> Tensor:
        """Draw normally distributed numbers.

        Args:
            shape: the shape; broadcasts with the mean and standard deviation.
            dtype: a floating-point dtype.
            mean: the mean; a tensor's gradient flows.
            std: the standard deviation; a tensor's gradient flows.

        Returns:
            The draws, in the dtype.

        Raises:
            DTypeError: a dtype that is no float.
        """
        shape = shape_first("normal", shape, dtype, mean, std)
        result_dtype = draws.float_dtype("normal", dtype)
        return self._scaled(draws.random_normal, (), "normal", shape, result_dtype, mean, std)

    def truncated_normal(
        self,
        shape: Any = (),
        low: float = -2.0,
        high: float = 2.0,
        dtype: Any = float32,
        mean: TensorLike = 0.0,
        std: TensorLike = 1.0,
    ) -> Tensor:
        """Draw normally distributed numbers that lie between two bounds.

        Args:
            shape: the shape; broadcasts with the mean and standard deviation.
            low: the lower bound, in standard deviations from the mean.
            high: the upper bound, in standard deviations from the mean.
            dtype: a floating-point dtype.
            mean: the mean before truncation; a tensor's gradient flows.
            std: the standard deviation before truncation; a tensor's gradient flows.

        Returns:
            The draws, in the dtype.

        Raises:
            DTypeError: a dtype that is no float.
            ArgumentError: ``low >= high``.
        """
        shape = shape_first("truncated_normal", shape, low, high, dtype)
        result_dtype = draws.float_dtype("truncated_normal", dtype)
        bounds = fixed_number("truncated_normal", "low", low), fixed_number("truncated_normal", "high", high)
        return self._scaled(draws.random_truncated, bounds, "truncated_normal", shape, result_dtype, mean, std)

    def _scaled(
        self,
        draw: Callable[..., Tensor],
        bounds: tuple[float, ...],
        name: str,
        full: Any,
        dtype: Any,
        mean: TensorLike,
        std: TensorLike,
    ) -> Tensor:
        if is_number(mean) and is_number(std) and mean == 0 and std == 1:
            return self._draw(draw, *bounds, full, dtype)
        if is_number(std) and std < 0:
            raise ArgumentError(f"{name}: std {std} is negative", hint="A standard deviation is at least 0.")
        center, spread = parameter(mean, dtype), parameter(std, dtype)
        full = broadcast_shapes(name, full, center.shape, spread.shape)
        return draws.random_scaled(self._draw(draw, *bounds, full, dtype), center, spread)

    def integers(self, low: int, high: int, shape: Any = (), dtype: Any = int32) -> Tensor:
        """Draw integers with equal probabilities, up to a relative error of 2**-32.

        Args:
            low: the least value.
            high: the end, never drawn.
            shape: the shape.
            dtype: an integer dtype.

        Returns:
            The draws, in the dtype.

        Raises:
            ArgumentError: ``low >= high``, or values the dtype cannot hold.
            DTypeError: a dtype that is no integer.
        """
        return self._draw(
            discrete_draws.random_integers, low.__index__(), high.__index__(), normalize_shape("integers", shape), dtype
        )

    def bernoulli(self, p: TensorLike = 0.5, shape: Any = None) -> Tensor:
        """Draw True with a probability.

        Args:
            p: the probability, a number or a tensor.
            shape: the shape, in which `p` broadcasts; the shape of `p` if not given.

        Returns:
            The draws, bool.

        Raises:
            ArgumentError: a number outside 0 to 1.
            ShapeError: a shape in which `p` does not broadcast.
        """
        if is_number(p) and not 0 <= p <= 1:
            raise ArgumentError(f"bernoulli: {p} is no probability", hint="Use a number from 0 to 1.")
        tensor = as_tensor(p)
        tensor = parameter(tensor, as_differentiable(tensor.dtype))
        full = tensor.shape if shape is None else normalize_shape("bernoulli", shape)
        return self._draw(discrete_draws.random_bernoulli, tensor, full)

    def categorical(self, logits: TensorLike, shape: Any = None) -> Tensor:
        """Draw classes with the probabilities ``softmax(logits)`` of the last axis.

        Args:
            logits: ``(..., classes)``, floating-point.
            shape: the shape, in which the batch shape of the logits broadcasts; that shape if not given.

        Returns:
            The classes, int32.

        Raises:
            ShapeError: no classes, or a shape that does not fit the logits.
        """
        tensor = as_tensor(logits)
        tensor = parameter(tensor, as_differentiable(tensor.dtype))
        full = tensor.shape[:-1] if shape is None else normalize_shape("categorical", shape)
        return self._draw(discrete_draws.random_categorical, tensor, full)

    def permutation(self, x: Any, axis: int = 0) -> Tensor:
        """Return the integers from 0 to x - 1 in random order, or a tensor with its slices in random order.

        Args:
            x: an integer, or a tensor.
            axis: the axis along which a tensor is reordered; its slices stay whole.

        Returns:
            ``(x,)`` int32, or the tensor reordered.

        Raises:
            ShapeError: an axis out of range.
        """
        if isinstance(x, int | np.integer) and not isinstance(x, bool):
            (length,) = normalize_shape("permutation", x)
            return self._draw(discrete_draws.random_permutation, length)
        tensor = as_tensor(x)
        axis = normalize_axis("permutation", axis, tensor.ndim)
        return take(tensor, self._draw(discrete_draws.random_permutation, tensor.shape[axis]), axis=axis)


def _with_state(state: np.ndarray[Any, Any]) -> Generator:
    generator = Generator(0)
    generator.state = state
    return generator


# -- the generator that the functions of `hf.random` use --------------------------------------------------------------


class _Seeds:
    """The number of calls of `seed`, and their seeds; streams derived from the default generator then restart."""

    count = 0
    last: int | None = None


SEEDS = _Seeds()
_default: list[Generator] = []
_default_lock = threading.Lock()


def default_generator() -> Generator:
    """Return the generator that the functions of `hf.random` use."""
    if not _default:
        with _default_lock, context_of(None):
            if not _default:
                _default.append(Generator())
    return _default[0]


def seed(seed: int | None = None) -> None:
    """Start the default generator's stream of a seed from its beginning.

    The initial values of layers that are made from now on follow from the seed too, unless `hf.nn.init.seed` is called.

    Args:
        seed: an integer from 0 on; without one, the operating system's entropy chooses the stream.

    Raises:
        ArgumentError: a negative seed.
        ArgumentTypeError: a seed that is no integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.seed(3)
        >>> first = hf.random.uniform((2,))
        >>> hf.random.seed(3)
        >>> bool(hf.all(first == hf.random.uniform((2,))))
        True
    """
    default_generator().seed(seed)
    SEEDS.count, SEEDS.last = SEEDS.count + 1, seed


__all__ = ["default_generator", "seed"]
