"""`Replay`: the data to run a traced call again, node by node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridflow.backend.host import run_quietly
from hybridflow.core.node import Node
from hybridflow.guards.signature import Signature
from hybridflow.ir.builder import Check
from hybridflow.ir.graph import Graph
from hybridflow.tracing.trace import Trace
from hybridflow.tracing.xla_inputs import raw_value


@dataclass(frozen=True)
class Replay:
    """A call as it was traced.

    Attributes:
        graph: the graph, before the passes.
        inputs: the raw value of each of its inputs.
        checks: the checks of the call.
        gradient_of: maps each node that computes a gradient to the node whose gradient it is.
        results: how many of the graph's outputs, from the first one on, are results; the others are assigned.
    """

    graph: Graph
    inputs: tuple[Any, ...]
    checks: tuple[Check, ...]
    gradient_of: dict[Node, Node]
    results: int

    @classmethod
    def of(cls, trace: Trace, signature: Signature) -> Replay:
        """Return the replay of a call, with the current values of what it reads."""
        inputs = tuple(inputs_of(trace, signature))
        return cls(trace.raw_graph, inputs, trace.checks, trace.gradient_of, trace.plan.count)


def inputs_of(trace: Trace, signature: Signature) -> list[Any]:
    """Return the raw value of every input of a trace's graph, for a call."""
    arrays = [
        run_quietly(np.asarray, value, spec.dtype) if type(value) is float else value
        for value, spec in zip(trace.arrays(signature), trace.raw_graph.input_specs, strict=False)
    ]
    arrays += [raw_value(tensor) for tensor in trace.captures]
    arrays += [variable.current() for variable in trace.variables(signature)]
    return arrays
