"""Plots for pages and files, and tables for terminals."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from hybridflow.backend.files import write_bytes
from hybridflow.core.errors import MissingPackageError
from hybridflow.core.html import page as page

EAGER, COMPILED = "#c1440e", "#1f5fa8"


def titled_table(title: str, words: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """Return a table in the style of all results, with columns of words, then of numbers."""
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False, box=SIMPLE_HEAD)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def empty_figure(width: float, height: float) -> Any:
    """Return a matplotlib figure, without touching pyplot's state.

    Args:
        width, height: its size in inches.

    Raises:
        MissingPackageError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # an extra, and slow to import
    except ImportError:
        raise MissingPackageError("plot: needs matplotlib, which is not installed",
                                  hint="Run pip install 'hybridflow[viz]'.") from None
    return Figure(figsize=(width, height), layout="constrained")


def new_figure(title: str, x: str, y: str, *, height: float = 4.2) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes, as `empty_figure` does."""
    figure = empty_figure(7.5, height)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def figure_svg(figure: Any) -> str:
    """Return a figure as inline SVG."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return f"<figure>{text[text.index('<svg') :]}</figure>"


def hand_to_pyplot(figure: Any) -> None:
    """Make a figure one of pyplot's, as if `matplotlib.pyplot.figure` had made it."""
    import matplotlib.pyplot as plt

    made: Any = lambda *args, **settings: figure  # noqa: E731, as FigureClass it is no class
    plt.figure(FigureClass=made)


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format that the file's ending names."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:] or "png", dpi=150)
    write_bytes(path, buffer.getvalue())

