"""Timetables as SVG: a row per device, a column per tick."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from hybridflow.pictures.colours import EDGES, FILLS

_CELL, _ROW, _LEFT, _TOP = 30, 26, 76, 30
_STYLE = """
text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c2733; }
.title { font-weight: 700; }
"""


class Entry(NamedTuple):
    """What is done in a tick: its text, its kind (a colour of `colours.FILLS`), and a sentence for its tooltip."""

    text: str
    kind: str
    said: str


def timetable_svg(title: str, rows: Sequence[tuple[str, Sequence[Entry | None]]]) -> str:
    """Return a timetable as a self-contained SVG document; None is a tick without work, drawn empty."""
    ticks = max([len(cells) for _, cells in rows])
    wide = max([_CELL, *[7 * len(one.text) + 8 for _, cells in rows for one in cells if one is not None]])
    width, height = max(_LEFT + wide * ticks, 7 * len(title)) + 8, _TOP + _ROW * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="title" x="4" y="18">{escape(title)}</text>',
    ]
    for row, (name, cells) in enumerate(rows):
        top = _TOP + row * _ROW
        parts.append(f'<text x="4" y="{top + 17}">{escape(name)}</text>')
        for tick, entry in enumerate(cells):
            if entry is None:
                continue
            left, text = _LEFT + tick * wide, escape(entry.text)
            parts.append(
                f'<g><title>{escape(entry.said)}</title><rect x="{left}" y="{top}" width="{wide - 2}" '
                f'height="{_ROW - 3}" rx="3" fill="{FILLS[entry.kind]}" stroke="{EDGES[entry.kind]}"/>'
                f'<text x="{left + wide / 2 - 1:.1f}" y="{top + 16}" text-anchor="middle">{text}</text></g>'
            )
    return "\n".join([*parts, "</svg>\n"])
