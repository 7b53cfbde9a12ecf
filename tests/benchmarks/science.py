"""Jobs of computational science: each is written once, for hybridflow and for `jax`, beside a reference in float64.

A job's references are SciPy's functions or closed forms; their gradients are central differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.ndimage
import scipy.optimize
import scipy.stats

import hybridflow as hf

OURS = SimpleNamespace(
    np=hf, scan=hf.scan, grad=hf.grad, value_and_grad=hf.value_and_grad, vmap=hf.vmap, jacobian=hf.jacobian,
    hvp=lambda f, x, v: hf.hvp(f, (x,), (v,))[0], logsumexp=hf.special.logsumexp, expm=hf.linalg.expm,
    solve=hf.linalg.solve, slogdet=hf.linalg.slogdet, softplus=hf.nn.softplus,
)
JAXS = SimpleNamespace(
    np=jnp, scan=jax.lax.scan, grad=jax.grad, value_and_grad=jax.value_and_grad, vmap=jax.vmap, jacobian=jax.jacfwd,
    hvp=lambda f, x, v: jax.jvp(jax.grad(f), (x,), (v,))[1], logsumexp=jax.scipy.special.logsumexp,
    expm=jax.scipy.linalg.expm, solve=jnp.linalg.solve, slogdet=jnp.linalg.slogdet, softplus=jax.nn.softplus,
)


class Job(NamedTuple):
    """A job.

    Attributes:
        about: what it computes.
        run: ``(F, *arrays)`` returns the results, with the functions of `OURS` or of `JAXS`.
        arrays: ``(rng, small)`` returns the arguments.
        expected: returns the results for these arguments.
        tolerance: how far results in float32 may be off, relative to the largest element.
    """

    about: str
    run: Callable[..., Any]
    arrays: Callable[[np.random.Generator, bool], Sequence[Any]]
    expected: Callable[..., Any]
    tolerance: float


JOBS: dict[str, Job] = {}


def job(about: str, arrays: Any, expected: Any, tolerance: float = 1e-3) -> Callable[[Any], Any]:
    """Register a function as a job; see `Job`."""

    def decorate(run: Any) -> Any:
        JOBS[run.__name__] = Job(about, run, arrays, expected, tolerance)
        return run

    return decorate


def with_gradient(function: Callable[..., Any], number: int = 0) -> Callable[..., Any]:
    """Return a function of NumPy that also returns the central differences by one of its arguments."""

    def both(*arrays: Any) -> Any:
        given = [np.asarray(one, np.float64) if np.asarray(one).dtype.kind == "f" else one for one in arrays]
        gradient = np.zeros_like(given[number])
        for index in np.ndindex(gradient.shape):
            ends: list[float] = []
            for step in (1e-4, -1e-4):
                moved = given[number].copy()
                moved[index] += step
                ends.append(float(function(*given[:number], moved, *given[number + 1 :])))
            gradient[index] = (ends[0] - ends[1]) / 2e-4
        return function(*given), gradient

    return both


def f32(*arrays: Any) -> list[Any]:
    """Return arrays of float32."""
    return [np.asarray(one, np.float32) for one in arrays]


# -- differential equations ---------------------------------------------------------------------------------------


def _prey(start: Any, times: Any) -> Any:
    def slope(t: float, y: Any) -> Any:
        return [y[0] * (1.1 - 0.4 * y[1]), y[1] * (0.1 * y[0] - 0.4)]

    end = scipy.integrate.solve_ivp(slope, (0, times.sum()), start, rtol=1e-10, atol=1e-10).y[:, -1]
    return (end**2).sum()


@job("prey and predators by 200 steps of Runge and Kutta, gradient by the start",
     lambda rng, small: f32([10.0, 5.0], np.full(60 if small else 200, 0.02)), with_gradient(_prey))
def ode(F: Any, start: Any, times: Any) -> Any:
    def slope(y: Any) -> Any:
        return F.np.stack([y[0] * (1.1 - 0.4 * y[1]), y[1] * (0.1 * y[0] - 0.4)])

    def step(y: Any, dt: Any) -> Any:
        a = slope(y)
        b = slope(y + dt / 2 * a)
        c = slope(y + dt / 2 * b)
        d = slope(y + dt * c)
        return y + dt / 6 * (a + 2 * b + 2 * c + d), None

    def loss(start: Any) -> Any:
        return F.np.sum(F.scan(step, start, times)[0] ** 2)

    return F.value_and_grad(loss)(start)


def _burgers_arrays(rng: np.random.Generator, small: bool) -> Any:
    x = np.arange(64) * 2 * np.pi / 64
    return f32(_cole_hopf(x, 0.0, 0.2), np.fft.rfftfreq(64, 1 / 64), np.full(20 if small else 200, 0.01))


def _cole_hopf(x: Any, t: float, viscosity: float) -> Any:
    decay = np.exp(-viscosity * t)
    return 2 * viscosity * np.sin(x) * decay / (2 + np.cos(x) * decay)


@job("Burgers' equation by Fourier transforms, 200 steps", _burgers_arrays,
     lambda u, waves, times: _cole_hopf(np.arange(64) * 2 * np.pi / 64, float(times.sum()), 0.2))
def burgers(F: Any, u: Any, waves: Any, times: Any) -> Any:
    def slope(u: Any) -> Any:
        modes = F.np.fft.rfft(u)
        first = F.np.fft.irfft(1j * waves * modes, n=64)
        return 0.2 * F.np.fft.irfft(-(waves**2) * modes, n=64) - u * first

    def step(u: Any, dt: Any) -> Any:
        middle = u + dt / 2 * slope(u)
        return u + dt * slope(middle), None

    return F.scan(step, u, times)[0]


def _pinn_loss(weights: Any, x: Any) -> Any:
    first, shift, last = weights
    h = np.tanh(x[:, None] * first + shift)
    second = (-2 * h * (1 - h**2) * first**2) @ last
    return np.mean((second + np.sin(x)) ** 2)


@job("a network that solves an equation with second derivatives, gradient by its weights",
     lambda rng, small: f32(rng.normal(size=(3, 4 if small else 32)), np.linspace(0, 3, 8 if small else 64)),
     with_gradient(_pinn_loss))
def pinn(F: Any, weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        def u(x: Any) -> Any:
            return F.np.sum(weights[2] * F.np.tanh(x * weights[0] + weights[1]))

        return F.np.mean((F.vmap(F.grad(F.grad(u)))(x) + F.np.sin(x)) ** 2)

    return F.value_and_grad(loss)(weights)


# -- probability --------------------------------------------------------------------------------------------------


def _kalman_density(logs: Any, y: Any, move: Any) -> Any:
    """Return the density of all measurements together: they are normal."""
    count, (process, noise) = len(y), np.exp(logs)
    cov = np.zeros((count, count))
    state = np.eye(2)
    for i in range(count):
        state = move @ state @ move.T + process * np.eye(2)
        ahead = state
        for j in range(i, count):
            cov[i, j] = cov[j, i] = ahead[0, 0]
            ahead = ahead @ move.T
    return scipy.stats.multivariate_normal(np.zeros(count), cov + noise * np.eye(count)).logpdf(y)


@job("Kalman filter of 60 measurements, likelihood and gradient by the noises",
     lambda rng, small: f32([-2.0, -1.0], np.cumsum(rng.normal(size=8 if small else 60)) * 0.3,
                            [[1.0, 0.1], [0.0, 1.0]]),
     with_gradient(_kalman_density))
def kalman(F: Any, logs: Any, y: Any, move: Any) -> Any:
    unit = F.np.eye(2)

    def density(logs: Any) -> Any:
        process, noise = F.np.exp(logs[0]), F.np.exp(logs[1])

        def step(state: Any, y: Any) -> Any:
            mean, cov = state
            mean, cov = move @ mean, move @ cov @ move.T + process * unit
            spread = cov[0, 0] + noise
            gain, off = cov[:, 0] / spread, y - mean[0]
            part = -0.5 * (off**2 / spread + F.np.log(2 * math.pi * spread))
            return (mean + gain * off, cov - gain[:, None] * cov[None, 0, :]), part

        return F.np.sum(F.scan(step, (F.np.zeros(2), unit), y)[1])

    return F.value_and_grad(density)(logs)


def _forward(logits: Any, seen: Any) -> Any:
    moves = logits - scipy.special.logsumexp(logits, axis=1, keepdims=True)
    state = np.full(len(logits), -np.log(len(logits)))
    for one in seen:
        state = scipy.special.logsumexp(state[:, None] + moves, axis=0) + one
    return scipy.special.logsumexp(state)


@job("hidden Markov model of 1,000 observations, likelihood and gradient by the moves",
     lambda rng, small: f32(rng.normal(size=(4, 4)), rng.normal(size=(30 if small else 1000, 4))),
     with_gradient(_forward))
def hmm(F: Any, logits: Any, seen: Any) -> Any:
    def likelihood(logits: Any) -> Any:
        moves = logits - F.logsumexp(logits, axis=1)[:, None]

        def step(state: Any, one: Any) -> Any:
            return F.logsumexp(state[:, None] + moves, axis=0) + one, None

        start = F.np.zeros(4) - math.log(4)
        return F.logsumexp(F.scan(step, start, seen)[0])

    return F.value_and_grad(likelihood)(logits)


def _leapfrog(q: Any, p: Any, precision: Any, steps: Any) -> Any:
    """Return the end by the equations' matrix: steps of a quadratic energy are linear."""
    matrix, size = np.asarray(precision, np.float64), len(q)
    state = np.concatenate([q, p]).astype(np.float64)
    unit, zero = np.eye(size), np.zeros((size, size))
    for dt in np.asarray(steps, np.float64):
        kick = np.block([[unit, zero], [-dt / 2 * matrix, unit]])
        state = kick @ np.block([[unit, dt * unit], [zero, unit]]) @ kick @ state
    return state[:size], state[size:], 0.5 * (state[:size] @ matrix @ state[:size] + state[size:] @ state[size:])


