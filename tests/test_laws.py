"""The laws that the book draws: `hf.cost` against closed forms and against what XLA counts and allots."""

from __future__ import annotations

import importlib.util
import tracemalloc
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import hybridflow as hf

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "notebooks" / "pictures" / "laws.svg"
spec = importlib.util.spec_from_file_location("laws", ROOT / "examples" / "laws.py")
assert spec is not None
assert spec.loader is not None
laws: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(laws)


def step(n: int, w: int, d: int) -> int:
    """FLOPs of a gradient step of `mlp`: 2 products a layer forward, 4 back but for the input, and one per element."""
    products = 2 * d * 2 * n * w * w + 4 * d * 2 * n * w * w - 2 * n * w * w
    return products + (2 * d * (1 + 3) + 2) * n * w


CLOSED = {
    "batch": lambda n: step(n, 128, 4),
    "width": lambda w: step(64, w, 4),
    "depth": lambda d: step(64, 128, d),
    "kernel": lambda k: 2 * 4 * 32 * 32 * k**2 * (33 - k) ** 2,
    "stride": lambda s: 2 * 4 * 32 * 32 * 9 * ((32 - 3) // s + 1) ** 2,
    "groups": lambda g: 2 * 4 * 32 * 32 // g * 9 * 30**2,
    "attention": lambda t: 4 * (2 * 2 * t * t * 64),
}


@pytest.mark.parametrize("law", laws.LAWS)
def test_flops_are_those_of_the_closed_form_and_of_xla(law: str):
    make, name, sizes, _ = laws.LAWS[law]
    for size in (sizes[0], sizes[-1]):
        ours, xla = laws.flops(make, name, size)
        assert ours == pytest.approx(CLOSED[law](size), rel=0.04)
        assert ours == pytest.approx(xla, rel=0.02)


def test_memory_is_linear_in_depth_and_less_with_checkpoints():
    one = 512 * 128 * 4
    for depth in (2, 8):
        plain, allotted = laws.memory(depth, False)
        assert plain == (2 * depth + 1) * one
        assert allotted == pytest.approx(plain, rel=0.1)
        again, allotted_again = laws.memory(depth, True)
        assert again == depth * one
        assert again < allotted_again < allotted + one


def megabytes(run: Any) -> tuple[int, int]:
    """Return the megabytes that NumPy's arrays hold while the result of a run is there, and at the peak of the run."""
    tracemalloc.start()
    try:
        result = run()
        now, peak = tracemalloc.get_traced_memory()
        del result
        return round(now / 1e6), round(peak / 1e6)
    finally:
        tracemalloc.stop()


def test_four_eight_408_and_twelve_megabytes():
    def one() -> Any:
        return hf.ones((1_000_000,))

    def chain(x: Any) -> Any:
        for _ in range(100):
            x = hf.nn.relu(x)
        return x

    def trained() -> Any:
        with hf.GradientTape() as tape:
            x = one()
            tape.watch(x)
            y = chain(x)
        return x, y, tape.gradient(y, x)

    chain(one())
    assert megabytes(one)[0] == 4

    def once() -> Any:
        x = one()
        return x, hf.nn.relu(x)

    def untaped() -> Any:
        x = one()
        return x, chain(x)

    assert megabytes(once)[0] == 8
    assert megabytes(trained)[0] == 408
    assert megabytes(untaped) == (8, 12)


def test_the_picture_is_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(laws, "flops", lambda make, name, size: (size, size))
    monkeypatch.setattr(laws, "memory", lambda depth, checkpointed: (depth, depth))
    laws.main(tmp_path)
    made, committed = [
        {re_group(one) for one in ElementTree.parse(path).iter() if one.get("id", "").startswith("axes")}
        for path in (tmp_path / "laws.svg", PICTURE)
    ]
    assert made == committed
    assert len(committed) == len(laws.LAWS) + 1


def re_group(element: Any) -> str:
    return element.get("id", "")
