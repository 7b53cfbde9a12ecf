"""A function on a mesh, beside itself on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.analysis.compare.peers import Runner
from hybridflow.analysis.parity import Call, fresh_copy
from hybridflow.analysis.rehearsal import rehearsed
from hybridflow.analysis.timing import wait_for
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, LayoutError
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.core.tensor import as_tensor, host_array
from hybridflow.tracing.function import CompiledFunction


class OnMesh(NamedTuple):
    """What `hf.compare` takes about a mesh: see its arguments ``mesh`` and ``batch``."""

    mesh: Mesh
    batch: Axis

    @classmethod
    def of(cls, mesh: Any, batch: Axis, functions: int) -> OnMesh | None:
        """Return the choice, checked; None without a mesh.

        Raises:
            ArgumentTypeError: `mesh` is no mesh.
            ArgumentError: there are several functions.
            LayoutError: there is a batch axis but no mesh.
        """
        if mesh is None:
            if batch is not None:
                raise LayoutError(f"compare: batch={batch!r} is a mesh's axis, and there is no mesh",
                                  hint="Pass mesh= too.")
            return None
        if not isinstance(mesh, Mesh):
            raise ArgumentTypeError("compare: mesh is no hf.Mesh", got=repr(mesh)[:80],
                                    hint='Write hf.Mesh({"data": 8}).')
        if functions > 1:
            raise ArgumentError(f"compare: {functions} functions and a mesh", got=str(mesh),
                                hint="Compare one function on a mesh at a time.")
        return cls(mesh, batch)


def on_one_device(function: Callable[..., Any]) -> CompiledFunction[Any, Any]:
    """Return a function compiled anew without a mesh."""
    made = fresh_copy(function)
    return made._like(made.python_function, mesh=None, batch=None, in_layouts=None, out_layouts=None)


class MeshRunner(Runner):
    """A function compiled for a mesh. If it was compiled for that mesh already, its layouts stay."""

    def __init__(self, function: Callable[..., Any], call: Call, choice: OnMesh) -> None:
        made = fresh_copy(function)
        own = made._options["mesh"]
        if own is not None and own != choice.mesh:
            raise LayoutError(f"compare: the function is compiled for {own}", got=f"mesh={choice.mesh}",
                              hint="Pass its own mesh, or a function that is not compiled.")
        batch = made._options["batch"] if choice.batch is None else choice.batch
        self.name = "mesh " + " ".join([f"{name}={size}" for name, size in choice.mesh.shape.items()])
        self._compiled = made._like(made.python_function, mesh=choice.mesh, batch=batch)
        self._call = call

    def __call__(self) -> Any:
        """Make one call and wait for its results."""
        args, kwargs = self._call
        result = self._compiled(*args, **kwargs)
        wait_for(result)
        return result

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Make one call and return its results, leaf by leaf; nothing else is to be seen of it."""
        with rehearsed(cast(Any, self._compiled), self._call):
            return [host_array(as_tensor(leaf)) for leaf in jax.tree_util.tree_leaves(self())]
