"""Running a function in both modes, and independent derivatives to hold results against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import hybridflow as hf


def both(fn: Callable[..., Any], *args: Any, rtol: float = 2e-6, atol: float = 1e-6) -> Any:
    """Run a function eagerly and compiled, require one result, and return the eager one."""
    eager = fn(*args)
    compiled = hf.compile(fn)(*args)
    same(eager, compiled, rtol=rtol, atol=atol)
    return eager


def program(text: str, path: Path, **names: Any) -> dict[str, Any]:
    """Write a program to a file, so that its source can be found, run it, and return its names."""
    path.write_text(text, encoding="utf-8")
    exec(compile(text, str(path), "exec"), names)
    return names


def same(a: Any, b: Any, *, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    """Require equal structures, dtypes, shapes and Nones, and values up to rounding."""
    leaves, tree = jax.tree_util.tree_flatten(a, is_leaf=lambda x: x is None)
    others, other_tree = jax.tree_util.tree_flatten(b, is_leaf=lambda x: x is None)
    assert tree == other_tree
    for one, other in zip(leaves, others, strict=True):
        assert (one is None) == (other is None), (a, b)
        if one is None:
            continue
        x, y = np.asarray(one), np.asarray(other)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x, np.complex128), np.asarray(y, np.complex128), rtol=rtol, atol=atol)


def close(found: Any, expected: Any, *, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    """Require values up to rounding, leaf by leaf; dtypes are not compared."""
    leaves, expected_leaves = jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected)
    assert len(leaves) == len(expected_leaves)
    for one, other in zip(leaves, expected_leaves, strict=True):
        assert np.shape(np.asarray(one)) == np.shape(np.asarray(other))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=atol)


def central(fn: Callable[..., Any], *args: np.ndarray[Any, Any], step: float = 1e-6) -> list[np.ndarray[Any, Any]]:
    """Return the central differences of a scalar function of float64 arrays, for every argument."""
    result: list[np.ndarray[Any, Any]] = []
    for position, array in enumerate(args):
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends: list[float] = []
            for sign in (1.0, -1.0):
                moved = array.copy()
                moved[index] += sign * step
                ends.append(float(fn(*args[:position], moved, *args[position + 1 :])))
            gradient[index] = (ends[0] - ends[1]) / (2 * step)
        result.append(gradient)
    return result


def tensor(*numbers: float, dtype: Any = np.float32) -> hf.Tensor:
    """Make a tensor of one dimension."""
    return hf.asarray(np.array(numbers, dtype=dtype))


def answer(f: Any, *args: Any) -> Any:
    """Return the dtype and the values of a result, or the type and the text of the error."""
    try:
        result = f(*args)
    except Exception as error:
        return type(error), str(error)
    return result.dtype, result.tolist()
