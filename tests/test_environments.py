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


tape = hf.GradientTape()
with tape:
    total = hf.mean(nn.cross_entropy(net(x), y))
assert all(one is not None for one in tape.gradient(total, net.parameters()))


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
print(step.graph(x, y))
with hf.profile() as profile:
    step(x, y)
print(profile)
print("done")
"""
WAYS: dict[str, tuple[list[str], dict[str, str | None]]] = {
    "-O": (["-O"], {}),
    "-OO": (["-OO"], {}),
    "development": (["-X", "dev", "-W", "error"], {}),
    "other hashes": ([], {"PYTHONHASHSEED": "random"}),
    "ASCII": ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}),
    "cp1252": ([], {"PYTHONIOENCODING": "cp1252"}),
    "Latin-1": ([], {"PYTHONIOENCODING": "latin-1"}),
    "no such home": ([], {"HOME": "/proc/self/no/home", "HYBRIDFLOW_CACHE_DIR": None}),
    "read-only home": ([], {"HOME": "/proc", "HYBRIDFLOW_CACHE_DIR": None, "XDG_CACHE_HOME": None}),
    "no home": ([], {"HOME": None, "HYBRIDFLOW_CACHE_DIR": None}),
    "no folder for temporary files": ([], {"TMPDIR": "/proc/self/none"}),
    "warnings are errors": (["-W", "error"], {}),
    "bytes and text apart": (["-bb"], {}),
}


TOGETHER = [
    ("-O", "ASCII", "read-only home", "no folder for temporary files"),
    ("development", "bytes and text apart", "other hashes", "cp1252", "no home"),
    ("-OO", "Latin-1", "no such home"),
]
"""Ways that one process takes at once: a test with few processes runs always, and each way alone finds the one."""


def run_program(ways: tuple[str, ...], tmp_path: Path) -> None:
    environment: dict[str, str | None] = dict(os.environ)
    for way in ways:
        environment |= WAYS[way][1]
    present = {name: value for name, value in environment.items() if value is not None}
    switches = [switch for way in ways for switch in WAYS[way][0]]
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, *switches, str(path)], capture_output=True, timeout=200, env=present)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    ascii_only = "ASCII" in ways
    lines = done.stdout.decode("ascii" if ascii_only else "utf-8", errors="strict" if ascii_only else "replace")
    assert lines.splitlines()[-1] == "done"
    assert "Sequential" in lines


def test_a_program_runs_in_all_ways(tmp_path: Path):
    for ways in TOGETHER:
        run_program(ways, tmp_path)
    path = tmp_path / "program.py"
    command = f'exec "{sys.executable}" "{path}" >&-'  # with no stdout at all
    assert subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, timeout=200).returncode == 0
    assert {way for ways in TOGETHER for way in ways} == WAYS.keys() - {"warnings are errors"}  # which is in another


@pytest.mark.rest
@pytest.mark.parametrize("way", WAYS)
def test_a_program_runs(way: str, tmp_path: Path):
    run_program((way,), tmp_path)
