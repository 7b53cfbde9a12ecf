"""Algorithms as people write them: eager and compiled agree, and so do their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from modes import same

import hybridflow as hf
from hybridflow.core.errors import GradientError


def both_ways(function: Any, *arguments: Any, rtol: float = 1e-8) -> Any:
    """Run a function eagerly and compiled, require one result, and return it."""
    eager = function(*arguments)
    same(eager, hf.compile(function)(*arguments), rtol=rtol, atol=1e-10)
    return eager


def gradients_agree(function: Any, *arguments: Any, rtol: float = 1e-7) -> Any:
    """Require one gradient of an eager function, of the compiled function, and inside a compiled function."""
    eager = hf.grad(function)(*arguments)
    same(eager, hf.grad(hf.compile(function))(*arguments), rtol=rtol, atol=1e-9)
    same(eager, hf.compile(hf.grad(function))(*arguments), rtol=rtol, atol=1e-9)
    return eager


def newton(a):
    x = a * 0.5 + 0.5
    for _ in range(30):
        step = (x * x * x - a) / (3.0 * x * x)
        x = x - step
        if hf.abs(step) < 1e-9:
            break
    return x


def test_newton_with_break():
    a = hf.asarray(np.float64(5.0))
    root = both_ways(newton, a)
    np.testing.assert_allclose(root.item(), 5.0 ** (1 / 3), rtol=1e-12)
    slope = gradients_agree(newton, a)
    np.testing.assert_allclose(slope.item(), 5.0 ** (-2 / 3) / 3, rtol=1e-6)


def adaptive_integral(y, end):
    """Integrate y' = -y + sin(t) with Heun and Euler steps, their difference controlling the step."""
    t, h, steps, rejected = end * 0.0, end * 0.1, 0, 0
    while t < end:
        if t + h > end:
            h = end - t
        k1 = -y + hf.sin(t)
        k2 = -(y + h * k1) + hf.sin(t + h)
        error = hf.abs(h * (k2 - k1)) / 2
        if error < 1e-4:
            t, y = t + h, y + h * (k1 + k2) / 2
            steps += 1
        else:
            rejected += 1
        factor = 0.9 * hf.sqrt(1e-4 / (error + 1e-12))
        h = h * (2.0 if factor > 2.0 else 0.3 if factor < 0.3 else factor)
    return y, t, steps, rejected


