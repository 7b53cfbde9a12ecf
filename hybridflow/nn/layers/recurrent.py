"""Recurrent layers: each runs over time as one loop."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.nested.scans import scan
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import in_and_out, label, make_parameters, require_size, within
from hybridflow.ops.choice import where
from hybridflow.ops.common import TensorLike
from hybridflow.ops.creation import zeros
from hybridflow.ops.joining import concat, stack
from hybridflow.ops.matmul import matmul
from hybridflow.ops.nn.activations import sigmoid
from hybridflow.ops.nn.dense import linear
from hybridflow.ops.nn.rectifiers import relu
from hybridflow.ops.nn.recurrent import lstm_update
from hybridflow.ops.nn.regularization import dropout as drop
from hybridflow.ops.rearrange import flip
from hybridflow.ops.shape import permute_dims
from hybridflow.ops.trigonometric import tanh


class _Recurrent(Module):
    """The base class of recurrent layers: makes the parameters, and runs layers, directions and time steps."""

    gates: ClassVar[int] = 1
    """The number of gates: the weights have this many rows per element of the state."""
    states: ClassVar[int] = 1
    """The number of tensors in the state."""
    sized_by: ClassVar[str] = "input_size"
    """The attribute with the input size, which the first call sets if it was left out."""

    def __init__(
        self,
        *sizes: int,
        layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: Any = "float32",
    ) -> None:
        self.input_size, self.hidden_size = in_and_out(type(self).__name__, sizes)
        if layers < 1:
            raise ArgumentError(f"{type(self).__name__}: layers={layers} is not a positive number")
        self.layers, self.bidirectional, self.has_bias, self.dropout = layers, bidirectional, bias, dropout
        self.dtype = dtype
        self.suffixes = [f"_l{layer}{end}" for layer in range(layers) for end in ("", "_reverse")[: 1 + bidirectional]]
        for suffix in self.suffixes:
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(self, name + suffix, None)
        if self.input_size is not None:
            make_parameters(self, self.input_size, _make)

    def forward(self, x: TensorLike, state: Any = None, *, lengths: Any = None) -> tuple[Tensor, Any]:
        """Run over all time steps.

        Args:
            x: ``(batch, time, features)``.
            state: the initial state, ``(layers * directions, batch, hidden)``; zeros if not given. An LSTM has a pair.
            lengths: how many steps of each row count, ``(batch,)``; all if not given. Results and gradients are those
                of each row alone at its own length, and the results after it are zeros.

        Returns:
            The last layer's results ``(batch, time, directions * hidden)``, and the final state.

        Raises:
            ShapeError: the input has not three axes or another size, or the state or the lengths do not fit it.
            ArgumentError: a length is not from 0 to the number of steps.
        """
        x = as_tensor(x)
        if x.ndim != 3:
            raise ShapeError(f"{label(self)}: the input has {x.ndim} axes, not (batch, time, features)",
                             got=str(x.spec))
        require_size(self, "input_size", x, -1, _make)
        given = self._state(state, x)
        outputs: list[Any] = []
        y, valid = permute_dims(x, (1, 0, 2)), None
        if lengths is not None:
            valid = permute_dims(within(self, lengths, x.shape[0], x.shape[1]), (1, 0))[..., None]
            y = where(valid, y, 0)
        directions = 1 + self.bidirectional
        for layer in range(self.layers):
            if layer and self.dropout:
                y = drop(y, self.dropout, training=self.training)
            sides: list[Tensor] = []
            for side in range(directions):
                number = layer * directions + side
                turned = flip if side else _as_it_is
                start = [one[number] for one in given]
                counts = None if valid is None else turned(valid, 0)
                after, out = self._run(self.suffixes[number], start, turned(y, 0), counts)
                outputs.append(after)
                sides.append(turned(out, 0))
            y = sides[0] if directions == 1 else concat(sides, axis=-1)
        last = [stack([one[part] for one in outputs]) for part in range(self.states)]
        return permute_dims(y, (1, 0, 2)), last[0] if self.states == 1 else tuple(last)

    def _state(self, state: Any, x: Tensor) -> list[Tensor]:
        shape = (len(self.suffixes), x.shape[0], self.hidden_size)
        if state is None:
            return [zeros(shape, dtype=x.dtype) for _ in range(self.states)]
        given = [as_tensor(one) for one in ((state,) if self.states == 1 else state)]
        for one in given:
            if one.shape != shape:
                raise ShapeError(f"{label(self)}: the state has shape {one.shape}, not {shape}", got=str(one.spec),
                                 hint="A state is (layers * directions, batch, hidden).")
        return given

    def _run(self, suffix: str, state: list[Tensor], x: Tensor, valid: Tensor | None) -> tuple[Any, Tensor]:
        """Run one layer in one direction over an input ``(time, batch, features)``, where `valid` holds."""
        given = linear(x, getattr(self, "weight_ih" + suffix), getattr(self, "bias_ih" + suffix))
        inner = getattr(self, "weight_hh" + suffix).mT  # transposed once, not at every step
        bias = as_tensor(getattr(self, "bias_hh" + suffix)) if self.has_bias else None

        def step(state: Any, given: Tensor) -> tuple[Any, Tensor]:
            own = matmul(state[0], inner)
            state = self.advance(given, own if bias is None else own + bias, state)
            return state, state[0]

        def step_of_some(state: Any, now: Any) -> tuple[Any, Tensor]:
            given, counts = now
            after, _ = step(state, given)
            return tuple([where(counts, new, old) for new, old in zip(after, state, strict=True)]), where(
                counts, after[0], 0
            )

        return scan(step, tuple(state), given) if valid is None else scan(step_of_some, tuple(state), (given, valid))

    def advance(self, given: Tensor, own: Tensor, state: Any) -> tuple[Tensor, ...]:
        """Return the next state, given the input's part of the gates and the state's part."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the sizes and options."""
        shown = [] if self.input_size is None else [str(self.input_size)]
        shown.append(str(self.hidden_size))
        shown += [f"layers={self.layers}"] if self.layers > 1 else []
        return ", ".join([*shown, *(["bidirectional=True"] if self.bidirectional else [])])


