"""What `fn.explain()` says, as nested items: its text, tree and page are made of the same ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridflow.core.node import short_where
from hybridflow.tracing.executables import ExecutableRecord, again_text

if TYPE_CHECKING:
    from hybridflow.passes.left import Outlined, Rolled
    from hybridflow.tracing.explain import TraceRecord

SHOWN = 10
"""How many of a kind the text and the tree show; the page shows all."""


class Item(NamedTuple):
    """A fact, and what belongs to it.

    Attributes:
        label: what kind of fact it is; empty for one of several.
        text: the fact.
        items: what belongs to it.
    """

    label: str
    text: str = ""
    items: tuple[Item, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}: {self.text}" if self.label and self.text else self.label or self.text

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the fact and what belongs to it, indented."""
        yield "  " * depth + str(self)
        for item in self.items:
            yield from item.lines(depth + 1)


def trace_item(record: TraceRecord, shown: int | None = SHOWN) -> Item:
    """Return everything about a trace.

    Args:
        record: the trace's.
        shown: how many of a kind are listed, None for all.
    """
    arguments = ", ".join(f"{name}: {value}" for name, value in record.signature.items())
    items = [
        Item("why", record.reason),
        Item(
            "cost",
            f"trace {record.trace_ms:.1f} ms, passes {record.passes_ms:.1f} ms, lower {record.lower_ms:.1f} ms, "
            f"XLA {record.xla_ms:.1f} ms in {record.compiles} compile(s); {record.nodes} nodes",
        ),
    ]
    loaded = sum("loaded" in one for one in record.store)
    if loaded:
        text = f"{loaded} of {record.compiles}, in {record.load_ms:.1f} ms"
        items.append(Item("loaded from the store on disk", text))
    items += _surroundings(record, shown)
    items += _graph_items(record, shown)
    for number, made in enumerate(record.executables, 1):
        if shown is None or number > len(record.executables) - shown:
            items.append(_executable_item(number, made, shown))
    place = f" at {record.call_site}" if record.call_site else ""
    return Item("", f"trace {record.number}{place}: ({arguments})", tuple(items))


def _surroundings(record: TraceRecord, shown: int | None) -> Iterator[Item]:
    """Yield what the trace reads, writes and relies on outside its arguments."""
    if record.variables:
        writes = f", writes {', '.join(record.assigned)}" if record.assigned else ""
        yield Item("Variables", f"reads {', '.join(record.variables)}{writes}")
    if record.autocast != "off":
        yield Item("autocast", record.autocast)
    if record.captured:
        yield Item("captured tensors", str(record.captured))
    if record.guards:
        yield Item("relies on", items=_some([Item("", guard) for guard in record.guards], shown, ".guards"))
    for effect in record.effects:
        yield Item("changed when it was traced, and only then", effect)


def _graph_items(record: TraceRecord, shown: int | None) -> Iterator[Item]:
    """Yield what the passes made of the graph."""
    if record.passes:
        text = f"{record.passes[0].nodes_before} -> {record.passes[-1].nodes_after} nodes in {record.passes_ms:.1f} ms"
        yield Item("passes", text, tuple(_pass_items(record.passes)))
    for one in record.outlined:
        yield Item("outlined", f"{_nodes(one)}, compiled once and called {one.calls} times")
    for one in record.rolled:
        yield Item("rolled", f"{_nodes(one)}, run {one.runs} times as a loop")
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


def _executable_item(number: int, made: ExecutableRecord, shown: int | None) -> Item:
    place = ", ".join([f"{name}={size}" for name, size in made.sizes.items()])
    device = "" if made.device == "default" else f" on {made.device}"
    cost = f"lower {made.lower_ms:.1f} ms, XLA {made.xla_ms:.1f} ms"
    items = [Item("store on disk", made.store)]
    if made.options:
        items.append(Item("XLA options", ", ".join([f"{name}={value!r}" for name, value in made.options.items()])))
    if made.donated:
        items.append(Item("donated", f"the buffers of {', '.join(made.donated)}, for their new values"))
    if made.runs:
        runs = ", ".join(map(str, made.runs))
        items.append(Item("programs", f"{len(made.runs)}, cut at the calls of outlined parts; run {runs} times"))
    items.append(_fused_item(number, made, shown))
    return Item(f"executable {number}{place and f' for {place}'}{device}", cost, tuple(items))


def _fused_item(number: int, made: ExecutableRecord, shown: int | None) -> Item:
    found = made.fused()
    if found is None:
        return Item("fused", "not known any more: the executable was dropped from the cache")
    if not found:
        return Item("fused", "nothing")
    count = sum(sum(one.operations.values()) for one in found)
    kernels = f"{len(found)} kernel{'s' if len(found) > 1 else ''}"
    rows = _some([Item("", str(one)) for one in found], shown, f".executables[{number - 1}].fused()")
    return Item("fused", f"{count} operations in {kernels}", rows)


def _some(items: Sequence[Item], shown: int | None, rest: str) -> tuple[Item, ...]:
    """Return the first items, and where the others are."""
    if shown is None or len(items) <= shown:
        return tuple(items)
    return (*items[:shown], Item("", f"{len(items) - shown} more, in {rest}"))


def advice_items(advice: Iterable[Any]) -> tuple[Item, ...]:
    """Return an item per piece of advice, what to do below it."""
    return tuple([Item(f"{one.kind} at {short_line(one.line)}", one.text, (Item("", one.hint),)) for one in advice])


def short_line(line: str | None) -> str:
    """Return a ``file:line`` without its folder."""
    return "an unknown line" if line is None else os.path.basename(line)
