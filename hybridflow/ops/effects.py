"""`hf.print` and `hf.pure_callback`: Python code that a compiled function runs at every call."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast, overload

import jax
import numpy as np

from hybridflow.backend.host_calls import host_call
from hybridflow.core.context import CONTEXT, HOST_FUNCTION, context_of, current, is_tracing
from hybridflow.core.convert import is_number
from hybridflow.core.dispatch import bind, record
from hybridflow.core.dtypes import DType
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TraceError,
    message,
    structure_text,
)
from hybridflow.core.functions import require_function
from hybridflow.core.node import FOREVER, format_where, user_place
from hybridflow.core.op import No, Op, Stops, register
from hybridflow.core.spec import TensorSpec, format_spec, is_open_size, make_spec
from hybridflow.core.tensor import Tensor, asarray, format_tensor, host_array, make_tensor, to_numpy
from hybridflow.core.variable_log import replaying, tracer_around
from hybridflow.ir.graph import Graph, graphs_of
from hybridflow.ops.host_values import Template, Text, as_text

_EAGER = No("the public function runs it itself")
_TESTED = No("runs Python code; tested in tests/test_effects.py")


# -- print --------------------------------------------------------------------------------------------------------


class _Message:
    """The arguments of a traced `hf.print`; the values of the tensors are filled in at every call.

    Attributes:
        held: where texts are kept until it is known whether the call prints them; None if they are printed at once.
    """

    __slots__ = ("end", "held", "separator", "stream", "template")

    def __init__(self, values: tuple[Any, ...], separator: str | None, end: str | None, stream: Any) -> None:
        self.template = Template(values, as_text)
        self.separator = separator
        self.end = end
        self.stream = stream
        self.held: list[tuple[str, Any]] | None = None

    def show(self, *arrays: Any) -> list[Any]:
        """Print the values."""
        with context_of(None):
            values = self.template.filled(arrays, _printed)
            stream = getattr(sys, self.stream) if type(self.stream) is str else self.stream
            text = _joined(values, self.separator, self.end)
        if self.held is None:
            builtins.print(text, end="", file=stream)
        else:
            self.held.append((text, stream))
        return []


def messages_of(graph: Graph) -> list[Any]:
    """Return what prints in a graph, or in the graphs in it."""
    return [node.attrs["message"] for one in graphs_of(graph) for node in one.nodes if node.op is PRINT]


@contextmanager
def held_prints(messages: Iterable[Any]) -> Generator[None]:
    """Print what a call prints when a block ends, and nothing if it raises."""
    texts: list[tuple[str, Any]] = []
    with _HOLDING:
        for one in messages:
            one.held = texts
        try:
            yield
        finally:
            for one in messages:
                one.held = None
    for text, stream in texts:
        builtins.print(text, end="", file=stream)


_HOLDING = threading.RLock()
"""Held by a call whose prints are held, so that those of two threads are not mixed up."""


_STANDARD = ("stdout", "stderr")


def _stream(tracer: Any, file: Any) -> Any:
    """Return the stream to print to at every call: the name of a standard one, which may be another one then.

    Raises:
        TraceError: the call itself makes the stream, so that each call would need one of its own.
    """
    now = sys.stdout if file is None else file
    for name, usual in zip(_STANDARD, tracer.streams, strict=True):
        if now is usual:
            return name
    observations = tracer.observations
    if observations is not None and not observations.is_outside(now):
        raise TraceError(
            "print: a compiled function prints a tensor to a stream that it made itself, which stays empty "
            "until the call is over", got=f"a {type(now).__name__} at {format_where(user_place(3))}",
            hint="Make the stream before the call, or print where the call returns."
        )
    return now


def _joined(values: Sequence[Any], separator: str | None, end: str | None) -> str:
    """Return what `print` writes, in one piece: value by value, it mixes up what several threads print."""
    text = (" " if separator is None else separator).join([str(value) for value in values])
    return text + ("\n" if end is None else end)


def _printed(kind: str, array: Any, name: Any) -> Any:
    if kind == "size":
        return int(array)
    if kind == "number":
        return np.asarray(array).item()
    if kind == "array":
        return _array(array, name)
    if kind == "variable":
        text = format_tensor("Variable", make_tensor(array), name)
        return Text(text, text, make_tensor(array))
    return make_tensor(array)


def print(*values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None) -> None:
    r"""Print values as Python's `print` does, in a compiled function at every call.

    In a compiled function, tensors (also in lists, dicts and other pytrees) print their values of the call, in program
    order with other effects, also in branches and loops on tensors. Python values print as they were when the function
    was traced. All printing is done when the call returns. It goes to `sys.stdout` as it is at the call, or to the
    stream that the function itself put there, as with `contextlib.redirect_stdout`.

    Args:
        *values: anything; tensors and structures of them among it.
        sep: what to print between values.
        end: what to print at the end.
        file: the stream, which must be there before the call; None is `sys.stdout`.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def f(x):
        ...     hf.print("x =", x, [x + 1], sep="\t", end=".\n")
        ...     return x
        >>> _ = f(hf.asarray(1.0)), f(hf.asarray(2.0))
        x =	Tensor(1., dtype=float32)	[Tensor(2., dtype=float32)].
        x =	Tensor(2., dtype=float32)	[Tensor(3., dtype=float32)].
    """
    for name, value in (("sep", sep), ("end", end)):
        if value is not None and not isinstance(cast(object, value), str):
            raise ArgumentTypeError(f"print: {name} must be a str or None", got=f"{name}={value!r}")
    tracer = current().tracer or tracer_around()
    if tracer is None:
        if not replaying():
            builtins.print(_joined(values, sep, end), end="", file=file)
        return
    text = _Message(values, sep, end, _stream(tracer, file))
    with nullcontext() if is_tracing() else context_of(tracer):  # in eager code of a trace: where it stands in the call
        bind(PRINT, text.template.release(), {"message": text})


def _print_lower(*xs: Any, message: _Message) -> Any:
    return host_call(message.show, (), *xs)


def _print_infer(*specs: TensorSpec, message: _Message) -> tuple[TensorSpec, ...]:
    del specs, message
    return ()


PRINT = register(
    Op("print", _EAGER, _print_lower, _print_infer, Stops("printing gives nothing"), samples=_TESTED,
       traits=frozenset({"effect"}), onnx=No("ONNX prints nothing"))
)


# -- callbacks ----------------------------------------------------------------------------------------------------


class _Callback:
    """A Python function with the structure of its arguments and results."""

    __slots__ = ("function", "specs", "template", "tree")

    def __init__(self, function: Callable[..., Any], specs: Sequence[TensorSpec], tree: Any, args: Any) -> None:
        self.function = function
        self.specs = specs
        self.tree = tree
        self.template = Template(args, _as_argument)

    def run(self, arrays: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
        """Call the function on copies of the values, which it may keep, and return its results as arrays.

        Raises:
            ArgumentError, ShapeError, DTypeError: results that are not what the specs say.
        """
        called = _name_of(self.function)
        token = HOST_FUNCTION.set(called)
        try:
            with context_of(None):
                result = self.function(*self.template.filled(arrays, _argument))
        finally:
            HOST_FUNCTION.reset(token)
        leaves, tree = jax.tree_util.tree_flatten(result)
        if tree != self.tree:
            raise ArgumentError(f"pure_callback: {called} returned another structure than the spec's",
                                got=f"{structure_text(tree)}, the spec is {structure_text(self.tree)}",
                                hint="Return one array per TensorSpec, in the spec's structure.")
        return [
            _result(called, index, leaf, tuple(shape), spec.dtype)
            for index, (leaf, shape, spec) in enumerate(zip(leaves, shapes, self.specs, strict=True))
        ]


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _as_argument(value: Any) -> Any:
    return value


def _array(array: Any, kind: type) -> Any:
    """Return a NumPy array, or a NumPy scalar if `kind` is a scalar's type."""
    return np.asarray(array)[()] if issubclass(kind, np.generic) else np.asarray(array)


