"""The automatic checks of every op on every sample of its own."""

from __future__ import annotations

from functools import cache

import pytest

import hybridflow as hf  # noqa: F401  (fills the registry)
from hybridflow.core.op import REGISTRY, No, Sample
from hybridflow.testing.calls import Call, capture
from hybridflow.testing.checks import CALL_CHECKS, OP_CHECKS, samples_of

OPS = sorted(name for name, op in REGISTRY.items() if not isinstance(op.samples, No))
CASES = [
    (name, number)
    for name in OPS
    for number, sample in enumerate(samples_of(REGISTRY[name], 0))
    if isinstance(sample, Sample)
]


@cache
def calls(name: str, number: int) -> list[Call]:
    sample = samples_of(REGISTRY[name], 0)[number]
    assert isinstance(sample, Sample)
    return capture(REGISTRY[name], sample)


@pytest.mark.parametrize("check", CALL_CHECKS)
@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{number}" for name, number in CASES])
def test_call(name: str, number: int, check: str):
    for call in calls(name, number):
        CALL_CHECKS[check](call)


@pytest.mark.parametrize("check", OP_CHECKS)
@pytest.mark.parametrize("name", OPS)
def test_record(name: str, check: str):
    OP_CHECKS[check](REGISTRY[name], 0)


def test_ops_without_samples_say_why():
    for op in REGISTRY.values():
        if isinstance(op.samples, No) and op.public is not None:
            assert len(op.samples.why) > 10, op.name
