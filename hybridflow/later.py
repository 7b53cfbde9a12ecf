"""What only some programs use: the modules it is in are imported when it is first asked for.

What compares, costs, profiles and tests functions draws tables and pages with packages of its own, and would make up a
fifth of the time that ``import hybridflow`` takes. The conversion of source is imported by the first trace.
"""

from __future__ import annotations

from importlib import import_module
from types import CodeType
from typing import Any

from hybridflow.core.functions import Hooks
from hybridflow.tracing.costing import Costing, on_cost

MODULES = ("analysis", "debugging", "summary", "testing")
NAMES = {
    "Comparison": "analysis.compare", "Comparisons": "analysis.compare", "Sweep": "analysis.compare",
    "compare": "analysis.compare", "CostReport": "analysis.cost", "XlaCheck": "analysis.cost", "cost": "analysis.cost",
    "Profile": "analysis.profile", "profile": "analysis.profile",
    "compile_recorded": "tracing.compile_recorded", "to_jax": "tracing.to_jax",
}  # fmt: skip
"""Each name, and the module that it is in."""


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
    found = getattr(import_module(f"hybridflow.{where}"), name)
    setattr(package, name, found)
    return found


def _report_of(costing: Costing) -> Any:
    from hybridflow.analysis.cost import report_of

    return report_of(costing)


def _converted(function: Any) -> Any:
    from hybridflow.tracing.convert import converted

    return converted(function)


def _reason_of(code: CodeType) -> str | None:
    from hybridflow.tracing.convert import reason_of

    return reason_of(code)


on_cost(_report_of)
Hooks.convert = staticmethod(_converted)
Hooks.reason = staticmethod(_reason_of)
