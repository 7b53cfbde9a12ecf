"""Artifacts of strangers: whatever is in one, loading and calling it gives results or hybridflow's errors.

``HYBRIDFLOW_MUTATIONS=100000 pytest tests/test_hostile_artifacts.py`` tries as many random changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_corpus import CASES, HARMLESS
from hostile_worker import Grown, arguments

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import FileFormatError, HybridflowError
from hybridflow.core.op import REGISTRY

MUTATIONS = int(os.environ.get("HYBRIDFLOW_MUTATIONS", "400"))
NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "1000000007", "9223372036854775808", "None", "True", "1.5", "-0.0", "nan", "()",
    "((0, 0),)", "''",
)
PATIENCE = 60
"""The seconds after which a process that does not answer hangs."""
LONGEST_TEXT = 2000
MOST_MEMORY = 512 << 20
TOKEN = re.compile(r"\s+|[A-Za-z_][A-Za-z_0-9.]*|-?\d+\.?\d*(?:e-?\d+)?|.", re.DOTALL)
WEIGHT = np.eye(3, dtype=np.float32) / 2


class Net(nn.Module):
    """A convolution, a normalisation and a pooling."""

    def __init__(self) -> None:
        self.conv, self.norm, self.out = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm(2), nn.Linear(18, 3)

    def forward(self, image: Any) -> Any:
        x = nn.max_pool(nn.relu(self.norm(self.conv(image))), 2)
        return self.out(x.reshape((x.shape[0], -1)))


def loop(x: Any) -> Any:
    weight = hf.asarray(WEIGHT)
    return hf.scan(lambda c, _: (hf.tanh(c @ weight), hf.sum(c)), x, hf.arange(4))


def endless(x: Any) -> Any:
    return hf.while_loop(lambda a: hf.sum(a) < 100, lambda a: a * 2 + 1, x)


def rows(x: Any, i: Any) -> Any:
    y = hf.concat([hf.where(x > 0, x, -x), hf.flip(x, axis=1)], axis=1)[:, ::2]
    z = hf.pad(hf.take(y, i, axis=1), ((0, 0), (1, 1)))
    return hf.fft.rfft(hf.cumulative_sum(z, axis=1)), hf.sort(y, axis=1), hf.einsum("ij,kj->ik", y, y)


def plain(x: Any) -> Any:
    return hf.tanh(x)


def drops(x: Any) -> Any:
    return nn.softmax(nn.dropout(x, 0.3))


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("artifacts")
    net = Net()
    net(hf.zeros((1, 1, 6, 6)))
    spec = hf.TensorSpec
    hf.export.save(folder / "net", net.eval(), spec([None, 1, 6, 6]))
    hf.export.save(folder / "loop", loop, spec([None, 3]))
    hf.export.save(folder / "endless", endless, spec([3]))
    hf.export.save(folder / "rows", rows, spec([2, 4]), spec([3], "int32"))
    hf.export.save(folder / "drops", drops, spec([None, 5]))
    hf.export.save(folder / "plain", plain, spec([3]))
    return sorted(folder.iterdir())


def changed(text: str, rng: random.Random) -> str:
    """Change a text's tokens at random."""
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        numbers = [i for i, token in enumerate(tokens) if re.match(r"-?\d", token)]
        names = [i for i, token in enumerate(tokens) if re.match("[a-z]", token)]
        at, how = rng.randrange(len(tokens)), rng.random()
        if how < 0.45 and numbers:
            tokens[rng.choice(numbers)] = rng.choice(NUMBERS)
        elif how < 0.6:
            tokens[at] = rng.choice(tokens)
        elif how < 0.7:
            del tokens[at]
        elif how < 0.8:
            tokens.insert(at, rng.choice(tokens))
        elif how < 0.9 and names:
            tokens[rng.choice(names)] = rng.choice([*[tokens[i] for i in names], *REGISTRY])
        else:
            other = rng.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
    return "".join(tokens)


def mutate(folder: Path, rng: random.Random) -> None:
    """Change a graph's text or the manifest, and make the digest right again."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if rng.random() < 0.8:
        file = rng.choice(sorted(folder.glob("*.ir")))
        raw = changed(file.read_text(encoding="utf-8"), rng).encode()
        file.write_bytes(raw)
        manifest["files"][file.name]["sha256"] = hashlib.sha256(raw).hexdigest()
        text = json.dumps(manifest)
    else:
        text = changed(json.dumps(manifest), rng)
    (folder / "manifest.json").write_text(text)


def call_all(artifact: Any) -> None:
    for function in artifact.functions.values():
        function.by_name(arguments(function))


def test_what_random_changes_make_of_artifacts(artifacts: list[Path], tmp_path: Path):
    rng = random.Random(os.environ.get("HYBRIDFLOW_SEED", "0"))
    limits = hf.export.Limits(elements=1 << 20, memory=1 << 24, steps=1000)
    loaded = 0
    for _ in range(MUTATIONS):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(rng.choice([one for one in artifacts if one.name != "endless"]), folder)
        mutate(folder, rng)
        grown = Grown()
        with warnings.catch_warnings(), suppress(HybridflowError):
            warnings.simplefilter("ignore")
            artifact = hf.export.load(folder, limits=limits, copy=rng.random() < 0.3)
            loaded += 1
            for function in artifact.functions.values():
                values = arguments(function)
                function.by_name(values)
                if rng.random() < 0.05:
                    hf.compile(lambda values, function=function: function.by_name(values))(values)
        assert grown.bytes() < MOST_MEMORY
    assert loaded > MUTATIONS // 50


class Worker:
    """A process of its own, which loads and calls one artifact after the other; a new one follows one that hung."""

    def __init__(self, warm: list[Path]) -> None:
        self.warm = warm
        self.process: subprocess.Popen[str] | None = None

    def ask(self, path: Path, copy: bool) -> dict[str, Any]:
        """Return what came of loading and calling an artifact."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).parent / "hostile_worker.py"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "HYBRIDFLOW_CACHE_DIR": "off"},
            )
            for good in self.warm:  # what hybridflow imports late is there then
                assert self.ask(good, True)["error"] is None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(path), copy]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            status = self.process.poll()
            self.end()
            raise AssertionError(f"no answer in {PATIENCE} s" if status is None else f"the process died with {status}")
        return json.loads(line)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def worker(artifacts: list[Path]) -> Iterator[Worker]:
    made = Worker([path for path in artifacts if path.name != "endless"])
    yield made
    made.end()


