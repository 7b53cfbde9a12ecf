"""Every row of the table of edge cases, eager and compiled; special values of complex functions; the table itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.testing.calls import difference
from hybridflow.testing.edge_cases import EDGE_CASES, EdgeCase, table

ROWS = [pytest.param(case, id=f"{number}: {case.call}") for number, case in enumerate(EDGE_CASES)]


def eager(case: EdgeCase) -> Any:
    return case.run(hf)


def compiled(case: EdgeCase) -> Any:
    if not case.operands:
        return compiled_on_constants(case)
    return hf.compile(lambda *operands: case.run(hf, *operands))(*map(hf.asarray, case.operands))


def compiled_on_constants(case: EdgeCase) -> Any:
    return hf.compile(lambda: case.run(hf))()


@pytest.mark.parametrize("mode", [eager, compiled, compiled_on_constants])
@pytest.mark.parametrize("case", ROWS)
def test_edge_case(case: EdgeCase, mode: Any):
    if isinstance(case.expected, type):
        with pytest.raises(case.expected):
            mode(case).numpy()
        return
    found = mode(case).numpy()
    size = np.abs(case.expected.astype(np.float32)) if case.ulp else np.zeros(())
    text = difference(found, case.expected, case.ulp * np.spacing(size))
    if text is not None and case.flushed is not None and mode is not eager:
        text = difference(found, case.flushed, 0)
    assert text is None, f"{case.rule}: {text}"


def test_the_table_shows_every_row():
    lines = table().splitlines()
    assert len(lines) == len(EDGE_CASES) + 2
    assert "| 0 ** -1 is 0 | `x ** y` | i32[1] [0], i32[] -1 | i32[1] [0] |" in lines
    assert all(case.rule in line and f"`{case.call}`" in line for case, line in zip(EDGE_CASES, lines[2:], strict=True))
    assert len(table("casts").splitlines()) < len(lines)


PARTS = [np.nan, -np.inf, -1.5, -1e-5, -0.0, 0.0, 1e-5, 1.5, np.inf]
FUNCTIONS = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p",
    "log2", "negative", "sin", "sinh", "sqrt", "tan", "tanh",
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_functions_have_one_result_on_cuts_and_for_special_values(name: str):
    z = np.array([complex(a, b) for a in PARTS for b in PARTS])
    fn = getattr(hf, name)
    a, b = fn(z).numpy(), hf.compile(fn)(z).numpy()
    for one, other in ((a.real, b.real), (a.imag, b.imag)):
        with np.errstate(invalid="ignore"):
            text = difference(other, one, 1e-13 * np.abs(np.nan_to_num(one)) + 1e-300)
        assert text is None, text
