"""CPU devices for tests, and gathering what lies on several devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64, xla_has_started
from hybridflow.core.context import is_tracing
from hybridflow.core.device import is_host
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DeviceError, LayoutError
from hybridflow.core.mesh import on_one_device
from hybridflow.core.processes.member import member
from hybridflow.core.tensor import Tensor, as_tensor, host_array, make_tensor


def cpu_devices(count: int) -> None:
    """Make the CPU appear as several devices, to try programs for many devices on any machine.

    The devices share the processor's cores, so programs do not become faster. Call it before anything uses a device:
    at the start of a program, after the imports.

    Args:
        count: the number of devices, at least 1.

    Raises:
        ArgumentTypeError: `count` is no integer.
        ArgumentError: `count` is less than 1.
        DeviceError: a device was used already, and there are not that many.

    Example:
        >>> import hybridflow as hf
        >>> hf.distribute.cpu_devices(1)
    """
    if type(count) is not int:
        raise ArgumentTypeError(f"cpu_devices: the number of devices is a {type(count).__name__}")
    if count < 1:
        raise ArgumentError(f"cpu_devices: {count} devices", hint="Ask for 1 or more.")
    if xla_has_started():
        there = len(jax.devices("cpu"))
        if there != count:
            raise DeviceError(
                f"cpu_devices: a device was used before, when there {'was' if there == 1 else 'were'} {there}",
                got=f"cpu_devices({count})", hint="Call it at the start of the program, after the imports."
            )
        return
    jax.config.update("jax_num_cpu_devices", count)


def gather(x: Any) -> Tensor:
    """Return a value as one tensor on one device, wherever its parts lie.

    If parts lie on devices of other processes, all processes must call this.

    Args:
        x: a tensor or Variable, on one device or several, or anything `hf.asarray` takes.

    Returns:
        The tensor: on the host if the devices are CPUs, else on the first of them.

    Raises:
        ProgramsDifferError: another process does not gather the same value.
        DeviceLostError: another process has ended or is stuck.
        LayoutError: inside a compiled function, where values have no place yet; use `hf.constrain` there.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"data": 1})
        >>> v = hf.Variable([1.0, 2.0], layout=("data",), mesh=mesh)
        >>> hf.distribute.gather(v)
        Tensor([1., 2.], dtype=float32)
    """
    if is_tracing():
        raise LayoutError("gather: a compiled function's values have no place while it is traced",
                          hint="Write hf.constrain(x, (None, ...)) to have the whole on every device.")
    tensor = as_tensor(x)
    value = tensor._value
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return make_tensor(_from_all(value), tensor._edge)
    if tensor.device == "cpu":
        return make_tensor(host_array(tensor), tensor._edge)
    return make_tensor(on_one_device(value), tensor._edge)


def _from_all(value: Any) -> Any:
    """Return the whole of a raw value that lies on devices of several processes."""
    if not value.is_fully_replicated:
        joined = member()
        what = f"{value.shape} {value.dtype} {value.sharding.spec}"
        if joined is None:
            raise DeviceError("gather: a value lies on devices of other processes", got=what,
                              hint="Call hf.distribute.initialize() first.")
        joined.compare("gather", what, lambda: [what])
        whole = jax.sharding.NamedSharding(value.sharding.mesh, jax.sharding.PartitionSpec())
        with enable_x64(), joined.running():
            value = jax.block_until_ready(jax.jit(_itself, out_shardings=whole)(value))
    part = value.addressable_data(0)
    return np.asarray(part) if is_host(part.device) else part


def _itself(x: Any) -> Any:
    return x
