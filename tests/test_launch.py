"""Several processes as one program: what they compute, how they fail, and how they go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.processes.environment import Place, place_of

PROGRAMS = Path(__file__).parent / "launched"
REPEATS = int(os.environ.get("HYBRIDFLOW_TEST_REPEATS", "1"))
"""How often each way to fail is tried."""

BUSY = 3
"""Seconds by which processes end later on a machine whose cores run other tests."""


class Launched(NamedTuple):
    """What a launch did: its exit code, what it printed, the seconds from the line ``fails now`` to its end."""

    code: int
    out: list[str]
    err: str
    seconds: float


def launch(program: str, *arguments: object, n: int = 2, options: tuple[str, ...] = (), at: tuple[str, int] = ("", 0)):
    """Run a program of the folder by ``hybridflow launch``, and send a signal when it prints a line that is asked for.

    The processes of the run must be gone afterwards.
    """
    command = [sys.executable, "-W", "error", "-m", "hybridflow", "launch", "-n", str(n), *options]
    process = subprocess.Popen(
        [*command, str(PROGRAMS / program), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "HYBRIDFLOW_CACHE_DIR": "off"},
    )
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reading = threading.Thread(target=lambda stream: errors.extend(stream), args=(process.stderr,))
    reading.start()
    guard = threading.Timer(120, process.kill)
    guard.start()
    lines: list[str] = []
    since = time.monotonic()
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            if "fails now" in line:
                since = time.monotonic()
            if at[0] and at[0] in line:
                since = time.monotonic()
                process.send_signal(at[1])
        code = process.wait()
        seconds = time.monotonic() - since
        reading.join()
    finally:
        guard.cancel()
        process.stdout.close()
        process.stderr.close()
    left = [line for line in processes() if str(PROGRAMS / program) in line]
    assert not left, left
    return Launched(code, lines, "".join(errors), seconds)


def processes() -> list[str]:
    """Return the command lines of all processes."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def losses_of(done: Launched) -> dict[int, str]:
    """Return the losses by step; a step that ran twice counts with its last one."""
    words = [line.removeprefix("[0] ").split() for line in done.out]
    return {int(one[1]): one[2] for one in words if one[:1] == ["loss"]}


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """The losses of one device."""
    alone = subprocess.run(
        [sys.executable, str(PROGRAMS / "layouts.py"), "one"], capture_output=True, text=True, check=True, timeout=100
    )
    return json.loads(alone.stdout)[1]


@pytest.mark.parametrize(("count", "layouts"), [(2, ("dp", "fsdp", "tp")), (4, ("dp", "fsdp", "tp")[-REPEATS:])])
def test_processes_compute_what_one_device_does(count, layouts, expected):
    done = launch("layouts.py", *layouts, n=count)
    assert done.code == 0, done.err
    made = dict(json.loads(line.removeprefix("[0] ")) for line in done.out if line.startswith('[0] ["'))
    assert [*made] == [*layouts]
    for losses in made.values():
        assert len(losses) == 50
        assert np.allclose(losses, expected, rtol=1e-5, atol=1e-6)


def test_a_pipeline_over_four_processes_is_that_of_one_device():
    done = launch("pipelines.py", n=4)
    assert done.code == 0, done.err
    gaps = [line.split() for line in done.out if " gap " in line]
    assert len(gaps) == 8
    assert all(float(gap) < 1e-6 for *_, gap in gaps)


