"""The programs of `sizes` as users of PyTorch and JAX write them, with the same weights.

PyTorch's are compiled with ``torch.compile(dynamic=True)``. JAX's are padded by hand, with masks, since `jax.jit`
compiles for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Weights = Mapping[str, Any]
"""The first values of a model's parameters, by path."""
Peer = tuple[Callable[..., Any], Callable[[], int]]
"""A step, and a function that counts the compilations so far."""


# -- PyTorch ----------------------------------------------------------------------------------------------------------


def torch_side(program: str, weights: Weights, heads: int) -> Peer:
    """Return a program's step, which takes and returns arrays."""
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend  # it counts the graphs that are compiled

    makers = {"gpt": _torch_gpt, "reinforce": _torch_policy, "classifier": _torch_classifier}
    model, loss = makers[program](torch, weights, heads)
    model.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(loss, dynamic=True, backend=counter)
    rate = {"reinforce": 1e-2, "classifier": 3e-3}.get(program)
    if rate is None:

        def write(letters: Any) -> Any:
            with torch.no_grad():
                return compiled(torch.from_numpy(letters)).numpy()

        return write, lambda: counter.frame_count
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def train(*arrays: Any) -> Any:
        value = compiled(*map(torch.from_numpy, arrays))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()

    return train, lambda: counter.frame_count


def _torch_gpt(torch: Any, weights: Weights, heads: int) -> tuple[Any, Callable[..., Any]]:
    nn, width = torch.nn, weights["norm.weight"].size

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = [nn.Linear(width, width) for _ in range(4)]

        def forward(self, x: Any) -> Any:
            parts = [one(x).unflatten(-1, (heads, -1)).transpose(1, 2) for one in (self.query, self.key, self.value)]
            made = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            return self.out(made.transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2, self.attend = nn.LayerNorm(width), nn.LayerNorm(width), Attention()
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = [nn.Embedding(*weights[f"{name}.weight"].shape) for name in ("embed", "place")]
            self.blocks = nn.Sequential(*[Block() for name in weights if name.endswith("norm1.weight")])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(weights["head.weight"]), bias=False)

        def forward(self, x: Any) -> Any:
            made = self.blocks(self.embed(x) + self.place(torch.arange(x.shape[1])))
            return self.head(self.norm(made[:, -1]))

    model = GPT()
    return model, model


def _torch_policy(torch: Any, weights: Weights, heads: int) -> tuple[Any, Callable[..., Any]]:
    (hidden, inputs), (outputs, _) = weights["0.weight"].shape, weights["2.weight"].shape
    policy = torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, outputs))

    def loss(seen: Any, done: Any, returns: Any) -> Any:
        gain = (returns - returns.mean()) / (returns.std(correction=0) + 1e-6)
        return (torch.nn.functional.cross_entropy(policy(seen), done.long(), reduction="none") * gain).mean()

    return policy, loss


def _torch_classifier(torch: Any, weights: Weights, heads: int) -> tuple[Any, Callable[..., Any]]:
    nn = torch.nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(*weights["embed.weight"].shape)
            self.read = nn.LSTM(weights["embed.weight"].shape[1], weights["head.weight"].shape[1], batch_first=True)
            self.head = nn.Linear(*reversed(weights["head.weight"].shape))

        def forward(self, x: Any) -> Any:
            return self.head(self.read(self.embed(x))[0].mean(1))

    model = Classifier()
    return model, lambda letters, label: nn.functional.cross_entropy(model(letters), label.long())


# -- JAX --------------------------------------------------------------------------------------------------------------


def jax_side(program: str, weights: Weights, heads: int) -> Peer:
    """Return a program's step of padded arguments."""
    import jax
    import optax

    losses = {"gpt": _jax_gpt, "reinforce": _jax_policy, "classifier": _jax_classifier}
    function = losses[program]
    rate = {"reinforce": 1e-2, "classifier": 3e-3}.get(program)
    if rate is None:
        write = jax.jit(lambda p, *args: function(p, *args, heads))
        values = dict(weights)
        return lambda *args: np.asarray(write(values, *map(np.asarray, args))), write._cache_size
    adam = optax.adam(rate)

    def update(p: Any, state: Any, *args: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(function)(p, *args)
        changes, state = adam.update(gradients, state, p)
        return optax.apply_updates(p, changes), state, loss

    fast = jax.jit(update, donate_argnums=(0, 1))
    p: Any = jax.tree.map(jax.numpy.array, dict(weights))
    held = [p, adam.init(p)]

    def train(*args: Any) -> Any:
        *held[:], loss = fast(*held, *args)
        return float(loss)

    return train, fast._cache_size


def _jax_linear(p: Weights, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0.0)


def _jax_gpt(p: Weights, letters: Any, count: Any, heads: int) -> Any:
    import jax
    import jax.numpy as jnp

    def norm(name: str, x: Any) -> Any:
        away = x - x.mean(-1, keepdims=True)
        return away / jnp.sqrt((away * away).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    size = letters.shape[1]
    x = p["embed.weight"][letters] + p["place.weight"][:size]
    for block in range(sum([name.endswith("norm1.weight") for name in p])):
        y = norm(f"blocks.{block}.norm1", x)
        parts = [_jax_linear(p, f"blocks.{block}.attend.{one}", y) for one in ("query", "key", "value")]
        made = jax.nn.dot_product_attention(*[one.reshape(1, size, heads, -1) for one in parts], is_causal=True)
        x = x + _jax_linear(p, f"blocks.{block}.attend.out", made.reshape(1, size, -1))
        y = jax.nn.gelu(_jax_linear(p, f"blocks.{block}.mlp.0", norm(f"blocks.{block}.norm2", x)), approximate=False)
        x = x + _jax_linear(p, f"blocks.{block}.mlp.2", y)
    return _jax_linear(p, "head", norm("norm", x[:, count - 1]))  # causal: what is padded is behind the last letter


def _jax_policy(p: Weights, seen: Any, done: Any, returns: Any, real: Any) -> Any:
    import jax.numpy as jnp
    import optax

    count = real.sum()
    away = (returns - (returns * real).sum() / count) * real
    gain = away / (jnp.sqrt((away * away).sum() / count) + 1e-6)
    logits = _jax_linear(p, "2", jnp.tanh(_jax_linear(p, "0", seen)))
    return (optax.softmax_cross_entropy_with_integer_labels(logits, done) * gain).sum() / count


def _jax_classifier(p: Weights, letters: Any, label: Any, real: Any) -> Any:
    import jax
    import jax.numpy as jnp
    import optax

    bias = p["read.bias_ih_l0"] + p["read.bias_hh_l0"]
    given = p["embed.weight"][letters] @ p["read.weight_ih_l0"].T + bias

    def advance(state: Any, part: Any) -> Any:
        hidden, cell = state
        enter, keep, new, out = jnp.split(part + hidden @ p["read.weight_hh_l0"].T, 4, axis=-1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    start = jnp.zeros((letters.shape[0], p["read.weight_hh_l0"].shape[1]), jnp.float32)
    y = jax.lax.scan(advance, (start, start), jnp.swapaxes(given, 0, 1))[1]
    logits = _jax_linear(p, "head", (y * jnp.swapaxes(real, 0, 1)[:, :, None]).sum(0) / real.sum())
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()
