"""What the environment says about the processes of a run: plain variables, torchrun's, SLURM's or Kubernetes'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hybridflow.core.errors import ArgumentError

COORDINATOR, INDEX, COUNT = "HYBRIDFLOW_COORDINATOR", "HYBRIDFLOW_PROCESS_INDEX", "HYBRIDFLOW_PROCESS_COUNT"
HOSTED, TOKEN, DEVICES, LOCAL = (
    "HYBRIDFLOW_COORDINATOR_RUNS", "HYBRIDFLOW_TOKEN", "HYBRIDFLOW_DEVICES", "HYBRIDFLOW_LOCAL_INDEX",
)
_PORT = 8476
"""The coordinator's port where the environment names a host only."""


@dataclass(frozen=True)
class Place:
    """The place of this process in a run.

    Attributes:
        coordinator: the address where the processes meet, as ``host:port``.
        index: the number of this process.
        count: the number of processes.
        local: its number on this machine, which is the number of its accelerator; None if it has all of them.
        hosted: whether somebody else, such as ``hybridflow launch``, runs the coordinator. Otherwise process 0 does.
        token: what members say to the coordinator, so that it listens to this run's processes only.
        devices: the number of CPU devices of each process; None leaves it to jax.
    """

    coordinator: str
    index: int
    count: int
    local: int | None = None
    hosted: bool = False
    token: str = ""
    devices: int | None = None


def place_of(environment: Mapping[str, str]) -> Place | None:
    """Return the place of this process in a run; None if the environment says nothing about one.

    Raises:
        ArgumentError: the environment says a part of it only, or a number is none.
    """
    for find in (_plain, _jax, _torch, _slurm):
        found = find(environment)
        if found is not None:
            return _checked(found)
    return None


def _checked(place: Place) -> Place:
    if not 0 <= place.index < place.count:
        raise ArgumentError(f"initialize: process {place.index} of {place.count}", hint="Processes are counted from 0.")
    return place


def _plain(environment: Mapping[str, str]) -> Place | None:
    """Find hybridflow's own variables; the index may be that of a Kubernetes job whose pods are numbered."""
    if COUNT not in environment and COORDINATOR not in environment:
        return None
    given = dict(environment)
    if INDEX not in given and "JOB_COMPLETION_INDEX" in given:
        given[INDEX] = given["JOB_COMPLETION_INDEX"]
    missing = [name for name in (COORDINATOR, INDEX, COUNT) if name not in given]
    if missing:
        raise ArgumentError(
            f"initialize: the environment has not {' and '.join(missing)}",
            got=", ".join([f"{name}={given[name]}" for name in (COORDINATOR, INDEX, COUNT) if name in given]),
            hint=f"Set {COORDINATOR}=host:port of process 0, {INDEX} from 0 on, and {COUNT}."
        )
    devices, local = given.get(DEVICES), given.get(LOCAL)
    return Place(
        given[COORDINATOR], _number(given, INDEX), _number(given, COUNT), None if local is None else int(local),
        given.get(HOSTED) == "1", given.get(TOKEN, ""), None if devices is None else int(devices),
    )


def _jax(environment: Mapping[str, str]) -> Place | None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
    if not all([name in environment for name in names]):
        return None
    return Place(environment[names[0]], _number(environment, names[1]), _number(environment, names[2]))


def _torch(environment: Mapping[str, str]) -> Place | None:
    """The variables of torchrun, and of Kubernetes operators for training jobs."""
    if not all([name in environment for name in ("MASTER_ADDR", "RANK", "WORLD_SIZE")]):
        return None
    local = environment.get("LOCAL_RANK")
    return Place(
        f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', _PORT)}", _number(environment, "RANK"),
        _number(environment, "WORLD_SIZE"), None if local is None else int(local),
    )


def _slurm(environment: Mapping[str, str]) -> Place | None:
    """The variables of ``srun``; a shell in an allocation has no step, and one task stays alone."""
    nodes = environment.get("SLURM_STEP_NODELIST")
    if nodes is None or "SLURM_PROCID" not in environment or _number(environment, "SLURM_STEP_NUM_TASKS") < 2:
        return None
    port = 61440 + _number(environment, "SLURM_JOB_ID") % 4096
    return Place(
        f"{first_host(nodes)}:{port}", _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_STEP_NUM_TASKS"), _number(environment, "SLURM_LOCALID"),
    )


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's list.

    Example:
        >>> from hybridflow.core.processes.environment import first_host
        >>> first_host("node[007-009,12],other"), first_host("a,b"), first_host("rack2-n3")
        ('node007', 'a', 'rack2-n3')
    """
    found = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\])?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise ArgumentError(f"initialize: the environment variable {name} is no number", got=repr(text))
    return int(text)
