"""`Optax`: any transformation of optax as an optimizer of Variables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.context import made_once
from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.ops.jax_functions import from_jax
from hybridflow.optim.groups import Parameter
from hybridflow.optim.optimizer import Optimizer
from hybridflow.optim.rule import Rule
from hybridflow.optim.rules import SGD
from hybridflow.optim.writes import assign_all


class Optax(Optimizer):
    """An optimizer that applies a gradient transformation of optax.

    The transformation gets parameters as a mapping by name, so masks and labels are mappings by name too. It scales its
    updates by its own learning rate; `rate` is 1.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        tx: the transformation, an object with ``init`` and ``update``.
        nonfinite: see `Optimizer`.
    """

    def __init__(self, target: Any, tx: Any, *, nonfinite: str = "apply") -> None:
        if not (hasattr(tx, "init") and hasattr(tx, "update")):
            raise ArgumentTypeError(f"Optax: a {type(tx).__name__} is no transformation", got=repr(tx)[:80],
                                    hint="Give what optax.adam(1e-3) or optax.chain(...) returns.")
        self._tx = tx
        self._tree: Any = None
        self._kept: list[Variable] = []
        self._paths: list[str] = []
        self._function = from_jax(self._changed)
        super().__init__(target, 1.0, nonfinite=nonfinite)

    def _rule_of(self, settings: dict[str, Any], ndim: int = 2) -> tuple[Rule, dict[str, Any]]:
        del ndim
        return SGD, {**settings, "decay": 0.0}  # a rule without slots of its own

    def _changed(self, state: Any, gradients: Any, parameters: Any) -> Any:
        """Return the new parameters and state; all values are jax arrays."""
        changes, after = self._tx.update(gradients, jax.tree_util.tree_unflatten(self._tree, state), parameters)
        moved = {name: (one + changes[name]).astype(one.dtype) for name, one in parameters.items()}
        leaves = jax.tree_util.tree_leaves(after)
        return moved, [leaf.astype(old.dtype) for leaf, old in zip(leaves, state, strict=True)]

    def _parameters(self) -> list[Parameter]:
        first = self._found is None
        parameters = super()._parameters()
        if first:
            with made_once(), enable_x64():
                state = self._tx.init({one.name: np.array(one.variable.numpy()) for one in parameters})
                pairs, self._tree = jax.tree_util.tree_flatten_with_path(state)
                self._paths = [f"state{jax.tree_util.keystr(path)}" for path, _ in pairs]
                self._kept = [
                    Variable(np.asarray(leaf), name=f"optimizer.{path}", trainable=False)
                    for path, (_, leaf) in zip(self._paths, pairs, strict=True)
                ]
        return parameters

    def _state(self) -> dict[str, Variable]:
        state = super()._state()
        del state["rate"]
        return state | dict(zip(self._paths, self._kept, strict=True))

    def _make(
        self, parameters: list[Parameter], gradients: list[Tensor], step: Tensor, rates: dict[int, Tensor], plain: bool
    ) -> None:
        del rates, plain
        moved, after = self._function(
            [variable.read() for variable in self._kept],
            {one.name: gradient for one, gradient in zip(parameters, gradients, strict=True)},
            {one.name: one.variable.read() for one in parameters},
        )
        assign_all([
            *[(one.variable, moved[one.name]) for one in parameters],
            *zip(self._kept, after, strict=True),
            (self._steps, step + 1),
        ])
