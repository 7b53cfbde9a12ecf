"""`hf.debugging.table`: a function's formulas, values and derivatives, node by node, as textbooks draw them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.report import titled_table
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core.context import context_of
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.functions import require_function
from hybridflow.core.node import Edge, Node
from hybridflow.core.report import Report
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import format_spec
from hybridflow.core.tensor import Tensor, asarray, make_tensor
from hybridflow.ir.builder import READ
from hybridflow.ir.effects import silenced_in
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, graphs_in
from hybridflow.ir.printer import format_value
from hybridflow.tracing.compile import compile
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.method import CompiledMethod
from hybridflow.tracing.replay import Replay
from hybridflow.transforms.forward import jvp

_NONE = "none"


@dataclass(frozen=True, eq=False)
class ValueRow:
    """A value that a function takes or computes.

    Attributes:
        name: its name in the formulas.
        formula: how it is computed, in the names of the rows above; empty for an input.
        value: the value.
        adjoint: the derivative of the result with respect to the value (reverse mode), in its shape; None if the result
            does not depend on it or its dtype has no gradient.
        tangent: the derivative of the value in the table's direction (forward mode); None as for `adjoint`.
        is_result: whether the function returns it.
        where: the user's place as ``file:line``, if known.
    """

    name: str
    formula: str
    value: np.ndarray[Any, Any]
    adjoint: np.ndarray[Any, Any] | None
    tangent: np.ndarray[Any, Any] | None
    is_result: bool
    where: str | None


@dataclass(frozen=True)
class ModeCosts:
    """What the derivatives of a function cost in each mode, in FLOPs after the compiler's passes.

    The passes drop, for example, multiplications by the ones that reverse mode starts from.

    Attributes:
        value: of the function alone.
        reverse: of the value and one backward pass, which gives the derivatives of one result with respect to all
            inputs.
        forward: of the value and one forward pass with dual numbers, which gives the derivatives of all results in one
            direction.
        inputs: the number of elements to differentiate with respect to: forward mode needs as many passes for all
            derivatives.
        results: the number of elements of the results: reverse mode needs as many passes.
    """

    value: int
    reverse: int
    forward: int
    inputs: int
    results: int

    @property
    def all_by_reverse(self) -> int:
        """FLOPs of all derivatives of all results by backward passes; the value is computed once."""
        return self.value + self.results * (self.reverse - self.value)

    @property
    def all_by_forward(self) -> int:
        """FLOPs of all derivatives of all results by forward passes; the value is computed once."""
        return self.value + self.inputs * (self.forward - self.value)


@dataclass(frozen=True, eq=False, repr=False)
class ValueTable(Report):
    """The values of a function and their derivatives, to print and to show in a notebook.

    Attributes:
        name: the function's name.
        rows: its inputs, then its operations in the order of execution.
        direction: the tangents that forward mode started from, by the input's name; other inputs start from zeros.
        costs: what both modes cost.
    """

    name: str
    rows: tuple[ValueRow, ...]
    direction: dict[str, np.ndarray[Any, Any]]
    costs: ModeCosts

    def __getitem__(self, name: str) -> ValueRow:
        """Return the row of a name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError(f"table: {self.name} has no value {name!r}",
                            hint=f"There are {[row.name for row in self.rows]}.")

    def tables(self) -> list[Table]:
        """Return the table of values and the table of costs, for `rich`."""
        values = titled_table(self.name)
        for title in ("", "formula", "value", "adjoint (reverse)", "tangent (forward)"):
            values.add_column(title, overflow="fold")
        for row in self.rows:
            name = f"{row.name} (result)" if row.is_result else row.name
            values.add_row(*map(Text, (name, row.formula, *map(_text, (row.value, row.adjoint, row.tangent)))))
        costs = titled_table("costs in FLOPs")
        for title in ("mode", "value and one pass", "passes for all derivatives", "value and all passes"):
            costs.add_column(title, justify="left" if title == "mode" else "right")
        one = self.costs
        costs.add_row("reverse", f"{one.reverse:,}", f"{one.results:,}", f"{one.all_by_reverse:,}")
        costs.add_row("forward", f"{one.forward:,}", f"{one.inputs:,}", f"{one.all_by_forward:,}")
        return [values, costs]

    def notes(self) -> list[str]:
        """Return what the columns mean."""
        results = [row.name for row in self.rows if row.is_result]
        start = ", ".join(f"d{name} = {value_text(value)}" for name, value in self.direction.items())
        return [
            f"adjoint: the derivative of {' + '.join(results) or 'nothing'}"
            + (", all elements summed," if self.costs.results > len(results) else "")
            + " with respect to the value",
            f"tangent: the derivative of the value for {start or 'no input'}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as lists and numbers, ready for JSON."""
        rows = [
            {
                "name": row.name, "formula": row.formula, "value": row.value.tolist(), "adjoint": _list(row.adjoint),
                "tangent": _list(row.tangent), "shape": list(row.value.shape), "dtype": str(row.value.dtype),
                "is_result": row.is_result, "where": row.where,
            }
            for row in self.rows
        ]
        costs = {name: getattr(self.costs, name) for name in ("value", "reverse", "forward", "inputs", "results")}
        direction = {name: value.tolist() for name, value in self.direction.items()}
        return {"name": self.name, "rows": rows, "direction": direction, "costs": costs}

    def parts(self) -> list[Any]:
        """Return the tables, and what their columns mean."""
        return [*self.tables(), *self.notes()]


def _text(value: Any) -> str:
    return _NONE if value is None else value_text(value)


def _list(value: np.ndarray[Any, Any] | None) -> Any:
    return None if value is None else value.tolist()


def table(
    fn: Callable[..., Any], *args: Any, tangents: Mapping[str, Any] | None = None, **kwargs: Any
) -> ValueTable:
    """Return a function's formulas, values and derivatives, node by node, as textbooks draw them.

    The function is traced. Its graph then runs node by node, once: the values, the tangents of forward mode (dual
    numbers: every value carries its derivative), and then the adjoints of reverse mode from the last node to the first.
    No Variable is assigned. Inputs are the arguments and the Variables that the function reads.

    Args:
        fn: a function that returns tensors of floats, compiled or not.
        *args, **kwargs: the arguments of the call; Python floats among them become tensors.
        tangents: the direction of forward mode: a tangent for each input by its name in the table, zeros for the rest.
            By default it is 1 for the first element of the first input of floats.

    Returns:
        The table.

    Raises:
        ArgumentError: `tangents` names an input that does not exist or has no derivative.
        ShapeError: a tangent has another shape than its input.
        ArgumentTypeError: the function returns no tensor of floats.

    Example:
        >>> import hybridflow as hf
        >>> t = hf.debugging.table(lambda a, b, c: (a + b) * c, 2.0, 3.0, 4.0)
        >>> [(row.name, row.formula, float(row.value), float(row.adjoint)) for row in t.rows]
        [('a', '', 2.0, 4.0), ('b', '', 3.0, 4.0), ('c', '', 4.0, 5.0), ('v1', 'a + b', 5.0, 4.0), ('v2', 'v1 * c', 20.0, 1.0)]
        >>> float(t["v2"].tangent)  # for da = 1
        4.0

    Reference:
        Baydin, Pearlmutter, Radul, Siskind, "Automatic Differentiation in Machine Learning: a Survey", JMLR 18, 2018,
        tables 2 and 3.
    """  # noqa: E501 (a line of output)
    require_function("table", fn)
    if not isinstance(fn, CompiledFunction | CompiledMethod):
        fn = compile(fn)
    args, kwargs = jax.tree_util.tree_map(_as_argument, (args, kwargs))
    replay: Replay = fn.replay(*args, **kwargs)
    with context_of(None):
        return _Maker(replay).made(tangents)


def _as_argument(leaf: Any) -> Any:
    return asarray(leaf) if type(leaf) is float else leaf


class _Maker:
    """Makes the table of one traced call."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.graph = replay.graph
        self.names = names_of(self.graph)
        self.results = [edge for edge in self.graph.outputs[: replay.results] if differentiable(edge)]
        if not self.results:
            raise ArgumentTypeError(
                f"table: {self.graph.name} returns no tensor of floats, so there is nothing to differentiate",
                got=", ".join(map(str, self.graph.output_specs[: replay.results])) or "no tensor",
                hint="Return the value whose derivatives you want, for example a loss."
            )

    def made(self, tangents: Mapping[str, Any] | None) -> ValueTable:
        """Run the graph, once, and return the table."""
        inputs = [make_tensor(np.asarray(value)) for value in self.replay.inputs]
        start = self._directions(inputs, tangents)
        tape = GradientTape(persistent=True, watch_accessed_variables=False)
        with tape:
            tape.watch([one for one, node in zip(inputs, self.graph.inputs, strict=True) if differentiable((node, 0))])
            duals = _Duals(self.graph, inputs, start, tape)
        self._require_checks(duals.values)
        edges = [edge for edge in duals.values if differentiable(edge)]
        targets = [duals.values[edge] for edge in self.results]
        adjoints = dict(zip(edges, tape.gradient(targets, [duals.values[edge] for edge in edges]), strict=True))
        rows = [self._row(edge, duals, adjoints) for edge in self._edges()]
        direction = {
            self.names[node, 0]: one.numpy() for node, one in zip(self.graph.inputs, start, strict=True)
            if one is not None
        }
        return ValueTable(self.graph.name, tuple(rows), direction, self._costs(inputs, start))

    def _edges(self) -> list[Edge]:
        """Return the values that have a row."""
        found: list[Edge] = [(node, 0) for node in self.graph.inputs]
        for node in self.graph.nodes:
            found += [(node, index) for index in range(visible_outputs_of(node)) if has_row(node)]
        return found

    def _row(self, edge: Edge, duals: _Duals, adjoints: Mapping[Edge, Tensor | None]) -> ValueRow:
        node, index = edge
        is_input = edge in duals.inputs
        adjoint, tangent = adjoints.get(edge), duals.tangents.get(edge)
        return ValueRow(
            self.names[edge],
            "" if is_input else formula_of(node, self.names, index),
            duals.values[edge].numpy(),
            None if adjoint is None else adjoint.numpy(),
            None if tangent is None else tangent.numpy(),
            edge in self.results,
            None if is_input else node.location,
        )

    def _require_checks(self, values: Mapping[Edge, Tensor]) -> None:
        """Raise the error of the first check that does not hold, as the call does."""
        for check in self.replay.checks:
            ok = None if check.ok._edge is None else values.get(check.ok._edge)
            if ok is not None and not bool(ok):
                raise check.failure(self.graph.name)

    def _directions(self, inputs: Sequence[Tensor], given: Mapping[str, Any] | None) -> list[Tensor | None]:
        """Return the tangent of each input, None for zeros."""
        names = {self.names[node, 0]: number for number, node in enumerate(self.graph.inputs)}
        floats = {name: number for name, number in names.items() if differentiable((self.graph.inputs[number], 0))}
        start: list[Tensor | None] = [None] * len(inputs)
        if given is None:
            for number in list(floats.values())[:1]:
                unit = np.zeros(inputs[number].shape, inputs[number].dtype)
                unit.flat[:1] = 1
                start[number] = asarray(unit)
            return start
        for name, value in given.items():
            if name not in floats:
                what = "has no derivative" if name in names else "is no input"
                raise ArgumentError(f"table: the tangent of {name!r}, which {what}",
                                    hint=f"Inputs of floats: {list(floats)}.")
            like = inputs[floats[name]]
            start[floats[name]] = tangent = asarray(value, dtype=like.dtype)
            if tangent.shape != like.shape:
                raise ShapeError(f"table: the tangent of {name!r} has shape {tangent.shape}, the input {like.shape}",
                                 hint="Give it the input's shape.")
        return start

    def _costs(self, inputs: Sequence[Tensor], start: Sequence[Tensor | None]) -> ModeCosts:
        graph, results = self.graph, self.results
        numbers = [number for number, node in enumerate(graph.inputs) if differentiable((node, 0))]

        def value(*tensors: Tensor) -> list[Tensor]:
            values = _Duals(graph, tensors, [None] * len(tensors)).values
            return [values[edge] for edge in results]

        def reverse(*tensors: Tensor) -> Any:
            tape = GradientTape(watch_accessed_variables=False)
            with tape:
                tape.watch([tensors[number] for number in numbers])
                targets = value(*tensors)
            return targets, tape.gradient(targets, [tensors[number] for number in numbers])

        def forward(*tensors: Tensor) -> Any:
            given = iter(tensors[len(graph.inputs) :])
            duals = _Duals(graph, tensors[: len(graph.inputs)], [None if one is None else next(given) for one in start])
            return [(duals.values[edge], duals.tangents.get(edge)) for edge in results]

        moved = [one for one in start if one is not None]
        return ModeCosts(
            value=_flops(value, *inputs),
            reverse=_flops(reverse, *inputs),
            forward=_flops(forward, *inputs, *moved),
            inputs=sum(inputs[number].size for number in numbers),
            results=sum(cast(int, edge[0].spec(edge[1]).size) for edge in results),
        )


def _flops(fn: Callable[..., Any], *inputs: Tensor) -> int:
    return int(CompiledFunction(fn, autograph=False).cost(*inputs).flops)


class _Duals:
    """A run of a graph on dual numbers: every value, and its derivative in a direction.

    Args:
        graph: the graph.
        inputs: its inputs.
        tangents: the direction; None for zeros.
        tape: a tape that records the values, and not the work for their tangents.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        tape: GradientTape | None = None,
    ) -> None:
        self.inputs: list[Edge] = [(node, 0) for node in graph.inputs]
        self.values: dict[Edge, Tensor] = dict(zip(self.inputs, inputs, strict=True))
        self.tangents: dict[Edge, Tensor | None] = dict(zip(self.inputs, tangents, strict=True))
        self._tape = tape
        evaluate(graph, inputs, self._node)

    def _node(self, node: Node, inputs: list[Tensor], attrs: dict[str, Any]) -> Any:
        plain = {name: value for name, value in attrs.items() if name != "residuals"}
        nested = self._tape is not None and "nested" in node.op.traits

        def run(*xs: Tensor) -> Any:
            return bind(node.op, xs, plain)

        outputs = (CompiledFunction(run, autograph=False) if nested else run)(*inputs)
        visible = outputs if isinstance(outputs, tuple) else (outputs,)
        self.values.update({(node, index): one for index, one in enumerate(visible)})
        if self._tape is None:
            self._move(node, inputs, plain)
        else:
            with self._tape.stop_recording():
                self._move(node, inputs, plain)
        padded = (*visible, *[None] * (len(node.outputs) - len(visible)))
        return padded[0] if len(padded) == 1 else padded

    def _move(self, node: Node, inputs: list[Tensor], attrs: dict[str, Any]) -> None:
        """Compute the tangents of a node's outputs."""
        given = [self.tangents.get(edge) for edge in node.inputs if edge is not None]
        moving = [one for one in given if one is not None]
        if not moving or "effect" in node.op.traits:
            return
        nested = "nested" in node.op.traits
        silent = silenced_in(attrs) if nested else attrs

        def moved(*tensors: Tensor) -> Any:
            rest = iter(tensors[len(inputs) :])
            directions = [None if one is None else next(rest) for one in given]
            return jvp(lambda *xs: bind(node.op, xs, silent), tensors[: len(inputs)], directions)[1]

        run = CompiledFunction(moved, autograph=False) if nested and self._tape is not None else moved
        derivatives = run(*inputs, *moving)
        several = derivatives if isinstance(derivatives, tuple) else (derivatives,)
        self.tangents.update({(node, index): one for index, one in enumerate(several)})


# -- the operations of a graph as formulas, such as ``v1 * c``, and their values as short text ------------------------

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
