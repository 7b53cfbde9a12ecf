"""Many devices: meshes of them, and how models and functions lie there."""

from hybridflow.core.attached import attached as _attached
from hybridflow.core.errors import DeviceLostError as DeviceLostError
from hybridflow.core.errors import NotLocalError as NotLocalError
from hybridflow.core.errors import ProgramsDifferError as ProgramsDifferError
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
from hybridflow.distribute.processes import barrier as barrier
from hybridflow.distribute.processes import broadcast as broadcast
from hybridflow.distribute.processes import from_local as from_local
from hybridflow.distribute.processes import initialize as initialize
from hybridflow.distribute.processes import process_count as process_count
from hybridflow.distribute.processes import process_index as process_index
from hybridflow.distribute.sharding import shard as shard
from hybridflow.nested.schedules import Schedule as Schedule
from hybridflow.nested.schedules import pipeline_schedule as pipeline_schedule

_attached("name_module")("hf.distribute", __name__)
