"""The type of passes, their context, and the decorator that makes them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hybridflow.core.errors import ArgumentError
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.rewrite import map_nested


@dataclass
class PassContext:
    """The input of a pass besides the graph, and its notes.

    Attributes:
        differentiable: whether the graph may still be differentiated. Then its gradients must stay as they are, not
            only its values. For example, ops that block gradients stay, and so do values that only a gradient reads.
        notes: what the pass did and how often, for its record.
    """

    differentiable: bool = True
    notes: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True)
class Pass:
    """A function from a graph to an equivalent graph; the same object comes back if nothing changed.

    Attributes:
        function: takes ``(graph, context)`` and returns a graph with the same inputs. It never changes its argument.
        name: its name in records.
        final: whether it is valid only for graphs that are not differentiated any more.
        cleanup: whether it only removes unread nodes, so that the other passes need not run again after it.
        reorders: whether it changes the order in which numbers are added up, and so the rounding of the results.
    """

    function: Callable[[Graph, PassContext], Graph]
    name: str
    final: bool = False
    cleanup: bool = False
    reorders: bool = False

    def __call__(self, graph: Graph, context: PassContext | None = None) -> Graph:
        """Return the graph after the pass, nested graphs included."""
        context = context or PassContext()
        done: dict[int, Graph] = {}

        def run(one: Graph) -> Graph:
            result = done.get(id(one))
            if result is None:
                result = done[id(one)] = self.function(map_nested(one, run), context)
            return result

        return run(graph)

    def with_limits(self, **limits: Any) -> Pass:
        """Return the pass with other limits, which decide when it changes something.

        Args:
            limits: fields of the named tuple that is the default of the function's argument `limits`.

        Raises:
            ArgumentError: the pass has no such limit.
        """
        parameter = inspect.signature(self.function).parameters.get("limits")
        present: Any = None if parameter is None else parameter.default
        known: tuple[str, ...] = getattr(present, "_fields", ())
        unknown = [name for name in limits if name not in known]
        if unknown:
            hint = f"Its limits: {', '.join(known)}." if known else "It has none."
            raise ArgumentError(f"pass {self.name}: {unknown[0]!r} is not one of its limits", hint=hint)
        function: Callable[..., Graph] = self.function
        return replace(self, function=partial(function, limits=present._replace(**limits)))


def graph_pass(
    *, final: bool = False, cleanup: bool = False, reorders: bool = False
) -> Callable[[Callable[..., Graph]], Pass]:
    """Make a function a pass; it runs when `hybridflow.passes.pipeline` lists it.

    Its docstring shows an example in IR text, under ``Before:`` and ``After:``; that example is its test.

    Args:
        final, cleanup, reorders: as in `Pass`.
    """

    def decorate(function: Callable[..., Graph]) -> Pass:
        made = Pass(function, function.__name__, final, cleanup, reorders)
        object.__setattr__(made, "__doc__", function.__doc__)
        return made

    return decorate
