"""`hf.compare`: functions run eagerly and compiled, their results judged and their calls timed."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any, cast, overload

from rich.console import Console

from hybridflow.analysis.compare.comparison import Comparison
from hybridflow.analysis.compare.measure import Effort, Progress, measure, silenced
from hybridflow.analysis.compare.meshes import OnMesh
from hybridflow.analysis.compare.several import Comparisons
from hybridflow.analysis.compare.sizes import calls_of_sizes
from hybridflow.analysis.compare.sweep import Sweep
from hybridflow.analysis.parity import Call, Parity, check_parity, fresh_copy
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.keywords import require_taken
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.tracing.function import CompiledFunction

SECONDS = 20.0
"""How long the calls are timed at most, by default."""
Functions = Sequence[Callable[..., Any]]
Peers = Mapping[str, Callable[..., Any]]


@overload
def compare(
    fn: Callable[..., Any],
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: None = None,
    inputs: None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Comparison: ...
@overload
def compare(
    fn: Functions,
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: None = None,
    inputs: None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Comparisons: ...
@overload
def compare(
    fn: Callable[..., Any] | Functions,
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: Sequence[int],
    inputs: Callable[[int], Any] | None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Sweep: ...
def compare(
    fn: Callable[..., Any] | Functions,
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: Sequence[int] | None = None,
    inputs: Callable[[int], Any] | None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Comparison | Comparisons | Sweep:
    """Run functions eagerly and compiled, judge whether the results are the same, and time both.

    Compiled functions are compiled again, so that the first call can be timed. Results are judged by the definition in
    `hybridflow.analysis.same`: integers, bools, shapes and dtypes must be identical, and floats as close to a float64
    run as rounding allows. Variables that the function assigns are compared too, and restored.

    Everything is timed in the same run, in turns. A difference in speed is reported only if the confidence intervals of
    the medians do not overlap (`hybridflow.analysis.statistics`).

    Args:
        fn: the function, compiled or not; or several, to compare side by side.
        args: its arguments.
        repeats: how many calls of each mode to time; about a second each if None. Fewer than 6 give no intervals.
        seconds: how long the calls are timed at most. If the time was over before all turns were made, the report says
            so, and what it could tell by then. Tracing, compiling, the first turn and judging take what they do.
        rtol, atol: judge floats by ``|eager - compiled| <= atol + rtol |compiled|`` instead, if one is given.
        gradients: also compare the gradients of the sum of the float results, with respect to every float tensor
            argument and every trainable Variable read, between the modes. Peers are judged by what they return: to
            judge their gradients, compare functions that return them, such as `hf.grad` of one with `jax.grad` of the
            other.
        peers: the same computation written with other packages, timed in the same turns, its results judged against
            the function's eager ones: callables by name. The name begins with the package, whose arrays they get
            copies of the arguments as: ``numpy``, ``torch`` or ``jax``, as in ``{"torch.compile": torch.compile(f)}``.
        agree: of several functions, also judge the results of the others against those of the first.
        mesh: also run the function compiled for this mesh, as a third column; "compiled" is then for one device. Its
            results are judged against the eager ones.
        batch: as in `hf.compile`, for the mesh; a function that is compiled for the mesh has its own layouts.
        sizes: compare at each of these sizes, to see where compiling starts to pay. Results of a program that serves
            several sizes, with padded inputs, are judged too.
        inputs: a function of a size that returns the arguments: a tuple, a dict by name, or a single one. Without it,
            the size replaces every None in the shape of a `TensorSpec` argument, which becomes a random tensor.
        progress: a function that is called with the current step and the fraction done, from 0 to 1. By default a
            terminal's error stream, or a notebook, shows both in a line, which disappears at the end.
        kwargs: arguments by name. Use `functools.partial` for a name that `compare` itself has.

    Returns:
        A `Comparison`; of several functions `Comparisons`; of several sizes a `Sweep`. Its ``same`` is the verdict.

    Raises:
        ArgumentError: `repeats` less than 1, `seconds` not above 0, a negative tolerance, no function, arguments that
            do not go together.
        ArgumentTypeError: peers that are not callables by name, or `mesh` is no mesh.
        LayoutError: `batch` without a mesh, or a function that is compiled for another one.
        MissingPackageError: a peer's package is not installed.

    Example:
        >>> import hybridflow as hf
        >>> found = hf.compare(lambda x: hf.tanh(x) * x, hf.asarray([1.0, 2.0]), repeats=5)
        >>> found.same, found.eager.calls
        (True, 5)
        >>> sweep = hf.compare(hf.tanh, hf.TensorSpec([None]), sizes=[8, 64], repeats=2)
        >>> sweep.same, sweep[64].name
        (True, 'tanh')
    """
    if repeats is not None and repeats < 1:
        raise ArgumentError(f"compare: repeats={repeats}, which is less than 1")
    if not seconds > 0:
        raise ArgumentError(f"compare: seconds={seconds}, which is not above 0")
    tolerance = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
    if tolerance is not None and min(tolerance) < 0:
        raise ArgumentError(f"compare: a negative tolerance: rtol={rtol}, atol={atol}")
    functions = _functions(fn)
    given = {
        "repeats": repeats, "seconds": None if seconds == SECONDS else seconds, "rtol": rtol, "atol": atol,
        "gradients": gradients or None, "peers": peers,
        "agree": agree or None, "mesh": mesh, "batch": batch, "sizes": sizes, "inputs": inputs, "progress": progress,
    }
    _refuse_theirs(functions, [name for name, value in given.items() if value is not None])
    for one in functions:
        require_taken("compare", given, kwargs, one)
    on_mesh = OnMesh.of(mesh, batch, len(functions))
    effort = Effort(repeats, seconds, tolerance, gradients, agree, on_mesh)
    with shown_progress(progress) as told:
        return _compared(fn, functions, (args, kwargs), peers or {}, effort, told, sizes, inputs)


def _compared(
    fn: Any, functions: Functions, given: Call, peers: Peers, effort: Effort, told: Progress,
    sizes: Sequence[int] | None, inputs: Callable[[int], Any] | None,
) -> Comparison | Comparisons | Sweep:
    """Return the result for the arguments as they are, or for sizes."""
    if sizes is None:
        if inputs is not None:
            raise ArgumentError("compare: inputs= makes the arguments of each of sizes=, which is not given",
                                hint="hf.compare(f, sizes=[100, 10_000], inputs=lambda size: (hf.ones((size,)),))")
        measured = measure(functions, given, peers, effort, told)
        told("done", 1.0)
        return measured[0] if callable(fn) else measured
    calls = calls_of_sizes(sizes, inputs, *given)
    at_sizes: list[Comparisons] = []
    for number, (size, call) in enumerate(calls.items()):

        def at_size(what: str, done: float, number: int = number, size: int = size) -> None:
            told(f"size {size:,}: {what}", (number + done) / len(calls))

        at_sizes.append(measure(functions, call, peers, effort, at_size))
    with silenced():
        judged = judge_within_bounds(functions, [*calls.values()], at_sizes, effort.tolerance)
    told("done", 1.0)
    return Sweep(tuple(calls), judged)


@contextmanager
def shown_progress(progress: Progress | None) -> Generator[Progress]:
    """Return a function that shows the present step where the caller looks, even while calls are silenced."""
    out, err = sys.stdout, sys.stderr
    show = progress or _line_for_steps()

    def told(what: str, done: float) -> None:
        with redirect_stdout(out), redirect_stderr(err):
            show(what, done)

    try:
        yield told
    finally:
        if progress is None:
            told("", 1.0)


def _line_for_steps() -> Progress:
    """Return a function that shows a step in a line, which an empty step removes; nothing if nobody looks."""
    handle: Any = None

    def in_terminal(what: str, done: float) -> None:
        sys.stderr.write(f"\r\x1b[2Kcompare: {what}, {done:.0%}" if what else "\r\x1b[2K")
        sys.stderr.flush()

    def in_notebook(what: str, done: float) -> None:
        handle.update({"text/plain": f"compare: {what}, {done:.0%}" if what else ""}, raw=True)

    if Console(stderr=True).is_jupyter:
        from IPython.display import DisplayHandle

        handle = DisplayHandle()
        handle.display({"text/plain": ""}, raw=True)
        return in_notebook
    return in_terminal if sys.stderr is not None and sys.stderr.isatty() else lambda what, done: None


def _functions(fn: Callable[..., Any] | Functions) -> Functions:
    """Return the functions to compare."""
    functions = [fn] if callable(fn) else list(fn) if isinstance(cast(Any, fn), list | tuple) else None
    if functions is None or not all(callable(cast(Any, one)) for one in functions):
        raise ArgumentTypeError("compare: takes a function, or a list of functions", got=repr(fn)[:80],
                                hint="Pass f itself, not the result f(x): hf.compare(f, x), or hf.compare([f, g], x).")
    if not functions:
        raise ArgumentError("compare: the list of functions is empty", got="[]", hint="Write hf.compare([f, g], x).")
    return functions


def _refuse_theirs(functions: Functions, given: Sequence[str]) -> None:
    """Raise if something that was given by name may be meant for a function."""
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # some callables of C have none that Python knows
            continue
        settled = function.keywords if isinstance(function, functools.partial) else {}
        for name in given:
            if name in parameters and name not in settled:
                raise ArgumentError(
                    f"compare: {name}= is an option of hf.compare, and a parameter of the function too",
                    got=f"{getattr(function, '__name__', 'function')}{inspect.signature(function)}",
                    hint=f"Compare functools.partial(function, {name}=...), which settles the function's own."
                )


# -- judgements of functions that are compiled for bounds: one program for all sizes up to one ------------------------

def judge_within_bounds(
    functions: Sequence[Callable[..., Any]],
    calls: Sequence[Call],
    measured: Sequence[Comparisons],
    tolerance: tuple[float, float] | None,
) -> tuple[Comparisons, ...]:
    """Add, for each size that a program for a bound serves, a judgement of what it gives.

    The largest size comes first: with it the function is traced, and the next one opens the sizes.

    Args:
        functions: the functions.
        calls: the arguments at each size, ascending.
        measured: what was found with programs for exact sizes, at each size.
        tolerance: as in `check_parity`.
    """
    found = [*measured]
    for number, function in enumerate(functions):
        compiled = fresh_copy(function, bounded=True)
        for at in reversed(range(len(calls))):
            parity = check_parity(compiled, [calls[at]], "results of padded inputs", tolerance)
            if _bounds(compiled):
                found[at] = _with_parity(found[at], number, parity)
    return tuple(found)


def _bounds(compiled: CompiledFunction[Any, Any]) -> bool:
    """Whether the last call ran a program for a bound."""
    return any([one.bounded for one in compiled.explain()[-1].executables])


def _with_parity(found: Comparisons, number: int, parity: Parity) -> Comparisons:
    comparisons = [*found]
    comparisons[number] = comparisons[number].with_parity(parity)
    return replace(found, comparisons=tuple(comparisons))
