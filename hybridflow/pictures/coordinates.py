"""Coordinates for a layout, in CSS pixels.

`viewer.js` computes the same coordinates in the page, where groups can be folded; a test compares the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridflow.pictures.diagram import Arrow, Box, Group, Item
from hybridflow.pictures.layers import Bend, Layout, Place, Rows, neighbours

CHARACTER, LINE, TITLE = 6.7, 14.0, 18.0
"""The width of a character, the height of a line of text, and the height of a title."""
PAD, GAP_X, GAP_Y, BEND = 10.0, 16.0, 34.0, 6.0
ALIGNMENTS = 4

Point = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """The rectangle of an item: its upper left corner, width and height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> Point:
        """The middle of the upper side."""
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        """The middle of the lower side."""
        return self.x + self.width / 2, self.y + self.height


@dataclass(eq=False)
class Placed:
    """A layout with coordinates: the frame of each item and the bends of each group's links."""

    layout: Layout
    frames: dict[Item, Frame] = field(default_factory=dict["Item", Frame])
    bends: dict[Bend, Point] = field(default_factory=dict[Bend, Point])

    def route(self, arrow: Arrow) -> list[Point]:
        """Return the points through which an arrow runs."""
        group, link = self.layout.ways[arrow]
        source, target, bends = self.layout.groups[group].links[link]
        start, end = self.frames[arrow.source].bottom, self.frames[arrow.target].top
        points = [start, *(self.bends[bend] for bend in bends), end]
        if source is not arrow.source:
            points.insert(1, (start[0], self.frames[source].bottom[1]))
        if target is not arrow.target:
            points.insert(len(points) - 1, (end[0], self.frames[target].y))
        return points


def placed(layout: Layout) -> Placed:
    """Give every item of a layout its coordinates."""
    result = Placed(layout)
    insides: dict[Group, _Inside] = {}
    root = layout.diagram.root
    width, height = _size(root, layout, insides)
    _settle(result, insides, root, Frame(0.0, 0.0, width, height))
    return result


@dataclass(eq=False)
class _Inside:
    """Coordinates within a group: the left side, the top and the size of each item and bend."""

    left: dict[Place, float]
    top: dict[Place, float]
    sizes: dict[Place, Point]


def _size(item: Item, layout: Layout, insides: dict[Group, _Inside]) -> Point:
    if isinstance(item, Box):
        longest = max(map(len, (item.title, item.label, *item.lines)))
        return longest * CHARACTER + 2 * PAD, TITLE + LINE * len(item.lines) + PAD
    rows = layout.groups[item]
    sizes: dict[Place, Point] = {
        point: (BEND, 0.0) if isinstance(point, Bend) else _size(point, layout, insides)
        for row in rows.rows
        for point in row
    }
    inside = insides[item] = _arranged(rows, sizes)
    right = max((inside.left[point] + sizes[point][0] for point in sizes), default=0.0)
    bottom = max((inside.top[point] + sizes[point][1] for point in sizes), default=0.0)
    return max(right, len(item.title) * CHARACTER) + 2 * PAD, bottom + TITLE + 2 * PAD + LINE / 2


def _arranged(rows: Rows, sizes: dict[Place, Point]) -> _Inside:
    top: dict[Place, float] = {}
    y = 0.0
    for row in rows.rows:
        height = max(sizes[point][1] for point in row)
        top.update({point: y + (height - sizes[point][1]) / 2 for point in row})
        y += height + GAP_Y
    middle: dict[Place, float] = {}
    for row in rows.rows:
        x = 0.0
        for point in row:
            middle[point] = x + sizes[point][0] / 2
            x += sizes[point][0] + GAP_X
    above, below = neighbours(rows)
    for alignment in range(ALIGNMENTS):
        down = alignment % 2 == 0
        near = above if down else below
        for row in rows.rows if down else reversed(rows.rows):
            wanted = [_mean([middle[one] for one in near[point]], middle[point]) for point in row]
            positions = _spaced(wanted, [sizes[point][0] for point in row])
            middle.update(zip(row, positions, strict=True))
    left = {point: middle[point] - sizes[point][0] / 2 for point in middle}
    first = min(left.values(), default=0.0)
    return _Inside({point: x - first for point, x in left.items()}, top, sizes)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spaced(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the middles nearest to the wanted ones that keep order and gaps.

    They minimise the sum of squared distances, by the algorithm "pool adjacent violators".
    """
    offset, offsets = 0.0, [0.0]
    for one, other in itertools.pairwise(widths):
        offset += (one + other) / 2 + GAP_X
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for value, shift in zip(wanted, offsets, strict=True):
        mean, count = value - shift, 1
        while pools and pools[-1][0] > mean:
            other, many = pools.pop()
            mean, count = (mean * count + other * many) / (count + many), count + many
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [value + shift for value, shift in zip(flat, offsets, strict=True)]


def _settle(result: Placed, insides: dict[Group, _Inside], item: Item, frame: Frame) -> None:
    """Place the frame of an item, and the items inside it."""
    result.frames[item] = frame
    if isinstance(item, Box):
        return
    inside = insides[item]
    for point, (width, height) in inside.sizes.items():
        x, y = frame.x + PAD + inside.left[point], frame.y + TITLE + PAD + inside.top[point]
        if isinstance(point, Bend):
            result.bends[point] = x + width / 2, y
        else:
            _settle(result, insides, point, Frame(x, y, width, height))
