"""Every example in a docstring runs and shows what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hybridflow as hf
from hybridflow.core.op import REGISTRY
from hybridflow.later import register_rest

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FINDER = doctest.DocTestFinder(exclude_empty=True)


def _modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(hf.__path__, "hybridflow.")]
    return ["hybridflow", *[name for name in found if name != "hybridflow.__main__"]]


def _examples() -> list[doctest.DocTest]:
    tests = [test for name in _modules() for test in FINDER.find(importlib.import_module(name), name)]
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("test", _examples(), ids=lambda test: test.name.removeprefix("hybridflow."))
def test_example(test: doctest.DocTest):
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    register_rest()
    before = dict(REGISTRY)
    runner.run(test, out=report.append)
    for name in REGISTRY.keys() - before.keys():  # an example's own operations end with it
        del REGISTRY[name]
    assert runner.failures == 0, "".join(report)
