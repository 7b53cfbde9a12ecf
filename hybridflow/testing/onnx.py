"""The check of the `onnx` column: what ONNX's own evaluator gives of an exported call is what the kernel gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridflow.core.errors import ExportError
from hybridflow.core.node import make_node
from hybridflow.core.onnx import onnx_module
from hybridflow.core.op import No
from hybridflow.ir.graph import Graph, input_node
from hybridflow.ir.onnx import model_of
from hybridflow.testing.calls import Array, Attrs, Call, as_tuple


def run_model(model: Any, feeds: dict[str, Array]) -> list[Array]:
    """Check a model in full and run it with ONNX's reference evaluator."""
    onnx_module("checker").check_model(model, full_check=True)
    evaluator = onnx_module("reference").ReferenceEvaluator(model)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # it computes with NumPy
        return [np.asarray(y) for y in evaluator.run(None, feeds)]


def run_exported(call: Call, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    """Run a call as an ONNX model; None where the column says that there is none."""
    if isinstance(call.op.onnx, No):
        return None
    nodes = [input_node(spec, f"x{index}") for index, spec in enumerate(call.specs)]
    infer = {**attrs, "residuals": False} if call.op.saves.hidden else attrs
    outputs = as_tuple(call.op.infer(*call.specs, **infer))
    node = make_node(call.op, tuple([(one, 0) for one in nodes]), attrs, outputs)
    graph = Graph(call.op.name, tuple(nodes), (node,), tuple([(node, index) for index in range(len(outputs))]))
    try:
        model = model_of(graph)
    except ExportError as e:
        globals()["LAST"] = str(e)
        return None
    return tuple(run_model(model, {f"x{index}": x for index, x in enumerate(inputs)}))
