"""A large graph as several programs that run one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridflow.core.node import Edge
from hybridflow.ir.costs import Sizes, concrete
from hybridflow.ir.graph import Graph
from hybridflow.xla.pieces import Piece

if TYPE_CHECKING:
    from hybridflow.xla.executable import Executable

Make = Callable[[Graph, tuple[int, ...]], "Executable"]
"""A function from ``(graph, donated positions)`` to a program."""
MUCH_MORE = 1.1
"""Above this ratio of bytes, one order of the pieces counts as handing on much more than another."""


class Part(NamedTuple):
    """One of the programs of an executable that has several.

    Attributes:
        name: the heading of its texts.
        program: the program.
        runs: the number of times that a call of the executable runs it.
    """

    name: str
    program: Executable
    runs: int


class Lowerings(NamedTuple):
    """The counterpart of jax's lowering for several programs: their text, and what XLA counts in them.

    Attributes:
        parts: the programs.
    """

    parts: tuple[Part, ...]

    def as_text(self) -> str:
        """Return the text of the programs as XLA receives them, each headed by its name and its number of runs."""
        return _headed(self.parts, lambda made: made.lower().as_text())

    def cost_analysis(self) -> dict[str, float]:
        """Return what XLA counts in the programs, each as often as it runs."""
        total: dict[str, float] = {}
        counted = {part.program: counts_of(part.program.lower()) for part in self.parts}
        for part in self.parts:
            for what, count in counted[part.program].items():
                total[what] = total.get(what, 0.0) + part.runs * count
        return total


def counts_of(lowered: Any) -> dict[str, float]:
    """Return what XLA counts in a lowered program: ``flops``, ``transcendentals`` and others."""
    analysis = lowered.cost_analysis()
    return analysis[0] if isinstance(analysis, list) else analysis or {}


def _headed(parts: Sequence[Part], text: Callable[[Executable], str]) -> str:
    return "\n".join([f"// {name}, run {runs}x\n{text(made)}" for name, made, runs in parts])


class _Memory(NamedTuple):
    """The figures of `jax.stages.Compiled.memory_analysis`, in bytes."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int


@dataclass(eq=False, slots=True)
class _Run:
    """One run of a program. Values are numbered: first the graph's inputs, then the results of pieces.

    Attributes:
        piece: the piece to run.
        reused: the positions of the inputs whose buffers the outputs take over.
        reads, makes: the numbers of its inputs and outputs.
        frees: the numbers of the values that no later run reads.
        program: the compiled piece.
    """

    piece: Piece
    reused: tuple[int, ...]
    reads: list[int]
    makes: list[int]
    frees: list[int] = field(default_factory=list[int])
    program: Executable = field(init=False)

    def job(self, values: list[Any]) -> Callable[[], Any]:
        """Return the run as a function without arguments; it is written in C if jax offers that."""
        return partial(self.program.run, *[values[number] for number in self.reads], *self.program.hidden)

    def keep(self, results: Sequence[Any], values: list[Any]) -> None:
        """Keep the results, and release values that have no further reader."""
        for number, value in zip(self.makes, results, strict=True):
            values[number] = value
        for number in self.frees:
            values[number] = None


