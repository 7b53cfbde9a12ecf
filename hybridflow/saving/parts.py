"""The parts of a checkpoint that lie on several devices: each process writes its own, with Orbax."""

from __future__ import annotations

import importlib
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.errors import FileFormatError, MissingPackageError
from hybridflow.core.mesh import check_fits, lies_on_several
from hybridflow.core.processes.member import member
from hybridflow.core.processes.wire import encoded
from hybridflow.core.variable import Variable

ENDING = ".parts"


def orbax(what: str) -> ModuleType:
    """Return Orbax's package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module("orbax.checkpoint")
    except ImportError as error:
        raise MissingPackageError(
            f"{what}: a checkpoint of a model on several devices needs the package orbax-checkpoint",
            hint='Install it: pip install "hybridflow[distribute]".'
        ) from error


def on_devices(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the raw values that lie on several devices and that a process writes its part of."""
    return {path: one for path, one in values.items() if lies_on_several(one) and one.size}


def new_name(step: int) -> str:
    """Return the name of a new directory for the parts of a step, the same in all processes."""
    name = f"step-{step:09d}-{secrets.token_hex(4)}{ENDING}"
    joined = member()
    return name if joined is None else joined.broadcast("checkpoint", name)


class Writing:
    """Parts that are being written; making one returns when the values are safe from later changes.

    Args:
        directory: where they go, whole or not at all.
        values: raw values by path.
    """

    def __init__(self, directory: Path, values: Mapping[str, Any]) -> None:
        ocp = orbax("checkpoint")
        self._writer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        with enable_x64():
            self._writer.save(directory.absolute(), args=ocp.args.PyTreeSave(dict(values)))

    def finish(self) -> None:
        """Wait until the parts of all processes are on the disk."""
        try:
            self._writer.wait_until_finished()
        finally:
            self._writer.close()


def read(directory: Path, into: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts in a directory by path: each process reads what its devices need.

    Args:
        directory: the directory.
        into: the Variables that get the values, by path. A value whose Variable lies on a mesh is read as it lies
            there; others are read whole.

    Raises:
        FileFormatError: they are not whole.
    """
    ocp = orbax("Run")
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        known = reader.metadata(directory.absolute()).item_metadata.tree
        how = {path: _target(ocp, one, into.get(path)) for path, one in known.items()}
        with enable_x64():
            return dict(
                reader.restore(directory.absolute(), args=ocp.args.PyTreeRestore(item=None, restore_args=how))
            )
    except (ValueError, OSError, KeyError, AttributeError) as error:
        raise FileFormatError(f"checkpoint: {str(directory)!r} is not whole", got=str(error)[:200]) from error
    finally:
        reader.close()


def _target(ocp: Any, saved: Any, variable: Any) -> Any:
    """Return how Orbax shall read a value."""
    shape = tuple(saved.shape)
    placement = variable.placement if isinstance(variable, Variable) else None
    if placement is None or shape != variable.shape:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    check_fits(placement.layout, shape, placement.mesh, "Run")
    return ocp.ArrayRestoreArgs(sharding=placement.sharding, global_shape=shape, dtype=saved.dtype)


def remove(directory: Path) -> None:
    """Remove parts; some may be gone already."""
    shutil.rmtree(directory, ignore_errors=True)


def is_first() -> bool:
    """Whether this process is the one that writes what all have."""
    joined = member()
    return joined is None or joined.place.index == 0


def once(what: str, write: Callable[[], object]) -> None:
    """Write what all processes have in the first of them; the others wait until it is written."""
    joined = member()
    if joined is None:
        write()
        return
    request = encoded({"meet": "barrier", "name": what, "digest": what})
    joined.meet(request)  # all have looked what was there before
    if is_first():
        write()
    joined.meet(request)
