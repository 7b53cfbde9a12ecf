"""What a loop can iterate over besides Python's iterables: the rows of tensors, and ranges up to a tensor."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert import regions
from hybridflow.convert.branches import where_now
from hybridflow.convert.staged import as_int, magnitude, raw_of, shown, staged_int
from hybridflow.convert.values import is_staged, is_tensor
from hybridflow.core.context import current
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import int32, int64
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TraceError
from hybridflow.core.held import defines
from hybridflow.core.staged_number import StagedNumber, refused, several_kinds, used_at
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.ir.builder import add_check

_INT32 = int(np.iinfo(np.int32).max)


class Rows:
    """The rows of some tensors, each as an item that is built from one row of each.

    Attributes:
        tensors: tensors with the same leading size.
        build: makes an item from a row of each tensor.
        start: the index of the first row; a tensor if an earlier loop's ``break`` on a tensor decided it.
    """

    def __init__(self, tensors: Sequence[Any], build: Callable[[Sequence[Any]], Any], start: Any = 0) -> None:
        self.tensors = tuple(tensors)
        self.build = build
        self.length = self.tensors[0].shape[0]
        self.start = start


def rows_of(tensor: Any) -> Rows:
    """Return the rows of a tensor."""
    whole = as_tensor(tensor)
    if not whole.shape:
        raise ArgumentTypeError("iter: a tensor of shape () cannot be iterated", got=str(whole.spec))
    if type(tensor) is TracedArray:
        return Rows((whole,), lambda row: tensor.like(row[0], moved=True))
    return Rows((whole,), lambda row: row[0])


class StandsFor:
    """The base of what stands for iterators and ranges of Python's, also in `isinstance`."""

    stands_for: type

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.stands_for


class Stream(StandsFor):
    """An iterator over rows of tensors, as ``zip``, ``enumerate`` and ``reversed`` return one: it is used up once.

    Attributes:
        sources: the streams that it takes its items from.
        left: the rows of a loop that a tensor stopped, from the index where it did; else None.
        place: the line of a loop that a tensor stopped, so that it is not known what is left; else None.
    """

    def __init__(self, *sources: Stream) -> None:
        self.sources = sources
        self.left: Rows | None = None
        self.place: str | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        require_known(self)
        regions.changed(self, ".__next__()")
        return self.following()

    def following(self) -> Any:
        """Return the next item, or raise `StopIteration`."""
        raise NotImplementedError

    def rest(self) -> Rows | None:
        """Return what is left as rows; None if one tensor's items are taken in several ways."""
        raise NotImplementedError

    def count(self) -> Any:
        """Return the number of items that are left."""
        return min([source.count() for source in self.sources])

    def skip(self, count: Any) -> None:
        """Leave out items; one more than there are, if it is asked for whether there are more."""
        for source in self.sources:
            source.skip(count)

    def readers(self) -> list[Any]:
        """Return the streams of single tensors that the items come from."""
        return [reader for source in self.sources for reader in source.readers()]

    def take(self, stops: bool) -> Rows | None:
        """Return all that is left, for a loop that may stop earlier if `stops` is set; None if it is not rows."""
        if self.left is None:
            require_known(self)
        regions.changed(self, ".__next__()")
        rows = self.rest() if self.left is None else self.left
        if rows is None:
            return None
        self.left = None
        stops = stops and rows.length != 0
        self.mark(where_now() if stops else None)
        if not stops:
            self.skip(self.count() + 1)
        return rows

    def mark(self, place: str | None) -> None:
        """Set `place`, of the sources too."""
        self.place = place
        for source in self.sources:
            source.mark(place)


class _Reader(Stream):
    """The stream of a tensor's rows."""

    stands_for = reversed

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows
        self.position = 0

    def following(self) -> Any:
        if self.position >= self.rows.length:
            raise StopIteration
        self.position += 1
        return self.rows.build([tensor[self.position - 1] for tensor in self.rows.tensors])

    def rest(self) -> Rows:
        start = self.position
        return Rows([tensor[start:] for tensor in self.rows.tensors], self.rows.build) if start else self.rows

    def count(self) -> Any:
        return self.rows.length - self.position

    def skip(self, count: Any) -> None:
        self.position += min(count, self.count())

    def readers(self) -> list[Any]:
        return [self]