@pytest.mark.parametrize("turn", range(REPEATS))
@pytest.mark.parametrize(
    ("how", "who", "when", "limit"),
    [
        ("kill", 0, "inside", 5), ("kill", 1, "between", 5), ("raise", 1, "between", 10),
        ("stuck", 0, "between", 2 + 5), ("stop", 1, "inside", 2 + 5),
    ],
)
def test_all_end_when_one_fails(how, who, when, limit, turn):
    done = launch("fails.py", how, who, when)
    assert done.code != 0
    assert done.seconds < limit + BUSY, done
    assert "went through" not in "".join(done.out)
    said = done.err
    for index in (0, 1):
        assert f"hybridflow launch: process {index} " in said, said
    assert f"[{1 - who}] hybridflow.DeviceLostError: process" in said, said
    if how == "kill":
        assert done.code == 128 + signal.SIGKILL
        assert f"hybridflow.DeviceLostError: process {who} was ended by SIGKILL" in said
        assert f"So process {1 - who} cannot go on" in said or f"so process {1 - who} ends, at " in said
    elif how == "raise":
        assert done.code == 1
        assert said.count("ValueError: a fault of the user's\n") == said.count("Traceback") == 1
        fault = f"DeviceLostError: process {who} raised ValueError: a fault of the user's at "
        assert "fails.py:33 (fail)" in said.split(fault)[1].splitlines()[0]
    elif how == "stuck":
        assert "process 1 has waited for" in said
        assert "to call step, at" in said
        assert "process 0 is at" in said
        assert "fails.py" in said.split("process 0 is at")[1].splitlines()[0]
    else:
        assert "process 1 does not answer" in said


def test_processes_that_differ_raise_and_change_nothing():
    done = launch("differs.py")
    assert done.code == 0, done.err
    for index in (0, 1):
        said = dict(line[4:].split(": ", 1) for line in done.out if line.startswith(f"[{index}] ") and ": " in line)
        assert "process 0 is about to compile first, and process 1 to compile second" in said["order"]
        assert "process 0 is about to call first, and process 1 to call second" in said["late"]
        assert "process 0 has argument 'x': (4, 2)" in said["shape"]
        assert "process 1 has argument 'x': (8, 2)" in said["shape"]
        assert "value=f32[] 2.0" in said["constant"]
        assert "value=f32[] 3.0" in said["constant"]
        assert "= 0.10000000149011612, f32[]" in said["value"]
        assert "= 0.20000000298023224, f32[]" in said["value"]
        assert "argument 'x' = f32[4,2]" in said["batch"]
        assert "process 0 has Variable 'bias'" in said["initial"]
        assert "process 0 is about to compile first, and process 1 to barrier elsewhere" in said["place"]
        assert f"[{index}] went on" in done.out


def test_values_of_several_processes(tmp_path):
    done = launch("together.py", tmp_path, options=("--devices", "2"))
    assert done.code == 0, done.err
    assert sorted(line for line in done.out if "all right" in line) == ["[0] all right", "[1] all right"]
    assert "[0] step 6/6" in done.err
    assert "[1] step" not in done.err  # one progress display


def test_a_killed_run_goes_on(tmp_path):
    pytest.importorskip("orbax.checkpoint", reason="checkpoints of several devices need the extra 'distribute'")
    undisturbed = launch("trains.py", tmp_path / "a", "fsdp", 50)
    assert undisturbed.code == 0, undisturbed.err
    expected = losses_of(undisturbed)
    assert len(expected) == 50

    again = launch("trains.py", tmp_path / "b", "fsdp", 50, "12,37", 1, options=("--restarts", "3"))
    assert again.code == 0, again.err
    assert again.err.count("hybridflow launch: restart ") == 2
    assert losses_of(again) == expected  # bit for bit
    log = (tmp_path / "b" / "log.jsonl").read_text(encoding="utf-8")
    logged = [json.loads(line)["step"] for line in log.splitlines()]
    assert logged == [*range(1, 51)]

    (tmp_path / "a" / "step-000000050.safetensors").unlink()
    for devices in ("1", "2", "8") if REPEATS > 1 else ("1", "8"):
        shutil.copytree(tmp_path / "a", tmp_path / devices)
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "trains.py"), str(tmp_path / devices), "fsdp", "50"],
            capture_output=True, text=True, check=True, timeout=100, env={**os.environ, "FORCED_DEVICES": devices},
        )
        resumed = losses_of(Launched(0, done.stdout.splitlines(), "", 0.0))
        assert [*resumed] == [*range(41, 51)]
        assert np.allclose(
            [float.fromhex(resumed[step]) for step in resumed], [float.fromhex(expected[step]) for step in resumed],
            rtol=1e-5, atol=1e-6,
        )


