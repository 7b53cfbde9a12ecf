"""Transfer learning: a trained body is frozen, a new head is trained."""

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as torch
import hybridflow.nn as nn

torch.manual_seed(3)
digits = load_digits()
x = torch.tensor(digits.images[:, None].astype(np.float32) / 16)
y = torch.tensor(digits.target)

body = nn.Sequential(
    nn.Conv2d(1, 8, kernel_size=3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
)
model = nn.Sequential(body, nn.Linear(128, 10))
before = [p.detach().clone() for p in body.parameters()]

for param in model.parameters():
    param.requires_grad = False
model[1] = nn.Linear(model[1].in_features, 2)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
even = (y % 2).long()
total = sum(p.numel() for p in model.parameters())
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
losses = []
model.train()
for epoch in range(30):
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x[:600]), even[:600])
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
after = [p.detach().clone() for p in body.parameters()]
with torch.no_grad():
    model.eval()
    acc = (model(x[600:]).argmax(1) == even[600:]).float().mean().item()
print(total, trainable, losses[0], losses[-1], acc)
