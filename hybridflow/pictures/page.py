"""Diagrams as an HTML page that needs no network. It can fold groups, search operations, and zoom."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from hybridflow.pictures.colours import COLD, EDGES, FILLS, HOT, MARKS, UNITS, legend
from hybridflow.pictures.coordinates import ALIGNMENTS, BEND, CHARACTER, GAP_X, GAP_Y, LINE, PAD, TITLE
from hybridflow.pictures.diagram import Box, Diagram, Item
from hybridflow.pictures.layers import Bend, Layout, Place, layout_of

UNFOLDED = 300
"""Graphs with more operations than this are folded when the page opens."""
_STYLE = """
:root { --text: #1c2733; --quiet: #4a5763; --line: #d5dce2; --accent: #1f5fa8; }
* { box-sizing: border-box; }
body { margin: 0; font: 14px/1.4 system-ui, sans-serif; color: var(--text); display: grid;
  grid-template: auto 1fr / 1fr 17rem; height: 100vh; }
header { grid-column: 1 / 3; display: flex; gap: .6rem; align-items: center; flex-wrap: wrap; padding: .5rem .9rem;
  border-bottom: 1px solid var(--line); }
h1 { font-size: 1rem; margin: 0 .6rem 0 0; }
input, button { font: inherit; padding: .25rem .6rem; border: 1px solid var(--line); border-radius: 5px;
  background: #fff; }
button { cursor: pointer; } button:hover { border-color: var(--accent); }
#count, #legend { color: var(--quiet); min-width: 5rem; }
#graph { width: 100%; height: 100%; cursor: grab; touch-action: none; background: #fff; }
aside { border-left: 1px solid var(--line); padding: .8rem; overflow: auto; }
aside p { color: var(--quiet); margin: 0 0 .8rem; }
dt { color: var(--quiet); margin-top: .6rem; } dd { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
svg text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: var(--text);
  user-select: none; }
svg .title { font-weight: 700; } svg .quiet { fill: var(--quiet); }
svg .over { paint-order: stroke; stroke: #fff; stroke-width: 3px; stroke-linejoin: round; }
.arrow { fill: none; stroke: #8593a0; marker-end: url(#tip); } .arrow.near { stroke: var(--accent); stroke-width: 2; }
.group, .box { cursor: pointer; }
.found > rect { stroke: var(--accent); stroke-width: 3; } .chosen > rect { stroke: #111; stroke-width: 2.5; }
"""


def page_of(diagram: Diagram) -> str:
    """Return a page that shows a diagram."""
    layout = layout_of(diagram)
    heaviest = max((box.weight for box in layout.items() if isinstance(box, Box)), default=0.0)
    title = escape(diagram.root.title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>
<body><header><h1>{title}</h1><input id="search" type="search" placeholder="operation, line, shape"
aria-label="search"><span id="count"></span><button id="unfold">unfold all</button><button id="fold">fold all</button>
<button id="fit">fit</button><span id="legend">{escape(legend(diagram.colour, heaviest))}</span></header>
<svg id="graph" role="img" aria-label="{title}"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4"
markerWidth="6" markerHeight="6" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#8593a0"/></marker></defs>
</svg>
<aside><p>Click a frame's title to fold it, an operation to read about it; drag to move, turn the wheel to zoom.</p>
<dl id="details"></dl></aside>
<script>const DATA = {_data(layout, heaviest)};
{_viewer()}</script></body></html>
"""


@cache
def _viewer() -> str:
    return files("hybridflow.pictures").joinpath("viewer.js").read_text("utf-8")


def _data(layout: Layout, heaviest: float) -> str:
    """Return the viewer's data as JSON that is safe inside a script element."""
    diagram = layout.diagram
    data = {
        "items": {item.number: _item(item, layout) for item in layout.items()},
        "root": diagram.root.number,
        "arrows": [
            (arrow.source.number, arrow.target.number, arrow.label, group.number, link)
            for arrow, (group, link) in layout.ways.items()
        ],
        "fills": FILLS,
        "edges": EDGES,
        "marks": MARKS,
        "heaviest": heaviest,
        "unit": UNITS.get(diagram.colour, ""),
        "constants": {
            "character": CHARACTER, "line": LINE, "title": TITLE, "pad": PAD, "gapX": GAP_X, "gapY": GAP_Y,
            "bend": BEND, "alignments": ALIGNMENTS, "cold": COLD, "hot": HOT, "unfolded": UNFOLDED,
        },
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _item(item: Item, layout: Layout) -> dict[str, Any]:
    if isinstance(item, Box):
        return {
            "title": item.title, "kind": item.kind, "lines": item.lines, "label": item.label, "weight": item.weight,
            "where": item.where, "mark": item.mark,
        }
    rows = layout.groups[item]
    bends: dict[Place, str] = {
        bend: f"{number}:{position}"
        for number, link in enumerate(rows.links)
        for position, bend in enumerate(link[2])
    }
    row_numbers = [[bends[point] if isinstance(point, Bend) else point.number for point in row] for row in rows.rows]
    return {
        "title": item.title, "kind": item.kind, "weight": item.weight, "count": item.count,
        "children": [child.number for child in item.children],
        "rows": row_numbers,
        "links": [(source.number, target.number, len(between)) for source, target, between in rows.links],
    }
