"""HTML parts that several reports share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
.same { color: #17692b; font-weight: 600; }
.different { color: #a40000; font-weight: 600; white-space: pre-wrap; }
.caution { color: #8a5a00; }
figure { margin: 1.5rem 0; }
svg { max-width: 100%; height: auto; }
"""


_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|B|GFLOP/s|[mun]?s)\b|%)")


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table that scrolls if it is wide; there is no line break between a number and its unit."""
    lines = ['<div style="overflow-x: auto">', "<table>"]
    if head:
        lines.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>")
    rows = [[_UNIT.sub("\N{NO-BREAK SPACE}", cell) for cell in row] for row in rows]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table></div>"])


def rich_table_html(table: Table) -> str:
    """Return a table of `rich` as an HTML table, under its title."""
    rows = list(zip(*[map(str, column.cells) for column in table.columns], strict=True))
    if table.show_footer:
        rows.append(tuple([str(column.footer) for column in table.columns]))
    head = [str(column.header) for column in table.columns] if table.show_header else []
    title = f"<p><b>{escape(str(table.title))}</b></p>" if table.title else ""
    return title + table_html(head, rows)


def paragraphs_html(text: str) -> str:
    """Return the lines of a text as HTML paragraphs."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines())


def text_html(text: str) -> str:
    """Return a text as HTML: a line as a paragraph, several as they are, since their places may matter."""
    return f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' if "\n" in text else f"<p>{escape(text)}</p>"


def page(title: str, body: str) -> str:
    """Return an HTML page that includes its style."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
