"""The command line: what it prints, its exit codes, and that a stop leaves nothing half-written."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

import hybridflow as hf
from hybridflow.backend import options
from hybridflow.cli import crashes, main
from hybridflow.cli.targets import load_target
from hybridflow.cli.verbs import doctor
from hybridflow.cli.verbs.compare import progress_bar

VERSION = doctor._version

GOOD = """
import numpy as np
import hybridflow as hf

def double(x):
    return x * 2.0

def double_args():
    return (np.ones((2, 3), np.float32),)

def named(x, scale):
    return x * scale

named_args = {"x": hf.asarray([1.0]), "scale": 3.0}

def several(*xs):
    return xs[0]

def nothing():
    return hf.asarray(1.0) + 1.0

def pick(x, i):
    return x[i.item()] if False else x + i

def wrong(x):
    return x * (1.01 if hf.is_tracing() else 1.0)

def raises(x):
    values = {}
    return helper(values)

def helper(values):
    return values["missing"]

def thrice(x):
    return x + x + x

def double_inputs(n):
    return np.ones((n, 3), np.float32)

def double_in_numpy(x):
    assert type(x) is np.ndarray
    return x * np.float32(2)

def bad_shape(x):
    return x + hf.zeros((7,))

number = 3
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(GOOD)
    return path


