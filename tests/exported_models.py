"""Models that are exported, each with the specs of its arguments and the arguments of a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.op import REGISTRY, Sample
from hybridflow.testing.checks import samples_of
from hybridflow.testing.graphs import together

OPEN = hf.TensorSpec([None, 12])


class Slopes(NamedTuple):
    """The gradients of an operation on one of its samples.

    Attributes:
        name: the operation's name and the sample's number.
        function: computes those gradients that exist, from the sample's arrays.
        tensors: the arrays.
    """

    name: str
    function: Callable[..., Any]
    tensors: list[Any]


def sample_gradients(samples: int = 1, *, hidden: bool = False) -> Iterator[Slopes]:
    """Yield the gradients of every operation on its first samples, or of those that keep hidden results for them."""
    for op in [one for one in REGISTRY.values() if not one.infer.__module__.startswith("test")]:
        good = [one for one in samples_of(op, 0) if isinstance(one, Sample) and one.gradient]
        for number, sample in enumerate(good[:samples] if op.saves.hidden or not hidden else ()):
            applied, tensors = together(op, [sample])
            wanted = [index for index, one in enumerate(tensors) if is_differentiable(one.dtype)]

            def gradients(*xs: Any, applied: Any = applied, wanted: Any = wanted) -> list[Any]:
                with hf.GradientTape() as tape:
                    tape.watch([xs[index] for index in wanted])
                    results = hf.tree.leaves(applied(*xs))
                return [one for one in tape.gradient(results, [xs[index] for index in wanted]) if one is not None]

            names = ", ".join(f"x{index}" for index in range(len(tensors)))
            if wanted and gradients(*tensors):
                function = eval(f"lambda {names}: gradients({names})", {"gradients": gradients})
                yield Slopes(f"{op.name}_{number}", function, tensors)


def agree(found: Any, expected: Any) -> None:
    """Compare gradients that were computed in another order of operations."""
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        tolerance = 2e-2 if jnp.finfo(b.dtype).bits < 32 else 2e-4
        a, b = [one.astype(np.complex128) for one in (a, b)]
        largest = float(np.max(np.abs(b), where=np.isfinite(b), initial=1.0))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class MLP(nn.Module):
    def __init__(self) -> None:
        self.layers = [nn.Linear(12, 32), nn.LayerNorm(32), nn.Linear(32, 3)]
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = nn.gelu(layer(x))
        return {"logits": self.layers[-1](self.drop(x)), "hidden": [x]}


class ConvNet(nn.Module):
    def __init__(self) -> None:
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4)
        self.out = nn.Linear(4 * 16, 3)

    def forward(self, image: Any) -> Any:
        x = nn.max_pool(nn.relu(self.norm(self.conv(image))), 2)
        return self.out(x.reshape((x.shape[0], -1)))


class UNet(nn.Module):
    def __init__(self) -> None:
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, image: Any) -> Any:
        fine = nn.relu(self.down(image))
        coarse = self.up(nn.relu(self.middle(nn.max_pool(fine, 2))))
        return self.out(hf.concat([fine, coarse], axis=1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        self.norm, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.attend = nn.MultiHeadAttention(width, heads, is_causal=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.gelu, nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.norm(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        self.table, self.places = nn.Embedding(11, 16), nn.Embedding(32, 16)
        self.blocks = [Block(16, 4) for _ in range(2)]
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens) + self.places(hf.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.table.weight.T


class VAE(nn.Module):
    def __init__(self) -> None:
        self.into, self.out = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: Any) -> Any:
        mean, spread = hf.split(self.into(x), 2, axis=-1)
        return self.out(mean + hf.exp(spread) * hf.random.normal(mean.shape)), mean


class Last(nn.Module):
    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x.reshape((-1, 4, 3)))


def doubled(x: Any) -> Any:
    while hf.max(x) < 10:
        x = x * 2 + 1
    return x if hf.sum(x) > 0 else x[:, ::-1]


def narrow(x: Any) -> Any:
    y = x.astype(hf.bfloat16) @ hf.asarray(numbers(12, 5), dtype=hf.bfloat16)
    return nn.softmax(y).astype(hf.float32), (x.astype(hf.float16) * 3).astype(hf.float32)


def spectrum(x: Any) -> Any:
    return hf.abs(hf.fft.fft(x)), hf.fft.irfft(hf.fft.rfft(x))


def ensemble() -> Any:
    models = nn.stack([nn.Linear(12, 3) for _ in range(3)])
    return lambda x: hf.mean(hf.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x), axis=0)


class Case(NamedTuple):
    """A model.

    Attributes:
        make: makes it.
        spec: of its argument.
        argument: the argument of a size.
        rtol: how far results may be apart.
    """

    make: Callable[[], Any]
    spec: Any = OPEN
    argument: Callable[[int], Any] = lambda size: numbers(size, 12, seed=size)
    rtol: float = 2e-5


def images(size: int) -> Any:
    return numbers(size, 1, 8, 8, seed=size)


def tokens(size: int) -> Any:
    return np.random.default_rng(size).integers(0, 11, (size, size + 2)).astype(np.int32)


IMAGES = hf.TensorSpec([None, 1, 8, 8])
MODELS: dict[str, Case] = {
    "mlp": Case(MLP),
    "convnet": Case(ConvNet, IMAGES, images),
    "unet": Case(UNet, IMAGES, images),
    "gpt": Case(GPT, hf.TensorSpec([None, None], hf.int32), tokens, 1e-4),
    "lstm": Case(lambda: Last(nn.LSTM(3, 5, bidirectional=True))),
    "gru": Case(lambda: Last(nn.GRU(3, 5))),
    "vae": Case(VAE),
    "loops and branches": Case(lambda: doubled),
    "bfloat16": Case(lambda: narrow, rtol=2**-7),
    "fft": Case(lambda: spectrum, rtol=1e-4),
    "ensemble": Case(ensemble),
    "gradient": Case(lambda: hf.grad(lambda x: hf.mean(hf.tanh(x @ x.T / 50)))),
    "compiled": Case(lambda: hf.compile(lambda x: hf.var(x, axis=0) / x.shape[0])),
}
SIZES = (1, 2, 5)