def test_sigterm_ends_all_after_the_same_step_with_a_checkpoint(tmp_path, monkeypatch):
    pytest.importorskip("orbax.checkpoint", reason="checkpoints of several devices need the extra 'distribute'")
    monkeypatch.setenv("SLOW", "1")
    done = launch("trains.py", tmp_path / "a", "fsdp", 1000, at=("loss 13 ", signal.SIGTERM))
    assert done.code == 128 + signal.SIGTERM, done.err
    last = max(losses_of(done))
    assert (tmp_path / "a" / f"step-{last:09d}.safetensors").exists(), done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("turn", range(REPEATS))
def test_a_save_that_is_killed_halfway_is_never_restored(tmp_path, turn):
    pytest.importorskip("orbax.checkpoint", reason="checkpoints of several devices need the extra 'distribute'")
    reached = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "saves.py"), str(tmp_path), "100000"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        resumed = int(process.stdout.readline().split()[1])
        assert resumed >= reached - 1, "a checkpoint that was whole is gone"
        for line in process.stdout:
            reached = int(line.split()[1])
            if reached >= resumed + 4 + turn:
                break
        time.sleep(0.005 * (turn + reached % 7))
        process.kill()
        process.wait()
        process.stdout.close()
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "saves.py"), str(tmp_path), "0"], capture_output=True, text=True, check=True,
        timeout=100,
    )
    assert int(done.stdout.split()[1]) > 0


def test_a_program_without_others_is_alone():
    hf.distribute.initialize()
    assert (hf.distribute.process_index(), hf.distribute.process_count()) == (0, 1)
    hf.distribute.barrier()
    assert hf.distribute.broadcast([3]).tolist() == [3]


@pytest.mark.parametrize("given", ["5 minutes", "", 0, -1.0, True, None])
def test_a_step_timeout_is_a_time(given):
    with pytest.raises(ValueError, match="step_timeout"):
        hf.distribute.initialize(step_timeout=given)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"HYBRIDFLOW_COORDINATOR": "a:1", "HYBRIDFLOW_PROCESS_INDEX": "1", "HYBRIDFLOW_PROCESS_COUNT": "2"},
         Place("a:1", 1, 2)),
        ({"HYBRIDFLOW_COORDINATOR": "job-0.job:8476", "JOB_COMPLETION_INDEX": "3", "HYBRIDFLOW_PROCESS_COUNT": "4"},
         Place("job-0.job:8476", 3, 4)),
        ({"JAX_COORDINATOR_ADDRESS": "b:2", "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "3"}, Place("b:2", 0, 3)),
        ({"MASTER_ADDR": "c", "MASTER_PORT": "5", "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
         Place("c:5", 2, 4, 0)),
        ({"SLURM_STEP_NODELIST": "n[07-09,12]", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
          "SLURM_JOB_ID": "4097"}, Place("n07:61441", 5, 8, 1)),
        ({"SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_the_environment_says_which_process_this_is(environment, place):
    assert place_of(environment) == place


@pytest.mark.parametrize(
    "environment",
    [
        {"HYBRIDFLOW_PROCESS_COUNT": "2"},
        {"HYBRIDFLOW_COORDINATOR": "a:1", "HYBRIDFLOW_PROCESS_INDEX": "2", "HYBRIDFLOW_PROCESS_COUNT": "2"},
        {"HYBRIDFLOW_COORDINATOR": "a:1", "HYBRIDFLOW_PROCESS_INDEX": "x", "HYBRIDFLOW_PROCESS_COUNT": "2"},
    ],
)
def test_half_of_an_environment_is_an_error(environment):
    with pytest.raises(ValueError, match="initialize"):
        place_of(environment)
