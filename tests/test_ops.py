"""The automatic checks of every op on every sample of its own.

The checks of a sample are one test: they share what was traced and compiled, and a test takes time itself. What takes
most of that time, to compile, is a test of its own, so that the rest of a slow sample is quick. A failure names the
check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from hybridflow import optim, quantize  # noqa: F401  (they fill the registry)
from hybridflow.core.op import REGISTRY, No, Sample, Stops
from hybridflow.testing.calls import Call, capture
from hybridflow.testing.checks import CALL_CHECKS, OP_CHECKS, samples_of

OPS = sorted(name for name, op in REGISTRY.items() if not isinstance(op.samples, No))
COMPILED = {"vjp_is_jax_vjp", "compiled_is_eager"}
"""The checks that compile gradients."""


def facets() -> list[Any]:
    """Return each sample of each op, with the checks that compile gradients and with the others."""
    found: list[Any] = []
    for name in OPS:
        smooth = not isinstance(REGISTRY[name].vjp, No | Stops)
        good = {number: one for number, one in enumerate(samples_of(REGISTRY[name], 0)) if isinstance(one, Sample)}
        for number, sample in good.items():
            first = number == min(good) and not REGISTRY[name].has("random")  # draws have tests of their own
            marks = [pytest.mark.always] if first else []
            found.append(pytest.param(name, number, "values", id=f"{name}-{number}-values", marks=marks))
            if smooth and sample.gradient:
                found.append(pytest.param(name, number, "gradients", id=f"{name}-{number}-gradients"))
    return found


@lru_cache(maxsize=2)
def calls_of(name: str, number: int) -> list[Call]:
    """Return the calls of a sample, which its facets share."""
    sample = samples_of(REGISTRY[name], 0)[number]
    assert isinstance(sample, Sample)
    return capture(REGISTRY[name], sample)


def run(checks: dict[str, Callable[..., None]], facet: bool, *args: Any) -> None:
    """Run the checks that compile gradients, or the others."""
    for name, check in checks.items():
        if (name in COMPILED) == facet:
            try:
                check(*args)
            except Exception as error:
                error.add_note(f"This is the check {name}.")
                raise


@pytest.mark.parametrize(("name", "number", "facet"), facets())
def test_calls(name: str, number: int, facet: str):
    for call in calls_of(name, number):
        run(CALL_CHECKS, facet == "gradients", call)


@pytest.mark.parametrize("facet", ["record", "compiled"])
@pytest.mark.parametrize("name", OPS)
def test_record(name: str, facet: str):
    run(OP_CHECKS, facet == "compiled", REGISTRY[name], 0)


def test_the_checks_that_compile_are_checks():
    assert set(CALL_CHECKS) | set(OP_CHECKS) >= COMPILED


def test_ops_without_samples_say_why():
    for op in REGISTRY.values():
        if isinstance(op.samples, No) and op.public is not None:
            assert len(op.samples.why) > 10, op.name
