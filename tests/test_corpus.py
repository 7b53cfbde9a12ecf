"""Every function of the corpus, eager and compiled: the same results, gradients and errors."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from corpus import CASES, Case
from modes import same
from reference import without_xla

import hybridflow as hf


def tensors(arguments: tuple[Any, ...]) -> list[hf.Tensor]:
    return [hf.asarray(np.asarray(one, np.float64) if isinstance(one, np.float64) else one) for one in arguments]


def outcome(function: Any, arguments: list[Any]) -> Any:
    """Return a call's result with Python numbers as the tensors they become, or its error."""
    try:
        result = function(*arguments)
    except Exception as error:
        attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
        return type(error).__mro__, str(error), attributes
    return jax.tree_util.tree_map(hf.asarray, result)


def floats(result: Any) -> list[hf.Tensor]:
    return [leaf for leaf in jax.tree_util.tree_leaves(result) if np.issubdtype(leaf.dtype, np.floating)]


def gradients(function: Any, arguments: list[hf.Tensor]) -> Any:
    wanted = [one for one in arguments if np.issubdtype(one.dtype, np.floating)]
    with hf.GradientTape() as tape:
        tape.watch(wanted)
        result = jax.tree_util.tree_map(hf.asarray, function(*arguments))
        total = sum(hf.sum(leaf).astype(hf.float32) for leaf in floats(result))
    return tape.gradient(total, wanted, unconnected_gradients="zero")


def check(case: Case, signature: list[hf.TensorSpec] | None = None) -> None:
    compiled = hf.compile(case.function, input_signature=signature)
    for call in case.calls:
        arguments = tensors(call)
        hf.random.seed(1)
        eager = outcome(case.function, arguments)
        hf.random.seed(1)
        found = outcome(compiled, arguments)
        if isinstance(eager, tuple) and len(eager) == 3 and isinstance(eager[1], str):
            assert eager[0][0] in found[0], found
            assert found[1].startswith(eager[1]) or not eager[1], found
            assert found[2] == eager[2]
            continue
        same(eager, found, rtol=2e-6)
        if case.grad:
            same(gradients(case.function, arguments), gradients(compiled, arguments), rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.function.__name__)
def test_corpus(case: Case):
    check(case)


WITH_ROWS = [case for case in CASES if any(np.ndim(one) for one in case.calls[0])]


@pytest.mark.parametrize("case", WITH_ROWS, ids=lambda case: case.function.__name__)
def test_corpus_with_open_sizes(case: Case):
    signature = [hf.TensorSpec([None] * one.ndim, one.dtype) for one in tensors(case.calls[0])]
    with without_xla():
        check(case, signature)


def test_there_are_enough():
    assert len(CASES) >= 150
