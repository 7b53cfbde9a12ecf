"""Every use of jax that differs between versions or is only semi-public."""

from __future__ import annotations

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
from jax.experimental import io_callback, serialize_executable
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.xla_metadata import set_xla_metadata as set_xla_metadata

try:
    from jax._src.xla_bridge import backends_are_initialized as _has_started  # noqa: TID251 (it has no other name)
except ImportError:
    _has_started = None

JAX_VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


def enable_x64(flag: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which jax keeps (or not) 64-bit dtypes, leaving the process default alone."""
    return jax.enable_x64(flag)


_LIMIT = "jax_traceback_in_locations_limit"
_LOCATIONS = threading.Lock()
_without: list[int] = []
"""The limit to go back to, once per thread that lowers now."""


@contextmanager
def without_locations() -> Generator[None]:
    """Lower without the lines of Python that operations come from: they are this package's, and take long to write.

    Names of operations stay. What other threads lower meanwhile has no lines either.
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
    """Compile a lowering with entries of XLA's `xla_backend_extra_options`: it is a table, which jax does not pass on.

    With a jax that is made otherwise they have no effect.

    Args:
        lowered: a `jax.stages.Lowered` that no other thread compiles meanwhile.
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
    if unloaded is not None:  # what is saved of it knows its client, and jaxlib's own alone
        unloaded.backend = client
    return compiled


class _ClientWithOptions:
    """What compiles for a device, with extra options."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        self._client = client
        entries = [
            _message_field(1, name.encode()) + _message_field(2, str(value).encode()) for name, value in options.items()
        ]
        # Of the options: those of the executable, of these: the debug options, of these: the table. What follows an
        # encoded message is merged into it.
        self._extra = b"".join([_message_field(3, _message_field(3, _message_field(500, entry))) for entry in entries])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def compile_and_load(self, *arguments: Any, compile_options: Any, **keywords: Any) -> Any:
        """Compile with the options that jax made, and the extra ones."""
        more = type(compile_options).ParseFromString(compile_options.SerializeAsString() + self._extra)
        return self._client.compile_and_load(*arguments, compile_options=more, **keywords)


def _message_field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer that holds bytes: a string or another message."""
    # https://protobuf.dev/programming-guides/encoding: the field's number, how it is written (2), its length, its bytes
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def _as_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_STATISTICS: set[type] = set()
"""The types that jaxlib makes to go through the statistics of a profile, kept alive."""


def read_profile(path: Path) -> Any:
    """Return what jax's profiler wrote to a file, as a `jax.profiler.ProfileData`.

    jaxlib makes these types when it first needs them and again when nothing held them, and Python 3.13 warns of how it
    makes them, which ends the process where warnings are errors. So they are made here, without the warning, and kept.
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
    """Have a lowered program keep an array in the order of its axes; elsewhere XLA may choose another."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim)))) if x.ndim > 1 else x


def is_tracer(value: Any) -> bool:
    """Whether a value only stands for one, while jax traces a function."""
    return isinstance(value, Tracer)


def ordered_callback(function: Callable[..., Any], results: Any, *arrays: Any) -> Any:
    """Call a Python function from a lowered program: at every run, in program order, whether or not it is read."""
    return io_callback(function, results, *arrays, ordered=True)


def wait_for_everything() -> None:
    """Wait until every array that jax computes is there and every callback has run."""
    for array in jax.live_arrays():
        array.block_until_ready()
    jax.effects_barrier()


def xla_has_started() -> bool:
    """Whether jax has begun to run XLA in this process, with threads of its own; True with a jax that does not tell."""
    return _has_started is None or _has_started()


def x64_enabled() -> bool:
    """Whether jax keeps 64-bit dtypes here and now."""
    return bool(cast(Any, jax.config).jax_enable_x64)


def jaxpr_as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """Return a traced program as a function of a flat list of arrays."""
    from jax.extend.core import jaxpr_as_fun  # it brings Pallas along, which takes long to import

    return jaxpr_as_fun(jaxpr)


_NO_MATTER = ("cache", "log", "dump", "explain", "pprint", "platform", "traceback", "debug_info")
"""Settings of jax with one of these in their name change nothing of what is compiled."""


def jax_settings() -> list[str]:
    """Return jax's settings that a compilation may depend on, as ``name=value``, as they are here and now."""
    settings: dict[str, Any] = cast(Any, jax.config).values
    return [
        f"{name}={getattr(jax.config, name, value)!r}"
        for name, value in sorted(settings.items())
        if not any(part in name for part in _NO_MATTER)
    ]


def save_executable(compiled: Any) -> bytes:
    """Return a compiled function as bytes.

    Raises:
        Exception: of any kind, if it holds what only this process has.
    """
    return serialize_executable.serialize(compiled)[0]


def load_executable(saved: bytes, inputs: int, outputs: int, device: Any) -> Any:
    """Return the compiled function that `save_executable` made bytes of.

    The bytes hold machine code and a pickle, which run: pass none that somebody else may have written.

    Args:
        saved: the bytes.
        inputs: how many arrays it takes.
        outputs: how many it returns, in a tuple.
        device: the device it was compiled for.
    """
    in_tree = jax.tree_util.tree_structure(((0,) * inputs, {}))
    out_tree = jax.tree_util.tree_structure((0,) * outputs)
    return serialize_executable.deserialize_and_load(
        saved, in_tree, out_tree, backend=device.client, execution_devices=[device]
    )


def direct_call(compiled: Any, *, alone: bool = False) -> Callable[..., Any]:
    """Return what a call of a compiled function ends up in, written in C++, without the Python around it.

    Args:
        compiled: a `jax.stages.Compiled` of functions of arrays.
        alone: whether to return the only array of a list or tuple itself.

    Returns:
        A function of the same arrays. It is `compiled` itself, in Python, with a jax that is made otherwise.
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
"""``(arrays, held)``: calls a program with the arrays and appends its results, as one sequence, to the list.

No bytecode runs between the call and the append, as far as jax's calls are written in C: an interrupt raises before,
when nothing was given away, or behind, when the results are there.
"""


def call_into(call: Callable[..., Any], hidden: tuple[Any, ...] = ()) -> Into:
    """Return a program's `Into`.

    Args:
        call: takes the arrays, and returns the results.
        hidden: what it takes behind the arrays.
    """

    def into(arrays: list[Any], held: list[Any]) -> None:
        held.extend(starmap(call, ((*arrays, *hidden),)))

    return into


def bare_call(compiled: Any, otherwise: Into) -> Into | None:
    """Return what runs a compiled program and asks nothing of its arguments; it costs a fifth less than `direct_call`.

    Args:
        compiled: a `jax.stages.Compiled` of functions of arrays.
        otherwise: what to call when jax has been told to look for NaNs in results, or to run nothing.

    Returns:
        An `Into` for jax arrays, which must have the shapes and dtypes that the program was compiled for; what else
        the list holds is a TypeError. None if there may be arrays on other devices than the program's, which
        jax would move or refuse, if the program has more to it than arrays, or with a jax that is made otherwise.
    """
    try:
        program, constants = compiled._executable, compiled._params.const_args
        run = program.unsafe_call
        special = (
            constants or run.mut or run.ordered_effects or run.has_unordered_effects or run.has_host_callbacks
            or run.pgle_profiler is not None or len(run.kept_var_idx) != compiled.in_tree.num_leaves
        )  # fmt: skip
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
    """Whether jax has been told to look for NaNs in results, or to run nothing."""
    config = cast(Any, jax.config)
    return config.jax_debug_nans or config.jax_debug_infs or config.jax_no_execution
