"""Diagrams in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from hybridflow.pictures.colours import EDGES, FILLS, MARKS, fill_of
from hybridflow.pictures.diagram import Box, Diagram, Group, Item

_HEAD = """digraph {
  compound=true; rankdir=TB; fontname="monospace"; labeljust=l;
  node [shape=box style="rounded,filled" fontname="monospace" fontsize=10];
  edge [fontname="monospace" fontsize=8 color="#8593a0" fontcolor="#5b6875"];"""


def dot_of(diagram: Diagram) -> str:
    """Return a diagram as DOT text: groups become clusters, and arrows have dtype and shape as labels."""
    heaviest = max((box.weight for box in _boxes(diagram.root)), default=0.0)
    lines = [_HEAD, *_group(diagram.root, heaviest, "  ")]
    for arrow in dict.fromkeys((a.source, a.target, a.label) for a in diagram.arrows):
        source, target, label = arrow
        ends = f"ltail=cluster_{source.number} " if isinstance(source, Group) else ""
        ends += f"lhead=cluster_{target.number} " if isinstance(target, Group) else ""
        lines.append(f"  n{_inside(source).number} -> n{_inside(target).number} [{ends}label={_quoted(label)}];")
    return "\n".join([*lines, "}\n"])


def _boxes(group: Group) -> Iterator[Box]:
    for child in group.children:
        if isinstance(child, Group):
            yield from _boxes(child)
        else:
            yield child


def _inside(item: Item) -> Box:
    """Return a box in an item: arrows in DOT must join boxes, but they may end at the frame around a box."""
    return item if isinstance(item, Box) else next(_boxes(item))


def _group(group: Group, heaviest: float, indent: str) -> Iterator[str]:
    yield f"{indent}subgraph cluster_{group.number} {{"
    inner = indent + "  "
    yield (
        f'{inner}label={_quoted(group.title)}; style="rounded,filled"; fillcolor="{FILLS[group.kind]}"; '
        f'color="{EDGES[group.kind]}";'
    )
    for child in group.children:
        if isinstance(child, Group):
            yield from _group(child, heaviest, inner)
        else:
            yield f"{inner}n{child.number} [{_attributes(child, heaviest)}];"
    yield f"{indent}}}"


def _attributes(box: Box, heaviest: float) -> str:
    text = "\n".join((box.title, *box.lines))
    parts = [
        f"label={_quoted(text)}",
        f'fillcolor="{fill_of(box.weight, heaviest, box.kind)}"',
        f'color="{MARKS.get(box.mark, EDGES[box.kind])}"',
    ]
    if box.mark:
        parts.append("penwidth=2.5")
    if box.where:
        parts.append(f"tooltip={_quoted(box.where)}")
    return " ".join(parts)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
