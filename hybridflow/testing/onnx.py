"""Check the `onnx` column: ONNX's own evaluator must give the kernel's result for an exported call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from warnings import catch_warnings, simplefilter

import jax.numpy as jnp
import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import run_raw
from hybridflow.core.dtypes import bfloat16
from hybridflow.core.errors import ExportError
from hybridflow.core.node import make_node
from hybridflow.core.op import No
from hybridflow.export.onnx_format import model_of
from hybridflow.export.onnx_format.model import onnx_module
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, input_node
from hybridflow.testing.calls import Array, Attrs, Call, as_tuple, difference, trace_sample
from hybridflow.testing.checks import allowance, call_check, fail, rounds

Run = Callable[[Any, Sequence[Array]], list[Array]]
"""A function that runs a model on its inputs."""


@call_check
def onnx_is_kernel(call: Call) -> None:
    """The `onnx` column writes a valid model that gives the kernel's result, within the op's error bound.

    This includes the hidden outputs, if the column writes them. The sign of a zero is not compared, because ONNX
    leaves it open. Without the `onnx` package nothing is checked.
    """
    if isinstance(call.op.onnx, No) or find_spec("onnx") is None:
        return
    for attrs in call.with_residuals():
        outputs = run_exported(call, attrs)
        if outputs is not None:
            is_kernels(call, attrs, outputs)


def is_kernels(call: Call, attrs: Attrs, outputs: tuple[Array, ...]) -> None:
    """Raise if a model's outputs differ from the kernel's."""
    expected = call.run_kernel(attrs) if call.runs_on_host else call.run_lowering(attrs)
    for index, (a, b) in enumerate(zip(outputs, expected, strict=True)):
        allowed: Any = 0
        if rounds(b.dtype) and call.op.ulp:
            wide = {**call.wide.attrs, **{name: attrs[name] for name in ("residuals",) if name in attrs}}
            size = np.abs(b.astype(np.float64))
            allowed = 2 * (
                allowance(call, size, index, b.dtype, wide) if call.inputs
                else call.op.ulp * float(jnp.finfo(b.dtype).eps) * size
            )
        text = difference(a, b, allowed, signs=False)
        if text is not None:
            fail(call, f"the ONNX model and the kernel differ in output {index}: {text}")


@call_check
def onnx_keeps_open_sizes(call: Call) -> None:
    """A model of the sample's trace with symbolic sizes computes what the trace computes."""
    if isinstance(call.op.onnx, No) or find_spec("onnx") is None:
        return
    traced = trace_sample(call.op, call.sample, symbolic=True)
    if not any(type(size) is Dim for spec in traced.graph.input_specs for size in spec.shape):
        return
    try:
        model = model_of(traced.graph)
    except ExportError:
        return
    outputs = run_model(model, traced.arrays)
    expected = evaluate(
        traced.graph, traced.arrays, lambda node, xs, attrs: run_raw(node.op, [np.asarray(x) for x in xs], attrs)
    )
    for index, (a, y) in enumerate(zip(outputs, expected, strict=True)):
        b = np.asarray(y)
        allowed = 0.0
        if rounds(b.dtype):  # loosely: `onnx_is_kernel` judges each call of the trace closely
            allowed = 512 * float(jnp.finfo(b.dtype).eps) * float(np.max(np.abs(b), initial=1.0, where=np.isfinite(b)))
        text = difference(a, b, allowed, signs=False)
        if text is not None:
            fail(call, f"an ONNX model with symbolic sizes gives another output {index}: {text}")


def run_exported(call: Call, attrs: Attrs, run: Run | None = None) -> tuple[Array, ...] | None:
    """Export a call and run the model, with ONNX's evaluator unless `run` is given; None if it has no model."""
    nodes = [input_node(spec, f"x{index}") for index, spec in enumerate(call.specs)]
    outputs = as_tuple(call.op.infer(*call.specs, **attrs))
    node = make_node(call.op, tuple([(one, 0) for one in nodes]), attrs, outputs)
    graph = Graph(call.op.name, tuple(nodes), (node,), tuple([(node, index) for index in range(len(outputs))]))
    try:
        model = model_of(graph)
    except ExportError:
        return None
    invalid = onnx_module("checker").ValidationError, onnx_module("shape_inference").InferenceError
    try:
        return tuple((run or run_model)(model, call.inputs))
    except invalid as error:
        return fail(call, f"the ONNX model is not valid: {error}")


