"""How an executed operation is recorded: what `dispatch` and the quick ways through `operators` have in common."""

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
    """Return the node of an operation that was executed now; see `Node` for what it is made of.

    It is recorded for ever if it is `lasting`: computed from what requires a gradient.
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
    """Return an operand's edge if it is recorded from `start` on, and whether what the operation gives is lasting.

    Args:
        edge: the operand's.
        start: recordings older than this are followed by nobody.
        lasting: what another operand says.
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
    """Return the user's place, and the one that the next call is compared with: comparing is all that most calls pay.

    Args:
        frame: the caller's.
        usual: what this returned before, or ``(None, 0)``.
    """
    if frame.f_code is usual[0] and not OPEN_SCOPES:
        where = usual if frame.f_lasti == usual[1] else (usual[0], frame.f_lasti)
    else:
        where = user_place_from(frame)
        if where is not None and where[0] is frame.f_code and len(where) == 2:
            usual = where
    return where, usual
