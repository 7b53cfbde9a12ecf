"""A classifier of digits: a module, mini-batches, evaluation without gradients, a learning-rate schedule, saving."""

import os
import tempfile

import numpy as np
from sklearn.datasets import load_digits

import hybridflow as torch
import hybridflow.nn as F
import hybridflow.nn as nn
import hybridflow.optim as optim

torch.manual_seed(0)
device = torch.device("cpu")
digits = load_digits()
data = torch.tensor((digits.data / 16.0).astype(np.float32)).to(device)
target = torch.tensor(digits.target).to(device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.dropout = nn.Dropout(0.25)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = x.view(-1, 64)
        x = F.relu(self.fc1(x))
        x = self.dropout(x)
        return F.log_softmax(self.fc2(x), dim=1)


train_loader = torch.data.Batches((data[:1280], target[:1280]), 64, shuffle=True)
model = Net()
optimizer = optim.Adam(model.parameters(), lr=optim.step(0.01, 0.7, every=20))
losses = []
for epoch in range(1, 6):
    model.train()
    for batch_idx, (x, y) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(x)
        loss = F.nll_loss(output, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        output = model(data[1280:])
        pred = output.argmax(dim=1, keepdim=True)
        correct = pred.eq(target[1280:].view_as(pred)).sum().item()
    print("epoch", epoch, "accuracy", correct / 517)

path = os.path.join(tempfile.mkdtemp(), "digits.pt")
torch.save(path, model.state_dict())
restored = Net()
restored.load_state_dict(torch.load(path))
restored.eval()
