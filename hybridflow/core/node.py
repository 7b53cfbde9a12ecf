"""`Node`: one recorded operation, in a graph or in the eager recording.

An edge is a pair ``(node, index)``: output `index` of `node`. A tensor carries the edge that produced it. An
eager node also holds the arrays that its gradient rule reads (`saved`). It holds arrays rather than tensors, so that
nothing else is kept alive. A graph's nodes hold none.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

import jax

from hybridflow.core.errors import ArgumentError
from hybridflow.core.spec import TensorSpec, make_spec

if TYPE_CHECKING:
    from hybridflow.core.op import Op

Edge = tuple["Node", int]
Where = tuple[CodeType, int] | tuple[CodeType, int, str]
"""A place in the user's code: the code object, the offset of the instruction (turned into a line when needed), and the
name scope if there is one. An operation of a gradient has the place of its forward operation, in scope `GRADIENT`."""
GRADIENT = "gradient"
Position = int | Fraction
"""A position in the recording."""

SEQUENCE = itertools.count(1)
next_sequence: Callable[[], int] = SEQUENCE.__next__  # ``next(SEQUENCE)`` does the same, faster
FOREVER = 1 << 62
"""The stamp of nodes that depend on a leaf that requires a gradient: they are recorded without a tape too. Every such
stamp is this object, so operators compare with `is`, which is faster for a number of this size."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PROGRAMS: set[str] = set()
"""Files of hybridflow whose lines count as user code while they run, such as the demo's."""
_BETWEEN = frozenset([contextmanager.__code__.co_filename, jax.tree_util.tree_map.__code__.co_filename])
"""Library files through which hybridflow calls itself: the search for the user's line skips them."""
_COMMAND = "hybridflow"
"""The name of the command-line script that installers write; ``python -m`` starts from a frozen module instead."""


class Node:
    """One operation: op, inputs, attributes, output specs and the user's line.

    Attributes:
        op: the operation's record.
        inputs: one edge per input; None for an eager input without a recorded producer.
        attrs: the attributes, all hashable.
        outputs: per output, its spec or (eager) a pair of shape and dtype, which is cheaper to make.
        where: the place in the user's code, or None.
        saved: eager only: ``(y, *xs)``, with None for those that the gradient rule does not read.
        input_specs: eager only: ``(shape, dtype, value)`` of each input that has no edge and is not saved; the value
            is kept for 0-d inputs, where it costs nothing, and is None for others.
        sequence: the position in the recording, which is in topological order; a fraction for what is recorded later
            than it was computed.
        stamp: like `sequence`, but renewed when a tape watches the node; `FOREVER` if the node depends on a leaf that
            requires a gradient.
        notes: per output, the `Notes` for `.backward()`; not set on most nodes.
        backend: ``host``, ``xla`` or (in a graph) ``graph``.
        scope: the trace that owns a graph's node.
    """

    __slots__ = (
        "__weakref__", "attrs", "backend", "input_specs", "inputs", "notes", "op", "outputs", "saved", "scope",
        "sequence", "stamp", "where",
    )

    op: Op
    inputs: tuple[Edge | None, ...]
    attrs: dict[str, Any]
    outputs: tuple[Any, ...]
    where: Where | None
    saved: tuple[Any, ...] | None
    input_specs: Sequence[tuple[Any, Any, Any] | None] | None
    sequence: Position
    stamp: Position
    notes: dict[int, Any]
    backend: str
    scope: Any

    def spec(self, index: int = 0) -> TensorSpec:
        """Return the spec of an output."""
        output = self.outputs[index]
        if type(output) is not TensorSpec:
            output = make_spec(*output)
            self.outputs = (*self.outputs[:index], output, *self.outputs[index + 1 :])
        return output

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of all outputs."""
        return tuple([self.spec(index) for index in range(len(self.outputs))])

    @property
    def location(self) -> str | None:
        """The user's place as ``file:line``, if known."""
        return format_where(self.where)

    @property
    def scope_name(self) -> str:
        """The name scope, such as ``encoder/layer_1``, or ``gradient/encoder/layer_1`` for nodes of its gradient."""
        return scope_of(self.where)

    def __repr__(self) -> str:
        return f"<Node {self.op.name} -> {', '.join(map(str, self.specs))}>"


def make_node(
    op: Op,
    inputs: tuple[Edge | None, ...],
    attrs: dict[str, Any],
    outputs: tuple[Any, ...],
    *,
    where: Where | None = None,
    backend: str = "graph",
    scope: Any = None,
) -> Node:
    """Build a node that saves nothing: a graph's node, or a leaf."""
    node = object.__new__(Node)
    node.op = op
    node.inputs = inputs
    node.attrs = attrs
    node.outputs = outputs
    node.where = where
    node.saved = None
    node.input_specs = None
    node.sequence = node.stamp = next_sequence()
    node.backend = backend
    node.scope = scope
    return node


