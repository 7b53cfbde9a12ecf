"""`LossScale`: keep low-precision gradients in range, and skip the steps where they overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridflow.core import structures
from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import current
from hybridflow.core.dtypes import float32, int32, is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, TraceError
from hybridflow.core.functions import as_traced
from hybridflow.core.node import Edge, Node
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.construction import Construction
from hybridflow.ir.effects import has_effect
from hybridflow.ops.choice import maximum, where
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import equal, isfinite, logical_and, logical_not, logical_or
from hybridflow.ops.reductions import all as all_true

_SMALLEST = float(np.finfo(np.float32).tiny)


def all_finite(tree: Any) -> Tensor:
    """Return whether all elements of a structure of tensors are finite.

    Args:
        tree: a pytree of tensors; None, integers and bools count as finite.

    Returns:
        A bool of shape ().

    Example:
        >>> import hybridflow as hf
        >>> hf.all_finite([hf.ones(2), {"b": None}]), hf.all_finite([1.0, hf.inf])
        (Tensor(True, dtype=bool), Tensor(False, dtype=bool))
    """
    result: Tensor | None = None
    for leaf in structures.leaves(tree):
        tensor = as_tensor(leaf)
        if is_differentiable(tensor.dtype):
            one = all_true(isfinite(tensor))
            result = one if result is None else logical_and(result, one)
    return as_tensor(np.asarray(True)) if result is None else result


class LossScale:
    """A factor for a loss, so that its gradients do not underflow in float16; it adapts during training.

    `scale` the loss, compute the gradients, `unscale` them, and pass them to `step` together with the function that
    applies them. If a gradient is NaN or infinite, the whole step is skipped: no Variable that the function writes
    changes, including momentum, counters and random states. The scale is then multiplied by `backoff`. After
    `interval` steps in a row without a skip, it is multiplied by `growth`. All of this works in eager code and inside
    a compiled function, where nothing waits for the outcome.

    Args:
        initial: the initial scale, positive; powers of 2 cause no rounding.
        growth: the factor after `interval` good steps, at least 1.
        backoff: the factor after a skipped step, above 0 and at most 1.
        interval: the number of good steps in a row before the scale grows.
        dynamic: False keeps the scale fixed; steps are still skipped.

    Raises:
        ArgumentError: if a factor or the interval is out of its range.

    Example:
        >>> import hybridflow as hf
        >>> w = hf.Variable([1.0, 2.0])
        >>> loss_scale = hf.LossScale(1024.0)
        >>> def train(x):
        ...     with hf.GradientTape() as tape, hf.autocast(hf.float16):
        ...         loss = loss_scale.scale(hf.sum(x * w))
        ...     gradients = loss_scale.unscale(tape.gradient(loss, [w]))
        ...     return loss_scale.step(lambda gradients: w.assign_sub(gradients[0]), gradients)
        >>> train(hf.asarray([0.5, 0.5])).item(), w.numpy().tolist()
        (True, [0.5, 1.5])
        >>> train(hf.asarray([hf.inf, 0.5])).item(), w.numpy().tolist(), loss_scale.value.item()
        (False, [0.5, 1.5], 512.0)

    Reference:
        Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2.
    """

    def __init__(
        self,
        initial: float = 2.0**15,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        dynamic: bool = True,
    ) -> None:
        _require("initial", initial, 0 < initial < math.inf, "positive and finite")
        _require("growth", growth, 1 <= growth < math.inf, "1 at least, and finite")
        _require("backoff", backoff, 0 < backoff <= 1, "above 0 and 1 at most")
        _require("interval", interval, interval >= 1, "1 at least")
        self._growth, self._backoff = float(growth), float(backoff)
        self._interval = int(interval)
        self._dynamic = bool(dynamic)
        self._scale = Variable(initial, dtype=float32, name="loss_scale", trainable=False)
        self._good = Variable(0, dtype=int32, name="loss_scale.good_steps", trainable=False)
        self._skipped = Variable(0, dtype=int32, name="loss_scale.skipped_steps", trainable=False)

    @property
    def value(self) -> Tensor:
        """The current scale, float32 of shape ()."""
        return self._scale.read()

    @property
    def skipped_steps(self) -> Tensor:
        """The number of skipped steps so far, int32 of shape ()."""
        return self._skipped.read()

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its Variables: the scale, the good steps since it changed, and the number of skipped steps."""
        return self._scale, self._good, self._skipped

    def named_variables(self) -> dict[str, Variable]:
        """Return its Variables by name."""
        return {"value": self._scale, "good_steps": self._good, "skipped_steps": self._skipped}

    def scale(self, losses: Any) -> Any:
        """Multiply losses by the scale.

        Args:
            losses: a floating-point tensor, or a pytree of them.

        Returns:
            The same structure; float16 and bfloat16 become float32, since the product may be large.

        Raises:
            DTypeError: if a loss is not floating-point.
        """
        with without_autocast():
            return structures.map_leaves(self._scaled, losses)

    def _scaled(self, loss: Any) -> Tensor:
        tensor = as_tensor(loss)
        if not is_differentiable(tensor.dtype):
            raise DTypeError(f"LossScale.scale: a loss of {tensor.dtype} has no gradient", got=str(tensor.spec),
                             hint="Scale a floating-point loss.")
        return tensor * self._scale.read()

    def unscale(self, gradients: Any) -> Any:
        """Divide gradients by the scale.

        If one of them overflowed, all become NaN, so that clipping before `step` cannot hide the overflow.

        Args:
            gradients: a pytree of tensors; None stays None.

        Returns:
            The same structure; float16 and bfloat16 become float32, so that nothing underflows.
        """
        with without_autocast():
            factor = where(all_finite(gradients), 1.0 / self._scale.read(), math.nan)
            return structures.map_leaves(lambda gradient: as_tensor(gradient) * factor, gradients)

    def step(self, update: Callable[[Any], Any], gradients: Any) -> Tensor:
        """Apply gradients if all of them are finite, and adapt the scale.

        In eager code, `update` is not called if the step is skipped. In a compiled function it is part of the graph,
        and its writes are undone if the step is skipped; so it must have no other effects, such as `hf.print` or
        `.zero_grad()`.

        Args:
            update: a function that takes the gradients and assigns Variables; its result is dropped.
            gradients: the gradients from `unscale`, possibly clipped or changed.

        Returns:
            Whether the gradients were applied: a bool of shape ().

        Raises:
            ArgumentTypeError: if `update` cannot be called.
            TraceError: in a compiled function, if `update` has an effect that cannot be undone.
        """
        if not callable(update):
            raise ArgumentTypeError(f"LossScale.step: a {type(update).__name__} cannot be called",
                                    got=repr(update)[:60],
                                    hint="Pass the function that applies the gradients, and then the gradients.")
        tracer = current().tracer
        finite = all_finite(gradients)
        if isinstance(tracer, GraphBuilder):
            write_if(tracer, finite, lambda: as_traced(update)(gradients), what="LossScale.step")
        elif finite.item():
            update(gradients)
        with without_autocast():
            self._adapt(finite)
        return finite

    def _adapt(self, finite: Tensor) -> None:
        """Write the scale and the counters after a step."""
        self._skipped.assign_add(cast_to(logical_not(finite), int32))
        if not self._dynamic:
            return
        scale, good = self._scale.read(), self._good.read() + 1
        grows = logical_and(finite, equal(good, self._interval))
        grown = scale * self._growth
        after = where(logical_and(grows, isfinite(grown)), grown, scale)
        self._scale.assign(where(finite, after, maximum(scale * self._backoff, _SMALLEST)))
        self._good.assign(where(logical_and(finite, logical_not(grows)), good, 0))

    def state(self) -> dict[str, float | int]:
        """Return the state as numbers, for `restore`.

        Example:
            >>> import hybridflow as hf
            >>> hf.LossScale(8.0).state()
            {'scale': 8.0, 'good_steps': 0, 'skipped_steps': 0}
        """
        return {
            "scale": self._scale.item(), "good_steps": self._good.item(), "skipped_steps": self._skipped.item()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state, for example to that of another `LossScale`.

        Args:
            state: the result of `state`.

        Raises:
            ArgumentError: if the keys differ, or a number is out of its range.
        """
        known = {"scale", "good_steps", "skipped_steps"}
        if set(state) != known:
            raise ArgumentError(f"LossScale.restore: the state has {sorted(state)}",
                                hint=f"It must have {sorted(known)}.")
        _require("scale", state["scale"], 0 < state["scale"] < math.inf, "positive and finite")
        for name in ("good_steps", "skipped_steps"):
            _require(name, state[name], state[name] >= 0, "0 at least")
        self._scale.assign(state["scale"])
        self._good.assign(state["good_steps"])
        self._skipped.assign(state["skipped_steps"])

    def __repr__(self) -> str:
        kind = f"grows every {self._interval} steps" if self._dynamic else "fixed"
        return f"LossScale({self._scale!r}, {kind})"


def _require(name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise ArgumentError(f"LossScale: {name} must be {what}", got=f"{name}={value!r}")


def write_if(builder: GraphBuilder, condition: Tensor, function: Callable[[], Any], *, what: str) -> None:
    """Trace a function so that its writes to Variables take effect only in calls where a condition holds.

    Args:
        builder: the tracer.
        condition: a bool of shape ().
        function: the function that writes.
        what: the name of the caller, for messages.

    Raises:
        TraceError: if the function has other effects, or the graph is hand-made.
    """
    if isinstance(builder, Construction):
        raise TraceError(f"{what}: in a graph made by hand assignments are operations of their own",
                         hint="Use hf.compile, or choose the values with hf.where and fetch the assignments.")
    before: dict[Node, tuple[Edge, bool | None]] = {
        leaf: (state.edge, state.present) for leaf, state in builder.variables.items()
    }
    nodes, checks = len(builder.nodes), len(builder.checks)
    function()
    effect = next(filter(has_effect, builder.nodes[nodes:]), None)
    if effect is not None:
        _refuse(what, f"{effect.op.name} at {effect.location}")
    for leaf, state in builder.variables.items():
        edge, present = before.get(leaf, (state.original, None))
        if state.present is not present:
            _refuse(what, f"{state.variable.name} is cleared or made")
        if state.edge != edge:
            value = where(condition, make_tensor(None, state.edge), make_tensor(None, edge))
            builder.assign_variable(state.variable, value)
    for index, check in enumerate(builder.checks[checks:], checks):
        builder.checks[index] = check._replace(ok=logical_or(check.ok, logical_not(condition)))


def _refuse(what: str, effect: str) -> None:
    raise TraceError(f"{what}: the update has an effect that a skipped step could not undo", got=effect,
                     hint="Do it before or after the step; the step returns whether the gradients were applied.")
