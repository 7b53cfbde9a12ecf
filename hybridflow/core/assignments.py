"""Assign values to many Variables by path: to all of them, or to none if one value does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridflow.backend.process_memory import return_free_memory
from hybridflow.core.device import device_of, is_host, place
from hybridflow.core.errors import ArgumentError
from hybridflow.core.mesh import lies_on_several, local_bytes
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor, require_value
from hybridflow.core.variable import WRITES, Variable

_LOOSE = "strict=False takes what is there by its path."
_RENAME = "No path is the same: rename the values' paths to those of the Variables."
_LARGE = 32 << 20
"""From so many bytes of values on, the memory of the old ones is given back; that takes some milliseconds."""
_SHOWN = 20
"""The number of paths of each kind that a message lists."""


def assign_all(
    known: Mapping[str, Variable],
    values: Mapping[str, Any],
    *,
    what: str,
    strict: bool = True,
    hint: str | None = None,
) -> None:
    """Assign each value to the Variable with the same path.

    Args:
        known: the Variables by path.
        values: tensors or arrays by path, which nobody else will write to.
        what: the name of the caller, for messages.
        strict: whether the paths of `known` and of `values` must be the same. If not, one at least must be in both.
        hint: the next step if they are not, where the caller knows a better one than `strict`.

    Raises:
        ArgumentError: if `strict` and paths are missing or extra; if a value has another shape or dtype than its
            Variable; if one Variable gets several values. The message names all problems, and nothing has changed.
    """
    given = {path: as_tensor(values[path]) for path in known if path in values}
    for tensor in given.values():
        require_value(tensor, what)
    none = bool(known and values and not given)
    arrays = {
        "missing": [path for path in known if path not in values] if strict or none else [],
        "extra": [str(path) for path in values if path not in known] if strict or none else [],
        "of another shape or dtype": [
            f"{path} ({tensor.spec}, not {known[path].spec})"
            for path, tensor in given.items()
            if (tensor.shape, tensor.dtype) != (known[path].shape, known[path].dtype)
        ],
    }
    if not any(arrays.values()):
        arrays["different for one Variable"] = _contradictions(known, given)
    wrong = "; ".join([f"{kind}: {listed(paths)}" for kind, paths in arrays.items() if paths])
    if wrong:
        step = None if arrays["of another shape or dtype"] else hint or (_LOOSE if strict else _RENAME)
        raise ArgumentError(f"{what}: the values do not fit, and nothing is changed", got=wrong, hint=step)
    placed = {path: beside(known[path], tensor) for path, tensor in given.items()}
    with WRITES:
        for path, tensor in placed.items():
            known[path].assign(tensor)
    if sum([one.spec.nbytes for one in placed.values()]) >= _LARGE:
        return_free_memory()


def _contradictions(known: Mapping[str, Variable], given: Mapping[str, Tensor]) -> list[str]:
    """Return the pairs of paths that give one Variable different values."""
    first: dict[int, str] = {}
    return [
        f"{path} and {before}"
        for path, tensor in given.items()
        if (before := first.setdefault(id(known[path]), path)) != path
        and local_bytes(tensor._value) != local_bytes(given[before]._value)
    ]


def beside(variable: Variable, tensor: Tensor) -> Tensor:
    """Return a value on the device of a Variable's current value; one that is traced or lies on several as it is."""
    value = tensor._value
    if value is None or lies_on_several(value):
        return tensor
    now = variable.current()
    if not isinstance(now, np.ndarray) and not is_host(device_of(now)):
        return make_tensor(place(value, device_of(now)))
    return tensor if isinstance(value, np.ndarray) or is_host(device_of(value)) else tensor.to("cpu")


def listed(paths: list[str]) -> str:
    """Return paths as text for a message; of a long list, only the first."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
