"""Diagrams as Mermaid text, which GitHub, GitLab and notebooks draw."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hybridflow.core.errors import ArgumentError
from hybridflow.pictures.colours import EDGES, FILLS, fill_of
from hybridflow.pictures.diagram import Box, Diagram, Group, Item

MOST_ARROWS, MOST_CHARACTERS = 500, 50_000
"""What Mermaid draws at most, unless a page says otherwise."""
_SHAPES = {"input": ('(["', '"])'), "output": ('(["', '"])')}
_KINDS = ("op", "gradient", "input", "output", "scope", "function", "line", "body")
_TEXT = "#1c2733"
_SPECIAL = re.compile(r'[^\w\s.,:;=+*/()\[\]{}·…-]')


def mermaid_of(diagram: Diagram) -> str:
    """Return a diagram as a Mermaid flowchart: groups become subgraphs, and arrows have dtype and shape as labels.

    If the whole diagram is more than Mermaid draws, its innermost groups are folded into one box each, as many levels
    as needed.

    Raises:
        ArgumentError: the diagram is still too large with all groups folded.
    """
    for depth in range(_depth(diagram.root), 0, -1):
        text, arrows = _Chart(diagram, depth).text()
        if arrows <= MOST_ARROWS and len(text) <= MOST_CHARACTERS:
            return text
    raise ArgumentError(
        f"to_mermaid: {diagram.root.title} has {len(diagram.arrows)} arrows, and Mermaid draws {MOST_ARROWS}",
        hint="Group operations with hf.name_scope, or use to_html or to_svg, which draw graphs of any size."
    )


def _depth(item: Item) -> int:
    return 1 + max(map(_depth, item.children), default=0) if isinstance(item, Group) else 0


class _Chart:
    """A flowchart with groups down to a depth; those below are folded."""

    def __init__(self, diagram: Diagram, depth: int) -> None:
        self.diagram = diagram
        self.depth = depth
        self.shown: dict[Item, Item] = {}
        """What each item is drawn as: itself, or the folded group that it is in."""

    def text(self) -> tuple[str, int]:
        """Return the text and the number of its arrows."""
        heaviest = max((box.weight for box in _boxes(self.diagram.root)), default=0.0)
        lines = ["flowchart TB", *self._inside(self.diagram.root, 1, heaviest, "  ")]
        ends = [(self.shown[a.source], self.shown[a.target], a.label) for a in self.diagram.arrows]
        arrows = list(dict.fromkeys([one for one in ends if one[0] is not one[1]]))
        lines += [f"  {_id(source)} -->{_label(label)} {_id(target)}" for source, target, label in arrows]
        lines += [f"  classDef {kind} fill:{FILLS[kind]},stroke:{EDGES[kind]},color:{_TEXT}" for kind in _KINDS]
        return "\n".join([*lines, ""]), len(arrows)

    def _inside(self, group: Group, depth: int, heaviest: float, indent: str) -> Iterator[str]:
        for child in group.children:
            if isinstance(child, Box):
                self.shown[child] = child
                start, end = _SHAPES.get(child.kind, ('["', '"]'))
                text = "<br/>".join(map(_escaped, (child.title, *child.lines)))
                yield f"{indent}{_id(child)}{start}{text}{end}:::{child.kind}"
                if child.weight:
                    yield f"{indent}style {_id(child)} fill:{fill_of(child.weight, heaviest, child.kind)}"
            elif depth >= self.depth:
                self.shown.update(dict.fromkeys(_items(child), child))
                text = f"{_escaped(child.title)}<br/>{child.count} operations"
                yield f'{indent}{_id(child)}["{text}"]:::{child.kind}'
            else:
                self.shown[child] = child
                yield f'{indent}subgraph {_id(child)}["{_escaped(child.title)}"]'
                yield from self._inside(child, depth + 1, heaviest, indent + "  ")
                yield f"{indent}end"
                yield f"{indent}style {_id(child)} fill:{FILLS[child.kind]},stroke:{EDGES[child.kind]},color:{_TEXT}"


def _items(group: Group) -> Iterator[Item]:
    yield group
    for child in group.children:
        if isinstance(child, Group):
            yield from _items(child)
        else:
            yield child


def _boxes(group: Group) -> Iterator[Box]:
    return (item for item in _items(group) if isinstance(item, Box))


def _id(item: Item) -> str:
    return f"n{item.number}"


def _label(text: str) -> str:
    return f'|"{_escaped(text)}"|' if text else ""


def _escaped(text: str) -> str:
    """Return a text with Mermaid's codes for the characters that mean something in its labels."""
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", text)
