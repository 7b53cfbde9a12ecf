"""Leaves of `.backward()`: `requires_grad`, `grad`, hooks, and the contexts that turn recording on and off."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, ClassVar, Self, cast

from hybridflow.autodiff.gradients_on_demand import recorded_edge
from hybridflow.core.context import CONTEXT, Context, Recorder, current, is_tracing
from hybridflow.core.device import DeviceLike
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import (
    ArgumentTypeError,
    DTypeError,
    GradientError,
    ShapeError,
    TraceError,
    message,
)
from hybridflow.core.functions import decorated
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import FOREVER, Edge, next_sequence
from hybridflow.core.notes import Notes, notes_at, requires, take_notes
from hybridflow.core.op import REGISTRY
from hybridflow.core.operators import add_method
from hybridflow.core.sources import INPUT
from hybridflow.core.tensor import Tensor, as_tensor, asarray, describe, immutable, watch_tensor
from hybridflow.core.variable import Variable
from hybridflow.core.variable_log import tracer_around
from hybridflow.ir.builder import GraphBuilder

_numbers = itertools.count()


@with_foreign_keywords
def tensor(
    obj: Any, /, *, dtype: Any = None, device: DeviceLike = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor made from a value, as `hf.asarray` does; with `requires_grad`, a new leaf of `.backward()`.

    Args:
        obj: the value; if it is a tensor, the result is detached from it.
        dtype: the dtype to convert to.
        device: the device to put it on.
        copy: as for `hf.asarray`.
        requires_grad: whether gradients accumulate in ``.grad``.

    Returns:
        The tensor.

    Raises:
        DTypeError: if `requires_grad` is True and the dtype has no gradient.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        Tensor([2., 4.], dtype=float32)
    """
    made = asarray(obj, dtype=dtype, device=device, copy=copy)
    if isinstance(obj, Tensor | Variable) or requires_grad:
        made = detach(made)
    return requires_grad_(made) if requires_grad else made


def known_edge(value: Tensor | Variable) -> Edge | None:
    """Return the edge of a value, as the current trace knows it if there is one, with all before it recorded."""
    if isinstance(value, Variable):
        return value._edge
    tracer = current().tracer
    if isinstance(tracer, GraphBuilder):
        tracer.asked(leaves=True)
        return tracer.edge_of(value)
    return recorded_edge(value._edge)


# -- leaves -------------------------------------------------------------------------------------------------------


def requires_grad(self: Tensor | Variable) -> bool:
    """Whether `.backward()` reaches this value: a leaf with `requires_grad`, or a value computed from one."""
    return requires(known_edge(self)) and is_differentiable(self.dtype)


def is_leaf(self: Tensor | Variable) -> bool:
    """Whether the value is a leaf: not computed from a value that requires a gradient."""
    edge = known_edge(self)
    if requires(edge) and isinstance(self, Tensor):
        edge = _inner_edge(self, "is_leaf")
    notes = notes_at(edge)
    return not requires(edge) or (notes is not None and notes.leaf)


