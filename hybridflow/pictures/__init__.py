"""Pictures of graphs: DOT, Mermaid, SVG, an interactive HTML page, and files for other viewers."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import webbrowser
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from hybridflow.backend.files import write_text
from hybridflow.core.report import Report
from hybridflow.ir.graph import Graph
from hybridflow.pictures.diagram import Colour, diagram_of
from hybridflow.pictures.difference import difference_page as difference_page
from hybridflow.pictures.dot import dot_of
from hybridflow.pictures.mermaid import mermaid_of
from hybridflow.pictures.model_explorer import model_explorer_of
from hybridflow.pictures.page import page_of
from hybridflow.pictures.svg import svg_of


def to_dot(graph: Graph, color: Colour = None) -> str:
    """Return a graph as DOT text."""
    return dot_of(diagram_of(graph, color))


def to_mermaid(graph: Graph, color: Colour = None) -> str:
    """Return a graph as Mermaid text."""
    return mermaid_of(diagram_of(graph, color))


def to_svg(graph: Graph, path: str | PathLike[str], color: Colour = None) -> None:
    """Write a graph's picture as SVG."""
    write_text(path, svg_of(diagram_of(graph, color)))


def to_html(graph: Graph, path: str | PathLike[str], color: Colour = None) -> None:
    """Write a graph's picture as an HTML page."""
    write_text(path, page_of(diagram_of(graph, color)))


def to_model_explorer(graph: Graph, path: str | PathLike[str]) -> None:
    """Write a graph as Model Explorer's JSON."""
    write_text(path, model_explorer_of(graph))


def show(graph: Graph, color: Colour = None) -> Any:
    """Show a graph's picture in a notebook or in the browser."""
    if "ipykernel" in sys.modules:
        return Picture(graph, color)
    folder = Path(tempfile.mkdtemp(prefix="hybridflow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "graph.html"
    to_html(graph, path, color)
    webbrowser.open(path.as_uri())
    return path


def in_notebook_html(graph: Graph, color: Colour) -> str:
    """Return a picture as HTML for a notebook's cell."""
    return framed(page_of(diagram_of(graph, color)))


def framed(page: str) -> str:
    """Return a page for a notebook's cell, in a frame of its own, so that the two do not share styles."""
    style = "width: 100%; height: 32rem; box-sizing: border-box; border: 1px solid #d5dce2"
    return f'<iframe srcdoc="{escape(page)}" style="{style}"></iframe>'


class Picture(Report):
    """A graph that a notebook shows as a picture in chosen colors."""

    def __init__(self, graph: Graph, color: Colour) -> None:
        self._graph, self._color = graph, color

    def parts(self) -> list[str]:
        """Return the graph's text."""
        return [str(self._graph)]

    def _repr_html_(self) -> str:
        return in_notebook_html(self._graph, self._color)

    def to_dict(self) -> dict[str, str]:
        """Return the graph's text and the picture as DOT."""
        return {"text": str(self._graph), "dot": to_dot(self._graph, self._color)}
