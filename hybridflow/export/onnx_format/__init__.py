"""Write graphs as ONNX models, which Netron shows and ONNX's runtimes run."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridflow.backend.files import write_bytes
from hybridflow.core.errors import ExportError
from hybridflow.core.node import Node
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.export.onnx_format.model import Writer, onnx_module
from hybridflow.ir.graph import Graph

LARGEST = 1 << 30
"""The most bytes of constants inside the model's file; the format limits a message to 2 GiB."""


def model_of(graph: Graph, *, as_inputs: bool = False) -> Any:
    """Return a graph as an ONNX `ModelProto`; see `Graph.to_onnx`."""
    if not graph.outputs:
        raise ExportError(f"to_onnx: {graph.name}: the graph has no results",
                          hint="A graph made by hand computes what a session fetches; export a compiled function's.")
    values: Mapping[Node, Any] = {} if as_inputs else graph.captured
    arrays = {node: _array(value) for node, value in values.items()}
    return Writer(graph, arrays, graph.output_names).model()


def to_onnx(graph: Graph, path: str | PathLike[str], *, as_inputs: bool = False) -> None:
    """Write a graph as an ONNX model; see `Graph.to_onnx`."""
    write(model_of(graph, as_inputs=as_inputs), path)


def write(model: Any, path: str | PathLike[str]) -> None:
    """Write a model; if its constants are too large for its file, write them to a file beside it."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= LARGEST:
        write_bytes(path, model.SerializeToString())
        return
    target = Path(path)
    data = f"{target.name}.data"
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        part = Path(folder)
        onnx_module().save(model, part / target.name, save_as_external_data=True, location=data, size_threshold=1024)
        (part / data).replace(target.with_name(data))
        (part / target.name).replace(target)


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, Variable):
        return np.asarray(value.current())
    return np.asarray(value._value) if isinstance(value, Tensor) else np.asarray(value)
