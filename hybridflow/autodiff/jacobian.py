"""Jacobians of a tape: one vectorized backward walk over the recording, traced once per structure and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hybridflow.autodiff.backprop import BoundEngine, backprop
from hybridflow.autodiff.vectorize import InnerBuilder, Recent, run_mapped, trace_inner
from hybridflow.autodiff.walk import Engine, connected
from hybridflow.core import structures
from hybridflow.core.attrs import attrs_key
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import REGISTRY
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.graph import Graph
from hybridflow.ops.creation import eye, full
from hybridflow.ops.shape import broadcast_to, permute_dims, reshape

LEAF = structures.structure(0)
"""The structure of a single value."""
_CHOICES = ("none", "zero")


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Flatten a pytree, keeping None as a leaf."""
    if isinstance(tree, Tensor | Variable):
        return [tree], LEAF
    return structures.flatten(tree, is_leaf=lambda x: x is None)


def require_choice(what: str, word: str) -> None:
    """Raise unless a word is a valid `unconnected_gradients`."""
    if word not in _CHOICES:
        raise ArgumentError(f"{what}: unconnected_gradients={word!r} is not one of {list(_CHOICES)}")


class Jacobians:
    """The methods of a tape that compute Jacobians."""

    def jacobian(self, target: Any, sources: Any, unconnected_gradients: str = "none") -> Any:
        """Return the derivative of every element of a target with respect to every element of each source.

        One vectorized backward walk computes all elements of a target. It is traced once for the recorded operations
        and shapes; later calls with the same ones only run it.

        Args:
            target: a tensor, or a pytree of them.
            sources: tensors and Variables in any nesting.
            unconnected_gradients: the result for a source that a target does not depend on: ``"none"`` or ``"zero"``.

        Returns:
            The sources' structure, with tensors of shape ``(*target.shape, *source.shape)`` and the source's dtype,
            or None; if the target is a pytree, one such structure for each of its tensors. For complex numbers it is
            the derivative of a holomorphic function; `gradient` returns its conjugate.

        Raises:
            TapeError: on a second call of a tape that is not persistent, or across the border of a compiled function.
            ArgumentTypeError: if a target or source is not a tensor.
            ArgumentError: if `unconnected_gradients` is another word.

        Example:
            >>> import hybridflow as hf
            >>> x = hf.Variable([1.0, 2.0])
            >>> with hf.GradientTape() as tape:
            ...     y = x * x
            >>> tape.jacobian(y, x)
            Tensor([[2., 0.],
                    [0., 4.]], dtype=float32)
        """
        return self._jacobians("jacobian", target, sources, unconnected_gradients)

    def batch_jacobian(self, target: Any, source: Any, unconnected_gradients: str = "none") -> Any:
        """Return the Jacobian of every example of a batch; examples must not depend on each other.

        Args:
            target: a tensor ``(batch, ...)``, or a pytree of them.
            source: a tensor or Variable ``(batch, ...)``, or a pytree of them.
            unconnected_gradients: the result for a source that a target does not depend on: ``"none"`` or ``"zero"``.

        Returns:
            A tensor ``(batch, *target.shape[1:], *source.shape[1:])`` per target and source, in their structures,
            or None. If examples do depend on each other, the derivatives of all examples are added up.

        Raises:
            ShapeError: if a target and a source have different leading sizes.
            TapeError, ArgumentTypeError, ArgumentError: as `jacobian` raises them.

        Example:
            >>> import hybridflow as hf
            >>> x = hf.Variable([[1.0, 2.0], [3.0, 4.0]])
            >>> with hf.GradientTape() as tape:
            ...     y = x * x
            >>> tape.batch_jacobian(y, x).shape
            (2, 2, 2)
        """
        return self._jacobians("batch_jacobian", target, source, unconnected_gradients)

    def _jacobians(self, what: str, target: Any, sources: Any, unconnected: str) -> Any:
        require_choice(what, unconnected)
        targets, leaves, tree = self._asked(what, target, sources)
        batch = what == "batch_jacobian"
        if batch:
            for tensor in targets:
                for leaf in leaves:
                    _require_same_batch(tensor, leaf)
        self._answer()
        results: list[Any] = []
        for tensor in targets:
            rows = self._rows(tensor, leaves, batch=batch)
            for index, (one, leaf) in enumerate(zip(rows, leaves, strict=True)):
                shape = (*tensor.shape, *leaf.shape[1:]) if batch else (*tensor.shape, *leaf.shape)
                if one is not None:
                    rows[index] = reshape(one, shape)
                elif unconnected == "zero":
                    rows[index] = full(shape, 0, dtype=leaf.dtype)
            results.append(structures.unflatten(tree, rows))
        structure = flatten(target)[1]
        return results[0] if structure == LEAF else structures.unflatten(structure, results)

    def _rows(self, target: Tensor, leaves: list[Any], *, batch: bool) -> list[Tensor | None]:
        """Return the sources' gradients for every element of a target (or of one example), stacked."""
        shape = target.shape[1:] if batch else target.shape
        size = 1
        for one in shape:
            size = size * one
        if size == 1:
            return self._backprop([target], [None], leaves)
        pullback = self._pullback(target, leaves)
        if pullback is None:
            return [None] * len(leaves)
        seeds = eye(size, dtype=target.dtype)
        if batch:
            seeds = broadcast_to(reshape(seeds, (size, 1, *shape)), (size, *target.shape))
        else:
            seeds = reshape(seeds, (size, *shape))
        gradients = pullback.rows(seeds, size)
        if not batch:
            return gradients
        return [one if one is None else permute_dims(one, (1, 0, *range(2, one.ndim))) for one in gradients]

    # -- what a tape provides ---------------------------------------------------------------------------------

    def _asked(self, what: str, target: Any, sources: Any) -> tuple[list[Tensor], list[Any], Any]:
        raise NotImplementedError

    def _answer(self) -> None:
        raise NotImplementedError

    def _backprop(
        self, targets: list[Tensor], seeds: list[Tensor | None], leaves: list[Any], engine: Engine | None = None
    ) -> list[Tensor | None]:
        raise NotImplementedError

    def _pullback(self, target: Tensor, leaves: list[Any]) -> Pullback | None:
        raise NotImplementedError


