"""What keeps XLA from fusing and from inlining: breaks, and functions that stay functions.

XLA:CPU copies a chain of cheap operations into everything that reads its end, so that a deep network as a plain loop
computes its first layers once more in every later one. It looks through `optimization_barrier`, which it removes
before it fuses, but not into a function that it must not inline, nor past a condition that it does not know. So a
break is a call of the identity, and a program for the CPU with breaks in it has one more input, which is always
False: `never`.
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

from hybridflow.backend.host_calls import session_argument, with_session
from hybridflow.backend.jax_shim import row_major, set_xla_metadata

_NEVER: ContextVar[Any] = ContextVar("hybridflow never", default=None)
"""While a program is lowered: its input that is always False."""

NEVER_SPEC = jax.ShapeDtypeStruct((), np.bool_)


def needs_never(backend: str) -> bool:
    """Whether breaks on a backend need the input: others remove `optimization_barrier` only after they fused."""
    return backend == "cpu"


def never() -> Any:
    """Return the program's input that is always False, which XLA does not know; None if the program has none."""
    return _NEVER.get()


def with_never(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function to lower whose last argument is the bool that is always False."""

    def lowered(*arguments: Any) -> Any:
        token = _NEVER.set(arguments[-1])
        try:
            return function(*arguments[:-1])
        finally:
            _NEVER.reset(token)

    lowered.__name__ = function.__name__
    return lowered


def false_on(device: Any) -> Any:
    """Return what programs for a device take as that last argument; for jax's default device if None."""
    return jax.device_put(np.False_, device)


def fusion_break(x: Any) -> Any:
    """Lower a value that is computed once, whatever reads it."""
    if never() is None:
        return lax.optimization_barrier(x)
    # A conditional would do as well, but costs XLA about three times as much and copies the value.
    with set_xla_metadata(inlineable="false"):
        return _identity(x)


def after(x: Any, then: Any) -> Any:
    """Lower a value that, for all XLA knows, is only there once another one (of at least one element) is computed."""
    condition = never()
    if condition is None:
        return lax.optimization_barrier((x, then))[0]
    return jnp.where(condition & (jnp.ravel(then)[0] == 0), jnp.zeros_like(x), x)


@jax.jit
def _identity(x: Any) -> Any:
    return x


def outlined(function: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
    """Return a function of arrays as one that programs call, however often, and that XLA does not inline.

    Keep what is returned: calls of one and the same object, with equal shapes, are compiled as one function. XLA fuses
    nothing across its border and computes nothing of it anew elsewhere.

    Args:
        function: arrays to a sequence of arrays. It may have breaks and Python functions in it.
    """

    def body(false: Any, session: Any, *arrays: Any) -> tuple[Any, ...]:
        # The tag is meant for this function alone, not for the small ones of jax's that it calls.
        with set_xla_metadata(inlineable=None):
            results = with_session(with_never(function))(*arrays, false, session)
            # XLA lets arguments be as they are by default, and what is not made so would be copied behind each call.
            return tuple([row_major(result) for result in results])

    body.__name__ = function.__name__
    jitted = jax.jit(body)

    def call(*arrays: Any) -> tuple[Any, ...]:
        with set_xla_metadata(inlineable="false"):
            return jitted(never(), session_argument(), *arrays)

    return call


_CALL = re.compile(r"(?<!custom_)call @([^(]+)\(.*")


def inlines_nothing_often(text: str) -> bool:
    """Whether the functions that a lowered program calls more than once are all such as XLA must not inline.

    Others, like those of jax's own, are a part of what calls them once XLA has copied them for each call.
    """
    found = Counter(call[1] for call in _CALL.finditer(text) if 'inlineable = "false"' not in call[0])
    return max(found.values(), default=0) < 2
