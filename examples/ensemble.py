"""Eight networks are trained as one by `hf.vmap`, and know together when they do not know.

Run it with ``python examples/ensemble.py``, or with a number of epochs after it; it needs scikit-learn for its digits.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as hf
from hybridflow import nn

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
MEMBERS = 8

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
split = len(labels) * 4 // 5

hf.random.seed(0)
members = [nn.Sequential(nn.Linear(64, 32), nn.relu, nn.Linear(32, 10)) for _ in range(MEMBERS)]
ensemble = nn.stack(members)  # the weights have a first axis more
optimizer = hf.optim.Adam(ensemble, rate=5e-3)


def logits_of(ensemble, x):
    """Return (members, examples, classes)."""
    return hf.vmap(lambda member, x: member(x), in_axes=(0, None))(ensemble, x)


def step(x, y):
    with hf.GradientTape() as tape:
        losses = hf.mean(nn.softmax_cross_entropy(logits_of(ensemble, x), hf.broadcast_to(y, (MEMBERS, *y.shape))), 1)
        loss = hf.sum(losses)  # each network's gradient is its own
    optimizer.update(tape.gradient(loss, ensemble))
    return hf.stop_gradient(hf.mean(losses))


fast_step = hf.compile(step)
data = hf.data.Batches((images[:split], labels[:split]), 64, shuffle=True, seed=0, drop_last=True)
run = hf.train.Run(data=data)
for x, y in run.steps(EPOCHS * len(data)):
    run.log(loss=fast_step(x, y))

chances = hf.train.predict(
    lambda x: hf.permute_dims(nn.softmax(logits_of(ensemble, x)), (1, 0, 2)), images[split:]
).numpy()
right = labels[split:]
alone = (chances.argmax(-1) == right[:, None]).mean()
together = chances.mean(1).argmax(-1) == right
agreed = (chances.argmax(-1) == chances.argmax(-1)[:, :1]).all(1)
print(f"alone {alone:.1%} right, together {together.mean():.1%};", end=" ")
print(f"{together[agreed].mean():.1%} where all agree, {together[~agreed].mean():.1%} of the {(~agreed).sum()} others")

found = hf.compare(step, images[:64], labels[:64])
print(found)
assert found.same
