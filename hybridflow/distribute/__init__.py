"""Many devices: meshes of them, and how models and functions lie there."""

from hybridflow.distribute.devices import cpu_devices as cpu_devices
from hybridflow.distribute.devices import gather as gather
from hybridflow.distribute.sharding import shard as shard
