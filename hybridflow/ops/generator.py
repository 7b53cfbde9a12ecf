"""`hf.random.Generator`: a stream of random numbers, a key and a counter in a Variable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.core.assignments import beside
from hybridflow.core.context import context_now
from hybridflow.core.device import place
from hybridflow.core.dtypes import as_differentiable, float32, int32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.tensor import Tensor, asarray, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ops import discrete_draws, draws
from hybridflow.ops.common import TensorLike, as_tensor, broadcast_shapes, fixed_number, is_number, normalize_axis
from hybridflow.ops.generator_distributions import Distributions, parameter, shape_first
from hybridflow.ops.indexing import take
from hybridflow.ops.sizes import normalize_shape


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
