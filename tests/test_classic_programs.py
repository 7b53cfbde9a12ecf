"""Programs that need derivatives of derivatives, solvers and random numbers, eager and compiled, against jax."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close

import hybridflow as hf

RNG = np.random.default_rng(11)


def f64(array: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(array, np.float64))


def in_x64(fn: Any, *args: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(np.asarray, jax.jit(fn)(*args))


def tensors(tree: Any) -> Any:
    return jax.tree_util.tree_map(f64, tree)


def layers(*sizes: int) -> list[dict[str, np.ndarray]]:
    return [
        {"w": RNG.standard_normal((a, b)) / np.sqrt(a), "b": 0.1 * RNG.standard_normal(b)}
        for a, b in itertools.pairwise(sizes)
    ]


def mlp(n: Any, params: Any, x: Any) -> Any:
    for layer in params[:-1]:
        x = n.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def moved(params: Any, gradients: Any, rate: float) -> Any:
    return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, gradients)


def test_a_gan_with_a_gradient_penalty():
    """WGAN-GP: the critic's loss has the norm of its gradient for every interpolated example.

    Reference:
        I. Gulrajani et al., "Improved Training of Wasserstein GANs", 2017, algorithm 1.
    """
    critic, generator = layers(2, 5, 1), layers(3, 4, 2)
    real, noise, mix = RNG.standard_normal((6, 2)) + 1, RNG.standard_normal((6, 3)), RNG.uniform(size=(6, 1))

    def losses(lib: Any, n: Any, real: Any, noise: Any, mix: Any):
        def critic_loss(critic: Any, generator: Any):
            fake = mlp(n, generator, noise)
            between = mix * real + (1 - mix) * fake
            slopes = lib.vmap(lib.grad(lambda x: mlp(n, critic, x)[0]))(between)
            norms = n.sqrt(n.sum(slopes**2, axis=1))
            penalty = 10.0 * n.mean((norms - 1) ** 2)
            return n.mean(mlp(n, critic, fake)) - n.mean(mlp(n, critic, real)) + penalty

        def generator_loss(generator: Any, critic: Any):
            return -n.mean(mlp(n, critic, mlp(n, generator, noise)))

        return critic_loss, generator_loss

    def train(lib: Any, n: Any, critic: Any, generator: Any, *data: Any):
        critic_loss, generator_loss = losses(lib, n, *data)
        for _ in range(2):
            critic = moved(critic, lib.grad(critic_loss)(critic, generator), 0.05)
        generator = moved(generator, lib.grad(generator_loss)(generator, critic), 0.1)
        return critic, generator, critic_loss(critic, generator)

    data = real, noise, mix
    found = both(lambda c, g, *d: train(hf, hf, c, g, *d), *tensors((critic, generator, *data)), rtol=1e-10)
    close(found, in_x64(lambda c, g, *d: train(jax, jnp, c, g, *d), critic, generator, *data), rtol=1e-9)


def test_a_gan_with_a_gradient_penalty_by_tapes_and_variables():
    weights = [hf.Variable(layer[k], name=k) for layer in layers(2, 4, 1) for k in ("w", "b")]
    start = [w.numpy().copy() for w in weights]
    x = RNG.standard_normal((5, 2))

    def critic(n: Any, ws: Any, x: Any):
        return n.tanh(x @ ws[0] + ws[1]) @ ws[2] + ws[3]

    def step(x: hf.Tensor):
        with hf.GradientTape() as outer:
            with hf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(x)
                y = critic(hf, weights, x)
            slopes = inner.gradient(y, x)
            loss = hf.mean(y) + 10.0 * hf.mean((hf.sqrt(hf.sum(slopes**2, axis=1)) - 1.0) ** 2)
        gradients = outer.gradient(loss, weights)
        for w, g in zip(weights, gradients, strict=True):
            if g is not None:
                w.assign_sub(0.01 * g)
        return loss, gradients[:3]

    def loss(ws: Any):
        slopes = jax.grad(lambda x: jnp.sum(critic(jnp, ws, x)))(x)
        return jnp.mean(critic(jnp, ws, x)) + 10.0 * jnp.mean((jnp.sqrt(jnp.sum(slopes**2, axis=1)) - 1.0) ** 2)

    value, gradients = in_x64(jax.value_and_grad(loss), start)
    for run in (step, hf.compile(step)):
        for w, s in zip(weights, start, strict=True):
            w.assign(s)
        close(run(f64(x)), (value, gradients[:3]), rtol=1e-10)
        expected = [s - 0.01 * g for s, g in zip(start[:3], gradients[:3], strict=True)]
        close([w.numpy() for w in weights[:3]], expected, rtol=1e-10)


def test_learning_to_learn():
    """MAML: the gradient of the loss after steps of gradient descent, for a batch of tasks.

    Reference:
        C. Finn, P. Abbeel, S. Levine, "Model-Agnostic Meta-Learning", 2017, algorithm 2.
    """
    params = layers(1, 6, 1)
    amplitudes, x = np.array([0.5, 1.0, 2.0]), np.linspace(-2, 2, 5)[:, None]

    def meta(lib: Any, n: Any, params: Any, amplitudes: Any, x: Any):
        def loss(params: Any, amplitude: Any):
            return n.mean((mlp(n, params, x) - amplitude * n.sin(x)) ** 2)

        def adapted(params: Any, amplitude: Any):
            for _ in range(2):
                params = moved(params, lib.grad(loss)(params, amplitude), 0.1)
            return loss(params, amplitude)

        return lib.value_and_grad(lambda p: n.mean(lib.vmap(adapted, (None, 0))(p, amplitudes)))(params)

    found = both(lambda *a: meta(hf, hf, *a), *tensors((params, amplitudes, x)), rtol=1e-9)
    close(found, in_x64(lambda *a: meta(jax, jnp, *a), params, amplitudes, x), rtol=1e-8, atol=1e-9)


def test_implicit_differentiation():
    """The derivative of a fixed point z = tanh(W z + x), by the implicit function theorem in a custom gradient."""
    w, x = 0.3 * RNG.standard_normal((4, 4)), RNG.standard_normal(4)

    def iterate(step: Any, start: hf.Tensor):
        return hf.while_loop(lambda z, n: n < 80, lambda z, n: (step(z), n + 1), (start, 0))[0]

    @hf.custom_gradient
    def fixed_point(w: hf.Tensor, x: hf.Tensor):
        z = iterate(lambda z: hf.tanh(w @ z + x), hf.zeros((4,), dtype=hf.float64))

        def gradient(g: hf.Tensor):
            _, pull_z = hf.vjp(lambda z: hf.tanh(w @ z + x), z)
            u = iterate(lambda u: g + pull_z(u)[0], g)
            return hf.vjp(lambda w, x: hf.tanh(w @ z + x), w, x)[1](u)

        return z, gradient

    def by_jax(w: Any, x: Any):
        z = jax.lax.fori_loop(0, 80, lambda _, z: jnp.tanh(w @ z + x), jnp.zeros(4))
        slope = jnp.diag(1 - z**2)
        inverse = jnp.linalg.inv(jnp.eye(4) - slope @ w)  # dz = (I - D W)^-1 D (dW z + dx)
        u = (2 * z) @ inverse @ slope
        return jnp.outer(u, z), u

    found = both(hf.grad(lambda w, x: hf.sum(fixed_point(w, x) ** 2), (0, 1)), f64(w), f64(x), rtol=1e-10)
    close(found, in_x64(by_jax, w, x), rtol=1e-9)
    batch = f64(RNG.standard_normal((3, 4)))
    each = hf.vmap(hf.grad(lambda x: hf.sum(fixed_point(f64(w), x) ** 2)))(batch)
    close(each[1], hf.grad(lambda x: hf.sum(fixed_point(f64(w), x) ** 2))(batch[1]), rtol=1e-9)


def conjugate_gradients(product: Any, b: Any, steps: int, scan: Any, n: Any) -> Any:
    def step(state: Any, _: Any):
        x, r, p = state
        ap = product(p)
        alpha = (r @ r) / (p @ ap)
        new = r - alpha * ap
        return (x + alpha * p, new, new + (new @ new) / (r @ r) * p), r @ r

    return scan(step, (n.zeros_like(b), b, b), n.zeros((steps,)))[0][0]


def test_a_step_without_the_hessian():
    """A damped Newton step by conjugate gradients on Hessian-vector products.

    Reference:
        J. Martens, "Deep learning via Hessian-free optimization", 2010, section 3.
    """
    a, y, w = RNG.standard_normal((8, 5)), RNG.standard_normal(8), RNG.standard_normal(5)

    def loss(n: Any, w: Any, a: Any, y: Any):
        return n.mean(n.log(1 + n.exp(-y * (a @ w)))) + 0.5 * (w @ w)

    def step(w: hf.Tensor, a: hf.Tensor, y: hf.Tensor):
        def f(w: hf.Tensor):
            return loss(hf, w, a, y)

        def product(v: hf.Tensor):
            return hf.hvp(f, (w,), (v,))[0] + 0.1 * v

        return w - conjugate_gradients(product, hf.grad(f)(w), 5, hf.scan, hf)

    def newton(w: Any, a: Any, y: Any):
        f = lambda w: loss(jnp, w, a, y)  # noqa: E731
        return w - jnp.linalg.solve(jax.hessian(f)(w) + 0.1 * jnp.eye(5), jax.grad(f)(w))

    close(both(step, *tensors((w, a, y)), rtol=1e-9), in_x64(newton, w, a, y), rtol=1e-8)


def test_a_neural_ordinary_differential_equation():
    """Runge-Kutta steps of a learned field in a scan; the gradient of the end for the field's weights."""
    params, start, end = layers(3, 6, 2), np.array([1.0, 0.0]), np.array([0.0, 1.0])

    def run(lib: Any, n: Any, scan: Any, concat: Any, params: Any, start: Any, end: Any):
        def field(params: Any, t: Any, y: Any):
            return mlp(n, params, concat([y, n.reshape(t, (1,))]))

        def loss(params: Any):
            def step(y: Any, t: Any):
                h = 0.1
                k1 = field(params, t, y)
                k2 = field(params, t + h / 2, y + h / 2 * k1)
                k3 = field(params, t + h / 2, y + h / 2 * k2)
                k4 = field(params, t + h, y + h * k3)
                y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
                return y, y

            last, path = scan(step, start, times)
            return n.sum((last - end) ** 2) + 0.01 * n.mean(path**2)

        times = (f64 if lib is hf else jnp.asarray)(np.arange(8) * 0.1)
        return lib.value_and_grad(loss)(params)

    found = both(lambda *a: run(hf, hf, hf.scan, hf.concat, *a), *tensors((params, start, end)), rtol=1e-10)
    expected = in_x64(lambda *a: run(jax, jnp, jax.lax.scan, jnp.concatenate, *a), params, start, end)
    close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_quasi_newton_method():
    """L-BFGS with its two-loop recursion and backtracking finds the minimum of Rosenbrock's function.

    Reference:
        J. Nocedal, S. Wright, "Numerical Optimization", 2nd edition, algorithms 7.4 and 3.1.
    """

    def rosenbrock(x: hf.Tensor):
        return hf.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    def minimize(value_and_grad: Any, x: hf.Tensor):
        pairs: list[Any] = []
        value, g = value_and_grad(x)
        for _ in range(80):
            if float(hf.max(hf.abs(g))) < 1e-9:
                break
            q, kept = g, []
            for s, y in reversed(pairs):
                a = (s @ q) / (y @ s)
                q = q - a * y
                kept.append(a)
            if pairs:
                s, y = pairs[-1]
                q = q * ((s @ y) / (y @ y))
            for (s, y), a in zip(pairs, reversed(kept), strict=True):
                q = q + s * (a - (y @ q) / (y @ s))
            step = 1.0
            while float(value_and_grad(x - step * q)[0]) > float(value) - 1e-4 * step * float(g @ q):
                step /= 2
            new = x - step * q
            value, fresh = value_and_grad(new)
            pairs = [*pairs[-5:], (new - x, fresh - g)]
            x, g = new, fresh
        return x

    start = f64([-1.2, 1.0, 0.5])
    compiled = hf.compile(hf.value_and_grad(rosenbrock))
    for run in (hf.value_and_grad(rosenbrock), compiled):
        close(minimize(run, start), np.ones(3), rtol=1e-7)
    assert compiled.trace_count == 1


