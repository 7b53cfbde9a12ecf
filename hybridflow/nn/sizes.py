"""Input sizes that a layer learns in its first call, and errors for sizes that do not fit."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from hybridflow.core.attached import attached
from hybridflow.core.context import current, is_tracing, made_once
from hybridflow.core.dtypes import as_dtype, float32, float64
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeWarning, LayoutError, ShapeError
from hybridflow.core.functions import Whole
from hybridflow.core.mesh import checked_layout
from hybridflow.core.node import user_place_from, warn_at
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import require
from hybridflow.ops.layouts import divided
from hybridflow.ops.nn.labels import integer_labels
from hybridflow.ops.ranges import arange
from hybridflow.ops.reductions import all as all_of

_LOCK = threading.RLock()
_TOLD: weakref.WeakSet[Any] = weakref.WeakSet()
"""The layers, and the models that were called, whose float64 input was warned of."""


def label(layer: Any) -> str:
    """Return the name of a layer in messages: its class and path."""
    path = getattr(layer, "_path", "")
    return f"{type(layer).__name__} {path!r}" if path else type(layer).__name__


def require_size(layer: Any, name: str, x: Any, axis: int, make: Callable[[Any, int], None]) -> None:
    """Make a layer's parameters in its first call; in later calls, check that the input fits them.

    Args:
        layer: the layer.
        name: the attribute for the size, which is None before the first call.
        x: the input.
        axis: the axis of the input that has this size.
        make: a function of a size that makes the parameters.

    Raises:
        ShapeError: another size, or no such axis.
    """
    shape = x.shape
    try:
        size = shape[axis]
    except IndexError:
        raise ShapeError(f"{label(layer)}: the input has {len(shape)} axes, too few to have one of {name}",
                         got=str(x.spec)) from None
    if getattr(layer, name) is None:
        _build(layer, name, size, make)
    if x.dtype is float64 and layer not in _TOLD:
        _tell_of_float64(layer)
    # a trace depends on the size, as if the layer's own code had read it
    known = attached("read_attr")(layer, name) if is_tracing() else getattr(layer, name)
    if size == known:
        return
    raise ShapeError(f"{label(layer)}: the input has size {size} along axis {axis}, the layer was made for {known}",
                     got=f"{label(layer)}({x.spec}) with {name}={known}",
                     hint=f"Make the layer with {name}={size}, or leave the size out: the first call then gives it.")


def _tell_of_float64(layer: Any) -> None:
    """Warn that a float32 layer computes in float64, once for each model: its other layers get that layer's result."""
    _TOLD.add(layer)
    if as_dtype(getattr(layer, "dtype", float64)) == float32:
        frame, outermost = sys._getframe(1), sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "__call__" and isinstance(frame.f_locals.get("self"), Whole):
                outermost = frame
            frame = frame.f_back
        model = outermost.f_locals.get("self", layer)
        if model is not layer and model in _TOLD:
            return
        _TOLD.add(model)
        text = (
            f"{label(layer)}: the input is float64, so this float32 layer computes in float64, which takes longer. "
            'Write x = x.astype("float32") before, or make the layer with dtype="float64".'
        )
        warn_at(user_place_from(outermost.f_back), text, DTypeWarning)


def within(layer: Any, lengths: Any, batch: int, size: int) -> Tensor:
    """Return which places of padded rows count: bool, ``(batch, size)``.

    Raises:
        DTypeError: the lengths are not integers.
        ShapeError: their shape is not ``(batch,)``.
        ArgumentError: a length is not from 0 to the size.
    """
    given = integer_labels(label(layer), lengths)
    if given.shape != (batch,):
        raise ShapeError(f"{label(layer)}: lengths have shape {given.shape}, not ({batch},)", got=str(given.spec),
                         hint="Give the number of places that count, for each row of the batch.")
    fit = all_of((given >= 0) & (given <= size))
    require(fit, ArgumentError, f"{label(layer)}: a length is not from 0 to {size}", lambda: str(given.tolist())[:120])
    return arange(size, dtype=given.dtype) < given[:, None]


def unsized(layer: Any) -> bool:
    """Whether a layer has no parameters yet, because only its first call tells their size."""
    name = getattr(layer, "sized_by", None)
    return isinstance(name, str) and (getattr(layer, name, 0) is None or type(getattr(layer, "window", ())) is int)


