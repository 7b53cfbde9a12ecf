"""A plugin of pytest: autograd's own tests run with hybridflow's functions and derivatives in the place of autograd's.

What stays autograd's are the checks (`autograd.test_util`), the vector spaces they measure in, and the operators that
are made of `make_vjp` and `make_jvp` alone. For a function that hybridflow does not have, the shim does what the error
for its name says: `hf.from_jax` of JAX's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import autograd.misc
import autograd.numpy as anp
import autograd.scipy.integrate
import autograd.scipy.linalg
import autograd.scipy.signal
import autograd.scipy.special
import autograd.scipy.stats
import autograd.test_util
import jax
import numpy as np
from autograd import core
from autograd.numpy.numpy_vspaces import ArrayVSpace, ComplexArrayVSpace
from autograd.wrap_util import unary_to_nary

import hybridflow as hf
from hybridflow import tree

NUMBERS = (float, complex, np.inexact, np.ndarray)


def tensors(value: Any) -> Any:
    """Return a structure with tensors of NumPy's dtypes in the place of its floating-point numbers and arrays."""
    return tree.map(lambda x: hf.asarray(np.asarray(x)) if isinstance(x, NUMBERS) else x, value)


def conjugate(value: Any) -> Any:
    """Return the conjugate of a structure: autograd's gradient of a real function is that of hybridflow and PyTorch."""
    return tree.map(lambda x: hf.conj(x) if hf.isdtype(x.dtype, "complex floating") else x, tensors(value))


def make_vjp(fun: Callable[..., Any], x: Any) -> tuple[Callable[[Any], Any], Any]:
    value, pullback = hf.vjp(lambda x: tensors(fun(x)), tensors(x))
    return lambda g: conjugate(pullback(conjugate(g))[0]), value


def make_jvp(fun: Callable[..., Any], x: Any) -> Callable[[Any], tuple[Any, Any]]:
    return lambda v: hf.jvp(lambda x: tensors(fun(x)), (tensors(x),), (tensors(v),))


def dot(a: Any, b: Any) -> Any:
    if not a.ndim * b.ndim:
        return a * b
    return hf.tensordot(a, b, axes=([-1], [max(-2, -b.ndim)]))


def transpose(x: Any, axes: Any = None) -> Any:
    return hf.permute_dims(x, axes or tuple(range(x.ndim))[::-1])


def diag(x: Any, k: int = 0) -> Any:
    return hf.diagonal(x, offset=k) if x.ndim > 1 else hf.embed_diagonal(x, offset=k)


SPELLED: dict[str, Any] = {
    "dot": dot, "transpose": transpose, "diag": diag, "T": hf.matrix_transpose, "_dot": hf.matmul,
    "eigvalsh": lambda x, UPLO="L": hf.linalg.eigvalsh(x if UPLO == "L" else hf.conj(hf.matrix_transpose(x))),
    "make_diagonal": lambda x, **axes: hf.embed_diagonal(x), "msort": lambda x: hf.sort(x, axis=0),
    "concatenate_args": lambda axis, *arrays: hf.concatenate(arrays, axis),
    **{name: partial(getattr(hf, name), dtype=hf.float64) for name in ("zeros", "ones", "eye", "linspace")},
}
"""What autograd's names are in hybridflow where the name alone is not enough."""
LEFT = {"allclose", "ndim", "shape", "iscomplexobj", "isrealobj", "dtype", "index_exp", "s_", "rvs"}
"""Names whose result is no tensor: NumPy's."""


def function(name: str, own: Any, jax_module: Any) -> Callable[..., Any]:
    """Return what stands for a function of NumPy or SciPy: hybridflow's, or an operation made of JAX's."""
    found = SPELLED.get(name) or getattr(own, name, None)
    if found is None and hasattr(jax_module, name):
        found = hf.from_jax(getattr(jax_module, name))

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if found is None:
            raise NotImplementedError(f"neither hybridflow nor JAX has {name}")
        return found(*tensors(args), **tensors(kwargs))

    return replaced


def replace(module: ModuleType, own: Any, jax_module: Any) -> None:
    """Replace a module's functions."""
    for name, value in list(vars(module).items()):
        if callable(value) and not isinstance(value, type) and name not in LEFT and (name in SPELLED or name[0] != "_"):
            setattr(module, name, function(name, own, jax_module))


replace(anp, hf, jax.numpy)
replace(anp.linalg, hf.linalg, jax.numpy.linalg)
replace(anp.fft, hf.fft, jax.numpy.fft)
for part in ("special", "linalg", "integrate", "signal"):
    replace(getattr(autograd.scipy, part), getattr(hf, part, None), getattr(jax.scipy, part, None))
for part in ("norm", "beta", "gamma", "poisson", "t", "chi2", "dirichlet", "multivariate_normal"):
    replace(getattr(autograd.scipy.stats, part), None, getattr(jax.scipy.stats, part))
for name, own in (("make_vjp", make_vjp), ("make_jvp", make_jvp)):
    for module in (core, autograd.test_util):
        setattr(module, name, own)
    setattr(autograd.differential_operators, f"_{name}", own)
    for module in (autograd, autograd.differential_operators):
        setattr(module, name, unary_to_nary(own))
for space in (ArrayVSpace, ComplexArrayVSpace):
    space._inner_prod = lambda self, x, y: hf.real(hf.sum(hf.conj(tensors(x)) * tensors(y)))
core.VSpace.register(hf.Tensor, lambda x: core.vspace(np.asarray(x)))
