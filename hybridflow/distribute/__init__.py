"""Many devices: meshes of them, and how models and functions lie there."""

from hybridflow.distribute.attention import ring_attention as ring_attention
from hybridflow.distribute.devices import cpu_devices as cpu_devices
from hybridflow.distribute.devices import gather as gather
from hybridflow.distribute.manual import all_gather as all_gather
from hybridflow.distribute.manual import all_to_all as all_to_all
from hybridflow.distribute.manual import axis_index as axis_index
from hybridflow.distribute.manual import pmean as pmean
from hybridflow.distribute.manual import ppermute as ppermute
from hybridflow.distribute.manual import psum as psum
from hybridflow.distribute.manual import psum_scatter as psum_scatter
from hybridflow.distribute.pipeline import pipeline as pipeline
from hybridflow.distribute.sharding import shard as shard
from hybridflow.nested.schedules import Schedule as Schedule
from hybridflow.nested.schedules import pipeline_schedule as pipeline_schedule
