"""Recurrent cells: the LSTM cell, whose gates are one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, on_host, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    make_spec,
    normals,
    promote_float,
    require_kind,
)
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.nn.common import REAL_FLOAT, compute_dtype, lower_narrow, lower_wide, narrow, wide
from hybridflow.ops.padding import per_row

# The gates are side by side in the last axis: input, forget, cell, output.


def _gate(array: Any, number: int, width: int) -> Any:
    return array[..., number * width : (number + 1) * width]


def _kernel(gates: Any, c: Any, *, residuals: bool) -> Any:
    width = c.shape[-1]
    if gates.shape != (*c.shape[:-1], 4 * width):
        raise ValueError("gates of another shape")  # `bind` then runs the shape rule, which says more
    active = np.negative(gates)
    np.exp(active, out=active)
    active += gates.dtype.type(1)
    np.reciprocal(active, out=active)
    i, f, cell, o = [_gate(active, number, width) for number in range(4)]
    np.tanh(_gate(gates, 2, width), out=cell)
    new = f * c
    new += i * cell
    bent = np.tanh(new)
    h = o * bent
    return (h, new, active, bent) if residuals else (h, new)


def _lower(gates: Any, c: Any, *, residuals: bool) -> Any:
    width, last = c.shape[-1], c.ndim - 1
    full, before = lower_wide(gates), lower_wide(c)
    raw = [lax.slice_in_dim(full, n * width, (n + 1) * width, axis=last) for n in range(4)]
    i, f, cell, o = lax.logistic(raw[0]), lax.logistic(raw[1]), lax.tanh(raw[2]), lax.logistic(raw[3])
    new = lax.add(lax.mul(f, before), lax.mul(i, cell))
    bent = lax.tanh(new)
    visible = lower_narrow(lax.mul(o, bent), c.dtype), lower_narrow(new, c.dtype)
    return (*visible, lax.concatenate([i, f, cell, o], last), bent) if residuals else visible


def _infer(gates: TensorSpec, c: TensorSpec, *, residuals: bool) -> Any:
    require_kind("lstm_update", REAL_FLOAT, gates, c)
    if gates.dtype != c.dtype:
        raise DTypeError(f"lstm_update: dtypes differ: {gates.dtype} and {c.dtype}",
                         got=call_text("lstm_update", gates, c))
    expected = (*c.shape[:-1], 4 * c.shape[-1]) if c.shape else None
    if gates.shape != expected:
        raise ShapeError(f"lstm_update: gates must have the state's shape with 4 times its last size, {expected}, not "
                         f"{gates.shape}", got=call_text("lstm_update", gates, c),
                         hint="Weights are (d, 4 * width) and (width, 4 * width).")
    state = make_spec(c.shape, c.dtype)
    inner = compute_dtype(c.dtype)
    return (state, state, make_spec(gates.shape, inner), make_spec(c.shape, inner)) if residuals else (state, state)


def _vjp(F: Any, g: Any, y: Any, gates: Any, c: Any) -> Any:
    g_h, g_c = g
    _, _, active, bent = y
    dtype, shape = gates.dtype, active.shape
    last, width = len(shape) - 1, bent.shape[-1]
    quarters = [part_of(shape, last, number * width, width) for number in range(4)]
    i, f, cell, o = [F.getitem(active, index=index) for index in quarters]
    of_new = None if g_c is None else wide(F, g_c)
    slopes: list[Any] = []
    if g_h is not None:
        g_h = wide(F, g_h)
        through = g_h * (o * (1 - bent * bent))
        of_new = through if of_new is None else of_new + through
        slopes.append((g_h * (bent * (o * (1 - o))), quarters[3]))
    before = wide(F, c)

    def of_gates() -> Any:
        parts = [
            (of_new * (cell * (i * (1 - i))), quarters[0]),
            (of_new * (before * (f * (1 - f))), quarters[1]),
            (of_new * (i * (1 - cell * cell)), quarters[2]),
            *slopes,
        ]
        total: Any = None
        for value, index in parts:
            whole = F.slice_scatter(value, shape=shape, index=index)
            total = whole if total is None else total + whole
        return narrow(F, total, dtype)

    return of_gates, lambda: narrow(F, of_new * f, dtype)


def _host(g: Any, y: Any, gates: Any, c: Any) -> Any:
    del gates
    g_h, g_c = g
    _, _, active, bent = y
    width = c.shape[-1]
    i, f, cell, o = [_gate(active, number, width) for number in range(4)]
    one = c.dtype.type(1)
    of_new = g_c
    if g_h is not None:
        of_new = bent * bent
        np.subtract(one, of_new, out=of_new)
        of_new *= o
        of_new *= g_h
        if g_c is not None:
            of_new += g_c

    def of_gates() -> Any:
        slopes = active * active
        cell_slope = _gate(slopes, 2, width)
        np.subtract(active, slopes, out=slopes)  # a * (1 - a) for sigmoids; tanh has 1 - a * a
        np.multiply(cell, cell, out=cell_slope)
        np.subtract(one, cell_slope, out=cell_slope)
        for number, (factor, along) in enumerate(((cell, of_new), (c, of_new), (i, of_new), (bent, g_h))):
            part = _gate(slopes, number, width)
            if along is None:
                part[...] = 0
            else:
                part *= factor * along
        return slopes

    return of_gates, lambda: of_new * f


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 8), normals(rng, 3, 2)))
    yield Sample((normals(rng, 4), normals(rng, 1)))
    yield Sample((normals(rng, 2, 3, 12) * 3, normals(rng, 2, 3, 3)))
    yield Sample((normals(rng, 0, 8), normals(rng, 0, 2)))
    yield Sample((normals(rng, 3, 8, dtype=np.float64), normals(rng, 3, 2, dtype=np.float64)))
    yield Sample((normals(rng, 3, 8, dtype="bfloat16"), normals(rng, 3, 2, dtype="bfloat16")), gradient=False)
    yield Bad((normals(rng, 3, 6), normals(rng, 3, 2)), error=ShapeError, text="4 times its last size, (3, 8), not")
    yield Bad((normals(rng, 3, 8), normals(rng)), error=ShapeError, text="gates must have the state's shape")


def _onnx(o: Any, gates: Any, c: Any, *, residuals: bool = False) -> Any:
    i, f, cell, out = o.Split(gates, axis=-1, num_outputs=4, outputs=4)
    i, f, cell, out = o.Sigmoid(i), o.Sigmoid(f), o.Tanh(cell), o.Sigmoid(out)
    new = f * c + i * cell
    bent = o.Tanh(new)
    h = out * bent
    return (h, new, o.Concat(i, f, cell, out, axis=-1), bent) if residuals else (h, new)


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=on_host(_vjp, _host),
    saves=Saves(x="all", hidden=2),
    flops=lambda outputs, gates, c, **attrs: 2 * gates.size + 5 * c.size,
    samples=_samples,
    traits=("full_precision", "inner"),
    ulp=16,
    onnx=_onnx,
    padded=per_row(),
)
def lstm_update(gates: TensorLike, c: TensorLike, /) -> tuple[Tensor, Tensor]:
    """Return the new hidden and cell state, given the gates' inputs ``(..., 4 * width)`` and the cell state."""
    return bind(lstm_update.op, promote_float(gates, c))


