"""`hf.data`: batches of arrays, optionally made ahead in a thread, from a position that can be saved and restored."""

from hybridflow.core.attached import attached as _attached
from hybridflow.data.batches import Batches as Batches
from hybridflow.data.prefetch import Prefetched as Prefetched
from hybridflow.data.prefetch import prefetch as prefetch

_attached("name_module")("hf.data", __name__)
