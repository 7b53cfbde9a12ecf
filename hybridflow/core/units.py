"""Numbers with units, for people."""

from __future__ import annotations

import re

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: float) -> str:
    """Format a number of bytes with a suitable unit, such as ``1.5 MiB``."""
    unit = 0
    while count >= 1024 and unit < len(_BYTES) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_BYTES[unit]}" if unit == 0 else f"{count:.1f} {_BYTES[unit]}"


BYTE_UNITS = "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
"""The units that `parse_bytes` accepts, as text for messages."""
_SIZES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}


def parse_bytes(text: str) -> int | None:
    """Parse a text such as ``256MiB`` or ``1.5 GB``; return the number of bytes, or None if it is not valid."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text, re.ASCII)
    unit = None if match is None else _SIZES.get(match[2].lower())
    return None if match is None or unit is None else int(float(match[1]) * unit)
