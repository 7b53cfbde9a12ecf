"""Ten training programs in the idioms of PyTorch's examples: the same text runs with torch and with hybridflow.

Each starts from torch's parameters and takes 12 steps, eagerly and compiled; losses and parameters are torch's.
Without torch, the tests are skipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf

torch = pytest.importorskip("torch", reason="torch is not installed")
STEPS = 12
EPS = 1e-4
"""Adam's epsilon where a gradient is 0 but for rounding: softmax takes no notice of a constant in scores.

With 1e-8, Adam would make a step of full size of what only the order of a sum decides. The two programs that LBFGS
trains compute in float64 for the same reason: its steps amplify rounding.
"""
Step = Callable[..., Any]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng().standard_normal((STEPS, *shape)).astype(np.float32)


def words(*shape: int, most: int) -> np.ndarray[Any, Any]:
    return rng().integers(0, most, (STEPS, *shape))


# -- the programs: (torch or hybridflow) -> the models, a step, and its arguments at each step ------------------------


def dcgan(t: Any):
    nn = t.nn
    G = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, stride=1, padding=0, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1, bias=False), nn.Tanh(),
    )
    D = nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 1, 4, stride=1, padding=0, bias=False), nn.Flatten(),
    )
    optimizers = [t.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.999)) for m in (D, G)]
    criterion = nn.BCEWithLogitsLoss()

    def step(real, noise):
        D.zero_grad()
        label = t.ones((4, 1))
        error_real = criterion(D(real), label)
        error_real.backward()
        fake = G(noise)
        error_fake = criterion(D(fake.detach()), t.zeros_like(label))
        error_fake.backward()
        optimizers[0].step()
        G.zero_grad()
        error = criterion(D(fake), label)
        error.backward()
        optimizers[1].step()
        return error_real + error_fake, error

    return [G, D], step, (np.tanh(normal(4, 1, 8, 8)), normal(4, 6, 1, 1))


def actor_critic(t: Any):
    nn = t.nn

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.affine, self.action_head, self.value_head = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)

        def forward(self, x):
            x = nn.functional.relu(self.affine(x))
            return nn.functional.softmax(self.action_head(x), dim=-1), self.value_head(x)

    model = Policy()
    optimizer = t.optim.Adam(model.parameters(), lr=3e-2)

    def step(states, actions, rewards):
        R, returns = 0.0, []
        for i in range(9, -1, -1):
            R = rewards[i] + 0.99 * R
            returns.insert(0, R)
        returns = t.stack(returns)
        returns = (returns - returns.mean()) / (t.sqrt(t.mean((returns - returns.mean()) ** 2)) + 1e-6)
        probabilities, values = model(states)
        policy_losses, value_losses = [], []
        for i in range(10):
            advantage = returns[i] - values[i, 0].detach()
            policy_losses.append(-t.log(probabilities[i][actions[i]]) * advantage)
            value_losses.append(nn.functional.smooth_l1_loss(values[i, 0], returns[i]))
        optimizer.zero_grad()
        loss = t.stack(policy_losses).sum() + t.stack(value_losses).sum()
        loss.backward()
        optimizer.step()
        return loss

    return [model], step, (normal(10, 4), words(10, most=2), normal(10))


def super_resolution(t: Any):
    nn = t.nn

    class Net(nn.Module):
        def __init__(self, upscale):
            super().__init__()
            self.upscale = upscale
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 6, 3, padding=1)
            self.conv3 = nn.Conv2d(6, upscale**2, 3, padding=1)

        def forward(self, x):
            for conv in (self.conv1, self.conv2):
                x = nn.functional.relu(conv(x))
            x = self.conv3(x)
            n, _, h, w = x.shape
            r = self.upscale
            return x.reshape((n, 1, r, r, h, w)).permute(0, 1, 4, 2, 5, 3).reshape((n, 1, h * r, w * r))

    model, criterion = Net(3), nn.MSELoss()
    optimizer = t.optim.Adam(model.parameters(), lr=1e-2)

    def step(small, large):
        optimizer.zero_grad()
        loss = criterion(model(small), large)
        loss.backward()
        optimizer.step()
        return loss

    return [model], step, (normal(2, 1, 6, 6), normal(2, 1, 18, 18))


def clipped(t: Any, parameters: Iterable[Any], most: float) -> list[Any]:
    """Return the gradients, scaled down to a norm: ``clip_grad_norm_`` changes them in place, which tensors forbid."""
    gradients = [one.grad for one in parameters]
    scale = t.clip(most / (t.sqrt(sum([(one**2).sum() for one in gradients])) + 1e-6), max=1.0)
    return [one * scale for one in gradients]


def subtract(t: Any, parameters: Iterable[Any], changes: Iterable[Any]) -> None:
    with t.no_grad():
        for one, change in zip(parameters, changes, strict=True):
            if t is torch:
                one.sub_(change)
            else:
                one.assign_sub(change)


def word_language_model(t: Any):
    nn = t.nn

    class RNNModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.rnn = nn.Embedding(11, 8), nn.LSTM(8, 8, num_layers=2, batch_first=True)
            self.decoder = nn.Linear(8, 11)
            self.decoder.weight = self.encoder.weight

        def forward(self, x, hidden):
            output, hidden = self.rnn(self.encoder(x), hidden)
            return nn.functional.log_softmax(self.decoder(output).reshape((-1, 11)), dim=1), hidden

    model, criterion = RNNModel(), nn.NLLLoss()
    parameters = list(model.parameters())
    carried = [[t.zeros((2, 3, 8)), t.zeros((2, 3, 8))]]

    def one_step(data, targets, h, c):
        model.zero_grad()
        output, (h, c) = model(data, (h, c))
        loss = criterion(output, targets.reshape((-1,)))
        loss.backward()
        subtract(t, parameters, [2.0 * one for one in clipped(t, parameters, 0.25)])
        return loss, h, c

    def step(run, data, targets):
        loss, *carried[0] = run(data, targets, *[one.detach() for one in carried[0]])
        return loss

    step.compiles = one_step
    return [model], step, (words(3, 5, most=11), words(3, 5, most=11)[:, :, ::-1].copy())


def time_sequence(t: Any):
    nn = t.nn

    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 6, num_layers=2, batch_first=True, dtype=t.float64)
            self.linear = nn.Linear(6, 1, dtype=t.float64)

        def forward(self, x, future=0):
            outputs, state = self.lstm(x[:, :, None])
            outputs = [self.linear(outputs)]
            for _ in range(future):
                last, state = self.lstm(outputs[-1][:, -1:], state)
                outputs.append(self.linear(last))
            return t.concat(outputs, dim=1)[:, :, 0]

    model, criterion = Sequence(), nn.MSELoss()
    optimizer = t.optim.LBFGS(model.parameters(), lr=0.8, max_iter=3)
    wave = np.sin(np.arange(12)[None] / 2 + np.arange(3)[:, None])

    def closure(x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    def predict(x):
        with t.no_grad():
            return model(x, future=4)

    def step(run, x, y):
        loss = optimizer.step(lambda: run(x, y))
        return loss, predict(x)

    step.compiles = closure
    return [model], step, ([wave[:, :-1]] * STEPS, [wave[:, 1:]] * STEPS)


def siamese(t: Any):
    nn = t.nn

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(),
            )
            self.fc = nn.Sequential(nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, a, b):
            a, b = self.body(a), self.body(b)
            return t.sigmoid(self.fc(t.concat((a, b), dim=1)))[:, 0]

    model = Siamese()
    optimizer = t.optim.Adadelta(model.parameters(), lr=1.0)

    def step(a, b, target):
        optimizer.zero_grad()
        p = model(a, b)
        loss = -t.mean(target * t.log(p) + (1 - target) * t.log(1 - p))
        loss.backward()
        optimizer.step()
        return loss

    return [model], step, (normal(4, 1, 8, 8), normal(4, 1, 8, 8)[::-1].copy(), words(4, most=2).astype(np.float32))


def neural_style(t: Any):
    nn = t.nn
    convolutions = [nn.Conv2d(channels, 6, 3, padding=1, dtype=t.float64) for channels in (3, 6)]
    features = nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU())
    for one in features.parameters():
        one.requires_grad_(False)
    images = rng().uniform(0, 1, (3, 1, 3, 8, 8))
    content_image, style_image, start = map(t.tensor, images)
    image = start.requires_grad_() if t is torch else t.Variable(start, requires_grad=True)
    optimizer = t.optim.LBFGS([image], max_iter=3)

    def clamp():
        with t.no_grad():
            image.clamp_(0, 1) if t is torch else image.assign(t.clip(image, 0, 1))

    def gram(x):
        x = x.reshape((6, 64))
        return (x @ x.T) / 384

    def losses(x):
        first = features[1](features[0](x))
        return first, features[3](features[2](first))

    def closure():
        clamp()
        optimizer.zero_grad()
        with t.no_grad():
            styles, content = [gram(one) for one in losses(style_image)], losses(content_image)[1]
        found = losses(image)
        style = sum([((gram(one) - wanted) ** 2).mean() for one, wanted in zip(found, styles, strict=True)])
        loss = 100 * style + ((found[1] - content) ** 2).mean()
        loss.backward()
        return loss

    def step(run):
        loss = optimizer.step(run)
        clamp()
        return loss, image

    step.compiles = closure
    return [features], step, ()


def graph(nodes: int) -> np.ndarray[Any, Any]:
    adjacency = rng().uniform(size=(nodes, nodes)) < 0.3
    return (adjacency | adjacency.T | np.eye(nodes, dtype=bool)).astype(np.float32)


def graph_attention(t: Any):
    nn = t.nn

    class GraphAttention(nn.Module):
        def __init__(self, inputs, outputs, last):
            super().__init__()
            self.W = nn.Linear(inputs, outputs, bias=False)
            self.left, self.right = nn.Linear(outputs, 1, bias=False), nn.Linear(outputs, 1, bias=False)
            self.last = last

        def forward(self, h, adjacency):
            Wh = self.W(h)
            e = nn.functional.leaky_relu(self.left(Wh) + self.right(Wh).T, negative_slope=0.2)
            attention = t.where(adjacency > 0, e, t.full_like(e, -9e15))
            h = nn.functional.softmax(attention, dim=1) @ Wh
            return h if self.last else nn.functional.elu(h)

    class GAT(nn.Module):
        def __init__(self):
            super().__init__()
            self.attentions = nn.ModuleList([GraphAttention(5, 4, last=False) for _ in range(2)])
            self.out = GraphAttention(8, 3, last=True)

        def forward(self, x, adjacency):
            x = t.concat([one(x, adjacency) for one in self.attentions], dim=1)
            return nn.functional.log_softmax(nn.functional.elu(self.out(x, adjacency)), dim=1)

    model = GAT()
    optimizer = t.optim.Adam(model.parameters(), lr=5e-3, eps=EPS)
    adjacency, labels = t.tensor(graph(9)), t.tensor(words(9, most=3)[0])

    def step(x):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(x, adjacency)[:6], labels[:6])
        loss.backward()
        optimizer.step()
        return loss

    return [model], step, (normal(9, 5),)


def graph_attention_by_edges(t: Any):
    nn = t.nn
    sources, targets = map(t.tensor, np.nonzero(graph(9)))

    def add_at(values, shape):
        zeros = t.zeros(shape)
        return zeros.index_add(0, targets, values) if t is torch else zeros.at[targets].add(values)

    class Layer(nn.Module):
        def __init__(self, inputs, heads, width):
            super().__init__()
            self.heads, self.width = heads, width
            self.projection = nn.Linear(inputs, heads * width, bias=False)
            self.source, self.target = (nn.Linear(width, heads, bias=False) for _ in range(2))
            self.skip = nn.Linear(inputs, heads * width)

        def forward(self, x):
            h = self.projection(x).reshape((9, self.heads, self.width))
            by_source = (h * self.source.weight).sum(-1)[sources]
            scores = nn.functional.leaky_relu(by_source + (h * self.target.weight).sum(-1)[targets], 0.2)
            weights = t.exp(scores - scores.max())
            weights = weights / (add_at(weights, (9, self.heads))[targets] + 1e-16)
            h = add_at(h[sources] * weights[:, :, None], (9, self.heads, self.width))
            return nn.functional.elu(h.reshape((9, -1)) + self.skip(x))

    model = nn.Sequential(Layer(5, 2, 4), Layer(8, 1, 3))
    optimizer = t.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=5e-4, eps=EPS)
    criterion = nn.CrossEntropyLoss()
    labels = t.tensor(words(9, most=3)[0])

    def step(x):
        optimizer.zero_grad()
        loss = criterion(model(x)[:6], labels[:6])
        loss.backward()
        optimizer.step()
        return loss

    return [model], step, (normal(9, 5),)


def gpt_with_accumulation(t: Any):
    nn = t.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.attn, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
            self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

        def forward(self, x):
            b, n, width = x.shape
            parts = self.attn(self.ln_1(x)).reshape((b, n, 3, 2, 4))
            q, k, v = [parts[:, :, i].permute(0, 2, 1, 3) for i in range(3)]
            scores = (q @ k.permute(0, 1, 3, 2)) * (1.0 / math.sqrt(4))
            scores = scores.masked_fill(t.tril(t.ones((n, n))) == 0, float("-inf"))
            y = nn.functional.softmax(scores, dim=-1) @ v
            x = x + self.proj(y.permute(0, 2, 1, 3).reshape((b, n, width)))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(13, 8), nn.Embedding(6, 8)
            self.h = nn.ModuleList([Block() for _ in range(2)])
            self.ln_f, self.head = nn.LayerNorm(8), nn.Linear(8, 13, bias=False)

        def forward(self, ids):
            x = self.wte(ids) + self.wpe(t.arange(6))
            for block in self.h:
                x = block(x)
            return self.head(self.ln_f(x))

    model, criterion = GPT(), nn.CrossEntropyLoss()
    parameters = list(model.parameters())
    optimizer = t.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, eps=EPS)

    def step(ids, targets):
        optimizer.zero_grad()
        total = 0.0
        for i in range(4):
            loss = criterion(model(ids[i]).reshape((-1, 13)), targets[i].reshape((-1,))) / 4
            total += loss.detach()
            loss.backward()
        if t is torch:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        else:
            optimizer.update(t.clip_by_global_norm([one.grad for one in parameters], 1.0)[0])
        return total

    return [model], step, (words(4, 2, 6, most=13), words(4, 2, 6, most=13)[..., ::-1].copy())


PROGRAMS = [dcgan, actor_critic, super_resolution, word_language_model, time_sequence, siamese, neural_style,
            graph_attention, graph_attention_by_edges, gpt_with_accumulation]


def values(result: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of a result, in their order."""
    if isinstance(result, list | tuple):
        return [array for one in result for array in values(one)]
    return [np.array(result if isinstance(result, np.ndarray) else result.detach().numpy())]


