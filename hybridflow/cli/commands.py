"""The commands but for the demo; each returns whether eager and compiled agree."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from importlib import metadata

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import hybridflow as hf
from hybridflow.analysis import compare as comparing
from hybridflow.analysis.parity import fresh_copy
from hybridflow.backend.options import EAGER_OPTIONS, OPTIONS, XlaOption, compiler_options
from hybridflow.cli.targets import UserError, load_target, users_errors
from hybridflow.xla.store.directory import Directory, Unsafe, Use
from hybridflow.xla.store.place import place


def compare(arguments: argparse.Namespace, console: Console) -> bool:
    """``hybridflow compare``: print the comparison, and write it if asked."""
    target = load_target(arguments.target, arguments.shapes)
    with users_errors():
        found = comparing.compare(
            target.function, *target.args, repeats=arguments.repeats, gradients=arguments.gradients, **target.kwargs
        )
    found.print(console)
    if arguments.out is not None:
        found.to_html(arguments.out)
        console.print(f"Report: {arguments.out}", markup=False, highlight=False)
    return found.same


def inspect(arguments: argparse.Namespace, console: Console) -> bool:
    """``hybridflow inspect``: print the graph as traced and after the passes, the cost, and the traces."""
    target = load_target(arguments.target, arguments.shapes)
    compiled = fresh_copy(target.function)
    with users_errors():
        lowered = compiled.lower(*target.args, **target.kwargs)
    for title, text in (
        ("Graph, as traced", lowered.as_text("graph")),
        ("Graph, after the passes", lowered.as_text("optimized")),
        ("Traces", str(compiled.explain())),
    ):
        console.rule(title, align="left")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.rule("Cost of one call", align="left")
    compiled.cost(*target.args, **target.kwargs).print(console)
    console.print(f"{comparing.count_kernels(lowered.as_text('hlo'))} kernels", highlight=False)
    return True


def profile(arguments: argparse.Namespace, console: Console) -> bool:
    """``hybridflow profile``: print where the time goes, eagerly and compiled, and write a page or a flame chart."""
    target = load_target(arguments.target, arguments.shapes)
    compiled = fresh_copy(target.function)
    with users_errors():
        for title, eager in (("Eager", True), ("Compiled", False)):
            with hf.config.run_eagerly(eager):
                compiled(*target.args, **target.kwargs)  # what only a first call takes is no part of it
                with hf.profile() as found:
                    for _ in range(arguments.repeats):
                        compiled(*target.args, **target.kwargs)
            console.rule(f"{title}, {arguments.repeats} calls", align="left")
            console.print(str(found), markup=False, highlight=False, soft_wrap=True)
            if arguments.out is not None and not eager:
                write = found.to_chrome_trace if arguments.out.suffix == ".json" else found.to_html
                write(arguments.out)
                console.print(f"Profile: {arguments.out}", markup=False, highlight=False)
    return True


def doctor(arguments: argparse.Namespace, console: Console) -> bool:
    """``hybridflow doctor``: print versions, devices and the XLA options in use, and compile something."""
    del arguments
    table = Table(title="Versions", title_justify="left", show_header=False)
    table.add_row("python", f"{platform.python_version()} ({platform.platform()})")
    for package in ("hybridflow", "jax", "jaxlib", "numpy", "rich", "matplotlib", "scikit-learn", "torch"):
        table.add_row(package, _version(package))
    console.print(table)
    table = Table(title="Devices", title_justify="left", show_header=False)
    for device in jax.devices():
        table.add_row(f"{device.platform}:{device.id}", str(device.device_kind))
    console.print(table)
    _print_options(console)
    console.print(_store_table())
    x = hf.asarray(np.linspace(-1, 1, 8, dtype=np.float32))
    same = comparing.compare(lambda x: hf.tanh(x) * x, x, repeats=1).same
    console.print(f"A compiled function gives the eager result: {'yes' if same else 'NO'}", highlight=False)
    return same


def cache(arguments: argparse.Namespace, console: Console) -> bool:
    """``hybridflow cache``: print what the store of executables on disk holds; ``clear`` empties it."""
    if arguments.action == "clear":
        path = place().path
        if path is not None:
            removed = _require_safe(Directory(path).clear)
            console.print(f"Removed {removed.entries} executables, {removed.size:,} bytes", highlight=False)
            return True
    console.print(_store_table())
    return True


def _store_table() -> Table:
    """Return a table of what the store of executables on disk holds, or of why there is none."""
    table = Table(title="Store of executables", title_justify="left", show_header=False)
    where = place()
    if where.path is None:
        table.add_row("off", where.why)
        return table
    table.add_row("directory", str(where.path))
    try:
        use = Directory(where.path).use()
    except Unsafe as error:
        table.add_row("not used", str(error))
        return table
    table.add_row("holds", f"{use.entries} executables, {use.size:,} of {where.most:,} bytes")
    table.add_row("loaded so far", f"{use.hits} times")
    return table


def _require_safe(run: Callable[[], Use]) -> Use:
    try:
        return run()
    except Unsafe as error:
        raise UserError(f"{error}\n") from None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _print_options(console: Console) -> None:
    """Print the table of XLA options, with the known problem that is the reason for each."""
    console.print(f"XLA options, for known problems of jaxlib (here {_version('jaxlib')})", highlight=False)
    for options, eager in ((OPTIONS, False), (EAGER_OPTIONS, True)):
        used = compiler_options(eager=eager)
        for option in options:
            state = "used" if option.name in used else "not used"
            line = f"  {option.backend}: {option.name}={option.value!r} ({state} here; jaxlib {_range(option)})"
            where = "operations compiled alone: " if eager else ""
            for text in (line, f"    {where}{option.why}"):
                console.print(text, markup=False, highlight=False, soft_wrap=True)


def _range(option: XlaOption) -> str:
    since = ".".join(map(str, option.since))
    return f"{since} on" if option.until is None else f"{since} to {'.'.join(map(str, option.until))}"
