"""What `hf.compare` found over several sizes: where compiling starts to pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hybridflow.analysis.compare.comparison import (
    Comparison,
    calls_text,
    caution_of,
    even_text,
    part_text,
    ratio_text,
    same_text,
)
from hybridflow.analysis.compare.figures import OTHERS, Curve, colors, sizes_figure
from hybridflow.analysis.compare.outputs import Grid, Shown
from hybridflow.analysis.compare.peers import Peer
from hybridflow.analysis.compare.several import Comparisons
from hybridflow.analysis.statistics import Ratio, format_ratio
from hybridflow.analysis.timing import format_seconds
from hybridflow.core.errors import ArgumentError


@dataclass(frozen=True)
class Crossover:
    """The size from which a compiled call is faster than an eager one.

    Attributes:
        below: the largest size at which it is not shown to be faster, None if there is none.
        at: the smallest size from which on it is at all sizes, None if it is not at the largest.
        estimate: where the two would take equally long, between the two: by a straight line between the logarithms
            of sizes and ratios; None unless the ratio passes 1 between them.
        also: smaller sizes than `below` at which it is faster nevertheless.
    """

    below: int | None
    at: int | None
    estimate: float | None
    also: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.below is None:
            return f"a compiled call is faster at every size, from {self.at:,} on"
        if self.at is None:
            text = f"a compiled call is not shown to be faster at the largest size, {self.below:,}"
        else:
            text = f"a compiled call is faster from {self.at:,} on, and not shown to be at {self.below:,}"
        if self.estimate is not None:
            text += f"; both take equally long at about {self.estimate:,.3g}"
        if self.also:
            text += f"; it is faster at {', '.join([f'{size:,}' for size in self.also])} too"
        return text


def crossover_of(sizes: Sequence[int], ratios: Sequence[Ratio]) -> Crossover:
    """Return the sizes between which compiled calls begin to be faster for all larger sizes.

    Args:
        sizes: ascending.
        ratios: for each size, the eager call's time divided by the compiled one's.
    """
    paying = [ratio.told and ratio.value > 1 for ratio in ratios]
    first = len(sizes)
    while first and paying[first - 1]:
        first -= 1
    if first == 0:
        return Crossover(None, sizes[0], None)
    below = sizes[first - 1]
    also = tuple([size for size, pays in zip(sizes[:first], paying, strict=False) if pays])
    if first == len(sizes):
        return Crossover(below, None, None, also)
    low, high = math.log(ratios[first - 1].value), math.log(ratios[first].value)
    estimate = None
    if low < 0 < high:
        estimate = below * math.exp((math.log(sizes[first]) - math.log(below)) * -low / (high - low))
    return Crossover(below, sizes[first], estimate, also)


@dataclass(frozen=True, repr=False)
class Sweep(Shown):
    """Functions compared over several sizes; ``sweep[size]`` is the result for one size.

    Attributes:
        sizes: ascending.
        found: what was found at each.
    """

    sizes: tuple[int, ...]
    found: tuple[Comparisons, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The functions' names."""
        return self.found[0].names

    def __getitem__(self, size: int) -> Comparisons | Comparison:
        if size not in self.sizes:
            raise ArgumentError(f"compare: size {size} was not measured", hint=f"These were: {list(self.sizes)}.")
        at = self.found[self.sizes.index(size)]
        return at if len(at) > 1 else at[0]

    def __iter__(self) -> Iterator[Comparisons | Comparison]:
        return iter([self[size] for size in self.sizes])

    def comparisons(self, name: str | int = 0) -> list[Comparison]:
        """Return the comparisons of one function, one for each size.

        Args:
            name: its name, or its position among the functions.
        """
        return [at[name] for at in self.found]

    def crossover(self, name: str | int = 0) -> Crossover:
        """Return the size from which a compiled call is faster than an eager one.

        Args:
            name: the function's name, or its position.
        """
        return crossover_of(self.sizes, [one.ratio for one in self.comparisons(name)])

    def _crossovers(self) -> dict[str, Crossover]:
        return {name: self.crossover(name) for name in self.names}

    def break_even(self, name: str | int = 0) -> dict[int, int | None]:
        """Return, for each size, the number of calls after which compiling has paid off; None if it never does.

        Args:
            name: the function's name, or its position.
        """
        comparisons = self.comparisons(name)
        return {size: one.break_even for size, one in zip(self.sizes, comparisons, strict=True)}

    @property
    def same(self) -> bool:
        """Whether everything that was compared is the same but for rounding, at every size."""
        return all(at.same for at in self.found)

    # -- showing ----------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What was compared."""
        peers = [peer.name for peer in self._peers(0)]
        return f"{', '.join([' and '.join(self.names), *peers])}: sizes {self.sizes[0]:,} to {self.sizes[-1]:,}"

    def grids(self) -> list[Grid]:
        """Return a table per function."""
        return [self._grid(number, name) for number, name in enumerate(self.names)]

    def _grid(self, number: int, name: str) -> Grid:
        peers = [peer.name for peer in self._peers(0)] if number == 0 else []
        head = ("size", "eager", "compiled", "speed-up (95 %)", "in kernels", "first call",
                "break-even", *peers, "results")
        rows: list[tuple[str, ...]] = []
        for at, (size, one) in enumerate(zip(self.sizes, self.comparisons(number), strict=True)):
            beside = self._peers(at) if number == 0 else []
            rows.append((
                f"{size:,}", format_seconds(one.eager.median), format_seconds(one.compiled.median),
                ratio_text(one.ratio), part_text(one.compiled_kernels, one.compiled),
                format_seconds(one.first_call.total), even_text(one).partition(":")[0],
                *[format_seconds(peer.timing.median) for peer in beside],
                same_text([*one.judged(), *[peer.parity for peer in beside]]),
            ))
        alarming = frozenset(row for row, cells in enumerate(rows) if cells[-1] == "DIFFERENT")
        title = f"{name}: eager and compiled, by size" if len(self.names) > 1 or not peers else self.title
        return Grid(title, head, rows, alarming=alarming)

    def _peers(self, at: int) -> list[Peer]:
        comparison = self.found[at]
        return [*comparison.peers, *(comparison[0].peers if len(comparison) == 1 else ())]

    def findings(self) -> list[str]:
        """Return what the timings show, one sentence each."""
        sentences = [f"{name}: {at}." for name, at in self._crossovers().items()]
        for name in self.names:
            clear = {size for size, one in zip(self.sizes, self.comparisons(name), strict=True) if one.ratio.told}
            evens = [(count, size) for size, count in self.break_even(name).items() if count and size in clear]
            if evens:
                count, size = min(evens)
                sentences.append(f"{name}: compiling pays off soonest at {size:,}, after {calls_text(count)}.")
        for peer in self._peers(0):
            told: list[str] = []
            for at, size in enumerate(self.sizes):
                other = next(one for one in self._peers(at) if one.name == peer.name)
                ratio = other.timing.over(self.found[at][0].compiled)
                if ratio.told:
                    word = "faster" if ratio.value > 1 else "slower"
                    told.append(f"{format_ratio(max(ratio.value, 1 / ratio.value))} {word} at {size:,}")
            what = f"{self.names[0]} compiled against {peer.name}"
            sentences.append(f"{what}: {', '.join(told) or 'no difference can be told at any size'}.")
        return sentences

    def differences(self) -> list[str]:
        """Return one line per output that differs."""
        return [
            f"size {size:,}: {line}"
            for size, at in zip(self.sizes, self.found, strict=True)
            for line in (at if len(at) > 1 else at[0]).differences()
        ]

    def caution(self) -> str:
        """Return why the timings should be read with care; empty if they are steady."""
        timings = {
            f"{name} at {size:,}": timing
            for size, at in zip(self.sizes, self.found, strict=True)
            for name, timing in (at.timings() | {peer.name: peer.timing for peer in at[0].peers}).items()
        }
        return caution_of(timings)

    def _agreement(self) -> str:
        return "SAME: at every size, what was compared agrees but for rounding."

    def figure(self) -> Any:
        """Return the plots of one call's time and of the calls until break-even, both over the size."""
        curves: list[Curve] = []
        palette = colors(2 * len(self.names))
        for number, name in enumerate(self.names):
            comparisons = self.comparisons(number)
            several = f"{name} " if len(self.names) > 1 else ""
            curves.append(Curve(f"{several}eager", [one.eager for one in comparisons], palette[2 * number]))
            curves.append(Curve(f"{several}compiled", [one.compiled for one in comparisons], palette[2 * number + 1]))
        for number, peer in enumerate(self._peers(0)):
            timings = [self._peers(at)[number].timing for at in range(len(self.sizes))]
            curves.append(Curve(peer.name, timings, OTHERS[-1 - number % len(OTHERS)], dashed=True))
        crossings = {
            name: None if at.below is None else at.estimate or at.at for name, at in self._crossovers().items()
        }
        evens = {name: list(self.break_even(name).values()) for name in self.names}
        return sizes_figure(self.title, self.sizes, curves, crossings, evens)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, seconds and bytes, fit for JSON."""
        crossovers = {name: {**vars(at), "also": list(at.also)} for name, at in self._crossovers().items()}
        return {
            "same": self.same,
            "sizes": list(self.sizes),
            "crossovers": crossovers,
            "found": [at.to_dict() for at in self.found],
        }