class Chain:
    """The counterpart of jax's compiled object for several programs: texts and figures.

    Args:
        graph: the whole graph.
        pieces: the pieces that compute it, in order.
        donate: positions of the inputs whose buffers the outputs may reuse. Only pieces whose results no other piece
            reads reuse them. These pieces run last, in one go. So a call that is interrupted before has donated
            nothing.
        sizes: the size of each symbol.
        make: the function that compiles a piece.

    Attributes:
        parts: the distinct programs, in the order of their first runs.
        donated: positions of the inputs whose buffers are reused.
    """

    def __init__(self, graph: Graph, pieces: Sequence[Piece], donate: Sequence[int], sizes: Sizes, make: Make) -> None:
        self._graph = graph
        self._bytes: list[int] = []
        numbers: dict[Edge, int] = {}
        for edge in [*[(node, 0) for node in graph.inputs], *[edge for piece in pieces for edge in piece.makes]]:
            numbers[edge] = len(numbers)
            self._bytes.append(concrete(edge[0].spec(edge[1]), sizes).nbytes)
        self._outputs = [numbers[edge] for edge in graph.outputs]
        reused = _reused_inputs(graph, pieces, donate, sizes)
        runs = [
            _Run(piece, one, [numbers[edge] for edge in piece.reads], [numbers[edge] for edge in piece.makes])
            for piece, one in zip(pieces, reused, strict=True)
        ]
        self._first = [run for run in runs if not run.reused]
        self._last = [run for run in runs if run.reused]
        self._runs = [*self._first, *self._last]
        self.donated = tuple(sorted([run.reads[position] for run in self._last for position in run.reused]))
        self._set_frees()
        self.parts = self._compiled(make)

    def _set_frees(self) -> None:
        read_later = {*self._outputs, *range(len(self._graph.inputs))}
        for run in reversed(self._runs):
            run.frees = [number for number in dict.fromkeys([*run.reads, *run.makes]) if number not in read_later]
            read_later.update(run.frees)

    def _compiled(self, make: Make) -> tuple[Part, ...]:
        executables: dict[tuple[Graph, tuple[int, ...]], Executable] = {}
        for run in self._runs:
            key = run.piece.graph, run.reused
            if key not in executables:
                executables[key] = make(*key)
            run.program = executables[key]
        times = Counter(run.program for run in self._runs)
        return tuple([Part(f"program {n}", one, times[one]) for n, one in enumerate(executables.values(), 1)])

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run all programs."""
        held: list[Any] = []
        self.into(arrays, held)
        return held[0]

    def into(self, arrays: Sequence[Any], held: list[Any]) -> None:
        """Run all programs, and append the outputs to the list (see `hybridflow.backend.jax_shim.Into`)."""
        values: list[Any] = [*arrays, *[None] * (len(self._bytes) - len(arrays))]
        for run in self._first:
            run.keep(run.job(values)(), values)
        jobs = [run.job(values) for run in self._last]
        results: list[Any] = []
        try:
            # No bytecode runs between these jobs. So no interrupt can come when only some inputs are donated.
            results.extend(map(call, jobs))
            self._finish(values, results, held)
        except BaseException:
            if len(results) == len(jobs) and not held:
                self._finish(values, results, held)
            raise

    def _finish(self, values: list[Any], results: Sequence[Any], held: list[Any]) -> None:
        for run, made in zip(self._last, results, strict=True):
            run.keep(made, values)
        held.append([values[number] for number in self._outputs])

    def as_text(self) -> str:
        """Return the text of the programs after XLA's optimisation, each headed by its name and its number of runs."""
        return _headed(self.parts, lambda made: made.compiled.as_text())

    def memory_analysis(self) -> _Memory | None:
        """Return the bytes that a call needs, or None if those of a program are not known.

        The size of the temporaries is a peak: the values that programs hand on to each other, plus the temporaries of
        the program that runs.
        """
        analyses = {part.program: part.program.compiled.memory_analysis() for part in self.parts}
        if None in analyses.values():
            return None
        size = self._bytes
        inputs, outputs = range(len(self._graph.inputs)), set(self._outputs)
        peak = waiting = 0
        for run in self._runs:
            waiting += sum([size[number] for number in run.makes if number not in outputs])
            peak = max(peak, waiting + int(analyses[run.program].temp_size_in_bytes))
            waiting -= sum([size[number] for number in run.frees])
        return _Memory(
            sum([size[number] for number in inputs]), sum([size[number] for number in self._outputs]),
            sum([size[number] for number in self.donated]), peak,
            sum([int(one.generated_code_size_in_bytes) for one in analyses.values()]),
        )


def _reused_inputs(graph: Graph, pieces: Sequence[Piece], donate: Sequence[int], sizes: Sizes) -> list[tuple[int, ...]]:
    """Return for each piece the inputs whose memory it may reuse."""
    read = {edge for piece in pieces for edge in piece.reads}
    last = {piece for piece in pieces if read.isdisjoint(piece.makes)}
    readers = Counter(edge for piece in last for edge in piece.reads)
    free = {(graph.inputs[position], 0) for position in donate}
    handed_over: list[tuple[int, ...]] = []
    for piece in pieces:
        results_left = Counter(concrete(node.spec(index), sizes) for node, index in piece.makes)
        reused: list[int] = []
        for position, edge in enumerate(piece.reads if piece in last else ()):
            spec = concrete(edge[0].spec(edge[1]), sizes)
            if edge in free and readers[edge] == 1 and results_left[spec]:
                results_left[spec] -= 1
                reused.append(position)
        handed_over.append(tuple(reused))
    return handed_over


def holds_much(graph: Graph, pieces: Sequence[Piece], donate: Sequence[int], sizes: Sizes) -> bool:
    """Whether values that wait for the last pieces, which reuse inputs, need much more memory than one program.

    One program uses such values as soon as they are computed. For example, the gradients of all dense layers would
    have to wait for the update, and with small batches they are much larger than the activations.

    Args:
        graph, pieces, donate, sizes: as `Chain` takes them.
    """
    reused = _reused_inputs(graph, pieces, donate, sizes)
    first = [piece for piece, taken in zip(pieces, reused, strict=True) if not taken]
    last = [piece for piece, taken in zip(pieces, reused, strict=True) if taken]
    return _handed_on(graph, [*first, *last], sizes) > MUCH_MORE * _handed_on(graph, first, sizes)


def _handed_on(graph: Graph, pieces: Sequence[Piece], sizes: Sizes) -> int:
    """Return the peak size in bytes of the values that pieces hand on, without the graph's inputs and outputs."""
    last = {edge: number for number, piece in enumerate(pieces) for edge in (*piece.reads, *piece.makes)}
    ends: defaultdict[int, int] = defaultdict(int)
    outputs = set(graph.outputs)
    most = waiting = 0
    for number, piece in enumerate(pieces):
        for edge in piece.makes:
            if edge not in outputs:
                size = concrete(edge[0].spec(edge[1]), sizes).nbytes
                waiting += size
                ends[last[edge]] += size
        most = max(most, waiting)
        waiting -= ends[number]
    return most