def lstm_cell(
    x: TensorLike,
    state: tuple[TensorLike, TensorLike],
    input_weights: TensorLike,
    hidden_weights: TensorLike,
    bias: TensorLike | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance an LSTM by one step.

    The gates' inputs are ``x @ input_weights + h @ hidden_weights + bias``, in the order input, forget, cell, output.
    The values i, f and o are the sigmoids of the input, forget and output gates' inputs, and k is the tanh of the
    cell's. The new state is ``c = f * c + i * k`` and ``h = o * tanh(c)``.

    Args:
        x: ``(..., features)``, floating-point.
        state: the hidden and the cell state, ``(..., width)`` each.
        input_weights: ``(features, 4 * width)``.
        hidden_weights: ``(width, 4 * width)``.
        bias: ``(4 * width,)``; none if not given.

    Returns:
        The new hidden and cell state.

    Raises:
        ShapeError: the shapes do not fit each other.

    Example:
        >>> import hybridflow as hf
        >>> h = c = hf.zeros((1, 2))
        >>> h, c = hf.nn.lstm_cell([[1.0]], (h, c), hf.ones((1, 8)), hf.ones((2, 8)))
        >>> h.shape
        (1, 2)

    Reference:
        Hochreiter and Schmidhuber, "Long short-term memory", 1997; with the forget gate of Gers et al., 2000.
    """
    h, c = state
    gates = as_tensor(x) @ as_tensor(input_weights) + as_tensor(h) @ as_tensor(hidden_weights)
    return lstm_update(gates if bias is None else gates + as_tensor(bias), c)
