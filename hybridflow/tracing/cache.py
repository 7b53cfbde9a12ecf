"""The bounded cache of a compiled function's traces; a key may have several, which differ in their guards."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hybridflow.guards.signature import identities_in

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
        self._watched: dict[int, list[Any]] = {}
        self.gone: tuple[Any, Any, Any] | None = None
        """The leaves, the structure and the types of the last trace that was dropped with an object in its key."""
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
        """Add a trace. It is dropped when an object in its key is gone, since no call can find it any more."""
        while len(self) >= self.limit:
            self._drop_oldest()
        before = self._traces.get(key)
        self._traces[key] = (trace, *(before or ()))
        if before is None:
            self._watch(key)

    def _watch(self, key: object) -> None:
        cache, number = weakref.ref(self), id(key)

        def gone(_: Any) -> None:
            found = cache()
            if found is not None:
                found._drop_dead(number, key)

        watched = [one.watch(gone) for one in identities_in(cast(Any, key)[0][2])]
        self._watched[number] = [one for one in watched if one is not None]

    def _drop_dead(self, number: int, key: object) -> None:
        self._watched.pop(number, None)
        for trace in self._traces.pop(key, ()):
            self.gone = trace.leaves, trace.tree, trace.types
            self.compiles_dropped += trace.record.compiles

    def discard(self, trace: Trace) -> None:
        """Remove a trace that no call will find again."""
        for key, traces in list(self._traces.items()):
            self._traces[key] = tuple([one for one in traces if one is not trace])
        self.compiles_dropped += trace.record.compiles

    def was_dropped(self, key: object) -> bool:
        """Whether a trace of this key has been dropped."""
        return hash(key) in self._dropped

    def clear(self) -> None:
        """Drop every trace."""
        for key in list(self._traces):
            for trace in self._traces.pop(key, ()):
                self._forget(key, trace)
        self._watched.clear()

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
        remaining = tuple([trace for trace in self.find(key) if trace is not oldest])
        if remaining:
            self._traces[key] = remaining
        else:
            self._traces.pop(key, None)
            self._watched.pop(id(key), None)
        self._forget(key, oldest)

    def _forget(self, key: object, trace: Trace) -> None:
        self._dropped.add(hash(key))
        self.compiles_dropped += trace.record.compiles
