"""The benchmark of programs with many sizes: its ways agree, and few sizes are compiled."""

from __future__ import annotations

import pytest

from .sizes import run


def test_many_sizes_take_few_compilations():
    eager, found = run("reinforce", "eager"), run("reinforce", "default")
    assert found["sum"] == pytest.approx(eager["sum"], rel=0.02, abs=0.02)  # 200 updates in other roundings
    assert found["compilations"] <= 4
