"""Compiling a graph with XLA, timed step by step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import jax
import numpy as np

from hybridflow.backend.collector import collector_paused
from hybridflow.backend.free_memory import free_memory
from hybridflow.backend.fusion import NEVER_SPEC, false_on, inlines_nothing_often, needs_never, with_never
from hybridflow.backend.host_calls import SESSION_SPEC, run_session, with_session
from hybridflow.backend.jax_shim import (
    Into,
    bare_call,
    call_into,
    compile_with,
    direct_call,
    enable_x64,
    found_by_jax,
    without_locations,
)
from hybridflow.backend.options import MANY_PARTS, MANY_ROWS, SMALL_VALUE, call_options, compiler_options, lowered_on
from hybridflow.backend.process_memory import return_free_memory
from hybridflow.core.activity import doing
from hybridflow.core.device import is_host
from hybridflow.core.dims import evaluate as evaluate_size
from hybridflow.core.dtypes import WIDE
from hybridflow.core.forked import require_xla
from hybridflow.core.node import Node
from hybridflow.core.out_of_memory import not_enough, ran_out
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.units import format_bytes
from hybridflow.ir.costs import bytes_gathered_again, has_large_products, has_many_small_values
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import NAMER, lower_graph
from hybridflow.ir.fusion import reads_never
from hybridflow.ir.graph import Graph
from hybridflow.xla.chain import Chain, Lowerings, Part, holds_much
from hybridflow.xla.joint import Joint, member_on
from hybridflow.xla.pieces import cut, is_too_long
from hybridflow.xla.placing import MeshCall, Placing, run_alone_with, runs_on_several
from hybridflow.xla.scopes import Namer, fusions, naming
from hybridflow.xla.store.stored_programs import Entry, entry_for

T = TypeVar("T")
LOADED = "loaded"
"""The outcome of `Executable.store` if the store had the executable."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Executable:
    """A graph compiled for given shapes.

    Attributes:
        call: takes raw arrays, returns a list or tuple of `jax.Array`.
        into: the same as an `Into`, for calls whose results must not be lost.
        bare: a faster `into`, which checks nothing. Its arguments must be `jax.Array` with the shapes and dtypes of
            the graph's inputs. None if this program has no such function.
        run: the function that `call` wraps; with most versions of jax it is written in C++. It also takes `hidden`.
        hidden: additional arguments of the program, behind the arrays.
        compiled: jax's compiled object, for its texts and analyses; a `Chain` if there are several programs.
        lower: returns jax's lowering, for its text; `Lowerings` if there are several programs. The graph is lowered
            again if the executable was loaded from the store.
        lower_ms: milliseconds that jax took to trace and lower to StableHLO.
        xla_ms: milliseconds of XLA's compilation; 0 if the executable was loaded.
        load_ms: milliseconds to find and load the executable in the store; 0 if it was not there.
        store: the store's outcome: ``loaded``, ``stored``, or why neither happened.
        options: XLA's compiler options.
        donated: positions of the inputs whose buffers the outputs may reuse.
        namer: the namer that named the program's instructions after the graph's nodes.
        parts: the programs, if there are several.
        alone: for a program with one output, makes a `call` that returns this output itself, not in a list. None if
            this program has no such function.
        placing: how its inputs and outputs lie on a mesh; None for one device.
    """

    call: Callable[..., Any]
    into: Into
    bare: Into | None
    run: Callable[..., Any]
    hidden: tuple[Any, ...]
    compiled: Any
    lower: Callable[[], Any]
    lower_ms: float
    xla_ms: float
    load_ms: float
    store: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    donated: tuple[int, ...] = ()
    namer: Namer = field(default_factory=Namer)
    parts: tuple[Part, ...] = ()
    alone: Callable[[], Callable[..., Any]] | None = None
    placing: Placing | None = None

    def fusions(self) -> dict[str, tuple[Node, ...]]:
        """Return the kernels that compute several instructions, by name, with the graph's nodes in each."""
        if not self.parts:
            return fusions(self.compiled.as_text(), self.namer)
        return {f"{part.name}: {name}": nodes for part in self.parts for name, nodes in part.program.fusions().items()}


