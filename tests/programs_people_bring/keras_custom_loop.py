"""A training loop written by hand with a tape, a compiled step and metrics."""

import numpy as np

import hybridflow as tf
from hybridflow import nn as layers

tf.random.set_seed(0)
rng = np.random.default_rng(1)
x = rng.normal(size=(256, 2)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")

model = layers.Sequential(layers.Linear(16), layers.Tanh(), layers.Linear(2))
optimizer = tf.optim.Adam(model, learning_rate=0.02)
train_acc_metric = tf.metrics.Accuracy()
train_dataset = tf.data.Batches((x, y), 32, shuffle=True, seed=0)


@tf.compile
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x)
        loss_value = tf.reduce_mean(layers.softmax_cross_entropy(logits, y))
    grads = tape.gradient(loss_value, model.trainable_variables)
    optimizer.update(grads)
    train_acc_metric.update(logits, y)
    return loss_value


losses = []
for epoch in range(15):
    train_acc_metric.reset()
    for step, (x_batch, y_batch) in enumerate(train_dataset):
        loss_value = train_step(x_batch, y_batch)
    losses.append(float(loss_value))
    train_acc = train_acc_metric.result()
print("Training acc over the last epoch:", float(train_acc))
