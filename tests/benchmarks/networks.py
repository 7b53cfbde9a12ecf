"""Deep networks as plain Python loops, each written once for hybridflow and for jax."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf
from hybridflow.passes import pipeline

from .rows.eager import jax_layer_norm

RATE = 0.01
Block = dict[str, Any]
Blocks = list[Block]
Array = np.ndarray[Any, Any]


class Ours:
    """The building blocks of networks, in hybridflow."""

    reshape, permute, split, concat = hf.reshape, hf.permute_dims, hf.split, hf.concat
    softmax, relu, sigmoid, tanh = hf.nn.softmax, hf.nn.relu, hf.nn.sigmoid, hf.tanh
    layer_norm, mean, square = hf.nn.layer_norm, hf.mean, hf.square

    @staticmethod
    def gelu(x: Any) -> Any:
        """Return gelu by its tanh formula."""
        return hf.nn.gelu(x, approximate=True)

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        """Return a convolution that keeps the size."""
        return hf.nn.conv(x, kernel, padding="same")

    @staticmethod
    def max_pool(x: Any) -> Any:
        """Return the maxima of 2 x 2 windows."""
        return hf.nn.max_pool(x, 2)


class Theirs:
    """The building blocks of networks, in jax."""

    reshape, permute, split, concat = jnp.reshape, jnp.transpose, jnp.split, jnp.concatenate
    softmax, relu, sigmoid, tanh = jax.nn.softmax, jax.nn.relu, jax.nn.sigmoid, jnp.tanh
    layer_norm, mean, square = staticmethod(jax_layer_norm), jnp.mean, jnp.square

    @staticmethod
    def gelu(x: Any) -> Any:
        """Return gelu by its tanh formula."""
        return jax.nn.gelu(x, approximate=True)

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        """Return a convolution that keeps the size."""
        return jax.lax.conv(x, kernel, (1, 1), "SAME")

    @staticmethod
    def max_pool(x: Any) -> Any:
        """Return the maxima of 2 x 2 windows."""
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


class Draw:
    """A source of parameters and inputs, with small sizes for a smoke run."""

    def __init__(self, *, smoke: bool) -> None:
        self.smoke = smoke
        self.rng = np.random.default_rng(0)

    def size(self, full: int, smoke: int) -> int:
        """Choose a size."""
        return smoke if self.smoke else full

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        """Draw float32 numbers."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def dense(self, rows: int, columns: int) -> Array:
        """Draw a matrix that roughly keeps the scale of its operand."""
        return self.normal(rows, columns, scale=float(rows) ** -0.5)


Forward = Callable[[Any, Blocks, Any], Any]


@dataclass(frozen=True)
class Network:
    """A network of any depth.

    Attributes:
        name: its name.
        make: draws the parameters of the given number of layers, and the input.
        forward: maps ``(F, blocks, x)`` to the output, where `F` is `Ours` or `Theirs`.
        layer: maps ``(F, block, x)`` to the next layer's input, for `lax.scan`; None if the layers differ.
    """

    name: str
    make: Callable[[Draw, int], tuple[Blocks, Array]]
    forward: Forward
    layer: Callable[[Any, Block, Any], Any] | None = None


NETWORKS: dict[str, Network] = {}


