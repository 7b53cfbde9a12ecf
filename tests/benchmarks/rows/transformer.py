"""A pre-norm transformer: one block, eager, and twelve blocks in a plain Python loop, compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, row
from .eager import jax_layer_norm

RATE = 0.01
Block = dict[str, Any]


class Data:
    """The parameters of every block, and inputs and targets of shape ``(batch, length, width)``."""

    def __init__(self, case: Case, layers: int) -> None:
        self.width, self.heads, self.length, self.batch = case.size((128, 4, 64, 4), (8, 2, 4, 2))
        wide = 4 * self.width
        self.blocks: list[Block] = [
            {
                "scale1": np.ones(self.width, np.float32),
                "shift1": np.zeros(self.width, np.float32),
                "qkv": case.normal(self.width, 3 * self.width, scale=0.02),
                "out": case.normal(self.width, self.width, scale=0.02),
                "scale2": np.ones(self.width, np.float32),
                "shift2": np.zeros(self.width, np.float32),
                "up": case.normal(self.width, wide, scale=0.02),
                "up_bias": np.zeros(wide, np.float32),
                "down": case.normal(wide, self.width, scale=0.02),
                "down_bias": np.zeros(self.width, np.float32),
            }
            for _ in range(layers)
        ]
        self.x = case.normal(self.batch, self.length, self.width)
        self.target = case.normal(self.batch, self.length, self.width)
        self.split = (self.batch, self.length, self.heads, self.width // self.heads)
        self.root = float((self.width // self.heads) ** -0.5)


def hybridflow_block(data: Data, p: Block, x: Any) -> Any:
    """Return the next layer's input."""

    def heads(a: Any) -> Any:
        return hf.permute_dims(hf.reshape(a, data.split), (0, 2, 1, 3))

    q, k, v = map(heads, hf.split(hf.nn.layer_norm(x, p["scale1"], p["shift1"]) @ p["qkv"], 3, axis=-1))
    attended = hf.nn.softmax(q @ k.mT * data.root) @ v
    x = x + hf.reshape(hf.permute_dims(attended, (0, 2, 1, 3)), data.x.shape) @ p["out"]
    h = hf.nn.layer_norm(x, p["scale2"], p["shift2"]) @ p["up"] + p["up_bias"]
    return x + (hf.nn.gelu(h, approximate=True) @ p["down"] + p["down_bias"])


def jax_block(data: Data, p: Block, x: Any) -> Any:
    """Return the next layer's input."""

    def heads(a: Any) -> Any:
        return a.reshape(data.split).transpose(0, 2, 1, 3)

    q, k, v = map(heads, jnp.split(jax_layer_norm(x, p["scale1"], p["shift1"]) @ p["qkv"], 3, axis=-1))
    attended = jax.nn.softmax(q @ k.mT * data.root) @ v
    x = x + attended.transpose(0, 2, 1, 3).reshape(data.x.shape) @ p["out"]
    h = jax_layer_norm(x, p["scale2"], p["shift2"]) @ p["up"] + p["up_bias"]
    return x + (jax.nn.gelu(h, approximate=True) @ p["down"] + p["down_bias"])


def torch_block(torch: Any, data: Data, p: Block, x: Any) -> Any:
    """Return the next layer's input."""
    functional, width = torch.nn.functional, (data.width,)

    def heads(a: Any) -> Any:
        return a.reshape(data.split).transpose(1, 2)

    q, k, v = map(heads, (functional.layer_norm(x, width, p["scale1"], p["shift1"]) @ p["qkv"]).chunk(3, dim=-1))
    attended = torch.softmax(q @ k.mT * data.root, -1) @ v
    x = x + attended.transpose(1, 2).reshape(data.x.shape) @ p["out"]
    h = functional.layer_norm(x, width, p["scale2"], p["shift2"]) @ p["up"] + p["up_bias"]
    return x + (functional.gelu(h, approximate="tanh") @ p["down"] + p["down_bias"])


@row("transformer block, D=128 T=64 B=4, forward + backward, eager", aims={"torch": 1.2})
def block_eager(case: Case) -> None:
    data = Data(case, layers=1)
    block = {name: hf.Variable(value) for name, value in data.blocks[0].items()}
    variables, x, target = list(block.values()), hf.asarray(data.x), hf.asarray(data.target)

    def ours() -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.square(hybridflow_block(data, block, x) - target))
        return loss, tape.gradient(loss, variables)

    case.ours(ours)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        block = {name: put(value).requires_grad_() for name, value in data.blocks[0].items()}
        weights, x, target = list(block.values()), put(data.x), put(data.target)

        def theirs() -> Any:
            loss = torch.mean(torch.square(torch_block(torch, data, block, x) - target))
            return loss, torch.autograd.grad(loss, weights)

        return theirs


