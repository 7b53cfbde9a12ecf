"""Attributes that are methods in other packages and numbers here: whether the user's code is about to call one."""

from __future__ import annotations

import opcode
import sys

from hybridflow.core.errors import ArgumentTypeError, message

_CALLED = opcode.opmap["LOAD_METHOD"] if sys.version_info < (3, 12) else None
"""The instruction that loads what is called, where there is one: before Python 3.12."""
_LOAD, _EXTENDED = opcode.opmap["LOAD_ATTR"], opcode.opmap["EXTENDED_ARG"]

SIZES = "Use x.shape[0] for the size of an axis, x.shape for all sizes."
"""What to write for a call of ``size``."""


def refuse_call(attribute: str, hint: str) -> None:
    """Raise if the line that reads an attribute also calls it: Python's own error would not say what to write.

    Args:
        attribute: the name of a property, whose getter this is called from.
        hint: what to write instead.

    Raises:
        ArgumentTypeError: the value is called.
    """
    frame = sys._getframe(1).f_back
    if frame is None:  # C has asked
        return
    code, at = frame.f_code.co_code, frame.f_lasti
    name = code[at + 1]
    if code[at] == _LOAD and _CALLED is None:
        if not name & 1:
            return
        name >>= 1
    elif code[at] != _CALLED:
        return
    if at >= 2 and code[at - 2] == _EXTENDED:
        name += code[at - 1] << (8 if _CALLED is not None else 7)
    if frame.f_code.co_names[name] == attribute:
        raise not_a_method(attribute, hint)


def not_a_method(attribute: str, hint: str) -> ArgumentTypeError:
    """Return the error for a call of an attribute that is a number."""
    text = f"x.{attribute}: it is a number here, and not a method"
    return ArgumentTypeError(message(text, got=f"x.{attribute}(...)", hint=hint))
