"""`fn.explain()` as a table and a tree for `rich`, and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from hybridflow.core.html import table_html
from hybridflow.core.node import short_place, short_where
from hybridflow.tracing.executables import ExecutableRecord, again_text
from hybridflow.xla.executable import LOADED

if TYPE_CHECKING:
    from hybridflow.passes.lib.outcomes import Outlined, Rolled
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


# -- the content of `fn.explain()` as nested items, from which the text, the tree and the page are made ---------------

SHOWN = 10
"""The most items of a kind that the text and the tree show; the page shows all."""
_MANY_ALIKE = 4
"""The text and the tree show at least this many executables that differ only in sizes as one item."""


class Item(NamedTuple):
    """A fact, with its details.

    Attributes:
        label: the kind of fact; empty for one of several.
        text: the fact.
        items: its details.
    """

    label: str
    text: str = ""
    items: tuple[Item, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}: {self.text}" if self.label and self.text else self.label or self.text

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the fact and its details, indented."""
        yield "  " * depth + str(self)
        for item in self.items:
            yield from item.lines(depth + 1)


def text_of(record: TraceRecord) -> str:
    """Return everything about a trace as text."""
    return "\n".join(trace_item(record).lines())


def trace_item(record: TraceRecord, shown: int | None = SHOWN) -> Item:
    """Return everything about a trace.

    Args:
        record: the trace's record.
        shown: the most items of a kind to list; None for all.
    """
    arguments = ", ".join(f"{name}: {value}" for name, value in record.signature.items())
    items = [
        Item("why", record.reason),
        Item("cost", _cost(record)),
    ]
    loaded = sum(LOADED in one for one in record.store)
    if loaded:
        text = f"{loaded} of {record.compiles}, in {record.load_ms:.1f} ms"
        items.append(Item("loaded from the store on disk", text))
    items += _surroundings(record, shown)
    items += _graph_items(record, shown)
    for executables in (record.executables, record.recorded):
        groups = _alike(executables) if shown is not None else [[one] for one in enumerate(executables, 1)]
        last = groups if shown is None else groups[-shown:]
        items += [_executables_item(group, record.assigned, shown) for group in last]
    place = f" at {record.call_site}" if record.call_site else ""
    return Item("", f"trace {record.number}{place}: ({arguments})", tuple(items))


def _cost(record: TraceRecord) -> str:
    """Return the time that a trace took, with XLA's time if it has compiled anything."""
    parts = [f"trace {record.trace_ms:.1f} ms", f"passes {record.passes_ms:.1f} ms"]
    compiled = sum(not one.loaded for one in record.executables)
    if record.lower_ms:
        parts.append(f"lower {record.lower_ms:.1f} ms")
    if compiled:
        parts.append(f"XLA {record.xla_ms:.1f} ms in {compiled} compile(s)")
    return f"{', '.join(parts)}; {record.nodes} nodes"


def _surroundings(record: TraceRecord, shown: int | None) -> Iterator[Item]:
    """Yield items for what the trace reads, writes and relies on outside its arguments."""
    if record.variables:
        yield Item("Variables", _uses(record, shown))
    if record.autocast != "off":
        yield Item("autocast", record.autocast)
    if record.captured:
        yield Item("captured tensors", str(record.captured))
    if record.guards:
        yield Item("relies on", items=_some([Item("", guard) for guard in record.guards], shown, ".guards"))
    if record.again is not None:
        yield Item("traced at every call", f"it reads what cannot be watched: {record.again}")
    for one in record.created:
        yield Item("created", one)
    label = "changed, and read too: the trace served this call alone" if record.once else "changes at every call"
    for effect in record.effects:
        yield Item(label, effect)


def _uses(record: TraceRecord, shown: int | None) -> str:
    """Return which Variables a trace reads and which it writes, each once."""
    written, read = set(record.assigned), set(record.variables)
    kinds = {
        "reads and writes": [name for name in record.variables if name in written],
        "reads": [name for name in record.variables if name not in written],
        "writes": [name for name in record.assigned if name not in read],
    }
    return "; ".join([f"{kind} {_names(names, shown)}" for kind, names in kinds.items() if names])


def _names(names: Sequence[str], shown: int | None) -> str:
    rest = 0 if shown is None else len(names) - shown
    return ", ".join(names if rest <= 0 else [*names[:shown], f"{rest} more, in .variables"])


def _graph_items(record: TraceRecord, shown: int | None) -> Iterator[Item]:
    """Yield items for what the passes did to the graph."""
    if record.passes:
        text = f"{record.passes[0].nodes_before} -> {record.passes[-1].nodes_after} nodes in {record.passes_ms:.1f} ms"
        yield Item("passes", text, tuple(_pass_items(record.passes)))
    for one in record.outlined:
        yield Item("outlined", f"{_nodes(one)}, compiled once and called {one.calls} times")
    for one in record.rolled:
        yield Item("rolled", f"{_nodes(one)}, run {one.runs} times as a loop")
    for one in record.pipelines:
        yield Item("pipeline", str(one))
    if record.unbounded is not None:
        yield Item("compiled for exact sizes", record.unbounded)
    if record.memory is not None:
        first, *others = [line.strip() for line in record.memory.lines()]
        yield Item("", first, tuple([Item("", line) for line in others]))
    if record.recomputed:
        rows = [Item("", again_text(one)) for one in record.recomputed]
        yield Item("computed again by checkpoints", items=_some(rows, shown, ".recomputed"))


