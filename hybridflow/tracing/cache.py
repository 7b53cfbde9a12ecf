"""The bounded cache of a compiled function's traces; a key may have several, which differ in their guards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hybridflow.guards.signature import is_gone

if TYPE_CHECKING:
    from hybridflow.tracing.trace import Trace


class CacheInfo(NamedTuple):
    """The result of `CompiledFunction.cache_info`."""

    hits: int
    misses: int
    max_traces: int
    traces: int
    executables: int


class TraceCache:
    """Traces by key, at most `limit` of them: the least recently used one makes room.

    Traces with the same key differ in what they found outside their arguments: Python values (guards), and Variables
    that are reached in two ways. Readers take no lock, so the traces of a key are a tuple that is replaced as a whole.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._traces: dict[object, tuple[Trace, ...]] = {}
        self._dropped: set[int] = set()
        self.compiles_dropped = 0

    def __len__(self) -> int:
        return sum(map(len, self._traces.values()))

    def __iter__(self) -> Iterator[Trace]:
        for traces in list(self._traces.values()):
            yield from traces

    def items(self) -> Iterator[tuple[Any, Trace]]:
        """Yield every trace with its key."""
        for key, traces in list(self._traces.items()):
            for trace in traces:
                yield key, trace

    @property
    def of_one_key(self) -> bool:
        """Whether all traces have the same key."""
        return len(self._traces) == 1

    def find(self, key: object) -> tuple[Trace, ...]:
        """Return the traces of a key, the newest first."""
        return self._traces.get(key, ())

    def add(self, key: object, trace: Trace) -> None:
        """Add a trace, and drop traces that no call can find any more, because an object in their key is gone."""
        for other, traces in list(self._traces.items()):
            if any(is_gone(leaf_key) for leaf_key in cast(Any, other)[0][2]):
                del self._traces[other]
                for one in traces:
                    self.compiles_dropped += one.record.compiles
        while len(self) >= self.limit:
            self._drop_oldest()
        self._traces[key] = (trace, *self._traces.get(key, ()))

    def discard(self, trace: Trace) -> None:
        """Remove a trace that no call will find again."""
        for key, traces in self._traces.items():
            self._traces[key] = tuple([one for one in traces if one is not trace])
        self.compiles_dropped += trace.record.compiles

    def was_dropped(self, key: object) -> bool:
        """Whether a trace of this key has been dropped."""
        return hash(key) in self._dropped

    def clear(self) -> None:
        """Drop every trace."""
        for key in list(self._traces):
            for trace in self._traces.pop(key):
                self._forget(key, trace)

    @property
    def executables(self) -> int:
        """The number of executables that the traces have."""
        return sum(len(trace.executables) for trace in self)

    @property
    def compiles(self) -> int:
        """The number of executables that were made, including those of dropped traces."""
        return self.compiles_dropped + sum(trace.record.compiles for trace in self)

    def _drop_oldest(self) -> None:
        key, oldest = min(
            ((key, trace) for key, traces in self._traces.items() for trace in traces),
            key=lambda item: item[1].last_used,
        )
        remaining = tuple([trace for trace in self._traces[key] if trace is not oldest])
        if remaining:
            self._traces[key] = remaining
        else:
            del self._traces[key]
        self._forget(key, oldest)

    def _forget(self, key: object, trace: Trace) -> None:
        self._dropped.add(hash(key))
        self.compiles_dropped += trace.record.compiles
