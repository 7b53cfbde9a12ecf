"""What rounding decides in linear algebra is decided alike in both modes, whatever kernels the processor selects.

OpenBLAS brings kernels for each kind of processor; those of another kind round differently, and so a difference of
eager and compiled code may show on some machines only. Each kind that this machine can run has its turn here.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.processes import run_python

_NEEDS = {
    "Prescott": {"pni"},
    "Sandybridge": {"avx"},
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
}
"""By OpenBLAS's name of a kind of processor, what Linux says of one that can run its kernels."""


def kinds_here() -> list[str]:
    """Return the kinds of processors whose kernels this machine can run."""
    information = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not information.exists():
        return []
    lines = information.read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return [kind for kind, needs in _NEEDS.items() if needs <= set(flags.split())]


@pytest.mark.parametrize("kind", kinds_here())
def test_rounding_decides_alike_with_the_kernels_of(kind: str) -> None:
    run_python(
        """
        import sys

        sys.path.insert(0, "tests")
        import test_blocks
        import test_linalg

        for name in test_blocks.DECOMPOSITIONS:
            test_blocks.test_what_a_matrix_does_not_determine_is_the_same(name)
        for name in test_linalg.VERDICTS:
            test_linalg.check_verdicts(name, 8)
        """,
        OPENBLAS_CORETYPE=kind,
        HYBRIDFLOW_CACHE_DIR="off",
    )
