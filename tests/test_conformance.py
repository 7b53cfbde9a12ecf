"""The tool that runs the Array API suite, without the suite."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import hybridflow as hf
from tests import clients, compiled_namespace, conformance

REPORT = """<testsuites><testsuite>
<testcase classname="array_api_tests.test_a" name="test_one" />
<testcase classname="array_api_tests.test_a" name="test_two[x]"><failure message="Error: no&#10;more"/></testcase>
<testcase classname="array_api_tests.test_b" name="test_three"><skipped message="why"/></testcase>
<testcase classname="array_api_tests.test_b" name="test_four"><error message=""/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read():
    result = conformance.read_report(REPORT)
    assert (result.passed, result.skipped) == (1, 1)
    assert result.failed == {"test_a::test_two[x]": "Error: no", "test_b::test_four": "error"}


def test_a_path_without_the_suite(tmp_path, capsys):
    assert conformance.main([str(tmp_path)]) == 2
    assert "is no checkout of array-api-tests" in capsys.readouterr().err


def test_what_is_printed(tmp_path, capsys, monkeypatch):
    known = next(iter(conformance.KNOWN))
    for failed, status in (({known: "MutationError"}, 0), ({known: "MutationError", "test_a::test_x": "no"}, 1)):
        monkeypatch.setattr(conformance, "run_suite", lambda *_, failed=failed, **__: conformance.Result(7, 2, failed))
        assert conformance.main([str(tmp_path), "--compiled"]) == status
        text = capsys.readouterr().out
        assert f"compiled: 7 of {7 + len(failed)} passed, {len(failed)} failed, 2 skipped" in text
        assert conformance.KNOWN[known] in text
        assert ("NOT KNOWN: no" in text) == bool(status)


def test_the_compiled_namespace():
    xp = compiled_namespace
    assert {"sort", "zeros", "matmul", "top_k", "meshgrid"} <= set(xp.STANDARD)
    for name in ("unique_all", "asarray", "finfo"):
        assert getattr(xp, name) is getattr(hf, name)
    assert inspect.signature(xp.sort) == inspect.signature(hf.sort)
    assert xp.float32 == hf.float32
    assert xp.__array_api_version__ == hf.__array_api_version__
    np.testing.assert_array_equal(xp.sort(hf.asarray([2, 1]), descending=True).numpy(), [2, 1])
    assert callable(xp.linalg.inv)


def test_the_table_of_clients_has_every_refusals_reason(capsys, monkeypatch):
    for known, status in (({"test_a": "decided"}, 0), ({}, 1)):
        suite = clients.Suite("some 1.0", lambda: conformance.Result(7, 2, {"test_a": "no"}), known)
        monkeypatch.setattr(clients, "suites", lambda _, suite=suite: [suite])
        assert clients.main([]) == status
        text = capsys.readouterr().out
        assert "| some 1.0 | 7 | 1 | 2 |" in text
        assert f"- some 1.0, test_a: {'decided' if known else 'NOT KNOWN: no'}" in text


@pytest.mark.rest
def test_einops_own_tests_pass():
    pytest.importorskip("einops", "0.8.2")
    result = clients.of_einops()
    assert not result.failed
    assert result.passed >= 55
