"""`prefetch`: a thread makes the next items of an iterable while the loop works on one."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords

T = TypeVar("T")
C = TypeVar("C")
_END = object()
_WAIT = 0.05
"""Seconds between the thread's checks whether the loop has ended, while the queue is full."""


class _Failed:
    """An error that the source raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@with_foreign_keywords
def prefetch(iterable: Iterable[T], n: int = 2) -> Prefetched[T]:
    """Return an iterable whose next `n` items are made in a thread.

    Args:
        iterable: the iterable; each loop iterates over it again.
        n: the most items that may wait.

    Example:
        >>> import hybridflow as hf
        >>> list(hf.data.prefetch(range(4), 2))
        [0, 1, 2, 3]
    """
    return Prefetched(iterable, n)


class Prefetched(Generic[T]):
    """The result of `prefetch`. Its state is the position after the last item that the loop received."""

    def __init__(self, source: Iterable[T], n: int) -> None:
        if n < 1:
            raise ArgumentError("prefetch: n must be 1 at least", got=f"n={n!r}")
        self._source = source
        self._n = int(n)
        self._state: Any = None

    @property
    def source(self) -> Iterable[T]:
        """The iterable that makes the items."""
        return self._source

    def __repr__(self) -> str:
        return f"{self._source!r}.prefetch({self._n})"

    def __len__(self) -> int:
        return len(cast(Any, self._source))

    def map(self, fn: Callable[[T], C]) -> Prefetched[C]:
        """Return the items with a function applied to each of them in the thread."""
        return Prefetched(cast(Any, self._source).map(fn), self._n)

    def state(self) -> dict[str, Any]:
        """Return the position after the last item that the loop received."""
        return cast(Any, self._source).state() if self._state is None else self._state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position; the next loop begins there."""
        cast(Any, self._source).restore(state)
        self._state = None

    def __iter__(self) -> Iterator[T]:
        waiting: queue.Queue[Any] = queue.Queue(self._n)
        ended = threading.Event()
        where = getattr(self._source, "state", None)

        def put(item: Any) -> bool:
            while not ended.is_set():
                try:
                    waiting.put(item, timeout=_WAIT)
                except queue.Full:
                    continue
                return True
            return False

        def work() -> None:
            try:
                for item in self._source:
                    if not put((item, None if where is None else where())):
                        return
            except BaseException as error:
                put(_Failed(error))
                return
            put(_END if where is None else (_END, where()))

        thread = threading.Thread(target=work, name="hybridflow-prefetch", daemon=True)
        thread.start()
        try:
            while True:
                received = waiting.get()
                if isinstance(received, _Failed):
                    raise received.error
                if received is _END:
                    return
                item, self._state = received
                if item is _END:
                    return
                yield item
        finally:
            ended.set()
            if not sys.is_finalizing():  # daemon threads no longer run then
                thread.join()
