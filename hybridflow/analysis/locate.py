"""`hf.debugging.locate`: a compiled function replayed op by op, up to the first value that is wrong."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hybridflow.analysis.node_by_node import NodeByNode
from hybridflow.core.dtypes import as_dtype, kind_of
from hybridflow.core.errors import HybridflowError
from hybridflow.core.functions import require_function
from hybridflow.core.node import Node, Where, format_where, name_scope, scope_of, where_file_line
from hybridflow.core.settings import SETTINGS
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import format_spec
from hybridflow.ir.printer import format_node
from hybridflow.tracing.compile import compile
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.method import CompiledMethod
from hybridflow.tracing.replay import Replay

_SCOPE = "module."
Kind = Literal["nan", "inf", "check", "error"]


@dataclass(frozen=True)
class Located:
    """What a replay came upon first; false if that is nothing.

    Attributes:
        kind: ``"nan"`` or ``"inf"`` (an operation gave one, and its inputs had none), ``"check"`` (a condition does not
            hold), ``"error"`` (an operation refused its inputs), or None.
        phase: whether that is in the forward pass, or in the gradients that a tape in the function computes.
        op: the operation, None if it is an argument or a check.
        where: the user's place, as ``file:line``; of a gradient, that of the operation it belongs to.
        source: the user's line.
        text: the operation as graphs print it, the check's message, or the argument's name.
        inputs: a line about each of the operation's inputs.
        outputs: a line about each of its outputs.
        within: the branches and loops around it, outermost first.
        module: the path and class of the innermost `hf.nn.Module` that was being called, such as ``"blocks.3.mlp
            (Linear)"``; None if there is none.
    """

    kind: Kind | None = None
    phase: Literal["forward", "backward"] = "forward"
    op: str | None = None
    where: str | None = None
    source: str = ""
    text: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    within: tuple[str, ...] = field(default=())
    module: str | None = None

    def __bool__(self) -> bool:
        return self.kind is not None

    def __str__(self) -> str:
        if self.kind is None:
            return "every value is finite and every check holds"
        what = {"nan": "the first NaN", "inf": "the first infinity", "check": "a check does not hold",
                "error": "an operation fails"}[self.kind]
        lines = [f"{what}, in the {self.phase} pass" + (f": {self.op}" if self.op else "")]
        if self.where:
            lines.append(f"  at {self.where}: {self.source}")
        lines += [f"  in {one}" for one in reversed(self.within)]
        if self.module:
            lines.append(f"  in the module {self.module}")
        lines.append(f"  {self.text}")
        lines += [f"  input {i}: {one}" for i, one in enumerate(self.inputs)]
        lines += [f"  output {i}: {one}" for i, one in enumerate(self.outputs)]
        return "\n".join(lines)


class _Stop(Exception):
    def __init__(self, difference: Located) -> None:
        super().__init__(difference)
        self.found = difference


def locate(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Located:
    """Replay a function op by op and stop at the first non-finite value or failed check.

    The function is traced, with the gradients that tapes in it compute, and every operation of it runs alone, those in
    branches and loops included. An infinity that is given (as in a mask) is not reported, only one that an operation
    makes of finite numbers. No Variable is assigned; `hf.print` prints up to the place where the replay stops.

    Args:
        fn: a function, compiled or not.
        *args, **kwargs: the arguments of the call.

    Returns:
        What was found, to print and to ask; it is false if nothing was.

    Example:
        >>> import hybridflow as hf
        >>> def loss(x):
        ...     y = hf.log(x)
        ...     return hf.sum(y * x)
        >>> found = hf.debugging.locate(loss, hf.asarray([1.0, 0.0]))
        >>> found.kind, found.op, found.phase
        ('inf', 'log', 'forward')
        >>> print(found)
        the first infinity, in the forward pass: log
          at ...: y = hf.log(x)
        ...
    """
    require_function("locate", fn)
    if not isinstance(fn, CompiledFunction | CompiledMethod):
        fn = compile(fn)
    with _named_modules() as names:
        replay = fn.replay(*args, **kwargs)
    return _Replayer(replay, names).run()


class _Names:
    """An observer of modules that puts the operations of each into a name scope of its own.

    Attributes:
        modules: the path and class of each module, by its scope.
    """

    name = "hf.debugging.locate"

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}

    def around(self, module: Any) -> AbstractContextManager[Any]:
        """Return the name scope of a module."""
        scope = f"{_SCOPE}{len(self.modules)}"
        self.modules[scope] = f"{module._path or 'the model'} ({type(module).__name__})"
        return name_scope(scope)

    def result(self, path: str, module: Any, value: Any) -> None:
        """Look at nothing."""

    def asked(self, tape: Any) -> list[Any]:
        """Ask for no gradients."""
        del tape
        return []

    def answered(self, gradients: list[Any]) -> None:
        """Take none."""

    def of(self, where: Where | None) -> str | None:
        """Return the innermost module that a place is in."""
        scopes = [part for part in scope_of(where).split("/") if part in self.modules]
        return self.modules[scopes[-1]] if scopes else None


@contextmanager
def _named_modules() -> Generator[_Names]:
    names = _Names()
    before = SETTINGS.observers
    SETTINGS.set("observers", (*before, names))
    try:
        yield names
    finally:
        SETTINGS.set("observers", before)


class _Replayer(NodeByNode):
    """Runs the nodes of one trace and looks at every value."""

    def __init__(self, replay: Replay, names: _Names) -> None:
        super().__init__()
        self._replay = replay
        self._names = names
        self._checks = {edge: check for check in replay.checks if (edge := check.ok._edge) is not None}

    def run(self) -> Located:
        """Return the first thing that is wrong."""
        replay = self._replay
        try:
            for node, value in zip(replay.graph.inputs, replay.inputs, strict=True):
                if _has_nan(value):
                    text = f"{node.attrs['name']} is given with a NaN"
                    raise _Stop(Located("nan", text=text, outputs=(_summary(value),)))
            self.evaluate(replay.graph, replay.inputs)
        except _Stop as stop:
            return stop.found
        return Located()

    def node(self, node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        """Run a node and look at its values."""
        try:
            outputs = super().node(node, values, attrs)
        except HybridflowError as error:
            raise _Stop(self._report("error", node, values, (), str(error))) from error
        several = outputs if isinstance(outputs, tuple | list) else (outputs,)
        if node.op is not CONSTANT:
            self._look(node, values, several)
        for index, value in enumerate(several):
            check = self._checks.get((node, index)) if not self.around else None
            if check is not None and not bool(np.all(np.asarray(value))):
                place = place_of(check.where)
                module = self._names.of(check.where)
                raise _Stop(Located("check", self._phase(node), None, *place, check.text, module=module))
        return outputs

    def _look(self, node: Node, values: Sequence[Any], outputs: Sequence[Any]) -> None:
        tests: tuple[tuple[Kind, Callable[[Any], bool]], ...] = (("nan", _has_nan), ("inf", _has_infinity))
        for kind, has in tests:
            if any(map(has, outputs)) and not any(map(has, values)):
                raise _Stop(self._report(kind, node, values, outputs))

    def _report(
        self, kind: Kind, node: Node, values: Sequence[Any], outputs: Sequence[Any], text: str | None = None
    ) -> Located:
        outer = self.around[0] if self.around else node
        forward = self._replay.gradient_of.get(outer)
        place = forward.where if forward is not None and outer is node else node.where
        name = f"{node.op.name}, for the gradient of {forward.op.name}" if forward is not None else node.op.name
        return Located(
            kind,
            self._phase(outer),
            name,
            *place_of(place),
            text or format_node(node, lines=False),
            tuple(map(_summary, values)),
            tuple(map(_summary, outputs)),
            tuple([f"{one.op.name} at {format_where(one.where)}" for one in self.around]),
            self._names.of(place) or self._names.of(outer.where),
        )

    def _phase(self, node: Node) -> Literal["forward", "backward"]:
        return "backward" if node in self._replay.gradient_of else "forward"


def place_of(where: Where | None) -> tuple[str | None, str]:
    """Return a place as ``file:line``, and the text of the line."""
    place = where_file_line(where)
    return (None, "") if place is None else (f"{place[0]}:{place[1]}", linecache.getline(*place).strip())


def _floats(value: Any) -> Any:
    """Return a value's floats in a dtype that NumPy knows all about, or None if it has none."""
    array = np.asarray(value)
    kind = kind_of(as_dtype(array.dtype))
    if kind == "complex":
        return array
    return array.astype(np.float64) if kind == "float" else None


def _has_nan(value: Any) -> bool:
    floats = _floats(value)
    return floats is not None and bool(np.isnan(floats).any())


def _has_infinity(value: Any) -> bool:
    floats = _floats(value)
    return floats is not None and bool(np.isinf(floats).any())


def _summary(value: Any) -> str:
    """Describe a value: its spec, its range, and where it is not finite."""
    array = np.asarray(value)
    text = format_spec(array.shape, as_dtype(array.dtype))
    floats = _floats(array)
    if floats is None or not floats.size:
        return text
    finite = floats[np.isfinite(floats)]
    if floats.dtype.kind != "c" and finite.size:
        text += f" from {finite.min():.6g} to {finite.max():.6g}"
    for name, where in (("NaN", np.isnan(floats)), ("infinite", np.isinf(floats))):
        if where.any():
            text += f", {int(where.sum())} of {where.size} {name}, first at {[int(i) for i in np.argwhere(where)[0]]}"
    return text
