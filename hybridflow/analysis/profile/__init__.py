"""`hf.profile`: where the time of a block goes."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, overload

import jax

from hybridflow.analysis.profile.events import read_kernels
from hybridflow.analysis.profile.recorder import Recorder
from hybridflow.analysis.profile.result import Profile as Profile
from hybridflow.core.context import CONTEXT, Context, current
from hybridflow.core.errors import ArgumentTypeError, TraceError
from hybridflow.core.profiling import PROFILER
from hybridflow.xla.pending import synchronize


@overload
def profile() -> AbstractContextManager[Profile]: ...


@overload
def profile(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Profile: ...


def profile(
    function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
) -> AbstractContextManager[Profile] | Profile:
    """Profile everything that runs in a ``with`` block, eager and compiled; or one call of a function.

    Eager operations and gradient rules are timed one by one, until their results are computed. Compiled functions are
    compiled again, so that XLA's kernels can be matched with nodes and the user's lines; the profile shows this
    separately from the calls. As without a profile, a compiled call returns before its results are computed; the block
    ends when all results are. Only the thread that enters the block is profiled.

    Profiling takes time: its overhead for a plain operation is measured, and shown in the table.

    Args:
        function: a function, which is called once; None for a block.
        args, kwargs: its arguments.

    Returns:
        The profile, which is filled when the block ends; ``print(p)`` shows a table. See `Profile`.

    Raises:
        TraceError: in a compiled function, inside of another profile, or while jax's profiler is running.
        ArgumentTypeError: the first argument is no function.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.ones((64, 64))
        >>> with hf.profile() as p:
        ...     y = hf.tanh(x @ x)
        >>> sorted(row.name for row in p.operations)
        ['matmul', 'tanh']
        >>> [row.name for row in hf.profile(hf.tanh, x).operations]
        ['tanh']
    """
    if function is None and not args and not kwargs:
        return _block()
    if not callable(function):
        raise ArgumentTypeError(f"profile: a {type(function).__name__} is no function", got=repr(function)[:80],
                                hint="Write hf.profile(f, x), or with hf.profile() as p: around the calls.")
    with _block() as result:
        function(*args, **kwargs)
    return result


@contextmanager
def _block() -> Generator[Profile]:
    context, outer = current(), PROFILER.get()
    if context.tracer is not None or (outer is not None and outer.records()):
        where = "in a compiled function" if context.tracer is not None else "inside of another profile"
        raise TraceError(f"profile: entered {where}", hint="Enter it once, around the calls.")
    synchronize()
    recorder, result = Recorder(), Profile()
    folder = Path(tempfile.mkdtemp(prefix="hybridflow-profile-"))
    try:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        _start(folder, options)
        try:
            yield from _recorded(recorder, result)
        finally:
            jax.profiler.stop_trace()
        result.fill(recorder, read_kernels(folder, recorder.calls))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, options: jax.profiler.ProfileOptions) -> None:
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise TraceError(
            "profile: a process has one profile at a time, and jax's profiler is running", got=str(error),
            hint="Stop it first (jax.profiler.stop_trace()), or wait for the other thread's profile."
        ) from error


def _recorded(recorder: Recorder, result: Profile) -> Generator[Profile]:
    context = current()
    profiler = PROFILER.set(recorder)
    outer = CONTEXT.set(Context(None, context.tapes, context.device, context.grad, context.autocast))
    result.start = time.perf_counter_ns()
    try:
        yield result
    finally:
        PROFILER.reset(profiler)
        CONTEXT.reset(outer)
        try:
            recorder.unfinished.wait()
        finally:
            recorder.closed = True
            result.end = time.perf_counter_ns()
