"""An LSTM forecasts sunspots, a year ahead and then many, from 300 years of counts.

Run it with ``python examples/lstm_forecast.py``, or with a number of epochs after it; statsmodels has the counts.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

import hybridflow as hf
from hybridflow import nn

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 120
SEEN, HELD_OUT = 33, 36

package = Path(importlib.util.find_spec("statsmodels").origin).parent
years, counts = np.loadtxt(package / "datasets/sunspots/sunspots.csv", delimiter=",", skiprows=1, unpack=True)
series = np.sqrt(counts).astype(np.float32)  # whose swings are of one size
windows = np.lib.stride_tricks.sliding_window_view(series, SEEN + 1)
x, y = windows[:, :-1, None], windows[:, 1:, None]  # at each place, what comes next
train, test = (x[:-HELD_OUT], y[:-HELD_OUT]), (x[-HELD_OUT:], y[-HELD_OUT:])


class Forecaster(nn.Module):
    def __init__(self):
        self.lstm, self.out = nn.LSTM(1, 32), nn.Linear(32, 1)

    def forward(self, x, state=None):
        return self.step(x, state)[0]

    def step(self, x, state):
        """Return the forecasts after each place, and the state."""
        hidden, state = self.lstm(x / 10, state)
        return x + 10 * self.out(hidden), state


def last_error(prediction, target):
    return hf.abs(prediction[:, -1] - target[:, -1])


hf.random.seed(0)
model = Forecaster()
optimizer = hf.optim.Adam(model, rate=hf.optim.cosine(1e-2, EPOCHS * len(train[0]) // 12), clip=1.0)
stop = [lambda run: run.stop() if run.stalled("val_loss", patience=30) else None]
history = hf.train.fit(
    model, *train, loss=nn.mse, optimizer=optimizer, epochs=EPOCHS, batch_size=12,
    metrics={"error": last_error}, validation=test,
    callbacks=stop,
)
as_before = np.abs(test[0][:, -1] - test[1][:, -1]).mean()
print(f"{len(history['loss'])} epochs; error {min(history['val_error']):.3f}, of guessing no change {as_before:.3f}")


advance, past, state, ahead = hf.compile(model.step), series[None, -SEEN:, None], None, []
with hf.no_grad():
    for _ in range(11):  # each year from those before, the forecasts among them
        found, state = advance(past, state)
        past = found[:, -1:]
        ahead.append(past.item() ** 2)
for year, count in enumerate(ahead, int(years[-1]) + 1):
    print(f"{year} {count:6.1f} {'*' * int(count / 4)}")


def step(x, y):
    with hf.GradientTape() as tape:
        loss = hf.mean(nn.mse(model(x), y))
    optimizer.update(tape.gradient(loss, model))
    return loss


found = hf.compare(step, train[0][:12], train[1][:12])
print(found)
assert found.same
