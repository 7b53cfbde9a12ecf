"""``tf.nn.rnn_cell``, and the functions that run a cell along time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hybridflow.compat.v1.functions import (
    concat,
    constant_initializer,
    matmul,
    sigmoid,
    split,
    stack,
    tanh,
    unstack,
    zeros,
    zeros_initializer,
)
from hybridflow.compat.v1.variables import AUTO_REUSE, get_variable, variable_scope
from hybridflow.core.errors import ArgumentError


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM: the cell's memory and its output."""

    c: Any
    h: Any


class RNNCell:
    """What the cells have in common: a call ``cell(inputs, state)`` returns output and new state.

    Args:
        num_units: the number of units.
        name: the name of its Variables' scope.
    """

    scope = "rnn_cell"

    def __init__(self, num_units: int, activation: Callable[..., Any] | None = None, name: str | None = None) -> None:
        self.num_units = num_units
        self._activation = activation or tanh
        self._scope = name or self.scope

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self.num_units

    @property
    def state_size(self) -> Any:
        """The sizes of the state."""
        return self.num_units

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Return a state of zeros."""
        return zeros([batch_size, self.num_units], dtype)

    def __call__(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Return the output and the new state."""
        with variable_scope(self._scope, reuse=AUTO_REUSE):
            return self._step(inputs, state)

    def _step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def _dense(self, x: Any, out: int, name: str = "", bias: float = 0.0) -> Any:
        width = x.get_shape()[-1].value
        if width is None:
            raise ArgumentError("rnn_cell: the number of features is open", hint="Give it in the placeholder.")
        start = constant_initializer(bias) if bias else zeros_initializer()
        return matmul(x, get_variable(f"{name}kernel", [width, out])) + get_variable(
            f"{name}bias", [out], initializer=start
        )


class BasicRNNCell(RNNCell):
    """``h = activation([x, h] kernel + bias)``."""

    scope = "basic_rnn_cell"

    def _step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        output = self._activation(self._dense(concat([inputs, state], 1), self.num_units))
        return output, output


class BasicLSTMCell(RNNCell):
    """The long short-term memory; `forget_bias` is added to the forget gate.

    Reference:
        S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9(8), 1997.
    """

    scope = "basic_lstm_cell"

    def __init__(self, num_units: int, forget_bias: float = 1.0, state_is_tuple: bool = True,
                 activation: Callable[..., Any] | None = None, name: str | None = None) -> None:
        super().__init__(num_units, activation, name)
        if not state_is_tuple:
            raise ArgumentError("BasicLSTMCell: state_is_tuple=False", hint="Use the tuple's .c and .h.")
        self._forget_bias = forget_bias

    @property
    def state_size(self) -> Any:
        """The sizes of the state."""
        return LSTMStateTuple(self.num_units, self.num_units)

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Return a state of zeros."""
        return LSTMStateTuple(*[zeros([batch_size, self.num_units], dtype) for _ in range(2)])

    def _step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        c, h = state
        i, j, f, o = split(self._dense(concat([inputs, h], 1), 4 * self.num_units), 4, axis=1)
        new = c * sigmoid(f + self._forget_bias) + sigmoid(i) * self._activation(j)
        output = self._activation(new) * sigmoid(o)
        return output, LSTMStateTuple(new, output)


LSTMCell = BasicLSTMCell


class GRUCell(RNNCell):
    """The gated recurrent unit.

    Reference:
        K. Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.
    """

    scope = "gru_cell"

    def _step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        gates = sigmoid(self._dense(concat([inputs, state], 1), 2 * self.num_units, "gates/", 1.0))
        r, u = split(gates, 2, axis=1)
        new = self._activation(self._dense(concat([inputs, r * state], 1), self.num_units, "candidate/"))
        output = u * state + (1.0 - u) * new
        return output, output


class MultiRNNCell:
    """Cells on top of each other; the state is a tuple of theirs."""

    def __init__(self, cells: Sequence[Any]) -> None:
        self._cells = list(cells)

    @property
    def output_size(self) -> int:
        """The number of units of the last cell."""
        return self._cells[-1].output_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Return states of zeros."""
        return tuple([cell.zero_state(batch_size, dtype) for cell in self._cells])

    def __call__(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Return the last cell's output and the new states."""
        new_states: list[Any] = []
        for number, (cell, own) in enumerate(zip(self._cells, state, strict=True)):
            with variable_scope(f"cell_{number}"):
                inputs, new = cell(inputs, own)
            new_states.append(new)
        return inputs, tuple(new_states)


def static_rnn(
    cell: Any, inputs: Sequence[Any], initial_state: Any = None, dtype: Any = None, scope: str = "rnn"
) -> tuple[list[Any], Any]:
    """Run a cell on a list of inputs, one per time step.

    Args:
        cell: a cell.
        inputs: tensors ``(batch, features)``.
        initial_state: the state before the first step; zeros if None.
        dtype: the dtype of these zeros.
        scope: the name of the Variables' scope.

    Returns:
        The outputs, and the last state.
    """
    state = initial_state
    if state is None:
        state = cell.zero_state(inputs[0].spec().shape[0], dtype or inputs[0].dtype)
    outputs: list[Any] = []
    with variable_scope(scope, reuse=AUTO_REUSE):
        for one in inputs:
            output, state = cell(one, state)
            outputs.append(output)
    return outputs, state


def dynamic_rnn(
    cell: Any, inputs: Any, initial_state: Any = None, dtype: Any = None, time_major: bool = False, scope: str = "rnn",
    sequence_length: Any = None,
) -> tuple[Any, Any]:
    """Run a cell along the time axis of a tensor, whose size must be known: the steps are unrolled.

    Args:
        cell: a cell.
        inputs: ``(batch, time, features)``; ``(time, batch, features)`` if `time_major`.
        initial_state, dtype, scope: as for `static_rnn`.
        time_major: see above.
        sequence_length: not taken.

    Returns:
        The outputs as one tensor, and the last state.

    Raises:
        ArgumentError: the number of steps is open, or lengths are given.
    """
    axis = 0 if time_major else 1
    if sequence_length is not None or inputs.get_shape()[axis].value is None:
        raise ArgumentError("dynamic_rnn: all sequences have the length that the placeholder says",
                            got=f"{inputs.spec()}, sequence_length={sequence_length!r}",
                            hint="Give the number of steps in its shape; for other lengths use hf.nn.LSTM or hf.scan.")
    outputs, state = static_rnn(cell, unstack(inputs, axis=axis), initial_state, dtype, scope)
    return stack(outputs, axis=axis), state
