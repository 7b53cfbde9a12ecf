"""Training steps of real models, each written once and run by hybridflow, torch and jax.

Gradients of the same weights are compared by name before anything is timed, with dropout off.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from ..frameworks import Array, Hybridflow, Jax, torch_framework
from ..measure import Disagreement
from ..registry import Case, row

TOLERANCE = 1e-2
"""The largest difference of two gradients, as a part of the largest element of either."""


# -- the models ---------------------------------------------------------------------------------------------------


def attention_block(
    f: Any, width: int, heads: int, rate: float, *, causal: bool, joint: bool = True, after: bool = False
) -> Any:
    """Return a transformer block with a dropout after each part.

    Queries, keys and values come from one layer if `joint`, else from three. The norms are before the parts, or `after`
    the sums, as in BERT.
    """

    class Block(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = f.LayerNorm(width), f.LayerNorm(width)
            self.out = f.Linear(width, width)
            if joint:
                self.qkv = f.Linear(width, 3 * width)
            else:
                self.query, self.key, self.value = [f.Linear(width, width) for _ in range(3)]
            self.up, self.down = f.Linear(width, 4 * width), f.Linear(4 * width, width)
            self.drop1, self.drop2 = f.Dropout(rate), f.Dropout(rate)

        def forward(self, x: Any) -> Any:
            if after:
                x = self.norm1(x + self.attended(x))
                return self.norm2(x + self.fed(x))
            x = x + self.attended(self.norm1(x))
            return x + self.fed(self.norm2(x))

        def attended(self, h: Any) -> Any:
            batch, length = h.shape[0], h.shape[1]
            if joint:
                split = f.permute(self.qkv(h).reshape((batch, length, 3, heads, width // heads)), (2, 0, 3, 1, 4))
                q, k, v = split[0], split[1], split[2]
            else:
                shape = batch, length, heads, width // heads
                parts = [layer(h).reshape(shape) for layer in (self.query, self.key, self.value)]
                q, k, v = [f.permute(part, (0, 2, 1, 3)) for part in parts]
            seen = f.permute(f.attention(q, k, v, causal=causal), (0, 2, 1, 3))
            return self.drop1(self.out(seen.reshape((batch, length, width))))

        def fed(self, h: Any) -> Any:
            return self.drop2(self.down(f.gelu(self.up(h))))

    return Block()


def gpt(
    f: Any, count: int, length: int, width: int, heads: int, layers: int, rate: float, *, joint: bool = True,
    recomputed: bool = False, tied: bool = False,
) -> Any:
    """Return a decoder of token ids.

    Its gradient computes the insides of the blocks again if `recomputed`. The tokens' embedding is the last layer's
    weight too if `tied`, as in GPT-2.
    """

    class Gpt(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = f.Embedding(count, width), f.Embedding(length, width)
            self.blocks = f.modules([
                attention_block(f, width, heads, rate, causal=True, joint=joint) for _ in range(layers)
            ])
            self.norm = f.LayerNorm(width)
            if not tied:
                self.head = f.Linear(width, count, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.positions(f.arange(ids.shape[1]))
            for block in self.blocks:
                x = f.recomputed(block, x) if recomputed else block(x)
            x = self.norm(x)
            return x @ f.permute(self.tokens.weight, (1, 0)) if tied else self.head(x)

    return Gpt()


def bert(f: Any, count: int, length: int, width: int, heads: int, layers: int) -> Any:
    """Return an encoder of token ids that guesses tokens, with one type of token and no pooling layer."""

    class Bert(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = f.Embedding(count, width), f.Embedding(length, width)
            self.norm = f.LayerNorm(width)
            self.blocks = f.modules([
                attention_block(f, width, heads, 0.0, causal=False, joint=False, after=True) for _ in range(layers)
            ])

        def forward(self, ids: Any) -> Any:
            x = self.norm(self.tokens(ids) + self.positions(f.arange(ids.shape[1])))
            for block in self.blocks:
                x = block(x)
            return x @ f.permute(self.tokens.weight, (1, 0))

    return Bert()


def vit(f: Any, side: int, patch: int, width: int, heads: int, layers: int, classes: int = 10) -> Any:
    """Return a vision transformer that averages over patches."""

    class Vit(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = f.Conv2d(3, width, patch, stride=patch)
            self.positions = f.Embedding((side // patch) ** 2, width)
            self.blocks = f.modules([attention_block(f, width, heads, 0.0, causal=False) for _ in range(layers)])
            self.norm, self.head = f.LayerNorm(width), f.Linear(width, classes)

        def forward(self, images: Any) -> Any:
            x = self.patches(images)
            x = f.permute(x.reshape((x.shape[0], width, -1)), (0, 2, 1))
            x = x + self.positions(f.arange(x.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(f.mean(self.norm(x), 1))

    return Vit()


def resnet(
    f: Any, widths: tuple[int, ...], blocks: int | tuple[int, ...], *, stem: int = 1, narrow: bool = False,
    classes: int = 10,
) -> Any:
    """Return a ResNet: a stem, then stages of blocks, all but the first of which halve the images.

    Args:
        f: the framework.
        widths, blocks: the channels of each stage and the number of its blocks.
        stem: the stride of the stem, 1 for small images; a stride of 2 comes with a window of 7 and a pooling.
        narrow: whether the blocks are those of ResNet-50, whose middle convolution has a quarter of the channels.
        classes: the number of classes.
    """

    class Block(f.Module):
        def __init__(self, width: int, out: int, stride: int) -> None:
            super().__init__()
            self.conv1 = f.Conv2d(width, out, 3, stride=stride, padding=1, bias=False)
            self.conv2 = f.Conv2d(out, out, 3, padding=1, bias=False)
            self.norm1, self.norm2 = f.BatchNorm2d(out), f.BatchNorm2d(out)
            self.whole = stride == 1 and width == out
            if not self.whole:
                self.conv3, self.norm3 = f.Conv2d(width, out, 1, stride=stride, bias=False), f.BatchNorm2d(out)

        def forward(self, x: Any) -> Any:
            h = self.norm2(self.conv2(f.relu(self.norm1(self.conv1(x)))))
            return f.relu(h + (x if self.whole else self.norm3(self.conv3(x))))

    class Narrow(f.Module):
        def __init__(self, width: int, out: int, stride: int) -> None:
            super().__init__()
            inner = out // 4
            self.conv1 = f.Conv2d(width, inner, 1, bias=False)
            self.conv2 = f.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
            self.conv3 = f.Conv2d(inner, out, 1, bias=False)
            self.norm1, self.norm2, self.norm3 = f.BatchNorm2d(inner), f.BatchNorm2d(inner), f.BatchNorm2d(out)
            self.whole = stride == 1 and width == out
            if not self.whole:
                self.conv4, self.norm4 = f.Conv2d(width, out, 1, stride=stride, bias=False), f.BatchNorm2d(out)

        def forward(self, x: Any) -> Any:
            h = f.relu(self.norm2(self.conv2(f.relu(self.norm1(self.conv1(x))))))
            return f.relu(self.norm3(self.conv3(h)) + (x if self.whole else self.norm4(self.conv4(x))))

    kind = Narrow if narrow else Block
    first = widths[0] // 4 if narrow else widths[0]
    counts = blocks if isinstance(blocks, tuple) else (blocks,) * len(widths)

    class Resnet(f.Module):
        def __init__(self) -> None:
            super().__init__()
            window = 3 if stem == 1 else 7
            self.stem = f.Conv2d(3, first, window, stride=stem, padding=window // 2, bias=False)
            self.norm = f.BatchNorm2d(first)
            stages = zip((first, *widths[:-1]), widths, (1, 2, 2, 2), counts, strict=False)
            self.blocks = f.modules([
                kind(width if number == 0 else out, out, stride if number == 0 else 1)
                for width, out, stride, count in stages for number in range(count)
            ])
            self.head = f.Linear(widths[-1], classes)

        def forward(self, images: Any) -> Any:
            x = f.relu(self.norm(self.stem(images)))
            if stem > 1:
                x = f.max_pool(x)
            for block in self.blocks:
                x = block(x)
            return self.head(f.mean(x, (2, 3)))

    return Resnet()


def unet(f: Any, width: int) -> Any:
    """Return a U-Net with three levels and one output channel."""

    class Twice(f.Module):
        def __init__(self, channels: int, out: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = f.Conv2d(channels, out, 3, padding=1), f.Conv2d(out, out, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return f.relu(self.conv2(f.relu(self.conv1(x))))

    class Unet(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2 = Twice(3, width), Twice(width, 2 * width)
            self.bottom = Twice(2 * width, 4 * width)
            self.up2, self.up1 = Twice(6 * width, 2 * width), Twice(3 * width, width)
            self.head = f.Conv2d(width, 1, 1)

        def forward(self, images: Any) -> Any:
            first = self.down1(images)
            second = self.down2(f.max_pool(first))
            x = self.bottom(f.max_pool(second))
            x = self.up2(f.concat([f.upsample(x), second], 1))
            return self.head(self.up1(f.concat([f.upsample(x), first], 1)))

    return Unet()


def lstm(f: Any, count: int, width: int) -> Any:
    """Return a language model of one LSTM layer."""

    class Language(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.lstm, self.head = f.Embedding(count, width), f.LSTM(width, width), f.Linear(width, count)

        def forward(self, ids: Any) -> Any:
            return self.head(self.lstm(self.tokens(ids))[0])

    return Language()


def vae(f: Any, pixels: int, hidden: int, code: int) -> Any:
    """Return a variational autoencoder of flat images, whose noise is an input."""

    class Vae(f.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = f.Linear(pixels, hidden)
            self.mean, self.spread = f.Linear(hidden, code), f.Linear(hidden, code)
            self.decode, self.out = f.Linear(code, hidden), f.Linear(hidden, pixels)

        def forward(self, images: Any, noise: Any) -> Any:
            h = f.relu(self.encode(images))
            mean, spread = self.mean(h), self.spread(h)
            drawn = mean + f.exp(0.5 * spread) * noise
            return self.out(f.relu(self.decode(drawn))), mean, spread

    return Vae()


def classify(f: Any, model: Any, x: Any, labels: Any) -> Any:
    """Return the cross-entropy of a model's logits."""
    return f.cross_entropy(model(x), labels)


