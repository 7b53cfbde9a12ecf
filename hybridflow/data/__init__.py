"""`hf.data`: batches of arrays, optionally made ahead in a thread, from a position that can be saved and restored."""

from hybridflow.data.batches import Batches as Batches
from hybridflow.data.prefetch import Prefetched as Prefetched
from hybridflow.data.prefetch import prefetch as prefetch
