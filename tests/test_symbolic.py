"""Programs traced with open sizes: for other sizes than the traced ones they compute what eager code does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.dims import Dim
from hybridflow.core.dims import evaluate as evaluate_size
from hybridflow.core.errors import CheckError
from hybridflow.core.op import REGISTRY
from hybridflow.ir.evaluate import evaluate
from hybridflow.ops.sizes import count_along, restore_axes
from hybridflow.testing.checks import OP_CHECKS
from hybridflow.testing.symbolic import run_node

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[hf.TensorSpec, ...]]] = {}
N = None
spec = hf.TensorSpec


def program(*specs: hf.TensorSpec) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, specs
        return function

    return add


def arguments(specs: tuple[hf.TensorSpec, ...], size: int) -> list[hf.Tensor]:
    rng = np.random.default_rng(size)
    shapes = [[size if one is None else one for one in each.shape] for each in specs]
    return [
        hf.asarray(rng.integers(0, 9, shape), dtype=each.dtype)
        if each.dtype == hf.int32
        else hf.asarray(rng.standard_normal(shape), dtype=each.dtype)
        for each, shape in zip(specs, shapes, strict=True)
    ]


@program(spec([N, 4]))
def reshape_minus_one(x):
    return x.reshape((-1, 2)), x.reshape((x.shape[0] * 2, -1)), hf.reshape(x, (-1,))


@program(spec([N, 4]))
def reductions(x):
    return (
        hf.sum(x, axis=0),
        hf.mean(x),
        hf.std(x, axis=0),
        hf.var(x),
        hf.max(x, axis=1),
        hf.prod(x, axis=0),
        hf.argmax(x, axis=0),
        hf.any(x > 0, axis=0),
        hf.min(x),
    )


@program(spec([N, 4]), spec([N, 4]))
def binary(x, y):
    return (
        x + y,
        hf.matmul(x, y.T),
        hf.concat([x, y], axis=0),
        hf.concat([x, y], axis=1),
        hf.stack([x, y]),
        hf.maximum(x, y),
    )


@program(spec([N, 4]))
def broadcasting(x):
    return (
        x + x[0],
        x[:, None, :] * x[None],
        x - hf.mean(x, axis=1, keepdims=True),
        hf.broadcast_to(x[0], x.shape),
        x * hf.ones((x.shape[0], 1)),
    )


@program(spec([N, 4]))
def slices(x):
    n = x.shape[0]
    return (
        x[1:],
        x[:-1],
        x[::2],
        x[::-1],
        x[n // 2 :],
        x[: n - 1],
        x[-1],
        x[n - 1],
        x[n // 2],
        x[..., 1],
        x[:, 1:3],
        x[None],
        x[1 : n - 1],
    )


@program(spec([N, 4]))
def split(x):
    return hf.split(x, 2, axis=1), hf.split(x, [1], axis=0), hf.unstack(x, axis=1)


@program(spec([N, 4]))
def creation(x):
    n = x.shape[0]
    return (
        hf.arange(n),
        hf.zeros((n, 2)),
        hf.ones(x.shape),
        hf.arange(0, n, 2),
        hf.full((n,), n),
        hf.zeros_like(x),
        hf.eye(n),
        hf.linspace(0, 1, n),
    )


@program(spec([N, 4]))
def tiles(x):
    return (
        hf.tile(x, (2, 1)),
        hf.repeat(x, 2, axis=0),
        hf.roll(x, 1, axis=0),
        hf.flip(x, axis=0),
        hf.pad(x, ((1, 1), (0, 0))),
        hf.permute_dims(x, (1, 0)),
        hf.expand_dims(x, axis=0),
    )


@program(spec([N, 4]))
def sorts(x):
    return (
        hf.sort(x, axis=0),
        hf.argsort(x, axis=0),
        hf.cumulative_sum(x, axis=0),
        hf.take(x, hf.asarray([0, 1]), axis=0),
        x[hf.argmax(x[:, 0])],
        hf.where(x > 0, x, 0),
    )


@program(spec([N, 3, 6, 6]))
def convolution(x):
    k = hf.ones((2, 3, 3, 3))
    return (
        hf.nn.conv(x, k),
        hf.nn.conv(x, k, padding="same", stride=2),
        hf.nn.max_pool(x, 2),
        hf.nn.avg_pool(x, 2, padding="same"),
    )


@program(spec([2, 3, N, N]))
def conv_spatial(x):
    k = hf.ones((2, 3, 3, 3))
    return (
        hf.nn.conv(x, k),
        hf.nn.conv(x, k, padding="same", stride=2),
        hf.nn.max_pool(x, 2),
        hf.nn.avg_pool(x, 2, padding="same"),
        hf.nn.conv_transpose(x, hf.ones((3, 2, 2, 2)), stride=2),
    )


@program(spec([N, 5]))
def norms(x):
    return (
        hf.nn.layer_norm(x),
        hf.nn.rms_norm(x),
        hf.nn.softmax(x),
        hf.nn.log_softmax(x, axis=0),
        hf.nn.l2_normalize(x),
        hf.nn.batch_norm(x, *hf.nn.moments(x, 0)),
        hf.nn.gelu(x),
        hf.nn.logsumexp(x, axis=0),
    )


@program(spec([N, 2, N, 4]))
def attention(x):
    return hf.nn.scaled_dot_product_attention(x, x, x, is_causal=True)


@program(spec([N, 5]), spec([N], hf.int32))
def losses(x, y):
    y = y % 5
    return (
        hf.mean(hf.nn.softmax_cross_entropy(x, y)),
        hf.nn.mse(x, x * 2),
        hf.nn.huber(x, x + 1),
        hf.nn.one_hot(y, 5),
        hf.nn.embedding(y, hf.ones((5, 3))),
        hf.sum(hf.nn.softmax_cross_entropy(x, y)) / x.shape[0],
    )


@program(spec([N, 4]))
def control(x):
    c, y = hf.scan(lambda c, r: (c + r, c * r), x[0], x)
    w = hf.while_loop(lambda i, s: i < x.shape[0], lambda i, s: (i + 1, s + x[i]), (0, x[0] * 0))
    z = hf.cond(
        hf.sum(x) > 0,
        lambda: hf.scan(lambda c, r: (c + hf.sum(r) * x.shape[0], r[: x.shape[0] // 2]), 0.0, x),
        lambda: (hf.sum(x), x[:, : x.shape[0] // 2]),
    )
    return c, y, w, z


@program(spec([N, 4]))
def gradients(x):
    def loss(x):
        h = hf.tanh(x @ hf.ones((4, 3)) + hf.mean(x, axis=1, keepdims=True))
        c, _ = hf.scan(lambda c, r: (c * 0.5 + hf.sum(r), None), 0.0, h[1:])
        d = hf.cond(c > 0, lambda: hf.mean(h * x.shape[0]), lambda: hf.sum(h[:-1]))
        return (
            hf.mean(hf.nn.layer_norm(x) * x)
            + c
            + d
            + hf.sum(hf.concat([x, h], axis=1)[::2])
            + hf.sum(hf.cumulative_sum(x, axis=0) * hf.std(x, axis=0))
            + hf.sum(hf.reshape(x, (-1, 2)) ** 2)
        )

    g = hf.grad(loss)(x)
    return g, hf.grad(lambda x: hf.sum(hf.grad(loss)(x) ** 2))(x)


@program(spec([N, N]))
def square(x):
    n = x.shape[0]
    a = x @ x.T + n * hf.eye(n)
    return (
        hf.linalg.inv(a),
        hf.linalg.det(a),
        hf.linalg.solve(a, x),
        hf.linalg.cholesky(a),
        hf.tril(x),
        hf.einsum("ij,jk->ik", x, x),
    )


@program(spec([N, 4]))
def updates(x):
    n = x.shape[0]
    return (
        x.at[0].set(1.0),
        x.at[1:].add(2.0),
        x.at[n - 1].set(x[0]),
        x.at[:, 1].multiply(3.0),
        x.at[hf.asarray([0, 1])].set(x[:2]),
    )


@program(spec([N, 4]))
def sizes_(x):
    n = x.shape[0]
    return (
        hf.asarray(n),
        hf.asarray([n, n * 2]),
        x * n,
        x / n,
        n - x,
        hf.sum(x) / (n * 4),
        hf.asarray(x.size),
        x.size * hf.sum(x),
        hf.asarray(n // 2),
        hf.asarray(n % 2),
        hf.asarray(n) + hf.asarray(2.5),
        hf.asarray((n * 3 + 1) // 2),
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compute_the_eager_values(name: str):
    function, specs = PROGRAMS[name]
    compiled = hf.compile(function)
    compiled.concrete(*specs)
    (trace,) = compiled._traces
    for size in (4, 7):
        tensors = arguments(specs, size)
        assert trace.raw_graph.dims.holds(dict.fromkeys(trace.raw_graph.dims.hints, size))
        captures = [np.asarray(tensor) for tensor in trace.captures]
        found = evaluate(trace.raw_graph, [*[x.numpy() for x in tensors], *captures], run_node)
        expected = [np.asarray(y) for y in jax.tree_util.tree_leaves(function(*tensors))]
        for a, b in zip(map(np.asarray, found), expected, strict=False):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["control", "gradients"])
def test_compiled_programs_too(name: str):
    function, specs = PROGRAMS[name]
    compiled = hf.compile(function, input_signature=specs)
    for size in (4, 7):
        tensors = arguments(specs, size)
        found = [y.numpy() for y in jax.tree_util.tree_leaves(compiled(*tensors))]
        expected = [np.asarray(y) for y in jax.tree_util.tree_leaves(function(*tensors))]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert compiled.trace_count == 1


def test_equal_open_sizes_need_not_be_told_from_1():
    f = hf.compile(lambda x, y: hf.grad(lambda x: hf.sum(x * y))(x) + y, input_signature=[spec([N, 3]), spec([N, 3])])
    for n in (4, 1, 3):
        np.testing.assert_array_equal(f(hf.ones((n, 3)), hf.ones((n, 3))).numpy(), np.full((n, 3), 2.0))
    assert f.trace_count == 1
    f(hf.ones((4, 3)), hf.ones((1, 3)))  # broadcasts: another trace
    assert f.explain()[1].reason == "sizes: x_0 == y_0 is True -> False for x_0=4, y_0=1"


def test_draws_of_open_shapes():
    def draw(x: Any) -> Any:
        return hf.random.normal(x.shape), hf.random.uniform((x.shape[0] * 2,)), hf.random.integers(0, 9, x.shape)

    compiled = hf.compile(draw, input_signature=[spec([N, 2])])
    for n in (3, 5):
        x = hf.ones((n, 2))
        hf.random.seed(n)
        expected = draw(x)
        hf.random.seed(n)
        for a, b in zip(compiled(x), expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert compiled.trace_count == 1


def test_the_check_catches_a_size_that_was_baked_in(monkeypatch: pytest.MonkeyPatch):
    op = REGISTRY["mean"]

    def rule(F: Any, g: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
        count = count_along(x.shape, axis)
        fixed = evaluate_size(count, count.scope.hints) if isinstance(count, Dim) else count
        return (F.broadcast_to(restore_axes(F, g / fixed, x, axis), shape=x.shape),)

    OP_CHECKS["open_sizes_are_any_size"](op, 0)
    monkeypatch.setattr(op, "vjp", rule)
    with pytest.raises(CheckError, match=r"mean: .* gives another value in the gradients for n="):
        OP_CHECKS["open_sizes_are_any_size"](op, 0)
