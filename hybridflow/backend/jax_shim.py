"""Every use of jax that differs between versions or is only semi-public."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import jax
from jax.core import Tracer as Tracer
from jax.experimental import io_callback
from jax.experimental.xla_metadata import set_xla_metadata as set_xla_metadata
from jax.extend.core import jaxpr_as_fun

JAX_VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


def enable_x64(flag: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which jax keeps (or not) 64-bit dtypes, leaving the process default alone."""
    return jax.enable_x64(flag)


def is_tracer(value: Any) -> bool:
    """Whether a value only stands for one, while jax traces a function."""
    return isinstance(value, Tracer)


def ordered_callback(function: Callable[..., Any], results: Any, *arrays: Any) -> Any:
    """Call a Python function from a lowered program: at every run, in program order, whether or not it is read."""
    return io_callback(function, results, *arrays, ordered=True)


def wait_for_everything() -> None:
    """Wait until every array that jax computes is there and every callback has run."""
    for array in jax.live_arrays():
        array.block_until_ready()
    jax.effects_barrier()


def x64_enabled() -> bool:
    """Whether jax keeps 64-bit dtypes here and now."""
    return bool(cast(Any, jax.config).jax_enable_x64)


def jaxpr_as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """Return a traced program as a function of a flat list of arrays."""
    return jaxpr_as_fun(jaxpr)
