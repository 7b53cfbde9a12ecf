"""The values to save, by path: the arrays of modules, optimizers, and structures of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.core.assignments import assign_all, listed
from hybridflow.core.context import is_tracing
from hybridflow.core.convert import is_number
from hybridflow.core.dtypes import as_dtype
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TraceError
from hybridflow.core.forked import PROCESS
from hybridflow.core.methods import TensorMethods
from hybridflow.core.structures import nested_too_deep
from hybridflow.core.tensor import asarray, host_array, make_tensor, require_value
from hybridflow.core.variable import WRITES, Variable
from hybridflow.distribute.devices import gather
from hybridflow.nn.sizes import unsized

_ARRAYS = (TensorMethods, np.ndarray, np.generic, jax.Array)


class Found(NamedTuple):
    """The content of a structure.

    Attributes:
        values: the Variables, tensors, arrays and numbers by path.
        modules: the modules of hybridflow and their submodules by path.
    """

    values: dict[str, Any]
    modules: dict[str, Any]


def flat(values: Any, what: str = "save") -> dict[str, Any]:
    """Return the Variables, tensors and arrays in a structure by their paths.

    Args:
        values: a module; an optimizer, metric, generator or another object with ``named_variables()``; or a mapping or
            sequence of these and of Variables, tensors, arrays and numbers, nested to any depth.
        what: the caller, for messages.

    Raises:
        ArgumentTypeError: a value is of another type, or a key is neither a string nor an integer.
        ArgumentError: a path occurs twice, or the sizes of a module are not known yet.
        TraceError: this is called inside a compiled function.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.saving.values import flat
        >>> [*flat({"model": hf.nn.Linear(3, 2), "seen": [hf.zeros(2), 1.0]})]
        ['model.weight', 'model.bias', 'seen.0', 'seen.1']
    """
    return found_in(values, what).values


def require_eager(what: str) -> None:
    """Raise inside a compiled function: files would be read or written when it is traced, not when it is called.

    Raises:
        TraceError: this is called inside a compiled function.
    """
    if is_tracing():
        raise TraceError(f"{what}: a compiled function would do it when it is traced, and not at every call",
                         hint="Do it outside of the function.")


def found_in(values: Any, what: str) -> Found:
    """Return the content of a structure; see `flat`."""
    require_eager(what)
    if isinstance(values, _ARRAYS) or is_number(values):
        raise ArgumentTypeError(f"{what}: a {type(values).__name__} alone has no path", got=repr(values)[:80],
                                hint='Give it one: {"name": value}.')
    contents = Found({}, {})
    try:
        for path, leaf in _walk(values, "", what, contents, []):
            if path in contents.values:
                raise ArgumentError(f"{what}: the path {path!r} occurs twice",
                                    hint="Keys with dots look like paths; rename one.")
            contents.values[path] = leaf
    except RecursionError as error:
        raise nested_too_deep(values, error) from None
    return contents


def _walk(value: Any, path: str, what: str, contents: Found, around: list[int]) -> Iterator[tuple[str, Any]]:
    """Yield the content of a value with its path."""
    if isinstance(value, _ARRAYS) or is_number(value):
        yield path, value
        return
    if id(value) in around:
        raise ArgumentError(f"{what}: {path!r} contains itself")
    items = _items(value, path, what, contents)
    if items is None:
        if not hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            raise _unknown(value, path, what)
        yield path, value  # another package's array
        return
    around.append(id(value))
    for key, item in items.items():
        if type(key) is not str and type(key) is not int:
            raise ArgumentTypeError(f"{what}: a key of {path or 'the values'!r} is a {type(key).__name__}",
                                    got=repr(key)[:80], hint="Paths are made of strings and integers.")
        yield from _walk(item, f"{path}.{key}" if path else str(key), what, contents, around)
    around.pop()


def _items(value: Any, path: str, what: str, contents: Found) -> Mapping[Any, Any] | None:
    """Return the items of a value by key; None if it is no structure."""
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value)
    if isinstance(value, list | tuple):
        items = cast("tuple[Any, ...]", value)
        return dict(zip(getattr(value, "_fields", range(len(items))), items, strict=True))
    if isinstance(value, type):
        return None
    if hasattr(value, "named_variables"):
        return value.named_variables()
    if not hasattr(value, "named_parameters"):
        return None
    parameters = value.named_parameters()
    if not isinstance(parameters, Mapping):
        raise ArgumentTypeError(
            f"{what}: a {type(value).__name__} of {type(value).__module__.split('.')[0]} is no module of "
            "hybridflow", got=path or None, hint="Give its state_dict()."
        )
    modules = value.named_modules() if hasattr(value, "named_modules") else {}
    for inner, module in modules.items():
        contents.modules[".".join([part for part in (path, inner) if part])] = module
    unknown = [f"{inner or path or type(value).__name__}" for inner, module in modules.items() if unsized(module)]
    if unknown:
        raise ArgumentError(f"{what}: there are layers whose sizes are not known yet", got=listed(unknown),
                            hint="Give the sizes, or call the model once before.")
    buffers = value.named_buffers() if hasattr(value, "named_buffers") else {}
    return {**cast("Mapping[str, Any]", parameters), **buffers}


def _unknown(value: Any, path: str, what: str) -> ArgumentTypeError:
    where = f"{path!r} is a {type(value).__name__}" if path else f"a {type(value).__name__}"
    return ArgumentTypeError(f"{what}: {where}, which has no arrays", got=repr(value)[:80],
                             hint="Give a module, an optimizer, or a mapping of arrays; texts go into metadata=.")


def snapshot_of(values: Mapping[str, Any], what: str, *, copy: bool) -> dict[str, Any]:
    """Return raw values by path; those of Variables are all from one moment, and later assignments do not change them.

    The values of Variables need no copy. An update in place, or a compiled call that would donate the memory, copies a
    value that somebody else still holds.

    Args:
        values: a mapping as `flat` returns it.
        what: the caller, for messages.
        copy: whether NumPy arrays are copied, since their owner may write to them.
    """
    others = {path: _raw(one, what, copy) for path, one in values.items() if not isinstance(one, Variable)}
    with WRITES:  # so that no call is in the middle of its assignments
        return {path: one.current() if isinstance(one, Variable) else others[path] for path, one in values.items()}


def _raw(value: Any, what: str, copy: bool) -> Any:
    """Return the raw value of something that is not a Variable."""
    if type(value) is np.ndarray and value.dtype.isnative and not copy:
        as_dtype(value.dtype)  # raises for a dtype that tensors cannot have
        return value
    tensor = asarray(value)
    require_value(tensor, what)
    return tensor._value


def on_host(value: Any) -> np.ndarray[Any, Any]:
    """Return a raw value as an array on the host, after waiting for it; it is copied only if necessary.

    If it lies on devices of several processes, all of them must call this.
    """
    if isinstance(value, np.ndarray):
        return value
    return PROCESS.read(value) if value.is_fully_addressable else host_array(gather(make_tensor(value)))


def fill(into: Any, values: Mapping[str, Any], *, what: str, hint: str) -> None:
    """Assign values to the Variables of a structure with the same paths: to all of them, or to none.

    Args:
        into: a structure as `flat` takes it; its leaves must be Variables.
        values: tensors or arrays by path, which nobody else will write to.
        what: the caller, for messages.
        hint: the next step if the paths are not the same.

    Raises:
        ArgumentTypeError: a leaf is no Variable.
        ArgumentError: a value is missing, is extra, or has another shape or dtype. Nothing has changed then.
    """
    assign_all(variables_of(flat(into, what), what), values, what=what, hint=hint)


def variables_of(known: Mapping[str, Any], what: str) -> Mapping[str, Variable]:
    """Return the mapping itself, checked to have only Variables.

    Raises:
        ArgumentTypeError: a value is no Variable.
    """
    for path, one in known.items():
        if not isinstance(one, Variable):
            raise ArgumentTypeError(f"{what}: {path!r} is a {type(one).__name__}, and only Variables are assigned",
                                    hint="Leave out into=, and use what hf.load returns.")
    return known