def segment(f: Any, model: Any, images: Any, masks: Any) -> Any:
    """Return the pixels' mean cross-entropy with masks."""
    return f.mean(f.binary_cross_entropy(model(images), masks))


def bound(f: Any, model: Any, images: Any, noise: Any) -> Any:
    """Return the bound that a variational autoencoder minimises."""
    logits, mean, spread = model(images, noise)
    rebuilt = f.sum(f.binary_cross_entropy(logits, images))
    return (rebuilt + 0.5 * f.sum(f.exp(spread) + mean * mean - 1.0 - spread)) / images.shape[0]


# -- the rows -----------------------------------------------------------------------------------------------------


def _compare(name: str, ours: dict[str, Array], theirs: dict[str, Array], tolerance: float) -> None:
    if ours.keys() != theirs.keys():
        raise Disagreement(f"{name}: other parameters: {sorted(ours.keys() ^ theirs.keys())}")
    largest = max(float(np.abs(slope).max()) for slope in ours.values())
    for path, slope in ours.items():
        gap, scale = float(np.abs(slope - theirs[path]).max()), max(float(np.abs(slope).max()), 1e-3 * largest)
        if not gap <= tolerance * scale:
            raise Disagreement(f"{name}: gradient of {path} differs by {gap:.3g}, the largest element is {scale:.3g}")