def test_adaptive_runge_kutta():
    y, t, steps, rejected = both_ways(adaptive_integral, hf.asarray(np.float64(1.0)), hf.asarray(np.float64(2.0)))
    exact = 1.5 * np.exp(-2.0) + (np.sin(2.0) - np.cos(2.0)) / 2
    np.testing.assert_allclose(y.item(), exact, atol=2e-3)
    assert t.item() == pytest.approx(2.0)
    assert steps > 5
    assert rejected >= 1

    def last(y):
        return adaptive_integral(y, hf.asarray(np.float64(2.0)))[0]

    def bounded(y):
        with hf.max_iterations(200):
            return last(y)

    start = hf.asarray(np.float64(1.0))
    with pytest.raises(GradientError, match="max_iterations"):
        hf.grad(hf.compile(last))(start)
    slope = gradients_agree(bounded, start)
    moved = (last(start + 1e-6) - last(start - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope.item(), moved.item(), rtol=1e-4)


def k_means(points, centers):
    rounds = 0
    while True:
        distances = hf.sum((points[:, None, :] - centers[None, :, :]) ** 2, axis=-1)
        nearest = hf.argmin(distances, axis=1)
        member = hf.astype(nearest[:, None] == hf.arange(centers.shape[0])[None, :], points.dtype)
        counts = hf.sum(member, axis=0)
        moved = (member.mT @ points) / hf.where(counts > 0, counts, 1.0)[:, None]
        moved = hf.where((counts > 0)[:, None], moved, centers)
        rounds += 1
        if hf.max(hf.abs(moved - centers)) < 1e-6 or rounds >= 50:
            return moved, rounds
        centers = moved


def test_k_means_until_converged(rng):
    points = np.concatenate([rng.normal(center, 0.1, (8, 2)) for center in (-2.0, 0.0, 3.0)])
    centers, rounds = both_ways(k_means, hf.asarray(points), hf.asarray(points[[0, 1, 20]]))
    assert rounds > 1
    assert np.isfinite(centers.numpy()).all()

    def spread(points):
        with hf.max_iterations(50):
            return hf.sum(k_means(points, points[hf.asarray([0, 1, 20])])[0] ** 2)

    slopes = gradients_agree(spread, hf.asarray(points))
    assert np.count_nonzero(slopes.numpy()) == points.size


def kalman(log_noise, readings):
    """Return the negative log-likelihood of readings under a local-level model; NaN readings are missing."""
    q, r = hf.exp(log_noise), 0.5
    mean, variance, total = readings[0] * 0.0, q * 0.0 + 1.0, q * 0.0
    for z in readings:
        variance = variance + q
        if hf.isnan(z):
            continue
        s = variance + r
        innovation = z - mean
        total = total + 0.5 * (hf.log(s) + innovation * innovation / s)
        gain = variance / s
        mean = mean + gain * innovation
        variance = (1.0 - gain) * variance
    return total


def test_kalman_filter(rng):
    readings = np.cumsum(rng.normal(0, 0.3, 12)) + rng.normal(0, 0.7, 12)
    readings[[3, 7]] = np.nan
    readings = hf.asarray(readings)
    at = hf.asarray(np.float64(-1.0))
    value = both_ways(kalman, at, readings)
    slope = gradients_agree(lambda q: kalman(q, readings), at)
    moved = (kalman(at + 1e-5, readings) - kalman(at - 1e-5, readings)) / 2e-5
    np.testing.assert_allclose(slope.item(), moved.item(), rtol=1e-6)
    assert np.isfinite(value.item())


def viterbi(scores, transitions):
    best = scores[0]
    back = []
    for row in scores[1:]:
        ways = best[:, None] + transitions
        back.append(hf.argmax(ways, axis=0))
        best = hf.max(ways, axis=0) + row
    state = hf.argmax(best)
    path = [state]
    for pointers in reversed(back):
        state = pointers[state]
        path.append(state)
    return hf.stack(list(reversed(path))), hf.max(best)


def test_viterbi(rng):
    scores, transitions = rng.normal(size=(5, 3)), rng.normal(size=(3, 3))
    path, score = both_ways(viterbi, hf.asarray(scores), hf.asarray(transitions))
    best = max(
        (sum(scores[t, p[t]] for t in range(5)) + sum(transitions[p[t], p[t + 1]] for t in range(4)), p)
        for p in np.ndindex(*[3] * 5)
    )
    assert tuple(path.tolist()) == best[1]
    np.testing.assert_allclose(score.item(), best[0], rtol=1e-12)
    gradients_agree(lambda s: viterbi(s, hf.asarray(transitions))[1], hf.asarray(scores))


def beam_search(table, width=3, length=4):
    """Return the best sequence found: `table` holds log-probabilities of the next token after each."""
    tokens = hf.zeros((width, length + 1), dtype=hf.int32)
    scores = hf.where(hf.arange(width) == 0, hf.zeros((width,), dtype=hf.float64), -1e9)
    for position in range(length):
        extended = scores[:, None] + table[tokens[:, position]]
        flat = hf.reshape(extended, (-1,))
        order = hf.argsort(flat, descending=True)[:width]
        scores, parents = flat[order], order // table.shape[1]
        tokens = tokens[parents].at[:, position + 1].set(order % table.shape[1])
        if scores[0] < -8.0:
            break
    return tokens[0], scores[0], position


def test_beam_search(rng):
    table = np.log(rng.dirichlet(np.ones(4), size=4))
    _, score, position = both_ways(beam_search, hf.asarray(table))
    best = max(sum(table[a, b] for a, b in zip((0, *p), p, strict=False)) for p in np.ndindex(*[4] * 4))
    assert score.item() <= best + 1e-9
    assert position == 3
    both_ways(beam_search, hf.asarray(table - 5.0))
    visits = gradients_agree(lambda table: beam_search(table)[1], hf.asarray(table))
    assert visits.numpy().sum() == pytest.approx(4.0)  # the path takes four steps, each of slope 1


def ransac(x, y, pairs):
    """Return the line through two points that most points lie near, from given pairs of indices."""
    best, slope, offset = 0, 0.0, 0.0
    for pair in pairs:
        i, j = pair[0], pair[1]
        if hf.abs(x[i] - x[j]) < 1e-6:
            continue
        a = (y[j] - y[i]) / (x[j] - x[i])
        b = y[i] - a * x[i]
        inliers = hf.sum(hf.astype(hf.abs(y - (a * x + b)) < 0.1, hf.int32))
        if inliers > best:
            best, slope, offset = inliers, a, b
            if inliers >= x.shape[0] - 3:
                break
    return best, slope, offset


def test_ransac(rng):
    x = np.arange(10.0)
    y = 2.0 * x + 1.0 + rng.normal(0, 0.01, 10)
    y[[2, 5, 7]] = [30.0, -20.0, 9.0]
    pairs = np.array([[2, 5], [4, 4], [5, 7], [0, 9], [1, 3]], np.int32)
    best, slope, offset = both_ways(ransac, hf.asarray(x), hf.asarray(y), hf.asarray(pairs))
    assert best.item() == 7
    np.testing.assert_allclose([slope.item(), offset.item()], [2.0, 1.0], atol=0.05)
    slopes = gradients_agree(lambda y: ransac(hf.asarray(x), y, hf.asarray(pairs))[1], hf.asarray(y))
    np.testing.assert_allclose(slopes.numpy(), np.where(np.arange(10) == 9, 1, np.where(np.arange(10) == 0, -1, 0)) / 9)


class TreeLSTM:
    """A binary tree-structured LSTM over nested tuples of word numbers."""

    def __init__(self, rng, width=3):
        self.words = hf.Variable(rng.normal(size=(4, width)), name="words")
        self.weight = hf.Variable(rng.normal(size=(2 * width, 5 * width)) * 0.5, name="weight")
        self.width = width

    def node(self, tree):
        if isinstance(tree, tuple):
            (h1, c1), (h2, c2) = self.node(tree[0]), self.node(tree[1])
            gates = hf.concat([h1, h2]) @ self.weight
            i, f1, f2, o, u = [gates[k * self.width : (k + 1) * self.width] for k in range(5)]
            c = hf.nn.sigmoid(i) * hf.tanh(u) + hf.nn.sigmoid(f1) * c1 + hf.nn.sigmoid(f2) * c2
            if hf.sum(c * c) > 4.0:
                c = c * 0.5
            return hf.nn.sigmoid(o) * hf.tanh(c), c
        word = self.words[tree]
        return hf.tanh(word), word

    def loss(self, tree):
        h, _ = self.node(tree)
        return hf.sum(h * h)


def test_recursive_tree_lstm(rng):
    model = TreeLSTM(rng)
    tree = ((0, 1), ((2, 3), 1))

    def step():
        with hf.GradientTape() as tape:
            loss = model.loss(tree)
        return loss, tape.gradient(loss, [model.words, model.weight])

    same(step(), hf.compile(step)(), rtol=1e-9, atol=1e-12)


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def test_collatz():
    assert both_ways(collatz, hf.asarray(27)) == 111


def bisect(f, low, high):
    for _ in range(60):
        middle = (low + high) / 2
        if f(low) * f(middle) <= 0:
            high = middle
        else:
            low = middle
        if high - low < 1e-10:
            return middle
    return (low + high) / 2


def test_bisection_of_a_function_that_is_given():
    def solve(c):
        return bisect(lambda x: hf.exp(x) - c, c * 0.0 - 5.0, c * 0.0 + 5.0)

    root = both_ways(solve, hf.asarray(np.float64(3.0)))
    np.testing.assert_allclose(root.item(), np.log(3.0), atol=1e-9)
