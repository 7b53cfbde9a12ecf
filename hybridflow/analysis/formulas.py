"""The operations of a graph as formulas, such as ``v1 * c``, and their values as short text."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridflow.core.dtypes import as_dtype, is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import format_spec
from hybridflow.ir.builder import READ
from hybridflow.ir.graph import Graph, graphs_in
from hybridflow.ir.printer import format_value

_SYMBOLS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//", "__mod__": "%",
    "__pow__": "**", "__matmul__": "@", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=",
    "__eq__": "==", "__ne__": "!=", "__and__": "&", "__or__": "|", "__xor__": "^", "__lshift__": "<<",
    "__rshift__": ">>",
}
_SIGNS = {"__neg__": "-", "__pos__": "+", "__invert__": "~"}
SHOWN = 12
"""The largest number of elements that a cell of a table shows one by one."""
Named = Mapping[Edge, str]


def names_of(graph: Graph) -> dict[Edge, str]:
    """Return a name for every value: inputs keep theirs, results of operations are v1, v2 and so on.

    Numbers that the code contains are named by their digits. The value that a Variable had when it was read has the
    Variable's name.
    """
    names: dict[Edge, str] = {}
    taken: set[str] = set()
    for node in graph.inputs:
        names[node, 0] = _free(str(node.attrs.get("name") or node.op.name), taken)
    number = 0
    for node in graph.nodes:
        if node.op is READ and node.inputs[0] is not None:
            names[node, 0] = names[node.inputs[0]]
        elif node.op is CONSTANT and node.attrs["value"].array.size == 1:
            names[node, 0] = number_text(node.attrs["value"].array.reshape(()))
        else:
            for index in range(visible_outputs_of(node)):
                number += 1
                while f"v{number}" in taken:
                    number += 1
                names[node, index] = f"v{number}"
    return names


def _free(name: str, taken: set[str]) -> str:
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name} ({count})"
    taken.add(free)
    return free


def visible_outputs_of(node: Node) -> int:
    """Return how many results an operation has, besides what it keeps for its gradient rule."""
    return len(node.outputs) - node.op.hidden_outputs(node.attrs)


def has_row(node: Node) -> bool:
    """Whether a node computes something: numbers in the code and reads of Variables do not."""
    return node.op is not READ and not (node.op is CONSTANT and node.attrs["value"].array.size == 1)


def formula_of(node: Node, names: Named, index: int = 0) -> str:
    """Return an operation as users write it: with an operator's symbol where it has one, else as a call."""
    if node.op is CONSTANT:
        return "constant"
    operands = [names.get(edge, "?") if edge is not None else "?" for edge in node.inputs]
    for method in node.op.method:
        if method in _SYMBOLS and len(operands) == 2 and not node.attrs:
            return f"{operands[0]} {_SYMBOLS[method]} {operands[1]}"
        if method in _SIGNS and len(operands) == 1:
            return f"{_SIGNS[method]}{operands[0]}"
    attrs = [
        f"{name}={format_value(value)}"
        for name, value in node.attrs.items()
        if name != "residuals" and not any(True for _ in graphs_in(value)) and not _is_default(node, name, value)
    ]
    text = f"{node.op.name}({', '.join([*operands, *attrs])})"
    return f"{text}[{index}]" if visible_outputs_of(node) > 1 else text


def _is_default(node: Node, name: str, value: Any) -> bool:
    """Whether an attribute is what the operation's public function takes by default."""
    if node.op.public is None:
        return False
    parameter = inspect.signature(node.op.public).parameters.get(name)
    return parameter is not None and type(parameter.default) is type(value) and parameter.default == value


def differentiable(edge: Edge) -> bool:
    """Whether a value is of a dtype that has gradients."""
    return is_differentiable(edge[0].spec(edge[1]).dtype)


def number_text(value: Any) -> str:
    """Return one number with at most six digits."""
    number = np.asarray(value)[()]
    if number.dtype.kind in "biu":
        return str(number)
    if number.dtype.kind == "c":
        return f"{number.real:.6g}{number.imag:+.6g}j"
    return f"{float(number):.6g}"


def value_text(value: Any) -> str:
    """Return an array as text: its numbers if there are few, else its dtype, its shape and its range."""
    array = np.asarray(value)
    if array.size <= SHOWN:
        return _nested(array)
    text = format_spec(array.shape, as_dtype(array.dtype))
    if array.dtype.kind in "biuc":
        return text
    floats = array.astype(np.float64)
    finite = floats[np.isfinite(floats)]
    wrong = floats.size - finite.size
    text += f" from {finite.min():.6g} to {finite.max():.6g}" if finite.size else ""
    return f"{text}, {wrong} not finite" if wrong else text


def _nested(array: np.ndarray[Any, Any]) -> str:
    if not array.ndim:
        return number_text(array)
    return f"[{', '.join([_nested(row) for row in array])}]"
