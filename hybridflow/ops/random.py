"""`hf.random`: random numbers, the same eager and compiled.

A `Generator` holds a key and a counter in a Variable. Every draw uses the counter's value and advances it. So no two
draws of a generator repeat each other, a seed repeats a whole run, and a compiled function advances the same counter.
If a call fails, the counter keeps its value. The functions of this module use one default generator, which starts
from the operating system's entropy unless `seed` is called.

The bits are Threefry-2x32 of the key and the counter (20 rounds, with the published answers), on every machine and in
every version. The draws that a distribution makes from the bits are the same eager and compiled and from run to run,
but may change with the version of hybridflow or JAX, and with the kind of device. `split` gives parallel workers
their own streams, so each worker's draws do not depend on what the others do.
"""

from __future__ import annotations

from typing import Any

from hybridflow.core.device import DeviceLike, placed
from hybridflow.core.dtypes import float32, int32
from hybridflow.core.tensor import Tensor
from hybridflow.ops.common import TensorLike
from hybridflow.ops.generator import Generator
from hybridflow.ops.generator import default_generator as default_generator
from hybridflow.ops.generator import seed as seed


def uniform(
    shape: Any = (), low: TensorLike = 0.0, high: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw numbers evenly distributed over [low, high) from the default generator.

    Args:
        shape: the shape; broadcasts with the bounds.
        low: the least value; gradients flow to a tensor.
        high: the upper bound, never drawn unless it equals `low`; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: ``low > high``.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.uniform((2, 3), -1, 1).shape
        (2, 3)
    """
    with placed(device):
        return default_generator().uniform(shape, low, high, dtype)


def normal(
    shape: Any = (), dtype: Any = float32, mean: TensorLike = 0.0, std: TensorLike = 1.0, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw normally distributed numbers from the default generator.

    Args:
        shape: the shape; broadcasts with the mean and standard deviation.
        dtype: a floating-point dtype.
        mean: the mean; gradients flow to a tensor.
        std: the standard deviation; gradients flow to a tensor.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.normal((2, 3), std=0.1).shape
        (2, 3)
    """
    with placed(device):
        return default_generator().normal(shape, dtype, mean, std)


def truncated_normal(
    shape: Any = (),
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = float32,
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
    *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw normally distributed numbers that lie between two bounds from the default generator.

    Args:
        shape: the shape; broadcasts with the mean and standard deviation.
        low: the lower bound, in standard deviations from the mean.
        high: the upper bound, in standard deviations from the mean.
        dtype: a floating-point dtype.
        mean: the mean before truncation; gradients flow to a tensor.
        std: the standard deviation before truncation; gradients flow to a tensor.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: ``low >= high``.

    Example:
        >>> import hybridflow as hf
        >>> bool(hf.max(hf.random.truncated_normal((100,), high=1)) <= 1)
        True
    """
    with placed(device):
        return default_generator().truncated_normal(shape, low, high, dtype, mean, std)


def integers(
    low: int, high: int, shape: Any = (), dtype: Any = int32, *, device: DeviceLike = None
) -> Tensor:
    """Draw integers from the default generator, with probabilities that are equal to within 2**-32 of them.

    Args:
        low: the least value.
        high: the upper bound, never drawn.
        shape: the shape.
        dtype: an integer dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        ArgumentError: ``low >= high``, or values the dtype cannot hold.
        DTypeError: the dtype is not an integer dtype.

    Example:
        >>> import hybridflow as hf
        >>> 0 <= int(hf.random.integers(0, 6)) < 6
        True
    """
    with placed(device):
        return default_generator().integers(low, high, shape, dtype)


def bernoulli(p: TensorLike = 0.5, shape: Any = None, *, device: DeviceLike = None) -> Tensor:
    """Draw True with a probability from the default generator.

    Args:
        p: the probability, a number or a tensor.
        shape: the shape, to which `p` broadcasts; the shape of `p` if not given.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, bool.

    Raises:
        ArgumentError: a number outside 0 to 1.
        ShapeError: `p` does not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.bernoulli(1.0, (2,))
        Tensor([ True,  True], dtype=bool)
    """
    with placed(device):
        return default_generator().bernoulli(p, shape)


def categorical(logits: TensorLike, shape: Any = None, *, device: DeviceLike = None) -> Tensor:
    """Draw classes from the default generator, with the probabilities ``softmax(logits)`` along the last axis.

    Args:
        logits: ``(..., classes)``, floating-point.
        shape: the shape, to which the batch shape of the logits broadcasts; the batch shape if not given.
        device: the device of the draws; that of the context if None.

    Returns:
        The classes, int32.

    Raises:
        ShapeError: no classes, or a shape that does not fit the logits.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.categorical([0.0, 100.0], (3,))
        Tensor([1, 1, 1], dtype=int32)
    """
    with placed(device):
        return default_generator().categorical(logits, shape)


def permutation(x: Any, axis: int = 0, *, device: DeviceLike = None) -> Tensor:
    """Draw a random order of 0 to x - 1, or of a tensor's slices along an axis, from the default generator.

    Args:
        x: an integer, or a tensor.
        axis: the axis along which a tensor is reordered; its slices stay whole.
        device: the device of the draws; that of the context if None.

    Returns:
        ``(x,)`` int32, or the reordered tensor.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> sorted(hf.random.permutation(4).tolist())
        [0, 1, 2, 3]
    """
    with placed(device):
        return default_generator().permutation(x, axis)


def split(count: int = 2) -> list[Generator]:
    """Return generators of parallel streams, independent of each other and of the default generator's later draws.

    Their keys are drawn from the default generator, so a seed repeats all of them.

    Args:
        count: the number of generators.

    Returns:
        The generators.

    Example:
        >>> import hybridflow as hf
        >>> workers = hf.random.split(3)
        >>> [worker.normal((2,)).shape for worker in workers]
        [(2,), (2,), (2,)]
    """
    return default_generator().split(count)


def choice(
    x: Any, shape: Any = (), replace: bool = True, p: TensorLike | None = None, axis: int = 0, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw elements (slices of an axis) of a tensor from the default generator.

    Args:
        x: a tensor, or an integer for 0 to x - 1.
        shape: the shape of the draw.
        replace: whether an element may be drawn more than once.
        p: the elements' weights, 0 or more; probabilities are proportional to them. All are equal if not given.
        axis: the axis of the tensor to choose from; in the result, the shape replaces it.
        device: the device of the draws; that of the context if None.

    Returns:
        The elements, with the dtype of the tensor (int32 for an integer).

    Raises:
        ArgumentError: no elements to choose from, or too few of them without replacement.
        ShapeError: the number of weights differs from that of elements, or the axis is out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.choice([5.0, 6.0, 7.0], (4,), p=[0.0, 1.0, 0.0])
        Tensor([6., 6., 6., 6.], dtype=float32)
        >>> sorted(hf.random.choice(3, (3,), replace=False).tolist())
        [0, 1, 2]
    """
    with placed(device):
        return default_generator().choice(x, shape, replace, p, axis)


def shuffle(x: TensorLike, axis: int = 0) -> Tensor:
    """Return a tensor with its slices in a random order, drawn from the default generator; `x` does not change.

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


__all__ = [
    "bernoulli", "beta", "binomial", "categorical", "cauchy", "choice", "default_generator", "dirichlet",
    "exponential", "gamma", "geometric", "gumbel", "integers", "laplace", "logistic", "lognormal",
    "multivariate_normal", "normal", "permutation", "poisson", "seed", "shuffle", "split", "truncated_normal",
    "uniform",
]


# -- further distributions of `hf.random`, drawn from the default generator -------------------------------------------


def exponential(
    shape: Any = (), scale: TensorLike = 1.0, dtype: Any = float32, *, device: DeviceLike = None
) -> Tensor:
    """Draw exponentially distributed numbers from the default generator: waiting times of mean `scale`.

    Args:
        shape: the shape; broadcasts with the scale.
        scale: the mean; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> bool(hf.all(hf.random.exponential((100,)) > 0))
        True
    """
    with placed(device):
        return default_generator().exponential(shape, scale, dtype)


def gumbel(
    shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw from the Gumbel distribution, the limit distribution of maxima, from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the mode; gradients flow to a tensor.
        scale: the scale; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.gumbel((2, 3)).shape
        (2, 3)
    """
    with placed(device):
        return default_generator().gumbel(shape, location, scale, dtype)


def laplace(
    shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw from the Laplace distribution, exponential to both sides, from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the mean; gradients flow to a tensor.
        scale: the mean distance from it; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.laplace((2,), scale=[1.0, 2.0]).shape
        (2,)
    """
    with placed(device):
        return default_generator().laplace(shape, location, scale, dtype)


def logistic(
    shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw from the logistic distribution from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the mean; gradients flow to a tensor.
        scale: the scale; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.logistic((2, 3), location=5.0).shape
        (2, 3)
    """
    with placed(device):
        return default_generator().logistic(shape, location, scale, dtype)


def cauchy(
    shape: Any = (), location: TensorLike = 0.0, scale: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw from the Cauchy distribution, which has no mean, from the default generator.

    Args:
        shape: the shape; broadcasts with the location and scale.
        location: the median; gradients flow to a tensor.
        scale: half the distance between the quartiles; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a negative scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.cauchy((3,)).shape
        (3,)
    """
    with placed(device):
        return default_generator().cauchy(shape, location, scale, dtype)


def lognormal(
    shape: Any = None, mean: TensorLike = 0.0, std: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw numbers whose logarithm is normally distributed from the default generator.

    Args:
        shape: the shape, to which the parameters broadcast; their own broadcast shape if not given.
        mean: the mean of the logarithm; gradients flow to a tensor.
        std: its standard deviation; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a negative standard deviation.
        ShapeError: the parameters do not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> bool(hf.all(hf.random.lognormal((100,)) > 0))
        True
    """
    with placed(device):
        return default_generator().lognormal(shape, mean, std, dtype)


def gamma(
    concentration: TensorLike, shape: Any = None, scale: TensorLike = 1.0, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw from the gamma distribution of mean ``concentration * scale`` from the default generator.

    Args:
        concentration: the shape parameter, positive (NaN otherwise); a tensor's (implicit, first-order) gradient
            flows.
        shape: the shape, to which the parameters broadcast; their own broadcast shape if not given.
        scale: the scale; gradients flow to a tensor.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a concentration that is not positive, or a negative scale.
        ShapeError: the parameters do not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.gamma([0.5, 2.0], (3, 2)).shape
        (3, 2)

    Reference:
        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; Figurnov, Mohamed and Mnih,
        "Implicit reparameterization gradients", 2018.
    """
    with placed(device):
        return default_generator().gamma(concentration, shape, scale, dtype)


def beta(
    a: TensorLike, b: TensorLike, shape: Any = None, dtype: Any = float32, *, device: DeviceLike = None
) -> Tensor:
    """Draw numbers from 0 to 1 with the density ``x**(a - 1) * (1 - x)**(b - 1)`` from the default generator.

    Args:
        a, b: the exponents' parameters, positive; a tensor's (implicit, first-order) gradient flows.
        shape: the shape, to which the parameters broadcast; their own broadcast shape if not given.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The draws, in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ArgumentError: a parameter that is not positive.
        ShapeError: the parameters do not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.random.beta(2.0, 3.0, (100,))
        >>> bool(hf.all((x >= 0) & (x <= 1)))
        True
    """
    with placed(device):
        return default_generator().beta(a, b, shape, dtype)


def dirichlet(
    concentration: TensorLike, shape: Any = None, dtype: Any = float32, *, device: DeviceLike = None
) -> Tensor:
    """Draw probabilities of classes, which add up to 1, from the default generator.

    Args:
        concentration: ``(..., classes)``, positive; a tensor's (implicit, first-order) gradient flows.
        shape: the shape before the classes, to which that of the concentrations broadcasts; the latter if not given.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        ``(*shape, classes)`` in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ShapeError: no classes, or a shape that does not fit the concentrations.

    Example:
        >>> import hybridflow as hf
        >>> hf.sum(hf.random.dirichlet([1.0, 2.0, 3.0], (2,)), axis=-1).shape
        (2,)
    """
    with placed(device):
        return default_generator().dirichlet(concentration, shape, dtype)


def multivariate_normal(
    mean: TensorLike, covariance: TensorLike, shape: Any = None, dtype: Any = float32, *,
    device: DeviceLike = None,
) -> Tensor:
    """Draw normally distributed vectors from the default generator.

    Args:
        mean: ``(..., n)``; gradients flow to a tensor.
        covariance: ``(..., n, n)``, symmetric and positive definite (NaN otherwise); gradients flow to a tensor.
        shape: the shape before the vector, to which those of the parameters broadcast; theirs if not given.
        dtype: a floating-point dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        ``(*shape, n)`` in the dtype.

    Raises:
        DTypeError: the dtype is not floating-point.
        ShapeError: parameters that do not fit each other or the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.multivariate_normal([0.0, 1.0], [[2.0, 0.5], [0.5, 1.0]], (4,)).shape
        (4, 2)
    """
    with placed(device):
        return default_generator().multivariate_normal(mean, covariance, shape, dtype)


def poisson(
    rate: TensorLike, shape: Any = None, dtype: Any = int32, *, device: DeviceLike = None
) -> Tensor:
    """Draw numbers of events whose expected number is `rate` from the default generator.

    Args:
        rate: the mean, 0 or more.
        shape: the shape, to which the parameters broadcast; their own broadcast shape if not given.
        dtype: an integer dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The counts, in the dtype; 0 where a tensor `rate` is negative or NaN.

    Raises:
        DTypeError: the dtype is not an integer dtype.
        ArgumentError: a negative rate.
        ShapeError: the parameters do not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.poisson(0.0, (3,))
        Tensor([0, 0, 0], dtype=int32)

    Reference:
        Hormann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    with placed(device):
        return default_generator().poisson(rate, shape, dtype)


def binomial(
    trials: TensorLike, p: TensorLike, shape: Any = None, dtype: Any = int32, *, device: DeviceLike = None
) -> Tensor:
    """Draw numbers of successes among independent trials from the default generator.

    Args:
        trials: the number of trials, 0 or more.
        p: the probability that a trial succeeds.
        shape: the shape, to which the parameters broadcast; their own broadcast shape if not given.
        dtype: an integer dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The counts, in the dtype; 0 where a tensor of `trials` or `p` holds an invalid value.

    Raises:
        DTypeError: the dtype is not an integer dtype.
        ArgumentError: a negative number of trials, or a number outside 0 to 1 for `p`.
        ShapeError: the parameters do not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.binomial([3, 5], 1.0)
        Tensor([3, 5], dtype=int32)

    Reference:
        Hormann, "The generation of binomial random variates", 1993.
    """
    with placed(device):
        return default_generator().binomial(trials, p, shape, dtype)


def geometric(p: TensorLike, shape: Any = None, dtype: Any = int32, *, device: DeviceLike = None) -> Tensor:
    """Draw numbers of trials until the first success from the default generator.

    Args:
        p: the probability that a trial succeeds, greater than 0.
        shape: the shape, to which the parameters broadcast; their own broadcast shape if not given.
        dtype: an integer dtype.
        device: the device of the draws; that of the context if None.

    Returns:
        The counts, 1 or more, in the dtype.

    Raises:
        DTypeError: the dtype is not an integer dtype.
        ArgumentError: a number for `p` that is 0 or outside 0 to 1.
        ShapeError: the parameters do not broadcast to the shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.random.geometric(1.0, (2,))
        Tensor([1, 1], dtype=int32)
    """
    with placed(device):
        return default_generator().geometric(p, shape, dtype)