@job("Hamiltonian Monte Carlo: 20 leapfrog steps in 50 dimensions",
     lambda rng, small: f32(rng.normal(size=50), rng.normal(size=50), np.eye(50) + 0.1, np.full(20, 0.05)), _leapfrog)
def hmc(F: Any, q: Any, p: Any, precision: Any, steps: Any) -> Any:
    def energy(q: Any) -> Any:
        return 0.5 * F.np.sum(q * (precision @ q))

    def step(state: Any, dt: Any) -> Any:
        q, p = state
        p = p - dt / 2 * F.grad(energy)(q)
        q = q + dt * p
        return (q, p - dt / 2 * F.grad(energy)(q)), None

    q, p = F.scan(step, (q, p), steps)[0]
    return q, p, energy(q) + 0.5 * F.np.sum(p * p)


def _flow(weights: Any, x: Any) -> Any:
    total = 0.0
    for row in weights:
        made = np.tanh(x[:, :2] @ row[:16].reshape(2, 8)) @ row[16:].reshape(8, 4)
        scale, shift = np.tanh(made[:, :2]), made[:, 2:]
        x = np.concatenate([x[:, 2:] * np.exp(scale) + shift, x[:, :2]], axis=1)
        total = total + scale.sum(axis=1)
    return -np.mean(total - 0.5 * (x**2).sum(axis=1))


