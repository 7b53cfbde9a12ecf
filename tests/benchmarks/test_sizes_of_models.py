"""The benchmark of models in the sizes that people use: a tiny one runs in each way, and gives all figures."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from .sizes_of_models import COLUMNS, NEEDS, WAYS, run


@pytest.mark.parametrize("way", [way for way in WAYS if way != "torch.compile"])  # its compiler takes long
def test_a_way_to_train(way: str):
    if way in NEEDS and find_spec(NEEDS[way]) is None:
        pytest.skip(f"{NEEDS[way]} is not installed")
    figures = run("tiny", way)
    assert figures["peak"] >= figures["base"]
    assert [text(figures) for name, text in COLUMNS.items() if not name.startswith("predicted")]
    assert (figures["predicted"] is None) == ("hybridflow" not in way)
