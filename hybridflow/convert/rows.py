"""What a loop can iterate over besides Python's iterables: the rows of tensors, and ranges up to a tensor."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert.staged import as_int, magnitude, raw_of, shown, staged_int
from hybridflow.convert.values import is_staged, is_tensor
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import int32, int64
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TraceError, message
from hybridflow.core.staged_number import StagedNumber, refused, several_kinds, used_at
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.ir.builder import add_check

_INT32 = int(np.iinfo(np.int32).max)


class Rows:
    """The rows of some tensors, as an iterable of items that are built from one row of each.

    Attributes:
        tensors: tensors with the same leading size.
        build: makes a loop's item from a row of each tensor.
        plain: makes a Python iterator over the same items, for code other than loops.
    """

    def __init__(
        self, tensors: Sequence[Any], build: Callable[[Sequence[Any]], Any], plain: Callable[[], Iterator[Any]]
    ) -> None:
        self.tensors = tuple(tensors)
        self.build = build
        self.plain = plain
        self.length = self.tensors[0].shape[0]

    def __iter__(self) -> Iterator[Any]:
        return self.plain()


def rows_of(tensor: Any) -> Rows:
    """Return the rows of a tensor."""
    whole = as_tensor(tensor)
    if not whole.shape:
        raise ArgumentTypeError(message("iter: a tensor of shape () cannot be iterated", got=str(whole.spec)))
    if type(tensor) is TracedArray:
        return Rows((whole,), lambda row: tensor.like(row[0]), lambda: iter(tensor))
    return Rows((whole,), lambda row: row[0], lambda: iter(whole))


def parts_of(iterable: Any) -> Rows | None:
    """Return the rows of a tensor, or of an iterable made of tensors; None for everything else."""
    if type(iterable) is Rows:
        return iterable
    return rows_of(iterable) if is_tensor(iterable) else None


def enumerated(iterable: Any, start: Any = 0) -> Any:
    """Return ``enumerate``; for a tensor, as `Rows`."""
    rows = parts_of(iterable)
    if rows is None:
        if type(start) is not StagedNumber:
            return enumerate(iterable, start)
        _require_integer(start, "enumerate")
        whole: Any = as_int(start)
        return zip(itertools.count(whole), iterable)
    numbers: Any = PUBLIC.arange(rows.length)
    first = staged_int(as_tensor(start)) if is_tensor(start) else start
    return Rows(
        (numbers, *rows.tensors),
        lambda row: (staged_int(row[0]) + first, rows.build(row[1:])),
        lambda: enumerate(iter(rows), start),
    )


def zipped(*iterables: Any, strict: bool = False) -> Any:
    """Return ``zip``; if all arguments are tensors, as `Rows`."""
    parts = [parts_of(one) for one in iterables]
    several = [rows for rows in parts if rows is not None]
    if not several or len(several) != len(parts):
        return zip(*iterables, strict=strict)
    sizes = [rows.length for rows in several]
    if strict and any(size != sizes[0] for size in sizes):
        return zip(*iterables, strict=True)
    length = min(sizes)
    tensors = [tensor[:length] for rows in several for tensor in rows.tensors]
    ends = [0]
    for rows in several:
        ends.append(ends[-1] + len(rows.tensors))

    def build(row: Sequence[Any]) -> Any:
        pairs = zip(several, ends, ends[1:], strict=False)
        return tuple([rows.build(row[start:end]) for rows, start, end in pairs])

    return Rows(tensors, build, lambda: zip(*iterables, strict=strict))


def reversed_rows(iterable: Any) -> Any:
    """Return ``reversed``; for a tensor, as `Rows`."""
    if not is_tensor(iterable):
        return reversed(iterable)
    whole = as_tensor(iterable)
    flipped: Any = PUBLIC.flip(whole, axis=0)
    return rows_of(iterable.like(flipped) if type(iterable) is TracedArray else flipped)


class TensorRange:
    """``range`` with a tensor among its arguments."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step
        self.limit = 0

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`range`, for `isinstance`."""
        return range

    def _refuse(self, *_: Any) -> Any:
        ends = (self.start, self.stop, self.step)
        numbers = ", ".join([shown(one) if type(one) is StagedNumber else repr(one) for one in ends])
        raise refused(
            TraceError(
                message("range: its length is a tensor, so only a converted for loop can run over it",
                        got=f"range({numbers}), {used_at()}",
                        hint="Use a for statement, or a range of a known length with a condition."),
            )
        )  # fmt: skip

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
            raise ArgumentTypeError(
                message("range: only an integer tensor of shape () is an index", got=str(as_tensor(tensor).spec))
            )
    step = args[2] if len(args) == 3 else 1
    if is_staged(step):
        add_check(PUBLIC.not_equal(as_tensor(step), 0), ArgumentError, "range() arg 3 must not be zero")
    elif step == 0:
        return range(0, 0, step)  # raises Python's error
    if len(args) == 1:
        return TensorRange(0, args[0], 1)
    return TensorRange(args[0], args[1], step)
