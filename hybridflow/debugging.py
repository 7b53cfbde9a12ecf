"""`hf.debugging`: conditions that must hold, and the place where a value went wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.analysis.locate import Located, locate
from hybridflow.core.context import is_tracing
from hybridflow.core.errors import ArgumentTypeError, CheckError, DTypeError
from hybridflow.core.errors import message as composed
from hybridflow.core.tensor import as_tensor
from hybridflow.ir.builder import add_check


def check(cond: Any, message: str) -> None:
    """Raise unless a condition holds.

    Compiled, the condition is checked at every call, in branches and loops too, and a call in which it does not hold
    assigns no Variable and advances no random numbers.

    Args:
        cond: a bool of shape ().
        message: what to say if it does not hold.

    Raises:
        CheckError: the condition does not hold; an AssertionError too.
        DTypeError: the condition is no bool of shape ().
        ArgumentTypeError: the message is no str.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def root(x):
        ...     hf.debugging.check(hf.all(x >= 0), "root of a negative number")
        ...     return hf.sqrt(x)
        >>> root(hf.asarray([4.0]))
        Tensor([2.], dtype=float32)
        >>> root(hf.asarray([-4.0]))
        Traceback (most recent call last):
          ...
        hybridflow.core.errors.CheckError: root of a negative number
        ...
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError(composed("check: the message must be a str", got=repr(message)[:80]))
    known = isinstance(cond, bool | np.bool_)
    if not known:
        tensor = as_tensor(cond)
        if tensor.dtype != np.bool_ or tensor.shape:
            raise DTypeError(
                composed("check: the condition must be a bool of shape ()", got=str(tensor.spec),
                          hint="Reduce it with hf.all or hf.any, or compare.")
            )  # fmt: skip
        if is_tracing():
            add_check(tensor, CheckError, message)
            return
        cond = tensor
    if not bool(cond):
        raise CheckError(message)


__all__ = ["Located", "check", "locate"]