def _build(layer: Any, name: str, size: Any, make: Callable[[Any, int], None]) -> None:
    """Make a layer's parameters at its first call."""
    if getattr(layer, "_copied", None) is not None:
        raise ArgumentError(f"{label(layer)}: its size is not known yet, and this is a copy with other values in it",
                            got=f"{name}={size}", hint="Give the size, or call the model itself once before.")
    with _LOCK:
        if getattr(layer, name) is None:  # no other thread came first
            make_parameters(layer, int(size), make)
            setattr(layer, name, int(size))


def make_parameters(layer: Any, size: int, make: Callable[[Any, int], None]) -> None:
    """Make a layer's parameters eagerly, even in a trace; name them by their paths if these are known."""
    with made_once():
        make(layer, size)
    path = getattr(layer, "_path", "")
    for own, value in vars(layer).items():
        if path and isinstance(value, Variable):
            value.rename(f"{path}.{own}")


def layouts_for(layer: str, given: Any, presets: dict[str, dict[str, tuple[Any, ...]]]) -> Any:
    """Return the layouts of a layer's parameters by name, or None.

    Args:
        layer: the class, for messages.
        given: ``"KIND:AXIS"`` with a kind of `presets`, a mapping of parameters to layouts, or None.
        presets: for each kind, the layouts, with ``"*"`` for the mesh axis.

    Raises:
        LayoutError: it is neither.
    """
    if given is None:
        return None
    if isinstance(given, str):
        kind, _, axis = given.partition(":")
        if kind in presets and axis:
            return {
                name: tuple([axis if one == "*" else one for one in layout]) for name, layout in presets[kind].items()
            }
    elif isinstance(given, Mapping):
        mapping = cast("Mapping[str, Any]", given)
        return {name: checked_layout(layout, f"{layer}: {name!r}") for name, layout in mapping.items()}
    kinds = " or ".join([f'"{kind}:AXIS"' for kind in presets])
    raise LayoutError(f"{layer}: layouts is {kinds}, or a mapping of parameters to layouts", got=f"layouts={given!r}",
                      hint='AXIS is an axis of the mesh, such as "model".')


def along(x: Tensor, variable: Any, axis: Any, dim: int) -> Tensor:
    """Split a dimension over a mesh axis if the function is traced for a mesh on which a Variable is split over it.

    Without it, XLA may decide to gather the Variable instead.
    """
    return divided(x, axis, dim % x.ndim) if _is_split(variable, axis) else x


def whole_beside(x: Tensor, variable: Any, axis: Any) -> Tensor:
    """Keep all dimensions but the first whole, if the function is traced for a mesh as in `along`."""
    for dim in range(1, x.ndim) if _is_split(variable, axis) else ():
        x = divided(x, None, dim)
    return x


def _is_split(variable: Any, axis: Any) -> bool:
    if axis is None or getattr(current().tracer, "mesh", None) is None or not isinstance(variable, Variable):
        return False
    return variable.placement is not None and axis in variable.placement.layout


def require_axes(layer: Any, x: Any) -> None:
    """Check that an input has as many spatial axes as the layer's window.

    If the window is one number, it becomes a tuple for all axes here.
    """
    count = x.ndim - 2
    if type(layer.window) is int:
        layer.window = (layer.window,) * count
    if count != len(layer.window):
        raise ShapeError(f"{label(layer)}: the input has {max(count, 0)} spatial axes, the window {len(layer.window)}",
                         got=f"{label(layer)}({x.spec}) with window={layer.window}",
                         hint="The input is (n, channels, *spatial); an example alone needs x[None].")


def in_and_out(layer: str, sizes: tuple[Any, ...], more: int = 0) -> tuple[Any, ...]:
    """Return the sizes given to a layer's constructor: input, result and others. The input size is None if left out.

    Args:
        layer: the class, for messages.
        sizes: the arguments.
        more: the number of further sizes after that of the result.
    """
    count = 1 + more
    if len(sizes) not in (count, count + 1):
        raise ArgumentTypeError(f"{layer}: {count} or {count + 1} sizes are given by position, not {len(sizes)}",
                                got=f"{layer}({', '.join(map(repr, sizes))})", hint="Options are given by name.")
    made = sizes if len(sizes) > count else (None, *sizes)
    for size in made[: len(made) - more]:
        if size is not None and (type(size) is not int or size < 1):
            raise ArgumentError(f"{layer}: a size is a positive integer", got=f"{layer}({', '.join(map(repr, sizes))})")
    return made
