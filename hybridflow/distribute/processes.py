"""Several processes as one program: `initialize`, and what they do together outside of compiled functions."""

from __future__ import annotations

import os
import re
import secrets
from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64, join_processes, xla_has_started
from hybridflow.core.errors import ArgumentError, DeviceError, ShapeError
from hybridflow.core.forked import PROCESS
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.mesh import Layout, Mesh, check_axes, check_rank, checked_layout, require_local
from hybridflow.core.out_of_memory import read_array
from hybridflow.core.processes.environment import place_of
from hybridflow.core.processes.host import start_beside
from hybridflow.core.processes.member import MEMBER, Member, member
from hybridflow.core.processes.wire import encoded
from hybridflow.core.tensor import Tensor, as_tensor, host_array, make_tensor, new_tensor
from hybridflow.distribute.devices import cpu_devices
from hybridflow.ops.random import seed

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@with_foreign_keywords
def initialize(step_timeout: str | float = "5min") -> None:
    """Make this process one of several that run the same program; without others, do nothing.

    The environment says who the others are: ``hybridflow launch``, ``srun``, torchrun and its kin set it, or you do:
    ``HYBRIDFLOW_COORDINATOR=host:port`` of process 0, ``HYBRIDFLOW_PROCESS_INDEX`` (in Kubernetes' indexed jobs
    ``JOB_COMPLETION_INDEX``) and ``HYBRIDFLOW_PROCESS_COUNT``. Call it before anything uses a device. Then a `hf.Mesh`
    has the devices of all processes, and if one process fails, is stuck or runs another program, all end with a
    sentence that says so.

    Random numbers of `hf.random` begin with the same seed in all processes.

    Args:
        step_timeout: how long processes wait for one that does not come to the step they are at, in seconds or as
            ``"90s"``, ``"5min"`` or ``"1h"``. It must be longer than the longest thing that one process does alone.

    Raises:
        ArgumentError: the time is none, or the environment says a part only.
        DeviceError: a device was used already.
        DeviceLostError: nobody answers at the coordinator's address.

    Example:
        >>> import hybridflow as hf
        >>> hf.distribute.initialize(step_timeout="10min")
        >>> hf.distribute.process_index(), hf.distribute.process_count()
        (0, 1)
    """
    seconds = _seconds(step_timeout)
    place = place_of(os.environ)
    if MEMBER or place is None or (place.count == 1 and not place.hosted):
        return
    if xla_has_started():
        raise DeviceError("initialize: a device was used before", hint="Call it first of all, after the imports.")
    if place.devices is not None:
        cpu_devices(place.devices)
    if place.index == 0 and not place.hosted:
        start_beside(place)
    joined = Member(place, seconds)
    join_processes(joined.service, place.count, place.index, place.local)
    joined.ready()
    MEMBER.append(joined)
    PROCESS.one_of_several(_read)
    seed(joined.broadcast("seed", secrets.randbits(48)))


def _read(value: Any) -> Any:
    """Return a `jax.Array` as a NumPy array, or say why that cannot be done here."""
    require_local(value)
    with MEMBER[0].running():
        return read_array(value)


def _seconds(given: Any) -> float:
    """Return a time in seconds.

    Raises:
        ArgumentError: it is no positive time.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", given) if isinstance(given, str) else None
    if match is not None:
        seconds = float(match[1]) * _UNITS[match[2]]
    else:
        seconds = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else 0.0
    if not seconds > 0:
        raise ArgumentError("initialize: step_timeout is a time", got=repr(given)[:80],
                            hint='Write seconds, or "5min".')
    return seconds


def process_index() -> int:
    """Return the number of this process, from 0; 0 if it is alone."""
    return MEMBER[0].place.index if MEMBER else 0


def process_count() -> int:
    """Return the number of processes that run this program."""
    return MEMBER[0].place.count if MEMBER else 1


def barrier(name: str = "barrier") -> None:
    """Wait until all processes have come here.

    Args:
        name: a name, for messages; it must be the same in all processes.

    Raises:
        ProgramsDifferError: another process is at another place of the program.
        DeviceLostError: another process has ended or is stuck.

    Example:
        >>> import hybridflow as hf
        >>> hf.distribute.barrier()
    """
    joined = member()
    if joined is not None:
        joined.meet(encoded({"meet": "barrier", "name": name, "digest": name}))


def broadcast(x: Any) -> Tensor:
    """Return process 0's value in every process, such as a choice that it has made.

    Args:
        x: a tensor or anything `hf.asarray` takes, of the same shape and dtype in every process.

    Returns:
        Process 0's value as a tensor on one device.

    Raises:
        ProgramsDifferError: shapes or dtypes differ, or another process is at another place of the program.
        DeviceLostError: another process has ended or is stuck.

    Example:
        >>> import hybridflow as hf
        >>> hf.distribute.broadcast([1, 2])
        Tensor([1, 2], dtype=int32)
    """
    tensor = as_tensor(x)
    joined = member()
    if joined is None:
        return tensor
    spec = str(tensor.spec)
    joined.compare("broadcast", spec, lambda: [spec])
    mesh = Mesh({"process": -1})
    array = host_array(tensor)
    own = array if joined.place.index == 0 else np.zeros_like(array)
    parts = np.broadcast_to(own, (jax.local_device_count(), *array.shape))
    spread = from_local(parts, mesh, ("process", *(None,) * array.ndim))
    with enable_x64(), joined.running():
        first = jax.jit(lambda parts: parts[0], out_shardings=mesh.sharding(()))(spread._value)
        return new_tensor(np.asarray(first.addressable_data(0)))


def from_local(x: Any, mesh: Mesh, layout: Layout) -> Tensor:
    """Return a tensor over all processes whose parts here are this process's own data, such as its rows of a batch.

    Nothing is sent: each process places what it has on its own devices.

    Args:
        x: the part of this process: a tensor, or anything `hf.asarray` takes. In a split dimension it has this
            process's share; in others, the whole.
        mesh: the mesh, of all processes' devices.
        layout: how the whole lies on the mesh, such as ``("data", None)``.

    Returns:
        The whole, a tensor that lies on the mesh.

    Raises:
        LayoutError: the layout does not suit the value or the mesh.
        ShapeError: the part cannot be divided over this process's devices.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"data": 1})
        >>> hf.distribute.from_local([1.0, 2.0], mesh, ("data",))
        Tensor([1., 2.], dtype=float32)
    """
    tensor = as_tensor(x)
    entries = checked_layout(layout, "from_local")
    check_axes(entries, mesh, "from_local")
    check_rank(entries, tensor.shape, "from_local")
    array = host_array(tensor)
    sharding = mesh.sharding(entries)
    try:
        with enable_x64():
            value = jax.make_array_from_process_local_data(sharding, array)
    except ValueError as error:
        raise ShapeError(
            "from_local: the part cannot be divided over this process's devices",
            got=f"shape {tensor.shape}, layout {entries} on {mesh}",
            hint="Each process has the same number of rows, which its number of devices divides."
        ) from error
    return make_tensor(value)