def _flow_arrays(rng: np.random.Generator, small: bool) -> Any:
    layers = 2 if small else 6
    return f32(rng.normal(size=(layers, 48)) * 0.5, rng.normal(size=(8 if small else 128, 4)))


@job("RealNVP with 6 layers, likelihood and gradient by the weights", _flow_arrays, with_gradient(_flow))
def realnvp(F: Any, weights: Any, x: Any) -> Any:
    def loss(weights: Any, x: Any) -> Any:
        total = 0.0
        for layer in range(weights.shape[0]):
            row = weights[layer]
            made = F.np.tanh(x[:, :2] @ row[:16].reshape(2, 8)) @ row[16:].reshape(8, 4)
            scale, shift = F.np.tanh(made[:, :2]), made[:, 2:]
            x = F.np.concat([x[:, 2:] * F.np.exp(scale) + shift, x[:, :2]], axis=1)
            total = total + F.np.sum(scale, axis=1)
        return -F.np.mean(total - 0.5 * F.np.sum(x * x, axis=1))

    return F.value_and_grad(loss)(weights, x)


def _spins(spins: Any, numbers: Any) -> Any:
    row, column = np.indices(spins.shape)
    energies: list[Any] = []
    for pair in numbers:
        for color, number in enumerate(pair):
            near = sum(np.roll(spins, by, axis) for axis in (0, 1) for by in (1, -1))
            flips = (number < np.exp(-0.8 * spins * near)) & ((row + column) % 2 == color)
            spins = np.where(flips, -spins, spins)
        energies.append(-np.sum(spins * (np.roll(spins, 1, 0) + np.roll(spins, 1, 1))))
    return spins, np.array(energies)


