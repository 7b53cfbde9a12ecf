"""`hf.distribute.ring_attention` equals `scaled_dot_product_attention`, forward and gradient."""

from __future__ import annotations

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import GradientError, LayoutError, ShapeError

RNG = np.random.default_rng(0)


def normal(*shape):
    return hf.asarray(RNG.normal(size=shape).astype(np.float32))


def whole(q, k, v, target, attend):
    """Return the result, and the gradients of a loss."""
    with hf.GradientTape() as tape:
        tape.watch([q, k, v])
        y = attend(q, k, v)
        loss = hf.mean((y - target) ** 2)
    return [y, *tape.gradient(loss, [q, k, v])]


def require_close(one, other, tolerance=2e-6):
    for a, b in zip(one, other, strict=True):
        a, b = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(a).max())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("sizes", "options", "lengths"),
    [
        ({"seq": 8}, {}, (32, 32)),
        ({"seq": 2}, {"scale": 0.3}, (8, 16)),
        ({"seq": 2}, {}, (16, 8)),
        ({"seq": 1}, {}, (4, 4)),
        ({"data": 2, "seq": 2, "model": 2}, {"batch": "data", "heads": "model"}, (8, 8)),
    ],
    ids=str,
)
def test_it_is_attention(sizes, options, lengths, is_causal):
    mesh, (n, m) = hf.Mesh(sizes), lengths
    args = normal(2, 4, n, 8), normal(2, 4, m, 8), normal(2, 4, m, 6), normal(2, 4, n, 6)
    scale = options.get("scale")
    one = whole(*args, lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale))

    def ring(q, k, v):
        return hf.distribute.ring_attention(q, k, v, is_causal=is_causal, **options)

    compiled = hf.compile(lambda *args: whole(*args, ring), mesh=mesh)
    require_close(one, compiled(*args))
    require_close(one, whole(*args, ring))
    record = compiled.explain()[0]
    sent = [one for made in (*record.executables, *record.recorded) for one in made.collectives() or ()]
    size = mesh.shape["seq"]
    parts = args[1].size // mesh.size * 4, args[2].size // mesh.size * 4
    # Keys and values go round forward, and for the gradient once more with their own gradients, which go one step
    # further to be home. With two devices, all rounds are one step, and XLA sends keys and values only once.
    times = {1: 0, 2: 3}.get(size, 4)
    found = sorted([one.bytes for one in sent if one.kind == "collective-permute"])
    assert found == sorted(parts * times)
    assert all(one.asked for one in sent)


@pytest.mark.parametrize("is_causal", [False, True])
def test_eagerly_in_shard_map(is_causal):
    mesh = hf.Mesh({"seq": 4})
    args = normal(2, 8, 4), normal(2, 8, 4), normal(2, 8, 3), normal(2, 8, 3)
    layout = (None, "seq", None)
    ring = hf.shard_map(
        lambda q, k, v: hf.distribute.ring_attention(q, k, v, is_causal=is_causal), mesh, [layout] * 3, layout
    )
    one = whole(*args, lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, is_causal=is_causal))
    require_close(one, whole(*args, ring))
    require_close(one, hf.compile(lambda *args: whole(*args, ring), mesh=mesh)(*args))


def test_shared_keys_and_low_precision():
    mesh = hf.Mesh({"seq": 4})
    q, k, v, target = normal(2, 4, 8, 8), normal(2, 1, 8, 8), normal(2, 1, 8, 8), normal(2, 4, 8, 8)
    one = whole(q, k, v, target, nn.scaled_dot_product_attention)
    step = hf.compile(lambda *args: whole(*args, hf.distribute.ring_attention), mesh=mesh)
    require_close(one, step(q, k, v, target))
    low = [x.astype("bfloat16") for x in (q, k, v)]
    made = step(*low, target)
    assert [one.dtype for one in made] == [hf.bfloat16] * 4
    require_close(whole(*low, target, nn.scaled_dot_product_attention), made, 2e-2)


def test_bad_calls():
    mesh, x = hf.Mesh({"seq": 4}), normal(8, 4)

    def on_mesh(*args, **options):
        return hf.compile(lambda *args: hf.distribute.ring_attention(*args, **options), mesh=mesh)(*args)

    with pytest.raises(LayoutError, match="the mesh has no axis 'rows'"):
        on_mesh(x, x, x, axis="rows")
    with pytest.raises(LayoutError, match="size 6 cannot be divided by 4"):
        on_mesh(x[:6], x[:6], x[:6])
    with pytest.raises(ShapeError, match="query has dim 4, key 3"):
        on_mesh(x, x[:, :3], x)
    with pytest.raises(ShapeError, match="need 2 dimensions"):
        on_mesh(x[0], x, x)
    with pytest.raises(ShapeError, match="no axes for batch= and heads="):
        on_mesh(x, x, x, batch="seq")
    second = hf.grad(lambda x: hf.sum(hf.grad(lambda x: hf.sum(hf.distribute.ring_attention(x, x, x) ** 2))(x)))
    with pytest.raises(GradientError, match="first-order gradients"):
        hf.compile(second, mesh=mesh)(x)
    assert second(x).shape == x.shape
