"""`hf.compile`: a function, or a decorator with options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast, overload

from hybridflow.core.keywords import respelled
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.guards.dynamic import Dynamic, Sizes
from hybridflow.tracing.function import CompiledFunction

P = ParamSpec("P")
R = TypeVar("R")


@overload
def compile(
    fn: Callable[P, R],
    /,
    *,
    input_signature: Sequence[Any] | None = None,
    dynamic: Dynamic = "auto",
    static_argnames: Iterable[str] = (),
    autograph: bool = True,
    max_depth: int = 32,
    memory_budget: int | str | None = None,
    sizes: Sizes = "auto",
    mesh: Mesh | None = None,
    batch: Axis = None,
    in_layouts: Mapping[str, Any] | None = None,
    out_layouts: Any = None,
    verify: int | None = None,
    max_traces: int = 64,
    name: str | None = None,
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    fn: None = None,
    /,
    *,
    input_signature: Sequence[Any] | None = None,
    dynamic: Dynamic = "auto",
    static_argnames: Iterable[str] = (),
    autograph: bool = True,
    max_depth: int = 32,
    memory_budget: int | str | None = None,
    sizes: Sizes = "auto",
    mesh: Mesh | None = None,
    batch: Axis = None,
    in_layouts: Mapping[str, Any] | None = None,
    out_layouts: Any = None,
    verify: int | None = None,
    max_traces: int = 64,
    name: str | None = None,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
def compile(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    input_signature: Sequence[Any] | None = None,
    dynamic: Dynamic = "auto",
    static_argnames: Iterable[str] = (),
    autograph: bool = True,
    max_depth: int = 32,
    memory_budget: int | str | None = None,
    sizes: Sizes = "auto",
    mesh: Mesh | None = None,
    batch: Axis = None,
    in_layouts: Mapping[str, Any] | None = None,
    out_layouts: Any = None,
    verify: int | None = None,
    max_traces: int = 64,
    name: str | None = None,
    **other: Any,
) -> Any:
    """Compile a function: trace it once per signature, lower the graph to XLA, and run that from then on.

    A signature consists of the structure, dtypes and shapes of tensors, the specs and aliasing of Variables, and the
    type and value of every other argument. NumPy scalars, and arrays of NumPy and other libraries, count as tensors.
    An object that is neither a plain value nor a frozen dataclass counts by identity. It does not matter whether
    arguments are passed by position or by name. The order of a dict does not matter either: the function sees the
    order of the call that made the trace. Variables that the function reads become inputs, and those it assigns become
    outputs. A call writes all of the assigned Variables, or none. Python's numbers among the results are numbers of the
    same type and value as in eager code.

    Args:
        fn: the function; if left out, `compile` is a decorator with arguments.
        input_signature: a structure of `TensorSpec` for each of the first arguments (not counting a method's
            instance). Lists and arrays are cast to the spec's dtype; another rank or dtype is an error. A size of None
            is open: one trace serves all sizes, and XLA compiles for each. A size with a name is open too, and must be
            the same wherever the name occurs.
        dynamic: whether a size that differs from earlier calls is left open in the next trace (except sizes 0 and 1,
            which have traces of their own). ``"auto"`` stops doing so for calls whose open traces failed eight times
            because the code needs the numbers. True never stops. With False, every shape has a trace of its own.
        static_argnames: parameters that are part of the signature by value, whatever their type: Python's own types by
            all that they hold, objects of other classes by their own ``==`` and hash.
        autograph: convert the source of the function, and of the functions it calls, so that Python's control flow
            accepts tensors and its reads and writes outside are known. False traces the function unconverted.
        max_depth: the largest depth of a recursion that a condition on a tensor ends; a call that needs more fails.
        memory_budget: the bytes that the temporaries of a call may take, besides its inputs and outputs: a number, or
            a string such as ``"256MiB"``. Values that live too long are recomputed where they are read, the cheapest
            first and no more than needed by XLA's own figure. Results and random draws stay the same. A smaller budget
            never takes more memory. `explain` tells what is recomputed and at what cost. A budget takes a few extra
            compilations, and does not count what a tape outside the function keeps of its call.
        sizes: what XLA compiles for where sizes are left open. ``"exact"``: for every combination of sizes.
            ``"bounded"``: for bounds, such as 8, 16 or 64. A call pads its arguments up to the bound; the program takes
            the real sizes as inputs and keeps the padding out of every result; results are cut. They equal those of
            exact sizes up to rounding. ``"auto"``: the first two sizes exactly, and bounds from the third on; a size
            that is used so often that padding costs more than compiling gets a program of its own. Where an operation
            has no rule for padding, sizes stay exact, and `explain` names it; so do all calls on other devices than
            the CPU, and those of a function with a `memory_budget`.
        mesh: the devices that run the function together, with the results of one device up to rounding. Variables lie
            there as they were laid out; every device has the whole of the others.
        batch: the mesh axis (or a tuple of several) over which axis 0 of every tensor argument is split; arguments of
            shape () go to every device. A size that it does not divide works too, with the devices less evenly busy.
        in_layouts: the layouts of arguments by parameter name, instead of `batch`: one for all tensors in the argument,
            or a structure of layouts like the argument.
        out_layouts: the layout of all results, or a structure like the results'; where it is None, XLA chooses.
        verify: run every so many calls eagerly too, and raise if the results differ; False for never, None for as
            `hf.config.verify` says.
        max_traces: the number of traces that are kept; the least recently used one is dropped.
        name: a name for graphs and messages.

    Returns:
        The `CompiledFunction`, or a decorator.

    Raises:
        ArgumentTypeError: `fn` is not callable, a leaf of `input_signature` is no `TensorSpec`, `memory_budget` is
            neither a number nor a string, `verify` is no integer, or `mesh` is no `hf.Mesh`.
        LayoutError: a layout does not suit the mesh, or there is one and no mesh; at a call, one that does not suit
            an argument, a result or a Variable.
        ArgumentError: a static argument is unknown, `input_signature` is longer than the arguments, `dynamic` or
            `sizes` is none of the choices, `memory_budget` is no size, or `max_traces`, `max_depth` or
            `verify` is less than 1.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def f(x, y):
        ...     return x * y + 1.0
        >>> f(hf.asarray([1.0, 2.0]), 3.0)
        Tensor([4., 7.], dtype=float32)
    """
    if other:
        return respelled(compile, locals())

    def decorate(function: Callable[..., Any]) -> CompiledFunction[Any, Any]:
        if isinstance(function, CompiledFunction):
            function = cast("CompiledFunction[Any, Any]", function).python_function
        return CompiledFunction(
            function,
            static_argnames=static_argnames,
            autograph=autograph,
            max_depth=max_depth,
            memory_budget=memory_budget,
            sizes=sizes,
            mesh=mesh,
            batch=batch,
            in_layouts=in_layouts,
            out_layouts=out_layouts,
            verify=verify,
            max_traces=max_traces,
            name=name,
            input_signature=input_signature,
            dynamic=dynamic,
        )

    return decorate if fn is None else decorate(fn)