@job("Ising model of 32 x 32 spins, 50 sweeps",
     lambda rng, small: f32(rng.choice([-1, 1], (32, 32)), rng.uniform(size=(5 if small else 50, 2, 32, 32))), _spins)
def ising(F: Any, spins: Any, numbers: Any) -> Any:
    row, column = np.indices((32, 32))

    def sweep(spins: Any, pair: Any) -> Any:
        for color in range(2):
            near = sum(F.np.roll(spins, by, axis=axis) for axis in (0, 1) for by in (1, -1))
            flips = (pair[color] < F.np.exp(-0.8 * spins * near)) & ((row + column) % 2 == color)
            spins = F.np.where(flips, -spins, spins)
        return spins, -F.np.sum(spins * (F.np.roll(spins, 1, axis=0) + F.np.roll(spins, 1, axis=1)))

    return F.scan(sweep, spins, numbers)


# -- inference and fits -------------------------------------------------------------------------------------------

_RATES = (np.ones((4, 4)) - 4 * np.eye(4)).astype(np.float32) / 3


def _tree(lengths: Any, leaves: Any) -> Any:
    """Return the likelihood by the closed form of Jukes and Cantor."""
    parts = list(leaves)
    moves = [0.25 + (np.eye(4) - 0.25) * np.exp(-4 / 3 * t) for t in lengths]
    for number in range(len(leaves) - 1):
        a, b = (parts[2 * number + i] @ moves[2 * number + i].T for i in range(2))
        parts.append(a * b)
    return np.sum(np.log(parts[-1].mean(axis=1)))


@job("a phylogeny of 16 species by pruning, likelihood and gradient by the lengths of its branches",
     lambda rng, small: f32(rng.uniform(0.05, 0.5, 6 if small else 30),
                            np.eye(4)[rng.integers(0, 4, (4 if small else 16, 100))]),
     with_gradient(_tree))
def phylogeny(F: Any, lengths: Any, leaves: Any) -> Any:
    count = leaves.shape[0]

    def likelihood(lengths: Any) -> Any:
        moves = F.expm(lengths[:, None, None] * _RATES)
        parts = [leaves[i] for i in range(count)]
        for number in range(count - 1):
            a, b = (parts[2 * number + i] @ moves[2 * number + i].T for i in range(2))
            parts.append(a * b)
        return F.np.sum(F.np.log(F.np.mean(parts[-1], axis=1)))

    return F.value_and_grad(likelihood)(lengths)


def _images(rng: np.random.Generator, small: bool) -> Any:
    image, other = [scipy.ndimage.gaussian_filter(rng.normal(size=(32, 32)), 3) for _ in range(2)]
    return f32([0.1, 0.7, -0.4], image, other)


def _registered(move: Any, image: Any, other: Any) -> Any:
    angle, dy, dx = move
    y, x = np.mgrid[4:28, 4:28] - 15.5
    places = [np.cos(angle) * y - np.sin(angle) * x + 15.5 + dy, np.sin(angle) * y + np.cos(angle) * x + 15.5 + dx]
    return np.mean((scipy.ndimage.map_coordinates(image, places, order=1) - other[4:28, 4:28]) ** 2)


@job("registration of two images, difference and gradient by angle and shift", _images, with_gradient(_registered),
     tolerance=3e-3)
def registration(F: Any, move: Any, image: Any, other: Any) -> Any:
    rows, columns = (np.mgrid[4:28, 4:28] - 15.5).astype(np.float32)

    def difference(move: Any) -> Any:
        sine, cosine = F.np.sin(move[0]), F.np.cos(move[0])
        y, x = cosine * rows - sine * columns + 15.5 + move[1], sine * rows + cosine * columns + 15.5 + move[2]
        top, left = F.np.floor(y), F.np.floor(x)
        down, right = y - top, x - left
        i, j = top.astype("int32"), left.astype("int32")
        upper = image[i, j] * (1 - right) + image[i, j + 1] * right
        lower = image[i + 1, j] * (1 - right) + image[i + 1, j + 1] * right
        return F.np.mean((upper * (1 - down) + lower * down - other[4:28, 4:28]) ** 2)

    return F.value_and_grad(difference)(move)