def _sides(
    case: Case, make: Callable[[Any, float], Any], loss: Callable[..., Any], batch: list[Array], *,
    compiled: bool, adam: bool = True, rate: float = 0.0, tolerance: float = TOLERANCE,
) -> None:
    """Add hybridflow and its peers: torch for eager steps; torch's eager and compiled, and jax, for compiled ones."""
    without = Hybridflow.Trainer(lambda f: make(f, 0.0), loss, adam, False)
    first = without.gradients(batch)  # this also makes the layers' sizes known
    weights = without.weights()
    case.flops = without.flops(batch)

    def add(framework: Any, name: str, compiled: bool) -> Any:
        checked = framework.Trainer(lambda f: make(f, 0.0), loss, adam, compiled)
        checked.load(weights)
        _compare(name, first, checked.gradients(batch), tolerance)
        side = framework.Trainer(lambda f: make(f, rate), loss, adam, compiled)
        side.load(weights)
        return side.bind(batch).step, {"comparable": lambda result: None}

    ours = Hybridflow.Trainer(lambda f: make(f, rate), loss, adam, compiled).bind(batch)
    case.ours(lambda: (ours.step(), ours.state()), comparable=lambda result: None)  # it is there with all parameters

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        return add(torch_framework(torch, put), "torch", False)

    if not compiled:
        return
    if not case.smoke:  # its compiler takes long

        @case.torch("torch.compile")
        def _(torch: Any, put: Callable[[Any], Any]) -> Any:
            return add(torch_framework(torch, put), "torch.compile", True)

    if importlib.util.find_spec("optax") is None:
        case.notes.append("jax.jit: optax is not installed (the `bench` extra)")
        return
    call, options = add(Jax, Jax.name, True)
    case.peer(Jax.name, call, **options)


def ids(case: Case, count: int, batch: int, length: int) -> list[Array]:
    """Draw token ids and the ids that follow them."""
    ids = case.rng.integers(0, count, (batch, length)).astype(np.int32)
    return [ids, np.roll(ids, -1, axis=1)]


def images(case: Case, batch: int, side: int) -> list[Array]:
    """Draw images and labels."""
    return [case.normal(batch, 3, side, side), case.rng.integers(0, 10, batch).astype(np.int32)]


def _gpt(case: Case, layers: int, batch: int, *, compiled: bool) -> None:
    count, length, width, heads = case.size((256, 64, 128, 4), (8, 4, 8, 2))
    layers, batch = case.size((layers, batch), (1, 2))
    _sides(case, lambda f, rate: gpt(f, count, length, width, heads, layers, rate), classify,
           ids(case, count, batch, length), compiled=compiled, rate=0.1)


