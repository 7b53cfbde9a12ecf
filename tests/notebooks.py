"""Running the notebooks without Jupyter: `python -m tests.notebooks` runs them and writes their outputs."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
Output = dict[str, Any]


def run_cell(source: str, namespace: dict[str, Any], name: str) -> list[Output]:
    """Run a cell and return its outputs: what it printed, and its last expression as text and, if it has any, HTML."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[Output] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        html = getattr(value, "_repr_html_", None)
        if html is not None:
            data["text/html"] = html().splitlines(keepends=True)
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return outputs


def run(path: Path) -> dict[str, Any]:
    """Run a notebook in a namespace of its own and return it with its outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "notebook"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        source = "".join(cell["source"])
        name = f"<{path.stem}, cell {number}>"
        _remember(name, source)
        cell["outputs"] = run_cell(source, namespace, name)
        cell["execution_count"] = number
    return notebook


def run_in_kernel(*sources: str) -> list[list[Any]]:
    """Run cells in a Jupyter kernel and return the outputs of each; a cell that raises has its error as an output."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(notebook, timeout=400, allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells]


def _remember(name: str, source: str) -> None:
    """Let functions of a cell show their source, as IPython does."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        done = run(path)
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)
