"""A classifier of digits with fit, evaluate and predict."""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as keras
from hybridflow import nn as layers

keras.random.set_seed(0)
digits = load_digits()
x = digits.data.astype("float32") / 16
y = digits.target
x_train, y_train, x_test, y_test = x[:1280], y[:1280], x[1280:], y[1280:]

model = layers.Sequential(
    layers.Linear(64),
    layers.ReLU(),
    layers.Dropout(0.2),
    layers.Linear(10),
)
history = keras.train.fit(
    model, x_train, y_train, loss=layers.softmax_cross_entropy, optimizer=keras.optim.Adam(model, learning_rate=0.005),
    metrics=keras.metrics.Accuracy(), epochs=5, batch_size=32, validation=(x_test, y_test), progress=False,
)
found = keras.train.evaluate(model, x_test, y_test, metrics=keras.metrics.Accuracy())
predictions = np.argmax(keras.train.predict(model, x_test[:5]), axis=1)
print(found, predictions)
