"""Models of the zoo: a step on a mesh of two devices is the eager step, with split weights too."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest
from zoo import SMALL, made

import hybridflow as hf

ALL = "HYBRIDFLOW_ZOO" in os.environ
NAMES = [*SMALL] if ALL else ["lenet", "resnet", "unet", "vae"]
"""The families: all of them if ``HYBRIDFLOW_ZOO`` is set."""


def trained(name: str, how: Any, fsdp: bool = False) -> tuple[float, dict[str, Any]]:
    """Train a model by one step and return the loss and the state."""
    model, inputs = made(name)
    hf.random.seed(1)
    if fsdp:
        hf.distribute.shard(model, how, fsdp="data")
    optimizer = hf.optim.SGD(model, rate=0.1)

    def step(*args: Any) -> Any:
        with hf.GradientTape() as tape:
            leaves = jax.tree_util.tree_leaves(model(*args))
            loss = sum(hf.mean(leaf * leaf) for leaf in leaves)
        optimizer.update(tape.gradient(loss, model))
        return loss

    run = hf.compile(step, mesh=how, batch="data") if isinstance(how, hf.Mesh) else how(step)
    return float(run(*inputs)), model.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_two_devices_is_the_eager_one(name):
    mesh = hf.Mesh({"data": 2})
    loss, state = trained(name, lambda step: step)
    start = made(name)[0].state_dict()
    assert any(not np.array_equal(start[path], value) for path, value in state.items())
    moved = {path: np.abs(value - start[path]).max(initial=0) for path, value in state.items()}
    most = max(moved.values())
    one, one_state = trained(name, hf.compile)  # as far as one device is from eager code, several may be
    for fsdp in (False, True) if ALL else (name == "unet",):
        found, values = trained(name, mesh, fsdp)
        np.testing.assert_allclose(found, loss, rtol=2e-5, atol=3 * abs(one - loss))
        for path, value in values.items():
            bound = 2e-3 * moved[path] + 1e-5 * most  # a gradient can be a small difference of large numbers
            bound += 3 * np.abs(one_state[path] - state[path]).max(initial=0)
            np.testing.assert_allclose(value, state[path], rtol=0, atol=bound, err_msg=path)
