"""Checkpoints: as things were when they were asked for, whole or not there, whatever is killed."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.backend import files
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    FileError,
    FileFormatError,
    FileWarning,
    HybridflowError,
)
from hybridflow.saving import checkpoints, writer
from hybridflow.saving.checkpoints import Checkpoints
from hybridflow.saving.values import fill

posix = pytest.mark.skipif(os.name != "posix", reason="signals, limits and locks are POSIX's")


@contextmanager
def slowly(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let the threads that write wait until the function that is returned is called, or the context ends."""
    go, write = threading.Event(), writer.write

    def wait_and_write(*args: Any, **kwargs: Any) -> None:
        assert go.wait(60)
        write(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", wait_and_write)
        try:
            yield go.set
        finally:
            go.set()


def test_what_was_written_is_found(tmp_path: Path):
    saved = Checkpoints(tmp_path / "deep" / "run")
    assert (saved.newest(), saved.best(), saved.steps()) == (None, None, [])
    saved.wait()
    model = hf.nn.Linear(3, 2)
    optimizer = hf.optim.Adam(model)
    everything = {"model": model, "optimizer": optimizer, "random": hf.random.Generator(1)}
    state = {"data": {"seed": 2**70, "batch": np.int64(3)}, "names": ("a", "ü\ud800"), "loss": math.nan, "no": None}
    written = saved.write(500, everything, state, score=0.5)
    assert written.wait() == tmp_path / "deep" / "run" / "step-000000500.safetensors"
    assert written.done
    before = {path: one.copy() for path, one in {**model.state_dict(), **optimizer.state_dict()}.items()}
    optimizer.update(hf.grad(lambda model: hf.sum(model(hf.ones((1, 3)))))(model))
    found = Checkpoints(tmp_path / "deep" / "run").newest()
    assert found is not None
    assert (found.step, found.score, found.path) == (500, 0.5, written.path)
    assert math.isnan(found.state["loss"])
    assert {**found.state, "loss": 0} == {
        "data": {"seed": 2**70, "batch": 3}, "names": ["a", "ü\ud800"], "loss": 0, "no": None
    }
    fill(everything, found.values, what="test", hint="None.")
    after = {**model.state_dict(), **optimizer.state_dict()}
    assert {path: one.tobytes() for path, one in after.items()} == {path: one.tobytes() for path, one in before.items()}
    assert {*hf.load(written.path)} == {*found.values}


# -- the snapshot -----------------------------------------------------------------------------------------------------


def steps_of(model: Any, optimizer: Any) -> dict[str, Callable[[], Any]]:
    x = hf.ones((2, 40))

    def step() -> None:
        _, gradients = hf.value_and_grad(lambda model: hf.sum(model(x)))(model)
        optimizer.update(gradients)

    return {
        "in place": step, "compiled": hf.compile(step), "assigned": lambda: model.weight.assign_sub(model.weight * 0.5)
    }


@pytest.mark.parametrize("after", ["in place", "compiled", "assigned"])
@pytest.mark.parametrize("before", ["in place", "compiled", "assigned"])
def test_later_steps_are_not_seen(before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = hf.nn.Linear(40, 30)
    optimizer = hf.optim.Adam(model, rate=0.1)
    steps, everything = steps_of(model, optimizer), {"model": model, "optimizer": optimizer}
    own = np.ones(3)
    steps[before]()
    expected = {name: one.tobytes() for name, one in {**model.state_dict(), **optimizer.state_dict()}.items()}
    saved = Checkpoints(tmp_path)
    with slowly(monkeypatch) as go:
        saved.write(1, {**everything, "own": own}, state := {"seen": [1]})
        own[:] = 7
        state["seen"].append(2)
        for _ in range(3):
            steps[after]()
        go()
    found = saved.newest()
    assert found is not None
    values = {path.partition(".")[2]: one.numpy().tobytes() for path, one in found.values.items() if path != "own"}
    assert values == expected
    assert (found.values["own"].tolist(), found.state) == ([1.0] * 3, {"seen": [1]})


def test_when_it_is_written_updates_are_in_place_again(tmp_path: Path):
    model = hf.nn.Linear(40, 30)
    optimizer = hf.optim.SGD(model, rate=0.1)
    step = steps_of(model, optimizer)["in place"]
    step()
    first = model.weight._value.ctypes.data
    saved = Checkpoints(tmp_path)
    saved.write(1, model, {}).wait()
    for thread in threading.enumerate():
        if thread.name == "hybridflow-checkpoint":
            thread.join()
    step()
    assert model.weight._value.ctypes.data == first


def test_a_write_waits_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved, weight = Checkpoints(tmp_path), hf.Variable(1.0)
    with slowly(monkeypatch) as go:
        first = saved.write(1, {"w": weight}, {})
        assert not first.done
        threading.Timer(0.1, go).start()
        second = saved.write(2, {"w": weight}, {})
        assert first.done
    second.wait()
    assert saved.steps() == [1, 2]


# -- which are kept ---------------------------------------------------------------------------------------------------


def test_the_newest_and_the_best_are_kept(tmp_path: Path):
    saved = Checkpoints(tmp_path)
    for step, score in enumerate([0.1, 0.9, 0.5, 0.9, math.nan, None, 0.2]):
        saved.write(step, {"w": hf.asarray(step)}, {}, score=score, keep=2)
    saved.wait()
    assert saved.steps() == [3, 5, 6]
    best, newest = saved.best(), saved.newest()
    assert best is not None
    assert newest is not None
    assert (best.step, best.score, newest.step, newest.score) == (3, 0.9, 6, 0.2)
    saved.write(3, {"w": hf.asarray(33)}, {}, score=0.0).wait()  # gone back to it, and on from there
    newest = saved.newest()
    assert newest is not None
    assert (newest.step, newest.values["w"].item()) == (3, 33)
    saved.write(4, {"w": hf.asarray(4)}, {}, keep=1).wait()
    assert saved.steps() == [4, 6]


def test_what_cannot_be_a_checkpoint_is_said_at_once(tmp_path: Path):
    saved = Checkpoints(tmp_path)
    good: Any = {"w": hf.asarray(1)}
    for step, values, state, keep, error, text in (
        (-1, good, {}, None, ArgumentError, "the step is an integer"),
        (1.0, good, {}, None, ArgumentError, "the step is an integer"),
        (1, good, {}, 0, ArgumentError, "keep is an integer"),
        (1, good, {"a": {"b": [0, object()]}}, None, ArgumentTypeError, r"state\.a\.b\.1 is an object"),
        (1, good, {"a": {1: 2}}, None, ArgumentTypeError, r"a key of state\.a is an int"),
        (1, good, {"a": hf.asarray(1)}, None, ArgumentTypeError, r"state\.a is a Tensor"),
        (1, {"w": hf.asarray(1j, dtype=hf.complex128)}, {}, None, DTypeError, "complex128"),
        (1, {"w": "text"}, {}, None, ArgumentTypeError, "'w' is a str"),
        (1, good, {"long": "," * 3_000_000}, None, ArgumentError, "are read again"),
    ):
        with pytest.raises(error, match=text):
            saved.write(step, values, state, keep=keep).wait()  # type: ignore[arg-type]
    assert saved.steps() == []


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path):
    saved = Checkpoints(tmp_path)
    for step in (1, 2):
        saved.write(step, {"w": hf.asarray([step] * 100)}, {"name": "epoch"}, score=step)
    path = saved.directory / "step-000000002.safetensors"
    saved.wait()
    whole = path.read_bytes()
    place = whole.index(b"epoch")
    cases = {
        "not a safetensors file": [whole[:-1], b"", whole[: len(whole) // 2], whole + b"0", bytes(len(whole))],
        "its digest": [
            whole[:-1] + bytes([whole[-1] ^ 1]), whole[:place] + b"E" + whole[place + 1 :],
            whole.replace(b'"2"', b'"3"', 1),
        ],
        "no checkpoint": [whole.replace(b"hybridflow checkpoint", b"hybridflow something.")],
    }
    for text, contents in cases.items():
        for content in contents:
            path.write_bytes(content)
            for find in (saved.newest, saved.best):
                with pytest.warns(FileWarning, match=f"passed over.*{text}"):
                    found = find()
                assert found is not None
                assert found.step == 1
    path.write_bytes(whole)
    assert saved.newest().step == 2  # type: ignore[union-attr]


def test_other_versions_are_upgraded_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved = Checkpoints(tmp_path)
    saved.write(1, {"w": hf.asarray(1)}, {"a": 1}).wait()
    monkeypatch.setattr(checkpoints, "VERSION", 2)
    for find in (saved.newest, saved.best, saved.steps):
        with pytest.raises(FileFormatError, match=r"written in version '1' of the format, .* reads version 2"):
            find()

    def upgrade(fields: dict[str, str], arrays: Any) -> Any:
        return {**fields, "state": '{"b": 2}'}, {"v": arrays["w"] + 1}

    monkeypatch.setattr(checkpoints, "UPGRADES", {1: upgrade})
    found = saved.newest()
    assert found is not None
    assert (found.state, {path: one.item() for path, one in found.values.items()}) == ({"b": 2}, {"v": 2})
    saved.write(2, {"v": hf.asarray(1)}, {}).wait()
    monkeypatch.undo()
    with pytest.raises(FileFormatError, match="by a newer hybridflow, in version '2'"):
        saved.newest()


def test_a_failure_arrives_at_the_next_call_once(tmp_path: Path):
    place = tmp_path / "run"
    place.write_text("a file where the directory is to be")
    saved = Checkpoints(place)
    values = {"w": hf.asarray(1)}
    failed = saved.write(1, values, {})
    with pytest.raises(FileError, match="cannot be used"):
        saved.write(2, values, {})
    place.unlink()
    with pytest.raises(FileError, match="cannot be used"):
        failed.wait()
    saved.write(3, values, {}).wait()
    assert saved.steps() == [3]
    (place / "step-000000003.safetensors").unlink()
    place.rmdir()
    place.write_text("again")
    failed = saved.write(4, values, {})
    with pytest.raises(HybridflowError):
        failed.wait()
    saved.wait()  # it has been told


def test_a_failure_that_nobody_asks_for_is_a_warning_at_the_end(tmp_path: Path):
    (tmp_path / "run").write_text("")
    code = """
import os, subprocess, sys
if os.environ.get("INNER"):
    import hybridflow as hf
    from hybridflow.saving.checkpoints import Checkpoints
    saved = Checkpoints(os.environ["RUN"])
    saved.write(1, {"w": hf.asarray(1)}, {})
else:
    done = subprocess.run([sys.executable, *sys.orig_argv[1:]], env={**os.environ, "INNER": "1"}, capture_output=True)
    print(done.stderr.decode())
"""
    said = run_python(code, RUN=str(tmp_path / "run"))
    assert "FileWarning: checkpoint: " in said
    assert "cannot be used" in said


@posix
def test_leftovers_are_removed_unless_somebody_works_on_them(tmp_path: Path):
    for name in (".step-000000001.safetensors.00.part", ".step-000000007.safetensors.ff.part", ".other.00.part"):
        (tmp_path / name).write_bytes(b"half")
    saved = Checkpoints(tmp_path)
    with files.whole_file(tmp_path / "step-000000009.safetensors") as file:
        file.write(b"not yet")
        saved.write(2, {"w": hf.asarray(1)}, {}).wait()
        here = {path.name for path in tmp_path.iterdir()}
        assert len(here) == 3
        assert {"step-000000002.safetensors", ".other.00.part"} < here
    assert (tmp_path / "step-000000009.safetensors").read_bytes() == b"not yet"


# -- processes that end, one way or another ---------------------------------------------------------------------------

PROCESSES = """
import os, random, resource, signal, sys, time, traceback, warnings
import numpy as np
import hybridflow as hf
from hybridflow.saving.checkpoints import Checkpoints

warnings.simplefilter("error")
directory = os.environ["RUN"]

def train(until=10**9, size=200_000):
    saved = Checkpoints(directory)
    found = saved.newest()
    step = 0 if found is None else found.step
    weight = hf.Variable(np.full(size, float(step)))
    optimizer = hf.optim.SGD([weight], rate=1.0)
    while step < until:
        step += 1
        optimizer.update([-np.ones(size)])
        saved.write(step, {"w": weight}, {"step": step}, score=-abs(step % 7 - 3), keep=2)
    saved.wait()

def forked(work):
    process = os.fork()  # XLA has not begun in this process
    if process == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process

def check():
    newest, best = Checkpoints(directory).newest(), Checkpoints(directory).best()
    for found in (newest, best):
        if found is not None:
            assert found.state == {"step": found.step}
            assert (found.values["w"].numpy() == found.step).all()
    return 0 if newest is None else newest.step

def parts():
    return {name for name in os.listdir(directory) if name.endswith(".part")}

def checked():
    read, write = os.pipe()
    process = forked(lambda: os.write(write, check().to_bytes(4, "little")))
    assert os.waitpid(process, 0)[1] == 0
    step = int.from_bytes(os.read(read, 4), "little")
    os.close(read), os.close(write)
    return step
"""


@posix
def test_killed_at_any_moment_it_goes_on_from_a_whole_checkpoint(tmp_path: Path):
    code = PROCESSES + """
random.seed(3)
last, inside = 0, 0
for kill in range(16):
    before = parts()
    process = forked(train)
    while not parts() - before:
        time.sleep(0.001)
    time.sleep(random.choice([0, random.uniform(0, 0.05)]))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    inside += bool(parts())
    step = checked()
    assert step >= last, (step, last)
    last = step
forked(lambda: train(last + 2))
os.wait()
print(inside, checked() - last, len(os.listdir(directory)))
"""
    inside, steps, number = map(int, run_python(code, RUN=str(tmp_path)).split())
    assert inside > 2
    assert steps == 2
    assert 2 <= number <= 3


@posix
def test_an_end_is_waited_for_and_a_full_disk_loses_nothing(tmp_path: Path):
    code = PROCESSES + """
if os.environ["LIMIT"] == "1":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        train(9)
    except hf.core.errors.FileError as error:
        print(str(error).splitlines()[1].strip(), check(), sorted(os.listdir(directory)))
else:
    saved, weight = Checkpoints(directory), hf.Variable(np.full(200_000, 3.0))
    saved.write(3, {"w": weight}, {"step": 3})
"""
    run_python(code, RUN=str(tmp_path), LIMIT="0")
    said = run_python(code, RUN=str(tmp_path), LIMIT="1")
    assert said == "got: File too large 3 ['step-000000003.safetensors']\n"
    assert Checkpoints(tmp_path).steps() == [3]
