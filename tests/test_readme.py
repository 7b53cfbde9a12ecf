"""Every Python block of the README and its pages runs and shows what it says; so does every console line."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import ON_SEVERAL, PAGES, README, ROOT, blocks, run_section

import hybridflow as hf

BLOCKS = [block for page in PAGES for block in blocks(page)]
_RUN_HERE = [block for block in BLOCKS if block.language == "python" and block.page.name not in ON_SEVERAL]
SECTIONS = list(dict.fromkeys((block.page, block.section) for block in _RUN_HERE))


@pytest.mark.parametrize(("page", "section"), SECTIONS, ids=lambda one: one.stem if isinstance(one, Path) else one)
def test_python_blocks(page: Path, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with hf.config.verify(every=3):  # every third call of each compiled function is run eagerly too, and compared
        run_section(page, section, {"__name__": "readme"})


CONSOLE = [
    line
    for block in BLOCKS
    if block.language == "console" and not block.command
    for line in block.text.splitlines()
    if line
]


@pytest.mark.parametrize("line", CONSOLE)
def test_console_lines(line: str):
    program, *arguments = shlex.split(line)
    assert program == "hybridflow"
    if arguments[0] == "compare":
        arguments += ["--repeats", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "hybridflow", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_marked_commands():
    commands = {block.command: block.text for block in BLOCKS if block.command}
    assert {block.page for block in BLOCKS if block.command} == {README}
    assert set(commands) == {"demo", "tests", "book"}
    for command in commands.values():
        assert len(command.splitlines()) == 1
        assert command.startswith("python3 -m venv .venv && ")
        assert f"run: {command.strip()}\n" in (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")


def test_one_version_of_ruff_and_the_ends_of_the_range_of_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ruff = next(one.partition("==")[2] for one in project["optional-dependencies"]["test"] if one.startswith("ruff=="))
    assert f"rev: v{ruff}\n" in (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pythons = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    workflow = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert f'python: ["{pythons[0]}", "{pythons[-1]}"]' in workflow


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_linked_files_exist(page: Path):
    for target in re.findall(r"\]\(((?!http)[^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_leads_to_every_page():
    text = README.read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"](notebooks/{page.name})" not in text] == []


def test_the_readme_has_the_words_that_newcomers_look_for():
    text = README.read_text(encoding="utf-8")
    words = ["save", "dropout", "device", "synchronize", "zero_grad", ".at["]
    assert [word for word in words if word not in text] == []
