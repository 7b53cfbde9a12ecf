"""Recorded calls for a bound: forward and backward programs that serve all sizes up to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybridflow.autodiff.no_gradient import require_gradients
from hybridflow.autodiff.transform import Mask, SplitGradient, split_gradient
from hybridflow.core.errors import GradientError
from hybridflow.core.op import Op
from hybridflow.core.padding import NoRule
from hybridflow.ir.graph import Graph
from hybridflow.passes import run_passes
from hybridflow.tracing.bounded import Compiled, compile_bounded, cutting_to, padding_to
from hybridflow.tracing.choice import Choice
from hybridflow.tracing.executables import Padding
from hybridflow.tracing.recorded import Note, Recorded, asked_part, gradient_op, op_of

Sizes = Mapping[str, int]


class BoundedGradients:
    """The ops of recorded calls of one graph, for bounds or for exact sizes.

    What the backward program reads of the forward one stays padded between them.

    Args:
        graph: the result of `graph_to_record`.
        wanted: for each input, whether its gradient may be asked for.
        states: how many of the last inputs are Variables.
        first, always, forget: as `Choice` takes them.
        record: makes the `note` of programs for given sizes, which are bounds if padding is counted.
    """

    def __init__(
        self, graph: Graph, wanted: Mask, states: int, first: int, always: bool,
        forget: Callable[[], None],
        record: Callable[[Sizes, Padding | None], Note],
    ) -> None:
        self.graph = graph
        self.wanted = wanted
        self._states = states
        self._record = record
        self._split: SplitGradient | None = None
        self._choice: Choice[_Programs, Op] = Choice(
            [graph, graph], first, self._compile_bounds, self._compile_exact, forget, always=always
        )

    @property
    def why_not(self) -> str | None:
        """Why the programs are compiled for exact sizes; None if they are not."""
        return self._choice.why_not

    def op(self, sizes: dict[str, int]) -> Op:
        """Return the op of calls with given sizes."""
        program = self._choice.program(sizes)
        if program is None:
            return self._choice.exact(sizes)
        return program.made.op(sizes, self._choice.counter(program, sizes))

    def _compile_exact(self, sizes: Sizes) -> Op:
        return gradient_op(self.graph, self.wanted, None, {**sizes}, self._record(sizes, None))

    def _compile_bounds(self, bounds: dict[str, int], padding: Padding) -> _Programs:
        if self._split is None:
            try:
                self._split = split_gradient(self.graph, self.wanted)
                backward, _ = run_passes(self._split.backward, differentiable=False)
                require_gradients(backward)
            except GradientError as why:
                raise NoRule("a part of the function has no gradient") from why
        return _Programs(self.graph, self._split, bounds, self._states, self._record(bounds, padding))


class _Programs:
    """The forward program for some bounds, and the backward ones, which are compiled when they are asked for."""

    def __init__(
        self, graph: Graph, split: SplitGradient, bounds: dict[str, int], states: int, note: Note
    ) -> None:
        self.graph = graph
        self.split = split
        self.bounds = bounds
        self.note = note
        self.forward = compile_bounded(split.forward, bounds, states=states)
        note("results", self.forward.executable)
        self.outputs = self.forward.made.outputs[: len(graph.outputs)]
        self.residuals = self.forward.made.outputs[len(graph.outputs) :]
        self._backward: dict[Sequence[bool], Compiled] = {}
        self.backward([*split.present])  # there must be a rule for it too

    def backward(self, asked: Sequence[bool]) -> Compiled:
        """Return the program for the gradients that are asked for."""
        key = tuple(asked)
        if key not in self._backward:
            axes = dict(enumerate(self.residuals, len(self.split.reads)))
            self._backward[key] = made = compile_bounded(asked_part(self.split, asked), self.bounds, axes=axes)
            self.note("gradients", made.executable)
        return self._backward[key]

    def op(self, sizes: dict[str, int], count: Callable[[], None]) -> Op:
        """Return the op of calls with given sizes."""
        made, executable = self.forward
        pad, cut = padding_to(made, sizes), cutting_to(self.outputs, sizes, self.bounds)

        def forward(*arrays: Any) -> list[Any]:
            count()
            return cut(executable.call(*pad(arrays)))

        rule = _BoundedRule(self, sizes)
        return op_of(self.graph, self.split.forward, rule, forward, self.split.residuals)


class _BoundedRule(Recorded):
    """The gradient rule of a recorded call whose residuals are padded."""

    def __init__(self, programs: _Programs, sizes: dict[str, int]) -> None:
        super().__init__(programs.graph, programs.split, sizes, None, programs.note)
        self.programs = programs

    def compile(self, asked: Sequence[bool]) -> Callable[..., Any]:
        """Return the call of the backward program for the gradients that are asked for."""
        made, executable = self.programs.backward(asked)
        pad, cut = padding_to(made, self.sizes), cutting_to(made.outputs, self.sizes, self.programs.bounds)
        return lambda *arrays: cut(executable.call(*pad(arrays)))

    def residuals(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return residuals in their real sizes."""
        return cutting_to(self.programs.residuals, self.sizes, self.programs.bounds)(values)
