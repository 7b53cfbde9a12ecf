"""The automatic checks of every op on every sample of its own."""

from __future__ import annotations

import pytest

import hybridflow as hf  # noqa: F401  (fills the registry)
from hybridflow.core.op import REGISTRY, No, Sample
from hybridflow.testing.calls import capture
from hybridflow.testing.checks import CALL_CHECKS, OP_CHECKS, samples_of

OPS = sorted(name for name, op in REGISTRY.items() if not isinstance(op.samples, No))
CASES = [
    (name, number)
    for name in OPS
    for number, sample in enumerate(samples_of(REGISTRY[name], 0))
    if isinstance(sample, Sample)
]


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{number}" for name, number in CASES])
def test_calls(name: str, number: int):
    """All checks of a sample are one test: they share what was compiled, and a test takes time itself."""
    sample = samples_of(REGISTRY[name], 0)[number]
    assert isinstance(sample, Sample)
    for call in capture(REGISTRY[name], sample):
        for check in CALL_CHECKS.values():
            check(call)


@pytest.mark.parametrize("name", OPS)
def test_record(name: str):
    for check in OP_CHECKS.values():
        check(REGISTRY[name], 0)


def test_ops_without_samples_say_why():
    for op in REGISTRY.values():
        if isinstance(op.samples, No) and op.public is not None:
            assert len(op.samples.why) > 10, op.name
