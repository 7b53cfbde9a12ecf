"""Fixed seeds, how many examples hypothesis takes, the `gpu` mark, and running only some cases of each test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what tests a second version in a part of the time."""
    parser.addoption("--stand-in", action="store_true", help="run with a second CPU device as the accelerator")
    every = "run every N-th case of each test, the first one always; slow tests only if N is 1"
    parser.addoption("--every", type=int, default=1, help=every)
    parser.addoption("--all", action="store_true", help="run the rest of large matrices and searches too")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the accelerator's stand-in before XLA starts."""
    if config.getoption("--stand-in"):
        stand_in.use()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that are not asked for, and skip what needs an accelerator where there is none."""
    seen: Counter[str] = Counter()
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    every, everything = config.getoption("every"), config.getoption("all")
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.get_closest_marker("rest") and not everything:
            left_out.append(item)
            continue
        slow = every > 1 and item.get_closest_marker("slow")
        (left_out if slow or seen[test] % every else chosen).append(item)
        seen[test] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen
    if not default_is_host():
        return
    skip = pytest.mark.skip(reason="jax has no accelerator here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


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
