"""What `hf.compare` found about several functions of the same arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hybridflow.analysis.compare.comparison import (
    Comparison,
    caution_of,
    even_text,
    faster_text,
    kernel_grids,
    parity_dict,
    part_text,
    ratio_text,
    same_text,
)
from hybridflow.analysis.compare.figures import bars_figure
from hybridflow.analysis.compare.outputs import Grid, Shown
from hybridflow.analysis.compare.peers import Peer
from hybridflow.analysis.parity import Parity
from hybridflow.analysis.timing import Timing, format_seconds
from hybridflow.core.errors import ArgumentError
from hybridflow.core.units import format_bytes


@dataclass(frozen=True, repr=False)
class Comparisons(Shown):
    """Several functions side by side, each eager and compiled, timed in the same turns.

    ``comparisons["name"]`` and ``comparisons[0]`` return the comparison of one function; iterating yields all.

    Attributes:
        comparisons: one per function, in the order given.
        agreements: the judgements of the other functions' results against the first's; empty unless requested.
        peers: the same computation with other packages, judged against the first function's results.
    """

    comparisons: tuple[Comparison, ...]
    agreements: tuple[Parity, ...] = ()
    peers: tuple[Peer, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The functions' names."""
        return tuple([one.name for one in self.comparisons])

    def __getitem__(self, which: str | int) -> Comparison:
        if isinstance(which, int):
            return self.comparisons[which]
        for one in self.comparisons:
            if one.name == which:
                return one
        raise ArgumentError(f"compare: there is no function {which!r}", hint=f"There is {self.names}.")

    def __len__(self) -> int:
        return len(self.comparisons)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    @property
    def same(self) -> bool:
        """Whether everything that was compared is the same but for rounding."""
        judged = [*self.agreements, *[peer.parity for peer in self.peers]]
        return all(one.same for one in self.comparisons) and all(parity.same for parity in judged)

    # -- showing ----------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What was compared."""
        return f"{' and '.join([*self.names, *[peer.name for peer in self.peers]])}, side by side"

    def grids(self) -> list[Grid]:
        """Return the table of the functions, and those of their kernels."""
        first = self.comparisons[0]
        rows = [row for one in self.comparisons for row in self._rows(one, first)]
        rows += [
            (peer.name, str(peer.timing), ratio_text(first.eager.over(peer.timing)), format_seconds(peer.first), "", "",
             "", same_text([peer.parity]))
            for peer in self.peers
        ]
        alarming = frozenset(number for number, row in enumerate(rows) if "DIFFERENT" in row[-1])
        against = f"speed-up over {first.name} eager"
        head = ("", "one call (95 %)", against, "first call", "break-even", "in kernels", "memory", "results")
        grids = [Grid(self.title, head, rows, alarming=alarming)]
        for one in self.comparisons:
            grids += kernel_grids(one, f"Kernels of a compiled call of {one.name}")
        return grids

    def _rows(self, one: Comparison, first: Comparison) -> list[tuple[str, ...]]:
        agreement = [parity for parity in self.agreements if parity.name == f"results of {one.name}"]
        known = one.compiled_bytes
        return [
            (f"{one.name} eager", str(one.eager), "1" if one is first else ratio_text(first.eager.over(one.eager)),
             format_seconds(one.eager_first), "", part_text(one.eager_kernels, one.eager),
             format_bytes(one.eager_bytes), same_text(agreement) if agreement else ""),
            (f"{one.name} compiled", str(one.compiled), ratio_text(first.eager.over(one.compiled)),
             format_seconds(one.first_call.total), even_text(one).partition(":")[0],
             part_text(one.compiled_kernels, one.compiled),
             "not known" if known is None else format_bytes(known), same_text(one.parities)),
        ]

    def timings(self) -> dict[str, Timing]:
        """Return what was timed, by name."""
        timings: dict[str, Timing] = {}
        for one in self.comparisons:
            timings |= {f"{one.name} eager": one.eager, f"{one.name} compiled": one.compiled}
        return timings | {peer.name: peer.timing for peer in self.peers}

    def findings(self) -> list[str]:
        """Return what the timings show, one sentence each."""
        first = self.comparisons[0]
        sentences = [faster_text(f"{one.name} compiled", f"{one.name} eager", one.ratio) for one in self.comparisons]
        for one in self.comparisons[1:]:
            for mode in ("eager", "compiled"):
                ratio = getattr(first, mode).over(getattr(one, mode))
                sentences.append(faster_text(f"{one.name} {mode}", f"{first.name} {mode}", ratio))
        for peer in self.peers:
            ratio = peer.timing.over(first.compiled)
            sentences.append(faster_text(f"{first.name} compiled", peer.name, ratio))
        return sentences + [line for one in self.comparisons for line in one.remarks()]

    def differences(self) -> list[str]:
        """Return one line per output that differs."""
        lines = [f"{one.name}, {line}" for one in self.comparisons for line in one.differences()]
        for parity in (*self.agreements, *[peer.parity for peer in self.peers]):
            lines += parity.differences()
        return lines

    def caution(self) -> str:
        """Return why the timings should be read with care; empty if they are steady."""
        return caution_of(self.timings())

    def _agreement(self) -> str:
        text = "SAME: each function's eager and compiled results agree but for rounding"
        if self.agreements:
            text += f", and with those of {self.names[0]}"
        if self.peers:
            text += f"; so do those of {' and '.join([peer.name for peer in self.peers])}"
        return text + "."

    def figure(self) -> Any:
        """Plot the time of one call of each."""
        return bars_figure(self.title, self.timings())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, seconds and bytes, fit for JSON."""
        return {
            "same": self.same,
            "comparisons": [one.to_dict() for one in self.comparisons],
            "agreements": [parity_dict(parity) for parity in self.agreements],
            "peers": [{**peer.to_dict(), "parity": parity_dict(peer.parity)} for peer in self.peers],
        }
