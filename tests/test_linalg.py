"""Linear algebra: against NumPy, the same eager and compiled, canonical vectors, degenerate matrices, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from modes import both

import hybridflow as hf
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.errors import ArgumentError, GradientError, ShapeError
from hybridflow.ops.einsum import contraction_path

RNG = np.random.default_rng(0)
A = RNG.standard_normal((3, 3)).astype(np.float32)
B = RNG.standard_normal((2, 3, 2)).astype(np.float32)
C = (RNG.standard_normal((2, 3, 3)) + 1j * RNG.standard_normal((2, 3, 3))).astype(np.complex64)
V = RNG.standard_normal(3).astype(np.float32)
P = (A @ A.T + np.eye(3)).astype(np.float32)
L = np.linalg.cholesky(P)


def close(found: Any, expected: Any, rtol: float = 2e-5) -> None:
    found = found.numpy()
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * float(np.max(np.abs(expected), initial=1e-30)))


COMPOSITES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "cross": (lambda: hf.linalg.cross(A, V), lambda: np.cross(A, V)),
    "cross, axis 0": (lambda: hf.linalg.cross(A, A[:, ::-1], axis=0), lambda: np.cross(A, A[:, ::-1], axis=0)),
    "matrix_power 5": (lambda: hf.linalg.matrix_power(A, 5), lambda: np.linalg.matrix_power(A, 5)),
    "matrix_power -2": (lambda: hf.linalg.matrix_power(C, -2), lambda: np.linalg.matrix_power(C, -2)),
    "matrix_power 0": (lambda: hf.linalg.matrix_power(B[:, :2], 0), lambda: np.linalg.matrix_power(B[:, :2], 0)),
    "matrix_rank": (lambda: hf.linalg.matrix_rank(np.outer(V, V)), lambda: 1),
    "lstsq": (lambda: hf.linalg.lstsq(A[:, :2], V), lambda: np.linalg.lstsq(A[:, :2], V)[0]),
    "lstsq, batched": (lambda: hf.linalg.lstsq(B, B), lambda: np.linalg.pinv(B) @ B),
    "cond": (lambda: hf.linalg.cond(A), lambda: np.linalg.cond(A)),
    "cholesky_solve": (lambda: hf.linalg.cholesky_solve(L, V), lambda: np.linalg.solve(P, V)),
    "cholesky_solve, upper": (lambda: hf.linalg.cholesky_solve(L.T, B, upper=True), lambda: np.linalg.solve(P, B)),
    "tensordot": (lambda: hf.tensordot(B, A, axes=([1], [0])), lambda: np.tensordot(B, A, axes=([1], [0]))),
    "tensordot, two": (lambda: hf.tensordot(B, A[:, :2], axes=2), lambda: np.tensordot(B, A[:, :2], 2)),
    "tensordot, none": (lambda: hf.tensordot(V, A, axes=0), lambda: np.tensordot(V, A, 0)),
    "vecdot": (lambda: hf.vecdot(C, V), lambda: np.vecdot(C, V)),
    "vecdot, axis": (lambda: hf.vecdot(B, B[:1], axis=-2), lambda: np.vecdot(B, B[:1], axis=-2)),
    "outer": (lambda: hf.outer(V, V), lambda: np.outer(V, V)),
    "kron": (lambda: hf.kron(A, B), lambda: np.kron(A, B)),
    "trace": (lambda: hf.trace(B, offset=-1), lambda: np.trace(B, -1, 1, 2)),
    "norm": (lambda: hf.linalg.norm(B, axis=(2, 0), ord=1), lambda: np.linalg.norm(B, axis=(2, 0), ord=1)),
    **{
        f"vector_norm {order}": (
            lambda order=order: hf.linalg.vector_norm(C, axis=-1, ord=order),
            lambda order=order: np.linalg.norm(C, axis=-1, ord=order),
        )
        for order in (0, 1, 2, 3.5, -1, math.inf, -math.inf)
    },
    **{
        f"matrix_norm {order}": (
            lambda order=order: hf.linalg.matrix_norm(B, ord=order, keepdims=True),
            lambda order=order: np.linalg.norm(B, axis=(1, 2), ord=order, keepdims=True),
        )
        for order in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)
    },
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_are_numpys(name: str):
    ours, theirs = COMPOSITES[name]
    found, expected = ours(), np.asarray(theirs())
    assert found.shape == expected.shape
    close(found, expected)


GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "cross": (lambda x: hf.linalg.cross(x, V), lambda x: jnp.cross(x, V), A),
    "lstsq": (lambda x: hf.linalg.lstsq(x, V), lambda x: jnp.linalg.pinv(x) @ V, A[:, :2]),
    "kron": (lambda x: hf.kron(x, V), lambda x: jnp.kron(x, V[None]), A),
    "nuc": (lambda x: hf.linalg.matrix_norm(x, ord="nuc"), lambda x: jnp.linalg.norm(x, "nuc"), A),
    "vecdot": (lambda x: hf.abs(hf.vecdot(x, C)), lambda x: jnp.abs(jnp.sum(jnp.conj(x) * C, -1)), C[:, ::-1]),
    "eigenvectors": (
        lambda x: hf.square(hf.abs(hf.linalg.eigh(x).eigenvectors)), lambda x: jnp.abs(jnp.linalg.eigh(x)[1]) ** 2, C,
    ),
    "cholesky_solve": (
        lambda x: hf.linalg.cholesky_solve(hf.linalg.cholesky(x), V), lambda x: jnp.linalg.solve((x + x.T) / 2, V), P,
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_jaxs(name: str):
    ours, theirs, x = GRADIENTS[name]
    with jax.enable_x64(True):
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        expected = np.conj(jax.grad(lambda x: jnp.sum(jnp.real(theirs(x)) ** 2))(wide))
    found = hf.grad(lambda x: hf.sum(hf.square(hf.real(ours(x)))))(hf.asarray(wide))
    close(found, expected, 1e-9)


@pytest.mark.parametrize("name", ["eigh", "svd", "qr", "solve", "det", "cholesky", "pinv"])
def test_the_modes_agree_in_a_larger_program(name: str):
    def program(x: Any) -> Any:
        square = x @ x.mT + hf.eye(4)
        if name == "solve":
            return hf.linalg.solve(square, x)
        return getattr(hf.linalg, name)(square)

    x = np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)
    hf.testing.assert_same(program, x)


# -- canonical vectors --------------------------------------------------------------------------------------------


def weights(size: int) -> Any:
    return np.cos(np.arange(size))


@pytest.mark.parametrize("x", [P, C + np.conj(np.swapaxes(C, -1, -2))], ids=["real", "complex"])
def test_eigenvectors_point_along_the_cosines(x: Any):
    values, vectors = hf.linalg.eigh(x)
    close(vectors @ (values[..., :, None] * hf.conj(vectors).mT), x, 1e-5)
    product = np.sum(weights(3)[:, None] * vectors.numpy(), axis=-2)
    assert (product.real > 0).all()
    np.testing.assert_allclose(product.imag, 0, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (2, 2, 2)])
def test_svd_and_qr_give_the_matrix_back_and_are_canonical(shape: tuple[int, ...]):
    x = (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(np.complex64)
    for full in (False, True):
        u, s, vh = hf.linalg.svd(x, full_matrices=full)
        short = s.shape[-1]
        close(u[..., :short] * hf.expand_dims(s, axis=-2) @ vh[..., :short, :], x, 1e-5)
        product = np.sum(weights(shape[-2])[:, None] * u.numpy(), axis=-2)
        assert (product.real > 0).all()
        np.testing.assert_allclose(product.imag, 0, atol=1e-6)
    for mode in ("reduced", "complete"):
        q, r = hf.linalg.qr(x, mode=mode)
        close(q @ r, x, 1e-5)
        diagonal = np.diagonal(r.numpy(), axis1=-2, axis2=-1)
        assert (diagonal.real > 0).all()
        assert (diagonal.imag == 0).all()
        close(hf.conj(q).mT @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *[q.shape[-1]] * 2)), 1e-5)


def test_eigenvalues_have_an_order_and_eigenvectors_a_phase():
    x = np.diag([3.0, -1.0, 2.0]) + 0.3 * A
    values, vectors = hf.linalg.eig(x)
    close(hf.astype(x, vectors.dtype) @ vectors, (values.numpy()[None] * vectors.numpy()), 1e-5)
    along = values.numpy().real * math.cos(1) + values.numpy().imag * math.sin(1)
    assert (np.diff(along) > 0).all()
    assert (np.sum(weights(3)[:, None] * vectors.numpy(), axis=0).real > 0).all()
    close(hf.linalg.eigvals(x), values.numpy(), 1e-5)
    hf.testing.assert_same(lambda x: hf.linalg.eigvals(x @ x), x)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 300.0])
def test_exponentials_are_jaxs_and_their_own_inverses(size: float):
    x = np.array([[0.1, 1.0, 0.3], [-1.0, 0.0, 0.2], [-0.3, 0.1, -0.2]]) * size
    y = hf.linalg.expm(x)
    with jax.enable_x64(True):
        close(y, jax.scipy.linalg.expm(x, max_squarings=20), 1e-9)
    close(hf.linalg.expm(x[None] * hf.asarray([[[0.5]]], dtype=hf.float64))[0] @ hf.linalg.expm(x / 2), y.numpy(), 1e-9)
    assert np.isnan(hf.linalg.expm(np.eye(2) * 1e7).numpy()).all()


# -- degenerate matrices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_a_failing_matrix_is_nan_and_leaves_the_others_alone(wrap: Any):
    stack = np.stack([np.ones((2, 2)), np.eye(2)]).astype(np.float32)
    for f in (hf.linalg.inv, lambda x: hf.linalg.solve(x, hf.ones((2, 1)))):
        found = wrap(f)(stack).numpy()
        assert np.isnan(found[0]).all()
        assert np.isfinite(found[1]).all()
    sign, log = wrap(hf.linalg.slogdet)(stack)
    assert (sign[0].item(), log[0].item()) == (0.0, -math.inf)
    assert wrap(hf.linalg.det)(stack).numpy().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("wrap", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_cholesky_of_what_is_not_positive_definite_is_nan(wrap: Any):
    stack = np.stack([[[1.0, 2.0], [2.0, 1.0]], np.eye(2)]).astype(np.float32)
    found = wrap(hf.linalg.cholesky)(stack).numpy()
    assert np.isnan(found[0][np.tril_indices(2)]).all()
    assert found[0, 0, 1] == 0
    np.testing.assert_array_equal(found[1], np.eye(2))


def test_gradients_of_det_at_singular_matrices():
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    close(hf.grad(hf.linalg.det)(hf.asarray(singular)), [[4.0, -2.0], [-2.0, 1.0]], 1e-12)
    rank_one = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert np.abs(hf.grad(hf.linalg.det)(hf.asarray(rank_one)).numpy()).max() < 1e-12


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_gradients_through_eigenvectors_of_repeated_eigenvalues(dtype: str, compiled: bool):
    """They are finite, and right for what no rotation within a repeated eigenvalue's space changes."""
    run: Any = hf.compile if compiled else lambda function: function  # pyright: ignore[reportUnknownLambdaType]
    q, _ = np.linalg.qr(RNG.standard_normal((4, 4)) + (1j * RNG.standard_normal((4, 4)) if dtype[0] == "c" else 0))
    weights = RNG.standard_normal((4, 4))

    def made(function: Any, x: Any) -> Any:
        values, vectors = hf.linalg.eigh(x)
        return hf.sum(hf.real((vectors * function(values)) @ hf.conj(vectors).mT) * weights.astype(values.dtype))

    def step(values: Any) -> Any:
        return hf.astype(values > 1.5, values.dtype)  # a projection on the space of the eigenvalues 2 and 3

    of_exp, of_step = [run(hf.grad(lambda x, f=f: made(f, x))) for f in (hf.exp, step)]
    of_squares = run(hf.grad(lambda x: hf.sum(hf.linalg.eigh(x).eigenvalues ** 2)))
    for values in ([1.0, 1, 2, 3], [2, 2, 2, 2], [0, 0, 0, 0]):
        x = hf.asarray((q * np.array(values)) @ q.conj().T, dtype=dtype)
        assert np.isfinite(of_exp(x)).all()
        assert np.isfinite(of_step(x)).all()
        np.testing.assert_allclose(of_squares(x), 2 * np.asarray(x), atol=1e-4 if dtype == "float32" else 1e-12)
    x = (q * np.array([1.0, 1, 2, 3])) @ q.conj().T
    change = RNG.standard_normal((4, 4))
    change = (change + change.T) * 1e-6

    def projected(x: Any) -> Any:
        vectors = np.linalg.eigh(x)[1][:, 2:]
        return np.sum((vectors @ vectors.conj().T).real * weights)

    slope = (projected(x + change) - projected(x - change)) / 2
    found = np.asarray(of_step(hf.asarray(x, dtype=dtype)))
    np.testing.assert_allclose(np.sum(found.real * change), slope, rtol=1e-3, atol=1e-9)


