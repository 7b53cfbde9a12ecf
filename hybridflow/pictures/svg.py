"""Diagrams as SVG: one picture with all groups unfolded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from hybridflow.core.node import short_place
from hybridflow.pictures.colours import EDGES, FILLS, MARKS, fill_of, legend
from hybridflow.pictures.coordinates import LINE, PAD, TITLE, Frame, Placed, Point, placed
from hybridflow.pictures.diagram import Box, Diagram, Group, Item
from hybridflow.pictures.layers import layout_of

_STYLE = """
text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c2733; }
.title { font-weight: 700; }
.quiet { fill: #4a5763; }
.over { paint-order: stroke; stroke: #fff; stroke-width: 3px; stroke-linejoin: round; }
.arrow { fill: none; stroke: #8593a0; stroke-width: 1; }
"""
_LEGEND = 26.0
_MARKED = ' class="marked"'


def svg_of(diagram: Diagram, tip: str = "tip") -> str:
    """Return a diagram as a self-contained SVG document.

    Args:
        diagram: the diagram.
        tip: the id of its arrow heads; each picture in a page needs its own.
    """
    where = placed(layout_of(diagram))
    root = where.frames[diagram.root]
    heaviest = max((box.weight for box in where.frames if isinstance(box, Box)), default=0.0)
    note = legend(diagram.colour, heaviest)
    width, height = max(root.width, 7 * len(note)) + 2, root.height + 2 + (_LEGEND if note else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="-1 -1 {width:.1f} {height:.1f}" role="img">',
        f"<title>{escape(diagram.root.title)}</title><style>{_STYLE}</style>",
        f'<defs><marker id="{tip}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
        'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#8593a0"/></marker></defs>',
        f'<rect x="-1" y="-1" width="{width:.1f}" height="{height:.1f}" fill="#fff"/>',
        *_frames(where, diagram.root),
        *_arrows(where, tip),
        *_items(where, heaviest),
    ]
    if note:
        parts.append(f'<text class="quiet" x="{PAD}" y="{root.height + 16:.1f}">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _frames(where: Placed, group: Group) -> Iterator[str]:
    frame = where.frames[group]
    yield f'<rect {_at(frame)} rx="6" fill="{FILLS[group.kind]}" stroke="{EDGES[group.kind]}"/>'
    for child in group.children:
        if isinstance(child, Group):
            yield from _frames(where, child)


def _arrows(where: Placed, tip: str) -> Iterator[str]:
    drawn: set[tuple[Item, Item]] = set()
    for arrow in where.layout.diagram.arrows:
        if (arrow.source, arrow.target) not in drawn:
            drawn.add((arrow.source, arrow.target))
            yield (
                f'<path class="arrow" marker-end="url(#{tip})" d="{curve(where.route(arrow))}">'
                f"<title>{escape(arrow.label)}</title></path>"
            )


def curve(points: Iterable[Point]) -> str:
    """Return a smooth curve through points as SVG path data; it is vertical at each point."""
    first, *rest = points
    parts = [f"M{first[0]:.1f} {first[1]:.1f}"]
    x, y = first
    for right, down in rest:
        middle = (y + down) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {right:.1f} {middle:.1f} {right:.1f} {down:.1f}")
        x, y = right, down
    return "".join(parts)


def _items(where: Placed, heaviest: float) -> Iterator[str]:
    """Draw the boxes and labels, and the titles of groups, on top of the arrows."""
    for item, frame in where.frames.items():
        if isinstance(item, Box):
            yield _box(item, frame, fill_of(item.weight, heaviest, item.kind))
        else:
            title = escape(item.title)
            yield f'<text class="quiet over" x="{frame.x + PAD:.1f}" y="{frame.y + TITLE:.1f}">{title}</text>'
    for item in {arrow.source: None for arrow in where.layout.diagram.arrows}:
        if isinstance(item, Box):
            x, y = where.frames[item].bottom
            yield f'<text class="quiet over" x="{x + 5:.1f}" y="{y + 12:.1f}">{escape(item.label)}</text>'


def _box(box: Box, frame: Frame, fill: str) -> str:
    edge, x = MARKS.get(box.mark, EDGES[box.kind]), frame.x + frame.width / 2
    lines = [
        f'<text class="{"quiet" if number else "title"}" text-anchor="middle" x="{x:.1f}" '
        f'y="{frame.y + TITLE - 3 + LINE * number:.1f}">{escape(line)}</text>'
        for number, line in enumerate((box.title, *box.lines))
    ]
    # Pictures are shared, so they show only the file's name, not the folders of this machine.
    tip = f"<title>{escape(short_place(box.where))}</title>" if box.where else ""
    marked, width = (_MARKED, 2.5) if box.mark else ("", 1)
    return (
        f'<g{marked}>{tip}<rect {_at(frame)} rx="5" fill="{fill}" stroke="{edge}" stroke-width="{width}"/>'
        f"{''.join(lines)}</g>"
    )


def _at(frame: Frame) -> str:
    return f'x="{frame.x:.1f}" y="{frame.y:.1f}" width="{frame.width:.1f}" height="{frame.height:.1f}"'
