"""The short way of a call: a function that was traced once, called with plain tensors and floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.core.context import current
from hybridflow.core.node import FOREVER
from hybridflow.core.notes import requires
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.tracing.signature import FLOAT, LEAF, TENSOR, Signature
from hybridflow.tracing.trace import WORTH_KEEPING, Trace, raw_value


class SoleTrace:
    """The only trace of a function, when its arguments are plain tensors and floats.

    Args:
        trace: the trace.
        run: the executable's call if that is all there is to a call: no Variables, captured tensors, checks or Python
            functions.
        variables: the Variables of every call.
        kinds: the types of the arguments.
        bound: whether an instance comes before them.

    Attributes:
        enter: makes the whole call, given its arguments as a tuple, or returns NotImplemented; then the general way
            makes it.
    """

    __slots__ = ("_bound", "_hold", "_kinds", "_trace", "_variables", "enter")

    def __init__(
        self,
        trace: Trace,
        run: Callable[..., Any] | None,
        variables: tuple[Variable, ...],
        kinds: tuple[type, ...],
        *,
        bound: bool,
    ) -> None:
        self._trace = trace
        self._variables = variables
        self._kinds = kinds
        self._bound = bound
        self._hold: Callable[[], bool] = _always if trace.guards is None else trace.guards.hold
        self.enter: Callable[[tuple[Any, ...]], Any] = self._enter if run is None else self._generate(run)

    @classmethod
    def of(cls, trace: Trace, signature: Signature, *, bound: bool) -> SoleTrace | None:
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
        if trace.captures or variables or trace.checks or trace.calls_host:
            return cls(trace, None, variables, kinds, bound=bound)
        return cls(trace, trace.executable(trace.arrays(signature), None).call, (), kinds, bound=bound)

    def _generate(self, run: Callable[..., Any]) -> Callable[[tuple[Any, ...]], Any]:
        """Return `enter` where tensors and floats go in and arrays come out, written for these arguments."""
        trace = self._trace
        tensors = [number for number, kind in enumerate(self._kinds) if kind is Tensor]
        floats = [number for number, kind in enumerate(self._kinds) if kind is float]
        names = ["_"] * self._bound + [f"a{number}" for number in range(len(self._kinds))]
        lines = ["def enter(args):", f"    if len(args) != {len(names)}: return NotImplemented"]
        if names:
            lines.append(f"    {', '.join(names)}, = args")
        specs = dict(zip(tensors, trace.graph.input_specs, strict=False))
        for number, spec in specs.items():
            on_host = _SMALL if spec.nbytes < WORTH_KEEPING else _LARGE
            lines += [line.format(n=number, on_host=on_host.format(n=number)) for line in _TENSOR]
        lines += [f"    if type(a{number}) is not float: return NotImplemented" for number in floats]
        if trace.guards is not None:
            lines.append("    if not hold(): return NotImplemented")
        values = [f"v{number}" for number in tensors]
        if trace.numbers is not None:
            lines.append(f"    made = numbers([{', '.join(f'a{number}' for number in floats)}])")
            values.append("*made")
        lines += [
            f"    try: outputs = run({', '.join(values)})",
            "    except (TypeError, ValueError): return NotImplemented",  # the general way says what is wrong
            *(_ONE if trace.single else _SEVERAL),
        ]
        space: dict[str, Any] = {
            "Tensor": Tensor, "ndarray": np.ndarray, "FOREVER": FOREVER, "raw_value": raw_value,
            "new": object.__new__, "make_tensor": make_tensor, "hold": self._hold, "run": run,
            "build": trace.plan.build, "numbers": trace.numbers,
        }  # fmt: skip
        space |= {f"d{number}": spec.dtype for number, spec in specs.items()}
        exec(compile("\n".join(lines), __file__, "exec"), space)
        return space["enter"]

    def _enter(self, args: tuple[Any, ...]) -> Any:
        """Make a call that has more to it than arrays."""
        trace = self._trace
        if not self._hold():
            return NotImplemented
        for tensor in trace.captures:
            if requires(tensor._edge):
                return NotImplemented
        arrays = self._raw_arguments(args[1:] if self._bound else args)
        if arrays is None:
            return NotImplemented
        return trace.call(arrays, self._variables)

    def _raw_arguments(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Return the raw inputs that the arguments are: tensors, then the numbers that the floats make.

        None if they are not plain tensors of the trace's shapes and dtypes, and floats.
        """
        if len(args) != len(self._kinds):
            return None
        trace = self._trace
        arrays: list[Any] = []
        floats: list[float] = []
        for argument, kind in zip(args, self._kinds, strict=True):
            if type(argument) is not kind:
                return None
            if kind is float:
                floats.append(argument)
                continue
            value, edge, spec = argument._value, argument._edge, trace.graph.input_specs[len(arrays)]
            if value is None or value.dtype != spec.dtype or value.shape != spec.shape or requires(edge):
                return None
            arrays.append(raw_value(argument) if type(value) is np.ndarray else value)
        if trace.numbers is not None:
            arrays += trace.numbers(floats)
        return arrays


def _always() -> bool:
    return True


_TENSOR = (
    "    if type(a{n}) is not Tensor: return NotImplemented",
    "    edge = a{n}._edge",
    "    if edge is not None and edge[0].stamp == FOREVER: return NotImplemented",
    "    v{n} = a{n}._value",
    "    if type(v{n}) is ndarray:",
    "        if v{n}.dtype is not d{n}: return NotImplemented",  # jax would narrow 64 bits without a word
)
"""How the generated `enter` comes to the array of an argument."""
_SMALL = "if a{n}._alt is not None: v{n} = a{n}._alt"
_LARGE = "v{n} = raw_value(a{n})"
"""What it takes for an array on the host: `raw_value` of it, written out where that would keep nothing."""
_ONE = (
    "    result = new(Tensor)",
    "    result._value, = outputs",
    "    result._alt = None",
    "    result._edge = None",
    "    return result",
)
_SEVERAL = ("    return build([make_tensor(output) for output in outputs])",)
