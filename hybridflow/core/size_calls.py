"""`x.size(0)`, PyTorch's spelling of `x.shape[0]`, raises an error that says so: here `x.size` is a number."""

from __future__ import annotations

import sys
from opcode import opmap
from types import FrameType
from typing import NoReturn

from hybridflow.core.errors import ArgumentTypeError

# An attribute that is called is read by an opcode of its own in Python 3.11, and marked by a bit of the argument later.
_OWN = sys.version_info < (3, 12)
_READ = opmap["LOAD_METHOD" if _OWN else "LOAD_ATTR"]


def refuse_call(frame: FrameType) -> None:
    """Raise if a frame reads an attribute in order to call it.

    Raises:
        ArgumentTypeError: if it does.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] == _READ and (_OWN or code[at + 1] & 1):
        raise_called()


def raise_called() -> NoReturn:
    """Raise the error of a size that is called."""
    raise ArgumentTypeError("size: it is the number of elements, which cannot be called",
                            hint="The size of an axis is x.shape[axis], and the shape is x.shape.")