def test_second_order_gradients_of_repeated_eigenvalues_are_finite():
    def slope(x: Any) -> Any:
        values, vectors = hf.linalg.eigh(x)
        return hf.sum((vectors * hf.exp(values)) @ vectors.mT * hf.asarray(A))

    assert np.isfinite(hf.grad(lambda x: hf.sum(hf.grad(slope)(x) ** 2))(hf.eye(3))).all()


SINGULAR = {"tied": [2.0, 2, 1], "equal": [1.0, 1, 1], "zero": [2.0, 1, 0], "zeros": [1.0, 0, 0], "nothing": [0.0] * 3}


@pytest.mark.rest
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5)])
@pytest.mark.parametrize("values", SINGULAR)
def test_gradients_through_singular_vectors_at_special_matrices(values: str, shape: tuple[int, int], dtype: str):
    """They are finite to the second order; the polar factor's is right, and so is that of `svdvals`' power sum."""
    rng = np.random.default_rng(0)
    noise = [rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype[0] == "c" else 0) for n in shape]
    u, v = [np.linalg.qr(one)[0][:, :3] for one in noise]
    x = hf.asarray((u * SINGULAR[values]) @ v.conj().T)
    weights = rng.standard_normal(shape)
    change = noise[0][:, :3] @ noise[1][:3] * 1e-6

    def polar(x: Any) -> Any:
        found = hf.linalg.svd(x, full_matrices=False)
        return hf.sum(hf.real(found.U @ found.Vh) * weights)

    def powers(x: Any) -> Any:
        return hf.sum(hf.linalg.svd(x, full_matrices=False).S ** 4)

    for function, determined in ((polar, SINGULAR[values][-1] > 0), (powers, True)):
        gradient = both(hf.grad(function), x)
        if determined:
            slope = (function(x + change) - function(x - change)).item() / 2
            np.testing.assert_allclose(np.sum((gradient.numpy().conj() * change).real), slope, rtol=1e-4, atol=1e-9)
        second = hf.grad(lambda x, function=function: hf.sum(hf.real(hf.grad(function)(x))))
        assert np.isfinite(second(x)).all()


