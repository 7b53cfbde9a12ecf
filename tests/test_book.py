"""The book: every page is in its contents, and its API reference has every public name."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import hybridflow as hf

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
spec = importlib.util.spec_from_file_location("reference", NOTEBOOKS / "reference.py")
assert spec is not None
assert spec.loader is not None
reference: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def contents() -> set[str]:
    """The pages that the book's contents list."""
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", (NOTEBOOKS / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).splitlines()
    return {line for line in lines if line and not line.startswith(":")}


def test_every_page_is_in_the_contents():
    pages = {path.stem for path in NOTEBOOKS.iterdir() if path.suffix in (".md", ".ipynb")} - {"index"}
    listed = contents()
    assert listed == pages | {"api/index", *[f"api/{name}" for name in reference.MADE]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    reference.write(folder / "api")
    return folder


def test_the_reference_has_every_public_name(written: Path):
    text = "\n".join(path.read_text(encoding="utf-8") for path in (written / "api").iterdir())
    for name, value in vars(hf).items():
        module = getattr(value, "__module__", None) or ""
        if name.startswith("_") or not inspect.isroutine(value) or not module.startswith("hybridflow"):
            continue
        assert f" `hf.{name}`\n" in text or module.startswith("hybridflow.ops.nn."), name
    expected = """hf.Tensor hf.Variable hf.GradientTape hf.compile hf.nn.Linear hf.optim.Adam hf.debugging.table
        hf.train.Run hf.linalg.svd hf.random.normal hf.export.save"""
    for name in expected.split():
        assert f" `{name}`\n" in text, name
    assert "`.watch(pattern='*', *, history=1000)`: Keep statistics" in text
    assert "0x" not in re.sub(r"0x[0-9a-f]{1,4}\b", "", text)  # no addresses


def test_docstrings_become_markdown():
    def function(x: int, *more: int) -> None:
        """Return a*b of [c] and ``d*e``.

        Args:
            x: the first, which
                goes on.
            *more: others.

        Example:
            >>> 1 + 1
            2
        """

    assert reference._entry("hf.function", function).splitlines() == [
        "### `hf.function`", "", "```python", "hf.function(x, *more)", "```", "",
        r"Return a\*b of \[c\] and ``d*e``.", "", "**Args**", "", "- `x`: the first, which", "  goes on.",
        "- `*more`: others.", "", "**Example**", "", "```pycon", ">>> 1 + 1", "2", "```",
    ]


def test_links_lead_to_pages_of_the_book_or_nowhere():
    picture = "![c](../examples/pictures/graph.svg)"
    text = f"[a](../hybridflow/ops/README.md) [b](../examples/gpt.py) {picture} [d](memory.md#x)"
    assert reference.link_of(text) == f"[a](./api/operations.md) b {picture} [d](memory.md#x)"


LINK = re.compile(r"https?://[^\s<>\"'`\])]+(?:\([^\s()]*\))?")


def links() -> dict[str, str]:
    """The external links of the book, README and changelog, each with a page that has it."""
    root = NOTEBOOKS.parent
    pages = [*NOTEBOOKS.glob("*.md"), root / "README.md", root / "CHANGELOG.md"]
    found: dict[str, str] = {}
    for page in pages:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            if "localhost" not in link and "127.0.0.1" not in link:
                found[link.rstrip(".,:;\\")] = page.name
    return found


def test_external_links_are_well_formed():
    assert len(links()) >= 5
    for link, page in links().items():
        parts = urlsplit(link)
        assert parts.scheme == "https", (link, page)
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), (link, page)
        assert "//" not in parts.path, (link, page)


@pytest.mark.skipif("HYBRIDFLOW_LINKS" not in os.environ, reason="asks the network: set HYBRIDFLOW_LINKS=1")
def test_external_links_are_there():
    dead: list[str] = []
    for link, page in links().items():
        try:
            asked = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0"})
            with urllib.request.urlopen(asked, timeout=20) as answer:
                assert answer.status < 400
        except OSError as error:
            dead.append(f"{page}: {link}: {error}")
    assert not dead, "\n".join(dead)
