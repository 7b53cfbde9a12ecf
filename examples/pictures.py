"""The pictures of the README: ``python examples/pictures.py [FOLDER]`` writes them; needs matplotlib."""

import sys
from pathlib import Path

import numpy as np

import hybridflow as hf

LAYERS, WIDTH, BATCH = 6, 64, 256


def model(x, w):
    with hf.name_scope("encoder"):
        h = hf.nn.gelu(hf.nn.layer_norm(x) @ w)
    with hf.name_scope("head"):
        return hf.mean(h * h)


def deep_loss(x, weights):
    for w in weights:
        x = hf.nn.gelu(hf.nn.layer_norm(x) @ w)
    return hf.mean(x * x)


def oscillators(x):
    """Move many van der Pol oscillators for a moment: element-wise operations, which XLA fuses."""
    v = hf.zeros_like(x)
    for _ in range(8):
        v = v + 0.01 * ((1 - x * x) * v - x)
        x = x + 0.01 * v
    return x


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    x = hf.asarray(rng.standard_normal((BATCH, WIDTH)).astype(np.float32))
    weights = [hf.asarray(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)) for _ in range(LAYERS)]

    graph = hf.compile(hf.grad(model, argnums=1)).graph(x, weights[0])
    graph.to_svg(folder / "graph.svg", color="flops")

    hf.cost(hf.grad(deep_loss, argnums=1), x, weights).to_svg(folder / "memory.svg")

    places = hf.asarray(rng.standard_normal(200_000).astype(np.float32))
    hf.compare(oscillators, places, repeats=50).plot(folder / "break_even.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("pictures"))
