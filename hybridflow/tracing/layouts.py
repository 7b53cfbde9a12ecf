"""The layouts of a compiled function: those of its arguments and results, and of the Variables it reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, LayoutError
from hybridflow.core.mesh import (
    Axis,
    Layout,
    Mesh,
    Placement,
    check_axes,
    check_fits,
    check_rank,
    checked_layout,
    is_layout,
    names_of,
    on_one_device,
    placed,
)
from hybridflow.core.variable import WRITES, Variable
from hybridflow.core.variable_log import OPEN_LOGS
from hybridflow.guards.arguments import Parameters
from hybridflow.guards.signature import TENSOR, Leaf
from hybridflow.ir.graph import Graph
from hybridflow.xla.placing import MeshCall, Placing

if TYPE_CHECKING:
    from hybridflow.xla.executable import Executable


class Layouts(NamedTuple):
    """The layouts that `hf.compile` was given.

    Attributes:
        mesh: the mesh.
        batch: the mesh axis (or axes) over which axis 0 of tensor arguments is split.
        inputs: layouts by parameter.
        outputs: the layout of the results; None leaves them to XLA.
    """

    mesh: Mesh
    batch: Axis
    inputs: Mapping[str, Any]
    outputs: Any

    @classmethod
    def of(cls, options: Mapping[str, Any], parameters: Parameters, name: str) -> Layouts | None:
        """Return the layouts among the options of `hf.compile`; None if there is no mesh.

        Raises:
            LayoutError: an axis is unknown, a layout is none, or there is one but no mesh.
            ArgumentTypeError: `mesh` or `in_layouts` has the wrong type.
            ArgumentError: `in_layouts` names no parameter, or `memory_budget` is given too.
        """
        mesh, batch, inputs, outputs = [options[key] for key in ("mesh", "batch", "in_layouts", "out_layouts")]
        if mesh is None:
            if batch is None and inputs is None and outputs is None:
                return None
            raise LayoutError(f"compile: {name} is given layouts but no mesh",
                              got=f"batch={batch!r}, in_layouts={inputs!r}", hint='Pass mesh=hf.Mesh({"data": 8}) too.')
        if not isinstance(mesh, Mesh):
            raise ArgumentTypeError("compile: mesh is no hf.Mesh", got=repr(mesh)[:80],
                                    hint='Write hf.Mesh({"data": 8}).')
        if options["memory_budget"] is not None:
            budget = options["memory_budget"]
            raise ArgumentError(f"compile: {name} has a memory_budget and a mesh", got=f"memory_budget={budget!r}",
                                hint="Budgets are for one device; use hf.checkpoint under a mesh.")
        batch = tuple(batch) if isinstance(batch, list) else batch
        check_axes(checked_layout((batch,), "compile: batch"), mesh, "compile: batch")
        if inputs is not None and not isinstance(inputs, Mapping):
            raise ArgumentTypeError("compile: in_layouts is a mapping of parameter names to layouts",
                                    got=repr(inputs)[:80], hint='Write {"x": ("data", None)}.')
        entries = {key: parameters.entry(key) for key in inputs or ()}
        unknown = [key for key, entry in entries.items() if entry is None]
        if unknown:
            raise ArgumentError(f"compile: in_layouts {sorted(unknown)} are no parameters of {name}",
                                got=f"{name}{parameters.text}", hint="Name parameters of the function.")
        made = cls(mesh, batch, {entries[key] or key: layout for key, layout in (inputs or {}).items()}, outputs)
        made._check()
        return made

    def _check(self) -> None:
        for what, given in (*[(f"in_layouts[{key!r}]", one) for key, one in self.inputs.items()],
                            ("out_layouts", self.outputs)):
            for layout in jax.tree_util.tree_leaves(given, is_leaf=is_layout):
                check_axes(checked_layout(layout, f"compile: {what}"), self.mesh, f"compile: {what}")

    def placing(
        self, graph: Graph, named: Sequence[Leaf], others: int, variables: Sequence[Variable], assigned: Sequence[int],
        tree: Any,
    ) -> Placing:
        """Return how the inputs and outputs of a graph lie.

        Args:
            graph: the graph: its inputs are tensor arguments, `others`, and Variables; its outputs are results,
                assigned Variables, and the checks.
            named: the leaves of the arguments.
            others: the number of inputs that every device has whole.
            variables: the Variables.
            assigned: the positions of those that are assigned.
            tree: the structure of the results.

        Raises:
            LayoutError: a layout does not suit an argument, a result or a Variable.
        """
        tensors = [leaf for leaf in named if leaf.kind == TENSOR]
        inputs, batch = self._of_arguments(tensors)
        of_variables = [self._of_variable(one) for one in variables]
        results = self._of_results(graph, tree)
        checks = len(graph.outputs) - len(results) - len(assigned)
        return Placing(
            self.mesh,
            (*inputs, *[None] * others, *of_variables),
            (*results, *[of_variables[index] or () for index in assigned], *[()] * checks),
            batch,
            (*[f"argument {leaf.path!r}" for leaf in tensors], *[""] * others,
             *[f"Variable {one.name!r}" for one in variables]),
        )

    def _of_arguments(self, tensors: Sequence[Leaf]) -> tuple[list[Layout | None], frozenset[int]]:
        given: dict[str, Layout] = {}
        for name, layouts in self.inputs.items():
            if is_layout(layouts):
                inside = name, f"{name}[", f"{name}."
                paths = [leaf.path for leaf in tensors if leaf.path == name or leaf.path.startswith(inside[1:])]
                given.update(dict.fromkeys(paths, checked_layout(layouts, name)))
                continue
            for path, layout in jax.tree_util.tree_flatten_with_path(layouts, is_leaf=is_layout)[0]:
                given[name + jax.tree_util.keystr(path)] = checked_layout(layout, name)
        there = {leaf.path for leaf in tensors}
        for path in given.keys() - there:
            raise LayoutError(f"compile: in_layouts has a layout for {path!r}, and no tensor is there",
                              got=f"tensors: {', '.join(sorted(there))}",
                              hint="Give layouts to arguments that are tensors.")
        inputs: list[Layout | None] = []
        batch: set[int] = set()
        for index, leaf in enumerate(tensors):
            shape = leaf.value.shape
            layout = given.get(leaf.path)
            if layout is not None:
                check_rank(layout, shape, f"argument {leaf.path!r}")
            elif self.batch is not None and shape:
                layout = (self.batch, *[None] * (len(shape) - 1))
                batch.add(index)
            inputs.append(layout)
        if self.batch is not None and tensors and not batch and not given:
            raise LayoutError(f"compile: batch={self.batch!r}, and no argument has an axis to split",
                              got=", ".join([f"{leaf.path}: {leaf.describe()}" for leaf in tensors]),
                              hint="Pass tensors with a batch axis 0, or leave batch out.")
        return inputs, frozenset(batch)

    def row_axes(self, named: Sequence[Leaf]) -> dict[int, tuple[str, ...]]:
        """Return the mesh axes over which axis 0 of the tensor arguments is split, by its size."""
        tensors = [leaf for leaf in named if leaf.kind == TENSOR]
        found: dict[int, tuple[str, ...]] = {}
        for leaf, layout in zip(tensors, self._of_arguments(tensors)[0], strict=True):
            if layout:
                found.setdefault(leaf.value.shape[0], names_of(layout[0]))
        return found

    def _of_variable(self, variable: Variable) -> Layout | None:
        placement = variable.placement
        if placement is None:
            return None
        return placement.on(self.mesh, variable.shape, variable.name).layout

    def _of_results(self, graph: Graph, tree: Any) -> list[Layout | None]:
        count = tree.num_leaves
        if self.outputs is None:
            return [None] * count
        if is_layout(self.outputs):
            layouts: list[Any] = [self.outputs] * count
        else:
            layouts, given = jax.tree_util.tree_flatten(self.outputs, is_leaf=lambda x: x is None or is_layout(x))
            if given != tree:
                raise LayoutError("compile: out_layouts has another structure than the results",
                                  got=f"{given} for results {tree}", hint="Give a layout (or None) for each tensor.")
        made: list[Layout | None] = []
        for index, (layout, spec) in enumerate(zip(layouts, graph.output_specs, strict=False)):
            if layout is not None:
                layout = checked_layout(layout, f"result {index}")
                check_rank(layout, spec.shape, f"result {index}")
                if all([isinstance(size, int) for size in spec.shape]):
                    check_fits(layout, spec.shape, self.mesh, f"result {index}")
            made.append(layout)
        return made


def check_inside(layouts: Layouts | None, tracer: Any, name: str) -> None:
    """Raise if a function for a mesh is called while another one, for another mesh or none, is traced."""
    if layouts is None or tracer is None:
        return
    around = getattr(tracer, "mesh", None)
    if around is None or not around.stands_for(layouts.mesh):
        raise LayoutError(f"{name}: it is compiled for {layouts.mesh}, and the function that calls it for "
                          f"{around or 'one device'}",
                          hint="Compile the outer function with the same mesh; its layouts hold for the whole.")


def placement_changes(
    before: Sequence[Placement | None], variables: Sequence[Variable]
) -> list[tuple[str, str, str]]:
    """Return ``(name, before, after)`` for each Variable that no longer lies where it lay."""
    return [
        (f"the layout of {one.name}", str(old or "none"), str(one.placement or "none"))
        for old, one in zip(before, variables, strict=True)
        if one.placement is not old and one.placement != old
    ]


def keep_on_mesh(executable: Executable, variables: Sequence[Variable], values: list[Any], first: int) -> None:
    """Move the values of Variables to where a program expects them, for good.

    Args:
        executable: the program.
        variables: the Variables.
        values: their values; changed in place.
        first: the position of the first of them among the program's inputs.
    """
    call = executable.run
    if not isinstance(call, MeshCall) or OPEN_LOGS.count:
        return
    for index, (variable, value) in enumerate(zip(variables, values, strict=True)):
        sharding = call.shardings[first + index]
        if getattr(value, "sharding", None) != sharding:
            values[index] = placed(value, sharding)
            with WRITES:
                if cast(Any, variable)._value is value:
                    cast(Any, variable)._value = values[index]


def call_with_several(
    executable: Executable, arrays: list[Any], values: list[Any], variables: Sequence[Variable]
) -> Any:
    """Run a program that assigns no Variables, where values may lie on several devices.

    Args:
        executable: the program.
        arrays: its first inputs.
        values: the values of the Variables, which follow.
        variables: the Variables.
    """
    if isinstance(executable.run, MeshCall):
        keep_on_mesh(executable, variables, values, len(arrays))
        return executable.call(*arrays, *values)
    return executable.call(*gathered(arrays), *gathered(values))


def gathered(values: Sequence[Any]) -> list[Any]:
    """Return raw values for a program on one device: those that lie on several are gathered."""
    return [value if type(value) is np.ndarray else on_one_device(value) for value in values]
