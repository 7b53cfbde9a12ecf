"""`hf.export.onnx`: a function, a module or an artifact as an ONNX model, named as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.errors import ArgumentError, message
from hybridflow.core.tensor import as_tensor
from hybridflow.export.artifact import RANDOM
from hybridflow.export.functions import function_of, specs_of
from hybridflow.export.loaded import Function
from hybridflow.export.onnx_format import write
from hybridflow.export.onnx_format.model import Writer
from hybridflow.export.onnx_format.package import OPSET, OPSETS
from hybridflow.passes.dead_code import dead_code
from hybridflow.passes.dead_residuals import dead_residuals
from hybridflow.saving.reader import PathLike
from hybridflow.tracing.xla_inputs import raw_value


def onnx(target: Any, args: Any, path: PathLike, *, function: str = "predict", opset: int = OPSET) -> None:
    """Write a function as an ONNX model with its weights, which ONNX Runtime and others run.

    Inputs are called what they are called in the artifact: by parameter, ``x``, or by path, ``given_x``; results
    ``output``, ``output_0`` or by their keys; weights by their paths, ``layers.0.weight``. Modules are exported in
    evaluation mode. What is checked, such as the range of indices, is one more result, ``checks``, true where all is
    right.

    Args:
        target: a function or module; or an artifact, its path, or one of its functions.
        args: an argument or a tuple of them: `hf.TensorSpec` (None is a size left open), or tensors and arrays of the
            sizes that the model is to have, as `torch.onnx.export` takes them. None for an artifact.
        path: the file; one that is there is replaced. Weights of more than 1 GiB are written to a file beside it.
        function: which function of an artifact.
        opset: the version of ONNX's operators: 21, 22 or 23.

    Raises:
        ExportError: naming every operation that ONNX has no counterpart of, with its line.
        ArgumentError: another version of the operators.
        MissingPackageError: the package ``onnx`` is not installed.

    Example:
        >>> import hybridflow as hf
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> net = hf.nn.Sequential(hf.nn.Linear(4, 3), hf.nn.relu)
        >>> hf.export.onnx(net, hf.TensorSpec([None, 4]), os.path.join(folder.name, "net.onnx"))
        >>> folder.cleanup()
    """
    if opset not in OPSETS:
        raise ArgumentError(
            message(f"onnx: opset={opset!r} is no version that is written",
                    hint=f"Choose one of {', '.join(map(str, OPSETS))}.")
        )  # fmt: skip
    specs = () if args is None else specs_of(args if isinstance(args, tuple) else (args,))
    write(model_of(function_of("onnx", target, specs, function), opset), path)


def model_of(function: Function, opset: int = OPSET) -> Any:
    """Return a function as an ONNX `ModelProto`; see `onnx`."""
    graph, fields = dead_code(dead_residuals(function.graph())), function._fields
    weights = graph.inputs[len(function.inputs) :]
    values = {
        node: np.asarray(raw_value(as_tensor(one)))
        for node, one in zip(weights, function._weights, strict=True)
        if one is not RANDOM
    }
    paths = ["random_state" if path == RANDOM else path for path in fields["weights"]]
    more = [name for name, there in (("random_state", fields["random"]), ("checks", fields["checks"])) if there]
    outputs = [*function.outputs, *more]
    return Writer(graph, values, outputs, [*function.inputs, *paths], opset).model()
