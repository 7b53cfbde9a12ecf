"""What stages of a pipeline change: the states of random generators, and Variables that one stage assigns.

A plain loop runs all stages for a micro-batch before the next one. On a mesh they run at the same time. A generator's
state after a number of draws is known beforehand, so that each stage gets the state that the loop would have there. A
Variable that only one stage uses is as in the loop too, since a stage takes its micro-batches in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.errors import TraceError
from hybridflow.core.node import Edge, Node
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import ASSIGN, REREAD, Traced, trace_with_variables
from hybridflow.ir.graph import Graph
from hybridflow.ir.variables import VariableState
from hybridflow.nested.bodies import tracer_now
from hybridflow.nested.checkpoint_graphs import CHECKPOINT
from hybridflow.nested.scans import scan
from hybridflow.ops.draws import random_advance


class Stage(NamedTuple):
    """A stage whose changes to Variables are outputs of its graph, in the order that a pipeline needs.

    Attributes:
        graph: a graph from ``(*activations, *rows, *states, *captures, *values of Variables)`` to
            ``(*results, *checks, *new values)``.
        traced: the stage as it was traced.
        variables: the Variables that are the last inputs.
        states: for each generator that it draws from, the state of each micro-batch, of shape (microbatches, words).
        assigned: the Variables of the new values.
    """

    graph: Graph
    traced: Traced
    variables: tuple[VariableState, ...]
    states: tuple[Tensor, ...]
    assigned: tuple[VariableState, ...]


def with_states(stages: Sequence[Traced], arguments: Sequence[int], microbatches: int) -> list[Stage]:
    """Return stages that take the states of generators, and move the generators on in the outer trace.

    Args:
        stages: the stages, as they were traced.
        arguments: per stage, the number of its activations and rows.
        microbatches: the number of micro-batches.

    Raises:
        TraceError: a Variable that a stage assigns is used by another one, and is no state of a generator that only
            draws move on.
    """
    draws = _draws(stages)
    _require_own(stages, set(draws))
    states = {leaf: _states(stages, leaf, counts, microbatches) for leaf, counts in draws.items()}
    return [
        _rearranged(traced, count, {leaf: found[number] for leaf, found in states.items()})
        for number, (traced, count) in enumerate(zip(stages, arguments, strict=True))
    ]


def _outputs_of(traced: Traced) -> dict[Node, int]:
    """Return the outputs that are new values, by the Variables' leaves."""
    first = len(traced.graph.outputs) - len(traced.checks) - len(traced.assigned)
    return {state.variable._leaf: first + index for index, state in enumerate(traced.assigned)}


def _draws(stages: Sequence[Traced]) -> dict[Node, list[int]]:
    """Return the generators' states that only draws move on, each with the number of draws of every stage."""
    found: dict[Node, list[int] | None] = {}
    for number, traced in enumerate(stages):
        outputs = _outputs_of(traced)
        first = len(traced.graph.inputs) - len(traced.variables)
        for index, state in enumerate(traced.variables):
            leaf = state.variable._leaf
            if leaf not in outputs:
                continue
            given: Edge = (traced.graph.inputs[first + index], 0)
            count = _advances(traced.graph, traced.graph.outputs[outputs[leaf]], given)
            counts = found.setdefault(leaf, [0] * len(stages))
            if count is None or counts is None:
                found[leaf] = None
            else:
                counts[number] = count
    return {leaf: counts for leaf, counts in found.items() if counts is not None}


def _advances(graph: Graph, edge: Edge, given: Edge) -> int | None:
    """Return how many draws lie between two states of a generator; None if it was changed in another way."""
    count = 0
    while edge != given:
        node, index = edge
        source = node.inputs[0] if node.inputs else None
        if node.op is CHECKPOINT:
            inner: Graph = node.attrs["graph"]
            for position, (own, outer) in enumerate(zip(inner.inputs, node.inputs, strict=True)):
                more = None if outer is None else _advances(inner, inner.outputs[index], (own, 0))
                if more is not None:
                    source, count = node.inputs[position], count + more
                    break
            else:
                return None
        elif node.op is random_advance.op:
            count += 1
        elif node.op not in (ASSIGN, REREAD):
            return None
        if source is None:
            return None
        edge = source
    return count


def _require_own(stages: Sequence[Traced], drawn: set[Node]) -> None:
    """Raise if a Variable that a stage assigns is used by another stage too."""
    for number, traced in enumerate(stages):
        for state in traced.assigned:
            leaf = state.variable._leaf
            others = [other for other, one in enumerate(stages) if other != number
                      and any([each.variable._leaf is leaf for each in one.variables])]
            if others and leaf not in drawn:
                raise TraceError(
                    f"pipeline: stage {number} assigns Variable {state.variable.name!r}, which stage "
                    f"{others[0]} uses too", got=f"{state.variable.spec} in stages that run at the same time",
                    hint="Let one stage alone use it, or assign it outside of the stages. Draws in branches "
                         "and loops need a hf.random.Generator for each stage."
                )


def _states(stages: Sequence[Traced], leaf: Node, counts: Sequence[int], microbatches: int) -> list[Tensor | None]:
    """Return the states that each stage draws from, a row per micro-batch, and assign the last state."""
    variable = next(each.variable for one in stages for each in one.variables if each.variable._leaf is leaf)

    def step(state: Tensor, row: Tensor) -> tuple[Tensor, list[Tensor]]:
        del row
        found: list[Tensor] = []
        for count in counts:
            found.append(state)
            for _ in range(count):
                state = random_advance(state)
        return state, found

    tracer = tracer_now()
    rows = PUBLIC.full((microbatches,), 0, dtype="int32")
    last, states = scan(step, tracer.value_of(variable), rows)
    tracer.assign_variable(variable, last)
    return [one if count else None for one, count in zip(states, counts, strict=True)]


def _rearranged(traced: Traced, arguments: int, states: dict[Node, Tensor | None]) -> Stage:
    graph, results = traced.graph, _outputs_of(traced)
    checks = len(traced.checks)
    taken = {leaf: state for leaf, state in states.items() if state is not None and leaf in results}
    if not results:
        return Stage(graph, traced, traced.variables, (), ())
    order = [state.variable._leaf for state in traced.variables]
    kept = tuple([state for state in traced.variables if state.variable._leaf not in taken])
    assigned = tuple([state for state in traced.assigned if state.variable._leaf not in taken])
    captures = len(traced.captures)
    specs = list(graph.input_specs)
    names = [str(node.attrs["name"]) for node in graph.inputs]
    first = arguments + captures
    own = {leaf: index for index, leaf in enumerate(order)}
    given = [*range(arguments), *[first + own[leaf] for leaf in taken], *range(arguments, first),
             *[first + own[state.variable._leaf] for state in kept]]
    rows = range(arguments, arguments + len(taken))

    def run(*tensors: Tensor) -> list[Tensor]:
        values: list[Any] = [None] * len(specs)
        for index, (position, tensor) in enumerate(zip(given, tensors, strict=True)):
            values[position] = PUBLIC.reshape(tensor, specs[position].shape) if index in rows else tensor
        made = inline(graph, values)
        end = len(made) - checks
        return [*made[: end - len(results)], *made[end:], *[made[results[one.variable._leaf]] for one in assigned]]

    wanted = [make_spec((1, *specs[position].shape), specs[position].dtype) if index in rows else specs[position]
              for index, position in enumerate(given)]
    made = trace_with_variables(run, wanted, graph.name, [names[position] for position in given])
    return Stage(made.graph, traced, kept, tuple(taken.values()), assigned)  # pyright: ignore[reportArgumentType]
