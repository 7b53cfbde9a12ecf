"""Artifacts as arguments of commands, and the description that is printed of one."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, FileMissingError
from hybridflow.core.spec import spec_of
from hybridflow.export.artifact import MANIFEST, WEIGHTS
from hybridflow.export.loaded import Artifact, Function, load
from hybridflow.ir.costs import graph_cost
from hybridflow.saving.format import shown
from hybridflow.saving.other_formats import other_kind
from hybridflow.serve.models import why_alone

DIGEST_HELP = "the sha256 of the artifact's manifest, from somebody who knows who made it"


def add_artifact(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name an artifact and its digest."""
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT", help="a directory that hf.export.save wrote")
    parser.add_argument("--digest", metavar="SHA256", help=DIGEST_HELP)


def require_artifacts(command: str, path: Path) -> None:
    """Raise if a path is no directory, of artifacts or an artifact itself; the text says what it is."""
    if not path.is_dir():
        missing = f"{command}: there is no directory {str(path)!r}"
        error = FileMissingError(missing, hint="hybridflow export writes one.")
        raise other_kind(error, path, command, "the command", "artifact")


def load_artifact(path: Path, digest: str | None = None) -> Artifact:
    """Load an artifact and check its digests.

    Raises:
        FileError: it cannot be read.
        FileFormatError: it is not an artifact.
    """
    require_artifacts("artifact", path)
    return load(path, copy=True, digest=digest)


def function_of(command: str, artifact: Artifact, name: str | None) -> Function:
    """Return the artifact's function of the given name, or its only function if no name is given.

    Raises:
        ArgumentError: there is no such function, or no name is given and there are several.
    """
    wanted = next(iter(artifact.functions)) if name is None and len(artifact.functions) == 1 else name
    if wanted is None or wanted not in artifact.functions:
        what = "the artifact has several functions" if name is None else f"the artifact has no function {name!r}"
        raise ArgumentError(f"{command}: {what}", got=", ".join(artifact.functions), hint="Name one with --function.")
    return artifact.functions[wanted]


def lines_of(path: Path, artifact: Artifact) -> Iterator[str]:
    """Yield a description of an artifact line by line: version, signatures, sizes, cost, weights, digests."""
    raw = (path / MANIFEST).read_bytes()
    manifest = json.loads(raw)
    yield f"Artifact {path.name}, version {manifest['version']} of the format"
    yield from (f"  {plain(key)}: {plain(text)}" for key, text in artifact.metadata.items())
    for name, function in artifact.functions.items():
        yield ""
        yield from _function_lines(function, manifest["functions"][name])
    yield ""
    yield from _weight_lines(path, artifact)
    yield ""
    yield "Digests (sha256)"
    yield f"  {hashlib.sha256(raw).hexdigest()}  {MANIFEST}"
    yield from (f"  {one['sha256']}  {name}" for name, one in sorted(manifest["files"].items()))


def _function_lines(function: Function, fields: dict[str, Any]) -> Iterator[str]:
    graph = function.graph()
    yield f"Function {function.name}"
    yield from (f"  takes {plain(path)}: {spec}" for path, spec in function.inputs.items())
    specs = graph.output_specs[: len(function.outputs)]
    yield from (f"  returns {plain(path)}: {spec}" for path, spec in zip(function.outputs, specs, strict=True))
    if graph.dims.hints:
        yield f"  sizes left open: {', '.join(graph.dims.hints)}"
    yield from (f"  only for sizes where {guard.sentence()}" for guard in graph.dims.guards)
    cost = graph_cost(graph)
    moved = cost.read + cost.written
    yield f"  costs {cost.flops} FLOPs, and {moved} bytes read and written, by {len(graph.nodes)} operations one by one"
    alone = why_alone(function)
    yield "  serves requests in batches" if alone is None else f"  serves each request alone: {plain(alone)}"
    if fields["random"]:
        yield "  draws random numbers"
    yield from (f"  raises {one['error']}: {plain(one['text'])}, of {plain(one['where'])}" for one in fields["checks"])


def plain(text: str) -> str:
    """Return a text from a file in a form that is safe to print: escape control characters, cut long texts."""
    return text if text.isprintable() and len(text) <= 200 else shown(text)


def _weight_lines(path: Path, artifact: Artifact) -> Iterator[str]:
    variables = artifact.named_variables()
    values = hf.load(path / WEIGHTS)
    total = sum([one.dtype.itemsize * one.size for one in values.values()])
    yield f"Weights: {len(values)}, {total} bytes"
    for name, one in values.items():
        own = variables.get(name)
        kind = "constant" if own is None else "trainable" if own.trainable else "not trainable"
        yield f"  {plain(name)}: {spec_of(one)}, {kind}"
