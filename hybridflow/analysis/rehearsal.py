"""Calls that only a comparison makes: Variables and Python state are afterwards as they were before."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from hybridflow.core.device import device_of, place
from hybridflow.core.errors import ArgumentError
from hybridflow.core.variable import GradientCell, Variable
from hybridflow.guards.journal import python_state_kept
from hybridflow.guards.signature import Signature
from hybridflow.tracing.config import run_eagerly
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.trace import Trace

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Rehearsal(NamedTuple):
    """A call that can be repeated, each time from the state before it.

    Attributes:
        trace: the trace of the call.
        signature: the call's signature.
        variables: the Variables that it reads or assigns.
        assigned: the Variables that it assigns.
        restore: puts the Variables and what the function changes of Python's state back.
        traced: how long tracing took, in seconds; 0 if the first call traces again, since it changes Python's state.
    """

    trace: Trace
    signature: Signature
    variables: list[Variable]
    assigned: list[Variable]
    restore: Callable[[], None]
    traced: float


@contextmanager
def rehearsed(compiled: CompiledFunction[Any, Any], call: Call) -> Generator[Rehearsal]:
    """Return a context in which a function can be called, eagerly and compiled; all state is restored at its end.

    What the function changes of Python's state is what its trace told: attributes, items, names, containers and the
    state of random numbers. A function that creates its Variables when it is first called is called once before, and
    `restore` goes back to where that left it.

    Args:
        compiled: the function.
        call: the arguments.

    Raises:
        ArgumentError: the function creates Variables at every call.
    """
    args, kwargs = call
    with python_state_kept() as state, ExitStack() as stack:
        start = time.perf_counter()
        trace, signature = compiled._trace_for(*call)
        traced = time.perf_counter() - start
        if trace.created:
            stack.enter_context(kept(trace.variables(signature)))
            with run_eagerly():
                compiled(*args, **kwargs)
            state.mark()
            start = time.perf_counter()
            trace, signature = compiled._trace_for(*call)
            traced = time.perf_counter() - start
        if trace.created:
            raise ArgumentError(f"{compiled._name}: creates Variables at one call after another, so no two are alike",
                                got=", ".join(trace.record.created),
                                hint="Call it until they are there, and compare then.")
        if trace.effects is not None:
            trace.effects.tell(state)  # a trace that was there already has told nothing
        variables = list(trace.variables(signature))
        restore_variables = stack.enter_context(kept(variables))

        def restore() -> None:
            restore_variables()
            state.restore()

        assigned = [variables[index] for index in trace.assigned]
        yield Rehearsal(trace, signature, variables, assigned, restore, traced if compiled.keeps_trace(trace) else 0.0)


@contextmanager
def kept(variables: Sequence[Variable]) -> Generator[Callable[[], None]]:
    """Set Variables back to their values at the end of a ``with`` block; yields a function that does it at once."""
    saved: list[tuple[Variable, np.ndarray[Any, Any], Any]] = []
    gradients = [(cell, cell.present) for cell in variables if isinstance(cell, GradientCell)]
    for variable in variables:
        value = variable.current()
        saved.append((variable, np.array(value), None if type(value) is np.ndarray else device_of(value)))

    def restore() -> None:
        for variable, array, device in saved:
            variable._value = np.array(array) if device is None else place(array, device)
        for cell, present in gradients:
            cell.present = present

    try:
        yield restore
    finally:
        restore()
