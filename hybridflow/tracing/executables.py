"""Records of a trace's executables: XLA's options, donated buffers, and fused operations."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridflow.core.device import device_label
from hybridflow.core.mesh import Mesh
from hybridflow.core.node import Node, short_where
from hybridflow.passes.lib.recompute import Recomputed
from hybridflow.xla.communication import Collective, asked_shapes, collectives
from hybridflow.xla.executable import LOADED, Executable


class Fused(NamedTuple):
    """Operations that run as one kernel.

    Attributes:
        name: XLA's name of the kernel.
        operations: the names of the operations, each with its count.
        lines: the lines of the user's code that they come from, as ``file:line``.
    """

    name: str
    operations: dict[str, int]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        lines = f" at {', '.join(self.lines)}" if self.lines else ""
        return f"{counted(self.operations)}{lines}"


@dataclass
class Padding:
    """What the calls of an executable for bounds computed beyond real sizes.

    Attributes:
        calls: the number of calls.
        seconds: the predicted time of all calls.
        lost: the part of it that went to padding.
    """

    calls: int = 0
    seconds: float = 0.0
    lost: float = 0.0

    def add(self, seconds: float, lost: float) -> None:
        """Count a call."""
        self.calls += 1
        self.seconds += seconds
        self.lost += lost

    def __str__(self) -> str:
        share = self.lost / self.seconds if self.seconds else 0.0
        return f"{share:.1%} of the predicted time of {self.calls} call(s)"


class Sent(NamedTuple):
    """A collective of a program on several devices.

    Attributes:
        kind: such as ``all-reduce``.
        bytes: the size of its results on each device.
        arrays: the number of its results.
        lines: the lines of the user's code that it belongs to, as ``file:line``.
        asked: whether it brings about a layout that was asked for, belongs to `hf.shard_map` or a pipeline, or is no
            gathering: reductions are part of the result.
    """

    kind: str
    bytes: int
    arrays: int
    lines: tuple[str, ...]
    asked: bool

    def __str__(self) -> str:
        lines = f" at {', '.join(self.lines)}" if self.lines else ""
        several = f" in {self.arrays} arrays" if self.arrays > 1 else ""
        extra = "" if self.asked else "; no layout asked for it: see hf.constrain"
        return f"{self.kind} of {self.bytes:,} bytes{several}{lines}{extra}"


@dataclass(frozen=True)
class ExecutableRecord:
    """One executable of a trace.

    Attributes:
        sizes: the values of the open sizes that it was compiled for.
        device: the requested device, or ``default``.
        lower_ms, xla_ms, load_ms: the time spent, in milliseconds.
        store: what the store on disk did.
        options: XLA's compiler options.
        donated: the Variables whose buffers it reuses for their new values.
        runs: how often a call runs each program, if it has several.
        padding: what its calls computed beyond real sizes, if it takes all sizes up to `sizes`; else None.
        part: what a call that a tape records runs it for, ``results`` or ``gradients``; empty for other calls.
        mesh: the mesh that it runs on; None for one device.
    """

    sizes: Mapping[str, int]
    device: str
    lower_ms: float
    xla_ms: float
    load_ms: float
    store: str
    options: Mapping[str, Any]
    donated: tuple[str, ...]
    runs: tuple[int, ...]
    padding: Padding | None = field(compare=False)
    part: str
    _made: weakref.ref[Executable] = field(repr=False, compare=False)
    mesh: Mesh | None = None
    _fused: list[tuple[Fused, ...]] = field(repr=False, compare=False, default_factory=list[tuple[Fused, ...]])
    _sent: list[tuple[Sent, ...]] = field(repr=False, compare=False, default_factory=list[tuple[Sent, ...]])

    @classmethod
    def of(
        cls, made: Executable, sizes: Mapping[str, int], device: Any, names: Mapping[int, str],
        padding: Padding | None = None, part: str = "",
    ) -> ExecutableRecord:
        """Return the record of an executable.

        Args:
            made: the executable, which the record does not keep alive.
            sizes: the size of each symbol.
            device: its jax device; None for the default one.
            names: the names of the graph's inputs, by position.
            padding: counts the work beyond real sizes, if the executable takes all sizes up to `sizes`.
            part: see the attribute.
        """
        return cls(
            dict(sizes), device_label(device), made.lower_ms, made.xla_ms, made.load_ms, made.store,
            dict(made.options), tuple([names[index] for index in made.donated]),
            tuple([one.runs for one in made.parts]), padding, part, weakref.ref(made),
            None if made.placing is None else made.placing.mesh,
        )

    @property
    def bounded(self) -> bool:
        """Whether it takes all sizes up to `sizes`."""
        return self.padding is not None

    @property
    def loaded(self) -> bool:
        """Whether it came completely from the store on disk, so that nothing was compiled."""
        return self.store == LOADED

    def fused(self) -> tuple[Fused, ...] | None:
        """Return the kernels that compute several operations, the largest first.

        Returns:
            The kernels; None if the executable was dropped from the cache before this was first asked.
        """
        made = self._made()
        if not self._fused and made is not None:
            kernels = [_fused(name, nodes) for name, nodes in made.fusions().items()]
            several = [one for one in kernels if sum(one.operations.values()) > 1]
            self._fused.append(tuple(sorted(several, key=lambda one: -sum(one.operations.values()))))
        return self._fused[0] if self._fused else None


    def collectives(self) -> tuple[Sent, ...] | None:
        """Return what the devices of the mesh send one another in a call, one in a loop once.

        Returns:
            The collectives; None if the executable was dropped from the cache before this was first asked.
        """
        made = self._made()
        if not self._sent and made is not None and self.mesh is not None:
            asked = asked_shapes(made.namer, self.mesh)
            sent = collectives(made.compiled.as_text(), made.namer)
            self._sent.append(tuple([_sent(one, asked) for one in sent]))
        return self._sent[0] if self._sent else None


def _sent(one: Collective, shapes: Container[tuple[int, ...]]) -> Sent:
    lines = dict.fromkeys([short_where(node.where) for node in one.nodes])
    by_hand = any([node.op.has("collective") or node.op.has("stages") for node in one.nodes])
    asked = by_hand or one.kind in ("all-reduce", "reduce-scatter") or all([shape in shapes for shape in one.shapes])
    return Sent(one.kind, one.bytes, len(one.shapes), tuple([line for line in lines if line]), asked)


def _fused(name: str, nodes: tuple[Node, ...]) -> Fused:
    working = [node for node in nodes if not node.op.has("source")]
    lines = dict.fromkeys([short_where(node.where) for node in working])
    return Fused(name, dict(Counter(node.op.name for node in working)), tuple([line for line in lines if line]))


def counted(operations: Mapping[str, int]) -> str:
    """Return the names and counts of operations as text."""
    return ", ".join([name if times == 1 else f"{name} x{times}" for name, times in operations.items()])


def again_text(one: Recomputed) -> str:
    """Return the operations that are recomputed at a line, as text."""
    return f"{counted(one.operations)} at {short_where(one.where) or 'an unknown line'}, {one.flops:,} FLOPs"