def test_compare(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", f"{model}:double", "--repeats", "2", "--gradients"]) == 0
    out = capsys.readouterr().out
    assert "SAME: eager and compiled results agree but for rounding." in out
    assert "speed-up" in out
    assert "gradients" in out


@pytest.mark.parametrize("arguments", [["named"], ["nothing"], ["pick", "--shapes", "f32[4,3]", "i32[]"]])
def test_arguments_of_every_kind(model: Path, arguments: list[str]):
    assert main(["compare", f"{model}:{arguments[0]}", *arguments[1:], "--repeats", "1"]) == 0


def test_shapes_are_dtypes_and_sizes(model: Path):
    target = load_target(f"{model}:several", ["f32[4,3]", "i64[]", "bool[2]", "bf16[0,2]"])
    assert [(a.shape, a.dtype.name) for a in target.args] == [
        ((4, 3), "float32"), ((), "int64"), ((2,), "bool"), ((0, 2), "bfloat16"),
    ]


def test_the_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert (exit_.value.code, capsys.readouterr().out) == (0, f"hybridflow {hf.__version__}\n")


def test_a_difference_is_exit_code_1(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", f"{model}:wrong", "--shapes", "f32[3]", "--repeats", "1"]) == 1
    assert "DIFFERENT: results differ by more than rounding." in capsys.readouterr().out


def test_compare_writes_a_report(model: Path, tmp_path: Path):
    out = tmp_path / "out.html"
    assert main(["compare", f"{model}:double", "--repeats", "1", "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("targets", [["{0}:double,thrice"], ["{0}:double", "{0}:thrice"]])
def test_compare_several_functions(targets: list[str], model: Path, capsys: pytest.CaptureFixture[str]):
    arguments = [target.format(model) for target in targets]
    assert main(["compare", *arguments, "--repeats", "1"]) == 0
    assert "double and thrice, side by side" in capsys.readouterr().out
    assert main(["compare", *arguments, "--repeats", "1", "--agree"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT: results differ by more than rounding." in out
    assert "double 2.0, thrice 3.0" in out


@pytest.mark.parametrize("more", [[], ["--shapes", "f32[n,2]"]])
def test_compare_sizes(more: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kept = tmp_path / "found.json"
    arguments = ["--sizes", "4", "16", "--repeats", "1", "--json", str(kept), *more]
    assert main(["compare", f"{model}:double", *arguments]) == 0
    out = capsys.readouterr().out
    assert "SAME: at every size" in out
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert found["sizes"] == [4, 16]
    assert found["same"] is True


def test_compare_peers_and_all_outputs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("matplotlib")
    names = [tmp_path / name for name in ("page.html", "found.json", "plot.svg")]
    outputs = ["--out", str(names[0]), "--json", str(names[1]), "--plot", str(names[2])]
    peers = ["--peers", f"numpy={model}:double_in_numpy"]
    assert main(["compare", f"{model}:double", "--repeats", "1", *peers, *outputs]) == 0
    assert [name.is_file() for name in names] == [True, True, True]
    assert json.loads(names[1].read_text(encoding="utf-8"))["peers"][0]["name"] == "numpy"
    assert main(["compare", f"{model}:thrice", "--shapes", "f32[3]", "--repeats", "1", *peers]) == 1
    assert "numpy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{0}:double,duoble"], "has no function 'duoble'"),
        (["{0}:thrice", "--sizes", "4"], "Define thrice_inputs(n)"),
        (["{0}:double", "--sizes", "4", "--shapes", "f32[3]"], "none of the arguments depends on the size"),
        (["{0}:double", "--shapes", "f32[n]"], "which only --sizes gives a value"),
        (["{0}:double", "--peers", "{0}:double"], "does not say which package it is for"),
        (["{0}:double", "--peers", "numpy={0}:nothing_there"], "has no function 'nothing_there'"),
        (["{0}:double", "--peers", "cupy={0}:double"], "'cupy' names no package"),
        (["{0}:double", "--json", "{0}/no/found.json"], "there is no folder"),
    ],
)
def test_bad_use_of_compare_is_exit_code_2(
    arguments: list[str], text: str, model: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["compare", *[argument.format(model) for argument in arguments]]) == 2
    error = re.sub(r"\s", "", capsys.readouterr().err)
    assert re.sub(r"\s", "", text) in error


def test_a_bar_is_shown_on_terminals_only():
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        with progress_bar(console) as progress:
            assert (progress is not None) == terminal
            if progress is not None:
                progress("timing", 0.5)
        assert ("timing" in console.file.getvalue()) == terminal


def test_inspect(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", f"{model}:double"]) == 0
    out = capsys.readouterr().out
    assert "multiply" in out
    for part in ("double: 1 trace", "why: first call", "XLA options", "Cost of one call of double", "temporaries"):
        assert part in out
    assert "1 kernel, besides" in out


def double_lowered(model: Path) -> Any:
    target = load_target(f"{model}:double")
    return hf.compile(target.function).lower(*target.args)


@pytest.mark.parametrize("stage", ["graph", "optimized", "stablehlo", "hlo", "llvm"])
def test_inspect_prints_one_text_alone(stage: str, model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", f"{model}:double", "--as", stage]) == 0
    printed = capsys.readouterr().out
    expected = double_lowered(model).as_text(stage)
    if stage == "hlo":  # its header names the stack of the call that compiled it
        printed, expected = [re.sub(r", metadata={.*?}", "", one[one.index("ENTRY") :]) for one in (printed, expected)]
    assert printed.rstrip() == expected.rstrip()


def test_inspect_writes_one_page(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "report.html"
    assert main(["inspect", f"{model}:double", "--as", "graph", "--html", str(out)]) == 0
    printed = capsys.readouterr()
    assert "Page:" in printed.err
    assert "Page:" not in printed.out
    page = out.read_text(encoding="utf-8")
    for part in ("double: 1 trace", "XLA options", "FLOPs", "srcdoc=", "stablehlo.multiply", "HloModule"):
        assert part in page
    assert not re.search(r'(?:src|href)="', page)


def test_inspect_writes_a_folder(model: Path, tmp_path: Path):
    out = tmp_path / "report"
    assert main(["inspect", f"{model}:double", "--out", str(out)]) == 0
    index = (out / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="([^"]+)"', index))
    assert linked == {path.name for path in out.iterdir()} - {"index.html"}
    assert linked == {"graph.html", "passes.html", "cost.html", "why.html",
                      "graph.txt", "optimized.txt", "stablehlo.txt", "hlo.txt"}
    assert (out / "optimized.txt").read_text(encoding="utf-8") == double_lowered(model).as_text("optimized")
    assert main(["inspect", f"{model}:double", "--out", str(out)]) == 0  # again, into the same folder


@pytest.mark.parametrize("name", ["missing/report.html", "missing/report"])
def test_inspect_needs_a_folder_to_write_to(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["inspect", f"{model}:double", "--out", str(tmp_path / name)]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["profile", f"{model}:double", "--out", str(tmp_path / name)]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(("ending", "text"), [(".html", "By line"), (".json", "traceEvents")])
def test_profile(model: Path, tmp_path: Path, ending: str, text: str, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / f"profile{ending}"
    assert main(["profile", f"{model}:double", "--repeats", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Eager, 3 calls" in printed
    assert "double: 3 compiled calls" in printed
    assert text in out.read_text(encoding="utf-8")


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "200")
    used = "xla_allow_excess_precision"
    for verbose in ([], ["--verbose"]):
        assert main(["doctor", *verbose]) == 0
        out = capsys.readouterr().out
        for text in ("jaxlib", "cpu:0", "cores", "HYBRIDFLOW_CACHE_DIR=off", "the eager result", "jax is 0.10"):
            assert text in out
        assert (used in out) == bool(verbose)
        assert "FAILED" not in out


def test_doctor_tries_what_jaxlib_dies_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "300")
    dies = crashes.Crash("a test", "import os; os.abort()", "raise ValueError('so')", "not at all")
    lives = crashes.Crash("another", "import os; os.abort()", "", "by doing nothing")
    monkeypatch.setattr(crashes, "KNOWN", (dies, lives))
    monkeypatch.setattr(crashes, "_ends", crashes._ends.__wrapped__)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED") == 1
    assert "hybridflow survives a test" in out
    assert "ValueError: so" in out
    assert "plain jax: the process dies of signal 6; hybridflow avoids it: by doing nothing" in out


def test_doctor_names_a_jaxlib_that_is_newer_than_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(options, "jaxlib_version", lambda: (99, 0))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "XLA's options were measured for jaxlib 0.10.2 and 0.12.0" in out
    assert "gets those that results need, each tried first, and none for speed" in out


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_same", lambda: "they differ"),
        ("_same_gradient", lambda: 1 / 0),
        ("_version", lambda package: "0.9.1" if package == "jaxlib" else VERSION(package)),
        ("_version", lambda package: "not installed" if package == "numpy" else VERSION(package)),
    ],
)
def test_doctor_says_what_does_not_work(
    name: str, fault: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(doctor, name, fault)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED") == 1
    expected = "they differ", "ZeroDivisionError", "pip install 'jaxlib>=0.10'", "pip install 'numpy>=2.1'"
    assert any(text in out for text in expected)


def test_doctor_sees_what_changes_compiled_functions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "200")
    jax.config.update("jax_debug_nans", True)
    try:
        assert main(["doctor"]) == 1
    finally:
        jax.config.update("jax_debug_nans", False)
    assert "unset JAX_DEBUG_NANS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("{dir}/modle.py:double", "there is no file"),
        ("{dir}/modle.py:double", "Did you mean model.py?"),
        ("{dir}/model.py:duoble", "has no function 'duoble'"),
        ("{dir}/model.py:duoble", "Did you mean double?"),
        ("{dir}/model.py:number", "'number' in {dir}/model.py is an int, not a function"),
        ("{dir}/model.py", "is not FILE.py:FUNCTION"),
        ("{dir}/model.py:wrong", "wrong needs arguments"),
        ("{dir}/model.py:wrong", "Define wrong_args in the file"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "inspect", "profile"])
def test_a_target_that_is_not_there(
    command: str, target: str, text: str, model: Path, capsys: pytest.CaptureFixture[str]
):
    folder = str(model.parent)
    assert main([command, target.format(dir=folder)]) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert re.sub(r"\s", "", text.format(dir=folder)) in re.sub(r"\s", "", error)
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["compare", "inspect", "profile"])
def test_a_function_that_raises_shows_the_users_lines_only(
    command: str, model: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([command, f"{model}:raises", "--shapes", "f32[2]"]) == 2
    error = capsys.readouterr().err
    assert "KeyError: 'missing'" in error
    assert 'return values["missing"]' in error
    assert set(re.findall(r'File "([^"]+)"', error)) == {str(model)}


def test_a_function_with_a_shape_error(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", f"{model}:bad_shape", "--shapes", "f32[2]"]) == 2
    error = capsys.readouterr().err
    assert "size 2 against 7" in error
    assert set(re.findall(r'File "([^"]+)"', error)) == {str(model)}


@pytest.mark.parametrize("text", ["def broken(:\n", "raise RuntimeError('on import')\n"])
def test_a_file_that_cannot_be_imported(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "broken_model.py"
    path.write_text(text)
    assert main(["compare", f"{path}:broken"]) == 2
    error = capsys.readouterr().err
    assert "SyntaxError" in error or "RuntimeError: on import" in error
    assert set(re.findall(r'File "([^"]+)"', error)) == {str(path)}


@pytest.mark.parametrize("spec", ["f32", "f7[3]", "f32[3", "f32[-1]", "3,4"])
def test_bad_shapes(spec: str, model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", f"{model}:double", "--shapes", spec]) == 2
    assert "--shapes" in capsys.readouterr().err


def test_usage_errors_are_exit_code_2(capsys: pytest.CaptureFixture[str]):
    for argv in ([], ["nonsense"], ["compare"], ["demo", "--epochs", "0"]):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 2
    assert "0 is less than 1" in capsys.readouterr().err


# -- wrong invocations --------------------------------------------------------------------------------------------

WRONG = """
import sys
import numpy as np
import hybridflow as hf

def double(x):
    return x * 2.0

def both(x, y):
    return x + y

def strange(x):
    return x

strange_args = {"y": 3.0}

def leaves(x):
    sys.exit(0)

def huge(x):
    return hf.zeros((10**7, 10**7)) + x

def sized(x):
    return x

def sized_inputs():
    return ()

def endless(x):
    return x

def endless_inputs(n):
    return np.ones((n, n), np.float32)
"""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["compare", "{0}:double", "--shapes", "f32[10000000,10000000]"], "takes 363.8 TiB, and this machine has"),
        (["profile", "{0}:double", "--shapes", "f32[99999999999999999999]"], "and this machine has"),
        (["compare", "{0}:double", "--sizes", "4", "--shapes", "f32[n,9999999999999]"], "and this machine has"),
        (["compare", "{0}:endless", "--sizes", "4", "100000000"], "Unable to allocate"),
        (["compare", "{0}:huge", "--shapes", "f32[]", "--repeats", "1"], "there is not enough memory"),
        (["profile", "{0}:both", "--shapes", "f32[2]"], "missing a required argument: 'y'"),
        (["profile", "{0}:double", "--shapes", "f32[2]", "f32[2]"], "too many positional arguments"),
        (["profile", "{0}:strange"], "missing a required argument: 'x'"),
        (["inspect", "{0}:strange"], "missing a required argument: 'x'"),
        (["compare", "{0}:sized", "--sizes", "4"], "sized_inputs is called with a size"),
        (["compare", "{0}:leaves", "--shapes", "f32[2]"], "SystemExit: 0"),
        (["profile", "{0}:leaves", "--shapes", "f32[2]"], "SystemExit: 0"),
        (["compare", "{0}:double", "--shapes", "f32[2]", "--out", "{1}"], "is a folder"),
        (["compare", "{0}:double", "--shapes", "f32[2]", "--json", "{1}"], "is a folder"),
        (["compare", "{0}:double", "--shapes", "f32[2]", "--plot", "{1}/found.xyz"], "names no format of plots"),
        (["compare", "{0}:double", "--peers", "numpy={0}:double", "numpy={0}:double", "--shapes", "f32[2]"], "twice"),
        (["inspect", "{0}:double", "--shapes", "f32[2]", "--out", "{1}/page.html"], "is a folder"),
        (["inspect", "{0}:double", "--shapes", "f32[2]", "--out", "{0}"], "is a file, not a folder"),
        (["profile", "{0}:double", "--shapes", "f32[2]", "--out", "{1}"], "is a folder"),
        (["profile", "{0}:double", "--shapes", "f32[2]", "--out", "{1}/found.txt"], "does not say what to write"),
        (["demo", "--out", "{1}"], "is a folder"),
        (["compare", "{1}:double"], "is a folder"),
    ],
)
def test_what_cannot_be_done_is_said_at_once_with_exit_code_2(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    model, folder = tmp_path / "wrong_model.py", tmp_path / "folder"
    model.write_text(WRONG)
    (folder / "page.html").mkdir(parents=True)
    assert main([argument.format(model, folder) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert re.sub(r"\s", "", text) in re.sub(r"\s", "", error)
    assert all(str(model) in line for line in error.splitlines() if line.lstrip().startswith("File "))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["compare", "model.py:f", "--repeats", "many"], "'many' is not a whole number"),
        (["demo", "--seed", "-1"], "-1 is less than 0"),
    ],
)
def test_numbers_that_are_none(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def test_specs_are_inspected_without_their_memory(model: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", f"{model}:double", "--shapes", "f32[1048576,1048576]", "--as", "graph"]) == 0
    assert "f32[1048576,1048576]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ZeroDivisionError("by us"), 3, "this is a fault of hybridflow's own"),
        (MemoryError("Unable to allocate"), 2, "there is not enough memory"),
        (RuntimeError("Unable to initialize backend 'cuda': nothing there"), 2, "jax finds no device"),
        (OSError(28, "No space left on device", "page.html"), 2, "'page.html': No space left on device"),
    ],
)
def test_no_error_is_mistaken_for_results_that_differ(
    error: Exception, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail() -> Any:
        raise error

    monkeypatch.setattr("hybridflow.cli.verbs.cache.store_table", fail)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["cache"]) == code
    printed = capsys.readouterr().err
    assert text in printed
    assert ("Traceback" in printed) == (code == 3)


def test_nobody_reads_what_is_printed():
    code = "import sys; from hybridflow.cli import main; sys.exit(main(['cache']))"
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_a_report_can_go_to_what_is_no_file(tmp_path: Path, model: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    assert main(["compare", f"{model}:double", "--repeats", "1", "--json", str(pipe)]) == 0
    reader.join(timeout=60)
    assert json.loads(read[0])["same"] is True
    assert stat.S_ISFIFO(pipe.stat().st_mode)


# -- the demo -----------------------------------------------------------------------------------------------------


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "report.html"
    start = time.perf_counter()
    assert main(["demo", "--out", str(out)]) == 0
    assert time.perf_counter() - start < 120
    printed = capsys.readouterr().out
    accuracies = [float(text) for text in re.findall(r"([\d.]+)% of the test images right", printed)]
    assert len(accuracies) == 2
    assert min(accuracies) >= 96
    assert abs(accuracies[0] - accuracies[1]) < 1
    for text in ("parameters after 20 steps", "gradients", "break-even", "first call", "SAME"):
        assert text in printed
    assert set(re.findall(r"(\w+\.py):\d", printed)) == {"demo.py"}
    page = out.read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_demo_needs_a_folder_to_write_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--out", str(tmp_path / "missing" / "report.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_demo_without_scikit_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo", "--out", str(tmp_path / "report.html")]) == 2
    assert "pip install 'hybridflow[examples]'" in capsys.readouterr().err


# What a shell starts in the background ignores interrupts, and so would its children.
_INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from hybridflow.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path):
    pytest.importorskip("sklearn")
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTIBLE, "demo", "--epochs", "100000"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        assert "Handwritten digits" in process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "interrupted; no report was written" in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())