def test_laplaces_approximation():
    """The posterior's Gaussian at its mode: Newton steps and the curvature there, by hf.hessian.

    Reference:
        C. Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.4.
    """
    a = RNG.standard_normal((12, 3))
    y = (a @ np.array([1.0, -2.0, 0.5]) + 0.3 * RNG.standard_normal(12) > 0).astype(np.float64)

    def energy(n: Any, w: Any, a: Any):
        z = a @ w
        return n.sum(n.log(1 + n.exp(z)) - y * z) + 0.5 * (w @ w)

    def mode(w: hf.Tensor, a: hf.Tensor):
        def f(w: hf.Tensor):
            return energy(hf, w, a)

        for _ in range(6):
            hessian = hf.hessian(f)(w)
            w = w - conjugate_gradients(lambda p, h=hessian: h @ p, hf.grad(f)(w), 3, hf.scan, hf)
        return w, hf.hessian(f)(w), hf.vmap(lambda row, w: row @ w, (0, None))(a, w)

    def by_jax(w: Any, a: Any):
        f = lambda w: energy(jnp, w, a)  # noqa: E731
        for _ in range(6):
            w = w - jnp.linalg.solve(jax.hessian(f)(w), jax.grad(f)(w))
        return w, jax.hessian(f)(w), a @ w

    found = both(mode, f64(np.zeros(3)), f64(a), rtol=1e-8)
    close(found, in_x64(by_jax, np.zeros(3), a), rtol=1e-7)
    close(hf.grad(lambda w: energy(hf, w, f64(a)))(found[0]), np.zeros(3), atol=1e-6)