# -- twelve layers ------------------------------------------------------------------------------------------------


class Ours:
    """Twelve layers in hybridflow, with Variables and a compiled step of their own."""

    def __init__(self, data: Data) -> None:
        self.blocks = [{name: hf.Variable(value) for name, value in block.items()} for block in data.blocks]
        self.variables = [variable for block in self.blocks for variable in block.values()]
        self.x, self.target = hf.asarray(data.x), hf.asarray(data.target)

        @hf.compile
        def step(x: Any, target: Any) -> Any:
            with hf.GradientTape() as tape:
                for block in self.blocks:
                    x = hybridflow_block(data, block, x)
                loss = hf.mean(hf.square(x - target))
            for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
                variable.assign_sub(gradient * RATE)
            return loss

        self.compiled = step

    def step(self) -> Any:
        """Train for one step and return the loss."""
        return self.compiled(self.x, self.target)

    def state(self) -> list[Block]:
        """Return the parameters."""
        return [{name: variable.read() for name, variable in block.items()} for block in self.blocks]


class Theirs:
    """The same layers with jax.jit, as a Python loop or as `lax.scan`."""

    def __init__(self, data: Data, *, scan: bool = False) -> None:
        names = list(data.blocks[0])
        if scan:
            self.blocks: Any = {name: jnp.stack([block[name] for block in data.blocks]) for name in names}
        else:
            self.blocks = [{name: jnp.asarray(value) for name, value in block.items()} for block in data.blocks]
        self.x, self.target = jnp.asarray(data.x), jnp.asarray(data.target)

        def loss_of(blocks: Any, x: Any, target: Any) -> Any:
            if scan:
                x, _ = jax.lax.scan(lambda x, p: (jax_block(data, p, x), None), x, blocks)
            else:
                for block in blocks:
                    x = jax_block(data, block, x)
            return jnp.mean(jnp.square(x - target))

        def step(blocks: Any, x: Any, target: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(blocks, x, target)
            return loss, jax.tree.map(lambda p, g: p - RATE * g, blocks, gradients)

        self.jitted = jax.jit(step)

    def step(self) -> Any:
        """Train for one step and return the loss."""
        loss, self.blocks = self.jitted(self.blocks, self.x, self.target)
        return loss


def by_layer(blocks: Any) -> list[Any]:
    """Return the parameters by layer, sorted by name, whether they are stacked or not."""
    if isinstance(blocks, list):
        return [block[name] for block in blocks for name in sorted(block)]
    return [blocks[name][layer] for layer in range(len(blocks["qkv"])) for name in sorted(blocks)]


LAYERS = 12, 1
"""The number of layers in a full run and in a smoke run."""


@row("12-layer transformer, Python loop, SGD step: first call", aims={"jax.jit": 0.33})
def transformer_first(case: Case) -> None:
    data = Data(case, case.size(*LAYERS))
    case.ours(lambda model: model.step(), prepare=lambda: Ours(data))
    case.peer("jax.jit", lambda model: model.step(), prepare=lambda: Theirs(data))
    case.peer("jax.jit, lax.scan", lambda model: model.step(), prepare=lambda: Theirs(data, scan=True))


@row("24-layer transformer, Python loop, SGD step: trace, passes, lowering", aims={"jax.jit": 1.0})
def transformer_lowering(case: Case) -> None:
    data = Data(case, case.size(24, 1))

    def ours() -> float:
        model = Ours(data)
        model.step()
        record = model.compiled.explain()[0]
        return (record.trace_ms + record.passes_ms + record.lower_ms) / 1e3

    def theirs() -> float:
        model = Theirs(data)
        start = time.perf_counter()
        model.jitted.lower(model.blocks, model.x, model.target)
        return time.perf_counter() - start

    case.ours(ours, self_timed=True)
    case.peer("jax.jit", theirs, self_timed=True)


@row("12-layer transformer, Python loop, SGD step: step", aims={"jax.jit": 0.67, "jax.jit, lax.scan": 0.75})
def transformer_step(case: Case) -> None:
    data = Data(case, case.size(*LAYERS))
    ours, loop, scan = Ours(data), Theirs(data), Theirs(data, scan=True)
    case.ours(ours.step, state=ours.state, comparable_state=by_layer)
    for name, theirs in (("jax.jit", loop), ("jax.jit, lax.scan", scan)):
        case.peer(name, theirs.step, state=lambda theirs=theirs: theirs.blocks, comparable_state=by_layer)
