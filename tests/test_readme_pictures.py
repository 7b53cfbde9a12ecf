"""The pictures that the README shows are what their script makes."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "pictures"
NAMES = {"graph.svg", "memory.svg", "break_even.svg"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "examples" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("pictures")
    module.main(folder)
    return folder


def test_the_script_makes_what_is_committed(made: Path):
    assert {path.name for path in made.iterdir()} == {path.name for path in FOLDER.iterdir()} == NAMES
    for name in ("graph.svg", "memory.svg"):
        assert (made / name).read_text(encoding="utf-8") == (FOLDER / name).read_text(encoding="utf-8")


def shape(path: Path) -> tuple[Any, ...]:
    """Return what does not depend on times: the size of the plot and what is in it."""
    tree = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    groups = {re.sub(r"_\d+$", "", one.get("id", "")) for one in tree.iter() if one.tag.endswith("}g")}
    return tree.get("viewBox"), groups & {"figure", "axes", "legend", "line2d", "matplotlib.axis"}


def test_the_plot_has_what_the_committed_one_has(made: Path):
    one, other = shape(made / "break_even.svg"), shape(FOLDER / "break_even.svg")
    assert one == other
    assert {"axes", "legend", "line2d"} <= one[1]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_readme_shows_it(name: str):
    assert f"](examples/pictures/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert len(text) < 150_000
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
    ElementTree.fromstring(text)
