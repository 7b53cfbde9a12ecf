"""`Fit`: decides which calls a trace can serve.

What a compiled call checks, in this order; `function.py` does it, in `CompiledFunction._matching` and `_fitting`:

1. The key by which traces are found. `guards.signature.flatten_arguments` makes the arguments' part: their structure,
   dtypes, shapes and values, and the types of dict keys. `function._context_key` adds what is set around the call:
   the device, autocast, checks, the precision of products, and what observes modules.
2. `Fit.changes`: open sizes and the comparisons that were made with them, the order of dicts, which arguments are
   one Variable, gradients that are there or not, where Variables lie, autocast and `hf.no_grad`.
3. `Fit.holding`: the guards on what the function read from Python elsewhere (`guards.guards`), and what its code
   asked about the numbers that are inputs (`guards.numbers`).

If none of the key's traces passes, the function is traced. While all traces have one key, `short_call` generates a call
that checks the same in fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hybridflow.core.autocast import autocast_name
from hybridflow.core.context import current
from hybridflow.core.mesh import Placement
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import LARGEST_SIZE
from hybridflow.core.variable import GradientCell, Variable
from hybridflow.guards.dynamic import sizes_of
from hybridflow.guards.identities import order_at
from hybridflow.guards.leaves import TracedLeaves
from hybridflow.guards.numbers import Conditions, Numbers
from hybridflow.guards.signature import VARIABLE, Signature, argument_variables, numbers_of
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.graph import Graph
from hybridflow.ir.variables import VariableState
from hybridflow.tracing.layouts import placement_changes


class Fit:
    """What a trace relies on besides its signature: reads from outside, Variables, sizes, and gradients.

    Args:
        graph: the graph as it was traced.
        builder: the builder that traced it.
        leaves: how the trace relates to `.backward()`.
        size_names: the name of each open size, by leaf and axis.
        orders: the orders of dicts among the arguments that were read.
    """

    numbers: Numbers | None
    """What computes the graph's inputs that are Python numbers; None if there are none."""

    def __init__(
        self,
        graph: Graph,
        builder: GraphBuilder,
        leaves: TracedLeaves,
        size_names: dict[tuple[int, int], str],
        orders: dict[tuple[Any, ...], list[Any]],
    ) -> None:
        self.captures: tuple[Tensor, ...] = tuple([tensor for tensor, _ in builder.captures.values()])
        self.states: tuple[VariableState, ...] = tuple(builder.variables.values())
        self.captured: tuple[Variable | None, ...] = tuple([state.captured for state in self.states])
        self.guards = builder.observations.guards(self.captures, [one for one in self.captured if one is not None])
        asked = [*builder.relied_on.values()]
        self.conditions = Conditions(asked, builder.number_paths) if asked else None
        self.identities = builder.observations.identities
        self.takes_variables = any(state.slot is not None for state in self.states)
        self.gradients: tuple[int, ...] = tuple([i for i, state in enumerate(self.states) if state.of_gradient])
        self.grad_mode = leaves.grad_mode
        self._tapes_around = builder.tapes_around if leaves.grad_mode is False else None
        self.autocast = autocast_name()
        self._size_names = size_names
        self.orders = orders
        self._number_sizes = {
            position: str(node.spec().shape[0])
            for position, (_, node) in enumerate(builder.numbers.values())
            if node.spec().shape
        }
        self.symbolic = bool(size_names or self._number_sizes)
        self._sizes = graph.dims
        self._taken: dict[tuple[int, ...], int] = {}
        self._placements: list[Placement | None] | None = None
        asks = bool(self.gradients) or self.grad_mode is not None
        self.guarded = self.takes_variables or self.symbolic or asks or bool(orders) or self.identities is not None

    def expect_placements(self, placements: list[Placement | None]) -> None:
        """Serve only calls whose Variables lie as they did when the trace was made."""
        self._placements = placements
        self.guarded = True

    def holding(self, signature: Signature) -> tuple[float, ...] | None:
        """Return the current numbers from outside the arguments that are inputs.

        Captured tensors are updated.

        Returns:
            The numbers; None if a guard fails, or if the numbers of the call do not fit the trace.
        """
        outside = self._holding_outside()
        if outside is None or (self.numbers is None and self.conditions is None):
            return outside
        numbers = numbers_of(signature._replace(outside=outside))
        if self.conditions is not None and not self.conditions.hold(numbers):
            return None
        try:
            arrays = self.numbers(numbers) if self.numbers is not None else []
        except Exception:  # Python raises the error, where it handles it: the call is traced with its numbers by value
            return None
        return outside if not self._number_sizes or self._takes(self._sizes_of(signature, arrays)) else None

    def sizes(self, signature: Signature) -> dict[str, int]:
        """Return the open sizes of a call."""
        arrays = self.numbers(numbers_of(signature)) if self.numbers is not None and self._number_sizes else []
        return self._sizes_of(signature, arrays)

    def _sizes_of(self, signature: Signature, arrays: Sequence[Any]) -> dict[str, int]:
        """Return the open sizes of a call, given the graph's inputs that are computed from numbers."""
        sizes = sizes_of(signature, self._size_names)
        sizes.update({name: len(arrays[position]) for position, name in self._number_sizes.items()})
        return sizes

    def _holding_outside(self) -> tuple[float, ...] | None:
        if self.guards is None:
            return ()
        answer = self.guards.hold()
        if not answer:
            changes, captures = self.guards.changes(self.captures)
            if changes:
                return None
            self.captures = captures
            return self.guards.numbers()
        return () if answer is True else answer

    def guard_changes(self, signature: Signature) -> list[tuple[str, str, str]]:
        """Return ``(what, before, after)`` for all that the trace read or asked outside and that has changed."""
        changed = [] if self.guards is None else self.guards.changes(self.captures)[0]
        if changed or (self.conditions is None and not self._number_sizes):
            return changed
        signature = signature._replace(outside=() if self.guards is None else self.guards.numbers())
        changed = [] if self.conditions is None else self.conditions.changes(numbers_of(signature))
        if changed or not self._number_sizes:
            return changed
        try:
            return self._size_changes(self.sizes(signature))
        except Exception:
            return [("sizes", f"open, 2 to {LARGEST_SIZE}", "another number")]

    def fits(self, signature: Signature) -> bool:
        """Whether the trace can serve a call with its key: see `changes`."""
        return not self.changes(signature)

    def _takes(self, sizes: dict[str, int]) -> bool:
        """Whether every guard on sizes holds; results for earlier sizes are cached."""
        guards = self._sizes.guards
        key = tuple(sizes.values())
        if self._taken.get(key) == len(guards):
            return True
        holds = self._sizes.holds(sizes)
        if holds:
            if len(self._taken) >= _REMEMBERED:
                self._taken.clear()
            self._taken[key] = len(guards)
        return holds

    def _size_changes(self, sizes: dict[str, int]) -> list[tuple[str, str, str]]:
        """Return ``(argument, before, after)`` for each comparison of sizes whose result is not that of the trace."""
        if self._takes(sizes):
            return []
        failed = [guard for guard in self._sizes.guards if not guard.holds(sizes)]
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return [("sizes", str(guard), f"{not guard.answer} for {shown}") for guard in failed]

    def changes(self, signature: Signature) -> list[tuple[str, str, str]]:
        """Return ``(what, before, after)`` for each difference between a call and the traced one.

        A Variable among the arguments must be the same as one that the function reaches by itself if and only if it
        was when the trace was made. The trace's questions about open sizes and gradients must have the same answers.
        """
        changes: list[tuple[str, str, str]] = []
        if self.symbolic and not self._number_sizes:
            changes += self._size_changes(self.sizes(signature))
        for way, order in self.orders.items():
            now = order_at(signature.arguments, way)
            if now != order:
                changes.append((f"the order of {'.'.join(map(str, way))}", str(order), str(now)))
        if self.takes_variables:
            changes += self._alias_changes(signature)
        if self.identities is not None:
            changes += self.identities.changes(signature.arguments)
        if self.gradients:
            variables = self.variables(signature)
            for index in self.gradients:
                cell = cast(GradientCell, variables[index])
                if not self.states[index].holds(cell):
                    changes.append((cell.name, "as it was", "with a gradient" if cell.present else "None"))
        if self._placements is not None:
            changes += placement_changes(self._placements, self.variables(signature))
        if self.autocast != autocast_name():
            changes.append(("hf.autocast", self.autocast, autocast_name()))
        if self.grad_mode is not None and self.grad_mode is not current().grad:
            changes.append(("hf.no_grad", str(not self.grad_mode), str(self.grad_mode)))
        if self._tapes_around is not None and self._tapes_around is not bool(current().tapes):
            changes.append(("a tape around", str(self._tapes_around), str(not self._tapes_around)))
        return changes

    def _alias_changes(self, signature: Signature) -> list[tuple[str, str, str]]:
        """Return the arguments that are, only now or no longer, Variables which the function also reaches by itself."""
        arguments = {leaf.key[1]: leaf for leaf in signature.leaves if leaf.kind == VARIABLE}
        captured = {id(variable): variable for variable in self.captured if variable is not None}
        changes: list[tuple[str, str, str]] = []
        for state in self.states:
            if state.slot is None:
                continue
            argument = arguments[state.slot]
            now = captured.get(id(_of_slot(argument.value, state)))
            if now is not state.captured:
                changes.append((argument.path, _reached(state.captured), _reached(now)))
        return changes

    def variables(self, signature: Signature) -> tuple[Variable, ...]:
        """Return the Variables that a call reads or assigns, in the order of the graph's inputs."""
        if not self.takes_variables:
            return cast("tuple[Variable, ...]", self.captured)
        arguments = argument_variables(signature)
        return tuple(
            [
                state.captured if state.captured is not None else _of_slot(arguments[cast(int, state.slot)], state)
                for state in self.states
            ]
        )


def _of_slot(variable: Variable, state: VariableState) -> Variable:
    """Return the Variable (or gradient cell) of a state, given the Variable among the arguments."""
    return cast(Any, variable._notes).cell if state.of_gradient else variable


def _reached(variable: Variable | None) -> str:
    if variable is None:
        return "a Variable that the function gets only here"
    return f"Variable {variable.name!r}, which the function reaches by itself too"


_REMEMBERED = 256
"""The largest number of combinations of sizes for which a trace remembers that its guards hold."""
