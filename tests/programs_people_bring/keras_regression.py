"""A linear regression with validation, early stopping and saved weights."""

import os
import tempfile

import numpy as np

import hybridflow as keras
from hybridflow import nn as layers

rng = np.random.default_rng(0)
features = rng.normal(size=(200, 3)).astype("float32")
labels = features @ np.array([[2.0], [-1.0], [0.5]], dtype="float32") + 3.0

model = layers.Sequential(layers.Linear(1))
best = [np.inf]


def early_stopping(run):
    loss = run.last("val_loss")
    if loss > best[0] - 1e-6:
        run.stop()
    best[0] = min(best[0], loss)


history = keras.train.fit(
    model, features[:160], labels[:160], loss=layers.mse, optimizer=keras.optim.SGD(model, learning_rate=0.05),
    epochs=60, batch_size=32, validation=(features[160:], labels[160:]), callbacks=[early_stopping], progress=False,
)
path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
keras.save(path, model)
restored = layers.Sequential(layers.Linear(3, 1))
keras.load(path, into=restored)
