"""`stream`: batches of examples that come one after the other, from a source that may have no end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.reprs import settings_of
from hybridflow.data.examples import stack
from hybridflow.data.prefetch import Prefetched

B = TypeVar("B")
C = TypeVar("C")


@with_foreign_keywords
def stream(
    examples: Iterable[Any] | Callable[[], Iterable[Any]], size: int, *, pad: float | None = None,
    drop_last: bool = False,
) -> Stream[Any]:
    """Return batches of a stream of examples, which may have no end.

    Args:
        examples: an iterable of examples, of which each loop takes those that are left; or a function that returns an
            iterable, which each loop calls.
        size: the number of examples in a batch; the last batch may have fewer.
        pad: the value that fills up arrays of different shapes, at the ends of their axes.
        drop_last: whether to leave out a last batch that is smaller.

    Raises:
        ArgumentTypeError: the examples are neither an iterable nor a function.
        ArgumentError: the size is less than 1.

    Example:
        >>> import itertools
        >>> import hybridflow as hf
        >>> data = hf.data.stream(itertools.count(), 3)
        >>> [batch.tolist() for batch in itertools.islice(data, 2)]
        [[0, 1, 2], [3, 4, 5]]
    """
    return Stream(examples, size, pad, drop_last)


class Stream(Generic[B]):
    """The result of `stream`. Its state is the number of batches that the loop received.

    A restored stream reads that many batches and throws them away, so it needs a source that begins anew.
    """

    def __init__(self, examples: Any, size: int, pad: float | None = None, drop_last: bool = False) -> None:
        if not isinstance(cast(object, size), int) or size < 1:
            raise ArgumentError("stream: size must be an int, 1 at least", got=f"size={size!r}")
        if not callable(examples) and not hasattr(examples, "__iter__"):
            raise ArgumentTypeError(f"stream: a {type(examples).__name__} has no examples", got=repr(examples)[:80],
                                    hint="Give an iterable of examples, or a function that returns one.")
        self._examples, self._size, self._pad, self._drop_last = examples, size, pad, bool(drop_last)
        self._functions: tuple[Callable[[Any], Any], ...] = ()
        self._next = 0
        self._skip = 0

    def __repr__(self) -> str:
        return f"Stream({', '.join([f'size={self._size}', *settings_of(self)[1:]])})"

    def map(self, fn: Callable[[B], C]) -> Stream[C]:
        """Return the same batches, with a function applied to each of them."""
        made: Stream[Any] = object.__new__(Stream)
        made.__dict__.update(self.__dict__)
        made._functions = (*self._functions, fn)
        return made

    def prefetch(self, n: int = 2) -> Prefetched[B]:
        """Return the same batches; a thread makes the next `n` ahead of time."""
        return Prefetched(self, n)

    def state(self) -> dict[str, Any]:
        """Return the position: how many batches of this loop were yielded."""
        return {"batch": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position; the next loop begins there.

        Raises:
            ArgumentError: the value is not a state of a stream.
        """
        if set(state) != {"batch"} or state["batch"] < 0:
            raise ArgumentError("stream.restore: it is no position in a stream", got=repr(dict(state))[:120],
                                hint="A state has batch.")
        self._next = self._skip = int(state["batch"])

    def __iter__(self) -> Iterator[B]:
        examples = cast("Iterable[Any]", self._examples() if callable(self._examples) else self._examples)
        source = iter(examples)
        self._next, self._skip = self._skip, 0
        for _ in islice(source, self._next * self._size):
            pass
        while (some := [*islice(source, self._size)]) and (len(some) == self._size or not self._drop_last):
            batch = stack(some, self._pad)
            for function in self._functions:
                batch = function(batch)
            self._next += 1
            yield batch
        self._next = 0

