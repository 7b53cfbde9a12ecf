"""A program that times steps of a network on eight CPU devices: for each line that it reads, those of one side.

Run as ``python -m tests.benchmarks.mesh_steps NETWORK WAY SIZE`` with NETWORK ``mlp`` or ``gpt`` and WAY ``data``,
``fsdp`` or ``tensor``; the lines are ``hybridflow`` and ``jax.jit``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import hybridflow as hf
from hybridflow import nn

from .mesh_networks import NETWORKS, Network

RATE = 0.001


def sides(network: Network, way: str, width: int) -> dict[str, Callable[[], float]]:
    """Return the functions that make a step and return its loss, by library; their layouts are the same."""
    mesh = hf.Mesh({"model" if way == "tensor" else "data": 8})
    batch = None if way == "tensor" else "data"
    x, y = network.data(width, np.random.default_rng(0))
    nn.init.seed(0)
    net: Any = network.make(width, way == "tensor")
    if way != "data":
        hf.distribute.shard(net, mesh, fsdp="data" if way == "fsdp" else None, reshard=False)
    optimizer = hf.optim.Adam(net, rate=RATE)
    theirs = of_jax(network.of_jax, net, mesh, x, y, batch)  # before a step changes the parameters

    @hf.compile(mesh=mesh, batch=batch)
    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        optimizer.update(tape.gradient(loss, net))
        return loss

    return {"hybridflow": lambda: float(step(x, y)), "jax.jit": theirs}


def of_jax(
    scores_of: Callable[[Any, Any], Any], net: Any, mesh: Any, x: Any, y: Any, batch: str | None
) -> Callable[[], float]:
    """Return the same step, written for jax by hand."""
    named = net.named_parameters()
    there = {name: mesh.sharding(one.layout or ()) for name, one in named.items()}
    whole = mesh.sharding(())
    gathers = "data" in mesh.shape

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        if gathers:
            p = {name: jax.lax.with_sharding_constraint(value, whole) for name, value in p.items()}
        scores = scores_of(p, x)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), y[..., None], -1))

    def step(p: Any, m: Any, v: Any, count: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        g = {name: jax.lax.with_sharding_constraint(value, there[name]) for name, value in g.items()}
        count = count + 1
        m = {name: 0.9 * m[name] + 0.1 * g[name] for name in g}
        v = {name: 0.999 * v[name] + 0.001 * g[name] ** 2 for name in g}
        root = {name: jnp.sqrt(v[name] / (1 - 0.999**count)) + 1e-8 for name in g}
        return {name: p[name] - RATE * (m[name] / (1 - 0.9**count)) / root[name] for name in g}, m, v, count, loss

    rows = NamedSharding(mesh.of_jax, PartitionSpec(batch))
    run = jax.jit(
        step, in_shardings=(there, there, there, whole, rows, rows),
        out_shardings=(there, there, there, whole, whole), donate_argnums=(0, 1, 2, 3),
    )
    put = lambda make: {name: jax.device_put(make(one), there[name]) for name, one in named.items()}  # noqa: E731
    state = [
        put(lambda one: np.array(one.numpy())), *[put(lambda one: np.zeros(one.shape, np.float32)) for _ in range(2)],
        jax.device_put(np.float32(0), whole),
    ]

    def call() -> float:
        *state[:], loss = run(*state, x, y)
        jax.block_until_ready(state)  # the loss is there when the first device is done, and the others still compute
        return float(loss)

    return call


def main(network: str, way: str, size: str) -> None:
    """Check that the sides do the same work, and answer each line with the seconds of a step of that side."""
    hf.distribute.cpu_devices(8)
    calls = sides(NETWORKS[network], way, int(size))
    losses = [[call() for _ in range(3)] for call in calls.values()]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-4)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        calls[line.strip()]()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
