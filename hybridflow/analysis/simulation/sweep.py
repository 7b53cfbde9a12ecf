"""`hf.simulate_meshes`: estimates for all meshes of a number of devices, the fastest that fits first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from hybridflow.analysis.memory import format_size
from hybridflow.analysis.simulation.hardware import Hardware, as_hardware
from hybridflow.analysis.simulation.simulate import Simulation, format_seconds, simulate
from hybridflow.backend.files import write_text
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, LayoutError, ShapeError
from hybridflow.core.report import Report
from hybridflow.pictures.bars import Bar, bars_svg

_SHOWN = 16
"""The largest number of meshes that the table and the picture show."""
_PARTS = ("compute", "communication", "bubble")


@dataclass(frozen=True, repr=False)
class MeshSweep(Report):
    """The result of `hf.simulate_meshes`: estimates; it prints as a table, in notebooks too.

    Attributes:
        simulations: those that fit into the memory first, the fastest first.
        hardware: what the devices are.
        notes: the meshes that are not possible, and why.
    """

    simulations: tuple[Simulation, ...]
    hardware: Hardware
    notes: tuple[str, ...]

    @property
    def best(self) -> Simulation | None:
        """The fastest one that fits into the memory; None if nothing fits."""
        return self.simulations[0] if self.simulations and self.simulations[0].fits else None

    def table(self) -> Table:
        """Return the table for a `rich` console."""
        one = self.simulations[0] if self.simulations else None
        of = "" if one is None else f" of one call of {one.name} on {one.devices} devices"
        table = Table(title=Text(f"Estimates{of}: {self.hardware.name}"), title_justify="left")
        table.add_column("mesh")
        for title in ("time", *_PARTS, "memory per device", "fits"):
            table.add_column(title, justify="right")
        for found in self.simulations[:_SHOWN]:
            table.add_row(
                said_mesh(found.mesh), format_seconds(found.seconds), *[f"{found.share(part):.1%}" for part in _PARTS],
                format_size(found.memory), "yes" if found.fits else "no",
            )
        if self.simulations[_SHOWN:]:
            table.add_row(f"and {len(self.simulations) - _SHOWN} more", *[""] * 6)
        return table

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Write a picture: a bar per mesh, in parts for computing, sending and waiting.

        Args:
            path: the file.

        Raises:
            ArgumentError: no mesh was possible.
        """
        if not self.simulations:
            raise ArgumentError("to_svg: no mesh is possible", got="\n".join(self.notes))
        one = self.simulations[0]
        bars = [
            Bar(
                said_mesh(found.mesh), [(part, getattr(found, part)) for part in _PARTS],
                f"{format_seconds(found.seconds)}, {format_size(found.memory)}" + ("" if found.fits else ": too much"),
                not found.fits,
            )
            for found in self.simulations[:_SHOWN]
        ]
        title = f"Estimated time of one call of {one.name} on {one.devices} x {self.hardware.name}"
        write_text(path, bars_svg(title, bars))

    def parts(self) -> list[Any]:
        """Return the table, the notes, and what the estimates assume."""
        first = self.simulations[0].parts()[-1:] if self.simulations else []
        return [self.table(), *self.notes, *first]


def said_mesh(mesh: dict[str, int]) -> str:
    """Return a mesh as text, such as ``data=8, model=4``."""
    return ", ".join([f"{name}={size}" for name, size in mesh.items()])


def factorings(number: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a product of as many factors as there are axes, in every order."""
    if axes == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from [(first, *rest) for rest in factorings(number // first, axes - 1)]


def simulate_meshes(
    fn: Callable[..., Any],
    *args: Any,
    devices: int,
    hardware: Hardware | str | os.PathLike[str],
    axes: Sequence[str] | None = None,
    **kwargs: Any,
) -> MeshSweep:
    """Return estimates for every mesh of a number of devices: all sizes of its axes, in one order of them.

    Args:
        fn: the function, as `simulate` takes it.
        *args, **kwargs: what to call it with; a `TensorSpec` may stand for any tensor.
        devices: the number of devices.
        hardware: what they are, as `simulate` takes it.
        axes: the names of the axes; devices along the last one are neighbours. By default those of the mesh that `fn`
            is compiled for.

    Returns:
        The estimates, those that fit into the memory first, the fastest first. Meshes that do not suit the function
        are in its notes.

    Raises:
        ArgumentError: `devices` is less than 1, there are no axes, or there is no such hardware.
        ArgumentTypeError: `devices` is no integer, or `hardware` is none.

    Example:
        >>> import hybridflow as hf
        >>> step = hf.compile(lambda x: hf.mean(x), mesh=hf.Mesh({"data": 1}), batch="data")
        >>> found = hf.simulate_meshes(step, hf.TensorSpec([2**20, 64]), devices=16, hardware="a100-80gb")
        >>> [one.mesh for one in found.simulations], found.best.fits
        ([{'data': 16}], True)
    """
    there = as_hardware(hardware)
    if type(devices) is not int:
        raise ArgumentTypeError("simulate_meshes: devices is an integer", got=repr(devices)[:80])
    if devices < 1:
        raise ArgumentError(f"simulate_meshes: devices={devices}", hint="Give 1 or more.")
    compiled_for = getattr(fn, "_options", {}).get("mesh")
    names = tuple(axes) if axes is not None else () if compiled_for is None else compiled_for.axes
    if not names:
        raise ArgumentError("simulate_meshes: the function is compiled for no mesh, so that its axes are not known",
                            hint='Compile it with mesh= and its layouts, or pass axes=["data", "model"].')
    found: list[Simulation] = []
    notes: list[str] = []
    for sizes in factorings(devices, len(names)):
        mesh = dict(zip(names, sizes, strict=True))
        try:
            found.append(simulate(fn, *args, mesh=mesh, hardware=there, **kwargs))
        except (LayoutError, ShapeError, ArgumentError) as why:
            notes.append(f"{said_mesh(mesh)} is not possible: {str(why).splitlines()[0]}")
    found.sort(key=lambda one: (not one.fits, one.seconds))
    return MeshSweep(tuple(found), there, tuple(notes))