def _require_same_batch(target: Tensor, source: Tensor | Variable) -> None:
    if target.shape[:1] == source.shape[:1] != ():
        return
    raise ShapeError(f"batch_jacobian: the target has shape {target.shape} and the source {source.shape}, "
                     "which do not begin with one batch size", got=f"{target.spec} for {source.spec}",
                     hint="Use tape.jacobian where there is no common batch axis.")


# -- the walk as a graph ------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The position of a saved value in the recording: the node, and the slot within it."""

    node: int
    of_output: bool
    slot: int


class _Walk(NamedTuple):
    """A backward walk as a graph.

    Attributes:
        graph: the graph; its inputs are the target's gradient and the captured values.
        present: per source, whether a gradient reaches it.
        places: the positions of the captured values in a recording; None if some are not from the recording.
    """

    graph: Graph
    present: tuple[bool, ...]
    places: tuple[_Place, ...] | None


class _Saved(BoundEngine):
    """An engine that remembers the position of each saved value that it reads."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._numbers = {node: index for index, node in enumerate(nodes)}
        self._tensors: dict[_Place, Tensor] = {}
        self._places: dict[int, _Place] = {}

    def place_of(self, tensor: Tensor) -> _Place | None:
        """Return the position of a tensor's value in the recording."""
        return self._places.get(id(tensor))

    def _arguments(self, node: Node) -> list[Any]:
        arguments = super()._arguments(node)
        y = tuple([self._known(node, True, i, one) for i, one in enumerate(_several(arguments[0]))])
        xs = [self._known(node, False, i, one) for i, one in enumerate(arguments[1:])]
        return [y if isinstance(arguments[0], tuple) else y[0], *xs]

    def _known(self, node: Node, of_output: bool, index: int, value: Any) -> Any:
        if not isinstance(value, Tensor) or value._value is None:
            return value
        key = _Place(self._numbers[node], of_output, index)
        tensor = self._tensors.setdefault(key, value)
        self._places[id(tensor)] = key
        return tensor


