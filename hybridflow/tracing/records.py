"""One record per trace: what was traced and compiled, and its cost. `explain` shows these records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybridflow.core.attached import attached
from hybridflow.passes.lib.outcomes import Outlined, Piped, Rolled
from hybridflow.passes.lib.recompute import Recomputed
from hybridflow.tracing.budget import MemoryRecord
from hybridflow.tracing.executables import ExecutableRecord


@dataclass(frozen=True)
class Change:
    """An argument that differs from the nearest earlier trace."""

    argument: str
    before: str
    after: str

    @classmethod
    def between(cls, argument: str, before: str, after: str) -> Change:
        """Return a change; if both sides have the same description, the texts are made to differ."""
        return cls(argument, before, after if after != before else f"another {after}")

    def __str__(self) -> str:
        return f"{self.argument}: {self.before} -> {self.after}"


@dataclass
class TraceRecord:
    """The reason for one trace, its content, and its cost.

    Attributes:
        number: the number of the trace; the first is 1.
        signature: the names of the arguments and their descriptions.
        call_site: the line of the call, as ``file:line``; None for a call from the command line.
        changes: the differences from the nearest earlier trace; empty for the first.
        trace_ms, passes_ms, lower_ms, xla_ms, load_ms: the time spent, in milliseconds; `load_ms` is for executables
            that were loaded from the store on disk.
        nodes: the number of nodes in the graph after the passes.
        passes: one record per pass: name, milliseconds, node counts.
        compiles: the number of its executables, those of recorded calls among them.
        store: for each executable, what the store on disk did.
        captured: the number of tensors from outside the function that the trace reads.
        variables: the names of the Variables it reads.
        assigned: the names of the Variables it assigns.
        guards: what it read from Python outside its arguments and relies on.
        effects: what it changes outside, at every call.
        autocast: the dtype of the `hf.autocast` that it was called under, or ``off``.
        executables: one record per executable: XLA's options, donated buffers, fused operations.
        recorded: the same for the programs of calls that a tape records, which are compiled when they are first needed.
        outlined: the repeated parts of the graph that are compiled once and called.
        rolled: the repeated parts that are compiled once and run as a loop.
        recomputed: what checkpoints recompute, for each line of the user's code.
        pipelines: its pipelines, and how long their devices wait.
        memory: the effect of a memory budget on the last executable; None without one.
        first: whether no call was traced before.
        dropped: whether an equal trace had been dropped from the cache.
        compared: whether `hf.compare` made it, in a cache of its own.
        others: the number of traces in the cache at that time.
        once: whether it serves only its own call, because it changed what it read or read what cannot be watched.
        created: the Variables that it created, each with its line.
        again: what it read that cannot be watched, so that it serves only its own call; else None.
        hits: how many calls had found a trace before, fast calls of a function's only trace not counted.
        at: when the trace was begun, in seconds of a monotonic clock.
        unbounded: why its executables are for exact sizes although bounds were asked for; else None.
    """

    number: int
    signature: dict[str, str]
    call_site: str | None
    changes: tuple[Change, ...] = ()
    trace_ms: float = 0.0
    passes_ms: float = 0.0
    lower_ms: float = 0.0
    xla_ms: float = 0.0
    load_ms: float = 0.0
    nodes: int = 0
    passes: tuple[Any, ...] = ()
    compiles: int = 0
    store: list[str] = field(default_factory=list[str])
    captured: int = 0
    variables: tuple[str, ...] = ()
    assigned: tuple[str, ...] = field(default=())
    guards: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    autocast: str = "off"
    first: bool = False
    dropped: bool = False
    compared: bool = False
    others: int = 0
    once: bool = False
    created: tuple[str, ...] = ()
    again: str | None = None
    hits: int = 0
    at: float = 0.0
    unbounded: str | None = None
    memory: MemoryRecord | None = None
    executables: list[ExecutableRecord] = field(default_factory=list[ExecutableRecord])
    recorded: list[ExecutableRecord] = field(default_factory=list[ExecutableRecord])
    outlined: tuple[Outlined, ...] = ()
    rolled: tuple[Rolled, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    pipelines: tuple[Piped, ...] = ()

    @property
    def reason(self) -> str:
        """Why this trace was made."""
        if self.changes:
            return "; ".join(map(str, self.changes))
        if self.dropped:
            return "an equal trace was dropped from the cache"
        if self.compared:
            return "hf.compare, which compiles the function anew"
        if self.first:
            return "first call"
        return "no trace for these arguments" if self.others else "no earlier trace was left in the cache"

    @property
    def spent(self) -> float:
        """The time that the trace and its executables took, in milliseconds."""
        return self.trace_ms + self.passes_ms + self.lower_ms + self.xla_ms + self.load_ms

    def add(self, made: ExecutableRecord) -> None:
        """Add an executable to the record; one that is a part of recorded calls is among those."""
        self.compiles += 1
        (self.recorded if made.part else self.executables).append(made)
        self.store.append(made.store)
        self.lower_ms += made.lower_ms
        self.xla_ms += made.xla_ms
        self.load_ms += made.load_ms

    def __str__(self) -> str:
        return attached("text_of")(self)