class _Enumerated(Stream):
    """``enumerate`` of a stream."""

    stands_for = enumerate

    def __init__(self, source: Stream, start: Any) -> None:
        super().__init__(source)
        self.number = start

    def following(self) -> Any:
        item = next(self.sources[0])
        self.number += 1
        return self.number - 1, item

    def rest(self) -> Rows | None:
        rows = self.sources[0].rest()
        if rows is None:
            return None
        numbers: Any = PUBLIC.arange(rows.length)
        first = self.number
        return Rows((numbers, *rows.tensors), lambda row: (staged_int(row[0]) + first, rows.build(row[1:])))

    def skip(self, count: Any) -> None:
        self.number += min(count, self.count())
        super().skip(count)


class _Zipped(Stream):
    """``zip`` of streams."""

    stands_for = zip

    def __init__(self, sources: Sequence[Stream], strict: bool) -> None:
        super().__init__(*sources)
        self.strict = strict
        self.plain = zip(*sources, strict=strict)

    def following(self) -> Any:
        return next(self.plain)

    def rest(self) -> Rows | None:
        readers = self.readers()
        if len({id(one) for one in readers}) < len(readers):
            return None
        several = [rows for rows in [source.rest() for source in self.sources] if rows is not None]
        sizes = [rows.length for rows in several]
        if len(several) < len(self.sources) or (self.strict and any(size != sizes[0] for size in sizes)):
            return None
        length = min(sizes)
        tensors = [tensor[:length] for rows in several for tensor in rows.tensors]
        ends = [0]
        for rows in several:
            ends.append(ends[-1] + len(rows.tensors))

        def build(row: Sequence[Any]) -> Any:
            pairs = zip(several, ends, ends[1:], strict=False)
            return tuple([rows.build(row[start:end]) for rows, start, end in pairs])

        return Rows(tensors, build)

    def skip(self, count: Any) -> None:
        least = self.count()
        ends = count > least
        for source in self.sources:
            last = ends and source.count() == least
            source.skip(least + 1 if ends else count)
            if last:  # Python asks no further
                ends, count = False, least


for _kind in (_Reader, _Enumerated, _Zipped):
    _kind.__name__ = _kind.stands_for.__name__  # as in Python's messages


def stream_of(iterable: Any) -> Stream | None:
    """Return a tensor, or an iterator made of tensors, as a stream; None for everything else."""
    if isinstance(iterable, Stream):
        return iterable
    return _Reader(rows_of(iterable)) if is_tensor(iterable) else None


def enumerated(iterable: Any, start: Any = 0) -> Any:
    """Return ``enumerate``."""
    stream = stream_of(iterable)
    if stream is None and not is_staged(start):
        return enumerate(iterable, start)
    if is_tensor(start):
        first: Any = staged_int(as_tensor(start))
    elif type(start) is StagedNumber:
        _require_integer(start, "enumerate")
        first = as_int(start)
    else:
        first = next(enumerate((None,), start))[0]
    return zip(itertools.count(first), iterable) if stream is None else _Enumerated(stream, first)


def zipped(*iterables: Any, strict: bool = False) -> Any:
    """Return ``zip``."""
    streams = [stream_of(one) for one in iterables]
    several = [stream for stream in streams if stream is not None]
    if not several or len(several) != len(streams):
        return zip(*iterables, strict=strict)
    return _Zipped(several, strict)


def reversed_rows(iterable: Any) -> Any:
    """Return ``reversed``."""
    if not is_tensor(iterable):
        return reversed(iterable)
    whole = as_tensor(iterable)
    flipped: Any = PUBLIC.flip(whole, axis=0)
    return _Reader(rows_of(iterable.like(flipped, moved=True) if type(iterable) is TracedArray else flipped))


