"""`hf.nn.init`: initial values, drawn from a random stream of their own.

NumPy draws the values on the host, so that they do not depend on the device. Making a layer does not advance
`hf.random`, but `hf.random.seed` restarts this stream too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from hybridflow.core.dtypes import as_dtype, float32
from hybridflow.core.errors import ArgumentError
from hybridflow.ops.generator import SEEDS

Array = np.ndarray[Any, Any]
Initializer = Callable[[tuple[int, ...], Any], Array]
"""A function that takes a shape and a dtype and returns the values."""


class _Stream:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seeds = -1
        self.generator = np.random.Generator(np.random.Philox())

    def seed(self, seed: int | None) -> None:
        self.generator = np.random.Generator(np.random.Philox(seed))
        self.seeds = SEEDS.count


_STREAM = _Stream()
ABSTRACT: ContextVar[bool] = ContextVar("hybridflow abstract values", default=False)
"""Whether values are made that take no memory: see `abstract`."""


def seed(seed: int | None = None) -> None:
    """Restart the stream of the initial values of layers alone; `hf.random.seed` restarts it together with all others.

    Args:
        seed: a non-negative integer; None for a seed from the operating system.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.init.seed(0)
        >>> first = hf.nn.Linear(2, 2).weight.numpy()
        >>> hf.nn.init.seed(0)
        >>> bool((hf.nn.Linear(2, 2).weight.numpy() == first).all())
        True
    """
    if seed is not None and seed < 0:
        raise ArgumentError(f"seed: {seed} is negative", hint="Use an integer from 0 on.")
    with _STREAM.lock:
        _STREAM.seed(seed)


@contextmanager
def abstract() -> Generator[None]:
    """Let the parameters of modules that are made in the block take no memory, whatever their sizes.

    Such a module has shapes, for `hf.nn.summary` and `hf.cost`, and zeros for values. `hf.load` and ``load_state_dict``
    give it others, which take memory.

    Example:
        >>> import hybridflow as hf
        >>> with hf.nn.init.abstract():
        ...     model = hf.nn.Linear(1_000_000, 1_000_000)  # 4 TB otherwise
        >>> hf.nn.summary(model, hf.TensorSpec((1, 1_000_000))).parameters
        1000001000000
    """
    token = ABSTRACT.set(True)
    try:
        yield
    finally:
        ABSTRACT.reset(token)


_PIECE = 1 << 16
"""The number of values that are drawn at once: they are drawn in float64, whatever the dtype."""


def _drawn(fill: Callable[[np.random.Generator, Array], None], shape: tuple[int, ...], dtype: Any) -> Array:
    dtype = as_dtype(dtype)
    if ABSTRACT.get():
        return np.broadcast_to(np.zeros((), dtype), shape)
    values = np.empty(shape, dtype)
    with _STREAM.lock:
        if _STREAM.seeds != SEEDS.count:
            _STREAM.seed(SEEDS.last)
        fill(_STREAM.generator, values)
    return values


def _pieces(values: Array) -> Generator[Array]:
    """Yield views of an array's elements in order."""
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        yield flat[start : start + _PIECE]


def _filled_by(draw: Callable[[np.random.Generator, int], Array]) -> Initializer:
    """Return an initializer of values that are drawn one after another."""

    def fill(generator: np.random.Generator, values: Array) -> None:
        for piece in _pieces(values):
            piece[:] = draw(generator, piece.size)

    return lambda shape, dtype=float32: _drawn(fill, shape, dtype)


def uniform(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Return an initializer of values between two bounds."""
    return _filled_by(lambda generator, count: generator.uniform(low, high, count))


def normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Return an initializer of normally distributed values."""
    return _filled_by(lambda generator, count: generator.normal(mean, std, count))


def truncated_normal(mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0) -> Initializer:
    """Return an initializer of normally distributed values; values outside the bounds are drawn again."""

    def fill(generator: np.random.Generator, values: Array) -> None:
        outside = np.ones(values.shape, bool)
        while outside.any():
            for piece, wrong in zip(_pieces(values), _pieces(outside), strict=True):
                drawn = generator.normal(mean, std, piece.size)
                np.copyto(piece, drawn, "unsafe", where=wrong)
                wrong &= (drawn < low) | (drawn > high)

    return lambda shape, dtype=float32: _drawn(fill, shape, dtype)


def constant(value: float) -> Initializer:
    """Return an initializer that gives every element the same value."""

    def make(shape: tuple[int, ...], dtype: Any = float32) -> Array:
        if ABSTRACT.get():
            return np.broadcast_to(np.zeros((), as_dtype(dtype)), shape)
        return np.full(shape, value, as_dtype(dtype))

    return make


zeros, ones = constant(0.0), constant(1.0)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return fan-in and fan-out of weights ``(out, in, *window)``: inputs per output, and outputs per input."""
    window = math.prod(shape[2:])
    return (shape[1] if len(shape) > 1 else shape[0]) * window, shape[0] * window


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """Return Glorot's initializer, uniform."""
    return _scaled(lambda i, o: gain * math.sqrt(2.0 / (i + o)), uniformly=True)


def xavier_normal(gain: float = 1.0) -> Initializer:
    """Return Glorot's initializer, normal."""
    return _scaled(lambda i, o: gain * math.sqrt(2.0 / (i + o)), uniformly=False)


def kaiming_uniform(a: float = 0.0) -> Initializer:
    """Return He's initializer, uniform; `a` is the slope of the rectifier below 0."""
    return _scaled(lambda i, o: math.sqrt(2.0 / (1 + a * a) / max(i, 1)), uniformly=True)


def kaiming_normal(a: float = 0.0) -> Initializer:
    """Return He's initializer, normal; `a` is the slope of the rectifier below 0."""
    return _scaled(lambda i, o: math.sqrt(2.0 / (1 + a * a) / max(i, 1)), uniformly=False)


def lecun_normal() -> Initializer:
    """Return LeCun's initializer, normal."""
    return _scaled(lambda i, o: math.sqrt(1.0 / max(i, 1)), uniformly=False)


def lecun_uniform() -> Initializer:
    """Return LeCun's initializer, uniform."""
    return _scaled(lambda i, o: math.sqrt(1.0 / max(i, 1)), uniformly=True)


glorot_uniform, glorot_normal = xavier_uniform, xavier_normal
he_uniform, he_normal = kaiming_uniform, kaiming_normal


def orthogonal(gain: float = 1.0) -> Initializer:
    """Return an initializer of orthonormal columns (rows, if there are more columns than rows), times a gain."""

    def fill(generator: np.random.Generator, values: Array) -> None:
        rows, columns = values.shape[0], math.prod(values.shape[1:])
        q, r = np.linalg.qr(generator.normal(size=(max(rows, columns), min(rows, columns))))
        q *= np.sign(np.diagonal(r))
        values[...] = gain * (q if rows >= columns else q.T).reshape(values.shape)

    return lambda shape, dtype=float32: _drawn(fill, shape, dtype)


def _scaled(std_of: Callable[[int, int], float], *, uniformly: bool) -> Initializer:
    def make(shape: tuple[int, ...], dtype: Any = float32) -> Array:
        std = std_of(*fans(shape))
        bound = std * math.sqrt(3.0)
        return (uniform(-bound, bound) if uniformly else normal(0.0, std))(shape, dtype)

    return make


__all__ = [
    "constant", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal", "kaiming_uniform",
    "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal", "seed", "truncated_normal", "uniform",
    "xavier_normal", "xavier_uniform", "zeros",
]
