"""The changes of a pass: the graph before it and the graph after it, side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

from hybridflow.core.node import Node, where_file_line
from hybridflow.ir.graph import Graph
from hybridflow.pictures.diagram import diagram_of
from hybridflow.pictures.svg import svg_of

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; color: #1c2733; margin: 1rem; }
summary { cursor: pointer; padding: .4rem 0; font-weight: 600; }
.quiet { color: #4a5763; font-weight: 400; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; align-items: start; }
.pair > div { overflow: auto; height: 75vh; border: 1px solid #d5dce2; padding: 0 .5rem .5rem; }
.pair p { position: sticky; left: 0; top: 0; margin: 0; padding: .4rem 0; background: #fffd; }
button { font: inherit; padding: .1rem .5rem; border: 1px solid #d5dce2; border-radius: 5px; background: #fff; }
.removed { color: #c62f2f; } .added { color: #1f8a4c; }
"""
# A step opens at its first change. A pane without changes scrolls to the same place.
_SCRIPT = """
const panes = (step) => [...step.querySelectorAll(".pair > div")];
const share = (pane) => [pane.scrollLeft / Math.max(1, pane.scrollWidth - pane.clientWidth),
  pane.scrollTop / Math.max(1, pane.scrollHeight - pane.clientHeight)];
function show(step, pane, number) {
  const mark = pane.querySelectorAll(".marked")[number].getBoundingClientRect();
  const frame = pane.getBoundingClientRect();
  pane.scrollLeft += (mark.left + mark.right - frame.left - frame.right) / 2;
  pane.scrollTop += (mark.top + mark.bottom - frame.top - frame.bottom) / 2;
  const [across, down] = share(pane);
  for (const other of panes(step)) {
    if (other === pane || other.querySelector(".marked")) continue;
    other.scrollLeft = across * (other.scrollWidth - other.clientWidth);
    other.scrollTop = down * (other.scrollHeight - other.clientHeight);
  }
}
for (const step of document.querySelectorAll("details")) {
  const open = () => panes(step).forEach((pane) => { if (pane.querySelector(".marked")) show(step, pane, 0); });
  for (const pane of panes(step)) {
    const button = pane.querySelector("button");
    let number = 0;
    if (button) button.onclick = () => {
      number = (number + 1) % pane.querySelectorAll(".marked").length;
      show(step, pane, number);
    };
  }
  step.addEventListener("toggle", () => { if (step.open) open(); });
  if (step.open) open();
}
"""


def difference(before: Graph, after: Graph) -> tuple[set[Node], set[Node]]:
    """Return the nodes that are only in the first graph, and the nodes that are only in the second.

    A pass copies a node if one of its inputs changes. So nodes also count as the same if they have the same operation,
    attributes, specs, line and scope.
    """
    one, other = _nodes(before), _nodes(after)
    removed, added = set(one) - set(other), set(other) - set(one)
    waiting: defaultdict[Any, list[Node]] = defaultdict(list)
    for node in one:
        if node in removed:
            waiting[_key(node)].append(node)
    for node in other:
        if node in added and waiting[_key(node)]:
            removed.discard(waiting[_key(node)].pop(0))
            added.discard(node)
    return removed, added


def _nodes(graph: Graph) -> dict[Node, None]:
    return dict.fromkeys(graph.walk())


def _key(node: Node) -> Any:
    attrs = tuple((name, value) for name, value in node.attrs.items() if not node.op.has("nested"))
    return node.op.name, attrs, node.specs, where_file_line(node.where), node.scope_name


def difference_page(title: str, steps: Sequence[tuple[str, Graph, Graph]]) -> str:
    """Return a page with the nodes that each step removed and added.

    Args:
        title: its heading.
        steps: ``(description, graph before, graph after)`` of each step.
    """
    body = "\n".join(_step(number, *step) for number, step in enumerate(steps)) or "<p>Nothing changed.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>\n{body}"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _step(number: int, what: str, before: Graph, after: Graph) -> str:
    removed, added = difference(before, after)
    panes = [
        _pane(kind, graph, nodes, mark, f"tip{number}{mark}")
        for kind, graph, nodes, mark in (("before", before, removed, "removed"), ("after", after, added, "added"))
    ]
    return (
        f"<details{' open' if number == 0 else ''}><summary>{escape(what)} "
        f'<span class="removed">{_named(removed, "removed")}</span> <span class="added">{_named(added, "added")}</span>'
        f'</summary><div class="pair">{"".join(panes)}</div></details>'
    )


def _pane(kind: str, graph: Graph, nodes: set[Node], mark: str, tip: str) -> str:
    picture = svg_of(diagram_of(graph, marks=dict.fromkeys(nodes, mark)), tip=tip)
    button = " <button>next change</button>" if 'class="marked"' in picture else ""
    return f'<div><p class="quiet">{kind}: {len(_nodes(graph))} nodes{button}</p>{picture}</div>'


def _named(nodes: set[Node], what: str) -> str:
    if not nodes:
        return ""
    counts = Counter(node.op.name for node in nodes)
    names = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in sorted(counts.items()))
    return f"{what} {len(nodes)}: {escape(names)}"
