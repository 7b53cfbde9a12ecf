"""A run that is killed at random moments ends with the bytes of one that is not; see `killed`."""

from __future__ import annotations

import random
from pathlib import Path

import killed
import pytest


@pytest.mark.parametrize(("how", "kills"), [("eager", 1), ("compiled", 2)])
def test_a_killed_run_ends_with_the_same_bytes(how: str, kills: int, tmp_path: Path):
    rng, store = random.Random(kills), tmp_path / "store"
    straight, _ = killed.killed(tmp_path / "a", how, 0, rng, store)
    digest, made = killed.killed(tmp_path / "b", how, kills, rng, store)
    assert made == kills
    assert digest == straight
    assert killed.numbers_logged(tmp_path / "b") == killed.numbers_logged(tmp_path / "a")