def test_gradients_of_repeated_eigenvalues_and_singular_values():
    total = hf.grad(lambda x: hf.sum(hf.linalg.eigvalsh(x) ** 2))(hf.eye(3))
    close(total, 2 * np.eye(3))
    close(hf.grad(lambda x: hf.sum(hf.linalg.svdvals(x)))(hf.eye(3)), np.eye(3))


def test_gradients_of_norms_at_zero_are_zero():
    for order in (1, 2, 3):
        gradient = hf.grad(lambda x, order=order: hf.linalg.vector_norm(x, ord=order))(hf.zeros(3)).numpy()
        np.testing.assert_array_equal(gradient, np.zeros(3))
    second = hf.grad(lambda x: hf.sum(hf.grad(hf.linalg.vector_norm)(x)))(hf.zeros(3)).numpy()
    assert np.isfinite(second).all()


def test_what_is_not_determined_has_no_gradient():
    x = hf.asarray(A[:, :2])
    with pytest.raises(GradientError, match="full decomposition have no gradient"):
        hf.grad(lambda x: hf.sum(hf.linalg.svd(x).U))(x)
    with pytest.raises(GradientError, match="complete factors of 3 by 2 matrices have no gradient"):
        hf.grad(lambda x: hf.sum(hf.linalg.qr(x, mode="complete").R))(x)
    close(hf.grad(lambda x: hf.sum(hf.linalg.svd(x).S))(x), hf.grad(lambda x: hf.sum(hf.linalg.svdvals(x)))(x).numpy())


