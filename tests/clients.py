"""Run the test suites of packages that take tensors on hybridflow: ``python -m tests.clients [--array-api PATH]``.

The suites are the packages' own, run as they are; ``pip install hybridflow[clients]`` has the versions that the book's
table is made of. The array API suite is a checkout (see `tests.conformance`), run only if its path is given.

Printed is a table with the number of tests passed and failed, and every failure with its reason if it is a known one.
The exit status is 1 if a failure is not known.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests import conformance


class Suite(NamedTuple):
    """A suite of another package.

    Attributes:
        name: what the table calls it.
        run: runs it and returns its result.
        known: the tests that fail, and why they must.
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
        Suite(f"SciPy {version('scipy')}, scikit-learn {version('scikit-learn')}", of_consumers, {}),
    ]
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
            reasons.append(f"- {suite.name}, {test}: {suite.known.get(test) or f'NOT KNOWN: {error}'}")
            unknown |= test not in suite.known
    print(*reasons, sep="\n")
    return int(unknown)


if __name__ == "__main__":
    sys.exit(main())
