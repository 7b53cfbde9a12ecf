"""A training that is killed at random moments and started again; `python tests/killed.py 50` does it that often.

The program, run as ``killed.py train DIRECTORY eager|compiled``, has what a resumed run may forget: dropout, moving
averages, shuffling in a thread, an uneven last batch, a schedule, a loss scale that grows, accumulation in parts.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hybridflow as hf

STEPS = 40


def train(directory: str, how: str) -> str:
    """Make the steps that are left, saying the number of each, and return a digest of everything that is kept."""
    hf.random.seed(3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((52, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    nn = hf.nn
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm(16), nn.relu, nn.Dropout(0.2), nn.Linear(16, 2))
    schedule = hf.optim.warmup_cosine(0.02, 10, STEPS)
    optimizer = hf.optim.AdamW(model, rate=schedule, decay=0.01, clip=1.0)
    scale, accuracy = hf.LossScale(1024.0, interval=7), hf.metrics.Accuracy()
    data = hf.data.Batches((x, y), 8, shuffle=True, seed=1).prefetch(2)

    def loss_of_part(x, y):
        logits = model(x)
        accuracy.update(logits, y)
        return scale.scale(hf.mean(hf.nn.softmax_cross_entropy(logits, y)))

    in_parts = hf.accumulate_gradients(loss_of_part, 2, None, batch_argnums=(0, 1), variables=model)

    def step(x, y):
        loss, gradients = in_parts(x, y)
        scale.step(optimizer.update, scale.unscale(gradients))
        return loss

    step = hf.compile(step) if how == "compiled" else step
    run = hf.train.Run(
        directory, model=model, optimizer=optimizer, data=data, metrics=accuracy, loss_scale=scale, progress=False
    )
    for batch in run.steps(STEPS):
        run.log(loss=step(*batch), accuracy=accuracy.result())
        print(run.step, flush=True)
        if run.every(3):
            run.checkpoint(keep=2)
    run.close()
    kept = [*model.parameters(), *model.buffers(), *optimizer.variables(), *scale.variables, *accuracy.variables()]
    content = b"".join([variable.numpy().tobytes() for variable in kept]) + hf.random.uniform((8,)).numpy().tobytes()
    return hashlib.sha256(content).hexdigest()


def killed(directory: Path, how: str, kills: int, rng: random.Random, store: Path) -> tuple[str, int]:
    """Run the program until it ends; return its digest, and how often it was killed before it did."""
    made = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, "train", str(directory), how], stdout=subprocess.PIPE,
            bufsize=0,  # what is read ahead of a line would be lost to `communicate`
            env={**os.environ, "HYBRIDFLOW_CACHE_DIR": str(store), "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        assert process.stdout is not None
        if made < kills:
            for _ in range(rng.randrange(1, 12)):
                process.stdout.readline()
            time.sleep(rng.random() * 0.02)
            if process.poll() is None:
                process.kill()
        try:
            lines = process.communicate(timeout=100)[0].decode().split()
        finally:
            process.kill()
        if process.returncode == 0:
            return lines[-1], made
        assert process.returncode == -9, process.returncode
        made += 1


def numbers_logged(directory: Path) -> list[tuple[float, ...]]:
    """Return what was logged, but for the times."""
    import json

    lines = (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [tuple([value for name, value in json.loads(line).items() if name != "seconds"]) for line in lines]


def main(kills: int) -> None:
    """Kill runs until there were so many kills, half of them compiled; say what came of it."""
    rng = random.Random(time.time_ns())
    with tempfile.TemporaryDirectory() as name:
        here, done, runs = Path(name), 0, 0
        straight = {how: killed(here / how, how, 0, rng, here / "store")[0] for how in ("eager", "compiled")}
        while done < kills:
            how = ("eager", "compiled")[runs % 2]
            digest, made = killed(here / str(runs), how, 3, rng, here / "store")
            assert digest == straight[how], (how, runs)
            assert numbers_logged(here / str(runs)) == numbers_logged(here / how), (how, runs)
            done, runs = done + made, runs + 1
        print(f"{done} kills of {runs} runs: the bytes of each are those of the run that was not killed")


if __name__ == "__main__":
    if sys.argv[1] == "train":
        print(train(*sys.argv[2:]))
    else:
        main(int(sys.argv[1]))
