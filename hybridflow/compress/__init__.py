"""`hf.quantize` and `hf.prune`: make models smaller, and say what that cost."""

from hybridflow.compress import prune as prune
from hybridflow.compress import quantize as quantize
from hybridflow.core.attached import attached as _attached

_attached("name_module")("hf.prune", prune.__name__)
_attached("name_module")("hf.quantize", quantize.__name__)
