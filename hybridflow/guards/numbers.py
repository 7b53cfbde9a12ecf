"""The Python numbers of a trace, computed anew by every call: see `hybridflow.core.traced_number`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridflow.core.convert import to_numpy
from hybridflow.core.dtypes import DType
from hybridflow.core.node import format_where
from hybridflow.core.traced_number import Step, TracedNumber

_FLOAT32 = np.dtype("float32")
_LARGE = 3e38


class Numbers:
    """The program that computes the graph's inputs from the numbers of a call.

    Args:
        wanted: each number that is combined with tensors, and the dtype it has there; None for the number itself.
        fallible: numbers that are computed even if nothing uses them, since computing them may raise.
        arguments: how many numbers a call has.
        wide: whether the executable runs with 64-bit types, so that a bare Python float would be a float64.
    """

    __slots__ = ("_run", "_steps")

    def __init__(
        self,
        wanted: Sequence[tuple[TracedNumber, DType | None]],
        fallible: Sequence[TracedNumber],
        arguments: int,
        *,
        wide: bool,
    ) -> None:
        self._steps: list[tuple[TracedNumber, Step]] = []
        names: dict[int, str] = {}
        for number in (*fallible, *[number for number, _ in wanted]):
            self._collect(number, names)
        space: dict[str, Any] = {}
        lines = [f"def run({', '.join(f'a{i}' for i in range(arguments))}):"]
        for position, (number, step) in enumerate(self._steps):
            space[f"f{position}"] = step.function
            operands = [_operand(operand, names, space) for operand in step.operands]
            lines.append(f"    {names[id(number)]} = f{position}({', '.join(operands)})")
        outputs: list[str] = []
        for number, dtype in wanted:
            name = names[id(number)]
            if dtype is None:
                outputs.append(name)
                continue
            convert = f"c_{dtype}({name})"
            space[f"c_{dtype}"] = _converter(dtype)
            # jax rounds a Python float to float32 faster than NumPy does, but warns if the result is infinite.
            quick = number.__class__ is float and dtype == _FLOAT32 and not wide
            outputs.append(f"{name} if -{_LARGE} < {name} < {_LARGE} else {convert}" if quick else convert)
        lines.append(f"    return [{', '.join(outputs)}]")
        exec(compile("\n".join(lines), __file__, "exec"), space)  # straight-line Python, compiled once
        self._run: Callable[..., list[Any]] = space["run"]

    def _collect(self, number: TracedNumber, names: dict[int, str]) -> None:
        """Number the steps that a number needs, each after its operands."""
        stack = [number]
        while stack:
            top = stack[-1]
            step = top.step
            if id(top) in names:
                stack.pop()
            elif isinstance(step, int):
                names[id(top)] = f"a{step}"
            else:
                missing = [one for one in step.operands if type(one) is TracedNumber and id(one) not in names]
                if missing:
                    stack += missing
                else:
                    names[id(top)] = f"s{len(self._steps)}"
                    self._steps.append((top, step))

    def __call__(self, numbers: Sequence[float]) -> list[Any]:
        """Return the graph's inputs for the numbers of a call.

        Raises:
            ZeroDivisionError, OverflowError: the user's arithmetic fails; its line is in a note on the error.
        """
        try:
            return self._run(*numbers)
        except (ArithmeticError, TypeError, ValueError) as error:
            self._locate(error, numbers)
            raise

    def _locate(self, error: Exception, numbers: Sequence[float]) -> None:
        """Add a note to an error that names the user's line where the computation failed."""
        values: dict[int, Any] = {}

        def value(operand: Any) -> Any:
            if type(operand) is not TracedNumber:
                return operand
            return numbers[operand.step] if isinstance(operand.step, int) else values[id(operand)]

        for number, step in self._steps:
            try:
                values[id(number)] = step.function(*map(value, step.operands))
            except Exception:
                error.add_note(f"in Python numbers computed at {format_where(step.where)}")
                return


def _operand(operand: Any, names: dict[int, str], space: dict[str, Any]) -> str:
    if type(operand) is TracedNumber:
        return names[id(operand)]
    name = f"k{len(space)}"
    space[name] = operand
    return name


def _converter(dtype: DType) -> Callable[[float], Any]:
    return lambda number: to_numpy(number, dtype)[()]
