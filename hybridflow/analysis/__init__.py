"""Comparison of eager and compiled runs, and reports about them."""

from hybridflow.core.attached import attached as _attached

_attached("name_module")("hf.analysis", __name__)
