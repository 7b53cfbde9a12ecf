"""``hybridflow export``: a function of a file, or of an artifact, as a file for others."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from hybridflow.cli.arguments import TARGET_HELP
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_folder
from hybridflow.cli.targets import Target, called, load_target, open_spec
from hybridflow.core.errors import FileThereError, TargetError, message
from hybridflow.core.spec import spec_of
from hybridflow.core.tensor import Tensor
from hybridflow.export.artifact import save

HELP = "write a function or model of a file as an artifact that runs without its source"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the parser what the verb takes."""
    parser.add_argument("target", metavar="FILE.py:FUNCTION", help=TARGET_HELP.replace("--shapes", "--spec"))
    parser.add_argument(
        "--spec", nargs="+", metavar="SPEC",
        help="dtype and sizes of each argument, such as f32[None,784]; None is a size left open",
    )  # fmt: skip
    parser.add_argument("--to", type=Path, required=True, metavar="PATH", help="the artifact's directory")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Write the function."""
    path: Path = arguments.to
    require_folder("export", path)
    if path.exists() and not arguments.overwrite:
        raise FileThereError(message(f"export: {str(path)!r} is there already", hint="Replace it with --overwrite."))
    target = load_target(arguments.target, _specs(arguments.spec), values=False, option="--spec")
    if inspect.isclass(target.function):
        raise TargetError(
            message(f"target: {target.name!r} is a class", hint=f"Make one in the file: model = {target.name}(...).")
        )
    with users_errors():
        save(path, target.function, *_given(target), overwrite=arguments.overwrite)
    console.print(f"Artifact: {path}", markup=False, highlight=False, soft_wrap=True)
    return True


def _specs(texts: list[str] | None) -> list[Any] | None:
    return None if texts is None else [open_spec(text) for text in texts]


def _given(target: Target) -> tuple[Any, ...]:
    """Return the specs of the target's arguments, in the order of its parameters."""
    args = target.args
    if target.kwargs:
        bound = inspect.signature(called(target.function)).bind(*args, **target.kwargs)
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise TargetError(message(f"target: {target.name} takes arguments by name only", got=names))
        args = bound.args
    return jax.tree_util.tree_map(
        lambda one: spec_of(one) if hasattr(one, "dtype") and hasattr(one, "shape") else one, args,
        is_leaf=lambda one: isinstance(one, Tensor),
    )  # fmt: skip
