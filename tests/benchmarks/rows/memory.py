"""The price of saving memory: steps that recompute values, against steps that keep everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import hybridflow as hf

from ..registry import Case, row
from .transformer import RATE, Data, hybridflow_block

Program = Callable[..., Any]


def train(loss: Program) -> Program:
    """Return an SGD step for a loss function of ``(parameters, *batch)``."""

    def step(parameters: Any, *batch: Any) -> Any:
        value, gradients = hf.value_and_grad(loss)(parameters, *batch)
        return value, jax.tree_util.tree_map(lambda p, g: p - RATE * g, parameters, gradients)

    return step


def side(case: Case, name: str | None, step: Any, *args: Any) -> int:
    """Add a compiled step, note XLA's figure for its temporaries and return it."""
    executable = step.lower(*args).executable.compiled
    size = int(executable.memory_analysis().temp_size_in_bytes)
    flops = executable.cost_analysis()["flops"]
    case.notes.append(f"{name or 'hybridflow'}: {size / 1e6:.2f} MB of temporaries, {flops / 1e9:.2f} GFLOP")

    def call() -> Any:
        value, parameters = step(*args)
        return value.numpy(), parameters

    def arrays(result: Any) -> list[Any]:
        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result)]

    if name is None:
        case.ours(call, comparable=arrays)
    else:
        case.peer(name, call, comparable=arrays)
    return size


def tensors(tree: Any) -> Any:
    """Convert a structure of arrays to tensors."""
    return jax.tree_util.tree_map(hf.asarray, tree)


@row("12-block transformer step, every block checkpointed", aims={"kept": 1.4}, tolerance=1e-3)
def memory_checkpoint(case: Case) -> None:
    data = Data(case, case.size(12, 2))
    args = tensors(data.blocks), hf.asarray(data.x), hf.asarray(data.target)

    def loss(wrap: Program) -> Program:
        block = wrap(lambda p, x: hybridflow_block(data, p, x))

        def run(blocks: Any, x: Any, target: Any) -> Any:
            for p in blocks:
                x = block(p, x)
            return hf.mean((x - target) ** 2)

        return run

    side(case, None, hf.compile(train(loss(hf.checkpoint))), *args)
    side(case, "kept", hf.compile(train(loss(lambda fn: fn))), *args)


def convolutions(case: Case) -> tuple[Any, Any, Program]:
    """Return the kernels, the images and the block function of three blocks of six convolutions."""
    channels, size = case.size((16, 32), (4, 8))
    blocks, depth = case.size((3, 6), (2, 2))
    shape = (channels, channels, 3, 3)
    kernels = [[case.normal(*shape, scale=(9 * channels) ** -0.5) for _ in range(depth)] for _ in range(blocks)]

    def block(ws: Any, x: Any) -> Any:
        h = x
        for w in ws:
            h = hf.nn.conv(hf.nn.silu(hf.nn.group_norm(h, 4)), w, padding="same")
        return x + h

    return tensors(kernels), hf.asarray(case.normal(8, channels, size, size)), block


@row("18 convolutions, a budget of what three checkpointed blocks take", aims={"blocks": 1.0, "kept": 1.4},
     tolerance=1e-3)
def memory_budget_convolutions(case: Case) -> None:
    kernels, x, block = convolutions(case)
    budget(case, kernels, x, block)


@row("12-layer transformer, a budget of what three checkpointed segments take", aims={"blocks": 1.0, "kept": 1.4},
     tolerance=1e-3)
def memory_budget_transformer(case: Case) -> None:
    """Checkpoint segments whose length is about the square root of the number of layers.

    Reference: Chen et al., "Training deep nets with sublinear memory cost".
    """
    data = Data(case, case.size(12, 3))
    count = case.size(4, 1)
    segments = tensors([data.blocks[first : first + count] for first in range(0, len(data.blocks), count)])

    def segment(layers: Any, x: Any) -> Any:
        for p in layers:
            x = hybridflow_block(data, p, x)
        return x

    budget(case, segments, hf.asarray(data.x), segment)


def budget(case: Case, parameters: Any, x: Any, block: Program) -> None:
    """Add a step whose memory budget is that of checkpointing every block, the checkpointed step, and a plain one."""

    def loss(wrap: Program) -> Program:
        wrapped = wrap(block)

        def run(parameters: Any, x: Any) -> Any:
            for p in parameters:
                x = wrapped(p, x)
            return hf.mean(x**2)

        return run

    plain = train(loss(lambda fn: fn))
    size = side(case, "blocks", hf.compile(train(loss(hf.checkpoint))), parameters, x)
    side(case, None, hf.compile(plain, memory_budget=size), parameters, x)
    side(case, "kept", hf.compile(plain), parameters, x)


@row("12 tanh layers, a batch of 2048 in 8 micro-batches", aims={"full batch": 1.4}, tolerance=1e-3)
def memory_accumulate(case: Case) -> None:
    width, size = case.size((128, 2048), (8, 32))
    ws = tensors([case.normal(width, width, scale=width**-0.5) for _ in range(12)])
    x = hf.asarray(case.normal(size, width))

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = hf.tanh(x @ w)
        return hf.mean(x**2)

    def step(gradient: Program) -> Any:
        @hf.compile
        def run(ws: Any, x: Any) -> Any:
            value, found = gradient(ws, x)
            return value, [w - RATE * g for w, g in zip(ws, found, strict=True)]

        return run

    side(case, None, step(hf.accumulate_gradients(loss, 8)), ws, x)
    side(case, "full batch", step(hf.value_and_grad(loss)), ws, x)
