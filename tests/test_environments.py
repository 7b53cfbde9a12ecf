"""Programs run under Python's switches, in other encodings, homes and folders, and in a notebook's kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hybridflow as hf
from hybridflow import nn

net = nn.Sequential(nn.Linear(4, 3), nn.relu, nn.Linear(3, 2))
x, y = hf.asarray([[1.0, 2.0, 3.0, 4.0]] * 4), hf.asarray([0, 1, 0, 1])
optimizer = hf.optim.AdamW(net, 1e-2)


@hf.compile
def step(x, y):
    with hf.GradientTape() as tape:
        total = hf.mean(nn.cross_entropy(net(x), y))
    optimizer.update(tape.gradient(total, net))
    return total * 2 if total > 0.5 else total


print(step(x, y).shape)
print(hf.compare(lambda x: hf.tanh(net(x)), x, repeats=3))
print(hf.cost(step, x, y))
print(nn.summary(net, hf.TensorSpec([None, 4])))
print(step.explain())
print("done")
"""
WAYS: dict[str, tuple[list[str], dict[str, str | None]]] = {
    "-O": (["-O"], {}),
    "-OO": (["-OO"], {}),
    "development": (["-X", "dev"], {}),
    "other hashes": ([], {"PYTHONHASHSEED": "random"}),
    "ASCII": ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}),
    "cp1252": ([], {"PYTHONIOENCODING": "cp1252"}),
    "Latin-1": ([], {"PYTHONIOENCODING": "latin-1"}),
    "no such home": ([], {"HOME": "/proc/self/no/home", "HYBRIDFLOW_CACHE_DIR": None}),
    "no home": ([], {"HOME": None, "HYBRIDFLOW_CACHE_DIR": None}),
    "no folder for temporary files": ([], {"TMPDIR": "/proc/self/none"}),
    "warnings are errors": (["-W", "error"], {}),
    "bytes and text apart": (["-bb"], {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_runs(way: str, tmp_path: Path):
    switches, changed = WAYS[way]
    environment = {**os.environ, **changed}
    environment = {name: value for name, value in environment.items() if value is not None}
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run([sys.executable, *switches, str(path)], capture_output=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    lines = done.stdout.decode("ascii" if way == "ASCII" else "utf-8", errors="strict" if way == "ASCII" else "replace")
    assert lines.splitlines()[-1] == "done"
    assert "Sequential" in lines


def test_stdout_may_be_closed(tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = f'exec "{sys.executable}" "{path}" >&-'
    assert subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, timeout=200).returncode == 0
