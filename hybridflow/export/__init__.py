"""`hf.export`: write functions to files that other programs load without the source, and that other packages read."""

from hybridflow.core.attached import attached as _attached
from hybridflow.export.artifact import save as save
from hybridflow.export.limits import Limits as Limits
from hybridflow.export.loaded import Artifact as Artifact
from hybridflow.export.loaded import Function as Function
from hybridflow.export.loaded import load as load
from hybridflow.export.quantized import quantize as quantize
from hybridflow.export.samples import Sample as Sample
from hybridflow.export.to_onnx import onnx as onnx
from hybridflow.export.to_stablehlo import stablehlo as stablehlo

_attached("name_module")("hf.export", __name__)
