"""The jobs of science, eager and compiled, against SciPy's functions and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf

from .science import JOBS, OURS


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_right_eager_and_compiled(name: str):
    job = JOBS[name]
    arrays = job.arrays(np.random.default_rng(0), True)

    def run(*arrays: Any) -> Any:
        return job.run(OURS, *arrays)

    expected = hf.tree.leaves(job.expected(*arrays))
    for way in (run, hf.compile(run)):
        found = hf.tree.leaves(way(*map(hf.asarray, arrays)))
        assert len(found) == len(expected)
        for one, right in zip(found, expected, strict=True):
            scale = float(np.abs(right).max())
            np.testing.assert_allclose(one.numpy(), right, rtol=0, atol=job.tolerance * scale)
