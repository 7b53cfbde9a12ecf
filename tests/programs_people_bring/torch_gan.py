"""A small DCGAN: two models, two optimizers, detached fakes."""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as torch
import hybridflow.nn as nn

torch.manual_seed(4)
real = torch.tensor(load_digits().images[:256, None].astype(np.float32) / 8 - 1)
nz, ngf = 8, 8


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight, 0.0, 0.02)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf, 4, stride=1, padding=0, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(),
    nn.ConvTranspose2d(ngf, 1, 4, stride=2, padding=1, bias=False),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, ngf, 4, stride=2, padding=1, bias=False),
    nn.LeakyReLU(0.2),
    nn.Conv2d(ngf, 1, 4, stride=1, padding=0, bias=False),
    nn.Flatten(),
)
for m in [*netG.modules(), *netD.modules()]:
    weights_init(m)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
G_losses, D_losses = [], []
for i in range(20):
    batch = real[(i % 8) * 32 : (i % 8) * 32 + 32]
    netD.zero_grad()
    label = torch.ones(32, 1)
    errD_real = criterion(netD(batch), label)
    errD_real.backward()
    fake = netG(torch.randn(32, nz, 1, 1))
    errD_fake = criterion(netD(fake.detach()), torch.zeros_like(label))
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), label)
    errG.backward()
    optimizerG.step()
    G_losses.append(errG.item())
    D_losses.append(errD.item())
with torch.no_grad():
    images = netG(torch.randn(4, nz, 1, 1)).detach().cpu()
