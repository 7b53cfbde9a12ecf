"""`fn.explain()` as a table and a tree for `rich`, and as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hybridflow.core.html import table_html
from hybridflow.explain.items import Item, advice_items, short_line, trace_item

if TYPE_CHECKING:
    from hybridflow.tracing.explanation import Explanation
    from hybridflow.tracing.records import TraceRecord

_STYLES = {"why": "bold", "donated": "green", "fused": "green", "outlined": "green", "rolled": "green"}
_COLUMNS = ("trace", "called at", "arguments", "why", "nodes", "trace + passes + lower + XLA")
_TRACES, _ITEMS = 3, 12
"""The most traces, and the most items of a trace, that are unfolded when a page opens."""
_CSS = """
.explain { line-height: 1.5; }
.explain table { border-collapse: collapse; margin: .6rem 0 1rem; }
.explain th, .explain td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #8884;
  vertical-align: top; }
.explain summary { cursor: pointer; } .explain details, .explain .leaf { margin-left: 1.3rem; }
.explain > details { margin: .4rem 0; } .explain .leaf { overflow-wrap: anywhere; }
.explain .label { font-weight: 600; opacity: .75; }
.explain .advice { border-left: 4px solid #c1440e; background: #fdf3ee; color: #1c2733;
  padding: .4rem .8rem; margin: .6rem 0; }
"""


def tree_of(explanation: Explanation) -> Tree:
    """Return the traces, with all details, and the advice as a tree."""
    tree = Tree(Text(head(explanation), style="bold"))
    for record in explanation:
        _grow(tree, trace_item(record))
    if explanation.advice:
        branch = tree.add(Text("advice", style="bold yellow"))
        for item in advice_items(explanation.advice):
            _grow(branch, item)
    for line in explanation.remarks:
        tree.add(Text(line))
    return tree


def _grow(tree: Tree, item: Item) -> None:
    text = Text(item.label, style=_STYLES.get(item.label, "cyan"))
    text.append(f": {item.text}" if item.label and item.text else item.text, style="default not bold")
    branch = tree.add(text)
    for inner in item.items:
        _grow(branch, inner)


def table_of(explanation: Explanation) -> Table:
    """Return one row per trace."""
    table = Table(title=Text(head(explanation)), title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for record in explanation:
        table.add_row(*map(Text, _cells(record)))
    return table


def head(explanation: Explanation) -> str:
    """Return the heading: the function's name and the number of its traces."""
    count = len(explanation)
    return f"{explanation.name}: {count} trace{'' if count == 1 else 's'}"


def _cells(record: TraceRecord) -> tuple[str, ...]:
    milliseconds = record.trace_ms, record.passes_ms, record.lower_ms, record.xla_ms
    before = record.passes[0].nodes_before if record.passes else record.nodes
    after = record.passes[-1].nodes_after if record.passes else record.nodes
    return (
        str(record.number), short_line(record.call_site) if record.call_site else "the command line",
        ", ".join(f"{name}: {value}" for name, value in record.signature.items()), record.reason,
        f"{before} -> {after}", f"{' + '.join([f'{one:.1f}' for one in milliseconds])} ms",
    )


def html_of(explanation: Explanation) -> str:
    """Return HTML with the table, the advice, and all details folded below them, including the style."""
    table = table_html(_COLUMNS, [_cells(record) for record in explanation])
    advice = "".join(map(_advice_html, advice_items(explanation.advice)))
    unfolded = len(explanation) <= _TRACES
    traces = "".join(_item_html(trace_item(record, None), unfolded=unfolded) for record in explanation)
    verified = "".join(f"<p>{escape(line)}</p>" for line in explanation.remarks)
    title = f"<p><b>{escape(head(explanation))}</b></p>"
    return f'<style>{_CSS}</style><div class="explain">{title}{table}{advice}{traces}{verified}</div>'


def _advice_html(item: Item) -> str:
    hints = "".join(f"<br>{escape(inner.text)}" for inner in item.items)
    return f'<div class="advice">{_text_html(item)}{hints}</div>'


def _item_html(item: Item, *, unfolded: bool | None = None) -> str:
    """Return an item as HTML; its sub-items are unfolded if `unfolded` is set, or by default if there are few."""
    if not item.items:
        return f'<div class="leaf">{_text_html(item)}</div>'
    shown = len(item.items) <= _ITEMS if unfolded is None else unfolded
    inner = "".join(map(_item_html, item.items))
    return f"<details{' open' if shown else ''}><summary>{_text_html(item)}</summary>{inner}</details>"


def _text_html(item: Item) -> str:
    label = f'<span class="label">{escape(item.label)}</span>' if item.label else ""
    return label + escape(f": {item.text}" if item.label and item.text else item.text)