def _argument(kind: str, array: Any, name: Any) -> Any:
    if kind == "array" and issubclass(name, np.generic):
        return _array(array, name)
    if kind == "size":
        return int(array)
    if kind == "number":
        return np.asarray(array).item()
    kept = np.array(array)
    kept.flags.writeable = False
    return kept


def _result(name: str, index: int, leaf: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a result as an array and check it against the spec; Python numbers take the spec's dtype."""
    weak = is_number(leaf) or isinstance(leaf, list | tuple)
    array = to_numpy(leaf, dtype if weak else None) if not isinstance(leaf, Tensor) else host_array(leaf)
    for error, differs in ((ShapeError, array.shape != shape), (DTypeError, array.dtype != dtype)):
        if differs:
            raise error(
                message(f"pure_callback: {name} returned {format_spec(array.shape, array.dtype)} as result {index}, "
                        f"the spec says {format_spec(shape, dtype)}",
                        hint="Reshape or cast the result, or change the spec.")
            )
    return array


@overload
def pure_callback(fn: Callable[..., Any], spec: TensorSpec, *args: Any) -> Tensor: ...
@overload
def pure_callback(fn: Callable[..., Any], spec: Any, *args: Any) -> Any: ...
def pure_callback(fn: Callable[..., Any], spec: Any, *args: Any) -> Any:
    """Call a Python function, in a compiled function at every call, in program order with the other effects.

    It gets the values of tensors as read-only NumPy arrays. It should depend on its arguments only: gradients that
    recompute a branch call it again. If it raises, the compiled call raises the same error and assigns no Variable. No
    gradient flows through it; wrap it with `hf.custom_gradient` to give it one.

    Args:
        fn: the function; it must not assign Variables.
        spec: a `TensorSpec` per result, in the structure of the results.
        *args: tensors, in any nesting, and Python values, which it gets as they are.

    Returns:
        The results as tensors.

    Raises:
        ShapeError, DTypeError, ArgumentError: results that are not what `spec` says.
        ArgumentTypeError: `fn` is not callable, or something in `spec` is no `TensorSpec`.

    Example:
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> @hf.compile
        ... def f(x):
        ...     return hf.pure_callback(np.sort, hf.TensorSpec(x.shape, x.dtype), x) + 1
        >>> f(hf.asarray([3.0, 1.0, 2.0]))
        Tensor([2., 3., 4.], dtype=float32)
    """
    require_function("pure_callback", fn)
    specs, tree = jax.tree_util.tree_flatten(spec)
    for one in specs:
        if not isinstance(one, TensorSpec) or any(map(is_open_size, one.shape)):
            raise ArgumentTypeError(
                "pure_callback: the spec must say every result's shape and dtype", got=repr(one)[:80],
                hint="Pass a hf.TensorSpec(shape, dtype) per result, without open sizes in the shape."
            )
    callback = _Callback(fn, specs, tree, jax.tree_util.tree_map(_as_tensor_if_array, args))
    tensors = callback.template.release()
    shapes = tuple([one.shape for one in specs])
    attrs = {"callback": callback, "shapes": shapes, "dtypes": tuple([one.dtype for one in specs])}
    if is_tracing():
        made = bind(CALLBACK, tensors, attrs)
    else:
        made = _call_now(callback, tensors, shapes, attrs)
    return jax.tree_util.tree_unflatten(tree, made if isinstance(made, tuple) else (made,))


def _as_tensor_if_array(leaf: Any) -> Any:
    return asarray(leaf) if isinstance(leaf, np.ndarray | jax.Array) else leaf


def _call_now(callback: _Callback, tensors: tuple[Tensor, ...], shapes: Any, attrs: dict[str, Any]) -> Any:
    values = [host_array(tensor) for tensor in tensors]
    outputs = tuple([asarray(array)._value for array in callback.run(values, shapes)])
    context = CONTEXT.get()
    start = FOREVER if context is None else context.start
    edges = tuple([t._edge if t._edge is not None and t._edge[0].stamp >= start else None for t in tensors])
    if not any(edges):
        return tuple([make_tensor(output) for output in outputs])
    return record(CALLBACK, edges, attrs, values, outputs, "host")


def _callback_lower(*xs: Any, callback: _Callback, shapes: Any, dtypes: Any) -> Any:
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    outputs = host_call(lambda *arrays: callback.run(arrays, shapes), results, *xs)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _callback_infer(*specs: TensorSpec, callback: _Callback, shapes: Any, dtypes: Any) -> tuple[TensorSpec, ...]:
    del specs, callback
    return tuple([make_spec(tuple(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)])


CALLBACK = register(
    Op("pure_callback", _EAGER, _callback_lower, _callback_infer,
       No("Python code has no derivative; use hf.custom_gradient around hf.pure_callback to give it one"),
       samples=_TESTED, traits=frozenset({"effect"}), onnx=No("ONNX calls no Python code"))
)


__all__ = ["print", "pure_callback"]
