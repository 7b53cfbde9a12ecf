"""`hf.random`: random numbers, the same eager and compiled.

A `Generator` holds a key and a counter in a Variable. Every draw uses the counter's value and moves it on, so no two
draws of a generator repeat each other, a seed repeats a whole run, and a compiled function advances the same counter.
If a call fails, the counter stays where it was. The functions of this module use one default generator, which starts
from the operating system's entropy unless `seed` is called.

The bits are Threefry-2x32 of the key and the counter (20 rounds, with the published answers), on every machine and in
every version. What a distribution makes of them is the same eager and compiled and from run to run, but may change
with the version of hybridflow or of jax, and with the kind of device. `split` gives parallel workers streams of their
own; each worker's draws then do not depend on what the others do.
"""

from __future__ import annotations

import threading
from typing import Any

from hybridflow.core.context import context_of
from hybridflow.core.dtypes import float32, int32
from hybridflow.core.op import public_names
from hybridflow.core.tensor import Tensor
from hybridflow.ops.common import TensorLike
from hybridflow.ops.generator import Generator

# -- the default generator ----------------------------------------------------------------------------------------

class _Seeds:
    """How often `seed` was called, and with what: other streams start anew then."""

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


def uniform(shape: Any = (), low: TensorLike = 0.0, high: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw numbers evenly distributed over [low, high) from the default generator.

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

    Example:
        >>> import hybridflow as hf
        >>> hf.random.uniform((2, 3), -1, 1).shape
        (2, 3)
    """
    return default_generator().uniform(shape, low, high, dtype)


def normal(shape: Any = (), dtype: Any = float32, mean: TensorLike = 0.0, std: TensorLike = 1.0) -> Tensor:
    """Draw normally distributed numbers from the default generator.

    Args:
        shape: the shape; broadcasts with the mean and standard deviation.
        dtype: a floating-point dtype.
        mean: the mean; a tensor's gradient flows.
        std: the standard deviation; a tensor's gradient flows.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.normal((2, 3), std=0.1).shape
        (2, 3)
    """
    return default_generator().normal(shape, dtype, mean, std)


def truncated_normal(
    shape: Any = (),
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = float32,
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
) -> Tensor:
    """Draw normally distributed numbers that lie between two bounds from the default generator.

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

    Example:
        >>> import hybridflow as hf
        >>> bool(hf.max(hf.random.truncated_normal((100,), high=1)) <= 1)
        True
    """
    return default_generator().truncated_normal(shape, low, high, dtype, mean, std)


def integers(low: int, high: int, shape: Any = (), dtype: Any = int32) -> Tensor:
    """Draw integers from the default generator, each with the same probability up to 2**-32 of it.

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

    Example:
        >>> import hybridflow as hf
        >>> 0 <= int(hf.random.integers(0, 6)) < 6
        True
    """
    return default_generator().integers(low, high, shape, dtype)


def bernoulli(p: TensorLike = 0.5, shape: Any = None) -> Tensor:
    """Draw True with a probability from the default generator.

    Args:
        p: the probability, a number or a tensor.
        shape: the shape, in which `p` broadcasts; the shape of `p` if not given.

    Returns:
        The draws, bool.

    Raises:
        ArgumentError: a number outside 0 to 1.
        ShapeError: a shape in which `p` does not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.bernoulli(1.0, (2,))
        Tensor([ True,  True], dtype=bool)
    """
    return default_generator().bernoulli(p, shape)


def categorical(logits: TensorLike, shape: Any = None) -> Tensor:
    """Draw classes with the probabilities ``softmax(logits)`` of the last axis from the default generator.

    Args:
        logits: ``(..., classes)``, floating-point.
        shape: the shape, in which the batch shape of the logits broadcasts; that shape if not given.

    Returns:
        The classes, int32.

    Raises:
        ShapeError: no classes, or a shape that does not fit the logits.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.categorical([0.0, 100.0], (3,))
        Tensor([1, 1, 1], dtype=int32)
    """
    return default_generator().categorical(logits, shape)


def permutation(x: Any, axis: int = 0) -> Tensor:
    """Draw an order of 0 to x - 1, or reorder a tensor along an axis, from the default generator.

    Args:
        x: an integer, or a tensor.
        axis: the axis along which a tensor is reordered; its slices stay whole.

    Returns:
        ``(x,)`` int32, or the tensor reordered.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> sorted(hf.random.permutation(4).tolist())
        [0, 1, 2, 3]
    """
    return default_generator().permutation(x, axis)


def split(count: int = 2) -> list[Generator]:
    """Return generators for parallel streams, independent of each other and of the default generator's further draws.

    Their keys are drawn from the default generator, so a seed repeats all of them.

    Args:
        count: how many.

    Returns:
        The generators.

    Example:
        >>> import hybridflow as hf
        >>> workers = hf.random.split(3)
        >>> [worker.normal((2,)).shape for worker in workers]
        [(2,), (2,), (2,)]
    """
    return default_generator().split(count)


def exponential(shape: Any = (), scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw exponentially distributed numbers from the default generator: waiting times of mean `scale`.

    Args:
        shape: the shape; broadcasts with the scale.
        scale: the mean; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> bool(hf.all(hf.random.exponential((100,)) > 0))
        True
    """
    return default_generator().exponential(shape, scale, dtype)


def gumbel(shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw from the Gumbel distribution, that of the largest of many, from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the mode; a tensor's gradient flows.
        scale: the scale; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.gumbel((2, 3)).shape
        (2, 3)
    """
    return default_generator().gumbel(shape, location, scale, dtype)


def laplace(shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw from the Laplace distribution, exponential to both sides, from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the mean; a tensor's gradient flows.
        scale: the mean distance from it; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.laplace((2,), scale=[1.0, 2.0]).shape
        (2,)
    """
    return default_generator().laplace(shape, location, scale, dtype)


def logistic(shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw from the logistic distribution from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the mean; a tensor's gradient flows.
        scale: the scale; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.logistic((2, 3), location=5.0).shape
        (2, 3)
    """
    return default_generator().logistic(shape, location, scale, dtype)


def cauchy(shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw from the Cauchy distribution, which has no mean, from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the median; a tensor's gradient flows.
        scale: half the distance of the quartiles; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.cauchy((3,)).shape
        (3,)
    """
    return default_generator().cauchy(shape, location, scale, dtype)


def lognormal(shape: Any = None, mean: TensorLike = 0.0, std: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw numbers whose logarithm is normally distributed from the default generator.

    Args:
        shape: the shape, in which the parameters broadcast; their shape if not given.
        mean: the mean of the logarithm; a tensor's gradient flows.
        std: its standard deviation; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a negative standard deviation.
        ShapeError: a shape in which the parameters do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> bool(hf.all(hf.random.lognormal((100,)) > 0))
        True
    """
    return default_generator().lognormal(shape, mean, std, dtype)


def gamma(concentration: TensorLike, shape: Any = None, scale: TensorLike = 1.0, dtype: Any = float32) -> Tensor:
    """Draw from the gamma distribution of mean ``concentration * scale`` from the default generator.

    Args:
        concentration: the shape parameter, positive (NaN otherwise); a tensor's (implicit, first-order) gradient
            flows.
        shape: the shape, in which the parameters broadcast; their shape if not given.
        scale: the scale; a tensor's gradient flows.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a concentration that is not positive, or a negative scale.
        ShapeError: a shape in which the parameters do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.gamma([0.5, 2.0], (3, 2)).shape
        (3, 2)

    Reference:
        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; Figurnov, Mohamed and Mnih,
        "Implicit reparameterization gradients", 2018.
    """
    return default_generator().gamma(concentration, shape, scale, dtype)


def beta(a: TensorLike, b: TensorLike, shape: Any = None, dtype: Any = float32) -> Tensor:
    """Draw numbers from 0 to 1 with the density ``x**(a - 1) * (1 - x)**(b - 1)`` from the default generator.

    Args:
        a, b: the exponents' parameters, positive; a tensor's (implicit, first-order) gradient flows.
        shape: the shape, in which the parameters broadcast; their shape if not given.
        dtype: a floating-point dtype.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ArgumentError: a parameter that is not positive.
        ShapeError: a shape in which the parameters do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.random.beta(2.0, 3.0, (100,))
        >>> bool(hf.all((x >= 0) & (x <= 1)))
        True
    """
    return default_generator().beta(a, b, shape, dtype)


def dirichlet(concentration: TensorLike, shape: Any = None, dtype: Any = float32) -> Tensor:
    """Draw probabilities of classes, which add up to 1, from the default generator.

    Args:
        concentration: ``(..., classes)``, positive; a tensor's (implicit, first-order) gradient flows.
        shape: the shape before the classes, in which that of the concentrations broadcasts; that one if not given.
        dtype: a floating-point dtype.

    Returns:
        ``(*shape, classes)`` in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ShapeError: no classes, or a shape that does not fit the concentrations.

    Example:
        >>> import hybridflow as hf
        >>> hf.sum(hf.random.dirichlet([1.0, 2.0, 3.0], (2,)), axis=-1).shape
        (2,)
    """
    return default_generator().dirichlet(concentration, shape, dtype)


def multivariate_normal(mean: TensorLike, covariance: TensorLike, shape: Any = None, dtype: Any = float32) -> Tensor:
    """Draw normally distributed vectors from the default generator.

    Args:
        mean: ``(..., n)``; a tensor's gradient flows.
        covariance: ``(..., n, n)``, symmetric and positive definite (NaN otherwise); a tensor's gradient flows.
        shape: the shape before the vector, in which those of the parameters broadcast; theirs if not given.
        dtype: a floating-point dtype.

    Returns:
        ``(*shape, n)`` in the dtype.

    Raises:
        DTypeError: a dtype that is no float.
        ShapeError: parameters that do not fit each other or the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.multivariate_normal([0.0, 1.0], [[2.0, 0.5], [0.5, 1.0]], (4,)).shape
        (4, 2)
    """
    return default_generator().multivariate_normal(mean, covariance, shape, dtype)


def poisson(rate: TensorLike, shape: Any = None, dtype: Any = int32) -> Tensor:
    """Draw how many events happen where `rate` are expected, from the default generator.

    Args:
        rate: the mean, from 0 on.
        shape: the shape, in which the parameters broadcast; their shape if not given.
        dtype: an integer dtype.

    Returns:
        The counts, in the dtype; 0 where a tensor's parameters are none.

    Raises:
        DTypeError: a dtype that is no integer.
        ArgumentError: a negative rate.
        ShapeError: a shape in which the parameters do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.poisson(0.0, (3,))
        Tensor([0, 0, 0], dtype=int32)

    Reference:
        Hormann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    return default_generator().poisson(rate, shape, dtype)


def binomial(trials: TensorLike, p: TensorLike, shape: Any = None, dtype: Any = int32) -> Tensor:
    """Draw how many of some trials succeed from the default generator.

    Args:
        trials: how many there are, from 0 on.
        p: the probability of success of each.
        shape: the shape, in which the parameters broadcast; their shape if not given.
        dtype: an integer dtype.

    Returns:
        The counts, in the dtype; 0 where a tensor's parameters are none.

    Raises:
        DTypeError: a dtype that is no integer.
        ArgumentError: a negative number of trials, or a number that is no probability.
        ShapeError: a shape in which the parameters do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.binomial([3, 5], 1.0)
        Tensor([3, 5], dtype=int32)

    Reference:
        Hormann, "The generation of binomial random variates", 1993.
    """
    return default_generator().binomial(trials, p, shape, dtype)


def geometric(p: TensorLike, shape: Any = None, dtype: Any = int32) -> Tensor:
    """Draw how many trials it takes until one succeeds from the default generator.

    Args:
        p: the probability of success of each, greater than 0.
        shape: the shape, in which the parameters broadcast; their shape if not given.
        dtype: an integer dtype.

    Returns:
        The counts, from 1 on, in the dtype.

    Raises:
        DTypeError: a dtype that is no integer.
        ArgumentError: a number that is no probability, or 0.
        ShapeError: a shape in which the parameters do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.geometric(1.0, (2,))
        Tensor([1, 1], dtype=int32)
    """
    return default_generator().geometric(p, shape, dtype)


def choice(x: Any, shape: Any = (), replace: bool = True, p: TensorLike | None = None, axis: int = 0) -> Tensor:
    """Draw elements (slices of an axis) of a tensor from the default generator.

    Args:
        x: a tensor, or an integer for 0 to x - 1.
        shape: how many, in which shape.
        replace: whether an element may be drawn more than once.
        p: the elements' weights, from 0 on, in proportion to which they are drawn; all the same if not given.
        axis: the axis of the tensor to choose from; the shape takes its place.

    Returns:
        The elements, with the dtype of the tensor (int32 for an integer).

    Raises:
        ArgumentError: more elements than there are without replacement, or none to choose from.
        ShapeError: another number of weights than of elements, or an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.choice([5.0, 6.0, 7.0], (4,), p=[0.0, 1.0, 0.0])
        Tensor([6., 6., 6., 6.], dtype=float32)
        >>> sorted(hf.random.choice(3, (3,), replace=False).tolist())
        [0, 1, 2]
    """
    return default_generator().choice(x, shape, replace, p, axis)


def shuffle(x: TensorLike, axis: int = 0) -> Tensor:
    """Return a tensor's slices in another order, drawn from the default generator; tensors are immutable.

    Args:
        x: a tensor.
        axis: the axis to reorder; its slices stay whole.

    Returns:
        The reordered tensor.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> sorted(hf.random.shuffle([3, 1, 2]).tolist())
        [1, 2, 3]
    """
    return default_generator().shuffle(x, axis)


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]
