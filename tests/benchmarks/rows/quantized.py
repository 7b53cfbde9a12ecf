"""A multilayer perceptron on one example: floats here, floats and int8 in ONNX Runtime."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow import nn

from ..registry import Case, row


def _session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@row("one example through 784-1024-1024-10", tolerance=0.1, unit="example")
def mlp_in_int8(case: Case) -> None:
    """Time ours compiled, and what `hf.export.onnx` writes of it, as it is and with ``quantize="dynamic"``."""
    nn.init.seed(0)
    wide, hidden = case.size(784, 20), case.size(1024, 16)
    model = nn.Sequential(nn.Linear(wide, hidden), nn.relu, nn.Linear(hidden, hidden), nn.relu, nn.Linear(hidden, 10))
    x = case.normal(1, wide)
    fast, given = hf.compile(lambda x: model(x)), hf.asarray(x)
    case.ours(lambda: fast(given), comparable=lambda y: np.asarray(y.numpy()))
    if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None:
        case.notes.append("onnxruntime: onnx and onnxruntime are not installed")
        return
    folder = Path(case.enter(tempfile.TemporaryDirectory()))
    for name, quantize in (("onnxruntime", None), ("onnxruntime int8", "dynamic")):
        path = folder / f"{quantize}.onnx"
        hf.export.onnx(path, model, hf.TensorSpec([1, wide]), quantize=quantize)
        session = _session(path)
        case.peer(name, lambda session=session: session.run(None, {"x": x})[0])
