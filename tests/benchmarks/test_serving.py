"""The benchmark of servers: ours answers every request, and faster than the time that its clients need."""

from __future__ import annotations

import pytest

from .serving import INSTANTLY, OURS, measure


def test_every_request_is_answered(monkeypatch: pytest.MonkeyPatch):
    for name in ("uvicorn", "httptools"):
        pytest.importorskip(name)
    monkeypatch.setattr("tests.benchmarks.serving.NEEDS", ("a package that nobody has",))
    found, alone = measure(1, 0.3, lambda text: None)
    assert {name for name, _ in found} == {OURS, INSTANTLY}
    assert all([{*one.statuses} == {200} and not one.broken for one in found.values()])
    assert 0 < alone < found[OURS, 1].percentile(50)
