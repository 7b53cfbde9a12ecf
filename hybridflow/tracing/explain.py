"""`fn.explain()`: one record per trace, printable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from hybridflow.backend.files import write_text
from hybridflow.core.html import page
from hybridflow.passes.lib.left import Outlined, Rolled
from hybridflow.passes.lib.recompute import Recomputed
from hybridflow.tracing.budget import MemoryRecord
from hybridflow.tracing.executables import ExecutableRecord
from hybridflow.tracing.explain_items import trace_item

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree


@dataclass(frozen=True)
class Change:
    """An argument that differs from the nearest earlier trace."""

    argument: str
    before: str
    after: str

    @classmethod
    def between(cls, argument: str, before: str, after: str) -> Change:
        """Return a change, in words that differ where what changed is described alike."""
        return cls(argument, before, after if after != before else f"another {after}")

    def __str__(self) -> str:
        return f"{self.argument}: {self.before} -> {self.after}"


@dataclass
class TraceRecord:
    """What one trace was made for and what it cost.

    Attributes:
        number: 1 for the first.
        signature: argument names and what they were.
        call_site: where the call came from, as ``file:line``; None for one of the command line.
        changes: what differs from the nearest earlier trace; empty for the first.
        trace_ms, passes_ms, lower_ms, xla_ms, load_ms: what it cost, milliseconds; `load_ms` is for executables that
            were loaded from the store on disk.
        nodes: nodes of the graph after the passes.
        passes: one record per pass: name, milliseconds, node counts.
        compiles: how many executables (one per concrete shape) came of it; store: for each, what the store on disk did.
        captured: how many tensors from outside the function the trace reads.
        variables: the names of the Variables it reads; assigned: of those it assigns.
        guards: what it read from Python outside its arguments, and relies on.
        effects: what it changed outside; that happened once, when it was traced.
        autocast: the dtype of the `hf.autocast` that it was called under, or ``off``.
        executables: one record per executable: XLA's options, what it takes over, what was fused.
        outlined: the repeated parts of the graph that are compiled once and called.
        rolled: those that are compiled once and run as a loop.
        recomputed: what checkpoints compute again, per line of the user's code.
        memory: what a memory budget made of the last executable, None without one.
        dropped: whether an equal trace had been dropped from the cache.
        others: how many traces the cache held then.
        once: whether it changed what it read, so that it served its own call alone.
        created: the Variables that it created, each with its line.
        again: what it read that cannot be watched, so that it served its own call alone.
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
    dropped: bool = False
    others: int = 0
    once: bool = False
    created: tuple[str, ...] = ()
    again: str | None = None
    memory: MemoryRecord | None = None
    executables: list[ExecutableRecord] = field(default_factory=list[ExecutableRecord])
    outlined: tuple[Outlined, ...] = ()
    rolled: tuple[Rolled, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()

    @property
    def reason(self) -> str:
        """Why this trace was made."""
        if self.changes:
            return "; ".join(map(str, self.changes))
        if self.dropped:
            return "an equal trace was dropped from the cache"
        if self.number == 1:
            return "first call"
        return "no trace for these arguments" if self.others else "no earlier trace was left in the cache"

    def add(self, made: ExecutableRecord) -> None:
        """Count an executable."""
        self.compiles += 1
        self.executables.append(made)
        self.store.append(made.store)
        self.lower_ms += made.lower_ms
        self.xla_ms += made.xla_ms
        self.load_ms += made.load_ms

    def __str__(self) -> str:
        return "\n".join(trace_item(self).lines())


class Explanation(Sequence[TraceRecord]):
    """The records of a compiled function's traces: a sequence that is printed, a table, a tree and a page.

    Attributes:
        name: the function's.
        advice: what could be changed: see `hybridflow.tracing.advice.Advice`.
    """

    def __init__(self, name: str, records: Sequence[TraceRecord], advice: Sequence[Any] = ()) -> None:
        self.name = name
        self.advice = tuple(advice)
        self._records = tuple(records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __str__(self) -> str:
        count = len(self._records)
        head = f"{self.name}: {count} trace{'' if count == 1 else 's'}"
        return "\n".join([head, *map(str, self._records), *map(str, self.advice)])

    __repr__ = __str__

    def table(self) -> Table:
        """Return one row per trace, for a `rich` console."""
        from hybridflow.tracing.explain_views import table_of

        return table_of(self)

    def tree(self) -> Tree:
        """Return everything as a tree for a `rich` console: traces, their reasons, passes and executables, and advice.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: hf.tanh(x) * 2)
            >>> _ = f(hf.asarray([1.0]))
            >>> [str(branch.label) for branch in f.explain().tree().children[0].children][0]
            'why: first call'
        """
        from hybridflow.tracing.explain_views import tree_of

        return tree_of(self)

    def __rich__(self) -> Tree:
        return self.tree()

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write everything as one page that needs no network.

        Args:
            path: the file.
        """
        write_text(path, page(f"Why {self.name} was traced", self._repr_html_()))

    def _repr_html_(self) -> str:
        from hybridflow.tracing.explain_views import html_of

        return html_of(self)
