"""jax's own functions on a mesh, and hybridflow's functions as jax's."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hybridflow as hf
from hybridflow.xla.store import stored_programs

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(16, 8)).astype("f"), RNG.normal(size=(8, 4)).astype("f")


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_to_jax_under_explicit_and_auto_axes(kind):
    def loss(x, w):
        return hf.mean(hf.nn.softmax_cross_entropy(hf.nn.relu(x) @ w, hf.zeros((16,), dtype=hf.int32)))

    pure = hf.to_jax(loss)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        x, w = jax.device_put(X, NamedSharding(mesh, P("data", None))), jax.device_put(W, NamedSharding(mesh, P()))
        value, slope = jax.jit(jax.value_and_grad(pure, argnums=1))(x, w)
    np.testing.assert_allclose(value, loss(X, hf.asarray(W)).item(), rtol=1e-6)
    np.testing.assert_allclose(slope, hf.grad(loss, argnums=1)(hf.asarray(X), hf.asarray(W)).numpy(), atol=1e-6)


def test_from_jax_of_a_function_with_shardings(mesh):
    def double(x):
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh.of_jax, P("data", None)))

    op = hf.from_jax(double)
    for run in (op, hf.compile(op), hf.compile(op, mesh=mesh, batch="data")):
        with hf.GradientTape() as tape:
            x = hf.asarray(X)
            tape.watch(x)
            y = run(x)
            total = hf.sum(y**2)
        np.testing.assert_array_equal(y.numpy(), 2 * X)
        np.testing.assert_allclose(tape.gradient(total, x).numpy(), 8 * X, rtol=1e-6)


def test_from_jax_of_a_shard_map_is_not_stored_and_waits(mesh, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_programs, "_WORTH_KEEPING", 0.0)
    into, back = P("data", None), P(None, None)
    op = hf.from_jax(jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh.of_jax, in_specs=into, out_specs=back))
    hf.config.cache(tmp_path)
    try:
        runs = [op, hf.compile(op), hf.compile(op, mesh=mesh, batch="data")]
        for run in runs:
            np.testing.assert_allclose(run(X).numpy(), X.reshape(8, 2, 8).sum(0), atol=1e-5)
        assert [run.explain()[0].store for run in runs[1:]] == [["not stored: it runs on several devices"]] * 2
    finally:
        hf.config.cache(False)
    for _ in range(200):
        runs[1](X)


def test_an_array_on_several_devices_is_an_argument_as_it_is(mesh):
    x = jax.device_put(X, mesh.sharding(("data", None)))
    np.testing.assert_array_equal(hf.compile(lambda x: hf.add(x, 1.0), mesh=mesh, batch="data")(x).numpy(), X + 1)
    np.testing.assert_array_equal(hf.compile(lambda x: hf.add(x, 1.0))(x).numpy(), X + 1)
