"""The benchmark of programs with many sizes: its ways agree, and few sizes are compiled."""

from __future__ import annotations

import pytest

from hybridflow.tracing import choice

from .sizes import run


def test_many_sizes_take_few_compilations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choice, "EXECUTABLES", choice.EXECUTABLES)  # put back what the benchmark changes
    eager, found, by_hand = [run("reinforce", way) for way in ("eager", "default", "by hand")]
    for one in (found, by_hand):
        assert one["sum"] == pytest.approx(eager["sum"], rel=0.02, abs=0.02)  # 200 updates in other roundings
    assert found["compilations"] <= 4
