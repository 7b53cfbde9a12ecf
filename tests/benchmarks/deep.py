"""Deep networks: the first call and the step time by depth, compared with jax.

Command line: ``python -m tests.benchmarks.deep [NETWORK ...] [--layers 12,24,48,96] [--peers jit,scan]``. Times are
processor seconds summed over all threads, because other programs disturb them less. ``--wall`` measures wall time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import hybridflow as hf

from .measure import finish
from .networks import NETWORKS, Draw, Network, OurStep, TheirStep

Clock = Callable[[], float]


class Measured:
    """The measurements of one side at one depth: first call, steps, temporaries."""

    def __init__(self, make: Callable[[], Any], clock: Clock) -> None:
        self.make = make
        self.clock = clock
        self.first = float("inf")
        self.losses: list[float] = []
        self.times: list[float] = []
        self.model: Any = None

    def begin(self) -> None:
        """Time a first call and keep the fastest so far."""
        self.model = self.make()
        finish(self.model.state())
        gc.collect()
        start = self.clock()
        self.losses = [float(np.asarray(self.step()))]
        self.first = min(self.first, self.clock() - start)

    def step(self) -> Any:
        """Run a step and wait until it is finished."""
        result = self.model.step()
        finish(result)
        finish(self.model.state())
        return result

    def turn(self) -> None:
        """Time a step."""
        start = self.clock()
        loss = self.step()
        self.times.append(self.clock() - start)
        self.losses.append(float(np.asarray(loss)))

    @property
    def milliseconds(self) -> float:
        """The median time of a step."""
        return statistics.median(self.times) * 1e3

    @property
    def temporaries(self) -> float:
        """The memory that a step needs besides inputs and outputs, in MB."""
        model = self.model
        if isinstance(model, OurStep):
            compiled = model.compiled.lower(model.x).executable.compiled
        else:
            compiled = model.compiled
        return compiled.memory_analysis().temp_size_in_bytes / 1e6


def sides(network: Network, layers: int, peers: list[str], *, smoke: bool) -> dict[str, Callable[[], Any]]:
    """Return, for each side by name, a function that makes its model."""
    blocks, x = network.make(Draw(smoke=smoke), layers)
    made: dict[str, Callable[[], Any]] = {"ours": lambda: OurStep(network, blocks, x)}
    if "off" in peers:
        made["off"] = lambda: OurStep(network, blocks, x, ("fusion_breaks", "outline", "roll"))
    if "jit" in peers:
        made["jit"] = lambda: TheirStep(network, blocks, x)
    if "scan" in peers and network.layer is not None:
        made["scan"] = lambda: TheirStep(network, blocks, x, scan=True)
    return made


def measure(network: Network, layers: int, options: argparse.Namespace) -> dict[str, Measured]:
    """Measure every side at one depth; the sides take turns at the steps."""
    clock = time.perf_counter if options.wall else time.process_time
    makes = sides(network, layers, options.peers.split(","), smoke=options.smoke)
    found = {name: Measured(make, clock) for name, make in makes.items()}
    for number in range(options.repeat):
        for name, one in list(found.items())[:: -1 if number % 2 else 1]:
            if number == 0 or name in ("ours", "off"):
                one.begin()
    for _ in range(options.rounds):
        for one in found.values():
            one.turn()
    for name, one in found.items():
        np.testing.assert_allclose(one.losses[0], found["ours"].losses[0], rtol=1e-4, err_msg=f"{network.name}, {name}")
    return found


def phases(one: Measured) -> str:
    """Return the phases of our first call and their times."""
    record = one.model.compiled.explain()[-1]
    return (
        f"trace {record.trace_ms / 1e3:.2f} passes {record.passes_ms / 1e3:.2f} "
        f"lower {record.lower_ms / 1e3:.2f} XLA {record.xla_ms / 1e3:.2f}"
    )


def report(network: Network, layers: int, found: dict[str, Measured], *, temporaries: bool) -> str:
    """Format the measurements at one depth as one line."""
    ours = found["ours"]
    parts = [f"{network.name:10} {layers:4} layers: first {ours.first:7.2f} s, step {ours.milliseconds:8.2f} ms"]
    for name, other in found.items():
        if name != "ours":
            parts.append(
                f"{name}: first {other.first:.2f} ({ours.first / other.first:.3f}), "
                f"step {other.milliseconds:.2f} ({ours.milliseconds / other.milliseconds:.3f})"
            )
    if temporaries:
        sizes = {name: one.temporaries for name, one in found.items()}
        parts.append("temporaries MB " + " ".join(f"{name} {size:.2f}" for name, size in sizes.items()))
    parts.append(f"[{phases(ours)}]")
    return "; ".join(parts)


def flatness(rows: list[tuple[int, float, float]]) -> str:
    """Format how the cost of an added layer grows from the first pair of depths to the last."""
    if len(rows) < 4:
        return ""
    (a, fa, sa), (b, fb, sb), (c, fc, sc), (d, fd, sd) = rows[0], rows[1], rows[-2], rows[-1]

    def growth(a0: float, a1: float, c0: float, c1: float) -> float:
        return ((c1 - c0) / (d - c)) / ((a1 - a0) / (b - a))

    return (
        f"  per added layer, {c} to {d} over {a} to {b}: first {growth(fa, fb, fc, fd):.2f}, "
        f"step {growth(sa, sb, sc, sd):.2f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure the networks and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.deep", description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}; all if none")
    parser.add_argument("--layers", default="12,24,48,96", help="the depths")
    parser.add_argument("--peers", default="jit,scan", help="of jit (slow where deep), scan, and off: "
                        "ours without these passes; empty for none")
    parser.add_argument("--rounds", type=int, default=7, help="how many steps of each side")
    parser.add_argument("--repeat", type=int, default=1, help="how many first calls; the fastest counts")
    parser.add_argument("--wall", action="store_true", help="seconds by the clock on the wall")
    parser.add_argument("--temporaries", action="store_true", help="show what XLA says")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    options = parser.parse_args(arguments)
    unknown = set(options.networks) - NETWORKS.keys()
    if unknown:
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    print(f"jax {jax.__version__}, {'wall' if options.wall else 'processor'} time")
    with hf.config.cache(False):  # so that first calls compile
        for make in sides(NETWORKS["gated"], 12, ["jit"], smoke=True).values():
            make().step()  # warm up: the one-time costs of the process belong to no network
        _measure_all(options)
    return 0


def _measure_all(options: argparse.Namespace) -> None:
    depths = [int(one) for one in options.layers.split(",")]
    for name in options.networks or NETWORKS:
        rows: list[tuple[int, float, float]] = []
        for layers in depths:
            found = measure(NETWORKS[name], layers, options)
            ours = found["ours"]
            rows.append((layers, ours.first, ours.milliseconds))
            print(report(NETWORKS[name], layers, found, temporaries=options.temporaries), flush=True)
        if flat := flatness(rows):
            print(flat, flush=True)


if __name__ == "__main__":
    sys.exit(main())
