"""The arguments of each size of a sweep."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from hybridflow.analysis.parity import Call
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import DType, is_integer
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.spec import TensorSpec, format_spec
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.core.units import format_bytes


def random_tensor(shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Tensor:
    """Return normally distributed floats, integers from 0 to 9, or bools.

    Args:
        shape: its sizes.
        dtype: its dtype.
        rng: the source of random numbers.

    Raises:
        ArgumentError: it takes more memory than the machine has.
    """
    needed, there = math.prod(shape) * dtype.itemsize, _memory()
    if needed > there:
        raise ArgumentError(
            f"a random {format_spec(tuple(shape), dtype)} takes {format_bytes(needed)}, and this machine has "
            f"{format_bytes(there)} of memory", hint="Take smaller sizes."
        )
    if dtype == np.bool_:
        return asarray(rng.integers(0, 2, shape).astype(bool))
    return asarray((rng.integers(0, 10, shape) if is_integer(dtype) else rng.standard_normal(shape)).astype(dtype))


def _memory() -> int:
    """Return how many bytes of memory the machine has, or a number that nothing exceeds where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def checked(sizes: Sequence[int]) -> list[int]:
    """Return sizes in ascending order.

    Raises:
        ArgumentError: there is none, one is not a positive whole number, or one comes twice.
    """
    ascending = [size for size in cast("Sequence[Any]", sizes)]
    wrong = [size for size in ascending if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1]
    if wrong or not ascending or len(set(ascending)) < len(ascending):
        raise ArgumentError("compare: sizes= takes different whole numbers from 1 on", got=repr(sizes),
                            hint="For example sizes=[16, 64, 256, 1024].")
    return sorted(map(int, ascending))


def calls_of_sizes(
    sizes: Sequence[int], inputs: Callable[[int], Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int, Call]:
    """Return the arguments for each size.

    Args:
        sizes: the sizes.
        inputs: makes the arguments of a size: a tuple of them, a dict of named ones, or a single one.
        args, kwargs: the arguments, if there is no such function: every None in the shape of a `TensorSpec` is the
            size, and the tensor is random.

    Raises:
        ArgumentError: both or neither of them, or nothing that depends on the size.
        ArgumentTypeError: `inputs` cannot be called.
    """
    if inputs is None:
        return {size: _filled(size, args, kwargs) for size in checked(sizes)}
    if not callable(inputs):
        raise ArgumentTypeError("compare: inputs= is a function of the size", got=repr(inputs), hint=_HINT)
    if args or kwargs:
        raise ArgumentError("compare: arguments are given beside inputs=, which makes all of them", hint=_HINT)
    return {size: split(inputs(size)) for size in checked(sizes)}


_HINT = "For example inputs=lambda n: (hf.ones((n, 64)),)."


def split(value: Any) -> Call:
    """Return arguments from a tuple or list of them, a dict of named ones, or a single one."""
    if isinstance(value, dict):
        return (), cast("dict[str, Any]", value)
    if isinstance(value, tuple | list):
        return tuple(cast("list[Any]", value)), {}
    return (value,), {}


def _filled(size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    rng = np.random.default_rng(0)
    opened = False

    def fill(leaf: Any) -> Any:
        nonlocal opened
        if not isinstance(leaf, TensorSpec):
            return leaf
        opened = opened or any(type(one) is Dim or one is None for one in leaf.shape)
        return random_tensor([one if type(one) is int else size for one in leaf.shape], leaf.dtype, rng)

    filled = jax.tree_util.tree_map(fill, (args, kwargs), is_leaf=lambda leaf: isinstance(leaf, TensorSpec))
    if not opened:
        raise ArgumentError(
            "compare: none of the arguments depends on the size",
            hint="Pass inputs=, a function of the size, or hf.TensorSpec with None where the size goes."
        )
    return filled
