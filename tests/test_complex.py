"""Complex numbers: the convention of gradients, and the rules of every op that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.dtypes import as_dtype
from hybridflow.core.errors import HybridflowError
from hybridflow.core.op import REGISTRY, No, Op, Sample, Stops
from hybridflow.testing.calls import Call, capture
from hybridflow.testing.checks import CALL_CHECKS, has_rule, samples_of

Z = np.array([0.5 + 1.0j, -2.0 + 0.25j, 1.0 - 1.5j], np.complex64)


def real_of_product(np_like: Any) -> Callable[[Any], Any]:
    """Return a real function of a complex vector that is not holomorphic."""
    return lambda z: np_like.sum(np_like.real(z * z * np_like.conj(z)) + np_like.abs(z) * np_like.imag(z))


def test_the_gradient_is_the_direction_of_steepest_ascent():
    gradient = hf.grad(real_of_product(hf))(Z).numpy()
    f = real_of_product(np)
    step = 1e-6
    wide = Z.astype(np.complex128)
    for index in range(3):
        e = np.eye(3)[index]
        by_x = (f(wide + step * e) - f(wide - step * e)) / (2 * step)
        by_y = (f(wide + step * 1j * e) - f(wide - step * 1j * e)) / (2 * step)
        assert gradient[index] == pytest.approx(by_x + 1j * by_y, rel=1e-4)
    assert f(wide + 1e-3 * gradient) > f(wide)


def test_it_is_the_conjugate_of_jax():
    np.testing.assert_allclose(
        hf.grad(real_of_product(hf))(Z).numpy(), np.conj(jax.grad(real_of_product(jnp))(Z)), rtol=1e-5
    )


def test_it_is_that_of_torch():
    torch = pytest.importorskip("torch")
    z = torch.tensor(Z, requires_grad=True)
    y = z * z * z.conj()
    weights = np.array([1 + 2j, -1j, 0.5], np.complex64)
    y.backward(torch.tensor(weights))
    _, pullback = hf.vjp(lambda z: z * z * hf.conj(z), hf.asarray(Z))
    np.testing.assert_allclose(pullback(hf.asarray(weights))[0].numpy(), z.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_a_tape_around_a_compiled_function_and_inside_one(wrap: Any):
    f = wrap(real_of_product(hf))
    z = hf.asarray(Z)
    with hf.GradientTape() as tape:
        tape.watch(z)
        y = f(z)
    expected = np.conj(jax.grad(real_of_product(jnp))(Z))
    np.testing.assert_allclose(tape.gradient(y, z).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(wrap(hf.grad(real_of_product(hf)))(z).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_second_order(wrap: Any):
    def of(np_like: Any, grad: Any, conj: Any) -> Any:
        first = grad(real_of_product(np_like))
        return grad(lambda z: np_like.sum(np_like.abs(conj(first(z))) ** 2))

    ours = wrap(of(hf, hf.grad, lambda g: g))(Z).numpy()
    theirs = np.conj(of(jnp, jax.grad, jnp.conj)(Z))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_custom_gradient_takes_and_gives_the_users_convention():
    @hf.custom_gradient
    def times(z: Any) -> Any:
        factor = 2.0 + 1.0j
        return z * factor, lambda g: g * np.conj(factor)

    def plain(z: Any) -> Any:
        return z * (2.0 + 1.0j)

    for f in (lambda z: hf.sum(hf.abs(times(z))), hf.compile(lambda z: hf.sum(hf.abs(times(z))))):
        np.testing.assert_allclose(
            hf.grad(f)(Z).numpy(), hf.grad(lambda z: hf.sum(hf.abs(plain(z))))(Z).numpy(), rtol=1e-5
        )


def test_a_complex_target_counts_as_its_real_part():
    z = hf.asarray(Z)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        y = z * z
        part = hf.sum(hf.real(y))
    np.testing.assert_array_equal(tape.gradient(y, z).numpy(), tape.gradient(part, z).numpy())


def test_a_real_source_gets_a_real_gradient():
    x = hf.asarray([1.0, 2.0])
    gradient = hf.grad(lambda x: hf.sum(hf.abs(x * (1 + 2j))))(x)
    assert gradient.dtype == hf.float32
    np.testing.assert_allclose(gradient.numpy(), [5**0.5, 5**0.5], rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_backward_and_its_hooks_see_the_users_convention(wrap: Any):
    expected = hf.grad(real_of_product(hf))(Z).numpy()
    v = hf.Variable(Z, requires_grad=True)
    wrap(lambda: real_of_product(hf)(v).backward())()
    np.testing.assert_allclose(v.grad.numpy(), expected, rtol=1e-5)
    t = hf.tensor(Z, requires_grad=True)
    inner = t * (1.0 - 2.0j)
    seen: list[Any] = []
    inner.register_hook(seen.append)
    hf.sum(hf.abs(inner)).backward()
    np.testing.assert_allclose(seen[0].numpy(), inner.numpy() / np.abs(inner.numpy()), rtol=1e-5)
    np.testing.assert_allclose(t.grad.numpy(), seen[0].numpy() * (1.0 + 2.0j), rtol=1e-5)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_jacobians_are_derivatives_of_holomorphic_functions(mode: Any):
    holomorphic = hf.jacobian(lambda z: z * z, mode=mode)(hf.asarray(Z)).numpy()
    np.testing.assert_allclose(holomorphic, np.diag(2 * Z), atol=1e-6)
    several = hf.jacobian(lambda z: hf.stack([hf.real(z), hf.imag(z), hf.abs(z)]), mode=mode)(hf.asarray(3 + 4j))
    np.testing.assert_allclose(several.numpy(), [1, -1j, 0.6 - 0.8j], atol=1e-6)


def test_angles_are_numpys_and_their_gradients_jaxs():
    for x in (Z, np.array([-1.0, 2.0, 0.0]), np.array([-3, 4])):
        np.testing.assert_allclose(hf.angle(x).numpy(), np.angle(x), rtol=1e-6)
    found = hf.grad(lambda z: hf.sum(hf.angle(z) ** 2))(Z).numpy()
    np.testing.assert_allclose(found, np.conj(jax.grad(lambda z: jnp.sum(jnp.angle(z) ** 2))(Z)), rtol=1e-5)
    hf.testing.assert_same(lambda z: hf.angle(z * z), hf.asarray(Z))


def test_the_gradient_of_abs_at_zero_is_zero():
    assert hf.grad(lambda z: hf.abs(z))(hf.asarray(0j)).item() == 0


# -- every op -----------------------------------------------------------------------------------------------------


def complex_call(op: Op) -> Call | None:
    """Return a call of an op on complex numbers, made of its first sample of floats; None if it takes none."""
    rng = np.random.default_rng(0)
    for sample in samples_of(op, 0):
        if not isinstance(sample, Sample) or not sample.gradient:
            continue
        for call in capture(op, sample):
            if not any(call.differentiable) or any(x.size == 0 for x in call.inputs):
                continue
            inputs = tuple(
                [
                    np.asarray(x + 1j * rng.uniform(-0.5, 0.5, x.shape), np.complex128) if x.dtype.kind == "f" else x
                    for x in call.inputs
                ]
            )
            changed = Call(op, inputs, call.attrs, call.sample)
            try:
                op.infer(*changed.specs, **changed.recorded_attrs)
            except HybridflowError:
                return None
            return changed
    return None


CANDIDATES = sorted(
    name for name, op in REGISTRY.items()
    if not isinstance(op.samples, No) and not isinstance(op.vjp, No) and not isinstance(op.vjp, Stops)
    and not op.traits & {"random", "tensor_rule", "nested", "identity"}
)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_op_that_takes_complex_numbers_differentiates_them(name: str):
    call = complex_call(REGISTRY[name])
    if call is None:
        return
    assert all(as_dtype(y.dtype) for y in call.likes)
    if has_rule(call):
        CALL_CHECKS["gradient_fits_its_input"](call)
        CALL_CHECKS["vjp_is_finite_difference"](call)


def test_enough_ops_take_complex_numbers():
    assert sum(complex_call(REGISTRY[name]) is not None for name in ("add", "multiply", "divide", "matmul", "sum")) == 5