def run_model(model: Any, inputs: Sequence[Array]) -> list[Array]:
    """Check a model in full and run it with ONNX's reference evaluator."""
    onnx_module("checker").check_model(model, full_check=True)
    evaluator = onnx_module("reference").ReferenceEvaluator(model, new_ops=list(_repaired()))
    feeds = {one.name: x for one, x in zip(model.graph.input, inputs, strict=True)}
    with catch_warnings(), np.errstate(all="ignore"):
        simplefilter("ignore", RuntimeWarning)  # the evaluator computes with NumPy
        return [np.asarray(y) for y in evaluator.run(None, feeds)]


def run_in_runtime(model: Any, inputs: Sequence[Array]) -> list[Array]:
    """Run a model with ONNX Runtime; bfloat16 arrays are passed as float32."""
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    outer, narrow = _with_float32(model)
    session = runtime.InferenceSession(outer.SerializeToString(), options, providers=["CPUExecutionProvider"])
    input_names = {one.name for one in session.get_inputs()}
    feeds = {
        one.name: np.ascontiguousarray(x.astype(np.float32) if x.dtype == bfloat16 else x).reshape(x.shape)
        for one, x in zip(outer.graph.input, inputs, strict=True) if one.name in input_names
    }
    outputs = session.run(None, feeds)
    return [np.asarray(y).astype(bfloat16) if one else np.asarray(y) for y, one in zip(outputs, narrow, strict=True)]


def _with_float32(model: Any) -> tuple[Any, list[bool]]:
    """Return a model that takes and returns float32 in place of bfloat16, and flags for the outputs concerned."""
    helper, proto = onnx_module("helper"), onnx_module().TensorProto
    made, nodes = type(model)(), []
    made.CopyFrom(model)
    graph = made.graph
    for fields, ending in ((graph.input, "in"), (graph.output, "out")):
        for one in fields:
            if one.type.tensor_type.elem_type == proto.BFLOAT16:
                inner, one.name = one.name, f"{one.name}|{ending}"
                one.type.tensor_type.elem_type = proto.FLOAT
                ways = (one.name, inner, proto.BFLOAT16) if ending == "in" else (inner, one.name, proto.FLOAT)
                nodes.append((ending, helper.make_node("Cast", [ways[0]], [ways[1]], to=ways[2])))
    first = [node for ending, node in nodes if ending == "in"]
    last = [node for ending, node in nodes if ending == "out"]
    body = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(body)
    return made, [one.name.endswith("|out") for one in graph.output]


@cache
def _repaired() -> tuple[Any, ...]:
    """Return replacements for operators that the evaluator computes wrongly."""
    base: Any = onnx_module("reference.op_run").OpRun

    class Erf(base):
        """Erf in full precision; the evaluator's has only that of float32."""

        def _run(self, x: Any) -> Any:
            return (np.asarray(np.vectorize(math.erf, otypes=[x.dtype])(x)),)

    class LogSoftmax(base):
        """LogSoftmax without underflow; the evaluator's takes the logarithm of a softmax."""

        def _run(self, x: Any, axis: int = -1) -> Any:
            away = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
            return (away - np.log(np.sum(np.exp(away), axis=axis, keepdims=True)),)

    class ReduceLogSumExp(base):
        """ReduceLogSumExp that is -inf if every element is -inf; the evaluator's gives NaN."""

        def _run(self, x: Any, axes: Any, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
            del noop_with_empty_axes
            reduced = np.logaddexp.reduce(x, axis=tuple(axes.tolist()), keepdims=bool(keepdims), initial=-np.inf)
            return (np.asarray(reduced, x.dtype),)

    class Softsign(base):
        """Softsign that always returns an array; the evaluator's does not for shape ()."""

        def _run(self, x: Any) -> Any:
            return (np.asarray(x / (1 + np.abs(x))),)

    return Erf, LogSoftmax, ReduceLogSumExp, Softsign
