"""Comparisons as HTML, and plots."""

from __future__ import annotations

import io
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridflow.backend.files import write_bytes
from hybridflow.core.errors import MissingPackageError, message
from hybridflow.core.html import page as page
from hybridflow.core.html import table_html

if TYPE_CHECKING:
    from hybridflow.analysis.compare import Comparison

EAGER, COMPILED = "#c1440e", "#1f5fa8"


# -- comparisons -------------------------------------------------------------------------------------------------------


def comparison_html(comparison: Comparison) -> str:
    """Return a comparison as a heading, its table and its verdict."""
    kind = "same" if comparison.same else "different"
    return "\n".join(
        [
            f"<h2>{escape(comparison.name)}: eager and compiled</h2>",
            table_html(("", "eager", "compiled"), comparison.rows()),
            f'<p class="{kind}">{escape(comparison.verdict())}</p>',
            f"<p>{escape(comparison.caution())}</p>",
        ]
    )


# -- plots --------------------------------------------------------------------------------------------------------


def new_figure(title: str, x: str, y: str) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes, without touching pyplot's state.

    Raises:
        MissingPackageError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            message("plot: needs matplotlib, which is not installed", hint="Run pip install 'hybridflow[viz]'.")
        ) from None
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def break_even_figure(comparison: Comparison) -> Any:
    """Return a plot of total time against the number of calls, with the break-even marked."""
    figure, axes = new_figure(f"{comparison.name}: total time", "calls", "seconds in total")
    even = comparison.break_even
    last = max(10, 3 * even if even is not None else 0)
    calls = np.linspace(1, last, 200)
    axes.plot(calls, comparison.eager_first + (calls - 1) * comparison.eager.median, color=EAGER, label="eager")
    compiled = comparison.first_call.total + (calls - 1) * comparison.compiled.median
    axes.plot(calls, compiled, color=COMPILED, label="compiled, first call included")
    if even is not None:
        axes.axvline(even, color="#666", linestyle="--", linewidth=1)
        axes.annotate(f" break-even: {even} calls", (even, axes.get_ylim()[1] * 0.9), color="#666")
    else:
        axes.set_title("no break-even: the compiled call is not faster", loc="right", fontsize="small", color="#666")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    return figure


def figure_svg(figure: Any) -> str:
    """Return a figure as inline SVG."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return f"<figure>{text[text.index('<svg') :]}</figure>"


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format that the file's ending names."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:] or "png", dpi=150)
    write_bytes(path, buffer.getvalue())

