"""``hybridflow run``: call a function of an artifact on tensors from a file."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

import hybridflow as hf
from hybridflow.backend.files import write_bytes
from hybridflow.cli.arguments import seed_number
from hybridflow.cli.artifacts import add_artifact, function_of, load_artifact, plain
from hybridflow.cli.outputs import require_ending, require_files
from hybridflow.core.errors import FileFormatError, FileMissingError
from hybridflow.core.spec import TensorSpec
from hybridflow.export.loaded import Function

HELP = "call a function of an artifact with the tensors of an .npz file, and write its results to another"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_artifact(parser)
    parser.add_argument("input", type=Path, metavar="INPUT.npz", help="an array for each input, by its name")
    parser.add_argument("output", type=Path, metavar="OUTPUT.npz", help="where the results are written, by their names")
    parser.add_argument("--function", help="its name, if the artifact has several")
    parser.add_argument("--seed", type=seed_number, help="the seed of hf.random, for a function that draws")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Call the function, write its results, and print their specs."""
    require_files("run", arguments.output)
    require_ending("run", arguments.output, ".npz")
    function = function_of("run", load_artifact(arguments.artifact, arguments.digest), arguments.function)
    given = _read(arguments.input)
    if arguments.seed is not None:
        hf.random.seed(arguments.seed)
    results = function.by_name({path: _typed(array, function, path) for path, array in given.items()})
    buffer = io.BytesIO()
    np.savez(buffer, **cast("dict[str, Any]", {path: np.asarray(one) for path, one in results.items()}))
    write_bytes(arguments.output, buffer.getvalue())
    for path, one in results.items():
        console.print(f"{plain(path)}: {TensorSpec(one.shape, one.dtype)}", markup=False, highlight=False)
    return True


def _read(path: Path) -> Mapping[str, Any]:
    """Return the arrays of a file, without unpickling any objects."""
    if not path.is_file():
        raise FileMissingError(f"run: there is no file {str(path)!r}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile):  # not an .npz file, or has objects
        raise FileFormatError(f"run: {str(path)!r} is no .npz file of arrays",
                              hint="Write it with numpy.savez(path, NAME=array, ...).") from None


def _typed(array: Any, function: Function, path: str) -> Any:
    """Return an array in its input's dtype. NumPy's files keep only the bytes of some dtypes, such as bfloat16."""
    spec = function.inputs.get(path)
    bytes_only = spec is not None and array.dtype.kind == "V" and array.dtype.itemsize == spec.dtype.itemsize
    return array.view(spec.dtype) if spec is not None and bytes_only else array
