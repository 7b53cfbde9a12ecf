"""`hf.vmap`: a function of one example as a function of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
import numpy as np

from hybridflow.autodiff.vectorize import InnerBuilder, canonical, dependent, run_mapped, trace_inner
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    ShapeError,
    TraceError,
    structure_text,
)
from hybridflow.core.functions import as_traced
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, format_where, user_place
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor
from hybridflow.core.traced_number import SeenNumbers
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import Check, GraphBuilder, Scope
from hybridflow.ops import discrete_draws, draws
from hybridflow.ops.creation import zeros
from hybridflow.ops.generator import RandomState
from hybridflow.ops.joining import concat
from hybridflow.ops.reductions import all as reduce_all
from hybridflow.ops.shape import permute_dims

P = ParamSpec("P")
R = TypeVar("R")

Axes = Any
"""None, an integer, or a structure of them that is a prefix of the structure of the arguments (or the result)."""


@with_foreign_keywords
def vmap(fn: Callable[P, R], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[P, R]:
    """Return a function that applies `fn` to every slice of its arguments along an axis.

    `fn` is written for one example; all examples are computed by one vectorized program. In eager code, each call runs
    `fn` once, with tensors that represent every slice; the resulting program is compiled once for the same operations
    and shapes. A number of Python that has another value in a later call is an input from then on. As in `hf.compile`,
    branches and loops on values of these tensors, and prints of them, happen for each slice. Every slice draws its own
    random numbers. Outer tensors and Variables that `fn` reads are the same for all slices, and gradients flow to them.
    If `fn` prints or calls back to Python, the slices run one after the other.

    Args:
        fn: a function of tensors.
        in_axes: the axis along which every positional argument is sliced: an integer for all of them, or a tuple with
            one entry per argument. An entry is an integer, None (every slice gets the whole argument), or a structure
            of those that matches the argument's. Keyword arguments are sliced along axis 0.
        out_axes: the axis along which results are stacked: an integer, or a structure of integers and None (the
            result is the same for all slices, and is returned once).

    Returns:
        A function of the batched arguments that returns the stacked results.

    Raises:
        ShapeError: if the sizes of sliced axes differ.
        AxisError: if a tensor does not have an axis.
        ArgumentError: if the axes do not match the arguments or the result, or there is nothing to slice.
        ArgumentTypeError: if an axis is not an integer, or a value to slice or stack is not a tensor.
        TraceError: if `fn` assigns or creates a Variable.

    Example:
        >>> import hybridflow as hf
        >>> per_row = hf.vmap(lambda x, w: hf.sum(x * w), in_axes=(0, None))
        >>> per_row(hf.asarray([[1.0, 2.0], [3.0, 4.0]]), hf.asarray([10.0, 1.0]))
        Tensor([12., 34.], dtype=float32)
    """
    if not callable(cast(Any, fn)):
        several = isinstance(cast(Any, fn), list | tuple) and all(map(callable, cast("Sequence[Any]", fn)))
        stack = "Of several models make one: models = hf.nn.stack([...]), then hf.vmap(lambda model: model(x))(models)."
        raise ArgumentTypeError(f"vmap: a {type(fn).__name__} is no function", got=repr(fn)[:80],
                                hint=stack if several else "Give a function of one example.")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        batch = _Batch(args, kwargs, in_axes)
        builder = _SliceBuilder(getattr(fn, "__name__", "function"), batch.size)
        structure: dict[str, Any] = {}

        def run(*slices: Tensor) -> list[Tensor]:
            own_args, own_kwargs = batch.arguments(slices)
            leaves, structure["tree"] = structures.flatten(as_traced(fn)(*own_args, **own_kwargs))
            structure["count"] = len(leaves)
            return [_output(leaf) for leaf in leaves]

        specs = [make_spec(tensor.shape[1:], tensor.dtype) for tensor in batch.tensors]
        graph, captures, checks, _ = trace_inner(builder, run, specs, batch.names)
        if builder.outer is None:
            graph = canonical(graph)
        which = (*[True] * len(specs), *builder.captured_slices())
        outputs = run_mapped(graph, [*batch.tensors, *captures], which, batch.size) if graph.outputs else ()
        count = structure["count"]
        keep_checks("vmap", checks, outputs[count:])
        axes = _axes_of(out_axes, structure["tree"], outputs[:count], "out_axes", "the result")
        results = [
            _placed(output, axis, varies, index)
            for index, (output, axis, varies) in enumerate(
                zip(outputs[:count], axes, dependent(graph, which)[:count], strict=True)
            )
        ]
        return structures.unflatten(structure["tree"], results)

    return mapped


class _Batch:
    """The arguments of one call: tensors with the sliced axis first, and the other values unchanged.

    Attributes:
        tensors: the tensors to slice.
        names: the path of each among the arguments, for messages.
        size: the size of the batch.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Axes) -> None:
        if isinstance(in_axes, tuple) and len(cast("tuple[Any, ...]", in_axes)) != len(args):
            raise ArgumentError(
                f"vmap: in_axes has {len(cast('tuple[Any, ...]', in_axes))} entries, the call has {len(args)} "
                "positional arguments", got=f"in_axes={in_axes}", hint="Give one axis or None per argument."
            )
        with_paths, self._tree = structures.with_paths((args, kwargs))
        self._leaves: list[Any] = [leaf for _, leaf in with_paths]
        args_tree = structures.structure(args)
        axes = _axes_of(in_axes, args_tree, self._leaves[: args_tree.num_leaves], "in_axes", "the arguments")
        axes += [0] * (len(self._leaves) - len(axes))
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self._positions: list[int] = []
        for index, ((path, leaf), axis) in enumerate(zip(with_paths, axes, strict=True)):
            if axis is None:
                continue
            name = "argument" + jax.tree_util.keystr(path[1:])
            self.tensors.append(_axis_first(leaf, axis, name))
            self.names.append(name)
            self._positions.append(index)
        if not self.tensors:
            raise ArgumentError("vmap: there is nothing to slice", got=f"in_axes={in_axes}",
                                hint="Give at least one tensor an axis.")
        self.size = self.tensors[0].shape[0]
        for name, tensor, position in zip(self.names, self.tensors, self._positions, strict=True):
            if tensor.shape[0] != self.size:
                raise ShapeError(f"vmap: {self.names[0]} has size {self.size} along axis {axes[self._positions[0]]}, "
                                 f"{name} has size {tensor.shape[0]} along axis {axes[position]}",
                                 hint="Give both the same size, or in_axes=None to what every slice gets whole.")

    def arguments(self, slices: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for one slice."""
        leaves = list(self._leaves)
        for position, one in zip(self._positions, slices, strict=True):
            leaves[position] = one
        return structures.unflatten(self._tree, leaves)


def _axes_of(prefix: Axes, tree: Any, leaves: Sequence[Any], what: str, of: str) -> list[int | None]:
    """Return the axis of every leaf of a structure; the structure of `prefix` is a prefix of it."""
    given, given_tree = structures.flatten(prefix, is_leaf=lambda x: x is None)
    for axis in given:
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
            raise ArgumentTypeError(f"vmap: {what} has a {type(axis).__name__}, which is no axis",
                                    got=f"{what}={prefix!r}", hint="Use integers and None.")
    numbered = structures.opened(structures.unflatten(tree, range(len(leaves))))
    try:
        parts = given_tree.flatten_up_to(numbered)
    except ValueError:
        raise ArgumentError(f"vmap: {what} has structure {structure_text(given_tree)}, {of} {structure_text(tree)}",
                            got=f"{what}={prefix!r}", hint=f"Give an axis or None for each part of {of}.") from None
    result: list[int | None] = [None] * len(leaves)
    for axis, part in zip(given, parts, strict=True):
        for index in structures.leaves(part):
            result[index] = axis
    return result


def _axis_first(leaf: Any, axis: int, name: str) -> Tensor:
    """Return an argument's leaf as a tensor with the axis to slice first."""
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        raise ArgumentTypeError(f"vmap: {name} is the {type(leaf).__name__} {leaf!r}, which cannot be sliced",
                                hint="Give it in_axes=None, or pass a tensor.")
    tensor = as_tensor(leaf)
    if not -tensor.ndim <= axis < tensor.ndim:
        raise AxisError(f"vmap: {name} has shape {tensor.shape}, which has no axis {axis}", got=str(tensor.spec),
                        hint="Name an axis that it has, or give it in_axes=None.")
    axis %= tensor.ndim
    return tensor if axis == 0 else permute_dims(tensor, (axis, *[i for i in range(tensor.ndim) if i != axis]))


def _output(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor | Variable | bool | int | float | complex | np.ndarray | np.generic | jax.Array):
        return as_tensor(leaf)
    raise ArgumentTypeError(f"vmap: the function returned a {type(leaf).__name__}, which is no tensor",
                            got=repr(leaf)[:80], hint="Return tensors, numbers, None and structures of them.")


def _placed(output: Tensor, axis: int | None, varies: bool, index: int) -> Tensor:
    """Return a result with the axis of the slices moved to its place."""
    if axis is None:
        if varies:
            raise ArgumentError(f"vmap: result {index} has out_axes=None, but it differs from slice to slice",
                                got=str(output.spec), hint="Give it an axis, or reduce it after vmap.")
        return cast(Any, output)[0]
    if not -output.ndim <= axis < output.ndim:
        raise AxisError(
            f"vmap: result {index} has shape {output.shape} with its slices stacked, which has no axis {axis}",
            got=f"out_axes={axis} for {output.spec}", hint="Name an axis that it has."
        )
    axis %= output.ndim
    return output if axis == 0 else permute_dims(output, (*range(1, axis + 1), 0, *range(axis + 1, output.ndim)))


def keep_checks(name: str, checks: Sequence[Check], flags: Sequence[Tensor]) -> None:
    """Add checks (of all slices) to the outer trace; in eager code, raise the error of the first that fails."""
    tracer = current().tracer
    for check, flag in zip(checks, flags, strict=True):
        ok = reduce_all(flag)
        if isinstance(tracer, GraphBuilder):
            tracer.add_check(check._replace(ok=ok))
        elif not bool(ok):
            raise check.failure(name)


_SEEN = SeenNumbers()


class _Numbers:
    """The numbers of one eager call: a line of the user's code meets them in the same order in each call."""

    def __init__(self) -> None:
        self._met: dict[Any, int] = {}

    def tensor(self, array: np.ndarray[Any, Any], where: Any) -> Tensor | None:
        """Return a number as a tensor if it has changed since an earlier call, else None."""
        self._met[where] = count = self._met.get(where, 0) + 1
        changed = _SEEN.has_changed((where, count), (array.dtype.num, array.tobytes()))
        return make_tensor(array) if changed else None


class _SliceScope(Scope):
    """The scope of a function that runs on slices."""

    __slots__ = ()

    when = "under hf.vmap, which computes all slices at once"
    where = "the function under hf.vmap"
    leaked = "a traced tensor leaked out of the function under hf.vmap"


class _SliceBuilder(InnerBuilder):
    """The tracer of a function of one slice."""

    what = "vmap"

    def __init__(self, name: str, size: Any) -> None:
        super().__init__(name)
        self.scope = _SliceScope(name, self.scope.parent)
        self._size = size
        self._slices: set[Any] = set()
        if self.outer is None:
            self.changing = _Numbers()

    def captured_slices(self) -> list[bool]:
        """Return which captured tensors are sliced; these are the random states."""
        return [key in self._slices for key in self.captures]

    def held_value(self, variable: Variable) -> Edge:
        """Return a Variable's captured value; for a random state, one state per slice."""
        if not isinstance(variable, RandomState):
            return super().held_value(variable)
        states = self.around(lambda: _split_state(variable, self._size))
        key = ("state", variable._leaf)
        self._slices.add(key)
        return self.capture_as(key, states, make_spec(states.shape[1:], states.dtype))

    def assign_variable(self, variable: Variable, value: Tensor) -> None:
        """Advance a slice's random state; raise for any other Variable."""
        if isinstance(variable, RandomState):
            self._state(variable).edge = self.edge_of(value)
        else:
            super().assign_variable(variable, value)

    def new_variable(self, name: str) -> None:
        """Raise an error: every slice would create its own Variable."""
        raise TraceError(f"Variable {name!r}: created under vmap, in {self.name!r} at {format_where(user_place(2))}",
                         hint="Create it once, outside the function.")


def _split_state(variable: Variable, size: Any) -> Tensor:
    """Return a random state for every slice, drawn from a generator's state, which is advanced."""
    state = variable.read()
    keys = discrete_draws.random_integers(state, 0, 2**32, (size, 2), np.dtype(np.uint32))
    variable.assign(draws.random_advance(state))
    return concat([keys, zeros((size, 2), dtype=np.dtype(np.uint32))], axis=1)
