"""``hybridflow compare``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hybridflow.analysis import compare as comparing
from hybridflow.analysis.compare.shown import Shown
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_files, require_picture
from hybridflow.cli.targets import Modules, load_function, load_targets
from hybridflow.core.errors import TargetError, message


def compare(arguments: argparse.Namespace, console: Console) -> bool:
    """Print the comparison and write it if asked; return whether everything is the same."""
    require_files("compare", arguments.out, arguments.json, arguments.plot)
    require_picture("compare", arguments.plot)
    sizes = arguments.sizes
    modules: Modules = {}
    target, functions = load_targets(arguments.target, arguments.shapes, modules, sized=sizes is not None)
    peers = {name: load_function(text, modules) for name, text in _peers(arguments.peers or ()).items()}
    with users_errors(), progress_bar(console) as progress:
        found: Shown = comparing.compare(
            functions if len(functions) > 1 else functions[0], *target.args, repeats=arguments.repeats,
            gradients=arguments.gradients, agree=arguments.agree, peers=peers, sizes=sizes, inputs=target.inputs,
            progress=progress, **target.kwargs,
        )  # fmt: skip
    found.print(console)
    for path, write, what in (
        (arguments.out, found.to_html, "Report"), (arguments.json, found.to_json, "Figures"),
        (arguments.plot, found.plot, "Plot"),
    ):  # fmt: skip
        if path is not None:
            write(path)
            console.print(f"{what}: {path}", markup=False, highlight=False)
    return found.same


def _peers(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, target in map(_peer, texts):
        if name in found:
            raise TargetError(
                message(f"--peers: {name!r} is named twice", hint=f"Tell them apart, for example {name}.compile=...")
            )
        found[name] = target
    return found


def _peer(text: str) -> tuple[str, str]:
    """Return the name and the target of ``NAME=FILE.py:FUNCTION``."""
    name, equals, target = text.partition("=")
    if not equals:
        raise TargetError(
            message(f"--peers: {text!r} does not say which package it is for", hint=f"Write torch={text}, for example.")
        )
    return name, target


@contextmanager
def progress_bar(console: Console) -> Generator[Callable[[str, float], None] | None]:
    """Show a bar while a comparison runs, on a terminal only."""
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
