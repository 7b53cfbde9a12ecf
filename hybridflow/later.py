"""Modules and names that only some programs use, imported on first use.

The modules that compare, cost, profile and test functions need further packages for their tables and pages; importing
them all would slow down ``import hybridflow``. The first trace imports the conversion of source code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hybridflow.core.attached import attach

MODULES = (
    "analysis", "compat", "data", "debugging", "distribute", "export", "integrate", "metrics", "models", "optim",
    "optimize", "serve", "summary", "testing", "train", "tree",
)
NAMES = {
    "Comparison": "analysis.compare", "Comparisons": "analysis.compare", "Sweep": "analysis.compare",
    "compare": "analysis.compare", "CostReport": "analysis.cost", "XlaCheck": "analysis.cost", "cost": "analysis.cost",
    "Advice": "analysis.advise", "advise": "analysis.advise",
    "Hardware": "analysis.simulation", "MeshSweep": "analysis.simulation", "Simulation": "analysis.simulation",
    "simulate": "analysis.simulation", "simulate_meshes": "analysis.simulation",
    "Profile": "analysis.profile", "profile": "analysis.profile",
    "quantize": "compress", "prune": "compress",
    "compile_recorded": "tracing.compile_recorded", "to_jax": "tracing.to_jax",
    "shard_map": "nested.manual",
    "load": "saving.files", "save": "saving.files", "load_ipython_extension": "cli.magics",
}
"""Public names of the package, each with the module that defines it."""

ATTACHED = {
    "converted": "convert", "reason_of": "convert", "target": "convert.callee", "callee": "convert.callee",
    "handed_in": "convert.callee", "read_attribute": "convert.callee", "type_of": "convert.builtin",
    "read_whole": "convert.regions", "changing_nothing": "convert.regions",
    "handled_name": "convert.regions", "refused": "core.staged_number",
    "is_own_variable": "convert.runtime",
    "to_dot": "pictures", "to_mermaid": "pictures", "to_svg": "pictures", "to_html": "pictures",
    "to_model_explorer": "pictures",
    "show": "pictures", "in_notebook_html": "pictures", "to_onnx": "export.onnx_format",
    "text_of": "explain.views", "advice_on": "explain.advice", "useless_traces": "explain.advice",
    "register_rest": "later", "name_class": "foreign", "name_module": "foreign",
    "converted_function": "convert.build", "is_converted": "convert.build",
    "is_users_file": "guards.users",
    "is_object": "guards.objects", "vars_of": "guards.objects", "open_records": "guards.objects",
    "whole": "guards.reading", "named_by": "guards.scan",
    "read_attr": "guards.observe",
    "construction_of": "ir.construction", "print_graph": "ir.printer", "highlighted": "ir.printer",
    "table_of": "explain.views", "tree_of": "explain.views", "html_of": "explain.views", "report_of": "analysis.cost",
    "layers_of": "nn.table", "fsdp_placements": "distribute.sharding", "session_or_default": "compat.v1.session",
    "renamed": "saving.foreign", "step_for": "saving.foreign",
    "verified_call": "analysis.verify", "rewritten": "passes.pipeline",
}
"""Functions that a module needs from one that is imported after it, each with that module: see `core.attached`."""

RECORDS = ("optim.rules", "optim.matrix_rules", "ops.packing", "ops.quantization", "ops.integer_products",
           "ops.quantized_products", "ops.collectives", "nested.manual", "nested.pipelines",
           "ops.nn.ring_attention")
"""Modules that register ops which only they use. Parsing a graph's text with such an op imports them."""


def imported(name: str) -> Any:
    """Return a module of `MODULES` or the value of a name in `NAMES`; this is the package's ``__getattr__``.

    Raises:
        AttributeError: the name is in neither.
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
    """Import and return a function of `ATTACHED`."""
    return getattr(import_module(f"hybridflow.{ATTACHED[name]}"), name)


def register_rest() -> None:
    """Register the ops of `RECORDS`."""
    for module in RECORDS:
        import_module(f"hybridflow.{module}")


attach(attached_function)
