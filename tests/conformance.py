"""Run the Array API standard's public suite on hybridflow: ``python -m tests.conformance PATH [--compiled]``.

PATH is a checkout of https://github.com/data-apis/array-api-tests with its submodule; besides what hybridflow's own
tests need, it wants ``pip install ndindex pytest-json-report``. The suite's tests are its own, run as they are, in a
process of their own; nothing of them is kept here.

With ``--compiled`` each function whose result's shape follows from its arguments' shapes goes through `hf.compile`;
operators and methods stay eager (see `tests.compiled_namespace`).

Printed are the number of tests passed, failed and skipped, and every failure, with its reason if it is a known one
(`KNOWN`). The exit status is 1 if a failure is not known.

Examples are drawn without randomness, so two runs give the same result; with the five examples per test that
are the default they take a few minutes. ``-k WORDS`` and further arguments go to pytest, as do names like
``array_api_tests/test_fft.py``.

Example::

    git clone --recursive https://github.com/data-apis/array-api-tests
    python -m tests.conformance array-api-tests
    python -m tests.conformance array-api-tests --compiled -k "sort or unique"
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

IMMUTABLE = "tensors are immutable: x[key] = value is an error that names x.at[key].set(value)"
KNOWN: dict[str, str] = {
    "test_array_object::test_setitem": IMMUTABLE,
    "test_array_object::test_setitem_masking": IMMUTABLE,
    "test_creation_functions::test_asarray_arrays": f"it writes to its input to see what copy= does; {IMMUTABLE}",
}
"""Tests that fail, and why they must."""


@dataclass
class Result:
    """What a run of the suite gave.

    Attributes:
        passed, skipped: how many tests.
        failed: the failed tests' names, each with the first line of its error.
    """

    passed: int
    skipped: int
    failed: dict[str, str]


def run_suite(path: Path, *, compiled: bool, examples: int, more: Sequence[str] = ()) -> Result:
    """Run the suite in a process of its own.

    Args:
        path: the checkout.
        compiled: whether functions are compiled.
        examples: how many examples every property is tried on.
        more: further arguments for pytest.

    Raises:
        FileNotFoundError: there is no suite at the path.
        RuntimeError: the suite did not run.
    """
    if not (path / "array_api_tests").is_dir():
        raise FileNotFoundError(f"{path} is no checkout of array-api-tests: it has no folder array_api_tests")
    tests = [argument for argument in more if argument.startswith("array_api_tests")] or ["array_api_tests"]
    rest = [argument for argument in more if argument not in tests]
    arguments = [*tests, "--derandomize", "--disable-deadline", f"--max-examples={examples}", *rest]
    module = "tests.compiled_namespace" if compiled else "hybridflow"
    return run_tests(arguments, path, {"ARRAY_API_TESTS_MODULE": module})


def run_tests(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Result:
    """Run tests of another package in a process of its own, which imports this hybridflow.

    Args:
        arguments: the arguments of pytest.
        folder: where it runs.
        environment: what to add to the environment.

    Raises:
        RuntimeError: the suite did not run.
    """
    root = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-q", "--tb=short", "--disable-warnings", "-p", "no:cacheprovider",
            f"--junitxml={report}", *arguments,
        ]
        done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths, **environment},
                              capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not report.exists():
            raise RuntimeError(f"the suite did not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return read_report(report.read_text(encoding="utf-8"))


def read_report(text: str) -> Result:
    """Read what pytest wrote with ``--junitxml``."""
    result = Result(0, 0, {})
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('array_api_tests.')}::{case.get('name')}"
        found = [child for child in case if child.tag in ("failure", "error")]
        if found:
            lines = (found[0].get("message") or "").strip().splitlines()
            result.failed[name] = lines[0] if lines else found[0].tag
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and print what it gave; see the module's text.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="Run the Array API suite.")
    parser.add_argument("path", type=Path, help="a checkout of array-api-tests")
    parser.add_argument("--compiled", action="store_true", help="send functions through hf.compile")
    parser.add_argument("--max-examples", type=int, default=5, help="examples per property")
    options, more = parser.parse_known_args(arguments)
    try:
        result = run_suite(options.path, compiled=options.compiled, examples=options.max_examples, more=more)
    except (FileNotFoundError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    total = result.passed + len(result.failed)
    mode = "compiled" if options.compiled else "eager"
    print(f"{mode}: {result.passed} of {total} passed, {len(result.failed)} failed, {result.skipped} skipped")
    for name, error in sorted(result.failed.items()):
        print(f"  {name}\n    {KNOWN.get(name) or f'NOT KNOWN: {error}'}")
    return int(bool(result.failed.keys() - KNOWN.keys()))


if __name__ == "__main__":
    sys.exit(main())