def is_wide(graph: Graph) -> bool:
    """Whether a graph has a 64-bit value, which jax must be told to keep."""
    if any(spec.dtype.num in WIDE for spec in (*graph.input_specs, *graph.output_specs)):
        return True
    return any(node.spec(index).dtype.num in WIDE for node in graph.walk() for index in range(len(node.outputs)))


def concrete_specs(specs: Sequence[TensorSpec], sizes: dict[str, int]) -> list[TensorSpec]:
    """Return specs with symbolic sizes replaced."""
    return [make_spec(tuple([evaluate_size(size, sizes) for size in spec.shape]), spec.dtype) for spec in specs]


def compile_graph(
    graph: Graph, *, donate: Sequence[int] = (), sizes: dict[str, int], device: Any = None, note: str | None = None,
    placing: Placing | None = None,
) -> Executable:
    """Compile a graph: as one program, or as several if it is a large one with repeated parts.

    It becomes one program if several would hold much more memory between them (`holds_much`), or if nodes are named
    for a profile. A graph that `is_too_long` becomes several even so.

    Args:
        graph: the graph, after its passes.
        donate: positions of the inputs whose buffers the outputs may reuse. None is reused if the graph calls Python
            functions: if one fails, the inputs must still be there.
        sizes: the size of each symbol.
        device: the jax device to run on; jax's default one if None.
        note: what `store.ahead.begin` returned when the graph's function began to be traced.
        placing: the mesh to run on, and how values lie there; None for one device.
    """
    require_xla("compiling")
    with doing("compiling", graph.name):
        if placing is None:
            made, copies = _compiled(graph, donate, sizes, device, note), 1
        else:
            made = _Compilation(graph, donate, sizes, device, placing=placing).executable(note)
            device, copies = placing.mesh.devices[0], placing.mesh.size // len(placing.mesh.processes)
        on_host = jax.default_backend() == "cpu" if device is None else is_host(device)
        return guarded(made, graph.name, copies) if on_host else made


def _compiled(
    graph: Graph, donate: Sequence[int], sizes: dict[str, int], device: Any, note: str | None
) -> Executable:
    """Compile a graph for one device; see `compile_graph`."""
    whole = _Compilation(graph, donate, sizes, device)
    may_be_cut = needs_never(whole.backend) and not whole.calls_host and NAMER.get() is None
    pieces = cut(graph, sizes) if may_be_cut else None
    if pieces is None or (holds_much(graph, pieces, whole.donated, sizes) and not is_too_long(graph)):
        return whole.executable(note)

    def make(piece: Graph, given: tuple[int, ...]) -> Executable:
        # All pieces get the whole graph's options: a piece alone may choose a library that does not pay here.
        return _Compilation(piece, given, sizes, device, whole.options).executable(None)

    chain = Chain(graph, pieces, donate, sizes, make)
    return _of_parts(chain, wide=whole.wide)


def _of_parts(chain: Chain, *, wide: bool) -> Executable:
    """Return several programs as one executable."""
    call, into = [_wide_call(one) if wide else one for one in (chain, chain.into)]
    programs = [part.program for part in chain.parts]
    done = Counter(one.store for one in programs)
    store = next(iter(done)) if len(done) == 1 else ", ".join([f"{count} {what}" for what, count in done.items()])
    return Executable(
        call, into, None, call, (), chain, lambda: Lowerings(chain.parts),
        sum([one.lower_ms for one in programs]), sum([one.xla_ms for one in programs]),
        sum([one.load_ms for one in programs]), store, programs[0].options, chain.donated, parts=chain.parts,
    )


