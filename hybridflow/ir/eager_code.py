"""`EagerCode`: the Variables as eager code sees them that runs while a function is traced, as in `hf.init_scope`."""

from __future__ import annotations

from typing import Any

from hybridflow.core.context import context_of
from hybridflow.core.errors import TraceError
from hybridflow.core.node import format_where, user_place
from hybridflow.core.tensor import make_tensor
from hybridflow.core.variable import Variable
from hybridflow.core.variable_log import VariableLog, binder_now, without_log


class EagerCode(VariableLog):
    """The log of eager code in a trace: it sees the values that the call has assigned so far, as all eager code does.

    Its assignments come where it stands among those of the call. A trace that was told what the eager code reads and
    assigns serves other calls only as long as those find the same.

    Args:
        tracer: the `GraphBuilder` of the trace.
        once: whether the code runs once for all calls, as the initializer of a Variable does; else at every call.
    """

    def __init__(self, tracer: Any, *, once: bool) -> None:
        super().__init__(None, binder_now())
        self.tracer = tracer
        self.once = once

    def value_of(self, variable: Any, value: Any) -> Any:
        """Return the raw value that the code sees in a Variable."""
        if self._outer is not None:
            value = self._outer.value_of(variable, value)
        observations = self.tracer.observations
        assigned_in = self._assigned_in(variable)
        if assigned_in is not None:
            if assigned_in.outer is not None:
                raise _in_body(variable, "read, after an assignment there,")
            if not self.once and observations is not None:
                observations.repeated.only_once()  # the value may depend on the arguments
            with without_log(self):
                return assigned_in.value_now(assigned_in.value_of(variable))._value
        if not self.once and observations is not None:
            observations.reads_value(variable, value)
        return value

    def assigned(self, variable: Any, value: Any) -> bool:
        """Note that a Variable is assigned; return whether the Variable itself must stay unchanged."""
        tracer = self.tracer
        if tracer.outer is not None:
            raise _in_body(variable, "assigned, or drawn from,")
        observations = tracer.observations
        if variable._leaf in tracer.variables:
            if observations is not None:
                observations.numbers.only_numbers()  # a restart would lose the assignment
                observations.repeated.only_once()
            with context_of(tracer):
                tracer.assign_variable(variable, make_tensor(value))
            return True
        if not self.once and observations is not None:
            observations.writes_value(variable)
        return self._outer is not None and self._outer.assigned(variable, value)

    def _assigned_in(self, variable: Variable) -> Any:
        """Return the innermost tracer in which the call has assigned a Variable, or None."""
        tracer = self.tracer
        while tracer is not None:
            state = tracer.variables.get(variable._leaf)
            if state is not None and state.assignments:
                return tracer
            tracer = tracer.outer
        return None


def _in_body(variable: Variable, how: str) -> TraceError:
    return TraceError(f"Variable {variable.name!r}: {how} by code that runs eagerly in a branch or loop on tensors",
                      got=f"{variable.spec} at {format_where(user_place(3))}",
                      hint="Move that code before the branch or loop, or out of hf.init_scope.")