_stopped: WeakKeyDictionary[Any, dict[int, tuple[Any, str]]] = WeakKeyDictionary()
"""For each trace, branch and loop body: iterators of Python's on which a tensor stopped a loop, with its line."""


def note_stopped(iterator: Any) -> None:
    """Record that a tensor stopped a loop over an iterator, if it is one: calls differ in what is left of it."""
    if isinstance(iterator, Stream):
        iterator.mark(where_now())
    elif defines(type(iterator), "__next__"):
        _stopped.setdefault(current().tracer, {})[id(iterator)] = iterator, where_now()


def require_known(iterator: Any) -> None:
    """Raise if a tensor decides what is left of an iterator.

    Raises:
        TraceError: it does.
    """
    place = iterator.place if isinstance(iterator, Stream) else None
    tracer: Any = current().tracer if _stopped else None
    while tracer is not None and place is None:
        place = _stopped.get(tracer, {}).get(id(iterator), (None, None))[1]
        tracer = tracer.outer
    if place is not None:
        raise TraceError(f"iter: what is left of an iterator depends on a tensor, which stops the loop at {place}, and "
                         f"it is read at {where_now()}", hint="Let the loop end, or make a new iterator.")


class TensorRange(StandsFor):
    """``range`` with a tensor among its arguments."""

    stands_for = range

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step
        self.limit = 0

    def _refuse(self, *_: Any) -> Any:
        ends = (self.start, self.stop, self.step)
        numbers = ", ".join([shown(one) if type(one) is StagedNumber else repr(one) for one in ends])
        raise refused(
            TraceError("range: its length is a tensor, so only a converted for loop can run over it",
                       got=f"range({numbers}), {used_at()}",
                       hint="Use a for statement, or a range of a known length with a condition.")
        )

    __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = __reversed__ = __eq__ = __hash__ = _refuse
    __str__ = __repr__ = __reduce_ex__ = index = _refuse

    def count(self) -> Any:
        """Return ``len``."""
        given = (self.start, self.stop, self.step)
        start, stop, step = [cast(Any, staged_int(as_tensor(one)) if is_tensor(one) else one) for one in given]
        size = -((start - stop) // step)
        whole = raw_of(size, int64)
        return staged_int(PUBLIC.where(whole > 0, whole, 0))

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return start, stop and step as tensors."""
        numbers = [staged_int(as_tensor(one)) if is_tensor(one) else one for one in (self.start, self.stop, self.step)]
        self.limit = max(map(magnitude, numbers[:2]))
        # The index goes one step beyond the last one, which must not overflow.
        narrow = self.limit <= _INT32 and (type(self.step) is int and abs(self.step) == 1)
        made: Any = tuple([raw_of(one, int32 if narrow else int64) for one in numbers])
        return made


def _require_integer(number: StagedNumber, name: str) -> None:
    if float in number.kinds:
        if len(number.kinds) > 1:
            raise several_kinds(number, f"is an argument of {name}(), which takes no floats")
        raise TypeError("'float' object cannot be interpreted as an integer")


def ranged(*args: Any) -> Any:
    """Return ``range``; its arguments may be tensors, or numbers that a tensor decides."""
    tensors = [one for one in args if is_staged(one)]
    if not tensors or not 1 <= len(args) <= 3:
        return range(*args)
    for tensor in args:
        if type(tensor) is StagedNumber:
            _require_integer(tensor, "range")
        elif type(tensor) is Dim:
            continue
        elif not is_tensor(tensor):
            operator.index(tensor)  # raises Python's error
        elif tensor.shape != () or np.dtype(tensor.dtype).kind not in "iu":
            raise ArgumentTypeError("range: only an integer tensor of shape () is an index",
                                    got=str(as_tensor(tensor).spec))
    step = args[2] if len(args) == 3 else 1
    if is_staged(step):
        add_check(PUBLIC.not_equal(as_tensor(step), 0), ArgumentError, "range() arg 3 must not be zero")
    elif step == 0:
        return range(0, 0, step)  # raises Python's error
    if len(args) == 1:
        return TensorRange(0, args[0], 1)
    return TensorRange(args[0], args[1], step)