def looped(make: Callable[[Draw, int], tuple[Blocks, Array]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a network whose layers are all alike, given the function of one layer."""

    def decorate(layer: Callable[[Any, Block, Any], Any]) -> Callable[..., Any]:
        def forward(F: Any, blocks: Blocks, x: Any) -> Any:
            for block in blocks:
                x = layer(F, block, x)
            return x

        NETWORKS[layer.__name__] = Network(layer.__name__, make, forward, layer)
        return layer

    return decorate


# -- transformers -------------------------------------------------------------------------------------------------


def _transformer(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    width, length, batch = draw.size(128, 8), draw.size(64, 4), draw.size(4, 2)

    def block() -> Block:
        return {
            "scale1": np.ones(width, np.float32), "shift1": np.zeros(width, np.float32),
            "qkv": draw.normal(width, 3 * width, scale=0.02), "out": draw.normal(width, width, scale=0.02),
            "scale2": np.ones(width, np.float32), "shift2": np.zeros(width, np.float32),
            "up": draw.normal(width, 4 * width, scale=0.02), "up_bias": np.zeros(4 * width, np.float32),
            "down": draw.normal(4 * width, width, scale=0.02), "down_bias": np.zeros(width, np.float32),
        }

    return [block() for _ in range(layers)], draw.normal(batch, length, width)


def _attention(F: Any, p: Block, x: Any) -> Any:
    batch, length, width = x.shape
    heads = 4 if width >= 16 else 2

    def split(a: Any) -> Any:
        return F.permute(F.reshape(a, (batch, length, heads, width // heads)), (0, 2, 1, 3))

    q, k, v = map(split, F.split(x @ p["qkv"], 3, axis=-1))
    attended = F.softmax(q @ k.mT * float((width // heads) ** -0.5)) @ v
    return F.reshape(F.permute(attended, (0, 2, 1, 3)), x.shape) @ p["out"]


def _mlp(F: Any, p: Block, x: Any) -> Any:
    return F.gelu(x @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


@looped(_transformer)
def pre_norm(F: Any, p: Block, x: Any) -> Any:
    """Apply a transformer's layer, normalised before each part."""
    x = x + _attention(F, p, F.layer_norm(x, p["scale1"], p["shift1"]))
    return x + _mlp(F, p, F.layer_norm(x, p["scale2"], p["shift2"]))


@looped(_transformer)
def post_norm(F: Any, p: Block, x: Any) -> Any:
    """Apply a transformer's layer, normalised after each part."""
    x = F.layer_norm(x + _attention(F, p, x), p["scale1"], p["shift1"])
    return F.layer_norm(x + _mlp(F, p, x), p["scale2"], p["shift2"])


# -- other networks of identical layers ---------------------------------------------------------------------------


def _dense(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    width = draw.size(128, 8)

    def block() -> Block:
        return {
            "w": draw.dense(width, width), "b": np.zeros(width, np.float32), "gate": draw.dense(width, width),
        }

    return [block() for _ in range(layers)], draw.normal(draw.size(128, 4), width)


def _normalised(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    blocks, _ = _transformer(draw, layers)
    names = ("up", "up_bias", "down", "down_bias", "scale2", "shift2")
    x = draw.normal(draw.size(128, 4), draw.size(128, 8))
    return [{name: block[name] for name in names} for block in blocks], x


@looped(_normalised)
def post_norm_mlp(F: Any, p: Block, x: Any) -> Any:
    """Apply two dense layers with a residual, then normalise."""
    return F.layer_norm(x + _mlp(F, p, x), p["scale2"], p["shift2"])


@looped(_dense)
def gated(F: Any, p: Block, x: Any) -> Any:
    """Apply a gated residual."""
    h = F.sigmoid(x @ p["gate"])
    return x * h + F.tanh(x @ p["w"] + p["b"]) * (1 - h)


def _plain(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    blocks, x = _dense(draw, layers)
    return [{"w": block["w"], "b": block["b"]} for block in blocks], x


@looped(_plain)
def mlp(F: Any, p: Block, x: Any) -> Any:
    """Apply a dense layer."""
    return F.relu(x @ p["w"] + p["b"])


def _convolutions(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    channels, size = draw.size(16, 3), draw.size(16, 4)

    def kernel() -> Array:
        return draw.normal(channels, channels, 3, 3, scale=float(9 * channels) ** -0.5)

    blocks = [{"first": kernel(), "second": kernel()} for _ in range(layers)]
    return blocks, draw.normal(draw.size(4, 2), channels, size, size)


@looped(_convolutions)
def resnet(F: Any, p: Block, x: Any) -> Any:
    """Apply two convolutions with a residual, then a relu."""
    return F.relu(x + F.conv(F.relu(F.conv(x, p["first"])), p["second"]))


# -- networks that are not one chain ------------------------------------------------------------------------------


def _lstm_weights(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    width, batch = draw.size(64, 4), draw.size(16, 2)
    weights = {"wx": draw.dense(width, 4 * width), "wh": draw.dense(width, 4 * width), "b": draw.normal(4 * width)}
    return [weights], draw.normal(layers, batch, width)


def _lstm(F: Any, blocks: Blocks, x: Any) -> Any:
    (p,) = blocks
    h = c = x[0] * 0.0
    for step in range(x.shape[0]):
        i, f, g, o = F.split(x[step] @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=-1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        h = F.sigmoid(o) * F.tanh(c)
    return h


def _unet_weights(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    channels, size = draw.size(16, 3), draw.size(16, 4)

    def kernel(inputs: int) -> Array:
        return draw.normal(channels, inputs, 3, 3, scale=float(9 * inputs) ** -0.5)

    half = layers // 2
    blocks = [{"kernel": kernel(channels)} for _ in range(half)]
    blocks += [{"kernel": kernel(2 * channels)} for _ in range(layers - half)]
    return blocks, draw.normal(draw.size(4, 2), channels, size, size)


def _unet(F: Any, blocks: Blocks, x: Any) -> Any:
    half = len(blocks) // 2
    middle = half // 2
    skips: list[Any] = []
    for index, p in enumerate(blocks[:half]):
        x = F.relu(F.conv(x, p["kernel"]))
        skips.append(x)
        if index == middle:
            x = F.max_pool(x)
    for p in blocks[half:]:
        skip = skips.pop() if skips else x
        if skip.shape != x.shape:
            batch, channels, height, width = x.shape
            wide = F.concat([F.reshape(x, (batch, channels, height, 1, width, 1))] * 2, axis=3)
            x = F.reshape(F.concat([wide] * 2, axis=5), skip.shape)
        x = F.relu(F.conv(F.concat([x, skip], axis=1), p["kernel"]))
    return x


def _lenet_weights(draw: Draw, layers: int) -> tuple[Blocks, Array]:
    del layers
    size = draw.size(28, 8)
    flat = 16 * (size // 4) ** 2
    convolutions = {"first": draw.normal(6, 1, 5, 5, scale=0.2), "second": draw.normal(16, 6, 5, 5, scale=0.1)}
    dense = {f"w{i}": draw.dense(a, b) for i, (a, b) in enumerate(((flat, 120), (120, 84), (84, 10)))}
    biases = {f"b{i}": np.zeros(b, np.float32) for i, b in enumerate((120, 84, 10))}
    return [convolutions | dense | biases], draw.normal(draw.size(64, 2), 1, size, size)


def _lenet(F: Any, blocks: Blocks, x: Any) -> Any:
    (p,) = blocks
    for kernel in (p["first"], p["second"]):
        x = F.max_pool(F.relu(F.conv(x, kernel)))
    x = F.reshape(x, (x.shape[0], -1))
    for index in range(2):
        x = F.relu(x @ p[f"w{index}"] + p[f"b{index}"])
    return x @ p["w2"] + p["b2"]


NETWORKS["lenet"] = Network("lenet", _lenet_weights, _lenet)
NETWORKS["lstm"] = Network("lstm", _lstm_weights, _lstm)
NETWORKS["unet"] = Network("unet", _unet_weights, _unet)


# -- steps --------------------------------------------------------------------------------------------------------


class OurStep:
    """A compiled training step in hybridflow, with Variables of its own.

    Args:
        network, blocks, x: the network, its parameters and the input.
        without: passes to leave out.
    """

    def __init__(self, network: Network, blocks: Blocks, x: Array, without: Collection[str] = ()) -> None:
        self.without = without
        self.blocks = [{name: hf.Variable(value) for name, value in block.items()} for block in blocks]
        self.variables = [variable for block in self.blocks for variable in block.values()]
        self.x = hf.asarray(x)

        @hf.compile
        def step(x: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = hf.mean(hf.square(network.forward(Ours, self.blocks, x)))
            for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
                variable.assign_sub(gradient * RATE)
            return loss

        self.compiled = step

    def step(self) -> Any:
        """Train for one step and return the loss."""
        if not self.without:
            return self.compiled(self.x)
        whole, pipeline.PIPELINE = pipeline.PIPELINE, pipeline.PIPELINE.without(*self.without)
        try:
            self.compiled.graph(self.x)
        finally:
            pipeline.PIPELINE = whole
        self.without = ()
        return self.compiled(self.x)

    def state(self) -> list[Any]:
        """Return the parameters."""
        return [variable.read() for variable in self.variables]


def _scanned(layer: Callable[[Any, Block, Any], Any], blocks: Block, x: Any) -> Any:
    return jax.lax.scan(lambda x, p: (layer(Theirs, p, x), None), x, blocks)[0]


class TheirStep:
    """The same training step with jax.jit, as a Python loop or as `lax.scan` over the layers."""

    def __init__(self, network: Network, blocks: Blocks, x: Array, scan: bool = False) -> None:
        self.names = list(blocks[0])
        if scan:
            self.blocks: Any = {name: jnp.stack([block[name] for block in blocks]) for name in self.names}
        else:
            self.blocks = [{name: jnp.asarray(value) for name, value in block.items()} for block in blocks]
        self.x = jnp.asarray(x)
        layer = network.layer

        def loss_of(blocks: Any, x: Any) -> Any:
            if scan and layer is not None:
                y = _scanned(layer, blocks, x)
            else:
                y = network.forward(Theirs, blocks, x)
            return jnp.mean(jnp.square(y))

        def step(blocks: Any, x: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(blocks, x)
            return loss, jax.tree.map(lambda p, g: p - RATE * g, blocks, gradients)

        self.jitted = jax.jit(step)
        self.compiled: Any = None

    def step(self) -> Any:
        """Train for one step and return the loss."""
        if self.compiled is None:
            self.compiled = self.jitted.lower(self.blocks, self.x).compile()
        loss, self.blocks = self.compiled(self.blocks, self.x)
        return loss

    def state(self) -> list[Any]:
        """Return the parameters."""
        if isinstance(self.blocks, list):
            return [block[name] for block in self.blocks for name in block]
        return [self.blocks[name][i] for i in range(len(self.blocks[self.names[0]])) for name in self.names]