def test_sensitivities_of_an_option_price():
    """Delta, gamma, vega and a cross derivative of the Black-Scholes formula, for a batch of strikes."""
    def price(n: Any, erf: Any):
        def phi(x: Any):
            return 0.5 * (1 + erf(x / np.sqrt(2.0)))

        def f(s: Any, sigma: Any, k: Any):
            d1 = (n.log(s / k) + 0.5 * sigma**2) / sigma
            return s * phi(d1) - k * phi(d1 - sigma)

        return f

    def greeks(lib: Any, f: Any):
        vanna = lib.grad(lib.grad(f, 0), 1)
        return lib.vmap(lambda k, s, v: (f(s, v, k), lib.grad(f)(s, v, k), lib.grad(lib.grad(f))(s, v, k),
                                         lib.jvp(lambda v: f(s, v, k), (v,), (v * 0 + 1,))[1], vanna(s, v, k)),
                        (0, None, None))

    strikes = np.linspace(80.0, 120.0, 5)
    found = both(greeks(hf, price(hf, hf.erf)), f64(strikes), f64(100.0), f64(0.2), rtol=1e-10)
    close(found, in_x64(greeks(jax, price(jnp, jax.scipy.special.erf)), strikes, 100.0, 0.2), rtol=1e-9)


@pytest.mark.parametrize("compiled", [False, True])
def test_private_learning(compiled: bool):
    """Clipped per-example gradients with noise.

    Reference:
        M. Abadi et al., "Deep Learning with Differential Privacy", 2016, algorithm 1.
    """
    params, x, y = layers(3, 4, 1), RNG.standard_normal((6, 3)), RNG.standard_normal(6)

    def one(n: Any, params: Any, x: Any, y: Any):
        return (mlp(n, params, x)[0] - y) ** 2

    def step(params: Any, x: hf.Tensor, y: hf.Tensor):
        def clipped(params: Any, x: hf.Tensor, y: hf.Tensor):
            return hf.clip_by_global_norm(hf.grad(lambda p: one(hf, p, x, y))(params), 0.5)[0]

        each = hf.vmap(clipped, (None, 0, 0))(params, x, y)
        return jax.tree_util.tree_map(lambda g: hf.mean(g, axis=0), each)

    def by_jax(params: Any, x: Any, y: Any):
        def clipped(params: Any, x: Any, y: Any):
            g = jax.grad(lambda p: one(jnp, p, x, y))(params)
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(g)))
            return jax.tree_util.tree_map(lambda leaf: leaf * jnp.minimum(1.0, 0.5 / norm), g)

        each = jax.vmap(clipped, (None, 0, 0))(params, x, y)
        return jax.tree_util.tree_map(lambda g: jnp.mean(g, axis=0), each)

    found = (hf.compile(step) if compiled else step)(*tensors((params, x, y)))
    close(found, in_x64(by_jax, params, x, y), rtol=1e-10)