class _Compilation:
    """One program on its way through jax and XLA.

    Args:
        graph, donate, sizes, device: as `compile_graph` takes them.
        options: XLA's compiler options; those for the graph if not given.
        placing: as `compile_graph` takes it.
    """

    def __init__(
        self, graph: Graph, donate: Sequence[int], sizes: dict[str, int], device: Any,
        options: Mapping[str, Any] | None = None, placing: Placing | None = None,
    ) -> None:
        self.graph = graph
        self.sizes = sizes
        self.placing = placing
        self.device = device if placing is None else placing.mesh.devices[0]
        self.backend = jax.default_backend() if self.device is None else self.device.platform
        self.calls_host = has_effects(graph)
        self.takes_false = placing is None and needs_never(self.backend) and reads_never(graph)
        self.wide = is_wide(graph)
        self.donated = () if self.calls_host else tuple(donate)
        if options is None:
            large, several = has_large_products(graph, sizes), placing is not None
            small = self.backend == "cpu" and has_many_small_values(graph, sizes, SMALL_VALUE, MANY_ROWS)
            gathers = several and bytes_gathered_again(graph, sizes) >= MANY_PARTS
            options = compiler_options(
                large_products=large, many_small_values=small, backend=self.backend, several=several, gathers=gathers
            )
        self.options = options
        # Only programs with the hidden input have functions that XLA must not inline.
        self.extra = call_options(self.backend) if self.takes_false else {}
        self.profiling = cast("Namer | None", NAMER.get())
        self.steps = _Steps(self._lower, self.wide, self.profiling or Namer(graph=graph), self.extra)

    def arguments(self) -> list[Any]:
        """Return the shapes and dtypes of the program's arguments."""
        specs = concrete_specs(self.graph.input_specs, self.sizes)
        if self.placing is not None:
            shardings = self.placing.inputs_for(specs)
        else:
            on_device = None if self.device is None else jax.sharding.SingleDeviceSharding(self.device)
            shardings = [on_device] * len(specs)
        arguments: list[Any] = [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
            for spec, sharding in zip(specs, shardings, strict=True)
        ]
        if self.calls_host:
            arguments.append(SESSION_SPEC)
        if self.takes_false:
            arguments.append(NEVER_SPEC)
        return arguments

    def _lower(self) -> Any:
        lowering = lower_graph(self.graph, self.sizes)
        if self.calls_host:
            lowering = with_session(lowering)
        if self.takes_false:
            lowering = with_never(lowering)
        options: dict[str, Any] = {}
        if self.placing is not None:
            lowering = self.placing.around(lowering, concrete_specs(self.graph.input_specs, self.sizes))
            options["out_shardings"] = self.placing.outputs_for()
        elif self.device is not None:  # a program without inputs runs there too
            options["out_shardings"] = jax.sharding.SingleDeviceSharding(self.device)
        function = jax.jit(lowering, donate_argnums=self.donated, compiler_options=dict(self.options), **options)
        with lowered_on(self.backend):
            return function.lower(*self.arguments())

    def _entry(self, note: str | None) -> Entry | str:
        if self.profiling is not None:
            return "not stored: it is profiled"
        if self.calls_host:
            return "not stored: it calls Python functions"
        if self.placing is not None:
            return "not stored: it runs on several devices"
        return entry_for(
            self.graph, self.arguments(), donate=self.donated, sizes=self.sizes, device=self.device,
            options={**self.options, **self.extra}, text=self.steps.text, note=note,
        )

    def _joint(self) -> Joint | None:
        """Compare the program with those of other processes, if it runs on their devices too."""
        joined = None if self.placing is None else member_on(self.placing.mesh)
        if joined is None or self.placing is None:
            return None
        with self.steps.context():
            arguments = self.arguments()
            placed = [f"{one.shape} {one.dtype} {one.sharding.spec}" for one in arguments]
            text = "\n".join([self.steps.text(), *placed])
        names = self.placing.names or tuple([f"input {index}" for index in range(len(arguments))])
        about = [f"{name}: {one}" for name, one in zip(names, placed, strict=False)]
        return Joint(
            joined, self.graph.name, text,
            lambda: [f"the function {self.graph.name}", *about, *str(self.graph).splitlines(), *text.splitlines()],
            names,
        )

    def executable(self, note: str | None) -> Executable:
        """Load the program from the store, or compile it."""
        steps = self.steps
        joint = self._joint()
        with steps.context():
            entry = self._entry(note)
            loaded = None if isinstance(entry, str) else steps.timed("load", lambda: entry.load(steps.lower))
            if loaded is not None:
                compiled, done = loaded, LOADED
            else:
                found = found_by_jax()
                compiled = steps.timed("xla", steps.compile)
                if isinstance(entry, str):
                    done = entry
                elif found_by_jax() > found:
                    done = "not stored: jax's own cache has it"
                else:
                    done = entry.save(compiled, steps.text, steps.seconds())
        return_free_memory()
        hidden = (false_on(self.device),) if self.takes_false else ()

        def of_arrays(run: Callable[..., Any]) -> Callable[..., Any]:
            call = _call_with(run, hidden) if hidden else run
            return _wide_call(call) if self.wide else call

        run = direct_call(compiled)
        if self.placing is not None:
            run = MeshCall(run, self.placing, self.arguments(), joint)
        elif self.backend == "cpu" and runs_on_several(compiled):
            run = partial(run_alone_with, run)  # a foreign function is for several devices
        call = of_arrays(run)
        if self.calls_host:
            call = _session_call(call)
            into, bare = call_into(call), None
        else:
            into = call_into(run, hidden)
            into = _wide_call(into) if self.wide else into
            bare = None if hidden or self.placing is not None else bare_call(compiled, into)
        return Executable(
            call, into, bare, run, hidden, compiled, steps.lower, steps.ms["lower"], steps.ms["xla"], steps.ms["load"],
            done, self.options, self.donated, steps.namer,
            alone=None if self.calls_host or self.placing is not None
            else lambda: of_arrays(direct_call(compiled, alone=True)),
            placing=self.placing,
        )


