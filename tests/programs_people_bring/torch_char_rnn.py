"""A character model: embedding, LSTM, detached state, clipped gradients, sampling."""


import hybridflow as torch
import hybridflow.nn as nn

torch.manual_seed(1)
text = "to be or not to be that is the question " * 4
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text], dtype=torch.long)


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, 16)
        self.lstm = nn.LSTM(16, hidden, num_layers=1, batch_first=True)
        self.fc = nn.Linear(hidden, vocab)

    def forward(self, x, state=None):
        out, state = self.lstm(self.embedding(x), state)
        return self.fc(out), state


model = CharRNN(len(chars), 32)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, clip=1.0)
seq, losses = 20, []
for epoch in range(12):
    state = None
    for start in range(0, len(ids) - seq - 1, seq):
        x = ids[start : start + seq].unsqueeze(0)
        y = ids[start + 1 : start + seq + 1].unsqueeze(0)
        logits, state = model(x, state)
        state = tuple(s.detach() for s in state)
        loss = criterion(logits.view(-1, len(chars)), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

with torch.no_grad():
    x, state, out = torch.tensor([[stoi["t"]]]), None, "t"
    for _ in range(15):
        logits, state = model(x, state)
        nxt = torch.argmax(logits[0, -1])
        out += chars[nxt.item()]
        x = nxt.view(1, 1)
print(out)