def test_results_are_named_and_pytrees():
    result = hf.linalg.eigh(P)
    assert type(result).__name__ == "EighResult"
    assert result.eigenvalues.shape == (3,)
    doubled = jax.tree_util.tree_map(lambda x: x * 2, result)
    assert type(doubled) is type(result)
    assert type(hf.compile(hf.linalg.slogdet)(P)) is type(hf.linalg.slogdet(P))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: hf.linalg.cross(V, V[:2]), ShapeError, "vectors of 3 and 2 elements"),
        (lambda: hf.linalg.matrix_power(A, 0.5), ArgumentError, "0.5 is not an integer"),
        (lambda: hf.linalg.matrix_power(A[:2], 2), ShapeError, "not square: 2 rows, 3 columns"),
        (lambda: hf.linalg.matrix_norm(A, ord=3), ArgumentError, "ord=3 is not one of"),
        (lambda: hf.linalg.norm(B, ord=2), ShapeError, "3 axes, 1 for vectors or 2 for matrices"),
        (lambda: hf.outer(A, V), ShapeError, "takes vectors"),
        (lambda: hf.tensordot(A, V, axes=2), ShapeError, "2 axes to pair"),
        (lambda: hf.tensordot(A, V, axes=([0, 1], [0])), ArgumentError, "2 axes are paired with 1"),
        (lambda: hf.tensordot(A, A, axes=([0, 0], [0, 1])), ShapeError, "paired twice"),
        (lambda: hf.vecdot(V, V[:2]), ShapeError, "sizes 3 and 2"),
        (lambda: hf.einsum("ij"), ArgumentError, "no operands"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        call()


# -- einsum -------------------------------------------------------------------------------------------------------


@st.composite
def contractions(draw: Any) -> tuple[str, list[Any]]:
    sizes = dict(zip("abcde", draw(st.lists(st.integers(1, 3), min_size=5, max_size=5)), strict=True))
    terms = draw(st.lists(st.text("abcde", min_size=0, max_size=3), min_size=1, max_size=3))
    known = sorted(set("".join(terms)))
    result = draw(st.permutations(known)) if known else []
    result = "".join(result[: draw(st.integers(0, len(known)))])
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return f"{','.join(terms)}->{result}", [rng.standard_normal([sizes[one] for one in term]) for term in terms]


@settings(max_examples=40, deadline=None)
@given(contractions())
def test_any_contraction_is_numpys(case: tuple[str, list[Any]]):
    subscripts, operands = case
    close(hf.einsum(subscripts, *operands), np.einsum(subscripts, *operands), 1e-12)


@settings(max_examples=15, deadline=None)
@given(contractions())
def test_the_gradient_of_any_contraction_is_the_central_difference(case: tuple[str, list[Any]]):
    subscripts, operands = case
    hf.testing.check_gradients(lambda *xs: hf.einsum(subscripts, *xs), operands, order=1, tolerance=1e-4)


def test_long_products_are_contracted_in_a_cheap_order():
    wide, tall = hf.ones((64, 2)), hf.ones((2, 64))
    vector = hf.ones(64)
    assert contraction_path("ab,bc,c->a", ((64, 2), (2, 64), (64,)))[0] == (1, 2)
    y = hf.einsum("ab,bc,c->a", wide, tall, vector)
    assert hf.einsum.op.flops(y.spec, wide.spec, tall.spec, vector.spec, subscripts="ab,bc,c->a") == 2 * 128 * 2
    np.testing.assert_array_equal(y.numpy(), np.full(64, 128.0))


# -- what rounding decides ----------------------------------------------------------------------------------------

VERDICTS: dict[str, Callable[[Any], Any]] = {
    "solve": lambda x: hf.linalg.solve(x, hf.ones((*x.shape[:-1], 1))),
    "inv": hf.linalg.inv,
    "det": hf.linalg.det,
    "slogdet": hf.linalg.slogdet,
    "cholesky": hf.linalg.cholesky,
    "pinv": hf.linalg.pinv,
    "matrix_rank": hf.linalg.matrix_rank,
    "eigvals": hf.linalg.eigvals,
}


def singular_matrices(count: int, size: int, *, hermitian: bool) -> Any:
    """Draw matrices of small integers that lack one rank: after rounding a pivot is zero, or not."""
    rng = np.random.default_rng(size)
    if hermitian:
        root = rng.integers(-2, 3, (count, size, size - 1)).astype(np.float32)
        return root @ root.swapaxes(-1, -2)
    found = rng.integers(-4, 5, (count, size, size)).astype(np.float32)
    found[:, -1] = found[:, 0] + found[:, 1]
    return found


@pytest.mark.parametrize("name", VERDICTS)
def test_rounding_decides_alike_in_both_modes(name: str) -> None:
    check_verdicts(name, 3, 8, 20)


def check_verdicts(name: str, *sizes: int) -> None:
    """Compare what becomes of singular matrices of some sizes, eager and compiled."""
    run = VERDICTS[name]
    compiled = hf.compile(run)
    for size in sizes:
        x = hf.asarray(singular_matrices(60, size, hermitian=name == "cholesky"))
        for one, two in zip(parts_of(run(x)), parts_of(compiled(x)), strict=True):
            largest = np.nanmax(np.abs(np.where(np.isfinite(two), two, 0)), initial=1.0)
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3 * (largest if name == "eigvals" else 1e-2))