class _Steps:
    """The steps of one compilation, each run on first use and timed."""

    def __init__(self, lower: Callable[[], Any], wide: bool, namer: Namer, extra: Mapping[str, Any]) -> None:
        self.ms = {"lower": 0.0, "load": 0.0, "xla": 0.0}
        self._lower = lower
        self._lowered: Any = None
        self._wide = wide
        self.namer = namer
        self._extra = extra

    @contextmanager
    def context(self) -> Generator[None]:
        """Keep the graph's dtypes, and name lowered operations after its nodes."""
        with enable_x64() if self._wide else nullcontext(), naming(self.namer):
            yield

    def timed(self, step: str, run: Callable[[], T]) -> T:
        """Run a step, which may lower the graph first."""
        lowering, start = self.ms["lower"], time.perf_counter()
        result = run()
        self.ms[step] = (time.perf_counter() - start) * 1e3 - (self.ms["lower"] - lowering)
        return result

    def lower(self) -> Any:
        """Return jax's lowering."""
        if self._lowered is None:
            start = time.perf_counter()
            with self.context(), without_locations(), collector_paused():
                self._lowered = self._lower()
            self.ms["lower"] = (time.perf_counter() - start) * 1e3
        return self._lowered

    def text(self) -> str:
        """Return the lowered program."""
        return self.lower().as_text()

    def compile(self) -> Any:
        """Compile the lowering; use the extra options for calls if they suit all calls in the program."""
        if not self._extra or not inlines_nothing_often(self.text()):
            return self.lower().compile()
        return compile_with(self.lower(), self._extra)

    def seconds(self) -> float:
        """Return how long it took, in seconds."""
        return sum(self.ms.values()) / 1e3


