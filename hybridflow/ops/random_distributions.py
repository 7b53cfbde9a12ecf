"""Further distributions of `hf.random`, drawn from the default generator."""

from __future__ import annotations

from typing import Any

from hybridflow.core.device import DeviceLike, placed
from hybridflow.core.dtypes import float32, int32
from hybridflow.core.tensor import Tensor
from hybridflow.ops.common import TensorLike
from hybridflow.ops.generator_default import default_generator


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


__all__ = [
    "beta", "binomial", "cauchy", "dirichlet", "exponential", "gamma", "geometric", "gumbel", "laplace", "logistic",
    "lognormal", "multivariate_normal", "poisson",
]
