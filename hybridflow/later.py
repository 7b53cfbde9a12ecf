"""What only some programs use: the modules it is in are imported when it is first asked for.

What compares, costs, profiles and tests functions draws tables and pages with packages of its own, and would make up a
fifth of the time that ``import hybridflow`` takes. The conversion of source is imported by the first trace.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hybridflow.core.attached import attach

MODULES = ("analysis", "data", "debugging", "export", "metrics", "optim", "summary", "testing", "train")
NAMES = {
    "Comparison": "analysis.compare", "Comparisons": "analysis.compare", "Sweep": "analysis.compare",
    "compare": "analysis.compare", "CostReport": "analysis.cost", "XlaCheck": "analysis.cost", "cost": "analysis.cost",
    "Profile": "analysis.profile", "profile": "analysis.profile",
    "compile_recorded": "tracing.compile_recorded", "to_jax": "tracing.to_jax",
    "load": "saving.files", "save": "saving.files",
}  # fmt: skip
"""Each name, and the module that it is in."""

ATTACHED = {
    "converted": "convert", "reason_of": "convert", "target": "convert.callee", "callee": "convert.callee",
    "to_dot": "pictures", "to_svg": "pictures", "to_html": "pictures", "to_model_explorer": "pictures",
    "show": "pictures", "in_notebook_html": "pictures", "to_onnx": "export.onnx_format",
    "text_of": "explain.items", "advice_on": "explain.advice",
    "register_rest": "later",
    "table_of": "explain.views", "tree_of": "explain.views", "html_of": "explain.views", "report_of": "analysis.cost",
}  # fmt: skip
"""What things ask for that are further down in the import order, and the module that has it: see `attached`."""

RECORDS = ("optim.rules", "optim.matrix_rules")
"""Modules with records of operations that only they use: a text with such an operation asks for them."""


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
    value = getattr(import_module(f"hybridflow.{where}"), name)
    setattr(package, name, value)
    return value


def attached_function(name: str) -> Callable[..., Any]:
    """Return a function of `ATTACHED`."""
    return getattr(import_module(f"hybridflow.{ATTACHED[name]}"), name)


def register_rest() -> None:
    """Register the operations of `RECORDS`."""
    for module in RECORDS:
        import_module(f"hybridflow.{module}")


attach(attached_function)
