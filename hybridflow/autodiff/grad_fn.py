"""`GradFn`: the operation that computed a tensor, as `.backward()` sees it."""

from __future__ import annotations

from hybridflow.autodiff.backward import backward
from hybridflow.autodiff.recorded_graph import recorded_graph
from hybridflow.autodiff.recorded_memory import RecordedMemory, recorded_memory
from hybridflow.autodiff.requires_grad import is_leaf, known_edge, requires_grad
from hybridflow.autodiff.walk import EVER, reachable
from hybridflow.core.node import Edge, Node
from hybridflow.core.notes import notes_at, requires
from hybridflow.core.operators import add_method
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.graph import Graph

_LINES = 60


class GradFn:
    """One operation of the recording, or a leaf; printable. `next_functions` leads to its inputs.

    Two objects for the same operation are equal.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.tensor(2.0, requires_grad=True)
        >>> print((x * x + 1).grad_fn)
        add -> f32[]
          multiply -> f32[]
            accumulate_grad -> f32[]
            accumulate_grad -> f32[]
    """

    __slots__ = ("_node", "_notes")

    def __init__(self, edge: Edge) -> None:
        self._node: Node = edge[0]
        self._notes = notes_at(edge)

    @property
    def is_leaf(self) -> bool:
        """Whether this is where a leaf's gradients accumulate."""
        return self._notes is not None and self._notes.leaf

    @property
    def name(self) -> str:
        """The operation's name; ``accumulate_grad`` for a leaf."""
        return "accumulate_grad" if self.is_leaf else self._node.op.name

    @property
    def location(self) -> str | None:
        """Where the operation was called, as ``file:line``."""
        return self._node.location

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """Per input, the operation that computed it and the output's index; None if it requires no gradient."""
        if self.is_leaf:
            return ()
        return tuple(
            [
                (GradFn(edge), edge[1]) if edge is not None and requires(edge) else (None, 0)
                for edge in self._node.inputs
            ]
        )

    def graph(self) -> Graph:
        """Return the computation of this value, from the leaves on, as a graph to print, verify or cost.

        Values that the recording did not keep, since no gradient needs them, are inputs too.

        Raises:
            GradientError: if the computation contains a custom gradient.
        """
        outputs = [(self._node, index) for index in range(len(self._node.outputs))]
        visible = len(outputs) - self._node.op.hidden_outputs(self._node.attrs)
        return recorded_graph(outputs[:visible], self.name).graph

    def memory(self) -> RecordedMemory:
        """Return the memory kept for `.backward()` from here to the leaves, by line and operation.

        Example:
            >>> import hybridflow as hf
            >>> x = hf.tensor(hf.ones(1024), requires_grad=True)
            >>> hf.tanh(x).grad_fn.memory().activations
            4096
        """
        return recorded_memory(reachable([(self._node, 0)], [EVER]), ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GradFn) and other._node is self._node

    def __hash__(self) -> int:
        return hash(self._node)

    def __repr__(self) -> str:
        place = "" if self.location is None else f" at {self.location}"
        return f"<{self._line()}{place}>"

    def _line(self) -> str:
        return f"{self.name} -> {', '.join(map(str, self._node.specs))}"

    def __str__(self) -> str:
        lines: list[str] = []
        stack: list[tuple[GradFn, int]] = [(self, 0)]
        while stack and len(lines) < _LINES:
            shown, depth = stack.pop()
            lines.append("  " * depth + shown._line())
            following = [(one, depth + 1) for one, _ in shown.next_functions if one is not None]
            stack.extend(reversed(following))
        if stack:
            lines.append(f"... stopped after {_LINES} lines")
        return "\n".join(lines)


def grad_fn(self: Tensor | Variable) -> GradFn | None:
    """The operation that computed this value, None for a leaf."""
    edge = known_edge(self)
    return None if edge is None or not requires_grad(self) or is_leaf(self) else GradFn(edge)


add_method("backward", backward)
add_method("grad_fn", grad_fn, as_property=True)
