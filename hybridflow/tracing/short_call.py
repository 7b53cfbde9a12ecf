"""Generated calls that skip most checks, for functions with one trace that takes tensors and Python numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridflow.core.context import context_now, current
from hybridflow.core.notes import requires
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.tracebacks import trimmed
from hybridflow.core.variable import Variable
from hybridflow.guards.signature import NUMBER, TENSOR, Signature
from hybridflow.tracing.again import Undone, as_python
from hybridflow.tracing.trace import Trace
from hybridflow.tracing.xla_inputs import WORTH_KEEPING, raw_value
from hybridflow.xla.executable import Executable

ShortWay = Callable[[Callable[..., Any]], Callable[..., Any]]


def short_way(trace: Trace, signature: Signature, *, bound: bool) -> ShortWay | None:
    """Return a factory for the generated call of a function with only this trace; None if calls need the general one.

    The call passes its arguments by position, each a single leaf. The path takes tensors and numbers, outside
    `hf.device`, `hf.autocast` and the like.

    Args:
        trace: the trace.
        signature: the signature by which the trace was found.
        bound: whether an instance comes before the arguments.

    Returns:
        A function that takes the general call and returns the whole call. That runs the fast path if it can, else the
        general call.
    """
    only_tensors_and_numbers = all(leaf.kind in (TENSOR, NUMBER) and leaf.array is None for leaf in signature.leaves)
    context = current()
    quiet = context.device is None and context.autocast is None
    general = trace.symbolic or trace.guarded or trace.reads_leaves or bool(trace.prints)
    if general or not only_tensors_and_numbers or not quiet:
        return None
    kinds = [Tensor if leaf.kind == TENSOR else leaf.key[1] for leaf in signature.leaves]
    variables = trace.variables(signature)
    computes = trace.plan.numbers.computes
    if trace.captures or variables or trace.checks or trace.calls_host or trace.effects is not None or computes:
        return _SoleTrace(trace, variables, kinds, bound=bound).call
    if trace.short_way is None:
        executable = trace.executable(trace.arrays(signature), None)
        trace.short_way = _generate(trace, executable, kinds, bound=bound)
    return trace.short_way


def _generate(trace: Trace, executable: Executable, kinds: Sequence[type], *, bound: bool) -> ShortWay:
    """Generate the path for a trace that only takes tensors and numbers and returns arrays."""
    tensors = [number for number, kind in enumerate(kinds) if kind is Tensor]
    numbers = [number for number, kind in enumerate(kinds) if kind is not Tensor]
    names = ["instance"] * bound + [f"a{number}" for number in range(len(kinds))]
    specs = dict(zip(tensors, trace.graph.input_specs, strict=False))
    lines = ["if named or more or context_now() is not None or not SETTINGS.plain: {miss}"]
    lines += [f"if type(a{number}) is not Tensor: {{miss}}" for number in tensors]
    if tensors:
        lines.append(f"if {' or '.join([f'a{number}._edge is not None' for number in tensors])}:")
        lines.append(f"    if {' or '.join([f'requires(a{number}._edge)' for number in tensors])}: {{miss}}")
    for number, spec in specs.items():
        on_host = _SMALL if spec.nbytes < WORTH_KEEPING else _LARGE
        lines += [line.replace("{on_host}", on_host).replace("{n}", str(number)) for line in _TENSOR]
    lines += [f"if type(a{number}) is not {kinds[number].__name__}: {{miss}}" for number in numbers]
    if trace.guards is not None:
        lines += ["held = hold()"] * trace.takes_numbers
        lines.append(f"if not {'held' if trace.takes_numbers else 'hold()'}: {{miss}}")
    values = [f"v{number}" for number in tensors]
    given = ", ".join([f"a{number}" for number in numbers] + ["*held"] * trace.takes_numbers)
    if trace.conditions is not None:
        lines.append(f"if not agree([{given}]): {{miss}}")
    if trace.numbers is not None:
        lines += [f"try: made = numbers([{given}])", "except Exception: {miss}"]
        values.append("*made")
    single = executable.alone if trace.single else None
    lines += [
        f"try: outputs{',' if trace.single and single is None else ''} = run({', '.join(values)})",
        "except (TypeError, ValueError): pass",  # the general call reports what is wrong
        *(_RETURN_ONE if trace.single else _RETURN_SEVERAL),
        "{miss}",
    ]
    space: dict[str, Any] = {
        "Tensor": Tensor, "ndarray": np.ndarray, "requires": requires, "raw_value": raw_value, "trimmed": trimmed,
        "new": object.__new__, "make_tensor": make_tensor, "build": trace.plan.build, "numbers": trace.numbers,
        "agree": trace.conditions and trace.conditions.hold,
        "hold": trace.guards and trace.guards.hold, "run": executable.call if single is None else single(),
        "context_now": context_now, "SETTINGS": SETTINGS, "ABSENT": _ABSENT,
    }
    space |= {f"d{number}": spec.dtype for number, spec in specs.items()}
    takes = "".join([f"{name}=ABSENT, " for name in names]) + ("/, " if names else "")
    body = "\n            ".join(lines).replace("{miss}", f"return miss({', '.join([*names, '*more'])}, **named)")
    exec(compile(_WAY.format(takes=takes, body=body), f"{__file__} (written)", "exec"), space)
    return space.pop("way")


class _SoleTrace:
    """The path for a trace that also uses Variables, captured tensors, checks, Python state, or returns numbers."""

    __slots__ = ("_bound", "_effects", "_hold", "_kinds", "_trace", "_variables")

    def __init__(self, trace: Trace, variables: tuple[Variable, ...], kinds: Sequence[type], *, bound: bool) -> None:
        self._trace = trace
        self._effects = trace.effects
        self._variables = variables
        self._kinds = kinds
        self._bound = bound
        self._hold: Callable[[], bool | tuple[float, ...]] = _always if trace.guards is None else trace.guards.hold

    def call(self, general: Callable[..., Any]) -> Callable[..., Any]:
        """Return the whole call, which falls back to the general one."""
        enter = self._enter

        def call(*args: Any, **named: Any) -> Any:
            try:
                if not named and context_now() is None and SETTINGS.plain:
                    try:
                        call_now = enter(args)
                    except Undone as error:
                        undone = error
                    else:
                        return general(*args) if call_now is NotImplemented else call_now
                    return as_python(lambda: general(*args), undone)
                return general(*args, **named)
            except Exception as error:
                raise trimmed(error)  # noqa: B904 (it is the same error)

        return call

    def _enter(self, args: tuple[Any, ...]) -> Any:
        """Run the call, or return NotImplemented if it needs the general one."""
        trace = self._trace
        held = self._hold()
        if not held:
            return NotImplemented
        for tensor in trace.captures:
            if requires(tensor._edge):
                return NotImplemented
        found = self._raw_arguments(args[1:] if self._bound else args)
        if found is None:
            return NotImplemented
        arrays, numbers = found
        if held is not True:
            numbers += held
        if trace.conditions is not None and not trace.conditions.hold(numbers):
            return NotImplemented
        if trace.numbers is not None:
            try:
                arrays += trace.numbers(numbers)
            except Exception:  # the general call finds out what fails, and where
                return NotImplemented
        if self._effects is not None:
            trace.repeat_effects(self._effects, numbers)
        return trace.call(arrays, self._variables, None, numbers)

    def _raw_arguments(self, args: tuple[Any, ...]) -> tuple[list[Any], list[float]] | None:
        """Return the arrays and the numbers among the arguments.

        Return None unless all arguments are numbers or plain tensors of the trace's shapes and dtypes.
        """
        if len(args) != len(self._kinds):
            return None
        trace = self._trace
        arrays: list[Any] = []
        numbers: list[float] = []
        for argument, kind in zip(args, self._kinds, strict=True):
            if type(argument) is not kind:
                return None
            if kind is not Tensor:
                numbers.append(argument)
                continue
            value, edge, spec = argument._value, argument._edge, trace.graph.input_specs[len(arrays)]
            if value is None or value.dtype != spec.dtype or value.shape != spec.shape or requires(edge):
                return None
            arrays.append(raw_value(argument) if type(value) is np.ndarray else value)
        return arrays, numbers


def _always() -> bool:
    return True


_ABSENT = object()
"""Stands for an argument that a call does not pass."""
_WAY = """
def way(general):
    def miss(*given, **named):
        return general(*[one for one in given if one is not ABSENT], **named)

    def call({takes}*more, **named):
        try:
            {body}
        except Exception as error:
            raise trimmed(error)

    return call
"""
"""The whole `__call__` of a function: a single Python frame, which runs the trace or calls `general`."""
_TENSOR = (
    "v{n} = a{n}._value",
    "if type(v{n}) is ndarray:",
    "    if v{n}.dtype is not d{n}: {miss}",  # jax would silently narrow 64 bits
    "    {on_host}",
)
"""The code that reads the array of a tensor."""
_SMALL = "if a{n}._alt is not None: v{n} = a{n}._alt"
_LARGE = "v{n} = raw_value(a{n})"
"""The code for an array on the host: a call of `raw_value`, inlined for small arrays."""
_RETURN_ONE = (
    "else:",
    "    result = new(Tensor)",
    "    result._value = outputs",
    "    result._alt = None",
    "    result._edge = None",
    "    return result",
)
_RETURN_SEVERAL = ("else: return build([make_tensor(output) for output in outputs])",)
