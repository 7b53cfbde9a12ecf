"""Every operation's samples, made eight times as long along axis 0 and split over eight devices."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.op import REGISTRY, Op, Sample
from hybridflow.later import register_rest
from hybridflow.testing.checks import samples_of

register_rest()
WHOLE = "HYBRIDFLOW_MESH_SAMPLES" in os.environ
"""Whether all samples of all operations are run, which takes minutes, or one of every fourth operation."""
GROUP = 24
"""The number of samples in a program: compiling one program for each would take long."""
SKIPPED = {"effect", "nested", "foreign", "source"}
"""Operations with effects and graphs are called by users' code, and tested with that."""


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def tiled(value: Any) -> Any:
    """Return an array eight times as long along axis 0, anything else as it is."""
    if not is_array(value) or not np.ndim(value):
        return value
    return np.tile(value, (8, *[1] * (value.ndim - 1)))


def call(op: Op, arrays: list[Any], rest: list[Any], tree: Any) -> list[Any]:
    """Call the public function; `arrays` has None where the sample has no array."""
    leaves = [other if array is None else array for array, other in zip(arrays, rest, strict=True)]
    args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
    made = op.public(*args, **kwargs)
    return [leaf for leaf in jax.tree_util.tree_leaves(made) if isinstance(leaf, hf.Tensor)]


def eligible() -> list[tuple[str, Op]]:
    """Return the operations to call, by name."""
    found = [
        (name, op) for name, op in sorted(REGISTRY.items())
        if op.public is not None and SKIPPED.isdisjoint(op.traits) and samples_of(op, 0)
    ]
    return found if WHOLE else found[::4]


def programs() -> list[tuple[str, Op, list[Any], list[Any], Any]]:
    """Return the samples, as long as the operation takes them, each with its operation and structure."""
    found = []
    for name, op in eligible():
        samples = [one for one in samples_of(op, 0) if isinstance(one, Sample)]
        for number, sample in enumerate(samples if WHOLE else samples[:1]):
            leaves, tree = jax.tree_util.tree_flatten((tuple(sample.args), dict(sample.kwargs)))
            rest = [None if is_array(leaf) else leaf for leaf in leaves]
            for change in (tiled, lambda value: value):
                arrays = [change(leaf) if is_array(leaf) else None for leaf in leaves]
                try:
                    if not call(op, arrays, rest, tree):
                        break
                    traced = hf.compile(lambda a, op=op, rest=rest, tree=tree: call(op, a, rest, tree))
                    traced.lower(arrays).as_text("stablehlo")
                except Exception:
                    continue  # its arguments must have certain sizes, or it gives other types when compiled
                found.append((f"{name} {number}", op, arrays, rest, tree))
                break
    return found


ALL = programs()


@pytest.mark.parametrize("first", range(0, len(ALL), GROUP))
def test_samples_are_those_of_one_device(first):
    mesh = hf.Mesh({"data": 8, "model": 1, "stage": 1})
    chosen = ALL[first : first + GROUP]

    def run(arrays):
        return [call(op, given, rest, tree) for given, (_, op, _, rest, tree) in zip(arrays, chosen, strict=True)]

    given = [arrays for _, _, arrays, _, _ in chosen]
    hf.random.seed(0)
    alone = hf.compile(run, dynamic=False)(given)
    hf.random.seed(0)
    together = hf.compile(run, dynamic=False, mesh=mesh, batch="data")(given)
    wrong = []
    for (label, *_), one, many in zip(chosen, alone, together, strict=True):
        for a, b in zip(one, many, strict=True):
            x, y = a.numpy(), b.numpy()
            if x.dtype.kind in "fcV":
                wide = np.complex128 if x.dtype.kind == "c" else np.float64
                eps = {2: 1e-2, 4: 3e-5, 8: 3e-5}.get(x.dtype.itemsize, 1e-10)
                eps = 1e-10 if x.dtype == np.float64 else eps
                x, y = x.astype(wide), y.astype(wide)
                scale = np.max(np.abs(x[np.isfinite(x)]), initial=1.0)
                if not np.allclose(x, y, rtol=eps, atol=eps * scale, equal_nan=True):
                    wrong.append(label)
            elif not np.array_equal(x, y):
                wrong.append(label)
    assert not wrong, wrong


def test_nearly_all_operations_are_among_them():
    missing = {name for name, _ in eligible()} - {op.name for _, op, *_ in ALL}
    assert len(missing) <= 0.1 * len(eligible()), sorted(missing)
