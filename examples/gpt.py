"""A small GPT that writes like Python's documentation: from the text to samples.

Run it with ``python examples/gpt.py``, which takes some minutes; a number of steps after it is for a look, at a smaller
model. The text is what Python's own ``help()`` shows, 450,000 characters.
"""

import sys
from pydoc_data.topics import topics

import numpy as np

import hybridflow as hf
from hybridflow import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
LENGTH, BATCH, WIDTH, HEADS, BLOCKS = (96, 24, 128, 4, 4) if STEPS >= 500 else (32, 8, 32, 2, 1)

text = "\n".join(topics.values())
letters = sorted(set(text))
ids = np.array([letters.index(letter) for letter in text], np.int32)
windows = np.lib.stride_tricks.sliding_window_view(ids, LENGTH + 1)
split = len(windows) * 9 // 10


class Block(nn.Module):
    def __init__(self):
        self.norm1, self.norm2 = nn.LayerNorm(), nn.LayerNorm()
        self.attend = nn.MultiHeadAttention(WIDTH, HEADS, is_causal=True, rotary=True)
        self.mlp = nn.Sequential(nn.Linear(4 * WIDTH), nn.gelu, nn.Linear(WIDTH), nn.Dropout(0.1))

    def forward(self, x, cache=None):
        x = x + self.attend(self.norm1(x), cache=cache)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        self.embed = nn.Embedding(len(letters), WIDTH)
        self.blocks = [Block() for _ in range(BLOCKS)]
        self.norm, self.head = nn.LayerNorm(), nn.Linear(len(letters), bias=False)

    def forward(self, x, caches=(None,) * BLOCKS):
        x = self.embed(x)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(self.norm(x))


hf.random.seed(0)
model = GPT()
optimizer = hf.optim.AdamW(
    model, rate=hf.optim.warmup_cosine(2e-3, min(100, STEPS // 2), STEPS), betas=(0.9, 0.95), decay=0.1, clip=1.0
)


def loss_of(window):
    return hf.mean(nn.softmax_cross_entropy(model(window[:, :-1]), window[:, 1:]))


def step(window):
    with hf.GradientTape() as tape:
        loss = loss_of(window)
    optimizer.update(tape.gradient(loss, model))
    return loss


@hf.no_grad()
def validation_loss():
    held_out = hf.data.Batches(windows[split + LENGTH :: 997], BATCH, drop_last=True)
    model.eval()
    losses = [validate(window) for window in held_out]
    model.train()
    return hf.mean(hf.stack(losses))


@hf.no_grad()
def write(prompt, count):
    """Return a text that goes on for so many letters; keys and values of those before are kept."""
    caches = [block.attend.cache(1, len(prompt) + count) for block in model.blocks]

    @hf.compile
    def after(letter):
        return hf.random.categorical(model(letter, caches)[:, -1] / 0.7)

    model.eval()
    written = [letters.index(letter) for letter in prompt]
    for place in range(len(prompt) + count - 1):
        found = after(np.array([[written[place]]], np.int32))
        if place + 1 == len(written):
            written.append(found.item())
    model.train()
    return "".join([letters[number] for number in written])


fast_step, validate = hf.compile(step), hf.compile(loss_of)
data = hf.data.Batches(windows[:split], BATCH, shuffle=True, seed=0).prefetch(2)
run = hf.train.Run(data=data)
for window in run.steps(STEPS):
    run.log(loss=fast_step(window))
    if run.every(500):
        run.log(val_loss=validation_loss())

summary = nn.summary(model, hf.TensorSpec([1, LENGTH], hf.int32))
print(f"{summary.parameters:,} parameters, validation loss {validation_loss().item():.3f}; a sample:")
print(write("The ", 400 if STEPS >= 500 else 40))
found = hf.compare(step, window)
print(found)
assert found.same
