"""`hf.export.onnx`: write a function, a module or an artifact as an ONNX model that keeps its names."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import as_tensor
from hybridflow.export.artifact import RANDOM
from hybridflow.export.functions import function_of, specs_of
from hybridflow.export.loaded import Function
from hybridflow.export.onnx_format import write
from hybridflow.export.onnx_format.model import OPSET, OPSETS, Writer
from hybridflow.export.quantized import Plan, quantized_function
from hybridflow.ops.common import one_of
from hybridflow.passes.dead_code import dead_code
from hybridflow.passes.dead_residuals import dead_residuals
from hybridflow.saving.reader import PathLike, require_path
from hybridflow.tracing.xla_inputs import raw_value


@with_foreign_keywords
def onnx(
    path: PathLike, target: Any, *specs: Any, function: str = "predict", opset: int = OPSET,
    quantize: str | None = None, batches: Any = None,
) -> None:
    """Write a function and its weights as an ONNX model, for ONNX Runtime and others.

    Inputs have the names that an artifact gives them: the parameter, ``x``, or the path, ``given_x``. Results are named
    ``output``, ``output_0`` or by their keys, and weights by their paths, such as ``layers.0.weight``. Modules are
    exported in evaluation mode, whatever mode they are in. Checks, such as the range of indices, become an extra
    result, ``checks``, which is true where a check holds.

    Args:
        path: the file; an existing one is replaced. Weights of more than 1 GiB are written to a file beside it.
        target: a function or module; or an artifact, its path, or one of its functions.
        specs: the arguments of a function or module: `hf.TensorSpec` (None leaves a size open), or example tensors and
            arrays whose sizes the model gets. None for an artifact, which has its own.
        function: which function of an artifact.
        opset: the version of ONNX's operators: 21, 22 or 23.
        quantize: how products are quantized to int8: ``"weights"`` stores only the weights so; ``"dynamic"`` also
            multiplies in integers, with the range that inputs have at each call, which ONNX Runtime is fast with;
            ``"static"`` takes ranges found on `batches`, in the QDQ form that accelerators take. Convolutions stay
            floats with ``"dynamic"``, since runtimes are slow with them. Models of `hf.quantize` are written as they
            are.
        batches: for ``"static"``: an array that the function is called with, or an iterable of such, or of tuples of
            arguments.

    Raises:
        ExportError: ONNX has no counterpart of some ops; the error names each of them with its line.
        ArgumentError: another version of the operators, or another way to quantize.
        ArgumentTypeError: the arguments are in another order.
        MissingPackageError: the package ``onnx`` is not installed.

    Example:
        >>> import hybridflow as hf
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> net = hf.nn.Sequential(hf.nn.Linear(4, 3), hf.nn.relu)
        >>> hf.export.onnx(os.path.join(folder.name, "net.onnx"), net, hf.TensorSpec([None, 4]))
        >>> folder.cleanup()
    """
    require_path("onnx", path, "hf.export.onnx(path, function, *specs)")
    if opset not in OPSETS:
        raise ArgumentError(f"onnx: opset={opset!r} is no version that is written",
                            hint=f"Choose one of {', '.join(map(str, OPSETS))}.")
    source = function_of("onnx", target, specs_of(specs), function)
    if quantize is not None:
        source = _quantized(source, one_of("onnx", "quantize", quantize, [*_INPUTS]), batches)
    elif batches is not None:
        raise ArgumentError("onnx: batches= are for quantize=\"static\"", got="quantize=None")
    write(model_of(source, opset), path)


_INPUTS = {"weights": "float", "dynamic": "dynamic", "static": "static"}


def _quantized(function: Function, quantize: str, batches: Any) -> Function:
    products = ("linear", "matmul") if quantize == "dynamic" else ("linear", "matmul", "conv")
    quantized = quantized_function("onnx", function, Plan(_INPUTS[quantize], batches=batches, products=products))
    if quantized is function:
        raise ArgumentError(f"onnx: quantize={quantize!r}: the function has no products with weights",
                            got=function.name, hint="Leave quantize= out.")
    return quantized


def model_of(function: Function, opset: int = OPSET) -> Any:
    """Return a function as an ONNX `ModelProto`; see `onnx`."""
    # An artifact that an older hybridflow wrote may keep values for gradients.
    graph, fields = dead_code(dead_residuals(function.graph())), function._fields
    weights = graph.inputs[len(function.inputs) :]
    values = {
        node: np.asarray(raw_value(as_tensor(one)))
        for node, one in zip(weights, function._weights, strict=True)
        if one is not RANDOM
    }
    paths = ["random_state" if path == RANDOM else path for path in fields["weights"]]
    extra = [name for name, there in (("random_state", fields["random"]), ("checks", fields["checks"])) if there]
    outputs = [*function.outputs, *extra]
    return Writer(graph, values, outputs, [*function.inputs, *paths], opset).model()
