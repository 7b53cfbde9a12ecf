"""``hybridflow compare``: run functions eagerly and compiled, judge the results and time both."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hybridflow.analysis.compare import compare
from hybridflow.analysis.compare.outputs import Shown
from hybridflow.cli.arguments import TARGET_HELP, add_shapes, positive
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_files, require_picture
from hybridflow.cli.targets import Modules, load_function, load_targets
from hybridflow.core.errors import TargetError

HELP = "run a function eagerly and compiled, judge the results and time both"
_SEVERAL_HELP = "Several, or FILE.py:f,g, are compared side by side, with the arguments of the first"
_SIZES_HELP = "compare at each of these sizes: FUNCTION_inputs in the file makes its arguments, or n stands in --shapes"
_PEERS_HELP = (
    "the same computation with other packages: torch=FILE.py:FUNCTION, jax=... or numpy=..., which get their arrays"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("target", nargs="+", metavar="FILE.py:FUNCTION", help=f"{TARGET_HELP}. {_SEVERAL_HELP}")
    add_shapes(parser)
    parser.add_argument("--repeats", type=positive, help="calls of each mode to time; default: about a second")
    parser.add_argument("--gradients", action="store_true", help="compare gradients too")
    parser.add_argument("--agree", action="store_true", help="judge the functions' results against the first's")
    parser.add_argument("--sizes", nargs="+", type=positive, metavar="N", help=_SIZES_HELP)
    parser.add_argument("--peers", nargs="+", metavar="NAME=FILE.py:FUNCTION", help=_PEERS_HELP)
    parser.add_argument("--out", type=Path, help="a page to write: the tables and the plot")
    parser.add_argument("--json", type=Path, help="write all figures as JSON")
    parser.add_argument("--plot", type=Path, help="write the plot, in the format of the file's ending")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Print the comparison, write it if asked, and return whether all results are the same."""
    require_files("compare", arguments.out, arguments.json, arguments.plot)
    require_picture("compare", arguments.plot)
    sizes = arguments.sizes
    modules: Modules = {}
    target, functions = load_targets(arguments.target, arguments.shapes, modules, sized=sizes is not None)
    peers = {name: load_function(text, modules) for name, text in _peers(arguments.peers or ()).items()}
    with users_errors(), progress_bar(console) as progress:
        shown: Shown = compare(
            functions if len(functions) > 1 else functions[0], *target.args, repeats=arguments.repeats,
            gradients=arguments.gradients, agree=arguments.agree, peers=peers, sizes=sizes, inputs=target.inputs,
            progress=progress, **target.kwargs,
        )
    shown.print(console)
    for path, write, what in (
        (arguments.out, shown.to_html, "Report"), (arguments.json, shown.to_json, "Figures"),
        (arguments.plot, shown.plot, "Plot"),
    ):
        if path is not None:
            write(path)
            console.print(f"{what}: {path}", markup=False, highlight=False)
    return shown.same


def _peers(texts: Sequence[str]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for name, target in map(_peer, texts):
        if name in paths:
            raise TargetError(f"--peers: {name!r} is named twice",
                              hint=f"Tell them apart, for example {name}.compile=...")
        paths[name] = target
    return paths


def _peer(text: str) -> tuple[str, str]:
    """Return the name and the target of ``NAME=FILE.py:FUNCTION``."""
    name, equals, target = text.partition("=")
    if not equals:
        raise TargetError(f"--peers: {text!r} does not say which package it is for",
                          hint=f"Write torch={text}, for example.")
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
