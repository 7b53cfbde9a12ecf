"""Every notebook runs from its first cell to its last, and shows what it is about."""

import json
from pathlib import Path

import pytest

from tests.notebooks import NOTEBOOKS, run


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    notebook = run(path)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = [output for cell in code for output in cell["outputs"]]
    assert any("text/html" in output.get("data", {}) for output in shown), "rich output where there is any"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path: Path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len(path.read_bytes()) < 1_000_000
    assert str(Path.home()) not in path.read_text(encoding="utf-8")


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["tour", "where_did_the_memory_go", "why_did_it_retrace"]
