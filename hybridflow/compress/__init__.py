"""`hf.quantize` and `hf.prune`: make models smaller, and say what that cost."""

from hybridflow.compress import prune as prune
from hybridflow.compress import quantize as quantize
