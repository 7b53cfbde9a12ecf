"""The memory of a process that trains, loads or calls a model of 100 MB, against what the model takes by its sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.backend.process_memory import process_memory

SLACK = 32 << 20
"""The bytes that the program's code and the compiler take: about as many as for a tiny model, which comes first."""

PROGRAM = """
import gc
import sys
import numpy as np
import hybridflow as hf
from hybridflow.backend.process_memory import process_memory, return_free_memory

def grown(run):
    run(8)
    gc.collect()
    base = process_memory().resident
    result = run(2048)
    gc.collect()
    return_free_memory()  # what the C library keeps of temporaries is nobody's
    now = process_memory()
    return now.resident - base, now.peak - base, result

def layers(width):
    return hf.nn.Sequential(*[hf.nn.Linear(width, width) for _ in range(6)])
"""
TRAINING = """
def train(width):
    model, x = layers(width), np.ones((8, width), np.float32)
    optimizer = hf.optim.Adam(model, rate=1e-3)
    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean((model(x) - y) ** 2)
        optimizer.update(tape.gradient(loss, model))
        return loss
    for _ in range(3):
        CALL
    return step, optimizer, x

steady, peak, (step, _, x) = grown(train)
memory = hf.cost(step, x, x).memory
print(steady, peak, memory.peak, *[memory.bytes[what] for what in ("parameters", "slots", "gradients", "activations")])
"""
WAYS = {
    "compiled": "step = hf.compile(step) if _ == 0 else step; step(x, x).numpy()",
    "eager": "step(x, x)",
    "fit": "hf.train.fit(model, x, x, loss=hf.nn.mse, optimizer=optimizer, epochs=1, batch_size=8, progress=False)",
}

pytestmark = pytest.mark.skipif(process_memory() is None, reason="the system does not tell a process's memory")


@pytest.mark.parametrize("way", WAYS)
def test_training_takes_what_is_predicted(way: str):
    said = run_python(PROGRAM + TRAINING.replace("CALL", WAYS[way]), HYBRIDFLOW_CACHE_DIR="off")
    steady, peak, predicted, parameters, slots, gradients, activations = map(int, said.split())
    if way == "eager":  # the recording of a loss keeps the parameters that it was computed from
        predicted = 2 * parameters + slots + gradients + activations
    assert parameters > 100e6
    assert slots == pytest.approx(2 * parameters)
    assert peak <= 1.15 * predicted + SLACK
    assert steady <= 1.1 * (parameters + slots) + SLACK


def test_a_loaded_model_is_in_memory_once(tmp_path: Path):
    """Calls record what gradients need, which is not the weights: those are the Variables' own."""
    for width in (8, 2048):
        hf.save(tmp_path / f"{width}", {f"{i}.{name}": np.ones(shape, np.float32) for i in range(6)
                for name, shape in (("weight", (width, width)), ("bias", (width,)))})
    said = run_python(PROGRAM + f"""
def load(width):
    with hf.nn.init.abstract():
        model = layers(width)
    hf.load(f"{tmp_path}/{{width}}", into=model)
    call = hf.compile(model)
    for _ in range(3):
        result = call(np.ones((8, width), np.float32))
    result.numpy()
    return model, call, result

print(grown(load)[1])
""", HYBRIDFLOW_CACHE_DIR="off")
    weights, largest = 6 * 2049 * 2048 * 4, 2048 * 2048 * 4
    assert int(said) <= weights + 3 * largest + SLACK  # of the one that is moved, the file's, a copy, and XLA's


def test_load_torch_takes_the_weights_and_one_tensor(tmp_path: Path):
    shapes = {"encoder.weight": (20000, 512), "decoder.weight": (20000, 512), "decoder.bias": (20000,)}
    for layer in range(4):
        shapes |= {f"rnn.weight_{kind}_l{layer}": (2048, 512) for kind in ("ih", "hh")}
        shapes |= {f"rnn.bias_{kind}_l{layer}": (2048,) for kind in ("ih", "hh")}
    hf.save(tmp_path / "lstm.safetensors", {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    said = run_python(PROGRAM + f"""
def load(width):
    if width == 8:
        return
    with hf.nn.init.abstract():
        model = hf.models.LSTMLanguageModel(tokens=20000, width=512, hidden=512, layers=4)
    hf.models.load_torch(model, "{tmp_path}/lstm.safetensors")
    return model

print(*grown(load)[:2])
""")
    weights = 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    steady, peak = map(int, said.split())
    assert weights > 100e6
    assert steady <= weights + SLACK
    assert peak <= weights + 20000 * 512 * 4 + SLACK
