"""Policies: which results a checkpointed function keeps for its backward pass."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.node import Node
from hybridflow.core.op import MultiplyAdds, No, Op, register
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, as_tensor

Policy = str | tuple[str, ...]
"""A policy as an attribute: its name, or the names that it keeps or excludes (``("names", *names)``,
``("but", *names)``)."""


def _same(x: Any, **_: Any) -> Any:
    return x


NAMED = register(
    Op(
        "checkpoint_name",
        _same,
        _same,
        _same,
        lambda F, g, y, x, *, name: (g,),  # pyright: ignore[reportUnknownLambdaType]
        samples=No("made by hf.checkpoint_name; tested with it"),
        traits=frozenset({"identity", "layout", "named"}),
        onnx=lambda o, x, *, name: x,  # pyright: ignore[reportUnknownLambdaType]
    )
)


def checkpoint_name(x: Any, name: str) -> Tensor:
    """Give a value a name by which the policy of `hf.checkpoint` can keep it.

    Args:
        x: a tensor.
        name: the name.

    Returns:
        The same value.

    Raises:
        ArgumentTypeError: if the name is not a string.

    Example:
        >>> import hybridflow as hf
        >>> @hf.checkpoint(policy=hf.save_only_names("hidden"))
        ... def layer(x, w):
        ...     return hf.tanh(hf.checkpoint_name(x @ w, "hidden"))
        >>> layer(hf.ones((2, 2)), hf.ones((2, 2))).shape
        (2, 2)
    """
    if not isinstance(cast(object, name), str):
        raise ArgumentTypeError(f"checkpoint_name: a {type(name).__name__} is no name", hint="Use a string.")
    return bind(NAMED, (as_tensor(x),), {"name": name})


def save_only_names(*names: str) -> Policy:
    """Return the policy of `hf.checkpoint` that keeps the values with these names and recomputes all others.

    Args:
        *names: names given by `hf.checkpoint_name`.
    """
    return ("names", *_checked(names))


def save_any_except(*names: str) -> Policy:
    """Return the policy of `hf.checkpoint` that keeps all values the backward pass reads except those with these names.

    The results of casts, transpositions and the like are not kept either, since they are cheap to compute again.

    Args:
        *names: names given by `hf.checkpoint_name`.
    """
    return ("but", *_checked(names))


def _checked(names: Iterable[Any]) -> Iterable[str]:
    for name in names:
        if not isinstance(cast(object, name), str):
            raise ArgumentTypeError(f"policy: a {type(name).__name__} is no name", hint="Use strings.")
        yield name


def _contracts(op: Op, outputs: Sequence[TensorSpec], inputs: Sequence[TensorSpec], attrs: dict[str, Any]) -> bool:
    """Whether an op sums products, as a matrix product, a convolution or attention does."""
    del outputs, inputs, attrs
    return isinstance(op.flops, MultiplyAdds)


def _contracts_alone(
    op: Op, outputs: Sequence[TensorSpec], inputs: Sequence[TensorSpec], attrs: dict[str, Any]
) -> bool:
    """Whether an op sums products of two inputs that have no batch axis, one shared by both inputs and the result.

    Without a batch axis, the inputs and the result have ``m k``, ``k n`` and ``m n`` elements. Multiplied, that is the
    square of ``m k n``, the number of products. A batch axis of size b multiplies the left side by b**3 but the square
    by only b**2.
    """
    if not isinstance(op.flops, MultiplyAdds) or len(inputs) != 2:
        return False
    products = op.flops.macs(outputs[0], *inputs, **attrs)
    return inputs[0].size * inputs[1].size * outputs[0].size <= products * products


_BY_NAME: dict[str, Callable[[Op, Sequence[TensorSpec], Sequence[TensorSpec], dict[str, Any]], bool]] = {
    "nothing": lambda op, outputs, inputs, attrs: False,
    "everything": lambda op, outputs, inputs, attrs: True,
    "dots": _contracts,
    "dots_without_batch": _contracts_alone,
}


def checked_policy(policy: Any) -> Policy:
    """Return a policy as an attribute.

    Raises:
        ArgumentError: if there is no policy of that name.
        ArgumentTypeError: if it is neither a name nor a policy of `save_only_names` or `save_any_except`.
    """
    if isinstance(policy, tuple) and policy[:1] in (("names",), ("but",)):
        return policy
    if not isinstance(policy, str):
        raise ArgumentTypeError(
            f"checkpoint: a {type(policy).__name__} is no policy", got=repr(policy)[:60],
            hint=f"Policies: {', '.join(_BY_NAME)}, hf.save_only_names(...), hf.save_any_except(...)."
        )
    if policy not in _BY_NAME:
        close = difflib.get_close_matches(policy, _BY_NAME, 2)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Policies: {', '.join(_BY_NAME)}."
        raise ArgumentError(f"checkpoint: {policy!r} is not a policy", hint=hint)
    return policy


def keeps(
    policy: Policy, op: Op, outputs: Sequence[TensorSpec], inputs: Sequence[TensorSpec], attrs: dict[str, Any]
) -> bool:
    """Whether a policy keeps the results of an operation."""
    if isinstance(policy, str):
        return _BY_NAME[policy](op, outputs, inputs, attrs)
    kind, *names = policy
    if kind == "names":
        return op.has("named") and attrs["name"] in names
    return not (op.has("named") and attrs["name"] in names) and not op.has("conversion") and not op.has("layout")


def kept_nodes(policy: Policy, nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes whose outputs a policy keeps."""
    kept = {node for node in nodes if _keeps_node(policy, node)}
    if policy[0] == "but":  # drop the producer of an excluded value too: it has the same value
        for node in nodes:
            if node.op.has("named") and node not in kept:
                kept -= {edge[0] for edge in node.inputs if edge is not None}
    return kept


def _keeps_node(policy: Policy, node: Node) -> bool:
    inputs = [edge[0].spec(edge[1]) for edge in node.inputs if edge is not None]
    attrs = {name: value for name, value in node.attrs.items() if name != "residuals"}
    return keeps(policy, node.op, node.specs, inputs, attrs)