def parts_of(result: Any) -> list[Any]:
    """Return the arrays of a result."""
    return [one.numpy() for one in (result if isinstance(result, tuple) else [result])]


@pytest.mark.parametrize("size", [70, 150])
def test_threads_do_not_change_what_is_positive_definite(size: int) -> None:
    """What threads round otherwise, they round alike in both modes."""
    x = singular_matrices(12, size, hermitian=True) / 4
    for step in (0.0, 1e-6, 1e-5):
        shifted = x + np.eye(size, dtype=np.float32) * np.float32(step * size)
        for one in (shifted, shifted.astype(np.float64), shifted.astype(np.complex64)):
            found, expected = hf.linalg.cholesky(one), hf.compile(hf.linalg.cholesky)(one)
            np.testing.assert_array_equal(np.isnan(found.numpy()), np.isnan(expected.numpy()))


def test_the_gradient_of_a_cholesky_factor_is_hermitian() -> None:
    rng = np.random.default_rng(2)
    for dtype in (np.float64, np.complex128):
        root = rng.standard_normal((7, 7)) + (1j * rng.standard_normal((7, 7)) if dtype == np.complex128 else 0)
        x, weights = root @ root.conj().T + 7 * np.eye(7), np.tril(rng.standard_normal((7, 7)))

        def loss(F: Any, x: Any, weights: Any = weights) -> Any:
            return F.sum(F.real(F.linalg.cholesky(x) * (1 + 0j)) * weights)

        found = hf.grad(lambda x: loss(hf, x))(hf.asarray(x, dtype=dtype)).numpy()
        with enable_x64():
            expected = np.asarray(jax.grad(lambda x: loss(jnp, x))(jnp.asarray(x, dtype)))
        np.testing.assert_allclose(found, found.conj().T, atol=1e-12)
        np.testing.assert_allclose(found, expected.conj(), atol=1e-12)  # as torch has it


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_decompositions_of_what_is_not_finite_end_and_are_nan(number: float, dtype: str):
    """LAPACK's own may never end."""
    bad = np.array([[number, 2.0, 3.0], [4.0, 5.0, 7.0], [7.0, 8.0, 9.0]])
    x = hf.asarray(np.stack([bad, np.diag([1.0, 2.0, 3.0])])).astype(dtype)
    functions: list[Callable[[Any], Any]] = [
        lambda x: hf.linalg.svd(x)[0], lambda x: hf.linalg.svd(x)[1], hf.linalg.svdvals, hf.linalg.pinv,
    ]
    if dtype != "complex64":
        functions += [
            hf.linalg.adjugate, hf.grad(lambda x: hf.sum(hf.linalg.det(x))),
            hf.grad(lambda x: hf.sum(hf.linalg.svdvals(x))), hf.grad(lambda x: hf.sum(hf.linalg.svd(x)[1])),
        ]
    for function in functions:
        for way in (function, hf.compile(function)):
            found = np.asarray(way(x))
            assert np.isnan(found[0]).all()
            assert np.isfinite(found[1]).all()


