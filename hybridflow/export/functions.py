"""The source of the other export formats: a function with its graph and weights, traced now or loaded."""

from __future__ import annotations

import os
from typing import Any

import jax

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, FileMissingError
from hybridflow.core.spec import TensorSpec, spec_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.export.artifact import RANDOM, Weights, traced
from hybridflow.export.limits import Limits
from hybridflow.export.loaded import Artifact, Function, load
from hybridflow.saving.values import require_eager


def specs_of(args: Any) -> Any:
    """Replace the tensors and arrays of a structure by their specs."""
    return jax.tree_util.tree_map(
        lambda one: spec_of(one) if hasattr(one, "dtype") and hasattr(one, "shape") else one, args,
        is_leaf=lambda one: isinstance(one, Tensor | Variable | TensorSpec),
    )


def function_of(what: str, target: Any, specs: tuple[Any, ...], name: str) -> Function:
    """Return a function in the form that an artifact has.

    Args:
        what: the name of the caller, for error messages.
        target: a function or module; or an artifact, its path, or one of its functions.
        specs: the arguments of a function or module: `hf.TensorSpec`, or structures of them. Empty for an artifact.
        name: the function of the artifact to take; otherwise the name to give the function.

    Raises:
        ArgumentTypeError: another kind of target, or specs that do not fit.
        FileMissingError: a path that is not the directory of an artifact.
        ArgumentError: the artifact has no such function.
        ExportError: the function assigns Variables or calls Python; the error names the line.
    """
    require_eager(what)
    artifact = target
    if isinstance(target, str | os.PathLike):
        if not os.path.isdir(target):
            raise FileMissingError(f"{what}: {os.fspath(target)!r} is not the directory of an artifact",
                                   hint="The file to write comes first, then what is exported.")
        artifact = load(target, copy=True)
    if isinstance(artifact, Artifact):
        if name not in artifact.functions:
            raise ArgumentError(f"{what}: the artifact has no function {name!r}", got=", ".join(artifact.functions),
                                hint="Name one with function=.")
        artifact = artifact.functions[name]
    if isinstance(artifact, Function):
        if specs:
            raise ArgumentTypeError(f"{what}: {artifact.name} of an artifact has its own specs",
                                    got=", ".join(map(repr, specs))[:200])
        return artifact
    if not callable(artifact):
        raise ArgumentTypeError(f"{what}: a {type(artifact).__name__} is no function, module or artifact",
                                got=repr(artifact)[:80])
    weights = Weights()
    graph, fields = traced(name, artifact, specs, weights)
    values = [RANDOM if path == RANDOM else weights.values[path] for path in fields["weights"]]
    return Function(name, graph, fields, values, Limits())
