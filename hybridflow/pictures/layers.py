"""The layered layout of a diagram, group by group.

Within a group, an item's row is the length of the longest path to it. The items of a row are ordered by the mean
position of their neighbours, in a few sweeps down and up. An arrow over several rows has a bend in each row between, so
that the items leave room for it.

Reference: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", IEEE
Transactions on Systems, Man, and Cybernetics 11(2), 1981.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hybridflow.pictures.diagram import Arrow, Box, Diagram, Group, Item

LONGEST = 8
"""Arrows with this many rows between their ends, or more, get no bends: they are drawn behind the items."""
_SWEEPS = 4


@dataclass(eq=False)
class Bend:
    """A point of an arrow in a row between its ends; `link` is the number of the pair of items that it joins."""

    link: int


Place = Item | Bend


@dataclass(eq=False)
class Rows:
    """The inside of a group.

    Attributes:
        rows: the rows from top to bottom; each has its items and bends from left to right.
        links: ``(source, target, bends)`` for each pair of items that arrows join.
    """

    rows: list[list[Place]]
    links: list[tuple[Item, Item, list[Bend]]]


@dataclass(eq=False)
class Layout:
    """The rows of every group, and the link that each arrow follows.

    Attributes:
        diagram: the diagram.
        groups: the rows of each group.
        ways: for each arrow, the innermost group around both of its ends, and the number of its link there.
    """

    diagram: Diagram
    groups: dict[Group, Rows] = field(default_factory=dict["Group", "Rows"])
    ways: dict[Arrow, tuple[Group, int]] = field(default_factory=dict["Arrow", "tuple[Group, int]"])

    def items(self) -> Iterator[Item]:
        """Yield every item of the diagram, each group before its items."""
        for group in self.groups:
            if group.parent is None:
                yield group
            yield from group.children


def layout_of(diagram: Diagram) -> Layout:
    """Return the layout of a diagram."""
    links: dict[Group, dict[tuple[Item, Item], int]] = defaultdict(dict)
    layout = Layout(diagram)
    for arrow in diagram.arrows:
        group, source, target = _parting(arrow)
        known = links[group]
        layout.ways[arrow] = group, known.setdefault((source, target), len(known))
    pending = [diagram.root]
    while pending:
        group = pending.pop()
        layout.groups[group] = _rows(group.children, list(links[group]))
        pending += [child for child in group.children if isinstance(child, Group)]
    return layout


def _parting(arrow: Arrow) -> tuple[Group, Item, Item]:
    """Return the innermost group around both ends of an arrow, and the children of the group that hold the ends."""
    sources = _ancestors(arrow.source)
    known = {item: index for index, item in enumerate(sources)}
    below: Item = arrow.target
    for item in _ancestors(arrow.target)[1:]:
        if item in known:
            assert isinstance(item, Group)
            return item, sources[known[item] - 1], below
        below = item
    raise AssertionError("both ends of an arrow are in the diagram")


def _ancestors(item: Item) -> list[Item]:
    ancestors: list[Item] = []
    here: Item | None = item
    while here is not None:
        ancestors.append(here)
        here = here.parent
    return ancestors


def _rows(children: list[Item], pairs: list[tuple[Item, Item]]) -> Rows:
    rank = _ranks(children, pairs)
    rows: list[list[Place]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for child in children:
        rows[rank[child]].append(child)
    links: list[tuple[Item, Item, list[Bend]]] = []
    for number, (source, target) in enumerate(pairs):
        bends: list[Bend] = []
        between = range(rank[source] + 1, rank[target])
        if len(between) < LONGEST:
            for row in between:
                bends.append(Bend(number))
                rows[row].append(bends[-1])
        links.append((source, target, bends))
    result = Rows(rows, links)
    _order(rows, *neighbours(result))
    return result


def neighbours(rows: Rows) -> tuple[dict[Place, list[Place]], dict[Place, list[Place]]]:
    """Return the neighbours above and below each item and bend of a group."""
    above: dict[Place, list[Place]] = {point: [] for row in rows.rows for point in row}
    below: dict[Place, list[Place]] = {point: [] for row in rows.rows for point in row}
    for source, target, bends in rows.links:
        stops: list[Place] = [source, *bends, target]
        for one, other in itertools.pairwise(stops):
            below[one].append(other)
            above[other].append(one)
    return above, below


def _ranks(children: list[Item], pairs: Iterable[tuple[Item, Item]]) -> dict[Item, int]:
    """Return the row of each item: the length of the longest path to it.

    Items that read nothing are moved to the row above their first reader, and outputs to the last row.
    """
    readers: dict[Item, list[Item]] = defaultdict(list)
    sources: dict[Item, list[Item]] = defaultdict(list)
    for source, target in pairs:
        readers[source].append(target)
        sources[target].append(source)
    rank: dict[Item, int] = {}
    for child in children:  # in the order of execution, so sources come first
        rank[child] = 1 + max((rank[one] for one in sources[child]), default=-1)
    for child in children:
        if not sources[child] and readers[child]:
            rank[child] = min(rank[one] for one in readers[child]) - 1
    for child in children:
        if isinstance(child, Box) and child.kind == "output":
            rank[child] = max(rank[child], max(rank.values()))
    return rank


def _order(rows: list[list[Place]], above: dict[Place, list[Place]], below: dict[Place, list[Place]]) -> None:
    """Order each row by the mean position of its neighbours, in turn above and below."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        order = rows if down else list(reversed(rows))
        position: dict[Place, float] = {}
        for row in order:
            means: dict[Place, float] = {}
            for index, point in enumerate(row):
                positions = [position[one] for one in near[point] if one in position]
                means[point] = sum(positions) / len(positions) if positions else (index + 0.5) / len(row)
            row.sort(key=means.__getitem__)
            position.update({point: (index + 0.5) / len(row) for index, point in enumerate(row)})
