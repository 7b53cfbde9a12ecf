"""Type checkers read hybridflow where `pip install -e .` puts it, and its archives have all of its files."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

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
    (site / "zz_others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
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


@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_a_program_elsewhere_is_checked(checker: str, python: Path, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text("import hybridflow as hf\n\nx: int = hf.Tensor.nonsense\n", encoding="utf-8")
    found = checked(checker, python, program)
    assert "nonsense" in found
    assert "import" not in found.replace("imports", "")


def checked(checker: str, python: Path, program: Path) -> str:
    """Return what a type checker says about a program."""
    pytest.importorskip(checker)
    options = {"pyright": ["--pythonpath"], "mypy": ["--strict", "--python-executable"]}[checker]
    command = [sys.executable, "-m", checker, *options, str(python), program.name]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr
