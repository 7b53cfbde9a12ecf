"""The overhead of an op besides its arithmetic: small operands, recorded for a gradient, against torch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import hybridflow as hf

from ..registry import Case, row

Values = Any
"""The operands: ``x`` and ``y`` of shape (4, 8), the parameters ``w`` (8, 8) and ``v`` (8,), and ``ids`` (4,).

``y`` and ``ids`` get no gradient.
"""


def recorded(name: str, work: str, ours: Callable[[Values], Any], theirs: Callable[[Any, Values], Any]) -> None:
    """Register the row of one op; `theirs` takes the torch module first."""

    def build(case: Case) -> None:
        arrays = {"x": case.normal(4, 8), "y": case.normal(4, 8), "w": case.normal(8, 8), "v": case.normal(8)}
        ids = case.rng.integers(0, 4, 4).astype(np.int32)
        values = SimpleNamespace(**{key: hf.asarray(array) for key, array in arrays.items()}, ids=hf.asarray(ids))
        values.w, values.v = hf.Variable(values.w), hf.Variable(values.v)
        case.enter(hf.GradientTape(persistent=True)).watch(values.x)
        case.ours(lambda: ours(values))

        @case.torch()
        def _(torch: Any, put: Callable[[Any], Any]) -> Any:
            given = SimpleNamespace(**{key: put(array) for key, array in arrays.items()}, ids=put(ids).long())
            for value in (given.x, given.w, given.v):
                value.requires_grad_()
            return lambda: theirs(torch, given)

    build.__name__, build.__module__ = f"op_{name}", __name__
    row(f"{work}, recorded", aims={"torch": 1.0})(build)


recorded("add_variable", "x + variable", lambda o: o.x + o.v, lambda torch, t: t.x + t.v)
recorded("matmul_variable", "x @ variable", lambda o: o.x @ o.w, lambda torch, t: t.x @ t.w)
recorded("multiply_number", "x * 0.5", lambda o: o.x * 0.5, lambda torch, t: t.x * 0.5)
recorded("relu", "relu", lambda o: hf.nn.relu(o.x), lambda torch, t: torch.relu(t.x))
recorded("sigmoid", "sigmoid", lambda o: hf.nn.sigmoid(o.x), lambda torch, t: torch.sigmoid(t.x))
recorded("mean", "mean", lambda o: hf.mean(o.x), lambda torch, t: torch.mean(t.x))
recorded("sum_axis", "sum over an axis", lambda o: hf.sum(o.x, axis=1), lambda torch, t: torch.sum(t.x, 1))
recorded("reshape", "reshape", lambda o: hf.reshape(o.x, (8, 4)), lambda torch, t: t.x.reshape(8, 4))
recorded("permute", "permute_dims", lambda o: hf.permute_dims(o.x, (1, 0)), lambda torch, t: t.x.permute(1, 0))
recorded("split", "split in 4", lambda o: hf.split(o.x, 4, axis=-1), lambda torch, t: t.x.chunk(4, -1))
recorded("getitem", "x[:, 1:3]", lambda o: o.x[:, 1:3], lambda torch, t: t.x[:, 1:3])
recorded("concat", "concat", lambda o: hf.concat([o.x, o.y]), lambda torch, t: torch.cat([t.x, t.y]))
recorded(
    "where",
    "where(x > 0, x, y)",
    lambda o: hf.where(o.x > 0, o.x, o.y),
    lambda torch, t: torch.where(t.x > 0, t.x, t.y),
)
recorded("softmax", "softmax", lambda o: hf.nn.softmax(o.x), lambda torch, t: torch.softmax(t.x, -1))
recorded(
    "layer_norm",
    "layer_norm",
    lambda o: hf.nn.layer_norm(o.x, o.v, o.v),
    lambda torch, t: torch.nn.functional.layer_norm(t.x, (8,), t.v, t.v),
)
recorded(
    "cross_entropy",
    "softmax_cross_entropy",
    lambda o: hf.nn.softmax_cross_entropy(o.x, o.ids),
    lambda torch, t: torch.nn.functional.cross_entropy(t.x, t.ids, reduction="none"),
)
