"""How the inputs and outputs of a program lie on a mesh, and calling such a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax

from hybridflow.backend.collectives import BATCH_AXES, LOWERED_FOR, run_alone
from hybridflow.core.mesh import Mesh, check_fits, indivisible, names_of, placed
from hybridflow.core.spec import TensorSpec
from hybridflow.xla.joint import Joint


@dataclass(frozen=True)
class Placing:
    """How the inputs and outputs of a graph lie on a mesh.

    Attributes:
        mesh: the mesh.
        inputs: the layout of each input; or jax's sharding, for what another program left there; None if every device
            has the whole.
        outputs: the same for each output; None leaves it to XLA.
        batch: the inputs that may have a size that their layout cannot divide. They come whole, and are then split
            inside the program, which fills the last part up and leaves the filling out of all results.
        names: the inputs' names, for messages.
    """

    mesh: Mesh
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    batch: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    def with_outputs(self, outputs: tuple[Any, ...]) -> Placing:
        """Return the same for a graph with these outputs."""
        return replace(self, outputs=outputs)

    def some_outputs(self, wanted: Sequence[bool]) -> Placing:
        """Return the same for a graph with some of the outputs."""
        return self.with_outputs(tuple([one for one, want in zip(self.outputs, wanted, strict=True) if want]))

    def _sharding(self, layout: Any) -> Any:
        return self.mesh.sharding(layout) if isinstance(layout, tuple) else layout

    def _uneven(self, index: int, spec: TensorSpec) -> bool:
        layout = self.inputs[index]
        return index in self.batch and indivisible(layout, spec.shape, self.mesh) is not None

    def inputs_for(self, specs: Sequence[TensorSpec]) -> list[Any]:
        """Return jax's sharding of each input.

        Raises:
            LayoutError: a layout cannot divide a size.
        """
        everywhere = self.mesh.sharding(())
        shardings: list[Any] = []
        for index, (layout, spec) in enumerate(zip(self.inputs, specs, strict=True)):
            if layout is None or self._uneven(index, spec):
                shardings.append(everywhere)
                continue
            if isinstance(layout, tuple):
                check_fits(layout, spec.shape, self.mesh, self.names[index])
            shardings.append(self._sharding(layout))
        return shardings

    def outputs_for(self) -> tuple[Any, ...]:
        """Return jax's sharding of each output; None leaves it to XLA."""
        return tuple([self._sharding(layout) for layout in self.outputs])

    def around(self, lowering: Callable[..., Any], specs: Sequence[TensorSpec]) -> Callable[..., Any]:
        """Return a function to lower that lowers another one for the mesh."""
        uneven = [index for index, spec in enumerate(specs) if self._uneven(index, spec)]
        split = [layout for layout in [self.inputs[index] for index in sorted(self.batch)] if isinstance(layout, tuple)]
        axes = names_of(split[0][0]) if split else ()

        def lowered(*arrays: Any) -> Any:
            given = list(arrays)
            for index in uneven:
                given[index] = lax.with_sharding_constraint(given[index], self._sharding(self.inputs[index]))
            token, of_batch = LOWERED_FOR.set(self.mesh), BATCH_AXES.set(axes)
            try:
                return lowering(*given)
            finally:
                BATCH_AXES.reset(of_batch)
                LOWERED_FOR.reset(token)

        lowered.__name__ = lowering.__name__
        return lowered


class MeshCall:
    """The call of a program on a mesh: it moves each array to where the program expects it.

    Args:
        run: the program.
        placing: how its inputs and outputs lie.
        arguments: the shape, dtype and sharding of each argument.
        joint: the checks of a program that several processes run together; None for one process.

    Attributes:
        shardings: jax's sharding of each argument.
    """

    __slots__ = ("_alone", "_dtypes", "_joint", "_run", "shardings")

    def __init__(
        self, run: Callable[..., Any], placing: Placing, arguments: Sequence[Any], joint: Joint | None
    ) -> None:
        self._joint = joint
        self._run = run
        self._alone = placing.mesh.on_host and placing.mesh.size > 1
        self._dtypes = tuple([one.dtype for one in arguments])
        whole = placing.mesh.sharding(())
        self.shardings = tuple([whole if one.sharding is None else one.sharding for one in arguments])

    def __call__(self, *arrays: Any) -> Any:
        """Return the program's outputs; on CPUs, when they are computed."""
        if self._joint is not None:
            return self._together(self._joint, arrays)
        there = [
            np.asarray(array, dtype) if type(array) is float  # a Python number of the call
            else array if type(array) is np.ndarray or getattr(array, "sharding", None) == sharding
            else placed(array, sharding)
            for array, sharding, dtype in zip(arrays, self.shardings, self._dtypes, strict=True)
        ]
        return run_alone(self._run, there) if self._alone else self._run(*there)

    def _together(self, joint: Joint, arrays: Sequence[Any]) -> Any:
        """Run the program in all processes, when all are about to run it with the same values."""
        given = [
            array if isinstance(array, jax.Array) else np.asarray(array, dtype)
            for array, dtype in zip(arrays, self._dtypes, strict=True)
        ]
        joint.before_call(given, [isinstance(one, jax.Array) and not one.is_fully_addressable for one in given])
        with joint.joined.running():
            moved = [placed(array, sharding) for array, sharding in zip(given, self.shardings, strict=True)]
            return run_alone(self._run, moved) if self._alone else self._run(*moved)


def input_shardings(executable: Any) -> tuple[Any, ...]:
    """Return jax's sharding of each argument of a program on a mesh."""
    return executable.run.shardings


def output_shardings(executable: Any) -> tuple[Any, ...]:
    """Return jax's sharding of each output of a program."""
    return tuple(jax.tree_util.tree_leaves(executable.compiled.output_shardings))


def runs_on_several(compiled: Any) -> bool:
    """Whether a compiled program runs on several devices."""
    if len(jax.devices()) == 1:
        return False
    return any([len(one.device_set) > 1 for one in jax.tree_util.tree_leaves(compiled.output_shardings)])


def run_alone_with(run: Callable[..., Any], *arrays: Any) -> Any:
    """Run a program with collectives on CPU devices, as `run_alone` does."""
    return run_alone(run, arrays)
