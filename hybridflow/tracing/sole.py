"""The short way of a call: a function that was traced once, called with plain tensors and floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridflow.core.context import current
from hybridflow.core.dtypes import WIDE
from hybridflow.core.node import FOREVER
from hybridflow.core.notes import requires
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.tracing.signature import FLOAT, LEAF, TENSOR, Signature
from hybridflow.tracing.trace import Trace, raw_value

_new = object.__new__
_ndarray = np.ndarray


class SoleTrace:
    """The only trace of a function, when its arguments are plain tensors and floats.

    Attributes:
        trace: the trace.
        run: the executable's call if that is all there is to a call: no Variables, captured tensors or checks.
        variables: the Variables of every call.
        kinds: the types of the arguments; count: how many of them are tensors.
        floats: whether some are floats.
        hold: tells quickly whether the guards hold; None if there are none.
        enter: makes the whole call, or returns NotImplemented, where tensors go in and arrays come out; else None.
    """

    __slots__ = ("count", "enter", "floats", "hold", "kinds", "numbers", "run", "trace", "variables", "wide")

    def __init__(
        self, trace: Trace, run: Callable[..., Any] | None, variables: tuple[Variable, ...], kinds: tuple[type, ...]
    ) -> None:
        self.trace = trace
        self.run = run
        self.variables = variables
        self.kinds = kinds
        self.floats = float in kinds
        self.count = kinds.count(Tensor)
        self.numbers = trace.numbers
        self.hold = None if trace.guards is None else trace.guards.hold
        self.wide = trace.wide
        self.enter = None if run is None or self.floats else self._entry(run)

    @classmethod
    def of(cls, trace: Trace, signature: Signature) -> SoleTrace | None:
        """Return the sole trace, or None if calls have other arguments than tensors and floats."""
        plain = all(leaf.kind in (TENSOR, FLOAT) for leaf in signature.leaves)
        flat = all(tree == LEAF for tree in signature.tree)
        context = current()
        quiet = context.device is None and context.autocast is None
        if not plain or not flat or trace.symbolic or not quiet:
            return None
        kinds = tuple([Tensor if leaf.kind == TENSOR else float for leaf in signature.leaves])
        variables = trace.variables(signature)
        if trace.guarded or trace.reads_leaves:
            return None
        if trace.captures or variables or trace.checks:
            return cls(trace, None, variables, kinds)
        return cls(trace, trace.executable(trace.arrays(signature), None).call, (), kinds)

    def _entry(self, run: Callable[..., Any]) -> Callable[[tuple[Any, ...]], Any]:
        """Return `raw_arguments`, the guards and `call` as one function, which is half of what they cost."""
        count, wide, hold, single = self.count, self.wide, self.hold, self.trace.single
        build = self.trace.plan.build

        def enter(args: tuple[Any, ...]) -> Any:
            if len(args) != count:
                return NotImplemented
            arrays: list[Any] = []
            for argument in args:
                if type(argument) is not Tensor:
                    return NotImplemented
                edge = argument._edge
                if edge is not None and edge[0].stamp == FOREVER:
                    return NotImplemented
                value = argument._value
                if type(value) is _ndarray:
                    if value.dtype.num in WIDE and not wide:
                        return NotImplemented  # jax would narrow it without a word
                    value = raw_value(argument)
                elif value is None:
                    return NotImplemented
                arrays.append(value)
            if hold is not None and not hold():
                return NotImplemented
            try:
                outputs = run(*arrays)
            except (TypeError, ValueError):
                return NotImplemented  # the general way traces anew, or says what is wrong
            if not single:
                return build([make_tensor(output) for output in outputs])
            result = _new(Tensor)
            result._value = outputs[0]
            result._alt = None
            result._edge = None
            return result

        return enter

    def call(self, arrays: list[Any]) -> Any:
        """Run the trace on the raw values of its arguments.

        Raises:
            TypeError, ValueError: arguments of other shapes or dtypes, which the executable refuses untouched.
        """
        if self.run is None:
            return self.trace.call(arrays, self.variables)
        outputs = self.run(*arrays)
        if self.trace.single:
            return make_tensor(outputs[0])
        return self.trace.plan.build([make_tensor(output) for output in outputs])

    def raw_arguments(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Return the raw values of the arguments, or None if they are not all plain tensors and floats."""
        if self.run is None and any(requires(tensor._edge) for tensor in self.trace.captures):
            return None
        if self.floats:
            return self._mixed(args)
        return self._tensors(args)

    def _tensors(self, args: Sequence[Any]) -> list[Any] | None:
        arrays: list[Any] = []
        for argument in args:
            if type(argument) is not Tensor or (argument._edge is not None and requires(argument._edge)):
                return None
            value = argument._value
            if type(value) is np.ndarray:
                if value.dtype.num in WIDE and not self.wide:
                    return None  # jax would narrow it without a word
                value = raw_value(argument)
            elif value is None:
                return None
            arrays.append(value)
        return arrays if len(arrays) == self.count else None

    def _mixed(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Return the raw values of the tensors, then the numbers that the floats among them make."""
        if tuple(map(type, args)) != self.kinds:
            return None
        tensors: list[Any] = []
        floats: list[float] = []
        for argument in args:
            (floats if type(argument) is float else tensors).append(argument)
        arrays = self._tensors(tensors)
        if arrays is not None and self.numbers is not None:
            arrays += self.numbers(floats)
        return arrays
