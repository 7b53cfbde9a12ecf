"""``tf.train``: optimizers by TensorFlow 1's formulas, rates that fall with the step, and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow.compat.v1.functions import gradients, group
from hybridflow.compat.v1.graph import GraphKeys, Operation, Tensor, added, get_default_graph
from hybridflow.compat.v1.session import Session
from hybridflow.compat.v1.variables import Variable, global_variables, trainable_variables
from hybridflow.core.errors import ArgumentError

Pairs = Sequence[tuple[Any, Variable]]


class Optimizer:
    """What the optimizers have in common.

    Args:
        learning_rate: a number, a tensor of the graph, or a function that returns one.
        name: the name of the slots.
    """

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str | None = None) -> None:
        del use_locking
        self.learning_rate = learning_rate
        self._name = name or type(self).__name__.removesuffix("Optimizer")
        self._slots: dict[tuple[str, Variable], Variable] = {}

    def get_name(self) -> str:
        """Return the name of the slots."""
        return self._name

    def compute_gradients(self, loss: Tensor, var_list: Sequence[Variable] | None = None) -> list[tuple[Any, Variable]]:
        """Add the gradients of a loss.

        Args:
            loss: the tensor to minimise.
            var_list: the Variables; all trainable ones if None.

        Returns:
            Pairs of gradient and Variable; the gradient is None where the loss does not depend on the Variable.
        """
        chosen = list(trainable_variables() if var_list is None else var_list)
        if not chosen:
            raise ArgumentError(f"{self._name}: there is no Variable to optimize", hint="Make a tf.Variable.")
        return list(zip(gradients(loss, chosen), chosen, strict=True))

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """Add the changes of Variables by gradients.

        Args:
            grads_and_vars: pairs of gradient and Variable.
            global_step: a Variable that is increased by one.
            name: the name of the operation.

        Raises:
            ArgumentError: all gradients are None.
        """
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        if not pairs:
            raise ArgumentError(f"{self._name}: no Variable has a gradient", got=f"{len(grads_and_vars)} Variables",
                                hint="Is the loss computed from them?")
        rate = self.learning_rate() if callable(self.learning_rate) else self.learning_rate
        made: list[Any] = self._shared(rate, [variable for _, variable in pairs])
        for gradient, variable in pairs:
            made += self._update(rate, gradient, variable)
        if global_step is not None:
            made.append(global_step.assign_add(1))
        return group(*made, name=name or self._name)

    def minimize(
        self, loss: Tensor, global_step: Variable | None = None, var_list: Sequence[Variable] | None = None,
        name: str | None = None,
    ) -> Operation:
        """Add one step of the optimizer: `compute_gradients` and `apply_gradients`."""
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step, name)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Return what is kept for a Variable, such as its ``"momentum"``."""
        return self._slots.get((name, var))

    def variables(self) -> list[Variable]:
        """Return the Variables of the optimizer."""
        return list(self._slots.values())

    def _slot(self, variable: Variable, name: str, value: float = 0.0) -> Variable:
        key = name, variable
        if key not in self._slots:
            spec = variable.spec()
            start = np.full(spec.shape, value, spec.dtype)
            self._slots[key] = Variable(start, trainable=False, name=f"{variable.op.name}/{self._name}_{name}")
        return self._slots[key]

    def _shared(self, rate: Any, variables: Sequence[Variable]) -> list[Any]:
        """Add what all Variables share, before they are changed; return its changes."""
        del rate, variables
        return []

    def _update(self, rate: Any, gradient: Any, variable: Variable) -> list[Any]:
        raise NotImplementedError

    def _changed(self, function: Any, states: Sequence[Variable], *values: Any) -> list[Any]:
        """Add assignments to the states: what a function of the states and other values returns."""
        new_states = added(function, (*states, *values), {}, self._name)
        return [state.assign(value) for state, value in zip(states, new_states, strict=True)]


class GradientDescentOptimizer(Optimizer):
    """Steps against the gradient.

    Example:
        >>> import hybridflow.compat.v1 as tf
        >>> with tf.Graph().as_default():
        ...     w = tf.Variable(1.0)
        ...     train = tf.train.GradientDescentOptimizer(0.25).minimize(tf.square(w))
        ...     with tf.Session() as sess:
        ...         sess.run(tf.global_variables_initializer())
        ...         sess.run(train)
        ...         sess.run(w)
        np.float32(0.5)
    """

    def _update(self, rate: Any, gradient: Any, variable: Variable) -> list[Any]:
        return self._changed(lambda w, g, r: (w - r * g,), [variable], gradient, rate)


