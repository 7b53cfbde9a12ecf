"""Pipelines with other limits, so that small graphs are treated as large ones are."""

from __future__ import annotations

from typing import Any

import pytest

from hybridflow.passes import pipeline


def use_limits(monkeypatch: pytest.MonkeyPatch, **limits: dict[str, Any]) -> None:
    """Have compiled functions made with other limits: ``use_limits(monkeypatch, outline={"nodes": 0})``."""
    changed = pipeline.PIPELINE
    for name, values in limits.items():
        changed = changed.with_limits(name, **values)
    monkeypatch.setattr(pipeline, "PIPELINE", changed)
