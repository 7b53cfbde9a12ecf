"""The errors hybridflow raises: one class per kind, each also the builtin a user would catch."""

from __future__ import annotations


class HybridflowError(Exception):
    """Base of every error raised by hybridflow itself."""


class ShapeError(HybridflowError, ValueError):
    """Shapes or axes that do not fit together."""


class AxisError(ShapeError, IndexError):
    """An axis that a tensor does not have."""


class DTypeError(HybridflowError, TypeError):
    """A dtype an operation does not accept."""


class ArgumentError(HybridflowError, ValueError):
    """An argument whose value is not one of those allowed."""


class ArgumentTypeError(HybridflowError, TypeError):
    """An argument of a Python type that is not accepted."""


class ForeignNameError(HybridflowError, AttributeError):
    """A name that other packages have, and hybridflow has not: the text says what to write."""


class IndexRangeError(HybridflowError, IndexError):
    """An index outside the axis it selects from."""


class NumberRangeError(HybridflowError, OverflowError):
    """A Python number that its dtype cannot hold."""


class TapeError(HybridflowError, RuntimeError):
    """A gradient tape used in a way its state does not allow."""


class TapeStateError(HybridflowError, ValueError):
    """A tape entered while it is already recording."""


class GradientError(HybridflowError, RuntimeError):
    """A gradient that an operation does not define."""


class TraceError(HybridflowError, RuntimeError):
    """Something a trace cannot express."""


class TracedValueError(TraceError, TypeError):
    """Python asked a traced tensor for the value it does not have yet."""


class DepthError(TraceError, RecursionError):
    """A function whose calls or branches are inside each other more often than Python can follow."""


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
    """Eager and compiled results that differ by more than rounding."""


class DeviceError(HybridflowError, RuntimeError):
    """A device that does not exist, or values on different devices."""


class ForkError(HybridflowError, RuntimeError):
    """Something that needs XLA in a process that was forked from one in which it ran."""


class MemoryBudgetError(HybridflowError, MemoryError):
    """A memory budget that a compiled function cannot keep."""


class ExportError(HybridflowError, ValueError):
    """A graph that another format cannot express."""


class FileError(HybridflowError, OSError):
    """A file that cannot be written or read."""


class FileMissingError(FileError, FileNotFoundError):
    """A file that is not there."""


class FileThereError(FileError, FileExistsError):
    """A file that is there already, and is not to be replaced."""


class FileFormatError(HybridflowError, ValueError):
    """A file whose content is not what it should be."""


class MissingPackageError(HybridflowError, ImportError):
    """Something that needs a package which is not installed."""


class TargetError(HybridflowError, ValueError):
    """A command-line target that cannot be loaded."""


def structure_text(tree: object) -> str:
    """Format the structure of a pytree, each leaf as ``*``."""
    return str(tree).removeprefix("PyTreeDef(").removesuffix(")")


class EffectWarning(UserWarning):
    """A compiled function reads what is different at every call, but is traced only once."""


class BroadcastWarning(UserWarning):
    """A loss whose prediction and target broadcast against each other, so that every pair of elements is compared."""


class CacheWarning(UserWarning):
    """The store of executables cannot be used, so functions are compiled as if there were none."""


class FileWarning(UserWarning):
    """A file that is damaged, and passed over."""


class RetraceWarning(UserWarning):
    """A compiled function that is traced anew at nearly every call."""


def message(what: str, *, got: str | None = None, hint: str | None = None) -> str:
    """Compose an error text: what differs, the call as it was, and the next step."""
    lines = [what]
    if got is not None:
        lines.append(f"  got: {got}")
    if hint is not None:
        lines.append(f"  {hint}")
    return "\n".join(lines)