def _several(value: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


_WALKS = Recent(128)


class Pullback:
    """The backward walk from a target to sources over the recording.

    Args:
        target: the target.
        nodes: the nodes that it depends on, in recording order.
        sources: the edges of every source.
        engine: the engine that runs the rules, if not the default one; such a walk is traced anew every time.
    """

    def __init__(
        self, target: Edge, nodes: Sequence[Node], sources: Sequence[Sequence[Edge]], engine: Engine | None = None
    ) -> None:
        self._target = target
        self._nodes = nodes
        self._sources = sources
        self._engine = engine
        self._needed = connected(nodes, {edge for edges in sources for edge in edges})
        self._walked = [node for node in nodes if self._needed.get(node)]

    def rows(self, seeds: Tensor, size: Any) -> list[Tensor | None]:
        """Return the sources' gradients for each of `size` stacked gradients of the target."""
        walk, captures = self._walk()
        mapped = (True, *[False] * len(captures))
        gradients = iter(run_mapped(walk.graph, [seeds, *captures], mapped, size) if any(walk.present) else ())
        return [next(gradients) if has else None for has in walk.present]

    def _walk(self) -> tuple[_Walk, Sequence[Tensor]]:
        cache = self._cache()
        if cache is None:
            return self._trace()
        key = self._key()
        known: _Walk | None = cache.get(key)
        if known is not None and known.places is not None:
            return known, [self._saved(position) for position in known.places]
        walk, captures = self._trace()
        if walk.places is not None:
            cache.put(key, walk)
        return walk, captures

    def _trace(self) -> tuple[_Walk, Sequence[Tensor]]:
        saved = _Saved(self._walked)
        engine = self._engine or saved
        present: list[bool] = []

        def walk(gradient: Tensor) -> list[Tensor]:
            edges = {edge for edges in self._sources for edge in edges}
            by_edge = backprop([(self._target, gradient)], edges, self._nodes, engine)
            totals: list[Tensor | None] = []
            for several in self._sources:
                total: Tensor | None = None
                for one in [by_edge[edge] for edge in several if edge in by_edge]:
                    total = one if total is None else engine.add(total, one)
                totals.append(total)
            present.extend(total is not None for total in totals)
            return [total for total in totals if total is not None]

        node, index = self._target
        traced = trace_inner(InnerBuilder("pullback"), walk, [node.spec(index)])
        positions = [saved.place_of(tensor) for tensor in traced.captures]
        known = None if None in positions else cast("tuple[_Place, ...]", tuple(positions))
        return _Walk(traced.graph, tuple(present), known), traced.captures

    def _saved(self, position: _Place) -> Tensor:
        """Return a saved value of this recording as a tensor with its edge."""
        node = self._walked[position.node]
        assert node.saved is not None
        if not position.of_output:
            return make_tensor(node.saved[position.slot + 1], node.inputs[position.slot])
        value = node.saved[0]
        return make_tensor(value[position.slot] if type(value) is tuple else value, (node, position.slot))

    def _cache(self) -> Recent | None:
        """Return the cache for this walk: that of the compiled function that it goes through, else the shared one.

        None if the walk must be traced every time: inside a trace, and with users' rules, which may read anything.
        """
        if self._engine is not None or not self._walked:
            return None
        for node in self._walked:
            if node.scope is not None or "tensor_rule" in node.op.traits:
                return None
        for node in self._walked:
            for value in node.attrs.values():
                if isinstance(value, Graph):
                    return value.executables.setdefault("pullbacks", Recent(32))
            if REGISTRY.get(node.op.name) is not node.op:
                return cast(Recent, node.op.jitted.setdefault("pullbacks", cast(Any, Recent(32))))
        return _WALKS

    def _key(self) -> Any:
        """Return what the walk's graph depends on: operations, and the spec of every value that they or it name."""
        numbers: dict[Edge | None, int] = {None: -1}
        specs: list[Any] = []

        def number(edge: Edge | None) -> int:
            known = numbers.get(edge)
            if known is None:
                known = numbers[edge] = len(numbers)
                node, index = cast(Edge, edge)
                specs.append(_array_key(node.spec(index)))
            return known

        nodes = tuple([
            (node.op, attrs_key(node.attrs), self._needed[node], _saved_key(node),
             tuple([number(edge) for edge in node.inputs]),
             tuple([number((node, i)) for i in range(len(node.outputs))]))
            for node in self._walked
        ])
        sources = tuple([tuple([number(edge) for edge in edges]) for edges in self._sources])
        return nodes, number(self._target), sources, tuple(specs)


def _saved_key(node: Node) -> Any:
    """Return a key of the shapes and dtypes of a node's saved values and of its other inputs."""
    assert node.saved is not None
    saved = tuple([tuple([_array_key(one) for one in _several(value)]) for value in node.saved])
    specs = [None if one is None else str(one[:2]) for one in node.input_specs or ()]
    return saved, tuple(specs)


def _array_key(value: Any) -> Any:
    return None if value is None else (value.shape, value.dtype.num)