def _transport(move: Any, x: Any, y: Any, steps: Any) -> Any:
    cost = (((x * move[0] + move[1])[:, None] - y[None]) ** 2).sum(-1)
    size = np.log(len(x))
    f, g = np.zeros(len(x)), np.zeros(len(y))
    for _ in steps:
        f = -0.1 * scipy.special.logsumexp((g[None] - cost) / 0.1 - size, axis=1)
        g = -0.1 * scipy.special.logsumexp((f[:, None] - cost) / 0.1 - size, axis=0)
    return np.mean(f) + np.mean(g)


@job("optimal transport of 50 points by 50 steps of Sinkhorn, cost and gradient by scale and shift",
     lambda rng, small: f32([1.1, 0.2], *rng.normal(size=(2, 10 if small else 50, 2)), np.zeros(50)),
     with_gradient(_transport))
def sinkhorn(F: Any, move: Any, x: Any, y: Any, steps: Any) -> Any:
    def transported(move: Any) -> Any:
        cost = F.np.sum(((x * move[0] + move[1])[:, None] - y[None]) ** 2, axis=-1)
        size = math.log(x.shape[0])

        def step(state: Any, _: Any) -> Any:
            f, g = state
            f = -0.1 * F.logsumexp((g[None] - cost) / 0.1 - size, axis=1)
            return (f, -0.1 * F.logsumexp((f[:, None] - cost) / 0.1 - size, axis=0)), None

        f, g = F.scan(step, (F.np.zeros(x.shape[0]), F.np.zeros(y.shape[0])), steps)[0]
        return F.np.mean(f) + F.np.mean(g)

    return F.value_and_grad(transported)(move)


def _logistic(x: Any, labels: Any) -> Any:
    def loss(w: Any) -> Any:
        z = x.astype(np.float64) @ w
        return np.mean(np.logaddexp(0, z) - labels * z) + 0.05 * w @ w

    return scipy.optimize.minimize(loss, np.zeros(x.shape[1]), tol=1e-9).x


@job("logistic regression by 5 steps of Newton with conjugate gradients",
     lambda rng, small: f32(rng.normal(size=(200, 20)), rng.integers(0, 2, 200)), _logistic)
def newton_cg(F: Any, x: Any, labels: Any) -> Any:
    def loss(w: Any) -> Any:
        z = x @ w
        return F.np.mean(F.softplus(z) - labels * z) + 0.05 * F.np.sum(w * w)

    def newton(w: Any, _: Any) -> Any:
        slope = F.grad(loss)(w)

        def step(state: Any, _: Any) -> Any:
            found, rest, direction, size = state
            turned = F.hvp(loss, w, direction)
            length = size / F.np.maximum(F.np.sum(direction * turned), 1e-20)
            rest = rest - length * turned
            after = F.np.sum(rest * rest)
            direction_after = rest + after / F.np.maximum(size, 1e-20) * direction
            return (found + length * direction, rest, direction_after, after), None

        start = (F.np.zeros_like(w), -slope, -slope, F.np.sum(slope * slope))
        return w + F.scan(step, start, F.np.zeros(20))[0][0], None

    return F.scan(newton, F.np.zeros(20), F.np.zeros(5))[0]


def _decay(start: Any, x: Any, y: Any) -> Any:
    return scipy.optimize.curve_fit(lambda x, a, b, c: a * np.exp(-b * x) + c, x, y, start)[0]


@job("a curve of three parameters, fitted by 20 steps of Levenberg and Marquardt",
     lambda rng, small: f32([1.0, 1.0, 0.0], x := np.linspace(0, 4, 50),
                            2.5 * np.exp(-1.3 * x) + 0.5 + 0.05 * rng.normal(size=50)), _decay)
def curve_fit(F: Any, start: Any, x: Any, y: Any) -> Any:
    def misses(p: Any) -> Any:
        return p[0] * F.np.exp(-p[1] * x) + p[2] - y

    def step(state: Any, _: Any) -> Any:
        p, damping = state
        jacobian, miss = F.jacobian(misses)(p), misses(p)
        moved = p - F.solve(jacobian.T @ jacobian + damping * F.np.eye(3), jacobian.T @ miss)
        better = F.np.sum(misses(moved) ** 2) < F.np.sum(miss**2)
        return (F.np.where(better, moved, p), damping * F.np.where(better, 0.3, 2.0)), None

    return F.scan(step, (start, F.np.asarray(1e-2)), F.np.zeros(20))[0][0]
