"""How FLOPs and memory grow with a model: ``python examples/laws.py [FOLDER]`` draws the laws; needs matplotlib.

Each curve is by `hf.cost`, which runs nothing; each cross is what XLA says of the program that it compiled.
"""

import sys
from pathlib import Path

import hybridflow as hf
from hybridflow import nn
from hybridflow.analysis.report import empty_figure, save_figure

f32 = hf.TensorSpec


def mlp(batch=64, width=128, depth=4, checkpointed=False):
    """Return the gradient step of a network of equal layers, and its arguments."""

    def layer(x, w):
        return hf.tanh(hf.tanh(x @ w) @ w)

    run = hf.checkpoint(layer) if checkpointed else layer

    def loss(weights, x):
        for w in weights:
            x = run(x, w)
        return hf.mean(x * x)

    return hf.grad(loss), ([f32([width, width])] * depth, f32([batch, width]))


def convolution(channels=32, window=3, stride=1, groups=1, size=32):
    """Return a convolution, and its arguments."""

    def conv(x, kernel):
        return nn.conv(x, kernel, stride=stride, groups=groups)

    return conv, (f32([4, channels, size, size]), f32([channels, channels // groups, window, window]))


def attention(length=128, width=64):
    """Return attention whose scores are written out, and its arguments."""

    def attend(q, k, v):
        return nn.softmax(q @ k.mT / width**0.5) @ v

    return attend, (f32([1, 4, length, width]),) * 3


LAWS = {
    "batch": (mlp, "batch", (16, 64, 256), "n"),
    "width": (mlp, "width", (32, 64, 128), "w²"),
    "depth": (mlp, "depth", (2, 4, 8), "d"),
    "kernel": (convolution, "window", (1, 3, 5, 7), "k² (33 - k)²"),
    "stride": (convolution, "stride", (1, 2, 4), "1 / s²"),
    "groups": (convolution, "groups", (1, 2, 4, 8), "1 / g"),
    "attention": (attention, "length", (64, 128, 256), "t²"),
}
"""Each law: what is built, the size that grows, its values, and what FLOPs grow with."""
DEPTHS = (2, 4, 8)


def flops(make, name, value):
    """Return the FLOPs of a call by hybridflow and by XLA."""
    fn, specs = make(**{name: value})
    found = hf.cost(fn, *specs).against_xla()
    return found.flops_once, found.xla_flops + found.xla_transcendentals


def memory(depth, checkpointed):
    """Return the bytes that a deep network keeps for its backward pass, and the temporaries that XLA allots to it."""
    fn, specs = mlp(batch=512, depth=depth, checkpointed=checkpointed)
    report = hf.cost(fn, *specs)
    return report.memory.bytes["activations"], report.against_xla().xla_temporaries


def drawn(axes, title, sizes, ours, xla, label=None):
    """Draw a curve and its crosses, both axes logarithmic."""
    (line,) = axes.loglog(sizes, ours, label=label)
    axes.loglog(sizes, xla, "x", color=line.get_color())
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figure = empty_figure(7.5, 9)
    places = figure.subplots(4, 2).flat
    for (law, (make, name, sizes, text)), axes in zip(LAWS.items(), places, strict=False):
        ours, xla = zip(*[flops(make, name, size) for size in sizes], strict=True)
        drawn(axes, f"FLOPs by {law}: {text}", sizes, ours, xla)
    for checkpointed in (False, True):
        ours, xla = zip(*[memory(depth, checkpointed) for depth in DEPTHS], strict=True)
        drawn(axes := figure.axes[-1], "bytes by depth", DEPTHS, ours, xla, "checkpoint" if checkpointed else "plain")
    axes.legend(fontsize=8)
    save_figure(figure, folder / "laws.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("pictures"))
