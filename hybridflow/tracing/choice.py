"""The choice between programs for bounds and executables for exact sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from hybridflow.core.errors import RetraceWarning, message
from hybridflow.core.node import user_place, warn_at
from hybridflow.core.padding import NoRule
from hybridflow.ir.graph import Graph
from hybridflow.tracing.executables import Padding
from hybridflow.tracing.predicted import Predicted, next_bound

Sizes = Mapping[str, int]

EXECUTABLES = 64
"""The most executables that are kept of one kind, one per concrete shape; the oldest makes room."""
WARNED_SIZES = 5
"""The number of exact sizes that a function is compiled for before a warning names what keeps it from using bounds."""

P = TypeVar("P")
E = TypeVar("E")


@dataclass
class Program(Generic[P]):
    """A program for a bound.

    Attributes:
        made: what was compiled.
        bounds: the bound of each symbol.
        padding: what its calls computed beyond real sizes.
        lost: the predicted seconds that calls have lost to padding since a tighter program was last made for them.
    """

    made: P
    bounds: dict[str, int]
    padding: Padding
    lost: float = 0.0

    def takes(self, sizes: Sizes) -> bool:
        """Whether no size is above its bound."""
        return all([size <= self.bounds[name] for name, size in sizes.items()])

    def volume(self) -> float:
        """Return the product of the bounds."""
        return float(np.prod([*map(float, self.bounds.values())]))


class Choice(Generic[P, E]):
    """What is compiled for the sizes that some graphs are called with: programs for bounds, and exact executables.

    The first sizes are compiled for exactly. From then on a size gets the tightest program there is. If there is none,
    one is compiled, with a bound that is as large as padding is cheaper than compiling again. When calls have lost to
    padding what compiling costs, a tighter program is compiled, and at last one for the exact size. So padding and
    compiling together cost about twice as much as the best choice in hindsight, at most. Costs are predicted, not
    measured: the same calls always make the same choices, and so have the same bits.

    Args:
        graphs: the graphs that a call runs.
        first: how many sizes are compiled for exactly before bounds are used.
        always: whether bounds are used from the first size on, wherever they can be.
        compile_bounds: compiles a program for some bounds; it may show what will be computed beyond real sizes.
        compile_exact: compiles an executable for exact sizes.
        forget: called when some sizes have another program from now on.

    Attributes:
        why_not: why all executables are for exact sizes; None if they are not.
        exact_count: how many executables for exact sizes were compiled.
    """

    def __init__(
        self,
        graphs: Sequence[Graph],
        first: int,
        compile_bounds: Callable[[dict[str, int], Padding], P],
        compile_exact: Callable[[Sizes], E],
        forget: Callable[[], None],
        *,
        always: bool = False,
    ) -> None:
        self.why_not: str | None = None
        self.exact_count = 0
        self._graphs = graphs
        self._first = 0 if always else first
        self._always = always
        self._compile_bounds = compile_bounds
        self._compile_exact = compile_exact
        self._forget = forget
        self._exact: dict[tuple[int, ...], E] = {}
        self._programs: list[Program[P]] = []
        self._lost: dict[tuple[int, ...], float] = {}
        self._due: set[tuple[int, ...]] = set()
        self._predicted: Predicted | None = None

    def exact(self, sizes: Sizes) -> E:
        """Return the executable for exact sizes, compiling it if there is none."""
        key = tuple(sizes.values())
        if key not in self._exact:
            executable = self._compile_exact(sizes)
            self.exact_count += 1
            make_room(self._exact)
            self._exact[key] = executable
            if self.why_not is not None and self.exact_count == WARNED_SIZES:
                _warn(self._graphs[0].name, self.why_not)
        return self._exact[key]

    def program(self, sizes: Sizes) -> Program[P] | None:
        """Return the program for a bound that serves given sizes; None if they are to have an executable of their own.

        Args:
            sizes: the size of each symbol.
        """
        key = tuple(sizes.values())
        if self.why_not is not None or key in self._exact:
            return None
        if self._first:
            self._first -= 1
            return None
        try:
            return self._bounded(sizes, due=key in self._due)
        except NoRule as why:
            self.why_not = str(why)
            return None
        finally:
            self._due.discard(key)

    def tightest(self, sizes: Sizes) -> Program[P] | None:
        """Return the tightest program that there is for given sizes; None if they have an executable of their own."""
        if tuple(sizes.values()) in self._exact:
            return None
        return min([one for one in self._programs if one.takes(sizes)], key=Program.volume, default=None)

    def _bounded(self, sizes: Sizes, *, due: bool) -> Program[P] | None:
        found = self.tightest(sizes)
        if found is not None and not due:
            return found
        if self._predicted is None:
            self._predicted = Predicted(*self._graphs)
        bounds = self._least(sizes)
        if found is None:
            bounds = self._predicted.bounds(sizes, bounds, partial(self._graphs[0].dims.within, sizes))
        elif found.bounds == bounds:
            return None
        if bounds == sizes and not self._graphs[0].dims.holds(_next(sizes)):
            if self.exact_count >= WARNED_SIZES - 1:
                raise NoRule("what the trace relied on does not hold for larger sizes")
            return None
        padding = Padding()
        program = Program(self._compile_bounds(bounds, padding), bounds, padding)
        self._programs.append(program)
        return program

    def counter(self, program: Program[P], sizes: Sizes) -> Callable[[], None]:
        """Return what each call does first: it counts what it loses to padding, and asks for a tighter program."""
        assert self._predicted is not None
        key, price = tuple(sizes.values()), self._predicted.compiling
        seconds_padded, seconds_needed = self._predicted.seconds(program.bounds), self._predicted.seconds(sizes)
        lost, padding = seconds_padded - seconds_needed, program.padding
        tightest = program.bounds == self._least(sizes)
        final = lost <= 0 or (tightest and self._always)

        def count() -> None:
            padding.add(seconds_padded, lost)
            if final:
                return
            if tightest:
                self._lost[key] = total = self._lost.get(key, 0.0) + lost
            else:
                program.lost = total = program.lost + lost
            if total >= price:
                self._lost[key] = program.lost = 0.0
                self._due.add(key)
                self._forget()

        return count

    def _least(self, sizes: Sizes) -> dict[str, int]:
        """Return the tightest bounds that a program for given sizes has."""
        return self._graphs[0].dims.within(sizes, _next(sizes))


def _next(sizes: Sizes) -> dict[str, int]:
    return {name: next_bound(size) for name, size in sizes.items()}


def _warn(name: str, why: str) -> None:
    text = message(
        f"{name} was compiled for {WARNED_SIZES} sizes, one by one",
        got=f"no program for all sizes up to a bound, because of {why}",
        hint="Pad what is passed to a few sizes; or hf.compile(sizes='exact') says that it is meant.",
    )
    warn_at(user_place(2), text, RetraceWarning)


def make_room(executables: dict[Any, Any]) -> None:
    """Drop the oldest entries until there is room for one more."""
    while len(executables) >= EXECUTABLES:
        del executables[next(iter(executables))]