def trained(t: Any, program: Callable[[Any], Any], initial: list[Any], wrap: Callable[[Any], Any]) -> Any:
    """Run a program; return what its steps gave, and its parameters and buffers.

    Args:
        t: torch or hybridflow.
        program: the program.
        initial: the parameters to start from; torch fills it.
        wrap: compiles the step, or what the step calls, or does nothing.
    """
    models, step, data = program(t)
    if t is torch:
        initial += [{name: values(one)[0] for name, one in m.state_dict().items()} for m in models]
    for m, state in zip(models, initial, strict=True):
        if t is not torch:
            own = {name: value for name, value in state.items() if name in m.state_dict()}
            m.load_state_dict({**m.state_dict(), **own})
    compiles = getattr(step, "compiles", None)
    whole = wrap(step) if compiles is None else functools.partial(step, wrap(compiles))
    losses = [values(whole(*[t.tensor(one[i]) for one in data])) for i in range(STEPS)]
    states = [m.state_dict() for m in models]
    return losses, [{name: values(one)[0] for name, one in state.items()} for state in states]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_ports_agree_with_torch(program):
    torch.manual_seed(0)
    initial: list[Any] = []
    losses, states = trained(torch, program, initial, lambda f: f)
    for wrap in (lambda f: f, hf.compile):
        found, after = trained(hf, program, initial, wrap)
        for number, (ours, theirs) in enumerate(zip(found, losses, strict=True)):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=f"step {number}")
        for ours, theirs in zip(after, states, strict=True):
            for name in ours:
                np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)
