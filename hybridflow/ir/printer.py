"""Print graphs: SSA text to read, or with `elide=None` exact text that `parse` turns back into the same graph."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from hybridflow.core.dims import Dim, DimScope, SizeFloat
from hybridflow.core.dtypes import DType, as_dtype, kind_of, short_name
from hybridflow.core.errors import DTypeError
from hybridflow.core.node import GRADIENT, Edge, Node, short_where
from hybridflow.core.sources import Constant
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.graph import Graph

INDENT = "  "
INLINE_LIMIT = 64
"""The largest number of elements that exact text writes as numbers; larger arrays are bytes in hexadecimal."""
SHOWN_OF_ELIDED = 3

Names = Mapping[Edge, str]
_PLAIN_NAME = re.compile(r"[^\W\d][\w.]*")


def print_graph(graph: Graph, *, elide: int | None = 16, lines: bool = True) -> str:
    """Return a graph as SSA text.

    Args:
        graph: the graph.
        elide: constants with more elements than this are shortened for reading. With None the text is exact:
            `parse` turns it into a graph that prints the same text and computes the same bits.
        lines: whether each node ends with the user's line, as in ``# model.py:31``, and its name scope if it has one.

    Example:
        >>> import hybridflow as hf
        >>> print(hf.ir.parse("graph f(%x: f32[2]) -> (f32[2]) { %y = tanh(%x) : f32[2] return %y }"))
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = tanh(%x) : f32[2]
          return %0
        }
    """
    return "\n".join(_Printer(elide, lines).graph(graph, None))


def format_node(node: Node, names: Names | None = None, *, elide: int | None = 16, lines: bool = True) -> str:
    """Return one node as text.

    Args:
        node: a node of a graph or of an eager recording.
        names: the name of each edge, from `value_names`; without it, operands are shown by their specs.
        elide, lines: as for `print_graph`.
    """
    return "\n".join(_Printer(elide, lines).node(node, names))


def format_value(value: Any) -> str:
    """Return an attribute's value as one line of text, with arrays shortened."""
    return " ".join(_Printer(SHOWN_OF_ELIDED, lines=False).value(value, None))


def value_names(graph: Graph) -> dict[Edge, str]:
    """Return the printed name of every value: inputs keep theirs, the others are numbered in order."""
    names: dict[Edge, str] = {}
    taken: set[str] = set()
    for node in graph.inputs:
        name = _unique(_sanitised(str(node.attrs.get("name") or node.op.name)), taken)
        taken.add(name)
        names.setdefault((node, 0), f"%{name}")
    number = 0
    for node in graph.nodes:
        for index in range(len(node.outputs)):
            if (node, index) not in names:
                names[node, index] = f"%{number}"
                number += 1
    return names


def _sanitised(name: str) -> str:
    """Return a name with only letters, digits and underscores."""
    plain = re.sub(r"\W+", "_", name)
    if plain != name:
        plain = plain.rstrip("_")
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


def _unique(name: str, taken: set[str]) -> str:
    unique, count = name, 0
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


class _Printer:
    """A printer with a choice of options."""

    def __init__(self, elide: int | None, lines: bool) -> None:
        self.elide = elide
        self.lines = lines

    # -- graphs and nodes -------------------------------------------------------------------------------------

    def graph(self, graph: Graph, outer: DimScope | None) -> list[str]:
        """Return the lines of a graph; a nested graph does not repeat the symbolic sizes of the outer one."""
        names = value_names(graph)
        head = graph.name if _PLAIN_NAME.fullmatch(graph.name) else json.dumps(graph.name)
        dims = graph.dims
        own = dims is not outer
        sizes = f"[{', '.join(f'{name}={hint}' for name, hint in dims.hints.items())}]" if own and dims.hints else ""
        parameters = ", ".join(f"{names[node, 0]}: {node.spec()}" for node in graph.inputs)
        results = ", ".join(str(spec) for spec in _output_specs(graph))
        lines = [f"graph {head}{sizes}({parameters}) -> ({results}) {{"]
        if own:
            lines += [f"{INDENT}guard {guard}" for guard in dims.guards]
        for node in graph.nodes:
            lines += [INDENT + line for line in self.node(node, names, dims)]
        outputs = ", ".join(names.get(edge, "%?") for edge in graph.outputs)
        lines += [f"{INDENT}return {outputs}".rstrip(), "}"]
        return lines

    def node(self, node: Node, names: Names | None, dims: DimScope | None = None) -> list[str]:
        """Return the lines of a node; there are several if it carries graphs."""
        text = f"{node.op.name}({', '.join(self._operands(node, names))})"
        if names is not None:
            results = ", ".join(names.get((node, index), "%?") for index in range(len(node.outputs)))
            text = f"{results} = {text}" if results else text
        lines = [text]
        if node.attrs:
            self._append(lines, self._attributes(node, dims))
        if node.outputs:
            lines[-1] += f" : {', '.join(map(str, node.specs))}"
        place = short_where(node.where) if self.lines else ""
        if place:
            scope = "" if node.scope_name in ("", GRADIENT) else f" {node.scope_name}"
            lines[-1] += f"  # {place}{scope}"
        return lines

    def _operands(self, node: Node, names: Names | None) -> Iterator[str]:
        for edge in node.inputs:
            if edge is None:
                yield "_"
            elif names is None:
                yield str(edge[0].spec(edge[1])) if edge[1] < len(edge[0].outputs) else "%?"
            else:
                yield names.get(edge, "%?")

    def _attributes(self, node: Node, dims: DimScope | None) -> list[str]:
        values = [(name, self.value(value, dims)) for name, value in node.attrs.items()]
        if not any(len(lines) > 1 for _, lines in values):
            return [" {" + ", ".join(f"{name}={lines[0]}" for name, lines in values) + "}"]
        block = [" {"]
        for position, (name, lines) in enumerate(values):
            lines[-1] += "," if position < len(values) - 1 else ""
            block += [INDENT + line for line in (f"{name}={lines[0]}", *lines[1:])]
        return [*block, "}"]

    # -- attribute values -------------------------------------------------------------------------------------

    def value(self, value: Any, dims: DimScope | None) -> list[str]:
        """Return the lines of an attribute value."""
        if isinstance(value, Graph):
            return self.graph(value, dims)
        if type(value) is tuple:
            return self._joined("(", cast("tuple[Any, ...]", value), ",)" if len(value) == 1 else ")", dims)
        if isinstance(value, Constant):
            return [self.constant(value.array)]
        return [_scalar(value)]

    def _joined(self, start: str, items: Iterable[Any], end: str, dims: DimScope | None) -> list[str]:
        lines = [start]
        for position, item in enumerate(items):
            if position:
                lines[-1] += ", "
            self._append(lines, self.value(item, dims))
        lines[-1] += end
        return lines

    @staticmethod
    def _append(lines: list[str], more: list[str]) -> None:
        """Append lines; the first one continues the last line."""
        lines[-1] += more[0]
        lines += more[1:]

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """Return an array as text: its elements, its bytes, or if shortened its first elements."""
        head = str(TensorSpec(array.shape, array.dtype))
        if self.elide is not None and array.size > self.elide:
            first = [_element(x) for x in array.flat[:SHOWN_OF_ELIDED]]
            return f"{head} [{', '.join(first)}, ...]" if first else f"{head} [...]"
        if (self.elide is None and array.size > INLINE_LIMIT) or not _exact_as_text(array):
            return f'{head} hex"{array.tobytes().hex()}"'
        return f"{head} {_elements(array)}"


