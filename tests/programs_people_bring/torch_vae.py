"""A variational autoencoder with the reparametrization trick."""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as torch
import hybridflow.nn as F
import hybridflow.nn as nn

torch.manual_seed(2)
images = torch.asarray((load_digits().data / 16.0).astype(np.float32))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 4)
        self.fc22 = nn.Linear(32, 4)
        self.fc3 = nn.Linear(4, 32)
        self.fc4 = nn.Linear(32, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return self.fc4(F.relu(self.fc3(z)))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy_with_logits(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(60):
    batch = images[(step % 14) * 128 : (step % 14) * 128 + 128]
    optimizer.zero_grad()
    recon, mu, logvar = model(batch)
    loss = loss_function(recon, batch, mu, logvar)
    loss.backward()
    optimizer.step()
    losses.append(loss.item() / len(batch))
sample = model.decode(torch.randn(8, 4)).cpu().detach().numpy()