@pytest.mark.skipif(os.name != "posix", reason="select waits for files on POSIX systems only")
@pytest.mark.parametrize("case", CASES)
def test_what_somebody_made_to_do_harm(case: str, artifacts: list[Path], worker: Worker, tmp_path: Path):
    name, change = CASES[case]
    folder = tmp_path / "changed"
    shutil.copytree(next(one for one in artifacts if one.name == name), folder)
    change(folder)
    answer = worker.ask(folder, case.endswith("digest of the weights") or len(case) % 2 == 0)
    expected = answer["ours"] or (case in HARMLESS and answer["error"] is None)
    assert expected, f"{answer['error']} in {answer['stage']}: {answer['text']}"
    assert len(answer["text"]) <= LONGEST_TEXT
    assert all(letter.isprintable() or letter == "\n" for letter in answer["text"])
    assert answer["grown"] < MOST_MEMORY
    assert not answer["seen"]


LIMITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "elements": ("rows", {"elements": 5}, "of more than 5 elements"),
    "bytes": ("net", {"bytes": 100}, "bytes, more than 100"),
    "memory": ("net", {"memory": 1000}, "bytes at once, more than 1000"),
    "steps": ("loop", {"steps": 3}, "scan may take 4 steps, more than 3"),
    "operations": ("net", {"nodes": 2}, "at most 2 operations"),
    "words": ("net", {"tokens": 50}, "at most 50 words, numbers and signs"),
    "depth": ("net", {"depth": 1}, "at most 1 values inside each other"),
    "steps of a while": ("endless", {"steps": 1 << 40}, "any number of steps"),
}


@pytest.mark.parametrize("case", LIMITS)
def test_limits(case: str, artifacts: list[Path]):
    name, limits, text = LIMITS[case]
    path = next(one for one in artifacts if one.name == name)
    hf.export.load(path)
    with pytest.raises(FileFormatError, match=text):
        hf.export.load(path, limits=hf.export.Limits(**limits))


LIMITS_OF_A_CALL: dict[str, tuple[dict[str, Any], str]] = {
    "elements": ({"elements": 300}, "of more than 300 elements"),
    "memory": ({"memory": 2000}, "bytes at once, more than 2000"),
    "steps": ({"steps": 50}, "may take 100 steps, more than 50"),
}


@pytest.mark.parametrize("case", LIMITS_OF_A_CALL)
def test_limits_hold_for_open_sizes(case: str, tmp_path: Path):
    def sums(x: Any) -> Any:
        return hf.scan(lambda c, row: (c + row, hf.sin(c)), hf.zeros((7,)), x)

    hf.export.save(tmp_path / "sums", sums, hf.TensorSpec([None, 7]))
    limits, text = LIMITS_OF_A_CALL[case]
    function = hf.export.load(tmp_path / "sums", limits=hf.export.Limits(**limits)).predict
    assert function(hf.ones((3, 7)))[0].tolist() == [3.0] * 7
    for run in (function, hf.compile(function)):
        with pytest.raises(FileFormatError, match=text):
            run(hf.ones((100, 7)))


Change = Callable[[str], str]
ATTRIBUTES: dict[str, tuple[str, Change]] = {
    "a length that is a float": ("loop", lambda text: text.replace("length=4", "length=1.5")),
    "an axis that is none": ("rows", lambda text: text.replace("axis=1", "axis=None")),
    "a stride of text": ("net", lambda text: text.replace("stride=(1, 1)", "stride=('', 1)", 1)),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes_that_no_trace_makes(case: str, artifacts: list[Path], tmp_path: Path):
    name, change = ATTRIBUTES[case]
    folder = tmp_path / "changed"
    shutil.copytree(next(one for one in artifacts if one.name == name), folder)
    file = folder / "predict.ir"
    text = change(file.read_text(encoding="utf-8"))
    assert text != file.read_text(encoding="utf-8")
    file.write_text(text)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"][file.name]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(HybridflowError):
        call_all(hf.export.load(folder))
