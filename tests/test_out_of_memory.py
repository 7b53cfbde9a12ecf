"""Memory that runs out: calls that say so, and leave everything as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.backend import free_memory
from hybridflow.core.errors import OutOfMemoryError
from hybridflow.core.out_of_memory import read_array
from hybridflow.xla import executable

HUGE = 1_000_000
"""A vector of this length has an outer product that no machine holds."""


def outer(x: Any) -> Any:
    return hf.reshape(x, (-1, 1)) * hf.reshape(x, (1, -1))


def test_a_call_beyond_the_machine_changes_nothing():
    w, optimizer_state = hf.Variable(np.ones(8, np.float32)), hf.Variable(np.zeros(8, np.float32))

    @hf.compile
    def step(x: Any) -> Any:
        total = hf.sum(hf.sort(hf.sin(outer(x)), axis=1)[:, :3])
        optimizer_state.assign_add(hf.random.normal((8,)))
        w.assign_sub(total * w)
        return total, hf.sum(x)

    state = hf.random.default_generator().named_variables()["state"].numpy().copy()
    with pytest.raises(OutOfMemoryError, match=r"step: there .*\n  got: .* TiB .* are free\n.*hf.advise"):
        step(hf.ones((HUGE,)))
    assert np.array_equal(w.numpy(), np.ones(8, np.float32))
    assert np.array_equal(optimizer_state.numpy(), np.zeros(8, np.float32))
    assert np.array_equal(hf.random.default_generator().named_variables()["state"].numpy(), state)
    step(hf.ones((3,)))
    assert not np.array_equal(w.numpy(), np.ones(8, np.float32))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda x: hf.compile(outer)(x), id="compiled"),
        pytest.param(lambda x: hf.compile(lambda x: (outer(x), x))(x), id="compiled, two results"),
        pytest.param(lambda x: hf.compile(hf.grad(lambda x: hf.sum(hf.sort(hf.sin(outer(x))))))(x), id="gradient"),
        pytest.param(outer, id="eager"),
        pytest.param(lambda x: outer(x.astype("bfloat16")), id="eager, by XLA"),
    ],
)
def test_no_way_to_run_returns_a_result_that_is_none(call: Any):
    with pytest.raises(OutOfMemoryError, match="there is not enough memory"):
        call(hf.ones((HUGE,)))


def test_a_recorded_call_says_so_too():
    x, f = hf.ones((HUGE,)), hf.compile(lambda x: hf.sort(hf.sin(outer(x))))
    with hf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(OutOfMemoryError, match="there is not enough memory"):
            f(x)


def test_the_result_of_a_program_that_failed_can_be_read():
    """NumPy alone would abort the process."""
    lost = jax.jit(lambda x: (x[:, None] * x, x + 1))(np.ones(HUGE, np.float32))[0]
    with pytest.raises(OutOfMemoryError, match=r"reading a result: .*\n  got: 3\.6 TiB were asked for"):
        read_array(lost)


def test_small_programs_do_not_ask(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.setattr(executable, "free_memory", lambda enough: asked.append(enough) or enough)
    w = hf.Variable(np.ones((4, 4), np.float32))
    small = hf.compile(lambda x: w.assign_add(x @ x).sum())
    large = hf.compile(lambda x: hf.sin(x) * 2)
    assert small(hf.ones((4, 4))).item() == 80
    assert not asked
    assert large(hf.ones((2048, 1024))).shape == (2048, 1024)
    assert len(asked) == 1
    assert asked[0] >= 4 * 2048 * 1024 * 4


def test_a_call_waits_only_when_little_is_left(monkeypatch: pytest.MonkeyPatch):
    waits: list[Any] = []
    monkeypatch.setattr(executable.jax, "block_until_ready", lambda arrays: waits.append(arrays) or arrays)
    w = hf.Variable(np.ones((2048, 1024), np.float32))
    for function in (hf.compile(lambda x: hf.sin(x) * 2), hf.compile(lambda x: (w.assign_add(x), hf.sin(x))[1])):
        for free, count in ((1 << 40, 0), (20 << 20, 1)):
            waits.clear()
            monkeypatch.setattr(executable, "free_memory", lambda enough=0, free=free: free)
            function(hf.ones((2048, 1024)))
            assert len(waits) == count, free


def test_what_is_free_is_the_least_of_all_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if sys.platform != "linux":
        assert free_memory.free_memory() is None
        return
    whole = free_memory.free_memory()
    assert whole is not None
    assert 1 << 20 < whole < 1 << 50
    for name, text in (("memory.max", 10 << 20), ("memory.current", 9 << 20), ("memory.stat", "inactive_file 4096")):
        (tmp_path / name).write_text(str(text))
    group = free_memory._Group(10 << 20, tmp_path / "memory.current", tmp_path / "memory.stat")
    monkeypatch.setattr(free_memory, "_groups", lambda: (group,))
    assert free_memory.free_memory() == (1 << 20) + 4096
    assert free_memory.free_memory(1000) == 1 << 20
    with pytest.raises(OutOfMemoryError, match=r"and 1\.0 MiB are free"):
        hf.compile(lambda x: hf.sin(x) * 2)(hf.ones((2048, 1024)))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")
@pytest.mark.parametrize("kind", ["step", "adam", "mesh", "eager", "served"])
@pytest.mark.parametrize("tries", [12, pytest.param(100, id="all")])
def test_out_of_memory_at_every_allocation(kind: str, tries: int, request: pytest.FixtureRequest):
    if tries > 12 and not request.config.getoption("--all"):
        pytest.skip("500 tries in all; takes --all")
    program = Path(__file__).with_name("out_of_memory.py")
    done = subprocess.run([sys.executable, str(program), kind, str(tries)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout)
    assert {*outcomes} == {"raised, and nothing changed", "computed"}, outcomes
    assert sum(outcomes.values()) == tries