def _call_with(compiled: Callable[..., Any], hidden: tuple[Any, ...]) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        return compiled(*arrays, *hidden)

    return call


def _session_call(compiled: Any) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        return run_session(compiled, arrays)

    return call


def _wide_call(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        with enable_x64():
            return compiled(*arrays)

    return call


# -- room for a program: whether the memory that it takes is there, before it gives buffers away ----------------------
# XLA allocates while a program runs. If that fails on a CPU, the call has returned, its results are errors, and the
# buffers that it took over are gone. So a program that takes much asks first. If little is left, its call also waits
# until the results are there: then they are values, or the call raises.

MUCH = 4 << 20
"""Programs that take fewer bytes do not ask: their calls are as quick as asking is."""
_PLENTY = 4
"""With this many times as much free as a program takes, its call does not wait for the results."""
_SPARE = 1 << 20
"""Bytes for what a program allocates beside its buffers."""


def guarded(executable: Executable, name: str, copies: int) -> Executable:
    """Return a program whose calls make sure that there is room, if it takes much.

    Args:
        executable: a program for the host.
        name: the function's name, for messages.
        copies: how many devices of the program share the host's memory.
    """
    analysis = executable.compiled.memory_analysis()
    if analysis is None:
        return executable
    results = int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes)
    room = _Room(name, copies * int(analysis.temp_size_in_bytes), copies * results)
    if room.needed < MUCH:
        return executable
    bare, alone = executable.bare, executable.alone
    return replace(
        executable,
        call=room.around(executable.call),
        into=room.around_into(executable.into),
        bare=None if bare is None else room.around_into(bare),
        alone=None if alone is None else lambda: room.around(alone()),
    )


class _Room:
    """The room that calls of a program need.

    Args:
        name: the function's name.
        temporaries, results: the sizes in bytes, without results that take over the buffers of inputs.

    Attributes:
        needed: both together.
    """

    def __init__(self, name: str, temporaries: int, results: int) -> None:
        self._name = name
        self._parts = temporaries, max(results, 0)
        self.needed = sum(self._parts)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that makes sure of the room first."""

        def with_room(*arrays: Any) -> Any:
            if self._is_plenty():
                return call(*arrays)
            self._require()
            try:
                return jax.block_until_ready(call(*arrays))
            except Exception as error:
                raise self._of_call(error) from error.__cause__

        return with_room

    def around_into(self, into: Into) -> Into:
        """Return an `Into` that makes sure of the room first; if it raises for want of memory, it appends nothing."""

        def with_room(arrays: list[Any], held: list[Any]) -> None:
            if self._is_plenty():
                into(arrays, held)
                return
            self._require()
            try:
                into(arrays, held)
                jax.block_until_ready(held[0])
            except Exception as error:
                held.clear()
                raise self._of_call(error) from error.__cause__

        return with_room

    def _is_plenty(self) -> bool:
        free = free_memory(_PLENTY * self.needed)
        return free is not None and free >= _PLENTY * self.needed

    def _require(self) -> None:
        """Raise unless the memory is there.

        Raises:
            OutOfMemoryError: with what is needed and what is there.
        """
        free = free_memory(self.needed)
        if free is not None and free < self.needed:
            return_free_memory()
            free = free_memory(self.needed)
        try:
            _ = [np.empty(size + _SPARE, np.uint8) for size in self._parts]  # fails beyond the process's limits
        except MemoryError:
            raise self._error(free) from None
        if free is not None and free < self.needed:
            raise self._error(free)

    def _of_call(self, error: Exception) -> Exception:
        """Return what the call raises for an error of jax."""
        return self._error(free_memory()) if ran_out(error) else error

    def _error(self, free: int | None) -> Exception:
        temporaries, results = map(format_bytes, self._parts)
        return not_enough(self._name, f"temporaries of {temporaries} and results of {results}", free)
