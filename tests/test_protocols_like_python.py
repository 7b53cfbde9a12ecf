"""Python's protocols are CPython's in a compiled function: the same value, exception and order of calls."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from protocol_programs import HELPERS, program

import hybridflow as hf

helpers = sys.modules["protocol_helpers"] = ModuleType("protocol_helpers")
exec(compile(HELPERS, "<frozen protocol_helpers>", "exec"), vars(helpers))


def loaded(path: Path, name: str) -> ModuleType:
    """Import a program; each import has its own classes and its own `OUT`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differences(seeds: range, folder: Path) -> list[str]:
    """Run programs plainly and in one compiled function; return the texts of those that differ, with what came of them."""
    texts = {seed: program(seed) for seed in seeds}
    plain: list[Any] = []
    traced: list[Any] = []
    for seed, text in texts.items():
        path = folder / f"program_{seed}.py"
        path.write_text(text)
        plain.append(loaded(path, f"program_{seed}"))
        traced.append(loaded(path, f"program_{seed}"))
    for module in plain:
        module.run()

    @hf.compile
    def run(x: Any) -> Any:
        for module in traced:
            module.run()
        return x

    run(hf.asarray(1.0))
    return [_told(seed, text, one.OUT, other.OUT)
            for (seed, text), one, other in zip(texts.items(), plain, traced, strict=True) if one.OUT != other.OUT]


def _told(seed: int, text: str, right: list[str], wrong: list[str]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), min(len(right), len(wrong)))
    classes = text[text.index("    return args, named") + 20:text.index("def run")]
    uses = [i for i, one in enumerate(right[:at]) if one.startswith("t = ") or ";" in one or "\\n" in one]
    start = max([0, *uses])
    return f"{classes}\nseed {seed}\nPython: {right[start:at + 3]}\ntraced: {wrong[start:at + 3]}"


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_classes(start: int, tmp_path: Path):
    assert not differences(range(start, start + 20), tmp_path)
