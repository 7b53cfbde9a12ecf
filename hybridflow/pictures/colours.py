"""The colours of pictures, and their legend."""

from __future__ import annotations

FILLS = {
    "op": "#f7f9fb", "gradient": "#f3f0fa", "input": "#e6f2ea", "output": "#fdeedd",
    "graph": "#ffffff", "scope": "#f2f6fa", "function": "#f7f9fc", "line": "#fbfcfd", "body": "#fbf9f4",
}
EDGES = {
    "op": "#8fa0b0", "gradient": "#9a8cc2", "input": "#6aa582", "output": "#d69a4e",
    "graph": "#c9d2da", "scope": "#b3c1ce", "function": "#c9d2da", "line": "#d8dfe5", "body": "#d8ceb4",
}
MARKS = {"removed": "#c62f2f", "added": "#1f8a4c"}
"""The outline colours of a difference."""
COLD, HOT = (255, 247, 236), (248, 142, 66)
UNITS = {"flops": "floating-point operations", "bytes": "bytes read and written", "value": "the values given"}


def fill_of(weight: float, heaviest: float, kind: str) -> str:
    """Return the fill of a box; the square root keeps small weights distinguishable."""
    if weight <= 0 or heaviest <= 0:
        return FILLS[kind]
    share = (weight / heaviest) ** 0.5
    parts = [round(cold + (hot - cold) * share) for cold, hot in zip(COLD, HOT, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def legend(colour: str, heaviest: float) -> str:
    """Return the meaning of a picture's colours; empty if they have none."""
    most = f"{int(heaviest):,}" if float(heaviest).is_integer() else f"{heaviest:,.6g}"
    return f"colour: {UNITS[colour]}, up to {most} in one operation" if colour else ""
