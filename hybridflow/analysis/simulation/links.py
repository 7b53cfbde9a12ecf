"""The time of collectives on a mesh: a latency per message and a time per byte (alpha-beta), in rings.

Reference:
    Hockney, "The communication challenge for MPP", 1994 (alpha and beta); Thakur, Rabenseifner and Gropp,
    "Optimization of collective communication operations in MPICH", 2005; Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", 2009 (rings).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybridflow.analysis.simulation.hardware import Hardware


class Link(NamedTuple):
    """What connects the devices of a group.

    Attributes:
        devices: the number of devices in the group.
        bandwidth: what each of them sends, in bytes per second.
        latency: the time of the messages of one round through the ring, in seconds.
        hop: the time of a single message, in seconds.
        is_inside: whether they are all in one node.
    """

    devices: int
    bandwidth: float
    latency: float
    hop: float
    is_inside: bool


def link_of(mesh: Mapping[str, int], axes: Sequence[str], hardware: Hardware) -> Link:
    """Return what connects the devices along some axes of a mesh.

    The last axis of a mesh varies fastest, so that its neighbours are in one node. A ring through several nodes enters
    each through as many adapters as it has devices there.

    Args:
        mesh: the size of each axis, by name.
        axes: the axes along which the group lies.
        hardware: what the devices are.
    """
    strides: dict[str, int] = {}
    stride = 1
    for name, size in reversed(list(mesh.items())):
        strides[name] = stride
        stride *= size
    places = [[strides[name] * index for index in range(mesh[name])] for name in axes]
    nodes = Counter([sum(place) // hardware.devices_per_node for place in itertools.product(*places)])
    devices, here = math.prod([mesh[name] for name in axes]), max(nodes.values())
    inside, between, share = hardware.inside, hardware.between, hardware.attainable["links"]
    if len(nodes) == 1:
        steps = (devices - 1) * inside["latency"]
        return Link(devices, inside["bandwidth"] * share, steps, inside["latency"], True)
    bandwidth = min(inside["bandwidth"], between["bandwidth"] * here) * share
    steps = (here - 1) * inside["latency"] + (len(nodes) - 1) * between["latency"]
    return Link(devices, bandwidth, steps, between["latency"], False)


def collective_seconds(kind: str, result_bytes: float, link: Link) -> float:
    """Return the time of one collective in a ring.

    With n devices, S the bytes of the result on each, B the bandwidth and L the latency of a round: an all-reduce takes
    2 L + 2 (n-1)/n S/B, an all-gather or all-to-all L + (n-1)/n S/B, a reduce-scatter L + (n-1) S/B (its result is
    the n-th part of what it reads), a collective-permute a message and S/B.

    Args:
        kind: such as ``"all-reduce"``, as in `hf.cost`'s rows.
        result_bytes: the size of the result on each device.
        link: what connects the devices.

    Returns:
        Seconds.
    """
    n = link.devices
    if n == 1:
        return 0.0
    seconds = result_bytes / link.bandwidth
    if kind == "collective-permute":
        return link.hop + seconds
    if kind == "reduce-scatter":
        return link.latency + (n - 1) * seconds
    rounds = 2 if kind == "all-reduce" else 1
    return rounds * (link.latency + (n - 1) / n * seconds)
