"""``hybridflow demo``: a classifier of handwritten digits, trained eagerly and compiled, and compared."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

import hybridflow as hf
from hybridflow.analysis import report
from hybridflow.analysis.compare import Comparison, compare
from hybridflow.analysis.parity import check_parity
from hybridflow.backend.files import write_text
from hybridflow.cli.arguments import positive, seed_number
from hybridflow.cli.outputs import require_files
from hybridflow.core.errors import MissingPackageError
from hybridflow.core.html import table_html
from hybridflow.core.node import PROGRAMS

HELP = "train a classifier of handwritten digits eagerly and compiled, and compare"
EPOCHS = 30
BATCH = 64
RATE, MOMENTUM = 0.05, 0.9
COMPARED_STEPS = 20
Array = np.ndarray[Any, Any]


class Digits(NamedTuple):
    """Flattened images of 8 x 8 pixels from 0 to 1 and the digits they show, split for training and testing."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load_digits(seed: int) -> Digits:
    """Return scikit-learn's handwritten digits, a fifth of them for testing.

    Args:
        seed: the seed of the random split.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # an extra
    except ImportError:
        raise MissingPackageError("demo: needs scikit-learn for its digits",
                                  hint="Run pip install 'hybridflow[examples]'.") from None
    loaded: Any = datasets.load_digits(return_X_y=True)
    images, labels = loaded
    order = np.random.default_rng(seed).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int32)
    split = len(labels) * 4 // 5
    return Digits(images[:split], labels[:split], images[split:], labels[split:])


class Net(hf.nn.Module):
    """Three dense layers, 64-128-64-10."""

    def __init__(self) -> None:
        self.first, self.second, self.out = hf.nn.Linear(64, 128), hf.nn.Linear(128, 64), hf.nn.Linear(64, 10)

    def forward(self, images: Any) -> hf.Tensor:
        """Return the ten scores of each image."""
        hidden = hf.relu(self.first(images))
        hidden = hf.relu(self.second(hidden))
        return self.out(hidden)


class Trainer:
    """A network with its optimizer."""

    def __init__(self, seed: int) -> None:
        hf.nn.init.seed(seed)
        self.net = Net()
        self.optimizer = hf.optim.SGD(self.net, rate=RATE, momentum=MOMENTUM)

    def step(self, images: Any, labels: Any) -> hf.Tensor:
        """Improve the network on a batch and return its loss."""
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.nn.softmax_cross_entropy(self.net(images), labels))
        self.optimizer.update(tape.gradient(loss, self.net))
        return hf.stop_gradient(loss)


@dataclass
class Training:
    """The record of one training run; `first` is the time of the first step, which includes any compilation."""

    name: str
    losses: list[float] = field(default_factory=list[float])
    seconds: float = 0.0
    first: float = 0.0
    accuracy: float = 0.0


def batches(data: Digits, seed: int) -> hf.data.Batches[tuple[hf.Tensor, hf.Tensor]]:
    """Return shuffled batches of equal size."""
    return hf.data.Batches((data.train_images, data.train_labels), BATCH, shuffle=True, seed=seed, drop_last=True)


def train(
    name: str, trainer: Trainer, step: Callable[..., hf.Tensor], data: Digits, epochs: int, seed: int, console: Console
) -> Training:
    """Train a network and show its progress."""
    made, examples = Training(name), batches(data, seed)
    console.print(f"{name}:")
    start = time.perf_counter()
    run = hf.train.Run(data=examples)
    for images, labels in run.steps(epochs * len(examples)):
        loss = step(images, labels).item()
        run.log(loss=loss)
        made.losses.append(loss)
        made.seconds = time.perf_counter() - start
        made.first = made.first or made.seconds
    test = data.test_images, data.test_labels
    made.accuracy = hf.train.evaluate(trainer.net, *test, metrics=hf.metrics.Accuracy())
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the report to write (%(default)s)")
    parser.add_argument("--epochs", type=positive, default=EPOCHS, help="passes over the data (%(default)s)")
    parser.add_argument("--seed", type=seed_number, default=0, help="of the split, weights and order (%(default)s)")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Train twice from the same start, compare, and write the report."""
    file = Trainer.step.__code__.co_filename
    PROGRAMS.add(file)  # so that the report names its lines
    try:
        return _run(arguments, console)
    finally:
        PROGRAMS.discard(file)


