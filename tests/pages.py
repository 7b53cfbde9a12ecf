"""The Markdown pages whose examples the tests run: the README and those in `notebooks/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
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