def _nodes(part: Outlined | Rolled) -> str:
    place = short_where(part.where)
    return f"{part.nodes} nodes{place and f' from {place}'}"


def _pass_items(passes: Sequence[Any]) -> Iterator[Item]:
    telling = [one for one in passes if one.note or one.nodes_before != one.nodes_after]
    for one in telling:
        yield Item("", str(one))
    quiet = len(passes) - len(telling)
    if quiet:
        spent = sum(one.milliseconds for one in passes if one not in telling)
        yield Item("", f"{quiet} other runs of passes changed nothing, {spent:.2f} ms")


_Numbered = tuple[int, ExecutableRecord]


def _alike(executables: Sequence[ExecutableRecord]) -> list[list[_Numbered]]:
    """Group executables, with their numbers: many that differ only in sizes and costs are one group."""
    alike: dict[Any, list[_Numbered]] = {}
    for number, made in enumerate(executables, 1):
        key = (
            made.device, made.store, made.donated, made.runs, tuple(made.options.items()), tuple(made.sizes),
            made.bounded, made.part,
        )
        alike.setdefault(key, []).append((number, made))
    groups: list[list[_Numbered]] = []
    for group in alike.values():
        groups += [group] if len(group) >= _MANY_ALIKE else [[one] for one in group]
    return sorted(groups, key=lambda group: group[-1][0])


def _executables_item(group: Sequence[_Numbered], written: Sequence[str], shown: int | None) -> Item:
    """Return the item for one executable, or for a group of similar ones."""
    number, made = group[-1]
    several = [one for _, one in group]
    upto = "<=" if made.bounded else "="
    sizes = ", ".join([f"{name}{upto}{_range([one.sizes[name] for one in several])}" for name in made.sizes])
    device = "" if made.device == "default" else f" on {made.device}"
    items = [Item("store on disk", made.store)]
    if made.options:
        items.append(Item("XLA options", ", ".join([f"{name}={value!r}" for name, value in made.options.items()])))
    if made.donated:
        whose = "all Variables that it writes" if set(made.donated) == set(written) else ", ".join(made.donated)
        items.append(Item("donated", f"the buffers of {whose}, for their new values"))
    if made.runs:
        runs = ", ".join(map(str, made.runs))
        items.append(Item("programs", f"{len(made.runs)}, cut at the calls of outlined parts; run {runs} times"))
    if made.padding is not None:
        items.append(Item("padding", str(made.padding)))
    items += _collectives_items(number, made, shown)
    items.append(_fused_item(number, made, shown))
    title = _title([number for number, _ in group]) + (made.part and f" for {made.part} of recorded calls")
    return Item(f"{title}{sizes and f' for {sizes}'}{device}", _cost_of(several), tuple(items))


def _title(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"executable {last}"
    return f"{len(numbers)} executables of {first} to {last}" if last - first >= len(numbers) else (
        f"executables {first} to {last}"
    )


def _range(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return str(least) if least == most else f"{least} to {most}"


def _cost_of(several: Sequence[ExecutableRecord]) -> str:
    """Return the time that executables took to compile or load."""
    steps = {
        "lower": sum(one.lower_ms for one in several), "XLA": sum(one.xla_ms for one in several),
        "loaded in": sum(one.load_ms for one in several if LOADED in one.store),
    }
    return ", ".join([f"{name} {spent:.1f} ms" for name, spent in steps.items() if spent])


def _collectives_items(number: int, made: ExecutableRecord, shown: int | None) -> Iterator[Item]:
    """Yield an item for what the devices of a mesh send one another."""
    if made.mesh is None:
        return
    sent = made.collectives()
    if not sent:
        yield Item("collectives", "none" if sent is not None else "not known any more: the executable was dropped")
        return
    rows = _some([Item("", str(one)) for one in sent], shown, f".executables[{number - 1}].collectives()")
    yield Item("collectives", f"{len(sent)} on {made.mesh}, {sum(one.bytes for one in sent):,} bytes a device", rows)


def _fused_item(number: int, made: ExecutableRecord, shown: int | None) -> Item:
    fused = made.fused()
    if fused is None:
        return Item("fused", "not known any more: the executable was dropped from the cache")
    if not fused:
        return Item("fused", "nothing")
    count = sum(sum(one.operations.values()) for one in fused)
    kernels = f"{len(fused)} kernel{'s' if len(fused) > 1 else ''}"
    rows = _some([Item("", str(one)) for one in fused], shown, f".executables[{number - 1}].fused()")
    return Item("fused", f"{count} operations in {kernels}", rows)


def _some(items: Sequence[Item], shown: int | None, rest: str) -> tuple[Item, ...]:
    """Return the first items, and an item that tells where the others are."""
    if shown is None or len(items) <= shown:
        return tuple(items)
    return (*items[:shown], Item("", f"{len(items) - shown} more, in {rest}"))


def advice_items(advice: Iterable[Any]) -> tuple[Item, ...]:
    """Return an item per piece of advice, with the hint below it."""
    return tuple([Item(f"{one.kind} at {short_line(one.line)}", one.text, (Item("", one.hint),)) for one in advice])


def short_line(line: str | None) -> str:
    """Return a ``file:line`` without its folder."""
    return "an unknown line" if line is None else short_place(line)