def _vit(case: Case, *, compiled: bool) -> None:
    side, patch, width, heads, layers, batch = case.size((32, 4, 128, 4, 6, 16), (8, 4, 8, 2, 1, 2))
    _sides(case, lambda f, rate: vit(f, side, patch, width, heads, layers), classify, images(case, batch, side),
           compiled=compiled)


def _resnet(case: Case, *, compiled: bool) -> None:
    widths, blocks, side, batch = case.size(((64, 128, 256, 512), 2, 32, 16), ((4, 8), 1, 8, 4))
    # The tolerance is wide: where rounding moves one element across a relu's kink, a layer's gradient moves with it.
    _sides(case, lambda f, rate: resnet(f, widths, blocks), classify, images(case, batch, side), compiled=compiled,
           adam=False, tolerance=0.2)


def _unet(case: Case, *, compiled: bool) -> None:
    width, side, batch = case.size((16, 64, 4), (2, 8, 2))
    masks = (case.rng.random((batch, 1, side, side)) < 0.5).astype(np.float32)
    _sides(case, lambda f, rate: unet(f, width), segment, [case.normal(batch, 3, side, side), masks],
           compiled=compiled)


def _lstm(case: Case, *, compiled: bool) -> None:
    count, width, batch, length = case.size((256, 256, 32, 64), (8, 4, 2, 3))
    _sides(case, lambda f, rate: lstm(f, count, width), classify, ids(case, count, batch, length), compiled=compiled)


def _vae(case: Case, *, compiled: bool) -> None:
    pixels, hidden, code, batch = case.size((784, 400, 20, 128), (6, 4, 2, 2))
    batches = [case.rng.random((batch, pixels)).astype(np.float32), case.normal(batch, code)]
    _sides(case, lambda f, rate: vae(f, pixels, hidden, code), bound, batches, compiled=compiled)


EAGER, COMPILED = {"torch": 1.0}, {"torch.compile": 0.9, "jax.jit": 1.0}


@row("GPT of 4 layers, D=128 T=64 B=12, dropout, AdamW step, eager", aims=EAGER)
def gpt4_eager(case: Case) -> None:
    _gpt(case, 4, 12, compiled=False)


@row("GPT of 4 layers, D=128 T=64 B=12, dropout, AdamW step, compiled", aims=COMPILED)
def gpt4_compiled(case: Case) -> None:
    _gpt(case, 4, 12, compiled=True)


@row("GPT of 12 layers, D=128 T=64 B=4, dropout, AdamW step, eager", aims=EAGER)
def gpt12_eager(case: Case) -> None:
    _gpt(case, 12, 4, compiled=False)


@row("GPT of 12 layers, D=128 T=64 B=4, dropout, AdamW step, compiled", aims=COMPILED)
def gpt12_compiled(case: Case) -> None:
    _gpt(case, 12, 4, compiled=True)


@row("ViT of 6 layers, D=128, 16 images of 32 x 32, AdamW step, eager", aims=EAGER)
def vit_eager(case: Case) -> None:
    _vit(case, compiled=False)


@row("ViT of 6 layers, D=128, 16 images of 32 x 32, AdamW step, compiled", aims=COMPILED)
def vit_compiled(case: Case) -> None:
    _vit(case, compiled=True)


@row("ResNet-18, 16 images of 32 x 32, SGD step, eager", aims={"torch": 1.15})
def resnet_eager(case: Case) -> None:
    _resnet(case, compiled=False)


@row("ResNet-18, 16 images of 32 x 32, SGD step, compiled", aims=COMPILED)
def resnet_compiled(case: Case) -> None:
    _resnet(case, compiled=True)


@row("U-Net of 16 channels, 4 images of 64 x 64, AdamW step, eager", aims={"torch": 1.15})
def unet_eager(case: Case) -> None:
    _unet(case, compiled=False)


@row("U-Net of 16 channels, 4 images of 64 x 64, AdamW step, compiled", aims=COMPILED)
def unet_compiled(case: Case) -> None:
    _unet(case, compiled=True)


@row("LSTM language model, D=256 T=64 B=32, AdamW step, eager", aims=EAGER)
def lstm_model_eager(case: Case) -> None:
    _lstm(case, compiled=False)


@row("LSTM language model, D=256 T=64 B=32, AdamW step, compiled", aims=COMPILED)
def lstm_model_compiled(case: Case) -> None:
    _lstm(case, compiled=True)


@row("VAE 784-400-20, batch 128, AdamW step, eager", aims=EAGER)
def vae_eager(case: Case) -> None:
    _vae(case, compiled=False)


@row("VAE 784-400-20, batch 128, AdamW step, compiled", aims=COMPILED)
def vae_compiled(case: Case) -> None:
    _vae(case, compiled=True)
