"""Bridges for programs of other packages; `hybridflow.compat.v1` is that for TensorFlow 1."""

from hybridflow.compat import v1 as v1
from hybridflow.core.attached import attached as _attached

_attached("name_module")("hf.compat", __name__)