def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Set whether gradients accumulate in a leaf's ``.grad``, and return the leaf.

    For a Variable that was made with ``requires_grad=True``, such as a parameter of a model, it sets `trainable`.

    Args:
        requires_grad: whether they do.

    Raises:
        GradientError: for False, if the tensor is not a leaf.
        DTypeError: for True, if the dtype has no gradient.
        ArgumentTypeError: for True, if a Variable was made with ``requires_grad=False``.
    """
    if isinstance(self, Variable):
        if self._notes is not None and self.trainable is not bool(requires_grad):
            self.trainable = bool(requires_grad)
        if self._notes is None and requires_grad:
            raise ArgumentTypeError(
                f"requires_grad_: Variable {self.name!r} was made with requires_grad=False, and keeps it",
                hint="Make it with hf.Variable(value, requires_grad=True)."
            )
        return cast(Any, self)
    edge = _inner_edge(self, "requires_grad_")
    notes = notes_at(edge)
    leaf = notes is not None and notes.leaf
    if not requires_grad:
        if requires(edge) and not leaf:
            raise GradientError("requires_grad_: only a leaf can stop requiring a gradient", got=describe(self),
                                hint="Use x.detach() to go on without one.")
        if edge is not None and leaf:
            edge[0].stamp = next_sequence()
        return self
    if requires(edge):
        return self
    if not is_differentiable(self.dtype):
        raise DTypeError(f"requires_grad: {self.dtype} has no gradient", got=describe(self),
                         hint="Cast to a float first, for example .astype(hf.float32).")
    edge = watch_tensor(self) if self._value is not None else cast(GraphBuilder, current().tracer).source(self)
    take_notes(edge).leaf = True
    edge[0].stamp = FOREVER
    return self


def _set_requires_grad(self: Tensor, value: bool) -> None:
    requires_grad_(self, value)


def detach(self: Tensor | Variable) -> Tensor:
    """Return the same value as a tensor through which no gradient flows."""
    return cast(Any, REGISTRY["stop_gradient"].public)(as_tensor(self))


# -- gradients ----------------------------------------------------------------------------------------------------


def has_gradient(notes: Notes) -> bool:
    """Whether a Variable has a gradient now, or at this point of the trace."""
    tracer = current().tracer or tracer_around()
    return tracer.has_gradient(notes.cell) if isinstance(tracer, GraphBuilder) else notes.cell.present


def read_gradient(notes: Notes) -> Tensor | None:
    """Return the gradient stored at a value, or None."""
    if notes.cell is None:
        return notes.grad
    return notes.cell.read() if has_gradient(notes) else None


def write_gradient(notes: Notes, gradient: Tensor | None) -> None:
    """Store a gradient at a value; None removes it."""
    if notes.cell is None:
        notes.grad = gradient
        return
    if gradient is not None:
        notes.cell.assign(gradient)
    tracer = current().tracer or tracer_around()
    if isinstance(tracer, GraphBuilder):
        tracer.set_gradient(notes.cell, gradient is not None)
    else:
        notes.cell.present = gradient is not None


def _notes_of(value: Tensor | Variable) -> Notes | None:
    return value._notes if isinstance(value, Variable) else notes_at(_inner_edge(value, "grad"))


def _inner_edge(value: Tensor, what: str) -> Edge | None:
    """Return a tensor's edge.

    Raises:
        TraceError: for a tensor from outside the trace, whose state may differ in other calls.
    """
    edge = known_edge(value)
    if edge is not None and edge[0].scope is not None and edge[0].op is INPUT:
        raise TraceError(f"{what}: asked of a tensor that was made outside of the compiled function, branch or loop",
                         got=f"{edge[0].attrs['name']}: {value.spec}",
                         hint="Use x.detach().requires_grad_() inside, or hf.Variable(x, requires_grad=True).")
    return edge


def grad(self: Tensor | Variable) -> Tensor | None:
    """The gradient that `.backward()` accumulated, or None. It can be set to None or to a tensor like this one."""
    notes = _notes_of(self)
    if notes is not None and (notes.leaf or notes.retains):
        return read_gradient(notes)
    if requires_grad(self):
        text = message("grad: a tensor that is no leaf keeps no gradient", got=describe(self),
                       hint="Call .retain_grad() on it before .backward(), or read a leaf's .grad.")
        warnings.warn(text, UserWarning, stacklevel=2)
    return None


def _set_grad(self: Tensor | Variable, gradient: Any) -> None:
    notes = _notes_of(self)
    if gradient is None:
        if notes is not None:
            write_gradient(notes, None)
        return
    if notes is None or not notes.leaf:
        raise GradientError("grad: only a leaf that requires a gradient can be given one", got=describe(self),
                            hint="Make it with hf.tensor(x, requires_grad=True).")
    write_gradient(notes, checked_like(gradient, self, "grad"))


def checked_like(value: Any, like: Tensor | Variable, what: str) -> Tensor:
    """Return a gradient as a tensor without history.

    Raises:
        ArgumentTypeError, ShapeError, DTypeError: if it is not a tensor of the shape and dtype of `like`.
    """
    if not hasattr(value, "dtype"):
        value = asarray(value, dtype=like.dtype)
    made = as_tensor(value)
    if made.shape != like.shape:
        raise ShapeError(f"{what}: the gradient has shape {made.shape}, the tensor {like.shape}",
                         got=f"{made.spec} for {like.spec}", hint="Give it the tensor's shape.")
    if made.dtype != like.dtype:
        raise DTypeError(f"{what}: the gradient is {made.dtype}, the tensor {like.dtype}",
                         got=f"{made.spec} for {like.spec}", hint=f"Cast it with .astype(hf.{like.dtype}).")
    return detach(made)


def zero_grad(self: Tensor | Variable) -> None:
    """Set ``.grad`` to None until the next `.backward()`."""
    _set_grad(self, None)


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf in ``.grad``, from the next `.backward()` on.

    Raises:
        GradientError: if the tensor does not require a gradient.
    """
    _followed_notes(self, "retain_grad").retains = True


def retains_grad(self: Tensor | Variable) -> bool:
    """Whether `retain_grad` was called on this tensor, which is not a leaf."""
    notes = _notes_of(self)
    return notes is not None and notes.retains and not notes.leaf


def _followed_notes(value: Tensor | Variable, what: str) -> Notes:
    if isinstance(value, Variable):
        if value._notes is not None:
            return value._notes
        edge = None
    else:
        edge = _inner_edge(value, what)
    if edge is None or not requires_grad(value):
        raise GradientError(f"{what}: the tensor does not require a gradient", got=describe(value),
                            hint="Make it, or what it is computed from, with requires_grad=True.")
    return take_notes(edge)


