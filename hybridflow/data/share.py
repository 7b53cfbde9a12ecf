"""The share that this process has of batches that lie on a mesh."""

from __future__ import annotations

import secrets
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.errors import LayoutError
from hybridflow.core.mesh import Mesh
from hybridflow.core.processes.member import member
from hybridflow.core.tensor import as_tensor
from hybridflow.distribute.processes import from_local


def shared_seed() -> int:
    """Return a random seed, the same in all processes."""
    seed = secrets.randbits(53)
    joined = member()
    return seed if joined is None else joined.broadcast("the seed of Batches", seed)


class Share:
    """This process's rows of batches whose rows are split over a mesh's first axis.

    Args:
        mesh: the mesh.
        size: the number of rows in a batch.

    Raises:
        LayoutError: the mesh cannot divide it.
    """

    def __init__(self, mesh: Mesh, size: int) -> None:
        if not isinstance(cast(object, mesh), Mesh):
            raise LayoutError("Batches: shard is a mesh", got=repr(mesh)[:80], hint="Make a hf.Mesh.")
        self._mesh = mesh
        self._parts = mesh.parts(mesh.axes[0])
        if size % self._parts:
            raise LayoutError(
                f"Batches: size={size} cannot be divided by {self._parts}", got=str(mesh),
                hint=f"Take {-(-size // self._parts) * self._parts}: the size counts all processes' rows."
            )

    def divides(self, count: int) -> bool:
        """Whether a number of rows can be split evenly."""
        return count % self._parts == 0

    def own(self, rows: Any, count: int) -> Any:
        """Return this process's rows of a batch, as an array of their numbers.

        Args:
            rows: the numbers of all rows, a slice or an array.
            count: how many there are.
        """
        numbers = np.arange(rows.start, rows.stop) if type(rows) is slice else rows
        sharding = self._mesh.sharding((self._mesh.axes[0],))
        parts = {one.indices(count)[:2] for (one,) in sharding.addressable_devices_indices_map((count,)).values()}
        return np.concatenate([numbers[start:stop] for start, stop in sorted(parts)])

    def spread(self, batch: Any) -> Any:
        """Return a batch over all processes, from this one's rows of it."""

        def place(leaf: Any) -> Any:
            tensor = as_tensor(leaf)
            return from_local(tensor, self._mesh, (self._mesh.axes[0], *(None,) * (tensor.ndim - 1)))

        return jax.tree_util.tree_map(place, batch)