def test_a_gaussian_process():
    """The log marginal likelihood, its gradient and Hessian for the hyperparameters, and the posterior.

    Reference:
        C. Rasmussen, C. Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1 and equation 5.9.
    """
    x, y, new = RNG.uniform(-2, 2, (7, 2)), RNG.standard_normal(7), RNG.uniform(-2, 2, (3, 2))
    theta = np.array([0.1, -0.3, -1.5])

    def model(lib: Any, n: Any, linalg: Any, solve: Any, eye: Any):
        def kernel(theta: Any, a: Any, b: Any):
            def one(a: Any, b: Any):
                return n.exp(theta[0] - 0.5 * n.sum((a - b) ** 2) * n.exp(-2 * theta[1]))

            return lib.vmap(lib.vmap(one, (None, 0)), (0, None))(a, b)

        def factor(theta: Any, x: Any):
            return linalg.cholesky(kernel(theta, x, x) + n.exp(theta[2]) * eye)

        def likelihood(theta: Any, x: Any, y: Any):
            lower = factor(theta, x)
            logs = n.sum(n.log(n.sum(lower * eye, axis=1)))
            return -0.5 * (y @ solve(lower, y)) - logs - 3.5 * np.log(2 * np.pi)

        def run(theta: Any, x: Any, y: Any, new: Any):
            value, gradient = lib.value_and_grad(likelihood)(theta, x, y)
            lower, across = factor(theta, x), kernel(theta, new, x)
            mean = across @ solve(lower, y)
            spread = kernel(theta, new, new) - across @ lib.vmap(lambda k: solve(lower, k), 0, 1)(across)
            return value, gradient, lib.hessian(likelihood)(theta, x, y), mean, spread

        return run

    def of_jax(lower: Any, b: Any):
        return jax.scipy.linalg.cho_solve((lower, True), b)

    ours = model(hf, hf, hf.linalg, hf.linalg.cholesky_solve, f64(np.eye(7)))
    found = both(ours, *tensors((theta, x, y, new)), rtol=1e-9, atol=1e-9)
    expected = in_x64(model(jax, jnp, jnp.linalg, of_jax, np.eye(7)), theta, x, y, new)
    close(found, expected, rtol=1e-8, atol=1e-9)
