"""Type checkers read hybridflow where `pip install -e .` puts it, and its archives have all of its files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from processes import run_python

import hybridflow as hf  # noqa: F401 - what `eval` sees

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hybridflow"


def built(kind: str, folder: Path) -> Path:
    """Return the archive that the checkout's build backend makes, as pip asks for it: `editable`, `wheel`, `sdist`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    backend = pytest.importorskip(project["build-system"]["build-backend"]).__name__
    code = f"import sys, {backend} as backend; print(backend.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a fresh environment that has the editable install, and the packages installed here."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=os.name != "nt")
    site = Path(sysconfig.get_path("purelib", "venv", {"base": folder / "venv", "platbase": folder / "venv"}))
    zipfile.ZipFile(built("editable", folder)).extractall(site)
    others = [one for one in sys.path if Path(one).name == "site-packages"]
    (site / "zz_others.pth").write_text("\n".join(others), encoding="utf-8")
    return Path(sysconfig.get_path("scripts", "venv", {"base": folder / "venv"})) / "python"


def files_below(folder: Path) -> set[str]:
    """Return the files below a folder of the checkout, but for those that Python and Sphinx write."""
    found = [path.relative_to(ROOT) for path in folder.rglob("*") if path.is_file()]
    return {one.as_posix() for one in found if "__pycache__" not in one.parts and one.parts[:2] != ("notebooks", "api")}


def test_archives_have_all_files(tmp_path: Path):
    package = files_below(PACKAGE)
    named = ("py.typed", "core/methods.pyi", "ops/README.md", "pictures/viewer.js")
    assert {f"hybridflow/{one}" for one in named} <= package
    inside = zipfile.ZipFile(built("wheel", tmp_path)).namelist()
    assert {one for one in inside if ".dist-info/" not in one} == package
    with tarfile.open(built("sdist", tmp_path)) as archive:
        inside = {one.partition("/")[2] for one in archive.getnames()}
    rest = {one for name in ("tests", "examples", "notebooks") for one in files_below(ROOT / name)}
    top = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert inside == package | rest | top


CHECKERS = pytest.mark.parametrize("checker", ["pyright", "mypy"])
PROGRAM = Path(__file__).with_name("typed_program.py")
MODULES = (
    "hf", "hf.nn", "hf.nn.init", "hf.random", "hf.linalg", "hf.fft", "hf.special", "hf.config", "hf.data",
    "hf.debugging", "hf.distribute", "hf.export", "hf.integrate", "hf.metrics", "hf.models", "hf.optim",
    "hf.optimize", "hf.serve", "hf.testing", "hf.train",
)
_ARGNUMS = "the gradient has the structure of the arguments that argnums names"
ANY = {
    "hf.grad": _ARGNUMS, "hf.value_and_grad": _ARGNUMS, "hf.vjp": _ARGNUMS, "hf.jacobian": _ARGNUMS,
    "hf.hessian": _ARGNUMS, "hf.accumulate_gradients": _ARGNUMS,
    "hf.associative_scan": "the structure of the elements", "hf.integrate.odeint": "the structure of y0",
    "hf.from_jax": "the structure of what a JAX function returns, with tensors in place of arrays",
    "hf.to_jax": "the structure of what a function returns, with JAX's arrays in place of tensors",
    "hf.pure_callback": "the structure of the spec", "hf.data.stream": "the structure of the examples, stacked",
    "hf.train.evaluate": "a number, an array, or a dict of them: what the metrics are",
    "hf.train.fit": "numbers and arrays: what the metrics are",
}
"""Public names whose result is Any for type checkers, each with the reason."""


def checked(checker: str, python: Path, program: Path) -> str:
    """Return what a type checker says about a program."""
    pytest.importorskip(checker)
    options = {"pyright": ["--pythonpath"], "mypy": ["--strict", "--no-color-output", "--python-executable"]}[checker]
    command = [sys.executable, "-m", checker, *options, str(python), program.name]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


@CHECKERS
def test_a_program_elsewhere_is_checked(checker: str, python: Path, tmp_path: Path):
    program = tmp_path / "program.py"
    wrong = {"model(first, scale='wide')": "scale", "hf.Tensor.nonsense": "nonsense", "hf.sums(first)": "sums"}
    program.write_text(PROGRAM.read_text(encoding="utf-8") + "\n".join(wrong), encoding="utf-8")
    length = len(PROGRAM.read_text(encoding="utf-8").splitlines())
    found = re.findall(r"program\.py:(\d+)(?::\d+)?.* error: (.*)", checked(checker, python, program))
    assert [int(line) for line, _ in found] == [length + 1, length + 2, length + 3]
    assert all(word in text for word, (_, text) in zip(list(wrong.values())[1:], found[1:], strict=True))


def test_the_program_runs():
    assert run_python(PROGRAM.read_text(encoding="utf-8")) == "(12, 4) True\n"


def public() -> list[str]:
    """Return the paths of the public functions and values of all modules."""
    found = [(f"{path}.{name}", getattr(eval(path), name)) for path in MODULES for name in dir(eval(path))]
    return [path for path, value in found if "._" not in path and not isinstance(value, type | ModuleType)]


ARRAYS = r"dtype\[\w+(\[Any\])?\]|ndarray\[(Any|tuple\[Any, \.\.\.\]), (Any|dtype\[Any\])\]"


@CHECKERS
def test_results_have_types(checker: str, python: Path, tmp_path: Path):
    names, program = public(), tmp_path / "surface.py"
    lines = ["import hybridflow as hf", *[f"reveal_type({name})" for name in names]]
    program.write_text("\n".join(lines), encoding="utf-8")
    said = checked(checker, python, program)
    assert not re.findall(".*error:.*", said)
    types = re.findall(r"surface\.py:(\d+):.*(?:is|type is) \"(.*)\"", said)
    assert len(types) == len(names) > 400
    vague: set[str] = set()
    for line, text in types:
        plain = re.sub(ARRAYS, "array", re.sub(r"(\w+\.)+(?=\w)", "", text))
        result = re.split(r"-> |\], |\), ", plain)[-1] if "->" in plain or "OpFunction" in plain else plain
        none = plain.startswith("def ") and plain.endswith(")")  # mypy leaves the result None out
        if not none and re.search(r"\b(Any|object|Unknown|ModuleType)\b", result):
            vague.add(names[int(line) - 2])
    assert vague == set(ANY)
