"""Public names that only some programs use: the modules they are in are imported when one is first asked for.

What compares, costs, profiles and tests functions draws tables and pages with packages of its own, and would make up a
fifth of the time that ``import hybridflow`` takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hybridflow.tracing.costing import Costing, on_cost

MODULES = ("analysis", "debugging", "summary", "testing")
NAMES = {
    "Comparison": "compare", "Comparisons": "compare", "Sweep": "compare", "compare": "compare",
    "CostReport": "cost", "XlaCheck": "cost", "cost": "cost",
    "Profile": "profile", "profile": "profile",
}  # fmt: skip
"""Each name, and the module of `hybridflow.analysis` that it is in."""


def imported(name: str) -> Any:
    """Return a module of `MODULES`, or what has a name of `NAMES`: the package's ``__getattr__``.

    Raises:
        AttributeError: another name.
    """
    if name in MODULES:
        return import_module(f"hybridflow.{name}")
    package, where = import_module("hybridflow"), NAMES.get(name)
    if where is None:
        raise AttributeError(f"module 'hybridflow' has no attribute {name!r}", name=name, obj=package)
    found = getattr(import_module(f"hybridflow.analysis.{where}"), name)
    setattr(package, name, found)
    return found


def _report_of(costing: Costing) -> Any:
    from hybridflow.analysis.cost import report_of

    return report_of(costing)


on_cost(_report_of)
