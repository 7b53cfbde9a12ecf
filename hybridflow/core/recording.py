"""Recording of an executed operation, shared by `dispatch` and the fast paths of `operators`."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from hybridflow.core.node import FOREVER, OPEN_SCOPES, SEQUENCE, Edge, Node, Where, user_place_from

if TYPE_CHECKING:
    from hybridflow.core.op import Op


def recorded_node(
    op: Op,
    inputs: tuple[Edge | None, ...],
    attrs: dict[str, Any],
    outputs: tuple[Any, ...],
    where: Where | None,
    saved: tuple[Any, ...],
    input_specs: Sequence[Any] | None,
    backend: str,
    lasting: bool,
) -> Node:
    """Return the node of an operation that was just executed; see `Node` for the arguments.

    If it is `lasting`, that is computed from a value that requires a gradient, its stamp is `FOREVER`.
    """
    node = Node()
    node.op = op
    node.inputs = inputs
    node.attrs = attrs
    node.outputs = outputs
    node.where = where
    node.saved = saved
    node.input_specs = input_specs
    node.backend = backend
    node.scope = None
    node.sequence = node.stamp = next(SEQUENCE)
    if lasting:
        node.stamp = FOREVER
    return node


def followed(edge: Edge | None, start: int, lasting: bool, passes: bool) -> tuple[Edge | None, bool]:
    """Return an operand's edge if its stamp is at least `start`, else None, and whether the result is lasting.

    Args:
        edge: the operand's edge.
        start: the smallest stamp that the context follows.
        lasting: whether the operands before this one make the result lasting.
        passes: whether the operation passes gradients.
    """
    if edge is not None:
        stamp = edge[0].stamp
        if stamp < start:
            edge = None
        elif stamp is FOREVER:
            lasting = passes
    return edge, lasting


def called_from(frame: FrameType, usual: Any) -> tuple[Where | None, Any]:
    """Return the user's place, and the place to compare with at the next call: most calls cost only a comparison.

    Args:
        frame: the caller's frame.
        usual: the second result of the call before, or ``(None, 0)``.
    """
    if frame.f_code is usual[0] and not OPEN_SCOPES:
        where = usual if frame.f_lasti == usual[1] else (usual[0], frame.f_lasti)
    else:
        where = user_place_from(frame)
        if where is not None and where[0] is frame.f_code and len(where) == 2:
            usual = where
    return where, usual