class HookHandle:
    """A handle that can remove a hook."""

    def __init__(self, notes: Notes, number: int) -> None:
        self._notes = notes
        self._number = number

    def remove(self) -> None:
        """Remove the hook; removing it twice is no error."""
        self._notes.hooks.pop(self._number, None)


def register_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> HookHandle:
    """Call a function with the gradient of this value whenever `.backward()` computes it.

    Hooks run in the order of registration, before the gradient goes further back or accumulates.

    Args:
        hook: a function of the gradient. Its result, unless None, replaces the gradient.

    Returns:
        A handle; its ``remove()`` removes the hook.

    Raises:
        GradientError: if the tensor does not require a gradient.
        ArgumentTypeError: if the hook cannot be called.
    """
    if not callable(hook):
        raise ArgumentTypeError("register_hook: the hook cannot be called", got=repr(hook)[:60])
    notes = _followed_notes(self, "register_hook")
    if notes.cell is not None and is_tracing():
        raise TraceError(
            "register_hook: a Variable's hook is given inside a compiled function, which every call would do",
            got=describe(self), hint="Register it once, outside."
        )
    number = next(_numbers)
    notes.hooks[number] = hook
    return HookHandle(notes, number)


def _zero_(self: Tensor | Variable) -> Any:
    """Raise an error: tensors are immutable, and ``x.zero_grad()`` clears a gradient."""
    hint = "Instead of x.grad.zero_(), call x.zero_grad()."
    raise immutable("zero_: tensors are immutable", f"{describe(self)}.zero_()", hint)


add_method("requires_grad", requires_grad, as_property=True, setter=_set_requires_grad)
add_method("requires_grad_", requires_grad_)
add_method("is_leaf", is_leaf, as_property=True)
add_method("grad", grad, as_property=True, setter=_set_grad)
add_method("zero_grad", zero_grad)
add_method("retain_grad", retain_grad)
add_method("retains_grad", retains_grad, as_property=True)
add_method("register_hook", register_hook)
add_method("detach", detach)
add_method("zero_", _zero_)


# -- switching the recording --------------------------------------------------------------------------------------


_PAUSED: ContextVar[tuple[Recorder, ...]] = ContextVar("the tapes that hf.no_grad has paused", default=())


class _Switch:
    """A context manager and decorator that turns recording on or off."""

    _flag: ClassVar[bool]

    def __new__(cls, function: Callable[..., Any] | None = None, /) -> Any:
        made = super().__new__(cls)
        made._entered = []
        return made if function is None else made(function)

    _entered: list[ExitStack]

    def __enter__(self) -> Self:
        context = current()
        with ExitStack() as undo:
            if isinstance(context.tracer, GraphBuilder):
                undo.callback(context.tracer.switched(self._flag))
            paused = _PAUSED.get()
            if self._flag:
                here = [tape for tape in paused if tape.recorded_here()]
                undo.callback(_PAUSED.reset, _PAUSED.set(()))
                for tape in here:
                    tape.resume()
                    undo.callback(tape.pause)
            else:
                undo.callback(_PAUSED.reset, _PAUSED.set((*paused, *context.tapes)))
                for tape in context.tapes:
                    tape.pause()
                    undo.callback(tape.resume)
            now = current()
            changed = Context(now.tracer, now.tapes, now.device, self._flag, now.autocast)
            undo.callback(CONTEXT.reset, CONTEXT.set(None if changed.plain() else changed))
            self._entered.append(undo.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().close()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs inside the context.

        Raises:
            ArgumentTypeError: it cannot be called, or is a generator function.
        """
        return decorated(type(self).__name__, type(self), function)


class no_grad(_Switch):  # noqa: N801 (used like a function: a context manager, or a decorator)
    """Record nothing in a ``with`` block or a function, neither for `.backward()` nor for outer tapes.

    What is computed in the block, or read from a Variable there, is a constant to all gradients that are taken outside
    of it: eagerly, in compiled functions, and through them. A tape that is entered inside the block records as usual.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.tensor(2.0, requires_grad=True)
        >>> with hf.no_grad():
        ...     y = x * x
        >>> y.requires_grad
        False
    """

    _flag = False


class enable_grad(_Switch):  # noqa: N801
    """Record again inside a `no_grad` block, for `.backward()` and for the tapes that the block has paused.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.tensor(2.0, requires_grad=True)
        >>> with hf.no_grad(), hf.enable_grad():
        ...     y = x * x
        >>> y.requires_grad
        True
    """

    _flag = True


def is_grad_enabled() -> bool:
    """Return whether recording is on: operations on values that require a gradient are recorded.

    Example:
        >>> import hybridflow as hf
        >>> hf.is_grad_enabled()
        True
    """
    context = current()
    tracer = context.tracer
    if not isinstance(tracer, GraphBuilder):
        return context.grad or bool(context.tapes)
    tracer.asked(leaves=False)
    return context.grad or bool(context.tapes) or (tracer.tapes_around and not tracer.silence)
