"""Fixed seeds, how many examples hypothesis takes, marks that skip, and which tests a run takes by how long they are.

A test that takes more than `QUICK` seconds of processor time is slow: `slow.txt` lists them, as ``pytest --all
--renew-slow`` measured them. A run takes all that are quick and, of the slow cases of each test, the first one if it
takes no more than `FIRST` seconds; cases with the mark `always` run, however slow. A run names those that took more
than `LONG` and are not in the list.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

os.environ["HYBRIDFLOW_CACHE_DIR"] = "off"  # tests of the store have directories of their own

import jax
import numpy as np
import pytest
from hypothesis import settings

import hybridflow as hf
from hybridflow.core.context import CONTEXT
from hybridflow.core.device import default_is_host
from tests import stand_in

settings.register_profile("ci", max_examples=60, derandomize=True, deadline=None)
settings.register_profile("thorough", max_examples=3000, deadline=None)
settings.load_profile("ci")

QUICK, FIRST, LONG = 0.2, 0.3, 0.5
SLOW = Path(__file__).with_name("slow.txt")
SECONDS = "seconds of processor time"
STARTED = pytest.StashKey[float]()
LOOKS_THROUGH_OBJECTS = ("test_read_matrix.py", "test_noticed.py", "test_library_state.py", "test_raised.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what tests a second version in a part of the time."""
    parser.addoption("--stand-in", action="store_true", help="run with a second CPU device as the accelerator")
    parser.addoption("--every", type=int, default=1, help="run every N-th case of each test, the first one always")
    slow = "run every N-th slow case of each test too, the first one always"
    parser.addoption("--slow", type=int, metavar="N", help=slow)
    parser.addoption("--all", action="store_true", help="run all slow tests, and the rest of large matrices")
    parser.addoption("--renew-slow", action="store_true", help=f"measure the tests that run, and write {SLOW.name}")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the accelerator's stand-in before XLA starts, and the measurement of the tests in all workers."""
    if config.getoption("--stand-in"):
        stand_in.use()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured(renew=config.getoption("--renew-slow")))


def slow_tests() -> dict[str, float]:
    """Return the seconds of each slow test."""
    lines = [line.split(maxsplit=1) for line in SLOW.read_text(encoding="utf-8").splitlines()]
    return {name: float(seconds) for seconds, name in lines}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that are not asked for, and skip what needs an accelerator where there is none."""
    cases: Counter[str] = Counter()
    slow_cases: Counter[str] = Counter()
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    every, slow, everything = config.option.every, config.option.slow, config.option.all
    named = any("::" in one for one in config.args)  # tests that somebody names run
    seconds = {} if everything or named else slow_tests()
    for item in items:
        test = item.nodeid.partition("[")[0]
        takes = cases[test] % every == 0 and (everything or named or not item.get_closest_marker("rest"))
        cases[test] += 1
        if takes and item.nodeid in seconds and not item.get_closest_marker("always"):
            number = slow_cases[test]
            slow_cases[test] += 1
            takes = number % slow == 0 if slow else number == 0 and seconds[item.nodeid] <= FIRST
        (chosen if takes else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    # These look through all objects of the process for functions: a new process has fewer.
    items[:] = sorted(chosen, key=lambda item: item.path.name not in LOOKS_THROUGH_OBJECTS)
    if not __debug__:
        for item in items:
            if item.get_closest_marker("asserts"):
                item.add_marker(pytest.mark.skip(reason="`python -O` takes assert statements out"))
    if not default_is_host():
        return
    skip = pytest.mark.skip(reason="jax has no accelerator here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


# -- how long tests take ------------------------------------------------------------------------------------------


def _seconds() -> float:
    """Return the processor time of the process and of those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Note when a test begins."""
    item.stash[STARTED] = _seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Report the time that a test took, with its fixtures."""
    try:
        return (yield)
    finally:
        item.user_properties.append((SECONDS, _seconds() - item.stash[STARTED]))


class Measured:
    """Writes the slow tests among those that ran to the list, or names those that it lacks.

    What did not run stays in the list as it is.
    """

    def __init__(self, *, renew: bool) -> None:
        self._renew = renew
        self._seconds: dict[str, float] = {}
        self._always: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the time of a test that has ended."""
        if report.when == "teardown":
            self._seconds[report.nodeid] = float(str(dict(report.user_properties)[SECONDS]))
            if "always" in report.keywords:
                self._always.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the list."""
        if self._renew:
            kept = {name: one for name, one in slow_tests().items() if name not in self._seconds}
            slow = kept | {name: one for name, one in self._seconds.items() if one > QUICK}
            SLOW.write_text("".join(f"{slow[name]:.2g} {name}\n" for name in sorted(slow)), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the tests that took long and are not in the list."""
        known = slow_tests().keys() | self._always
        long = {name: one for name, one in self._seconds.items() if one > LONG and name not in known}
        if long:
            terminalreporter.section(f"{len(long)} tests took more than {LONG} s and are not in {SLOW.name}")
            for name in sorted(long, key=long.__getitem__, reverse=True)[:20]:
                terminalreporter.line(f"{long[name]:.1f} s {name}")
            terminalreporter.line("On a quiet machine, `pytest --all --renew-slow` with their files lists them.")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(20240817)


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Every test starts with the same random numbers and ends as it starts: eager, the user's settings untouched."""
    hf.random.seed(0)
    before = np.geterr(), jax.config.jax_enable_x64
    assert CONTEXT.get() is None
    yield
    assert CONTEXT.get() is None
    assert (np.geterr(), jax.config.jax_enable_x64) == before
