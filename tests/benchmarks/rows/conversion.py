"""The cost of converting Python control flow, compared with the tracing that follows."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import hybridflow as hf
from hybridflow.convert import converted

from ..registry import Case, row


def _model(x: Any, scale: Any) -> Any:
    """Run branches, loops and early exits as in a training step; each call converts or traces it once."""
    total = x[0] * 0.0
    for value in x:
        if value < 0:
            continue
        if value > 100:
            break
        total = total + value * scale
    steps = 0
    while total > 1.0 and steps < 20:
        total = total / 2 if total > 4.0 else total - 0.25
        steps += 1
    if total < 0:
        total = -total
    elif total < 0.5:
        return total * 2, steps
    return total, steps


@row("conversion of a function, against tracing it", aims={"tracing": 1.0})
def conversion(case: Case) -> None:
    x, scale = hf.asarray(case.normal(16)), hf.asarray(0.5)
    code = _model.__code__

    def fresh() -> FunctionType:
        return FunctionType(code.replace(co_filename=code.co_filename), globals())

    def convert(function: FunctionType) -> None:
        converted(function)

    def trace(_: Any) -> None:
        hf.compile(_model, max_traces=1).graph(x, scale)

    case.ours(convert, prepare=fresh, calls=200)
    case.peer("tracing", trace, prepare=lambda: None, calls=50)
