"""The commands about artifacts: `hybridflow export`, `inspect` and `run`."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.cli import main

SOURCE = """
import numpy as np
import hybridflow as hf

hf.nn.init.seed(1)
model = hf.nn.Sequential(hf.nn.Linear(4, 3), hf.nn.relu, hf.nn.Dropout(0.5), hf.nn.Linear(3, 2))
Net = hf.nn.Linear

def two(given, n):
    hf.debugging.check(hf.all(n > 0), "n is positive")
    return {"a": given["x"] * n, "b": given["y"] * 2}

two_args = ({"x": hf.ones((3,)), "y": hf.ones(2, dtype=hf.bfloat16)}, hf.ones(()))

def named(x, y):
    return x - y

named_args = {"y": np.ones(2, np.float32), "x": np.zeros(2, np.float32)}

def only_named(*, x):
    return x

only_named_args = {"x": np.ones(2, np.float32)}

def prints(x):
    hf.print(x)
    return x

def raises(x):
    return {}["missing"]

def draws(x):
    return x + hf.random.normal(x.shape)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


def command(folder: Path, *arguments: str) -> str:
    """Run a command as a shell does and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "hybridflow", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(hf.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PAGE = (Path(__file__).parents[1] / "notebooks/training.md").read_text(encoding="utf-8")
TRAINS = "The module is in training mode; what was exported is its evaluation mode, as after eval().\n"
LINES = re.search(r"```sh\n((?:hybridflow (?:export|inspect|run) .*\n)+)```", PAGE)


def test_the_lines_of_the_page_export_show_and_run_a_model(source: Path):
    folder = source.parent
    assert LINES is not None
    export, inspect, run, *others = [shlex.split(line)[1:] for line in LINES[1].splitlines()]
    source.write_text(SOURCE.replace("Linear(4, 3)", "Linear(784, 3)"), encoding="utf-8")
    assert command(folder, *export) == "Artifact: digits.hf\n" + TRAINS
    source.unlink()
    shown = command(folder, *inspect)
    for text in ("takes x: f32[x_0,784]", "returns output: f32[x_0,2]", "sizes left open: x_0",
                 "costs 4724*x_0 FLOPs", "Weights: 4, 9452 bytes", "0.weight: f32[3,784], trainable",
                 "version 1 of the format"):
        assert text in shown
    digest = hashlib.sha256((folder / "digits.hf" / "manifest.json").read_bytes()).hexdigest()
    assert f"{digest}  manifest.json" in shown
    x = np.arange(2352, dtype=np.float32).reshape(3, 784)
    np.savez(folder / "input.npz", x=x)
    assert command(folder, *run, "--digest", digest) == "output: f32[3,2]\n"
    expected = hf.export.load(folder / "digits.hf").predict(x)
    with np.load(folder / "output.npz") as found:
        assert found["output"].tobytes() == np.asarray(expected).tobytes()
    for line in others:
        pytest.importorskip("onnx")
        assert command(folder, *line) == "ONNX model: digits.onnx\n"  # of an artifact, which has no modes


@pytest.mark.parametrize(("package", "ending"), [("onnx", "onnx"), ("flatbuffers", "stablehlo")])
def test_functions_and_artifacts_are_written_in_other_formats(
    package: str, ending: str, source: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip(package)
    made, again = [str(source.parent / f"{name}.{ending}") for name in ("one", "again")]
    given = ["export", f"{source}:model", "--spec", "f32[None,4]", "--to"]
    assert main([*given, made]) == 0
    assert main([*given, made]) == 2
    artifact = str(source.parent / "one.hf")
    assert main([*given, artifact]) == 0
    assert main(["export", artifact, "--to", again]) == 0
    assert Path(made).stat().st_size > 100
    assert Path(again).stat().st_size > 100
    assert f": {again}" in capsys.readouterr().out
    for wrong in (["--spec", "f32[3]"], ["--function", "other"]):
        assert main(["export", artifact, "--to", again, "--overwrite", *wrong]) == 2
    assert main(["export", artifact, "--to", f"{artifact}2"]) == 2


def test_arguments_come_from_the_file_and_structures_from_names(source: Path, capsys: pytest.CaptureFixture[str]):
    folder = source.parent
    for name in ("two", "named"):
        assert main(["export", f"{source}:{name}", "--to", str(folder / name)]) == 0
    assert main(["inspect", str(folder / "two")]) == 0
    assert "raises CheckError: n is positive, of nets.py:10" in capsys.readouterr().out
    assert main(["inspect", str(folder / "two"), "--as", "graph"]) == 0
    assert capsys.readouterr().out == f"{hf.export.load(folder / 'two').predict.graph()}\n"
    y = np.asarray([1.0, 2.0], hf.bfloat16)
    np.savez(folder / "in.npz", given_x=np.ones(3, np.float32), given_y=y, n=np.float32(3))
    files = [str(folder / name) for name in ("two", "in.npz", "out.npz")]
    assert main(["run", *files]) == 0
    with np.load(files[2]) as found:
        assert found["a"].tolist() == [3.0] * 3
        assert found["b"].view(hf.bfloat16).tolist() == [2.0, 4.0]
    np.savez(folder / "in.npz", given_x=np.ones(3, np.float32), given_y=y, n=np.float32(-1))
    assert main(["run", *files]) == 2
    assert "n is positive" in capsys.readouterr().err
    np.savez(folder / "in.npz", x=np.zeros(2, np.float32), y=np.ones(2, np.float32))
    assert main(["run", str(folder / "named"), *files[1:]]) == 0
    with np.load(files[2]) as found:
        assert found["output"].tolist() == [-1.0, -1.0]


def test_a_seed_repeats_what_a_function_draws(source: Path):
    folder = source.parent
    assert main(["export", f"{source}:draws", "--spec", "f32[2]", "--to", str(folder / "draws")]) == 0
    np.savez(folder / "in.npz", x=np.zeros(2, np.float32))
    found: list[list[float]] = []
    for seed in ("3", "3", "4"):
        files = [str(folder / name) for name in ("draws", "in.npz", "out.npz")]
        assert main(["run", *files, "--seed", seed]) == 0
        with np.load(files[2]) as made:
            found.append(made["output"].tolist())
    assert found[0] == found[1] != found[2]


def test_one_of_several_functions_is_named(source: Path, capsys: pytest.CaptureFixture[str]):
    folder = source.parent
    spec = hf.TensorSpec([2])
    hf.export.save(folder / "one", twice=(lambda x: x * 2, spec), thrice=(lambda x: x * 3, spec))
    np.savez(folder / "in.npz", x=np.ones(2, np.float32))
    files = [str(folder / name) for name in ("one", "in.npz", "out.npz")]
    assert main(["run", *files, "--function", "thrice"]) == 0
    assert main(["run", *files]) == 2
    assert main(["run", *files, "--function", "four"]) == 2
    errors = capsys.readouterr().err
    assert "the artifact has several functions\n  got: thrice, twice" in errors
    assert "the artifact has no function 'four'" in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["export", "{0}:model", "--to", "{1}/x"], "model needs arguments"),
        (["export", "{0}:model", "--to", "{1}/x"], "or give --spec f32[4,3]"),
        (["export", "{0}:model", "--spec", "f32[-,4]", "--to", "{1}/x"], "--spec: 'f32[-,4]' is not a dtype"),
        (["export", "{0}:model", "--spec", "f32[None,4]", "f32[]", "--to", "{1}/x"], "those of --spec"),
        (["export", "{0}:model", "--spec", "f32[None,4]", "--to", "{1}/folder"], "is there already"),
        (["export", "{0}:model", "--spec", "f32[None,4]", "--to", "{1}/none/x"], "there is no folder"),
        (["export", "{0}:Net", "--to", "{1}/x"], "'Net' is a class"),
        (["export", "{0}:nothing", "--to", "{1}/x"], "has no function 'nothing'"),
        (["export", "{0}:only_named", "--to", "{1}/x"], "takes arguments by name only"),
        (["export", "{0}:prints", "--spec", "f32[3]", "--to", "{1}/x"], "predict calls print at"),
        (["export", "{0}:raises", "--spec", "f32[3]", "--to", "{1}/x"], "KeyError: 'missing'"),
        (["inspect", "{1}/folder"], "is a folder, and hf.export.load reads artifacts"),
        (["inspect", "{1}/one", "--as", "hlo"], "--as graph is the only text"),
        (["inspect", "{1}/one", "--digest", "00"], "is not the artifact with that digest"),
        (["inspect", "{0}:named", "--digest", "00"], "--digest is for artifacts"),
        (["run", "{1}/none", "{1}/in.npz", "{1}/out.npz"], "there is no directory"),
        (["run", "{1}/one", "{1}/none.npz", "{1}/out.npz"], "there is no file"),
        (["run", "{1}/one", "{0}", "{1}/out.npz"], "is no .npz file of arrays"),
        (["run", "{1}/one", "{1}/pickled.npz", "{1}/out.npz"], "is no .npz file of arrays"),
        (["run", "{1}/one", "{1}/in.npz", "{1}/out.txt"], "End it in .npz"),
        (["run", "{1}/one", "{1}/in.npz", "{1}/none/out.npz"], "there is no folder"),
        (["run", "{1}/one", "{1}/other.npz", "{1}/out.npz"], "predict: takes x\n  got: y"),
        (["run", "{1}/one", "{1}/wide.npz", "{1}/out.npz"], "x is float64, not float32"),
    ],
)
def test_what_cannot_be_done_is_one_paragraph_and_exit_code_2(
    arguments: list[str], text: str, source: Path, capsys: pytest.CaptureFixture[str]
):
    folder = source.parent
    (folder / "folder").mkdir()
    hf.export.save(folder / "one", lambda x: x + 1, hf.TensorSpec([3]))
    np.savez(folder / "in.npz", x=np.ones(3, np.float32))
    np.savez(folder / "other.npz", y=np.ones(3, np.float32))
    np.savez(folder / "wide.npz", x=np.ones(3))
    np.savez(folder / "pickled.npz", x=np.asarray([{"a": 1}], object))
    before = {*folder.rglob("*")}
    assert main([argument.format(source, folder) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert re.sub(r"\s", "", text) in re.sub(r"\s", "", error)
    assert len(error) < 2500
    assert "Traceback" not in error or "KeyError" in error
    assert {one for one in {*folder.rglob("*")} - before if "__pycache__" not in str(one)} == set()


def test_what_is_there_is_replaced_when_asked(source: Path):
    path = str(source.parent / "one")
    given = ["export", f"{source}:draws", "--spec", "f32[2]", "--to", path]
    assert [main(given), main(given), main([*given, "--overwrite"])] == [0, 2, 0]
