"""Training steps of models in the sizes that people use: their time, and the memory of the process.

Command line: ``python -m tests.benchmarks.sizes_of_models [MODEL ...] [--way WAY ...]``. Each model is trained in each
way in a process of its own. Base is the process before the model is made, steady is after the last step, both without
what was freed; the peak is the most that the process ever took, and predicted is `hf.cost`'s peak, which is added to
the base. The weights of jax start as zeros, which takes the same time.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import hybridflow as hf
from hybridflow.backend.process_memory import process_memory

from .alone import run_each_alone
from .frameworks import Array, Hybridflow, Jax, torch_framework
from .measure import finish
from .registry import Case
from .rows import models


class Model(NamedTuple):
    """A model in a size that people use.

    Attributes:
        make: makes it of a framework.
        batch: draws a batch.
        adam: whether AdamW trains it; else it is SGD with momentum.
    """

    make: Callable[[Any], Any]
    batch: Callable[[Case], list[Array]]
    adam: bool = True


def _gpt2(width: int, heads: int, layers: int) -> Model:
    return Model(
        lambda f: models.gpt(f, 50257, 1024, width, heads, layers, 0.0, tied=True),
        lambda case: models.ids(case, 50257, 1, 128),
    )


MODELS = {
    "GPT-2 small, one sequence of 128": _gpt2(768, 12, 12),
    "BERT-base, 2 sequences of 128": Model(
        lambda f: models.bert(f, 30522, 512, 768, 12, 12), lambda case: models.ids(case, 30522, 2, 128)
    ),
    "ResNet-50, 8 images of 224 x 224": Model(
        lambda f: models.resnet(f, (256, 512, 1024, 2048), (3, 4, 6, 3), stem=2, narrow=True, classes=1000),
        lambda case: models.images(case, 8, 224), adam=False,
    ),
    "ViT-B/16, 4 images of 224 x 224": Model(
        lambda f: models.vit(f, 224, 16, 768, 12, 12, 1000), lambda case: models.images(case, 4, 224)
    ),
    "GPT-2 medium, one sequence of 128": _gpt2(1024, 16, 24),
    "tiny": Model(lambda f: models.gpt(f, 8, 4, 8, 2, 1, 0.0, tied=True), lambda case: models.ids(case, 8, 1, 4)),
}
"""The models by name; the last one shows that all ways work."""


def _torch(*args: Any) -> Any:
    import torch

    return torch_framework(torch, torch.tensor).Trainer(*args)


WAYS: dict[str, Callable[..., Any]] = {
    "hybridflow": lambda *args: Hybridflow.Trainer(*args, True),
    "hybridflow, eager": lambda *args: Hybridflow.Trainer(*args, False),
    "jax.jit + optax": lambda *args: Jax.Trainer(*args, True),
    "torch, eager": lambda *args: _torch(*args, False),
    "torch.compile": lambda *args: _torch(*args, True),
}
"""The ways to train: each takes what makes a model, the loss, and whether AdamW trains it."""
NEEDS = {"jax.jit + optax": "optax", "torch, eager": "torch", "torch.compile": "torch"}
STEPS = 5


def _resident() -> int:
    """Return the memory of the process without garbage, or 0 where the system does not tell it."""
    gc.collect()
    found = process_memory()
    return 0 if found is None else found.resident


def run(name: str, way: str) -> dict[str, Any]:
    """Train a model in one way; return the figures."""
    model, trainer = MODELS[name], WAYS[way]
    batch = model.batch(Case(False, {}))
    trainer(lambda f: f.Linear(2, 2), lambda f, net, x: f.sum(net(x)), False).bind([np.ones((2, 2), np.float32)]).step()
    base = _resident()
    made = trainer(model.make, models.classify, model.adam)
    seconds: list[float] = []
    with hf.config.cache(False):
        bound = made.bind(batch)
        for _ in range(STEPS):
            start = time.perf_counter()
            finish(bound.step())
            finish(bound.state()[-1:])
            seconds.append(time.perf_counter() - start)
    steady, most = _resident(), process_memory()
    predicted = hf.cost(made.step, *map(hf.asarray, batch)).memory.peak if "hybridflow" in way else None
    return {
        "first": seconds[0], "step": float(np.median(seconds[2:])), "base": base, "steady": steady,
        "peak": 0 if most is None else most.peak, "predicted": predicted,
    }


def _megabytes(what: str, figures: dict[str, Any]) -> str:
    return "" if figures[what] is None else f"{figures[what] / 1e6:,.0f}"


COLUMNS: dict[str, Callable[[Any], str]] = {
    "first call (s)": lambda figures: f"{figures['first']:.1f}",
    "step (s)": lambda figures: f"{figures['step']:.3f}",
    **{f"{what} (MB)": partial(_megabytes, what) for what in ("base", "predicted", "peak", "steady")},
}


def main(arguments: list[str] | None = None) -> int:
    """Run the models; the exit status is 1 if a process failed."""
    return run_each_alone(
        "tests.benchmarks.sizes_of_models", __doc__, [*MODELS][:-1], WAYS, run, COLUMNS, arguments, NEEDS
    )


if __name__ == "__main__":
    sys.exit(main())
