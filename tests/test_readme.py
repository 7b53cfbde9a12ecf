"""Every Python block of the README runs and shows what it says; every console line of the tour works."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


class Block(NamedTuple):
    section: str
    language: str
    text: str
    line: int
    command: bool


def blocks() -> list[Block]:
    """Return the fenced blocks with the heading they stand under."""
    found: list[Block] = []
    section, language, start, marked = "", None, 0, False
    lines = TEXT.splitlines()
    for number, line in enumerate(lines, start=1):
        if language is None and line.startswith("#"):
            section = line.lstrip("# ")
        if line.startswith("```"):
            if language is None:
                language, start = line[3:], number
                marked = lines[number - 2].startswith("<!-- command:")
            else:
                text = "\n".join(lines[start : number - 1]) + "\n"
                found.append(Block(section, language, text, start, marked))
                language = None
    return found


BLOCKS = blocks()
SECTIONS = list(dict.fromkeys(block.section for block in BLOCKS if block.language == "python"))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("section", SECTIONS)
def test_python_blocks(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "readme"}
    parser = doctest.DocTestParser()
    for block in BLOCKS:
        if block.section != section or block.language != "python":
            continue
        if ">>>" not in block.text:
            exec(compile("\n" * block.line + block.text, "README.md", "exec"), namespace)
            continue
        test = parser.get_doctest(block.text, namespace, f"README.md, {section}", "README.md", block.line)
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        runner.run(test, out=report.append, clear_globs=False)
        namespace.update(test.globs)
        assert runner.failures == 0, "".join(report)


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


def test_there_are_two_marked_commands():
    commands = {
        re.fullmatch(r"<!-- command: (\w+) -->", TEXT.splitlines()[block.line - 2])[1]: block.text
        for block in BLOCKS
        if block.command
    }
    assert set(commands) == {"demo", "tests"}
    for command in commands.values():
        assert len(command.splitlines()) == 1
        assert command.startswith("python3 -m venv .venv && ")


def test_linked_files_exist():
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target