def _output_specs(graph: Graph) -> Iterator[TensorSpec | str]:
    for node, index in graph.outputs:
        yield node.spec(index) if index < len(node.outputs) else "?"


def _scalar(value: Any) -> str:
    """Return an attribute value without parts as text of one line."""
    if type(value) is SizeFloat:
        return f"opaque({json.dumps(value.text())})"
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return form(value)
    return opaque_text(value)


def opaque_text(value: Any) -> str:
    """Return a text in place of a value that exists only in this process, such as a function."""
    name = getattr(value, "__qualname__", None)
    kind = type(value).__name__
    return f"opaque({json.dumps(f'{kind} {name}' if name else kind)})"


def format_float(value: float) -> str:
    """Return a float as text that reads back with the same bits."""
    if math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return repr(float(value))


def _format_complex(value: complex) -> str:
    return f"complex({format_float(value.real)}, {format_float(value.imag)})"


def _format_dtype(value: DType) -> str:
    try:
        return short_name(as_dtype(value))
    except DTypeError:
        return opaque_text(value)


_FORMS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (bool | type(None), repr),
    (int | Dim | TensorSpec, str),
    (float, format_float),
    (complex, _format_complex),
    (str, json.dumps),
    (np.dtype, _format_dtype),
    (type(...), lambda value: "..."),
)


# -- arrays -------------------------------------------------------------------------------------------------------


def _elements(array: np.ndarray[Any, Any]) -> str:
    if array.ndim == 0:
        return _element(array[()])
    return f"[{', '.join(_elements(row) for row in array)}]"


def _element(x: Any) -> str:
    """Return one element of an array as the shortest text that its dtype reads back."""
    kind = kind_of(x.dtype)
    if kind == "bool":
        return str(bool(x))
    if kind in ("int", "uint"):
        return str(int(x))
    if kind == "complex":
        return f"complex({_element(x.real)}, {_element(x.imag)})"
    if not np.isfinite(x):
        return format_float(float(x))
    text = str(x)
    return text if x.dtype.kind == "f" else repr(float(x))


def read_elements(values: list[Any], shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """Return the array of numbers read from text.

    Raises:
        OverflowError: if the dtype cannot hold an integer.
        TypeError, ValueError: if a value is of another kind.
    """
    if kind_of(dtype) in ("int", "uint"):
        info = np.iinfo(dtype)
        for value in values:
            if not info.min <= value <= info.max:
                raise OverflowError(f"{value} does not fit {dtype}")
    with np.errstate(all="ignore"):
        return np.array(values, dtype=dtype).reshape(shape)


def _exact_as_text(array: np.ndarray[Any, Any]) -> bool:
    """Whether reading the elements' text gives the same bits (a NaN with a payload does not)."""
    if kind_of(array.dtype) not in ("float", "complex"):
        return True
    parts = np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array
    again = read_elements([float(_element(x)) for x in parts.flat], parts.shape, parts.dtype)
    return again.tobytes() == parts.tobytes()


def highlighted(text: str) -> Any:
    """Return the text of a graph in colors, for a `rich` console."""
    from rich.text import Text  # takes long to import

    coloured = Text(text)
    coloured.highlight_regex(r"(?<= = )\w+(?=\()", "bold cyan")
    coloured.highlight_regex(r"\b(?:graph|return)\b", "bold")
    coloured.highlight_regex(r"(?<= : )[^#\n{]*", "green")
    coloured.highlight_regex(r"  # [^\n]*", "dim")
    return coloured
