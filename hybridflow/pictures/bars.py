"""Horizontal bars in parts, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_ROW, _BAR, _TOP, _WIDE, _CHARACTER = 26, 18, 58, 460, 7.2
_COLOURS = ("#8fb7dd", "#e8a15c", "#d5dce2", "#b7a6d9", "#9cc7ab")
_TEXT, _FAULT = "#1c2733", "#c1440e"


class Bar(NamedTuple):
    """A bar.

    Attributes:
        name: its name, to the left.
        parts: the names and sizes of its parts, in the same order for all bars.
        said: what is said of it, to the right.
        is_faulty: whether that text is in the colour of faults.
    """

    name: str
    parts: Sequence[tuple[str, float]]
    said: str
    is_faulty: bool = False


def bars_svg(title: str, bars: Sequence[Bar]) -> str:
    """Return bars as a self-contained SVG document, with a legend of their parts."""
    left = 16 + _CHARACTER * max([len(one.name) for one in bars])
    right = 16 + _CHARACTER * max([len(one.said) for one in bars])
    width, height = max(left + _WIDE + right, 16 + 8 * len(title)), _TOP + _ROW * len(bars) + 8
    longest = max([sum([size for _, size in one.parts]) for one in bars]) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}" '
        f'role="img"><title>{escape(title)}</title><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="8" y="18" font-weight="600">{escape(title)}</text>',
    ]
    at = left
    for index, (name, _) in enumerate(bars[0].parts):
        parts.append(f'<rect x="{at:.1f}" y="30" width="12" height="12" fill="{_COLOURS[index]}"/>')
        parts.append(f'<text x="{at + 17:.1f}" y="41">{escape(name)}</text>')
        at += 36 + _CHARACTER * len(name)
    for row, bar in enumerate(bars):
        top, at = _TOP + row * _ROW, left
        parts.append(f'<text x="8" y="{top + 14}">{escape(bar.name)}</text>')
        whole = sum([size for _, size in bar.parts])
        for index, (name, size) in enumerate(bar.parts):
            wide = _WIDE * size / longest
            share = size / whole if whole else 0.0
            parts.append(
                f'<rect x="{at:.1f}" y="{top}" width="{wide:.1f}" height="{_BAR}" fill="{_COLOURS[index]}">'
                f"<title>{escape(name)}: {share:.1%}</title></rect>"
            )
            at += wide
        colour = f' fill="{_FAULT}"' if bar.is_faulty else ""
        parts.append(f'<text x="{at + 8:.1f}" y="{top + 14}"{colour}>{escape(bar.said)}</text>')
    return "\n".join([*parts, "</svg>\n"])
