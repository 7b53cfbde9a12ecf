"""`hf.debugging`: check conditions, locate where a value went wrong, and show values with their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.analysis.locate import Located, locate
from hybridflow.analysis.value_table import ModeCosts, ValueRow, ValueTable, table
from hybridflow.core.attached import attached as _attached
from hybridflow.core.errors import ArgumentTypeError, CheckError, DTypeError
from hybridflow.core.errors import message as composed
from hybridflow.core.tensor import as_tensor
from hybridflow.ir.builder import require


def check(cond: Any, message: str) -> None:
    """Raise unless a condition holds.

    A compiled function checks the condition at every call, also in branches and loops. A call that fails the check
    assigns no Variable and does not advance the random state.

    Args:
        cond: a bool of shape ().
        message: the text of the error.

    Raises:
        CheckError: the condition does not hold; also an AssertionError.
        DTypeError: the condition is not a bool of shape ().
        ArgumentTypeError: the message is not a str.

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
            )
        require(tensor, CheckError, message)
    elif not cond:
        raise CheckError(message)


__all__ = ["Located", "ModeCosts", "ValueRow", "ValueTable", "check", "locate", "table"]
_attached("name_module")("hf.debugging", __name__)