def _as_it_is(x: Tensor, axis: int) -> Tensor:
    del axis
    return x


def _make(layer: Any, size: int) -> None:
    hidden, rows = layer.hidden_size, layer.gates * layer.hidden_size
    bound = 1 / math.sqrt(hidden)
    values = init.uniform(-bound, bound)
    directions = 1 + layer.bidirectional
    for number, suffix in enumerate(layer.suffixes):
        width = size if number < directions else directions * hidden
        shapes = {"weight_ih": (rows, width), "weight_hh": (rows, hidden)}
        if layer.has_bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        for name, shape in shapes.items():
            setattr(layer, name + suffix, parameter(values(shape, layer.dtype), name + suffix))


class RNN(_Recurrent):
    """Elman's network: ``h = tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)``.

    Args:
        sizes: the features of the input, which the first call gives if they are left out, and the size of the state.
        activation: ``"tanh"`` or ``"relu"``.
        layers: the number of stacked layers.
        bidirectional: whether each layer also runs backwards in time.
        bias: whether there are biases.
        dropout: the probability that a result between two layers is dropped in training mode.
        dtype: the dtype of the parameters.

    Example:
        >>> import hybridflow as hf
        >>> y, state = hf.nn.RNN(4)(hf.ones((2, 5, 3)))
        >>> y.shape, state.shape
        ((2, 5, 4), (1, 2, 4))
    """

    def __init__(self, *sizes: int, activation: str = "tanh", **options: Any) -> None:
        if activation not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: activation={activation!r} is neither 'tanh' nor 'relu'")
        self.activation = activation
        super().__init__(*sizes, **options)

    def advance(self, given: Tensor, own: Tensor, state: Any) -> tuple[Tensor, ...]:
        """Return the next state."""
        return ((tanh if self.activation == "tanh" else relu)(given + own),)


class GRU(_Recurrent):
    """Gated recurrent units, the gates in the order reset, update, new.

    Args:
        sizes: the features of the input, which the first call gives if they are left out, and the size of the state.
        layers: the number of stacked layers.
        bidirectional: whether each layer also runs backwards in time.
        bias: whether there are biases.
        dropout: the probability that a result between two layers is dropped in training mode.
        dtype: the dtype of the parameters.

    Example:
        >>> import hybridflow as hf
        >>> y, state = hf.nn.GRU(4, layers=2)(hf.ones((2, 5, 3)))
        >>> y.shape, state.shape
        ((2, 5, 4), (2, 2, 4))

    Reference:
        Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation",
        2014, with the reset gate after the product, as cuDNN has it.
    """

    gates = 3

    def advance(self, given: Tensor, own: Tensor, state: Any) -> tuple[Tensor, ...]:
        """Return the next state."""
        n = self.hidden_size
        gates = sigmoid(given[..., : 2 * n] + own[..., : 2 * n])
        new = tanh(given[..., 2 * n :] + gates[..., :n] * own[..., 2 * n :])
        update = gates[..., n:]
        return (new + update * (state[0] - new),)


class LSTM(_Recurrent):
    """Long short-term memory, the gates in the order input, forget, cell, output; see `hf.nn.lstm_cell`.

    Args:
        sizes: the features of the input, which the first call gives if they are left out, and the size of the state.
        layers: the number of stacked layers.
        bidirectional: whether each layer also runs backwards in time.
        bias: whether there are biases.
        dropout: the probability that a result between two layers is dropped in training mode.
        dtype: the dtype of the parameters.

    Example:
        >>> import hybridflow as hf
        >>> y, (h, c) = hf.nn.LSTM(4, bidirectional=True)(hf.ones((2, 5, 3)))
        >>> y.shape, h.shape, c.shape
        ((2, 5, 8), (2, 2, 4), (2, 2, 4))

    Reference:
        Hochreiter and Schmidhuber, "Long short-term memory", 1997.
    """

    gates = 4
    states = 2

    def advance(self, given: Tensor, own: Tensor, state: Any) -> tuple[Tensor, ...]:
        """Return the next state."""
        return lstm_update(given + own, state[1])
