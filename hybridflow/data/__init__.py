"""`hf.data`: batches of arrays, examples and streams, made ahead in threads or processes, from saved positions."""

from hybridflow.core.attached import attached as _attached
from hybridflow.data.batches import Batches as Batches
from hybridflow.data.prefetch import Prefetched as Prefetched
from hybridflow.data.prefetch import prefetch as prefetch
from hybridflow.data.stream import Stream as Stream
from hybridflow.data.stream import stream as stream

_attached("name_module")("hf.data", __name__)
