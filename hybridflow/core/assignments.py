"""Values given to many Variables by path: all of them, or, if something does not fit, none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridflow.core.device import device_of, place
from hybridflow.core.errors import ArgumentError, message
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor, require_value
from hybridflow.core.variable import WRITES, Variable

_SHOWN = 20
"""How many paths a message lists of each kind."""


def assign_all(known: Mapping[str, Variable], values: Mapping[str, Any], *, what: str, strict: bool = True) -> None:
    """Give Variables the values that have their paths.

    Args:
        known: the Variables.
        values: tensors or arrays, which nobody else will write to.
        what: who does it, for messages.
        strict: whether there must be a value for each, and none besides.

    Raises:
        ArgumentError: paths that are missing or extra; other shapes and dtypes than the Variables have, strict or not;
            several values for one Variable. All of them are named, and nothing has changed.
    """
    given = {path: as_tensor(values[path]) for path in known if path in values}
    for tensor in given.values():
        require_value(tensor, what)
    found = {
        "missing": [path for path in known if path not in values] if strict else [],
        "extra": [str(path) for path in values if path not in known] if strict else [],
        "of another shape or dtype": [
            f"{path} ({tensor.spec}, not {known[path].spec})"
            for path, tensor in given.items()
            if (tensor.shape, tensor.dtype) != (known[path].shape, known[path].dtype)
        ],
    }
    if not any(found.values()):
        found["different for one Variable"] = _contradictions(known, given)
    wrong = "; ".join([f"{kind}: {listed(paths)}" for kind, paths in found.items() if paths])
    if wrong:
        hint = None if found["of another shape or dtype"] else "strict=False takes what is there by its path."
        raise ArgumentError(message(f"{what}: the values do not fit, and nothing is changed", got=wrong, hint=hint))
    placed = {path: _beside(known[path], tensor) for path, tensor in given.items()}
    with WRITES:
        for path, tensor in placed.items():
            known[path].assign(tensor)


def _contradictions(known: Mapping[str, Variable], given: Mapping[str, Tensor]) -> list[str]:
    """Return the paths whose Variable gets another value by an earlier path."""
    first: dict[int, str] = {}
    return [
        f"{path} and {before}"
        for path, tensor in given.items()
        if (before := first.setdefault(id(known[path]), path)) != path
        and tensor.numpy().tobytes() != given[before].numpy().tobytes()
    ]


def _beside(variable: Variable, tensor: Tensor) -> Tensor:
    """Return a value on the device where a Variable's present value is."""
    now = variable.current()
    if isinstance(now, np.ndarray) or device_of(now).platform == "cpu":
        return tensor
    return make_tensor(place(tensor._value, device_of(now)))


def listed(paths: list[str]) -> str:
    """Return paths for a message, the first of them if they are many."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