def _run(arguments: argparse.Namespace, console: Console) -> bool:
    require_files("demo", arguments.out)
    seed = arguments.seed
    data = load_digits(seed)
    fit = partial(train, data=data, epochs=arguments.epochs, seed=seed, console=console)
    sizes = f"{len(data.train_labels)} to train on, {len(data.test_labels)} to test on"
    console.print(f"Handwritten digits: {sizes}.", highlight=False)
    trainer = Trainer(seed)
    eager = fit("eager", trainer, trainer.step)
    trainer = Trainer(seed)
    compiled_step = hf.compile(trainer.step)
    compiled = fit("compiled", trainer, compiled_step)
    comparison = _compare(data, seed)
    comparison.print(console)
    for one in (eager, compiled):
        console.print(
            f"{one.name:>8}: {one.accuracy:.2%} of the test images right, last loss {one.losses[-1]:.4f}, "
            f"{one.seconds:.1f} s for {len(one.losses)} steps, the first {one.first * 1e3:.0f} ms",
            highlight=False,
            soft_wrap=True,
        )
    write_text(arguments.out, _page(comparison, eager, compiled, compiled_step, data))
    console.print(f"Report: {arguments.out}", markup=False, highlight=False)
    return comparison.same


def _compare(data: Digits, seed: int) -> Comparison:
    """Compare one training step, its gradients, and the parameters after some steps."""
    steps = list(batches(data, seed))[:COMPARED_STEPS]
    step = Trainer(seed).step
    calls = [(batch, {}) for batch in steps]
    after = check_parity(hf.compile(step), calls, f"parameters after {len(steps)} steps", part="Variables")
    return compare(step, *steps[0], gradients=True).with_parity(after)


# -- the report ---------------------------------------------------------------------------------------------------


def _page(
    comparison: Comparison, eager: Training, compiled: Training, step: hf.CompiledFunction[Any, Any], data: Digits
) -> str:
    images, labels = data.train_images[:BATCH], data.train_labels[:BATCH]
    rows = [
        (one.name, f"{one.accuracy:.2%}", f"{one.losses[-1]:.4f}", str(len(one.losses)), f"{one.seconds:.2f} s")
        for one in (eager, compiled)
    ]
    body = [
        "<h1>One training step, eager and compiled</h1>",
        "<p>A network of three dense layers learns scikit-learn's handwritten digits twice, from the same weights "
        "and on the same batches: its training step runs operation by operation, then under hf.compile.</p>",
        table_html(("run", "test accuracy", "last loss", "steps", "training time"), rows),
        report.figure_svg(_loss_figure(eager, compiled)),
        comparison._repr_html_(),
        report.figure_svg(comparison.figure()),
        f"<details><summary>Why it was traced</summary><pre>{escape(str(step.explain()))}</pre></details>",
        f"<details><summary>The graph</summary><pre>{escape(str(step.graph(images, labels)))}</pre></details>",
    ]
    return report.page("hybridflow demo", "\n".join(body))


def _loss_figure(eager: Training, compiled: Training) -> Any:
    """Return the two loss curves on top of each other."""
    figure, axes = report.new_figure("Training loss", "step", "loss of the batch")
    axes.plot(eager.losses, color=report.EAGER, linewidth=3, alpha=0.45, label="eager")
    axes.plot(compiled.losses, color=report.COMPILED, linewidth=1, label="compiled")
    axes.set_yscale("log")
    axes.legend()
    return figure
