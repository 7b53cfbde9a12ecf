"""Write an eager update completely or not at all, in place where nobody else holds the arrays.

Ctrl-C can raise an exception between any two Python instructions. So all changes of state are first collected as steps,
which a loop in C then runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getrefcount
from typing import Any, cast

import numpy as np

from hybridflow.backend.host import run_quietly
from hybridflow.core.out_of_memory import explained
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import WRITES, Variable
from hybridflow.optim.groups import Parameter
from hybridflow.optim.rule import Rule, Scratch, Step, run_steps


def write(
    parameters: list[Parameter],
    gradients: list[Tensor],
    step: int,
    rates: dict[int, float],
    steps: Variable,
) -> None:
    """Apply rules to Variables whose values are arrays on the host.

    Args:
        parameters: the parameters.
        gradients: their gradients.
        step: the number of updates so far.
        rates: the rate of each group, by its identity.
        steps: the Variable that counts updates.
    """
    try:
        with WRITES:
            run_quietly(run_steps, _steps(parameters, gradients, step, rates, steps))
    except MemoryError as error:
        raise explained("the update", error) from error


def _steps(
    parameters: list[Parameter], gradients: list[Tensor], step: int, rates: dict[int, float], steps: Variable
) -> list[Step]:
    """Return all changes of an update; nothing that can fail is left to them."""
    constants: dict[Any, tuple[Any, ...]] = {}
    scratch = Scratch()
    todo: list[Step] = []
    stored: list[Step] = [(setattr, steps, "_value", np.asarray(step + 1, np.int32))]
    for one, gradient in zip(parameters, gradients, strict=True):
        g, rule = cast(Any, gradient)._value, one.rule
        rate = rates[id(one.group)]
        variables = (one.variable, *one.slots)
        if rule.host is None:
            made = _made(rule, one, g, step, rate)
        else:
            made = [_own(variable) for variable in variables]
            key = id(one.group), id(rule), g.dtype
            if key not in constants:
                constants[key] = rule.constants(g.dtype, step, rate, one.attrs)
            g = g if g.flags.c_contiguous else np.ascontiguousarray(g)
            todo += rule.steps([made[0], g, *made[1:]], constants[key], scratch)
        stored += [(setattr, variable, "_value", array) for variable, array in zip(variables, made, strict=True)]
    return [*todo, *stored]


def _made(rule: Rule, one: Parameter, g: Any, step: int, rate: float) -> list[Any]:
    """Return the new values from a rule that makes new arrays."""
    values = [cast(Any, variable)._value for variable in one.slots]
    made = run_quietly(
        cast(Any, rule.op.kernel), cast(Any, one.variable)._value, g, *values, np.int32(step),
        g.dtype.type(rate), **one.attrs,
    )
    return list(made)


def assign_all(pairs: Iterable[tuple[Variable, Any]]) -> None:
    """Assign values to Variables: all of them or, if it is interrupted, none.

    Assigning twice is the same as assigning once, so an interrupted write starts again.
    """
    pairs = list(pairs)
    try:
        _assign(pairs)
    except Exception:
        raise
    except BaseException:
        _assign(pairs)
        raise


def _assign(pairs: list[tuple[Variable, Any]]) -> None:
    for variable, value in pairs:
        variable.assign(value)


def _own(variable: Any) -> Any:
    """Return the array of a Variable if nobody else can see it, else a copy."""
    value = variable._value
    if getrefcount(value) == _SOLE and value.base is None and value.flags.carray:
        return value
    return np.array(value, order="C")


def _references() -> int:
    """Return the `sys.getrefcount` that `_own` sees for an array that only a Variable holds."""

    class Holder:
        _value = None

    holder = Holder()
    holder._value = cast(Any, np.zeros(1))

    def count(variable: Any) -> int:
        value = variable._value
        return getrefcount(value)

    return count(holder)


_SOLE = _references()


def on_host(parameters: list[Parameter], gradients: list[Tensor]) -> bool:
    """Whether all values are NumPy arrays of dtypes that NumPy computes with."""
    for one, gradient in zip(parameters, gradients, strict=True):
        if type(cast(Any, one.variable)._value) is not np.ndarray or type(gradient._value) is not np.ndarray:
            return False
        if one.variable.dtype.itemsize < 4:
            return False
        for slot in one.slots:
            if type(cast(Any, slot)._value) is not np.ndarray:
                return False
    return True
