"""Memory over the kernels of a call, as SVG."""

from __future__ import annotations

from html import escape

from hybridflow.analysis.memory import Memory, Moment
from hybridflow.core.node import short_place
from hybridflow.core.units import format_bytes

_WIDTH, _HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 12, 46, 34
_FILL, _LINE, _PEAK, _TEXT, _GRID = "#c9dcf0", "#1f5fa8", "#c1440e", "#1c2733", "#d5dce2"


def timeline_svg(memory: Memory, name: str) -> str:
    """Return a picture of what is stored kernel by kernel, the peak marked; empty if there is nothing to show.

    Args:
        memory: the call's.
        name: the function's, for the title.
    """
    peak = memory.peak_at
    if peak is None or not peak.bytes:
        return ""
    moments = memory.timeline
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = peak.bytes * 1.05

    def x(index: float) -> float:
        return _LEFT + wide * index / len(moments)

    def y(count: float) -> float:
        return _TOP + high * (1 - count / top)

    steps = " ".join(f"V{y(one.bytes):.1f}H{x(index + 1):.1f}" for index, one in enumerate(moments))
    area = f'<path d="M{_LEFT} {y(0):.1f}{steps}V{y(0):.1f}z" fill="{_FILL}" stroke="{_LINE}"/>'
    at = moments.index(peak)
    middle = x(at + 0.5)
    side, anchor = (-8, "end") if middle > _WIDTH / 2 else (8, "start")
    title = f"Temporaries of one call of {escape(name)}, kernel by kernel"
    parts = [
        f'<text x="{_LEFT}" y="16" font-weight="600">{title}</text>',
        *[_grid(y(peak.bytes * share), peak.bytes * share) for share in (0, 0.5, 1)],
        area,
        f'<circle cx="{middle:.1f}" cy="{y(peak.bytes):.1f}" r="4" fill="{_PEAK}"/>',
        f'<text x="{middle + side:.1f}" y="{_TOP - 8}" text-anchor="{anchor}" fill="{_PEAK}">{_said(peak)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}">first kernel</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end">kernel {len(moments)}</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT}" role="img">'
        f'<title>Memory of {escape(name)}</title><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _grid(height: float, count: float) -> str:
    label = f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{format_bytes(count)}</text>'
    return f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>{label}'


def _said(peak: Moment) -> str:
    line = f", {short_place(peak.line)}" if peak.line else ""
    return escape(f"peak {format_bytes(peak.bytes)} at {peak.name}{line}")
