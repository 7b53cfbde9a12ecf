"""What other formats are written of: a function with its graph and its weights, traced now or loaded."""

from __future__ import annotations

import os
from typing import Any

import jax

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message
from hybridflow.core.spec import TensorSpec, spec_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.export.artifact import RANDOM, Weights, traced
from hybridflow.export.loaded import Artifact, Function, load
from hybridflow.saving.values import require_eager


def specs_of(args: Any) -> Any:
    """Return a structure with specs in the place of its tensors and arrays."""
    return jax.tree_util.tree_map(
        lambda one: spec_of(one) if hasattr(one, "dtype") and hasattr(one, "shape") else one, args,
        is_leaf=lambda one: isinstance(one, Tensor | Variable | TensorSpec),
    )  # fmt: skip


def function_of(what: str, target: Any, specs: tuple[Any, ...], name: str) -> Function:
    """Return a function as an artifact has it.

    Args:
        what: who asks, for messages.
        target: a function or a module with the specs of its arguments; an artifact, the path of one, or a function of
            one without.
        specs: the specs: `hf.TensorSpec`, or structures of them.
        name: which function of an artifact; what another function is called.

    Raises:
        ArgumentTypeError: something else, or specs that do not fit.
        ArgumentError: the artifact has no such function.
        ExportError: a function that assigns Variables, or calls Python, with its line.
    """
    require_eager(what)
    artifact = load(target, copy=True) if isinstance(target, str | os.PathLike) else target
    if isinstance(artifact, Artifact):
        if name not in artifact.functions:
            raise ArgumentError(
                message(f"{what}: the artifact has no function {name!r}", got=", ".join(artifact.functions),
                        hint="Name one with function=.")
            )  # fmt: skip
        artifact = artifact.functions[name]
    if isinstance(artifact, Function):
        if specs:
            raise ArgumentTypeError(
                message(
                    f"{what}: {artifact.name} of an artifact has its own specs", got=", ".join(map(repr, specs))[:200]
                )
            )
        return artifact
    if not callable(artifact):
        raise ArgumentTypeError(
            message(f"{what}: a {type(artifact).__name__} is no function, module or artifact", got=repr(artifact)[:80])
        )
    weights = Weights()
    graph, fields = traced(name, artifact, specs, weights)
    values = [RANDOM if path == RANDOM else weights.values[path] for path in fields["weights"]]
    return Function(name, graph, fields, values)
