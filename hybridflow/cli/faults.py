"""Sort a command's errors by their cause: the user's code, the machine, or hybridflow itself."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager

from hybridflow.core.errors import ArgumentError, HybridflowError, message
from hybridflow.core.out_of_memory import ran_out

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class UserError(Exception):
    """An error raised by the user's own code; its text is a traceback that shows only the user's files."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@contextmanager
def machine_errors(command: str) -> Generator[None]:
    """Turn errors of the machine, such as a lack of memory or an unwritable file, into errors that say so.

    Raises:
        ArgumentError: the machine's error, explained.
    """
    try:
        yield
    except (HybridflowError, BrokenPipeError):
        raise
    except OSError as error:
        name = "" if error.filename is None else f" {error.filename!r}"
        raise ArgumentError(f"{command}: the system says of{name or ' a file'}: {error.strerror}") from error
    except (MemoryError, RuntimeError) as error:
        if ran_out(error):
            text = message(f"{command}: there is not enough memory", got=str(error), hint="Take smaller sizes.")
            raise ArgumentError(text) from error
        if _NO_DEVICE in str(error):
            raise ArgumentError(f"{command}: jax finds no device", got=str(error),
                                hint="Unset JAX_PLATFORMS.") from error
        raise


_NO_DEVICE = "Unable to initialize backend"
"""A part of the message by which jax reports this error."""


@contextmanager
def users_errors() -> Generator[None]:
    """Turn an error of the user's code into a `UserError` that shows only the user's files and lines.

    A `sys.exit` in the user's code counts as an error. An error without any line of the user's passes unchanged.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        text = users_traceback(error)
        if text is None:
            raise
        raise UserError(text) from error


def users_traceback(error: BaseException) -> str | None:
    """Return an error's traceback without frames of hybridflow and its libraries; None if no frame is left."""
    traceback_ = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException] = [traceback_]
    for one in chain:
        chain.extend(other for other in (one.__cause__, one.__context__) if other is not None)
        one.stack = traceback.StackSummary.from_list([frame for frame in one.stack if _is_users(frame.filename)])
    if not any(one.stack for one in chain) and not isinstance(error, SyntaxError):
        return None
    if isinstance(error, HybridflowError):
        # The causes inside hybridflow do not help the user.
        traceback_.__cause__ = traceback_.__context__ = None
    return "".join(traceback_.format())


def _is_users(filename: str) -> bool:
    return not filename.startswith((_PACKAGE, "<frozen")) and f"{os.sep}site-packages{os.sep}" not in filename and (
        not filename.startswith((os.path.dirname(os.__file__) + os.sep, sys.prefix + os.sep + "bin"))
    )