def renew(node: Node) -> None:
    """Give a node a new stamp, so that tapes started by now follow it."""
    if node.stamp != FOREVER:
        node.stamp = next_sequence()


def user_place(depth: int = 1) -> Where | None:
    """Return the nearest place outside hybridflow, starting `depth` frames up, with the current name scope."""
    return user_place_from(sys._getframe(depth))


def user_place_from(frame: FrameType | None) -> Where | None:
    """Return the nearest place outside hybridflow, among a frame and its callers."""
    while frame is not None:
        file = frame.f_code.co_filename
        users = not file.startswith(_PACKAGE) or (PROGRAMS and file in PROGRAMS)
        if users and file not in _BETWEEN:
            if OPEN_SCOPES:
                scope = _SCOPE.get()
                if scope:
                    return frame.f_code, frame.f_lasti, scope
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


_SCOPE: ContextVar[str] = ContextVar("name_scope", default="")
OPEN_SCOPES: set[object] = set()  # of all threads; almost always empty, which makes the check cheap


@contextmanager
def name_scope(name: str) -> Generator[None]:
    """Group the operations of a block, or of a decorated function, under a name.

    Pictures of graphs, costs and profiles use the groups, for gradients too. Scopes nest. They change neither values
    nor traces, and cause no retracing.

    Args:
        name: the name; ``a/b`` is scope b inside scope a.

    Raises:
        ArgumentError: if the name is empty or has an empty part.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def f(x):
        ...     with hf.name_scope("encoder"):
        ...         return hf.tanh(x)
        >>> [node.scope_name for node in f.graph(hf.asarray([1.0])).nodes]
        ['encoder']
    """
    if not isinstance(cast(Any, name), str) or not all(name.split("/")):
        raise ArgumentError(f"name_scope: {name!r} is not a name",
                            hint="Pass a text such as 'encoder' or 'encoder/layer_1'.")
    outer, key = _SCOPE.get(), object()
    token = _SCOPE.set(f"{outer}/{name}" if outer else name)
    OPEN_SCOPES.add(key)
    try:
        yield
    finally:
        OPEN_SCOPES.discard(key)
        _SCOPE.reset(token)


def scope_of(where: Where | None) -> str:
    """Return the name scope that was open at a line of the user's code, or an empty text."""
    return where[2] if where is not None and len(where) == 3 else ""


def in_gradient(where: Where | None) -> Where | None:
    """Return the place for operations that compute the gradient of the operation at a place."""
    if where is None:
        return None
    scope = scope_of(where)
    return where[0], where[1], f"{GRADIENT}/{scope}" if scope else GRADIENT


def where_file_line(where: Where | None) -> tuple[str, int] | None:
    """Return the file and line of a place, or None for the command line's start, which is not the user's code."""
    if where is None:
        return None
    code, offset = where[0], where[1]
    if code.co_filename.startswith("<frozen ") or os.path.basename(code.co_filename) == _COMMAND:
        return None
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
    return code.co_filename, line


def warn_at(where: Where | None, text: str, category: type[Warning]) -> None:
    """Give a warning at a place in the user's code."""
    file, line = where_file_line(where) or (__file__, 0)
    warnings.warn_explicit(text, category, file, line)


def is_gradient(where: Where | None) -> bool:
    """Whether the operation at a place computes a gradient."""
    return scope_of(where).partition("/")[0] == GRADIENT


def short_where(where: Where | None) -> str:
    """Return a place as ``FILE:LINE`` without the folder, or an empty text if it is not known."""
    place = format_where(where)
    return "" if place is None else short_place(place)


def short_place(line: str) -> str:
    """Return a place ``FILE:LINE`` without the folder; in a notebook, the number of the cell, such as ``In[3]:2``."""
    file, _, number = line.rpartition(":")
    return f"{_cell_of(file) or os.path.basename(file)}:{number}"


def _cell_of(file: str) -> str | None:
    """Return the name that IPython shows for the file of a cell; None for other files."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = None if shell is None else shell.compile.format_code_name(file)
    return None if named is None else named[1]


def format_where(where: Where | None) -> str | None:
    """Return a place as ``file:line``; in a notebook, the number of the cell in place of the file."""
    place = where_file_line(where)
    return None if place is None else f"{_cell_of(place[0]) or place[0]}:{place[1]}"
