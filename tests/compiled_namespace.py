"""The namespace of hybridflow with its functions compiled: what `tests.conformance --compiled` hands to the suite.

Every function whose result has a shape that follows from its arguments' shapes is `hf.compile`d, as is each function
of `linalg` and `fft`. The rest is hybridflow's own: functions whose shape depends on values, those that give no
tensors, and those that take in what others made.
"""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import Any

import hybridflow as hf

DYNAMIC = frozenset({"nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"})
"""Functions whose result's shape depends on values."""
FOREIGN = frozenset({"asarray", "from_dlpack", "repeat"})
"""Functions that look at what a trace does not have: other libraries' memory, or counts that make a shape."""
PLAIN = frozenset({"broadcast_shapes", "can_cast", "finfo", "iinfo", "isdtype", "result_type"})
"""Functions that give no tensors."""
STANDARD = tuple(
    name
    for name, value in vars(hf).items()
    if inspect.isfunction(value) and value.__module__.startswith("hybridflow.ops.")
    and name not in DYNAMIC | FOREIGN | PLAIN and not name.startswith("_")
)
"""The functions that are compiled."""


def compiled(function: Any) -> Any:
    """Return a function compiled, with its own signature for those who inspect it."""
    fast = hf.compile(function, max_traces=16)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fast(*args, **kwargs)

    return call


def _module(module: Any) -> SimpleNamespace:
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return SimpleNamespace(**{n: compiled(f) if inspect.isfunction(f) else f for n, f in found.items()})


for _name, _value in vars(hf).items():
    if not _name.startswith("__") or _name.startswith("__array"):
        globals()[_name] = compiled(_value) if _name in STANDARD else _value
for _name in ("linalg", "fft"):
    if hasattr(hf, _name):
        globals()[_name] = _module(getattr(hf, _name))
