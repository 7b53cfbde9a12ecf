"""`hf.data`: batches of arrays, made ahead in a thread if asked for, from a position that can be taken up again."""

from hybridflow.data.batches import Batches as Batches
from hybridflow.data.prefetch import Prefetched as Prefetched
from hybridflow.data.prefetch import prefetch as prefetch