class MomentumOptimizer(Optimizer):
    """Steps along a sum of gradients that decays by the factor `momentum`; Nesterov's variant looks a step ahead."""

    def __init__(self, learning_rate: Any, momentum: Any, use_locking: bool = False, name: str | None = None,
                 use_nesterov: bool = False) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._momentum = momentum
        self._nesterov = use_nesterov

    def _update(self, rate: Any, gradient: Any, variable: Variable) -> list[Any]:
        def step(w: Any, a: Any, g: Any, r: Any, m: Any) -> Any:
            a = m * a + g
            return w - r * (g + m * a if self._nesterov else a), a

        return self._changed(step, [variable, self._slot(variable, "momentum")], gradient, rate, self._momentum)


class AdagradOptimizer(Optimizer):
    """Divides gradients by the root of the sum of their squares.

    Reference:
        J. Duchi, E. Hazan, Y. Singer, "Adaptive subgradient methods", JMLR 12, 2011.
    """

    def __init__(self, learning_rate: Any, initial_accumulator_value: float = 0.1, use_locking: bool = False,
                 name: str | None = None) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._start = initial_accumulator_value

    def _update(self, rate: Any, gradient: Any, variable: Variable) -> list[Any]:
        def step(w: Any, a: Any, g: Any, r: Any) -> Any:
            a = a + g * g
            return w - r * g / hf.sqrt(a), a

        return self._changed(step, [variable, self._slot(variable, "accumulator", self._start)], gradient, rate)


class RMSPropOptimizer(Optimizer):
    """Divides gradients by the root of a running mean of their squares, which starts at ones and includes epsilon.

    Reference:
        T. Tieleman, G. Hinton, "Lecture 6.5: rmsprop", 2012.
    """

    def __init__(self, learning_rate: Any, decay: float = 0.9, momentum: float = 0.0, epsilon: float = 1e-10,
                 use_locking: bool = False, centered: bool = False, name: str | None = None) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._decay, self._momentum, self._epsilon, self._centered = decay, momentum, epsilon, centered

    def _update(self, rate: Any, gradient: Any, variable: Variable) -> list[Any]:
        decay, momentum, epsilon = self._decay, self._momentum, self._epsilon

        def step(w: Any, ms: Any, velocity: Any, *rest: Any) -> Any:
            *mean, g, r = rest
            ms = decay * ms + (1 - decay) * g * g
            mean = [decay * one + (1 - decay) * g for one in mean]
            variance = ms - mean[0] * mean[0] if mean else ms
            velocity = momentum * velocity + r * g / hf.sqrt(variance + epsilon)
            return (w - velocity, ms, velocity, *mean)

        states = [variable, self._slot(variable, "rms", 1.0), self._slot(variable, "momentum")]
        states += [self._slot(variable, "mg")] if self._centered else []
        return self._changed(step, states, gradient, rate)


class AdamOptimizer(Optimizer):
    """Adam in the order of the end of the paper's section 2: epsilon is added to the root before the correction.

    A step is ``rate * root(1 - b2^t) / (1 - b1^t) * m / (root(v) + epsilon)``. `hf.optim.Adam` and PyTorch add epsilon
    to the corrected root instead.

    Reference:
        D. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015, section 2.
    """

    def __init__(self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
                 use_locking: bool = False, name: str | None = None) -> None:
        super().__init__(learning_rate, use_locking, name)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._powers: list[Variable] = []
        self._rate: Any = None

    def variables(self) -> list[Variable]:
        """Return the Variables of the optimizer."""
        return [*self._powers, *self._slots.values()]

    def _shared(self, rate: Any, variables: Sequence[Variable]) -> list[Any]:
        if not self._powers:
            dtype = variables[0].dtype
            self._powers = [
                Variable(np.asarray(beta, dtype), trainable=False, name=f"{self._name}/{name}")
                for beta, name in ((self._beta1, "beta1_power"), (self._beta2, "beta2_power"))
            ]
        self._rate = added(lambda r, b1, b2: r * hf.sqrt(1 - b2) / (1 - b1), (rate, *self._powers), {}, "rate")
        return [
            power.assign(power * beta) for power, beta in zip(self._powers, (self._beta1, self._beta2), strict=True)
        ]

    def _update(self, rate: Any, gradient: Any, variable: Variable) -> list[Any]:
        beta1, beta2, epsilon = self._beta1, self._beta2, self._epsilon

        def step(w: Any, m: Any, v: Any, g: Any, r: Any) -> Any:
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            return w - r * m / (hf.sqrt(v) + epsilon), m, v

        states = [variable, self._slot(variable, "m"), self._slot(variable, "v")]
        return self._changed(step, states, gradient, self._rate)