# -- factors of LAPACK and roots ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_lu_is_scipys_and_has_the_gradient_of_its_product(shape: tuple[int, int], dtype: Any) -> None:
    x = RNG.standard_normal(shape).astype(dtype) * (1 + 0.5j if dtype is np.complex128 else 1)
    x = x.astype(dtype)
    for way in (hf.linalg.lu, hf.compile(hf.linalg.lu)):
        for found, expected in zip(way(x), scipy.linalg.lu(x), strict=True):
            close(found, expected)

    def again(x: Any) -> Any:
        p, lower, upper = hf.linalg.lu(x)
        return hf.sum(hf.abs(p @ lower @ upper) ** 2)

    for way in (hf.grad(again), hf.compile(hf.grad(again))):
        close(way(x), 2 * x, 1e-4)


@pytest.mark.parametrize("output", ["real", "complex"])
def test_schur_puts_a_matrix_together_again(output: str) -> None:
    x = RNG.standard_normal((3, 5, 5))
    for way in (hf.linalg.schur, hf.compile(hf.linalg.schur)):
        triangle, unitary = [one.numpy() for one in way(x, output=output)]
        adjoint = unitary.conj().swapaxes(-1, -2)
        np.testing.assert_allclose(unitary @ triangle @ adjoint, x, atol=1e-13)
        np.testing.assert_allclose(adjoint @ unitary, np.broadcast_to(np.eye(5), x.shape), atol=1e-13)
        assert not np.tril(triangle, -1 if output == "complex" else -2).any()
    with pytest.raises(GradientError, match="schur: has no gradient: the factors are not unique"):
        hf.grad(lambda x: hf.sum(hf.linalg.schur(x).T))(x)


def test_roots_of_matrices_are_scipys_or_nan() -> None:
    x = np.eye(6) + 0.2 * RNG.standard_normal((6, 6))
    low = RNG.standard_normal((6, 2)).astype(np.float32)
    shear = np.array([[0.0, 1.0], [0.0, 0.0]])
    for way in (hf.linalg.sqrtm, hf.compile(hf.linalg.sqrtm)):
        np.testing.assert_allclose(way(x), scipy.linalg.sqrtm(x), rtol=1e-12, atol=1e-13)
        root = way(low @ low.T).numpy()  # some eigenvalues are 0 but for rounding
        np.testing.assert_allclose(root @ root, low @ low.T, atol=2e-5)
        assert np.isnan(way(shear)).all()
        assert np.isnan(way(-np.eye(2))).all()
        np.testing.assert_array_equal(way(-np.eye(2) + 0j), 1j * np.eye(2))
        np.testing.assert_array_equal(way(np.zeros((2, 2))), 0)
    hf.testing.check_gradients(hf.linalg.sqrtm, [x[:3, :3]])
