"""HTML that several reports are made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table."""
    lines = ["<table>", "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def paragraphs_html(text: str) -> str:
    """Return a paragraph per line of a text."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())
