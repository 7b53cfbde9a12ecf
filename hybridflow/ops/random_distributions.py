"""Further distributions of `hf.random`, drawn from the default generator."""

from __future__ import annotations

from typing import Any

from hybridflow.core.dtypes import float32, int32
from hybridflow.core.op import public_names
from hybridflow.core.tensor import Tensor
from hybridflow.ops.common import TensorLike
from hybridflow.ops.generator_default import default_generator


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


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]
