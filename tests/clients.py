"""Run the test suites of packages that take tensors on hybridflow: ``python -m tests.clients [--array-api PATH]``.

The suites are the packages' own, run as they are; ``pip install hybridflow[clients]`` has the versions that the book's
table is made of. autograd's tests are in its source distribution, which pip fetches into a temporary folder. PyTorch's
samples of its layers come with it; its suite is left out where there is no PyTorch. The array API suite is a checkout
(see `tests.conformance`), run only if its path is given.

Printed is a table with the number of tests passed and failed, and every failure with its reason if it is a known one.
The exit status is 1 if a failure is not known.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests import conformance


class Suite(NamedTuple):
    """A suite of another package.

    Attributes:
        name: what the table calls it.
        run: runs it and returns its result.
        known: patterns of the names of tests that fail, and why they must.
    """

    name: str
    run: Callable[[], conformance.Result]
    known: dict[str, str]


def of_einops() -> conformance.Result:
    """Run einops' tests with a backend that einops would have for hybridflow, as it has one for PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        return conformance.run_tests(
            ["-p", "tests.einops_backend", "--pyargs", "einops.tests"], Path(folder),
            {"EINOPS_TEST_BACKENDS": "hybridflow"},
        )


AUTOGRAD: dict[str, str] = {
    r"test_core::test_(eq|neq|leq|geq|lt|gt)": "a comparison has no gradient: asking for it is an error, not zeros",
    r"test_(logic::test_no_\w+_def|tests::test_check_vjp_.*)": "it adds rules to autograd's own primitives",
    r"test_builtins::test_isinstance": "a tensor is no numpy.ndarray",
    r"test_fft::test_rfftn_odd_not_implemented": "odd sizes, which autograd refuses, have a gradient here",
    r"test_linalg::test_(eigvalh_upper|svd_only_s).*": "UPLO= and compute_uv= are NumPy's; here hf.linalg.svdvals",
    r"test_misc::.*": "it traces with autograd's own boxes",
    r"test_numpy::test_cumsum_no_axis": "the standard's cumulative_sum wants an axis of a matrix",
    r"test_numpy::test_(simple_append_list.*|[rc]_.*)": "numpy.r_, c_ and append of lists read tensors; hf.concat",
    r"test_numpy::test_clip|test_numpy::test_diagonal|test_scipy::test_logsumexp[345]"
    r"|test_systematic::test_(moveaxis|repeat|tile|cross|pad)": "keywords of NumPy and SciPy alone",
    r"test_scipy::test_mvn_sing_cov": conformance.IMMUTABLE,
    r"test_scipy::test_mvn_(pdf|logpdf)": "allow_singular=, which JAX's function does not have",
    r"test_scipy::test_convolve.*": "axes= and dot_axes= are autograd's",
    r"test_scipy::test_(t_(log)?cdf.*|mvn_entropy|jn|yn|rgamma|[jy][01]|ive?|solve_banded)"
    r"|test_systematic::test_(real_ic|row_stack_.*)": "neither hybridflow nor JAX has the function",
    r"test_scipy::test_solve_sylvester": "JAX's function has no gradient",
    r"test_scipy::test_sqrtm": "the root of a real matrix is real, NaN where SciPy's becomes complex",
    r"test_scipy::test_erfc?|test_systematic::test_(max|min|var|std)": "no complex numbers: an error names the dtype",
}
TORCH: dict[str, str] = {
    r".*no_batch_dim\]|.*nn\.MaxPool2d-\w+-0-3d_input\]": "inputs have a batch axis",
    r".*nn\.AvgPool\dd.*_?divisor.*": "divisor_override= is absent",
    r".*nn\.AvgPool\dd.*stride_pad.*": "positions of the padding do not count in an average",
    r".*return_indices\]": "return_indices= is absent: a result is one tensor",
    r".*simple_average\]": "momentum=None is refused: averages move by a share",
    r".*(not_tracking_stats|tracking_stats)\]": "a batch norm keeps averages, an instance norm none",
    r".*not_bias\]": "bias=False is LayerNorm's alone",
    r".*nn\.(Layer|RMS)Norm-\w+-\d+-3d_.*": "one axis is normalised, the last",
    r".*nn\.Softplus.*beta.*": "beta= and threshold= are absent: softplus(beta * x) / beta",
    r".*Softmax.*scalar\]": "a tensor of shape () has no axes",
    r".*prob_target_label_smoothing.*": "labels add up to the example's weight, and so do smoothed ones",
    r".*nn\.LSTM.*proj_\d+\]": "proj_size= is absent",
}


def of_autograd() -> conformance.Result:
    """Run autograd's tests on hybridflow's functions and derivatives."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "autograd",
             f"autograd=={version('autograd')}", "-d", folder], check=True,
        )
        archive = next(Path(folder).glob("autograd-*.tar.gz"))
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        tests = Path(folder) / archive.name.removesuffix(".tar.gz") / "tests"
        return conformance.run_tests(
            ["-c", "/dev/null", "--rootdir", str(tests), "-p", "tests.autograd_shim", "-W", "ignore", str(tests)],
            tests, {},
        )


def of_torch() -> conformance.Result:
    """Run PyTorch's samples of its layers and losses."""
    layers = Path(__file__).with_name("torch_layers.py")
    return conformance.run_tests(["--noconftest", "-W", "ignore", str(layers)], layers.parent, {})


def of_consumers() -> conformance.Result:
    """Run functions of SciPy and scikit-learn on tensors and on arrays; the first that fails is the last that runs."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.array_api_consumers"],
        cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True, check=False,
    )
    failed = {"the next one": done.stderr.strip().splitlines()[-1]} if done.returncode else {}
    return conformance.Result(len(done.stdout.split()), 0, failed)


def suites(array_api: Path | None) -> list[Suite]:
    """Return the suites, the array API's in both modes if the path of its checkout is given."""
    found = [
        Suite(f"einops {version('einops')}", of_einops, {}),
        Suite(f"autograd {version('autograd')}", of_autograd, AUTOGRAD),
        Suite(f"SciPy {version('scipy')}, scikit-learn {version('scikit-learn')}", of_consumers, {}),
    ]
    if find_spec("torch"):
        found.append(Suite(f"PyTorch {version('torch')}", of_torch, TORCH))
    for compiled in (False, True) if array_api is not None else ():

        def run(compiled: bool = compiled) -> conformance.Result:
            assert array_api is not None
            return conformance.run_suite(array_api, compiled=compiled, examples=5)

        found.append(Suite(f"array API, {'compiled' if compiled else 'eager'}", run, conformance.KNOWN))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites and print what they gave; see the module's text.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description="Run other packages' tests.")
    parser.add_argument("--array-api", type=Path, help="a checkout of array-api-tests")
    options = parser.parse_args(arguments)
    print("| suite | passed | failed | skipped |\n|---|---|---|---|")
    reasons, unknown = list[str](), False
    for suite in suites(options.array_api):
        result = suite.run()
        print(f"| {suite.name} | {result.passed} | {len(result.failed)} | {result.skipped} |", flush=True)
        for test, error in sorted(result.failed.items()):
            reason = next((why for known, why in suite.known.items() if re.fullmatch(known, test)), None)
            reasons.append(f"- {suite.name}, {test}: {reason or f'NOT KNOWN: {error}'}")
            unknown |= reason is None
    print(*reasons, sep="\n")
    return int(unknown)


if __name__ == "__main__":
    sys.exit(main())
