"""``hybridflow export``: write a function of a file or an artifact in a format for other programs."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

from rich.console import Console

from hybridflow.cli.arguments import TARGET_HELP
from hybridflow.cli.artifacts import function_of, load_artifact
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_files, require_folder
from hybridflow.cli.targets import Target, called, load_target, open_spec
from hybridflow.core.errors import ArgumentError, FileThereError, TargetError
from hybridflow.export.artifact import is_training, save
from hybridflow.export.functions import specs_of
from hybridflow.export.to_onnx import onnx
from hybridflow.export.to_stablehlo import stablehlo

HELP = "write a function or model as an artifact that runs without its source, as an ONNX model, or as StableHLO"
_FORMATS = {".onnx": "ONNX model", ".stablehlo": "StableHLO"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "target", metavar="FILE.py:FUNCTION|ARTIFACT",
        help=f"{TARGET_HELP.replace('--shapes', '--spec')}; or an artifact's directory, for the other formats",
    )
    parser.add_argument(
        "--spec", nargs="+", metavar="SPEC",
        help="dtype and sizes of each argument, such as f32[None,784]; None is a size left open, a name one that is "
        "the same wherever it stands: f32[batch,784] i32[batch]",
    )
    parser.add_argument(
        "--to", type=Path, required=True, metavar="PATH",
        help="a file (.onnx, .stablehlo), or else the artifact's directory",
    )
    parser.add_argument("--function", help="which function of an artifact, if it has several")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Write the function in the format that the path's ending names."""
    path: Path = arguments.to
    kind = _FORMATS.get(path.suffix, "Artifact")
    (require_folder if kind == "Artifact" else require_files)("export", path)
    if path.exists() and not arguments.overwrite:
        raise FileThereError(f"export: {str(path)!r} is there already", hint="Replace it with --overwrite.")
    trains = False
    if Path(arguments.target).is_dir():
        _export_artifact(arguments, kind)
    else:
        trains = _export_function(arguments, kind)
    console.print(f"{kind}: {path}", markup=False, highlight=False, soft_wrap=True)
    if trains:
        text = "The module is in training mode; what was exported is its evaluation mode, as after eval()."
        console.print(text, soft_wrap=True)
    return True


def _export_artifact(arguments: argparse.Namespace, kind: str) -> None:
    if kind == "Artifact" or arguments.spec is not None:
        raise ArgumentError(f"export: {arguments.target!r} is an artifact, whose functions have their specs",
                            hint="Write it --to MODEL.onnx or MODEL.stablehlo, without --spec.")
    function = function_of("export", load_artifact(Path(arguments.target)), arguments.function)
    if kind == "StableHLO":
        stablehlo(arguments.to, function)
    else:
        onnx(arguments.to, function)


def _export_function(arguments: argparse.Namespace, kind: str) -> bool:
    """Write a function of a file; return whether it is a module in training mode, or a method of one."""
    if arguments.function is not None:
        raise ArgumentError("export: --function is for artifacts", got=arguments.target, hint="Write FILE.py:FUNCTION.")
    specs = None if arguments.spec is None else [open_spec(text) for text in arguments.spec]
    target = load_target(arguments.target, specs, values=False, option="--spec")
    if inspect.isclass(target.function):
        raise TargetError(f"target: {target.name!r} is a class",
                          hint=f"Make one in the file: model = {target.name}(...).")
    given = _given(target)
    with users_errors():
        if kind == "Artifact":
            save(arguments.to, target.function, *given, overwrite=arguments.overwrite)
        elif kind == "StableHLO":
            stablehlo(arguments.to, target.function, *given)
        else:
            onnx(arguments.to, target.function, *given)
    return is_training(target.function)


def _given(target: Target) -> tuple[Any, ...]:
    """Return the specs of the target's arguments, in the order of its parameters."""
    args = target.args
    if target.kwargs:
        bound = inspect.signature(called(target.function)).bind(*args, **target.kwargs)
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise TargetError(f"target: {target.name} takes arguments by name only", got=names)
        args = bound.args
    return specs_of(args)
