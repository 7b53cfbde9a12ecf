"""Random programs whose Variables are captured, aliased, kept and swapped between calls: see `variable_programs`.

More of them than in CI: ``pytest tests/test_variable_programs.py --hypothesis-profile=thorough``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from variable_programs import history, stateful

import hybridflow as hf


def same(a: Any, b: Any) -> bool:
    """Whether two histories, or parts of them, are the same but for rounding."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    return a == b or (isinstance(a, float) and abs(a - b) < 1e-12)


@settings(max_examples=settings().max_examples // 3)
@given(st.integers(0, 2**40))
def test_histories_are_the_same(seed: int) -> None:
    program = stateful(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.RetraceWarning)
        warnings.simplefilter("ignore", hf.EffectWarning)
        eager, compiled = history(program, lambda fn: fn), history(program, hf.compile)
    if len(compiled) < len(eager):  # refused, with a reason: the rest was not run
        eager, compiled = eager[: len(compiled) - 2], compiled[:-2]
    assert same(eager, compiled), program.text
