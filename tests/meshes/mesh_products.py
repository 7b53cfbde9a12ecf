"""Products whose first operand is transposed: it is stored before it is multiplied."""

from __future__ import annotations

import inspect
import re
import textwrap

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import ir, nn
from hybridflow.passes import ON_A_MESH, PIPELINE
from hybridflow.passes.store_transposes import store_transposes

RNG = np.random.default_rng(0)


def test_the_example_of_the_pass_is_true():
    text = (inspect.getdoc(store_transposes) or "").split("Before:\n")[1]
    before, after = [ir.parse(textwrap.dedent(one)) for one in text.split("\n\nAfter:\n")]
    stored = store_transposes(before)
    ir.verify(stored)
    assert ir.print_graph(stored) == ir.print_graph(after)
    assert store_transposes(stored) is stored


def test_it_runs_on_a_mesh_only():
    assert "store_transposes" in [one.name for one in ON_A_MESH.passes()]
    assert "store_transposes" not in [one.name for one in PIPELINE.passes()]


@pytest.mark.parametrize("is_sharded", [False, True])
def test_gradients_of_weights_read_stored_transposes(mesh, is_sharded):
    """XLA's products read the first operand along rows; the gradients are those of one device."""
    nn.init.seed(0)
    net = nn.Sequential(nn.Linear(24, 40), nn.gelu, nn.Linear(40, 16))
    x = RNG.normal(size=(4 * mesh.size, 3, 24)).astype(np.float32)

    def gradients(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(net(x) ** 2)
        return tape.gradient(loss, list(net.parameters()))

    expected = gradients(hf.asarray(x))
    if is_sharded:
        hf.distribute.shard(net, mesh, fsdp="data", reshard=False)
    run = hf.compile(gradients, mesh=mesh, batch="data")
    found = run(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-7)
    text = run.lower(x).executable.compiled.as_text()
    assert str(run.lower(x).graph).count("stored(") == 2
    products = re.findall(r" dot\(.*lhs_contracting_dims=\{(\d)\}", text)
    assert products
    assert set(products) == {"1"}
