"""A variational autoencoder of handwritten digits: it learns to draw new ones.

Run it with ``python examples/vae.py``, or with a number of epochs after it; it needs scikit-learn for the digits.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as hf
from hybridflow import nn

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
SHADES = " .:-=+*#%@"
images = (load_digits().data / 16).astype(np.float32)


class VAE(nn.Module):
    def __init__(self, width=128, hidden=8):
        self.encode = nn.Sequential(nn.Linear(64, width), nn.silu, nn.Linear(2 * hidden))
        self.decode = nn.Sequential(nn.Linear(hidden, width), nn.silu, nn.Linear(64))

    def forward(self, x):
        mean, log_variance = hf.split(self.encode(x), 2, axis=-1)
        hidden = mean + hf.exp(0.5 * log_variance) * hf.random.normal(mean.shape)
        return self.decode(hidden), mean, log_variance


hf.random.seed(0)
model = VAE()
optimizer = hf.optim.Adam(model, rate=2e-3)


def step(x):
    """Improve the bound on the likelihood of images, and return its two parts."""
    with hf.GradientTape() as tape:
        logits, mean, log_variance = model(x)
        drawn = hf.sum(nn.sigmoid_cross_entropy(logits, x), axis=-1)
        surprise = 0.5 * hf.sum(mean**2 + hf.exp(log_variance) - log_variance - 1, axis=-1)
        loss = hf.mean(drawn + surprise)
    optimizer.update(tape.gradient(loss, model))
    return hf.stop_gradient((hf.mean(drawn), hf.mean(surprise)))


fast_step = hf.compile(step)
data = hf.data.Batches(images, 64, shuffle=True, seed=0, drop_last=True)
run = hf.train.Run(data=data)
for batch in run.steps(EPOCHS * len(data)):
    drawn, surprise = fast_step(batch)
    run.log(drawn=drawn, surprise=surprise)
print(f"{run.last('drawn'):.2f} nats for the pixels, {run.last('surprise'):.2f} for the hidden numbers; new digits:")

with hf.no_grad():
    new = hf.sigmoid(model.decode(hf.random.normal((8, 8)))).numpy().reshape(8, 8, 8)
for row in range(8):
    print("  ".join(["".join([SHADES[int(value * 9.99)] * 2 for value in image[row]]) for image in new]))

found = hf.compare(step, images[:64])
print(found)
assert found.same
