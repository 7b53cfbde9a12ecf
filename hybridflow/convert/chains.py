"""``map`` and ``filter``: items pass through functions one by one, and a tensor may filter some out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

from hybridflow.convert.branches import branch_on_tensor, value_where
from hybridflow.convert.cells import Cells
from hybridflow.convert.filtered import Filtered, Maybe, both
from hybridflow.convert.protocols import truth_of
from hybridflow.convert.rows import StandsFor, Stream, TensorRange, require_known, stream_of, zipped
from hybridflow.convert.values import is_staged, is_tensor, truth


class Stage(NamedTuple):
    """One stage of a chain: a function of an item or, if `keeps` is set, a test of whether to keep it."""

    function: Callable[[Any], Any]
    keeps: bool


class Chain(Filtered, StandsFor):
    """An iterator over the items that come out of some stages; a ``for`` and the reductions use its parts.

    Attributes:
        source: the iterator of the items, or a range up to a tensor.
        stages: the stages that each item passes.
    """

    what = "filter"

    def __init__(self, source: Any, stages: tuple[Stage, ...]) -> None:
        self.source: Any = stream_of(source) or source
        self.stages = stages
        self.stands_for = filter if stages[-1].keeps else map
        super().__init__(_Items(self))
        self._plain: Iterator[Any] | None = None

    @property
    def filters(self) -> bool:
        """Whether one of the stages is a filter."""
        return any(stage.keeps for stage in self.stages)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        require_known(self)
        if self._plain is None:
            self._plain = super().__iter__()
        return next(self._plain)


class _Items:
    """The items of a chain, `Maybe`s where a tensor decides."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def __iter__(self) -> Iterator[Any]:
        require_known(self.chain)
        for item in self.chain.source:
            yield from _through(item, self.chain.stages)


def rest_of(items: Iterator[Any]) -> Iterator[Any]:
    """Return what an iterator has left, by ``next`` alone: a loop would call its ``__iter__`` too, and take a frame."""
    return map(next, itertools.repeat(items))


def _through(item: Any, stages: tuple[Stage, ...]) -> Iterator[Any]:
    """Yield the result of the stages for an item; nothing if it is filtered out."""
    for number, (function, keeps) in enumerate(stages):
        if not keeps:
            item = function(item)
            continue
        test = truth_of(function(item))
        if is_staged(test):
            yield _maybe(truth(test), item, stages[number + 1 :])
            return
        if not test:
            return
    yield item


def _maybe(test: Any, item: Any, stages: tuple[Stage, ...]) -> Maybe:
    """Return an item that is kept if a tensor is true, and passes further stages only then."""
    for number, (function, keeps) in enumerate(stages):
        if keeps:
            more = value_where(test, coded(partial(function, item), _maybe.__code__))
            return _maybe(both(test, truth(more) if is_staged(more) else bool(more)), item, stages[number + 1 :])
        item = value_where(test, coded(partial(function, item), _maybe.__code__))
    return Maybe(test, lambda: item)


def coded(block: partial[Any], code: CodeType) -> partial[Any]:
    """Attach a code object to a branch's block; recursion is counted by this code object."""
    block.__dict__["code"] = block.__dict__["__code__"] = code
    return block


class Through:
    """A loop's step that runs after the stages of a chain; it shares the step's variables.

    Args:
        step: the step.
        stages: the stages that an item passes first.
        names: the variables that the step may set.
        kept: those of them that are read later.
    """

    def __init__(
        self, step: Any, stages: tuple[Stage, ...], names: tuple[str, ...], kept: tuple[str, ...]
    ) -> None:
        self.__code__, self.__closure__, self.__globals__ = step.__code__, step.__closure__, step.__globals__
        self.step = step
        self.stages = stages
        self.cells = Cells(names, step)
        self.kept = kept

    def __call__(self, item: Any) -> None:
        self._run(item, self.stages)

    def _run(self, item: Any, stages: tuple[Stage, ...]) -> None:
        for number, (function, keeps) in enumerate(stages):
            if not keeps:
                item = function(item)
                continue
            test = truth_of(function(item))
            if is_staged(test):
                rest = partial(self._run, item, stages[number + 1 :])
                branch_on_tensor(test, coded(rest, self.__code__), None, self.cells, self.kept)
                return
            if not test:
                return
        self.step(item)


def mapped(function: Callable[..., Any], *iterables: Any) -> Any:
    """Return ``map``; for tensors or a chain, as a `Chain`, which a ``filter`` around it can extend."""
    if len(iterables) > 1 and all(map(_is_rows, iterables)):
        return Chain(zipped(*iterables), (Stage(lambda items: function(*items), False),))
    if len(iterables) != 1 or not (_is_rows(iterables[0]) or isinstance(iterables[0], Chain | TensorRange)):
        return map(function, *iterables)
    return _longer(iterables[0], Stage(function, False))


def kept_by(function: Callable[[Any], Any] | None, iterable: Any) -> Any:
    """Return ``filter``."""
    stage = Stage(_itself if function is None else function, True)
    if _is_rows(iterable) or type(iterable) is TensorRange:
        return _longer(iterable, stage)
    items = iter(iterable)
    return _longer(items if isinstance(items, Chain) else rest_of(items), stage)


def _longer(source: Any, stage: Stage) -> Chain:
    """Return a chain with one more stage."""
    if not isinstance(source, Chain):
        return Chain(source, (stage,))
    require_known(source)
    return Chain(source.source, (*source.stages, stage))


def _itself(item: Any) -> Any:
    return item


def _is_rows(iterable: Any) -> bool:
    return is_tensor(iterable) or isinstance(iterable, Stream)

