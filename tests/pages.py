"""The Markdown pages whose examples the tests run: the README and those in `notebooks/`."""

from __future__ import annotations

import doctest
import linecache
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ON_SEVERAL = {"many_devices.md"}
"""The pages that are run where there are several devices, by `meshes/mesh_page.py`."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = [README, *sorted((ROOT / "notebooks").glob("*.md"))]


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page: the file.
        section: the heading that it stands under.
        language: what is said behind the fence.
        text: what is in it.
        line: the line of the fence, from 1 on.
        command: the name of the command that it is marked as, if any.
    """

    page: Path
    section: str
    language: str
    text: str
    line: int
    command: str | None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found: list[Block] = []
    section, language, start, command = "", None, 0, None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if language is None and line.startswith("#"):
            section = line.lstrip("# ")
        if line.startswith("```"):
            if language is None:
                language, start = line[3:], number
                marked = re.fullmatch(r"<!-- command: (\w+) -->", lines[number - 2])
                command = marked and marked[1]
            else:
                text = "\n".join(lines[start : number - 1]) + "\n"
                found.append(Block(page, section, language, text, start, command))
                language = None
    return found


def run_section(page: Path, section: str, namespace: dict[str, Any]) -> None:
    """Run the Python blocks of a section; a block that does not show what it says fails."""
    parser = doctest.DocTestParser()
    for block in blocks(page):
        if block.section != section or block.language != "python":
            continue
        if ">>>" not in block.text:
            source = "\n" * block.line + block.text
            name = f"<{page.name}, {section}>"
            linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # as IPython does
            exec(compile(source, name, "exec"), namespace)
            continue
        test = parser.get_doctest(block.text, namespace, f"{page.name}, {section}", page.name, block.line)
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        runner.run(test, out=report.append, clear_globs=False)
        namespace.update(test.globs)
        assert runner.failures == 0, "".join(report)