def exponential_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False,
    name: str = "ExponentialDecay",
) -> Any:
    """Add ``learning_rate * decay_rate ** (global_step / decay_steps)``; a staircase rounds the exponent down."""

    def rate(start: Any, step: Any, steps: Any, factor: Any) -> Any:
        exponent = hf.astype(hf.asarray(step), hf.float32) / steps
        return start * hf.pow(hf.asarray(factor, dtype=hf.float32), hf.floor(exponent) if staircase else exponent)

    return added(rate, (learning_rate, global_step, decay_steps, decay_rate), {}, name)


def get_or_create_global_step() -> Variable:
    """Return the Variable that counts training steps."""
    graph = get_default_graph()
    steps = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if steps:
        return steps[0]
    keys = [GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP]
    return Variable(np.asarray(0, np.int64), trainable=False, collections=keys, name="global_step")


# -- checkpoints --------------------------------------------------------------------------------------------------

_SUFFIX = ".safetensors"
_INDEX = "checkpoint"


class Saver:
    """Saves and restores Variables of a session: a safetensors file per checkpoint.

    Args:
        var_list: the Variables, or a dict of them by the names that the file has for them; all if None.
        max_to_keep: how many of the checkpoints that it saved stay; None or 0 for all.
    """

    def __init__(self, var_list: Any = None, max_to_keep: int | None = 5) -> None:
        chosen = global_variables() if var_list is None else var_list
        self._named: dict[str, Variable] = chosen if isinstance(chosen, dict) else {one.op.name: one for one in chosen}
        if not self._named:
            raise ArgumentError("Saver: there are no Variables to save", hint="Make it after the Variables.")
        self._most = max_to_keep or 0
        self.last_checkpoints: list[str] = []

    def save(self, sess: Session, save_path: str | os.PathLike[str], global_step: Any = None) -> str:
        """Save the values; returns the path for `restore`, to which the step is added: ``model.ckpt-100``."""
        path = os.fspath(save_path)
        if global_step is not None:
            step = sess.run(global_step) if isinstance(global_step, Variable | Tensor) else global_step
            path = f"{path}-{int(step)}"
        values = sess.run(dict(self._named))
        hf.save(path + _SUFFIX, values, overwrite=True)
        self.last_checkpoints = [one for one in self.last_checkpoints if one != path] + [path]
        while 0 < self._most < len(self.last_checkpoints):
            Path(self.last_checkpoints.pop(0) + _SUFFIX).unlink(missing_ok=True)
        (Path(path).parent / _INDEX).write_text(Path(path).name, encoding="utf-8")
        return path

    def restore(self, sess: Session, save_path: str | os.PathLike[str]) -> None:
        """Give the Variables the values of a checkpoint: all of them, or none.

        Raises:
            FileMissingError: there is no such checkpoint.
            ArgumentError: it lacks a Variable, or has another shape for one.
        """
        values = hf.load(os.fspath(save_path) + _SUFFIX, copy=True)
        missing = [name for name in self._named if name not in values]
        if missing:
            raise ArgumentError(f"restore: the checkpoint lacks {', '.join(missing)}",
                                got=f"it has {', '.join(values)}",
                                hint="Give the Saver a dict from the file's names to Variables.")
        sess.load({variable: values[name] for name, variable in self._named.items()})


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Return the path of the newest checkpoint that a `Saver` saved in a directory; None if there is none."""
    index = Path(checkpoint_dir) / _INDEX
    return str(index.parent / index.read_text(encoding="utf-8")) if index.exists() else None
