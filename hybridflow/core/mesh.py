"""`Mesh`: devices arranged along named axes, and layouts: how a tensor's dimensions lie on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.device import find_device, is_host
from hybridflow.core.errors import ArgumentTypeError, LayoutError, NotLocalError
from hybridflow.core.forked import require_xla

Axis = str | tuple[str, ...] | None
"""The mesh axis that a dimension is split over, several of them (the first varies slowest), or None: not split."""
Layout = tuple[Axis, ...]
"""How a tensor lies on a mesh: one `Axis` per dimension."""


class _Several:
    """Whether a value may lie on several devices; while it is False, calls need not look for one."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = False


SEVERAL = _Several()


class Mesh:
    """Devices arranged along named axes; layouts say which axis of a tensor lies along which axis of the mesh.

    Args:
        sizes: the size of each axis, by name. One size may be -1: as many as the devices allow.
        devices: the devices, jax's own objects or names such as ``"gpu:0"``; by default the first ones of jax's
            default backend, as many as the sizes need.

    Raises:
        LayoutError: a size is not positive, no axis is given, or there are too few devices, or their number does not
            suit the sizes.
        ArgumentTypeError: the sizes are not a mapping of names to integers.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"data": 1})
        >>> mesh.shape, mesh.size
        ({'data': 1}, 1)
    """

    __slots__ = ("__dict__", "__weakref__", "_devices", "_sizes")

    def __init__(self, sizes: Mapping[str, int], *, devices: Sequence[Any] | None = None) -> None:
        wanted = _checked_sizes(sizes)
        require_xla("hf.Mesh")
        there = jax.devices() if devices is None else [_device(one) for one in devices]
        wanted = _filled(wanted, len(there))
        count = math.prod(wanted.values())
        if count > len(there) or (devices is not None and count != len(there)):
            raise LayoutError(
                f"Mesh: {wanted} needs {count} devices, {'there are' if devices is None else 'given are'} "
                f"{len(there)}", got=f"{there[0].platform} devices",
                hint="On a CPU, call hf.distribute.cpu_devices(n) before anything touches a device."
            )
        self._sizes = wanted
        self._devices: tuple[Any, ...] | None = tuple(there[:count])
        if count > 1:
            SEVERAL.used = True

    @classmethod
    def planned(cls, given: Mesh | Mapping[str, int], what: str) -> Mesh:
        """Return a mesh to predict programs for: the given one, or one of the given sizes without devices.

        Raises:
            ArgumentTypeError: it is neither.
        """
        if isinstance(given, Mesh):
            return given
        if not isinstance(cast(object, given), Mapping):
            raise ArgumentTypeError(f"{what}: mesh is a hf.Mesh, or sizes by axis", got=repr(given)[:80],
                                    hint='Write mesh={"data": 256}.')
        return cls.without_devices(given)

    @classmethod
    def without_devices(cls, sizes: Mapping[str, int]) -> Mesh:
        """Return a mesh that only has sizes, to predict what programs on it would do."""
        made = object.__new__(cls)
        made._sizes = _checked_sizes(sizes)
        made._devices = None
        _filled(made._sizes, 0)
        return made

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis, by name."""
        return dict(self._sizes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self._sizes.values())

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(self._sizes)

    @property
    def devices(self) -> tuple[Any, ...]:
        """The jax devices, the last axis varying fastest."""
        if self._devices is None:
            raise LayoutError("Mesh: it has sizes but no devices", got=str(self), hint="Make a hf.Mesh.")
        return self._devices

    @property
    def is_planned(self) -> bool:
        """Whether it has sizes but no devices."""
        return self._devices is None

    def stands_for(self, other: Mesh) -> bool:
        """Whether programs for it are programs for another mesh: the same one, or one of the same sizes."""
        return self == other or (self.is_planned and self.shape == other.shape)

    @cached_property
    def on_host(self) -> bool:
        """Whether the devices are CPUs."""
        return is_host(self.devices[0])

    @cached_property
    def processes(self) -> frozenset[int]:
        """The numbers of the processes whose devices belong to it."""
        return frozenset([device.process_index for device in self.devices])

    @property
    def spans_processes(self) -> bool:
        """Whether devices of several processes belong to it."""
        return len(self.processes) > 1

    @cached_property
    def of_jax(self) -> Any:
        """The `jax.sharding.Mesh` of the same devices and names; an abstract one if there are no devices."""
        if self._devices is None:
            types = (jax.sharding.AxisType.Auto,) * len(self.axes)
            return jax.sharding.AbstractMesh(tuple(self._sizes.values()), self.axes, axis_types=types)
        array = np.empty(self.size, object)
        array[:] = self.devices
        return jax.sharding.Mesh(array.reshape(tuple(self._sizes.values())), self.axes)

    def sharding(self, layout: Layout) -> Any:
        """Return jax's object for a layout on this mesh."""
        return jax.sharding.NamedSharding(self.of_jax, jax.sharding.PartitionSpec(*layout))

    def parts(self, axis: Axis) -> int:
        """Return into how many parts an entry of a layout splits a dimension."""
        return math.prod([self._sizes[name] for name in names_of(axis)])

    def _key(self) -> Any:
        return tuple(self._sizes.items()), self._devices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __copy__(self) -> Mesh:
        return self

    def __deepcopy__(self, memo: Any) -> Mesh:
        return self

    def __repr__(self) -> str:
        sizes = ", ".join([f"{name!r}: {size}" for name, size in self._sizes.items()])
        return f"Mesh({{{sizes}}})"


