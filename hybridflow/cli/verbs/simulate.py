"""``hybridflow simulate``: estimate the time and memory of a step on devices that need not exist."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

import hybridflow as hf
from hybridflow.analysis.simulation import MeshSweep, Simulation
from hybridflow.backend.files import write_text
from hybridflow.cli.arguments import add_target, positive
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_ending, require_files
from hybridflow.cli.targets import load_target
from hybridflow.core.errors import ArgumentError
from hybridflow.core.html import page
from hybridflow.tracing.function import CompiledFunction

HELP = "estimate the time and memory of a step on devices that need not exist"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_target(parser)
    parser.add_argument("--mesh", metavar="AXIS=SIZE,...", help="such as data=256,stage=4,model=8; the last are near")
    parser.add_argument("--devices", type=positive, metavar="N", help="try all meshes of so many devices")
    parser.add_argument("--axes", metavar="AXIS,...", help="with --devices: the axes; those of the function by default")
    parser.add_argument("--batch", metavar="AXIS", help="split the batch along it, if the function is not compiled")
    parser.add_argument(
        "--hardware", required=True, metavar="NAME|FILE.toml",
        help=f"{', '.join(hf.Hardware.shipped())}, or a file in the same form",
    )
    parser.add_argument("--out", type=Path, help="a page (.html), or with --devices a picture (.svg)")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Print the estimate for a mesh, or those for all meshes of a number of devices, and write a page or a picture."""
    if (arguments.mesh is None) == (arguments.devices is None):
        raise ArgumentError("simulate: give either --mesh or --devices",
                            hint="Example: --mesh data=256,model=8, --devices 64.")
    sweeps = arguments.devices is not None
    require_files("simulate", arguments.out)
    require_ending("simulate", arguments.out, ".html", *([".svg"] if sweeps else []))
    hardware = hf.Hardware.load(arguments.hardware)
    mesh = None if sweeps else _sizes(arguments.mesh)
    axes = [*mesh] if mesh is not None else None if arguments.axes is None else arguments.axes.split(",")
    target = load_target(arguments.target, arguments.shapes, values=False)
    function = _on_a_mesh(target.function, axes, arguments.batch)
    found: Simulation | MeshSweep
    with users_errors():
        if mesh is None:
            found = hf.simulate_meshes(
                function, *target.args, devices=arguments.devices, axes=axes, hardware=hardware, **target.kwargs
            )
        else:
            found = hf.simulate(function, *target.args, mesh=mesh, hardware=hardware, **target.kwargs)
    console.print(found)
    _write(arguments.out, found, target.name)
    return True


def _sizes(text: str) -> dict[str, int]:
    """Return a mesh's sizes from a text such as ``data=256,model=8``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1 or name in sizes:
            raise ArgumentError(f"simulate: --mesh {text!r}: {part!r} is no axis with a size",
                                hint="Example: data=256,stage=4,model=8.")
        sizes[name] = int(size)
    return sizes


def _on_a_mesh(function: Any, axes: list[str] | None, batch: str | None) -> Any:
    """Return a function that is compiled for a mesh: the given one, or it with its batch split along an axis."""
    if isinstance(function, CompiledFunction):
        if batch is not None:
            raise ArgumentError("simulate: --batch is for functions that are not compiled",
                                hint="Give it to hf.compile.")
        return function
    if axes is None or (batch is not None and batch not in axes):
        raise ArgumentError("simulate: the function is compiled for no mesh, so that its axes are not known",
                            got=f"--axes {','.join(axes or [])} --batch {batch}",
                            hint="Give --axes data --batch data, or compile it with mesh= and its layouts.")
    return hf.compile(function, mesh=hf.Mesh(dict.fromkeys(axes, 1)), batch=batch)


def _write(path: Path | None, found: Simulation | MeshSweep, name: str) -> None:
    if path is None:
        return
    if path.suffix == ".svg" and isinstance(found, MeshSweep):
        found.to_svg(path)
    else:
        write_text(path, page(f"Estimates for {name}", found._repr_html_()))
    Console(stderr=True).print(f"Written: {path}", markup=False, highlight=False, soft_wrap=True)
