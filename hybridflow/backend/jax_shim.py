"""All uses of jax that differ between versions or are not fully public."""

from __future__ import annotations

import importlib
import itertools
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import starmap
from operator import methodcaller
from pathlib import Path
from typing import Any, cast

import jax
from jax.core import Tracer as Tracer
from jax.core import eval_jaxpr as eval_jaxpr
from jax.experimental import io_callback, serialize_executable
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.xla_metadata import set_xla_metadata as set_xla_metadata

try:
    from jax._src.xla_bridge import backends_are_initialized as _has_started  # noqa: TID251 (it has no other name)
except ImportError:
    _has_started = None

JAX_VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())
SOUND_INTEGERS = JAX_VERSION >= (0, 12)
"""Whether XLA compiles signed integers rightly.

Measured: with jax 0.10.2, ``x * x < 0`` and ``abs(x) < 0`` are always False, and ``abs(x * x)`` is ``x * x``, although
they wrap; and the compiler crashes on ``&`` and ``|`` of a narrowing cast. With jax 0.12.0 all are right.
"""


def enable_x64(flag: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which jax keeps 64-bit dtypes (or does not); the process's default stays as it is."""
    return jax.enable_x64(flag)


_LIMIT = "jax_traceback_in_locations_limit"
_LOCATIONS = threading.Lock()
_without: list[int] = []
"""The limit to restore, once for each thread that is lowering."""


@contextmanager
def without_locations() -> Generator[None]:
    """Lower without the Python lines of operations: they would be this package's lines, and writing them is slow.

    Operations keep their names. The setting affects other threads that lower at the same time, too.
    """
    if _LIMIT not in cast(Any, jax.config).values:
        yield
        return
    with _LOCATIONS:
        _without.append(_without[0] if _without else cast(Any, jax.config).jax_traceback_in_locations_limit)
        jax.config.update(_LIMIT, 0)
    try:
        yield
    finally:
        with _LOCATIONS:
            before = _without.pop()
            if not _without and cast(Any, jax.config).jax_traceback_in_locations_limit == 0:
                jax.config.update(_LIMIT, before)


def compile_with(lowered: Any, options: Mapping[str, Any]) -> Any:
    """Compile a lowering with entries of XLA's `xla_backend_extra_options`, a table that jax does not pass on.

    If the installed jax has other internals, the entries have no effect.

    Args:
        lowered: a `jax.stages.Lowered` that no other thread compiles at the same time.
        options: the entries.

    Returns:
        The `jax.stages.Compiled`.
    """
    try:
        arguments = lowered._lowering.compile_args
        client = arguments["backend"]
    except (AttributeError, KeyError):
        return lowered.compile()
    arguments["backend"] = _ClientWithOptions(client, options)
    try:
        compiled = lowered.compile()
    finally:
        arguments["backend"] = client
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    if unloaded is not None:  # saving the executable needs jaxlib's own client
        unloaded.backend = client
    return compiled


class _ClientWithOptions:
    """A client that compiles for a device with extra options."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        self._client = client
        entries = [
            _message_field(1, name.encode()) + _message_field(2, str(value).encode()) for name, value in options.items()
        ]
        # The table is a field of the debug options, in the executable's options, in the compile options. Appending an
        # encoded message to another merges the two.
        self._extra = b"".join([_message_field(3, _message_field(3, _message_field(500, entry))) for entry in entries])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def compile_and_load(self, *arguments: Any, compile_options: Any, **keywords: Any) -> Any:
        """Compile with jax's options and the extra ones."""
        more = type(compile_options).ParseFromString(compile_options.SerializeAsString() + self._extra)
        return self._client.compile_and_load(*arguments, compile_options=more, **keywords)


def _message_field(number: int, content: bytes) -> bytes:
    """Return a protocol buffer field that holds bytes: a string or another message."""
    # https://protobuf.dev/programming-guides/encoding: the field's number, its wire type (2), its length, its bytes
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def _as_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_STATISTICS: set[type] = set()
"""The types that jaxlib creates to iterate over a profile's statistics, kept alive here."""


def read_profile(path: Path) -> Any:
    """Return the file of jax's profiler as a `jax.profiler.ProfileData`.

    jaxlib creates the types in `_STATISTICS` on first use, and again if they have been freed. Python 3.13 warns about
    this, which ends the process if warnings are errors. So they are created here, without the warning, and kept.
    """
    data: Any = jax.profiler.ProfileData.from_file(str(path))
    if not _STATISTICS:
        lines = (line for plane in data.planes for line in plane.lines)
        having = [*itertools.islice(data.planes, 1), *itertools.islice((e for line in lines for e in line.events), 1)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "builtin type .* has no __module__ attribute", DeprecationWarning)
            _STATISTICS.update([type(one.stats) for one in having])
    return data


def row_major(x: Any) -> Any:
    """Make a lowered program store an array in row-major order; by default XLA may choose another layout."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim)))) if x.ndim > 1 else x


def is_tracer(value: Any) -> bool:
    """Whether a value is a jax tracer, without a concrete value."""
    return isinstance(value, Tracer)


def ordered_callback(function: Callable[..., Any], results: Any, *arrays: Any) -> Any:
    """Call a Python function from a lowered program: at every run, in program order, even if its result is unused."""
    return io_callback(function, results, *arrays, ordered=True)


def wait_for_everything() -> None:
    """Wait until jax has computed every array and run every callback."""
    for array in jax.live_arrays():
        array.block_until_ready()
    jax.effects_barrier()


def xla_has_started() -> bool:
    """Whether jax has started XLA and its threads in this process; True if the installed jax does not tell."""
    return _has_started is None or _has_started()


def x64_enabled() -> bool:
    """Whether jax keeps 64-bit dtypes in the current context."""
    return bool(cast(Any, jax.config).jax_enable_x64)


def jaxpr_as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """Return a traced program as a function of a flat list of arrays."""
    from jax.extend.core import jaxpr_as_fun  # imported here, since it imports Pallas, which is slow

    return jaxpr_as_fun(jaxpr)


_NO_MATTER = ("cache", "log", "dump", "explain", "pprint", "platform", "traceback", "debug_info")
"""Parts of names: a jax setting with one of these in its name does not affect compilation."""


def jax_settings() -> list[str]:
    """Return the current jax settings that a compilation may depend on, as ``name=value``."""
    settings: dict[str, Any] = cast(Any, jax.config).values
    return [
        f"{name}={getattr(jax.config, name, value)!r}"
        for name, value in sorted(settings.items())
        if not any(part in name for part in _NO_MATTER)
    ]


_found = threading.local()


def _count_found(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _found.number = found_by_jax() + 1


jax.monitoring.register_event_listener(_count_found)


def found_by_jax() -> int:
    """Return how many executables of this thread were found in jax's own cache on disk, and not compiled."""
    return getattr(_found, "number", 0)


def save_executable(compiled: Any) -> bytes:
    """Return a compiled function as bytes.

    It must have been compiled in this process: what XLA loaded and saves again lacks machine code.

    Raises:
        Exception: of any kind, if it holds something that exists only in this process.
    """
    return serialize_executable.serialize(compiled)[0]


def load_executable(saved: bytes, inputs: int, outputs: int, device: Any) -> Any:
    """Return the compiled function that `save_executable` saved as bytes.

    The bytes hold machine code and a pickle, both of which are executed: never pass bytes from an untrusted source.

    Args:
        saved: the bytes.
        inputs: the number of arrays it takes.
        outputs: the number of arrays it returns, in a tuple.
        device: the device it was compiled for.
    """
    in_tree = jax.tree_util.tree_structure(((0,) * inputs, {}))
    out_tree = jax.tree_util.tree_structure((0,) * outputs)
    return serialize_executable.deserialize_and_load(
        saved, in_tree, out_tree, backend=device.client, execution_devices=[device]
    )


def direct_call(compiled: Any, *, alone: bool = False) -> Callable[..., Any]:
    """Return the C++ function behind a compiled function, without jax's Python code around it.

    Args:
        compiled: a `jax.stages.Compiled` of a function of arrays.
        alone: whether to unwrap a result that is a list or tuple of one array.

    Returns:
        A function of the same arrays. If the installed jax has other internals, it is `compiled` itself.
    """
    try:
        params = compiled._params
        if alone:
            params = params._replace(out_tree=jax.tree_util.tree_structure(0))
        made = compiled._executable.create_cpp_call(params)
    except AttributeError:
        made = None
    if made is not None:
        return made
    return (lambda *arrays: compiled(*arrays)[0]) if alone else compiled


Into = Callable[[list[Any], list[Any]], None]
"""A function ``(arrays, held)`` that calls a program with the arrays and appends its results, as one sequence, to
`held`.

No bytecode runs between the call and the append, if jax's call is written in C. So an interrupt raises either before
the call, when no buffer was donated yet, or after the append, when the results are stored.
"""


def call_into(call: Callable[..., Any], hidden: tuple[Any, ...] = ()) -> Into:
    """Return the `Into` of a program.

    Args:
        call: a function that takes the arrays and returns the results.
        hidden: its additional arguments, after the arrays.
    """

    def into(arrays: list[Any], held: list[Any]) -> None:
        held.extend(starmap(call, ((*arrays, *hidden),)))

    return into


def bare_call(compiled: Any, otherwise: Into) -> Into | None:
    """Return a function that runs a compiled program without checking its arguments; it is faster than `direct_call`.

    Args:
        compiled: a `jax.stages.Compiled` of a function of arrays.
        otherwise: the `Into` to use while jax is set to look for NaNs in results, or to run nothing.

    Returns:
        An `Into` for jax arrays with the shapes and dtypes that the program was compiled for; other objects in the
        list give a TypeError. None if arrays may be on other devices than the program's, which jax would move or
        refuse; if the program has effects, callbacks or constants; or if the installed jax has other internals.
    """
    try:
        program, constants = compiled._executable, compiled._params.const_args
        run = program.unsafe_call
        special = (
            constants or run.mut or run.ordered_effects or run.has_unordered_effects or run.has_host_callbacks
            or run.pgle_profiler is not None or len(run.kept_var_idx) != compiled.in_tree.num_leaves
        )
        execute, handlers = run.xla_executable.execute_sharded, run.out_handler.handlers
        looks_at_results()
    except AttributeError:
        return None
    if special or jax.default_backend() != "cpu" or len(jax.devices()) != 1:
        return None

    results = methodcaller("consume_with_handlers", handlers)

    def into(arrays: list[Any], held: list[Any]) -> None:
        if looks_at_results():
            otherwise(arrays, held)
        else:
            held.extend(map(results, map(execute, (arrays,))))

    return into


def looks_at_results() -> bool:
    """Whether jax is set to look for NaNs or infinities in results, or to run nothing."""
    config = cast(Any, jax.config)
    return config.jax_debug_nans or config.jax_debug_infs or config.jax_no_execution


_HEARTBEAT_S = 7 * 24 * 3600
"""jax's own limits are out of the way: processes watch one another themselves, and say why they end."""


def serve_processes(address: str, count: int) -> Any:
    """Start the service with which jax's processes find one another; it runs until its result is shut down.

    Args:
        address: where it listens, as ``host:port``.
        count: the number of processes.
    """
    _jax: Any = importlib.import_module("jaxlib._jax")

    return _jax.get_distributed_runtime_service(address, count, heartbeat_timeout=_HEARTBEAT_S, shutdown_timeout=20)


class _Elsewhere:
    """Stands for a service that another process runs."""

    def shutdown(self) -> None:
        """Leave it alone."""


def join_processes(address: str, count: int, index: int, local: int | None) -> None:
    """Make this process one of several, whose service another process runs (see `serve_processes`).

    jax would run the service in process 0, and when that process dies, jaxlib aborts all others before they can say
    why.

    Args:
        address: the service's address.
        count: the number of processes.
        index: the number of this one.
        local: the number of its accelerator on this machine; None if it has all of them.
    """
    _jax: Any = importlib.import_module("jaxlib._jax")

    make = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = lambda *args, **options: cast(Any, _Elsewhere())
    try:
        jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
        jax.distributed.initialize(
            address, count, index, local, cluster_detection_method="deactivate", initialization_timeout=120,
            heartbeat_timeout_seconds=_HEARTBEAT_S, shutdown_timeout_seconds=20,
        )
    finally:
        _jax.get_distributed_runtime_service = make