def _checked_sizes(sizes: Any) -> dict[str, int]:
    """Return sizes as a dict, or raise if they are not names with positive integers (one of them may be -1)."""
    if not isinstance(sizes, Mapping):
        raise ArgumentTypeError("Mesh: sizes are a mapping of axis names to integers", got=repr(sizes)[:80],
                                hint='Write hf.Mesh({"data": 8}).')
    pairs = dict(cast("Mapping[Any, Any]", sizes))
    for name, size in pairs.items():
        if type(name) is not str or not isinstance(size, int | np.integer) or isinstance(size, bool):
            raise ArgumentTypeError("Mesh: an axis is a name with an integer", got=f"{name!r}: {size!r}",
                                    hint='Write hf.Mesh({"data": 8}).')
        if size < 1 and size != -1:
            raise LayoutError(f"Mesh: axis {name!r} has size {size}", hint="Sizes are 1 or more, or one -1.")
    if not pairs:
        raise LayoutError("Mesh: no axis is given", hint='Write hf.Mesh({"data": -1}).')
    return {name: int(size) for name, size in pairs.items()}


def _filled(sizes: dict[str, int], devices: int) -> dict[str, int]:
    """Return sizes with -1 replaced by what the number of devices leaves for it."""
    open_ = [name for name, size in sizes.items() if size == -1]
    if not open_:
        return sizes
    others = math.prod([size for size in sizes.values() if size != -1])
    if len(open_) > 1 or not devices or devices % others:
        several = "several sizes are -1"
        raise LayoutError(f"Mesh: {several if len(open_) > 1 else f'{devices} devices cannot be divided by {others}'}",
                          got=str(sizes),
                          hint="One size may be -1; the others' product must divide the number of devices.")
    return {name: devices // others if size == -1 else size for name, size in sizes.items()}


def _device(one: Any) -> Any:
    return find_device(one) if isinstance(one, str) else one


# -- layouts ------------------------------------------------------------------------------------------------------


def names_of(axis: Axis) -> tuple[str, ...]:
    """Return the mesh axes that an entry of a layout names."""
    return () if axis is None else (axis,) if isinstance(axis, str) else axis


def checked_layout(layout: Any, what: str) -> Layout:
    """Return a layout as a tuple, or raise if it is none.

    Raises:
        LayoutError: it is no tuple of names and None, or a name is repeated.
    """
    given = cast("Iterable[Any]", layout) if isinstance(layout, tuple | list) else None
    entries = None if given is None else tuple([tuple(one) if isinstance(one, list) else one for one in given])
    if entries is None or not all([_is_axis(one) for one in entries]):
        raise LayoutError(f"{what}: a layout is a tuple with a mesh axis or None for each dimension",
                          got=repr(layout)[:80], hint='Write ("data", None), or () for a scalar.')
    names = [name for one in entries for name in names_of(one)]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise LayoutError(f"{what}: the mesh axis {repeated!r} is used twice", got=f"layout {entries}",
                          hint="A mesh axis can split one dimension only.")
    return entries


def is_layout(value: Any) -> bool:
    """Whether a value has the form of a layout; empty tuples have."""
    return isinstance(value, tuple) and all([_is_axis(one) for one in cast("tuple[Any, ...]", value)])


def _is_axis(one: Any) -> bool:
    several = isinstance(one, tuple) and all([isinstance(name, str) for name in cast("tuple[Any, ...]", one)])
    return one is None or isinstance(one, str) or several


def check_axes(layout: Layout, mesh: Mesh, what: str) -> None:
    """Raise if a layout names an axis that a mesh does not have."""
    for name in [name for one in layout for name in names_of(one)]:
        if name not in mesh.shape:
            raise LayoutError(f"{what}: the mesh has no axis {name!r}", got=f"layout {layout} on {mesh}",
                              hint=f"Its axes: {', '.join(mesh.axes)}.")


def check_rank(layout: Layout, shape: Sequence[Any], what: str) -> None:
    """Raise if a layout has not one entry per dimension."""
    if len(layout) != len(shape):
        raise LayoutError(f"{what}: the layout has {len(layout)} entries, the tensor {len(shape)} dimensions",
                          got=f"layout {layout} for shape {tuple(shape)}",
                          hint="Give a mesh axis or None per dimension.")


def indivisible(layout: Layout, shape: Sequence[int], mesh: Mesh) -> int | None:
    """Return the first dimension that a layout cannot split into equal parts, or None."""
    for dimension, (axis, size) in enumerate(zip(layout, shape, strict=True)):
        if size % mesh.parts(axis):
            return dimension
    return None


def check_fits(layout: Layout, shape: Sequence[int], mesh: Mesh, what: str) -> None:
    """Raise if a layout does not suit a shape and a mesh.

    Raises:
        LayoutError: the rank differs, the mesh has no such axis, or a size cannot be divided.
    """
    check_axes(layout, mesh, what)
    check_rank(layout, shape, what)
    dimension = indivisible(layout, shape, mesh)
    if dimension is not None:
        size, parts = shape[dimension], mesh.parts(layout[dimension])
        raise LayoutError(f"{what}: dimension {dimension} of size {size} cannot be divided by {parts}",
                          got=f"shape {tuple(shape)}, layout {layout} on {mesh}",
                          hint=f"Pad the dimension to {-(-size // parts) * parts}, or leave it whole: None.")


class Placement(NamedTuple):
    """Where the value of a Variable lies.

    Attributes:
        mesh: the mesh.
        layout: its layout there.
        read_as: the layout in which compiled functions read it, if that is another one: its parts are gathered. Its
            gradient lies as it does.
        again: whether its parts are gathered anew for the gradient, instead of kept until then.
    """

    mesh: Mesh
    layout: Layout
    read_as: Layout | None = None
    again: bool = False

    @property
    def sharding(self) -> Any:
        """The jax object."""
        return self.mesh.sharding(self.layout)

    def on(self, mesh: Mesh, shape: tuple[int, ...], name: str) -> Placement:
        """Return the placement on a mesh: a mesh without devices may have other sizes.

        Raises:
            LayoutError: it is another mesh, or the layout does not suit it.
        """
        if self.mesh == mesh:
            return self
        if not mesh.is_planned:
            raise LayoutError(f"Variable {name!r} lies on another mesh than the function's",
                              got=f"{self}; compiled for {mesh}", hint="Use one mesh for both.")
        if self.read_as is None:
            check_fits(self.layout, shape, mesh, f"Variable {name!r}")
            return Placement(mesh, self.layout)
        (over,) = [mine for mine, other in zip(self.layout, self.read_as, strict=True) if mine != other]
        check_axes(self.layout, mesh, f"Variable {name!r}")
        check_fits(self.read_as, shape, mesh, f"Variable {name!r}")
        return split_over(over, self.read_as, shape, mesh, again=self.again)

    def __str__(self) -> str:
        return f"{self.layout} on {self.mesh}"


def split_over(axis: Axis, layout: Layout, shape: tuple[int, ...], mesh: Mesh, *, again: bool) -> Placement:
    """Return a placement that also splits the largest dimension that it can over a mesh axis; see `Placement`."""
    parts = mesh.parts(axis)
    free = [i for i, one in enumerate(layout) if one is None and shape[i] % parts == 0 and shape[i]]
    if not free:
        return Placement(mesh, layout)
    split = max(free, key=lambda i: shape[i])
    return Placement(mesh, (*layout[:split], axis, *layout[split + 1 :]), layout, again)


def placement_of(name: str, shape: tuple[int, ...], layout: Any, mesh: Mesh | None) -> Placement:
    """Return the placement of a Variable, checked.

    Raises:
        LayoutError: there is no mesh, or the layout does not suit it or the shape.
    """
    if not isinstance(mesh, Mesh):
        raise LayoutError(f"Variable {name!r}: a layout needs the mesh that it is for",
                          got=f"layout={layout}, mesh={mesh!r}", hint='Pass mesh=hf.Mesh({"data": 8}) too.')
    entries = (None,) * len(shape) if layout is None else checked_layout(layout, f"Variable {name!r}")
    check_fits(entries, shape, mesh, f"Variable {name!r}")
    return Placement(mesh, entries)


def placed(value: Any, sharding: Any) -> Any:
    """Return a raw value where it should lie: itself if it is there."""
    if isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    with enable_x64():
        if isinstance(value, np.ndarray):
            value = value.copy()  # jax may share the memory, which others may hold and write to
        if not sharding.is_fully_addressable and (isinstance(value, np.ndarray) or value.is_fully_addressable):
            whole = np.asarray(value)  # each process has it, and places its own parts
            return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])
        return jax.device_put(value, sharding)


