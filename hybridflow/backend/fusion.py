"""Keep XLA from fusing and inlining: fusion breaks, and functions that are not inlined.

XLA:CPU copies a chain of cheap operations into every reader of its result, so a deep network could compute its first
layers again in every later one. An `optimization_barrier` does not help, since XLA:CPU removes it before it fuses. But
XLA does not look into a function that it must not inline, nor past a condition that it does not know. So a break is a
call of the identity, and a CPU program with breaks has one more input, which is always False: `never`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.backend.active_rows import ACTIVE
from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.backend.host_calls import session_argument, with_session
from hybridflow.backend.jax_shim import row_major, set_xla_metadata

_NEVER: ContextVar[Any] = ContextVar("hybridflow never", default=None)
"""The program's input that is always False, while the program is lowered."""

NEVER_SPEC = jax.ShapeDtypeStruct((), np.bool_)


def needs_never(backend: str) -> bool:
    """Whether breaks on a backend need that input: other backends keep `optimization_barrier` until after fusion."""
    return backend == "cpu"


def never() -> Any:
    """Return the program's input that is always False (XLA does not know that), or None if it has none."""
    return _NEVER.get()


def with_never(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to lower, with the bool that is always False as an additional last argument."""

    def lowered(*arguments: Any) -> Any:
        token = _NEVER.set(arguments[-1])
        try:
            return function(*arguments[:-1])
        finally:
            _NEVER.reset(token)

    lowered.__name__ = function.__name__
    return lowered


def false_on(device: Any) -> Any:
    """Return the value of that last argument on a device; None means jax's default device."""
    return jax.device_put(np.False_, device)


def fusion_break(x: Any) -> Any:
    """Lower a value so that XLA computes it only once, however many operations read it."""
    if never() is None:
        return lax.optimization_barrier(x)
    # A conditional would work too, but costs XLA more and copies the value.
    with set_xla_metadata(inlineable="false"):
        return _identity(x)


def row_major_break(x: Any) -> Any:
    """Lower a value as `fusion_break` does, stored in row-major order; XLA else keeps the order of a convolution."""
    return fusion_break(x if never() is None else row_major(x))


def stored_on_cpus(x: Any) -> Any:
    """Lower a value on a mesh of CPUs so that XLA does not make its transposition a part of the product it goes to.

    A barrier is enough: XLA removes it before it fuses, but after it has chosen the products' operands.
    """
    mesh = LOWERED_FOR.get()
    return lax.optimization_barrier(x) if mesh is not None and not mesh.is_planned and mesh.on_host else x


def after(x: Any, then: Any) -> Any:
    """Lower a value so that XLA cannot use it before another one (with at least one element) is computed."""
    condition = never()
    if condition is None:
        return lax.optimization_barrier((x, then))[0]
    return jnp.where(condition & (jnp.ravel(then)[0] == 0), jnp.zeros_like(x), x)


@jax.jit
def _identity(x: Any) -> Any:
    return x


def outlined(function: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
    """Return a function of arrays that programs call and XLA does not inline.

    Keep the returned object: calls of the same object with equal shapes are compiled as one function. XLA fuses
    nothing across its border, and computes none of its operations again elsewhere.

    Args:
        function: a function from arrays to a sequence of arrays. It may contain breaks and calls of Python functions.
    """

    def body(false: Any, session: Any, *arrays: Any) -> tuple[Any, ...]:
        # The tag applies to this function only, not to jax's small functions that it calls.
        with set_xla_metadata(inlineable=None):
            results = with_session(with_never(function))(*arrays, false, session)
            # Results in another layout than the default one of arguments would be copied after each call.
            return tuple([row_major(result) for result in results])

    body.__name__ = function.__name__
    jitted = jax.jit(body)

    def call(*arrays: Any) -> tuple[Any, ...]:
        # How values lie on a mesh, and which slices are active, would not get past the border.
        if LOWERED_FOR.get() is not None or ACTIVE.get() is not None:
            return tuple(function(*arrays))
        with set_xla_metadata(inlineable="false"):
            return jitted(never(), session_argument(), *arrays)

    return call


_CALL = re.compile(r"(?<!custom_)call @([^(]+)\(.*")


def inlines_nothing_often(text: str) -> bool:
    """Whether every function that a lowered program calls more than once is one that XLA must not inline.

    XLA copies other functions, such as jax's own, for each call and merges them into the caller.
    """
    calls = Counter(call[1] for call in _CALL.finditer(text) if 'inlineable = "false"' not in call[0])
    return max(calls.values(), default=0) < 2
