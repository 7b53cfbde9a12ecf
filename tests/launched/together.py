"""Two processes do together what is not a compiled function of the user's; every line that is printed must be right."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn

hf.distribute.initialize(step_timeout="20s")
directory = Path(sys.argv[1])
index, count = hf.distribute.process_index(), hf.distribute.process_count()
assert (index, count) == (int(os.environ["HYBRIDFLOW_PROCESS_INDEX"]), 2)
mesh = hf.Mesh({"data": -1})

# parts of each process make one value, which only all of them can gather
rows = mesh.size // 2
own = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + 100 * index
whole = hf.distribute.from_local(own, mesh, ("data", None))
assert whole.shape == (mesh.size, 3)
for read in (whole.numpy, lambda: whole + 1, lambda: hf.sum(whole), lambda: np.asarray(whole)):
    with pytest.raises(hf.distribute.NotLocalError, match=r"hf\.distribute\.gather"):
        read()
assert "on the devices of several processes" in repr(whole)
gathered = hf.distribute.gather(whole).numpy()
assert np.array_equal(gathered, np.concatenate([own - 100 * index, own - 100 * index + 100]))
assert hf.distribute.gather(hf.asarray([1.0])).tolist() == [1.0]

# process 0's value, in every dtype
for value in (np.float64(index + 0.5), np.arange(3) + index, np.array([True, False]) ^ bool(index)):
    first = hf.distribute.broadcast(value)
    assert first.dtype == hf.asarray(value).dtype
    expected = {"f": 0.5, "i": [0, 1, 2], "b": [True, False]}[np.asarray(value).dtype.kind]
    assert first.tolist() == expected, (first, expected)
draws = hf.random.uniform((4,)).numpy()
assert np.array_equal(draws, hf.distribute.broadcast(draws).numpy())  # the processes begin with one seed
hf.distribute.barrier()

# a sharded model is saved as a whole, by one process
hf.random.seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))
x = np.ones((2, 4), np.float32)
before = model(x).numpy()
hf.distribute.shard(model, mesh, fsdp="data")
hf.save(directory / "weights.safetensors", model)
hf.export.save(directory / "model.hf", model, hf.TensorSpec([None, 4]))
assert np.allclose(hf.export.load(directory / "model.hf").predict(x).numpy(), before, atol=1e-6)
other = nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))
hf.load(directory / "weights.safetensors", into=other)
assert np.allclose(other(x).numpy(), before, atol=1e-6)
with pytest.raises(FileExistsError):
    hf.save(directory / "weights.safetensors", model, overwrite=False)

# fit: process 0 alone logs and shows progress; the last batch of 4 has 1 row
y = np.arange(9) % 2
history = hf.train.fit(
    model, np.ones((9, 4), np.float32) * y[:, None], y, loss=nn.softmax_cross_entropy, batch_size=4, epochs=2,
    mesh=mesh, optimizer=hf.optim.Adam(model, rate=0.01), directory=directory / "run", metrics=hf.metrics.Accuracy(),
)
losses = hf.distribute.broadcast(np.array(history["loss"])).tolist()
assert losses == history["loss"], (losses, history)
hf.distribute.barrier("written")
assert len((directory / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()) == 2
print("all right", flush=True)
