"""The Python numbers of a trace, computed anew by every call: see `hybridflow.core.traced_number`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridflow.core.convert import to_numpy
from hybridflow.core.dtypes import DType, bool_
from hybridflow.core.node import Where, format_where
from hybridflow.core.traced_number import LARGEST_SIZE, TracedNumber, text_of

_FLOAT32 = np.dtype("float32")
_LARGE = 3e38


class _Program:
    """Straight-line Python that computes numbers from those of a call.

    Args:
        arguments: how many numbers a call has.
    """

    def __init__(self, arguments: int) -> None:
        self.space: dict[str, Any] = {}
        self.lines = [f"def run({', '.join(f'a{i}' for i in range(arguments))}):"]
        self._names: dict[int, str] = {}

    def name_of(self, number: TracedNumber) -> str:
        """Return the name of a number in the program, which computes it and what it needs if it did not yet."""
        stack = [number]
        while stack:
            top = stack[-1]
            step = top.step
            if id(top) in self._names:
                stack.pop()
            elif isinstance(step, int):
                self._names[id(top)] = f"a{step}"
            else:
                missing = [one for one in step.operands if type(one) is TracedNumber and id(one) not in self._names]
                if missing:
                    stack += missing
                else:
                    operands = ", ".join(map(self._operand, step.operands))
                    self._names[id(top)] = name = f"s{len(self.lines)}"
                    self.lines.append(f"    {name} = {self.constant(step.function)}({operands})")
        return self._names[id(number)]

    def _operand(self, operand: Any) -> str:
        return self._names[id(operand)] if type(operand) is TracedNumber else self.constant(operand)

    def constant(self, value: Any) -> str:
        """Return the name of a value that is the same in all calls."""
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def compiled(self, last: str) -> Callable[..., Any]:
        """Return the program as a function of the numbers of a call, with a last line."""
        exec(compile("\n".join([*self.lines, f"    {last}"]), __file__, "exec"), self.space)
        return self.space["run"]


class Numbers:
    """The program that computes the graph's inputs from the numbers of a call.

    Args:
        wanted: each number that is combined with tensors, and the dtype it has there; None for the number itself, a
            bool for an open size.
        fallible: numbers that are computed even if nothing uses them, since computing them may raise.
        arguments: how many numbers a call has.
        wide: whether the executable runs with 64-bit types, so that a bare Python float would be a float64.
    """

    __slots__ = ("_run",)

    def __init__(
        self,
        wanted: Sequence[tuple[TracedNumber, DType | None]],
        fallible: Sequence[TracedNumber],
        arguments: int,
        *,
        wide: bool,
    ) -> None:
        program = _Program(arguments)
        for number in fallible:
            program.name_of(number)
        outputs: list[str] = []
        for number, dtype in wanted:
            name = program.name_of(number)
            if dtype is None:
                outputs.append(name)
                continue
            if dtype == bool_:
                outputs.append(f"{program.constant(_of_size)}({name})")
                continue
            convert = f"{program.constant(_converter(dtype))}({name})"
            # jax rounds a Python float to float32 faster than NumPy does, but warns if the result is infinite.
            quick = number.__class__ is float and dtype == _FLOAT32 and not wide
            outputs.append(f"{name} if -{_LARGE} < {name} < {_LARGE} else {convert}" if quick else convert)
        self._run = program.compiled(f"return [{', '.join(outputs)}]")

    def __call__(self, numbers: Sequence[float]) -> list[Any]:
        """Return the graph's inputs for the numbers of a call.

        Raises:
            Exception: the trace does not serve the call: arithmetic fails, or a dtype does not hold a number.
        """
        return self._run(*numbers)


class Conditions:
    """What a trace relies on about the numbers of a call: comparisons that its code made, sizes that they decide.

    Args:
        asked: the numbers that must be what they were in the traced call, each with the place that asked.
        paths: where each number of a call is read.
    """

    def __init__(self, asked: Sequence[tuple[TracedNumber, Where | None]], paths: Sequence[str]) -> None:
        program = _Program(len(paths))
        for number, _ in asked:
            name = program.name_of(number)
            program.lines.append(f"    if {name} != {program.constant(number.value)}: return False")
        self._run = program.compiled("return True")
        self._asked = asked
        self._paths = paths

    def hold(self, numbers: Sequence[float]) -> bool:
        """Whether they hold for the numbers of a call; if Python cannot compute them, they do not."""
        try:
            return self._run(*numbers)
        except Exception:
            return False

    def changes(self, numbers: Sequence[float]) -> list[tuple[str, str, str]]:
        """Return ``(formula, before, now)`` for each that the numbers of a call do not meet."""
        changed: list[tuple[str, str, str]] = []
        for number, _ in self._asked:
            try:
                (now,) = Numbers([(number, None)], (), len(self._paths), wide=False)(numbers)
            except Exception as error:
                now = type(error).__name__
            if now != number.value:
                changed.append((text_of(number, self._paths), str(number.value), str(now)))
        return changed

    def texts(self) -> list[str]:
        """Return a text for each."""
        return [
            f"{text_of(number, self._paths)} is {number.value} (asked at {format_where(where) or 'an unknown line'})"
            for number, where in self._asked
        ]


def _of_size(size: int) -> Any:
    """Return an array of a size.

    Raises:
        ValueError: it is no open size.
    """
    if 2 <= size <= LARGEST_SIZE:
        return np.broadcast_to(np.False_, (size,))
    raise ValueError


def _converter(dtype: DType) -> Callable[[float], Any]:
    return lambda number: to_numpy(number, dtype)[()]
