"""Tests that the benchmarks run and that their sides do the same work, independent of their times."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridflow as hf

from . import report
from .__main__ import main
from .measure import SMOKE, run_row
from .registry import Case, Row, all_rows

ROWS = {row.name: row for row in all_rows()}


def make_row(build: Any) -> Row:
    return Row("planted", "tests", "planted", build, 1, "call", {}, 1e-4)


ALIKE = {
    "gpt12_eager", "gpt12_compiled", "mesh_fsdp", "mesh_tensor", "mesh_gpt_fsdp", "mesh_gpt_data",
    *[name for name in ROWS if name.startswith("science_") and name.endswith("_first") and name != "science_ode_first"],
}
"""Rows that hardly differ from another one in a smoke run."""


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ALIKE])
def test_row_runs(name: str):
    result = run_row(ROWS[name], SMOKE)
    assert result.error is None
    if result.skipped is None:
        assert report.all_finite(result)
        assert result.peers or result.notes


def planted(call: Any) -> Any:
    def build(case: Case) -> None:
        x = hf.asarray([1.0, 2.0])
        case.ours(lambda: x * 2.0)
        case.peer("peer", call)

    return run_row(make_row(build), SMOKE)


def test_equal_results_are_timed():
    result = planted(lambda: np.asarray([2.0, 4.0], np.float32))
    assert result.error is None
    assert [peer.name for peer in result.peers] == ["peer"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.asarray([2.0, 4.01]), "peer, result 0: differs by 0.01, where the largest value is 4"),
        (np.asarray([2.0, np.nan]), "differs by nan"),
        (np.asarray([[2.0, 4.0]]), r"shape (1, 2), hybridflow has (2,)"),
        ((np.asarray([2.0, 4.0]), np.asarray(1.0)), "2 arrays as result, hybridflow has 1"),
    ],
)
def test_different_results_are_not_timed(value: Any, text: str):
    result = planted(lambda: value)
    assert text in result.error
    assert result.ours is None


def test_different_changes_of_parameters_are_found():
    w = hf.Variable([1.0, 2.0])
    theirs = [np.asarray([1.0, 2.0], np.float32)]

    def ours() -> None:
        w.assign_sub([0.1, 0.1])

    def step() -> None:
        theirs[0] = theirs[0] - np.float32([0.1, 0.102])

    def build(case: Case) -> None:
        case.ours(ours, state=w.read)
        case.peer("peer", step, state=lambda: theirs[0])

    assert "peer, change of parameter 0: differs by 0.002" in run_row(make_row(build), SMOKE).error


def test_a_row_that_raises_is_a_failure():
    def build(case: Case) -> None:
        case.ours(lambda: hf.asarray([1.0]) + hf.asarray([1.0, 2.0, 3.0]).reshape((0, 7)))

    assert run_row(make_row(build), SMOKE).error


def test_without_torch_a_row_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run_row(ROWS["add_recorded"], SMOKE)
    assert result.ours is not None
    assert not result.peers
    assert result.notes == ["torch: torch is not installed (the `bench` extra)"]
    assert report.remarks([result]) == ["torch: torch is not installed (the `bench` extra): add_recorded"]


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "figures.json"
    assert main(["add", "call_f*", "--smoke", "--json", str(path)]) == 0
    assert "a + b, 64 floats" in capsys.readouterr().out
    figures = json.loads(path.read_text(encoding="utf-8"))
    assert {row["name"] for row in figures["rows"]} == {"add", "call_float"}
    add = next(row for row in figures["rows"] if row["name"] == "add")
    assert add["hybridflow"]["median"] > 0
    assert all(peer["ratio"] > 0 for peer in add["peers"])
    assert figures["environment"]["versions"]["jax"]


def test_an_unknown_row_is_an_error(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["nosuch"])
    assert "no row or group matches nosuch" in capsys.readouterr().err
