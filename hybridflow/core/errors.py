"""The errors that hybridflow raises: one class per kind, each derived from the builtin that a user would catch."""

from __future__ import annotations

import re
import sys
from typing import Any

from hybridflow.core.attached import attached


class HybridflowError(Exception):
    """Base of every error raised by hybridflow itself.

    Args:
        args: the text, that is what is wrong; or a text that `message` composed.
        got: the call as it was.
        hint: what to do.
    """

    def __init__(self, *args: object, got: str | None = None, hint: str | None = None) -> None:
        if args and isinstance(args[0], str) and (got is not None or hint is not None or "\n" not in args[0]):
            args = message(args[0], got=got, hint=hint), *args[1:]
        super().__init__(*args)

    def _render_traceback_(self) -> list[str]:
        """Return the traceback as IPython shows it, with the user's lines only."""
        from hybridflow.core.tracebacks import trimmed  # which knows the settings, and they need these classes

        shell: Any = sys.modules["IPython"].get_ipython()
        return shell.InteractiveTB.structured_traceback(type(self), self, trimmed(self).__traceback__)


class ShapeError(HybridflowError, ValueError):
    """Shapes or axes that do not fit together."""


class NonScalarError(ShapeError, RuntimeError):
    """A gradient of a value with several elements, without the gradients of these."""


class AxisError(ShapeError, IndexError):
    """An axis that a tensor does not have."""


class DTypeError(HybridflowError, TypeError):
    """A dtype an operation does not accept."""


class ArgumentError(HybridflowError, ValueError):
    """An argument with a value that is not allowed."""


class ArgumentTypeError(HybridflowError, TypeError):
    """An argument of a Python type that is not accepted."""


class ForeignNameError(HybridflowError, AttributeError):
    """A name that hybridflow lacks; the message says what to write instead."""

    def __init__(self, *args: object, got: str | None = None, hint: str | None = None) -> None:
        super().__init__(*args, got=got, hint=hint)
        self.name = self.obj = None  # if they are not set, Python adds a guess to the text


class IndexRangeError(HybridflowError, IndexError):
    """An index outside the axis it selects from."""


class NumberRangeError(HybridflowError, OverflowError):
    """A Python number that its dtype cannot hold."""


class TapeError(HybridflowError, RuntimeError):
    """A gradient tape used in a way that its state does not allow."""


class TapeStateError(HybridflowError, ValueError):
    """A tape that is entered while it records, or asked to stop recording while it does not."""


class GradientError(HybridflowError, RuntimeError):
    """A gradient that an operation does not define."""


class TraceError(HybridflowError, RuntimeError):
    """Something a trace cannot express.

    The trace ends with it even if the code catches it or puts another error in its place: eager code raises none there.
    """

    def __init__(self, *args: object, got: str | None = None, hint: str | None = None) -> None:
        super().__init__(*args, got=got, hint=hint)
        attached("refused")(self)


class TracedValueError(TraceError, TypeError):
    """Python code that needs the value of a traced tensor, which has none yet."""


class NestingError(HybridflowError, RecursionError):
    """Lists, tuples and dicts inside each other, deeper than they can be followed."""


class DepthError(TraceError, RecursionError):
    """A function with more nested calls or branches than Python's recursion limit allows."""


class LeakError(TraceError):
    """A traced tensor used outside the trace that made it."""


class MutationError(TraceError, TypeError):
    """A Python structure changed in a way a compiled function would lose."""


class VerifyError(HybridflowError, ValueError):
    """A graph that breaks a rule of the IR."""


class ParseError(HybridflowError, ValueError):
    """Text that is not a graph."""


class CheckError(HybridflowError, AssertionError):
    """A function or an op that failed a check of `hf.testing`."""


class ParityError(HybridflowError, AssertionError):
    """Eager and compiled results that differ by more than rounding errors."""


class DeviceError(HybridflowError, RuntimeError):
    """A device that does not exist, or values on different devices."""


class LayoutError(HybridflowError, ValueError):
    """A layout that does not suit a tensor or a mesh, or a mesh that does not suit the devices."""


class NotLocalError(LayoutError):
    """A value whose parts lie on devices of other processes, where the whole is needed."""


class DeviceLostError(HybridflowError, RuntimeError):
    """A process of the run has ended or is stuck, so that the others cannot go on."""


class ProgramsDifferError(HybridflowError, RuntimeError):
    """Processes that do not run the same program with the same values."""


class WorkerError(HybridflowError, RuntimeError):
    """A process that loads examples ended."""


class ForkError(HybridflowError, RuntimeError):
    """Something that needs XLA, in a process that was forked after XLA had started."""


class MemoryBudgetError(HybridflowError, MemoryError):
    """A memory budget that a compiled function cannot keep."""


class OutOfMemoryError(HybridflowError, MemoryError):
    """Memory that ran out, or is known not to suffice; no Variable was changed."""


class ExportError(HybridflowError, ValueError):
    """A graph that another format cannot express."""


class FileError(HybridflowError, OSError):
    """A file that cannot be written or read."""


class FileMissingError(FileError, FileNotFoundError):
    """A file that does not exist."""


class FileThereError(FileError, FileExistsError):
    """A file that exists already and may not be replaced."""


class FileFormatError(HybridflowError, ValueError):
    """A file whose content is not in the expected format."""


class MissingPackageError(HybridflowError, ImportError):
    """A feature that needs a package which is not installed."""


class TargetError(HybridflowError, ValueError):
    """A command-line target that cannot be loaded."""


def structure_text(tree: object) -> str:
    """Format the structure of a pytree, each leaf as ``*``."""
    return str(tree).removeprefix("PyTreeDef(").removesuffix(")")


class DTypeWarning(UserWarning):
    """A float64 input of a float32 layer, which then computes in float64: NumPy's default, perhaps not meant."""


class EffectWarning(UserWarning):
    """A compiled function reads something that cannot be watched, so it is traced again at every call."""


class BroadcastWarning(UserWarning):
    """A loss whose prediction and target broadcast against each other, so that it compares every pair of elements."""


class CacheWarning(UserWarning):
    """An on-disk store of executables that cannot be used, so that functions are compiled without it."""


class FileWarning(UserWarning):
    """A damaged file that is skipped."""


class LayoutWarning(UserWarning):
    """A value on several devices that is gathered into one array on the host."""


class RetraceWarning(UserWarning):
    """A compiled function that is traced again at nearly every call, or runs as Python again and again."""


class WatchWarning(UserWarning):
    """Gradients that a watch of a model cannot see."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, which may be empty."""
    return (str(error).splitlines() or [""])[0]


def message(what: str, *, got: str | None = None, hint: str | None = None) -> str:
    """Compose an error message: what is wrong, the call as it was, and what to do.

    A part that is very long, such as a name of a million characters, is shown by its beginning and its end.
    """
    lines = [_A.sub("an ", _shortened(what))]
    if got is not None:
        lines.append(f"  got: {_A.sub('an ', _shortened(got))}")
    if hint is not None:
        lines.append(f"  {_shortened(hint)}")
    return "\n".join(lines)


_A = re.compile(r"\ba (?=(?:int|object|ndarray|iterator|enumerate|[AEIO][a-z]+)\b)")
"""The article before a class whose name begins with the sound of a vowel."""
_LONGEST = 4000
"""The most characters of a part of a message."""


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2 - 20  # so that it is short enough when an error is pickled
    return f"{text[:half]} ... {len(text) - 2 * half} characters more ... {text[-half:]}"