def lies_on_several(value: Any) -> bool:
    """Whether a raw value lies on more than one device."""
    return isinstance(value, jax.Array) and len(value.sharding.device_set) > 1


def is_elsewhere(value: Any) -> bool:
    """Whether parts of a raw value lie on devices of other processes only."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated


def require_local(value: Any) -> None:
    """Raise if parts of a raw value lie on devices of other processes.

    Raises:
        NotLocalError: they do.
    """
    if is_elsewhere(value):
        raise NotLocalError("a value lies on the devices of several processes, and its whole is needed here",
                            got=f"shape {value.shape}, {value.sharding.spec}",
                            hint="Call hf.distribute.gather(x) in every process, or compile the function: "
                                 "@hf.compile(mesh=mesh).")


def on_one_device(value: Any) -> Any:
    """Return a raw value on one device: gathered if it lies on several."""
    if not lies_on_several(value):
        return value
    if value.is_fully_replicated:
        return value.addressable_data(0)
    require_local(value)
    if is_host(value.addressable_data(0).device):
        return np.asarray(value)
    return jax.device_put(value, value.addressable_data(0).device)


def local_bytes(value: Any) -> bytes:
    """Return the bytes of a raw value that this process has."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return b"".join([np.asarray(one.data).tobytes() for one in value.addressable_shards])
    return np.asarray(value).tobytes()
