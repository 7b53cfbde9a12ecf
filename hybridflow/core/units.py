"""Numbers with units, for people."""

from __future__ import annotations

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: float) -> str:
    """Format a number of bytes with the unit that fits, such as ``1.5 MiB``."""
    unit = 0
    while count >= 1024 and unit < len(_BYTES) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_BYTES[unit]}" if unit == 0 else f"{count:.1f} {_BYTES[unit]}"
