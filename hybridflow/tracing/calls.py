"""Checks and conversions of every call of a compiled function, whether it is traced or runs as plain Python."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from hybridflow.core.dtypes import complex128, float64, int64
from hybridflow.core.errors import ArgumentTypeError, DepthError, MutationError, NumberRangeError
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards.guards import describe
from hybridflow.guards.order import has_order, in_order_of
from hybridflow.guards.signature import LEAF, Signature, flatten_again
from hybridflow.nested.tensor_array import looking

_ARRAYS = (np.ndarray, np.generic, jax.Array)
_NUMBERS = (bool, int, float, complex)
_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@contextmanager
def depth_explained(name: str) -> Generator[None]:
    """Explain the error if Python's recursion limit is reached while a function is traced or compiled.

    Raises:
        DepthError: the limit was reached.
    """
    try:
        yield
    except DepthError:
        raise
    except RecursionError as error:
        limit = sys.getrecursionlimit()
        raise DepthError(
            f"compile: {name!r} is nested too deep: Python's limit of {limit} calls inside each other was "
            "reached while it was compiled",
            got="recursion, of which every level takes some 15 calls while it is traced",
            hint="Write a loop (while, for, hf.while_loop), or call sys.setrecursionlimit with a larger count."
        ) from error


def keeps_open_size(name: str) -> MutationError:
    """Return the error for a function that stores a size outside itself, which `input_signature` leaves open."""
    return MutationError(
        f"compile: {name} stores a size outside of itself that its signature leaves open",
        hint="Return it, or leave the size out of input_signature: it is then the number of each call."
    )


def is_number(leaf: Any) -> bool:
    """Whether a leaf of a result is a number of Python, or stands for one; NumPy's scalars are arrays."""
    return isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic)


def output_tensor(label: str, leaf: Any) -> Tensor:
    """Return a leaf of a function's result as a tensor.

    Raises:
        ArgumentTypeError: the leaf is no tensor, number or array.
    """
    if type(leaf) is int and not _fits(leaf):
        return asarray(leaf, dtype=int64)
    if type(leaf) is float and not _fits(leaf):
        return asarray(leaf, dtype=float64)
    if type(leaf) is complex and not (_fits(leaf.real) and _fits(leaf.imag)):
        return asarray(leaf, dtype=complex128)
    if type(leaf) is TracedNumber:
        leaf = leaf.of(_fitting, (leaf,))
    if isinstance(leaf, (Tensor, Variable, *_NUMBERS, *_ARRAYS)):
        return as_tensor(leaf)
    raise ArgumentTypeError(f"compile: {label} returned a {type(leaf).__name__}, which is no tensor",
                            got=describe(leaf)[:80],
                            hint="Return tensors, numbers, None and structures of them; compute the rest outside.")


def _fits(number: float) -> bool:
    """Whether float32 holds a float, perhaps rounded, or int32 an int."""
    if type(number) is int:
        return -(2**31) <= number < 2**31
    return number == 0 or not math.isfinite(number) or _SMALLEST <= abs(number) <= _LARGEST


def _fitting(number: float) -> float:
    """Return a number that float32 holds, or int32 if it is an int.

    Raises:
        NumberRangeError: it does not.
    """
    if _fits(number):
        return number
    raise NumberRangeError(f"compile: a Python {type(number).__name__} among the results is out of the range of "
                           f"{type(number).__name__}32, which it is returned in", got=str(number),
                           hint=f"Return hf.asarray(number, dtype=hf.{type(number).__name__}64).")


def check_unchanged(
    label: str, arguments: dict[str, Any], values: list[Any], signature: Signature, static: frozenset[str]
) -> None:
    """Raise if the function changed a list or dict among its arguments: the caller's would stay unchanged.

    Raises:
        MutationError: the structure or a leaf of an argument has changed.
    """
    names, trees, _ = signature.key
    position = 0
    for name, tree in zip(names, trees, strict=True):
        if name in static or tree == LEAF:
            position += 1
            continue
        before = values[position : position + tree.num_leaves]
        position += tree.num_leaves
        _require_same(label, name, arguments[name], before, tree)


def _require_same(label: str, name: str, value: Any, before: list[Any], tree: Any) -> None:
    now: Any
    try:
        with looking():
            leaves, now = flatten_again(value)
        same = now == tree and all(map(operator.is_, leaves, before))
    except (TypeError, ValueError) as error:  # such as keys that can no longer be sorted
        same, now = False, str(error).splitlines()[0]
    if not same:
        raise MutationError(f"compile: {label} changed its argument {name!r}, which a compiled call cannot do",
                            got=f"{tree} before, {now} after", hint="Build a new structure and return it.")


def call_as_python(
    label: str, call: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], static: frozenset[str]
) -> Any:
    """Call a function with arguments that an `input_signature` has cast, which it must not change."""
    before = [(name, *flatten_again(value)) for name, value in arguments.items() if name not in static]
    result = call(arguments)
    for name, leaves, tree in before:
        if tree != LEAF:
            _require_same(label, name, arguments[name], leaves, tree)
    return result


def as_outputs(label: str, result: Any) -> Any:
    """Return the result of a plain Python call as a compiled call would: tensors and numbers in the same structure."""
    if type(result) is Tensor:
        return result
    leaves = jax.tree_util.tree_map(
        lambda leaf: leaf if type(leaf) is Tensor or is_number(leaf) else output_tensor(label, leaf), result
    )
    return in_order_of(result, leaves) if has_order(result) else leaves
