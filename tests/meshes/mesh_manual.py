"""`hf.shard_map`: collectives eagerly (on the host, device by device), compiled, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import distribute as d

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 16)).astype(np.float32)
MESH = hf.Mesh({"data": 4, "model": 2})
BOTH = ("data", "model")


def all_ways(fn, layouts, result, *args):
    """Return the results of a body eagerly and compiled, with gradients of the first argument, all as arrays."""
    mapped = hf.shard_map(fn, MESH, layouts, result)

    def with_gradient(x, *rest):
        y = mapped(x, *rest)
        return y, hf.grad(lambda x: hf.sum(hf.sin(mapped(x, *rest))))(x)

    eager = [one.numpy() for one in with_gradient(hf.asarray(args[0]), *args[1:])]
    compiled = [one.numpy() for one in hf.compile(with_gradient, mesh=MESH)(*args)]
    with hf.GradientTape() as tape:
        x = hf.asarray(args[0])
        tape.watch(x)
        y = hf.sum(hf.sin(mapped(x, *args[1:])))
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), eager[1], rtol=1e-6)
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
    return eager


def slope(f, x):
    """Return the gradient of ``sum(sin(f(x)))`` by central differences, in float64."""
    x = x.astype(np.float64)
    made = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-5
        made[index] = (np.sin(f(x + step)).sum() - np.sin(f(x - step)).sum()) / 2e-5
    return made


def shifted(x):
    """Return rows sent on to the next device along data; the first gets none."""
    return np.concatenate([np.zeros((2, 16)), x[:-2]])


CASES = {
    "psum": (lambda x: d.psum(hf.sum(x * x, axis=0), "data"), [("data", "model")], ("model",),
             lambda x: (x * x).sum(0)),
    "pmean": (lambda x: d.pmean(x, "data") * 2.0, [("data", None)], (None, None),
              lambda x: 2 * x.reshape(4, 2, 16).mean(0)),
    "all_gather": (lambda x: hf.cumulative_sum(d.all_gather(x, "data"), axis=0), [("data", "model")], (None, "model"),
                   lambda x: x.cumsum(0)),
    "psum_scatter": (lambda x: d.psum_scatter(x * x, "data", 0), [(None, None)], ("data", None), lambda x: 4 * x * x),
    "ppermute": (lambda x: d.ppermute(x, "data", [(0, 1), (1, 2), (2, 3)]), [("data", "model")], ("data", "model"),
                 shifted),
    "all_to_all": (lambda x: hf.cumulative_sum(d.all_to_all(x, "data", 1, 0), axis=0), [("data", None)], (None, "data"),
                   lambda x: x.cumsum(0)),
    "axis_index": (lambda x: x * hf.astype(d.axis_index("data"), hf.float32), [("data", None)], ("data", None),
                   lambda x: x * np.repeat(np.arange(4), 2)[:, None]),
    "both axes": (lambda x: d.psum(d.psum(hf.sum(x), "data"), "model"), [("data", "model")], (), lambda x: x.sum()),
    "one axis of two": (lambda x: x * 3.0, [(BOTH, None)], (BOTH, None), lambda x: 3 * x),
    "stopped": (lambda x: x * hf.stop_gradient(d.psum(hf.sum(x), "data")), [("data", None)], ("data", None), None),
}


@pytest.mark.parametrize("name", CASES)
def test_collectives_and_their_gradients(name):
    fn, layouts, result, closed = CASES[name]
    y, gradient = all_ways(fn, layouts, result, X)
    if closed is None:
        np.testing.assert_allclose(gradient, np.cos(X * X.sum()) * X.sum(), rtol=1e-2, atol=1e-2)
        return
    np.testing.assert_allclose(y, closed(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, slope(closed, X), rtol=1e-3, atol=1e-3)


def test_second_order():
    total = hf.shard_map(lambda x: d.psum(hf.sum(x**3), "data"), MESH, [("data",)], ())
    x = hf.asarray(X[:, 0])
    with hf.GradientTape() as outer:
        outer.watch(x)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = total(x)
        slopes = hf.sum(tape.gradient(y, x))
    np.testing.assert_allclose(outer.gradient(slopes, x).numpy(), 6 * X[:, 0], rtol=1e-5)


def test_variables_captures_structures_and_checks():
    w = hf.Variable(np.float32(2.0), layout=(), mesh=MESH)
    c = hf.asarray(3.0)

    def body(batch, index):
        hf.debugging.check(hf.all(index >= 0), "negative")
        return {"y": batch["x"] * w + c, "n": d.psum(hf.sum(index), "data")}

    mapped = hf.shard_map(body, MESH, [("data", None), ("data",)], {"n": (), "y": ("data", None)})
    for run in (mapped, hf.compile(mapped, mesh=MESH)):
        made = run({"x": X}, np.arange(8))
        np.testing.assert_allclose(made["y"].numpy(), X * 2 + 3)
        assert made["n"].item() == 28
        with pytest.raises(AssertionError, match="negative"):
            run({"x": X}, np.arange(8) - 1)["n"].item()
    with hf.GradientTape() as tape:
        loss = hf.sum(mapped({"x": X}, np.arange(8))["y"])
    np.testing.assert_allclose(tape.gradient(loss, w).numpy(), X.sum(), rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: d.psum(1.0, "data"), "psum: there are no parts outside of hf.shard_map"),
        (lambda: hf.shard_map(lambda x: d.psum(x, "rows"), MESH, [()], ())(1.0), "psum: the mesh has no axis 'rows'"),
        (lambda: hf.shard_map(lambda x: x, MESH, [("rows",)], ()), "shard_map: the mesh has no axis 'rows'"),
        (lambda: hf.shard_map(lambda x: x, MESH, [("data",)], ("data",))(np.zeros(6)), "size 6 cannot be divided by 4"),
        (lambda: hf.shard_map(lambda x: x, MESH, [("data",)], ("data",))(X), "the layout has 1 entries"),
        (lambda: hf.shard_map(lambda x: x, MESH, [("data",)], (None,))(X[:, 0]), r"result 0 differs along \['data'\]"),
        (lambda: hf.shard_map(lambda x: x, MESH, [(), ()], ())(1.0), "2 layouts for 1 arguments"),
        (lambda: hf.shard_map(lambda x: x, MESH, [{"a": ()}], ())([1.0]), "another structure"),
        (lambda: hf.compile(hf.shard_map(lambda x: x, MESH, [()], ()))(1.0), "compiled for one device"),
        (lambda: hf.shard_map(lambda x: d.ppermute(x, "data", [(0, 1), (2, 1)]), MESH, [()], ())(1.0),
         "different positions"),
        (lambda: hf.shard_map(lambda x: d.psum_scatter(x, "data"), MESH, [(None,)], ("data",))(X[:6, 0]),
         "size 6 cannot"),
    ],
)
def test_bad_calls(call, text):
    with pytest.raises(hf.LayoutError, match=text):
        call()


def test_it_takes_a_function_and_a_mesh():
    with pytest.raises(TypeError, match=r"takes a function and a hf\.Mesh"):
        hf.shard_map(3, MESH, [], ())
