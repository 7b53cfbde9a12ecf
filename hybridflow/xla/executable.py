"""Compiling a graph with XLA, timed step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax

from hybridflow.backend.fusion import NEVER_SPEC, call_with_false, needs_never, with_never
from hybridflow.backend.host_calls import SESSION_SPEC, run_session, with_session
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.dims import evaluate as evaluate_size
from hybridflow.core.dtypes import WIDE
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.fusion import reads_never
from hybridflow.ir.graph import Graph


@dataclass(eq=False, slots=True)
class Executable:
    """A graph compiled for given shapes.

    Attributes:
        call: takes raw arrays, returns a list or tuple of `jax.Array`.
        compiled: jax's object, for its texts and analyses.
        lowered: jax's lowering, for its text.
        lower_ms: jax tracing and lowering to StableHLO, milliseconds.
        xla_ms: XLA's compilation, milliseconds.
    """

    call: Callable[..., Any]
    compiled: Any
    lowered: Any
    lower_ms: float
    xla_ms: float


def is_wide(graph: Graph) -> bool:
    """Whether a graph has a 64-bit value anywhere, so that jax must be told to keep it."""
    specs: list[TensorSpec] = [*graph.input_specs, *graph.output_specs]
    for node in graph.walk():
        specs.extend(node.specs)
    return any(spec.dtype.num in WIDE for spec in specs)


def concrete_specs(specs: Sequence[TensorSpec], sizes: dict[str, int]) -> list[TensorSpec]:
    """Return specs with symbolic sizes replaced."""
    return [make_spec(tuple([evaluate_size(size, sizes) for size in spec.shape]), spec.dtype) for spec in specs]


def compile_graph(graph: Graph, *, donate: Sequence[int] = (), sizes: dict[str, int], device: Any = None) -> Executable:
    """Compile a graph.

    Args:
        graph: the graph, after its passes.
        donate: positions of the inputs whose buffers the outputs may reuse; none are if the graph calls Python
            functions, which may fail and leave the inputs as they were.
        sizes: the size of each symbol.
        device: the jax device to run on; jax's default one if None.
    """
    backend = jax.default_backend() if device is None else device.platform
    sharding = None if device is None else jax.sharding.SingleDeviceSharding(device)
    lowering = lower_graph(graph, sizes)
    calls_host = has_effects(graph)
    if calls_host:
        lowering = with_session(lowering)
    takes_false = needs_never(backend) and reads_never(graph)
    if takes_false:
        lowering = with_never(lowering)
    function = jax.jit(
        lowering,
        donate_argnums=() if calls_host else tuple(donate),
        compiler_options=compiler_options(backend=backend),
    )
    wide = is_wide(graph)
    with enable_x64() if wide else nullcontext():
        start = time.perf_counter()
        arguments: list[Any] = [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
            for spec in concrete_specs(graph.input_specs, sizes)
        ]
        if calls_host:
            arguments.append(SESSION_SPEC)
        if takes_false:
            arguments.append(NEVER_SPEC)
        lowered = function.lower(*arguments)
        middle = time.perf_counter()
        compiled = lowered.compile()
        end = time.perf_counter()
    call: Callable[..., Any] = call_with_false(compiled, device) if takes_false else compiled
    if wide:
        call = _wide_call(call)
    if calls_host:
        call = _session_call(call)
    return Executable(call, compiled, lowered, (middle - start) * 1e3, (end - middle) * 1e3)


def _session_call(compiled: Any) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        return run_session(compiled, arrays)

    return call


def _wide_call(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        with enable_x64():
            return compiled(*arrays)

    return call
