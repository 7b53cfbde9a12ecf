"""The share of a compiled call that `hf.profile` attributes to no node of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hybridflow as hf

from ..registry import Case, row
from . import convnet, mlp, transformer


def shares(case: Case, call: Callable[[], Any]) -> None:
    """Compare the time that is attributed to no node with the time of the calls."""
    call()
    latest: list[tuple[float, float]] = []

    def unattributed() -> float:
        with hf.profile() as found:
            for _ in range(case.size(20, 2)):
                call()
        middle = sorted(found.calls, key=lambda one: one.attributed)[len(found.calls) // 2]
        latest[:] = [((1 - middle.attributed) * middle.seconds, middle.seconds)]
        return latest[0][0]

    case.ours(unattributed, self_timed=True)
    case.peer("call", lambda: (unattributed(), latest[0][1])[1], self_timed=True)


@row("profile_mlp", aims={"call": 0.1})
def profile_mlp(case: Case) -> None:
    data = mlp.Data(case)
    step, _ = mlp.hybridflow_step(data)
    compiled, x, labels = hf.compile(step), hf.asarray(data.x), hf.asarray(data.labels)
    shares(case, lambda: compiled(x, labels))


@row("profile_convnet", aims={"call": 0.1})
def profile_convnet(case: Case) -> None:
    data = convnet.Data(case)
    step, _ = convnet.hybridflow_step(data)
    compiled, images, labels = hf.compile(step), hf.asarray(data.images), hf.asarray(data.labels)
    shares(case, lambda: compiled(images, labels))


@row("profile_transformer", aims={"call": 0.1})
def profile_transformer(case: Case) -> None:
    shares(case, transformer.Ours(transformer.Data(case, case.size(12, 2))).step)
