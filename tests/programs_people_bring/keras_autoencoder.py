"""An autoencoder: fit on inputs as targets, then a part of the model predicts."""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as keras
from hybridflow import nn as layers

keras.random.set_seed(1)
x_train = (load_digits().data / 16.0).astype("float32")[:640]


class Autoencoder(layers.Module):
    def __init__(self, latent_dim):
        super().__init__()
        self.encoder = layers.Sequential(layers.Linear(latent_dim), layers.ReLU())
        self.decoder = layers.Sequential(layers.Linear(64), layers.Sigmoid())

    def __call__(self, x):
        encoded = self.encoder(x)
        decoded = self.decoder(encoded)
        return decoded


autoencoder = Autoencoder(16)
history = keras.train.fit(
    autoencoder, x_train, x_train, loss=layers.mse, optimizer=keras.optim.Adam(autoencoder, learning_rate=0.01),
    epochs=6, shuffle=True, progress=False,
)
encoded_imgs = np.asarray(keras.train.predict(autoencoder.encoder, x_train[:10]))
decoded_imgs = np.asarray(keras.train.predict(autoencoder.decoder, encoded_imgs))
