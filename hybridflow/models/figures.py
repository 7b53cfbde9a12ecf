"""The table of the zoo: parameters, multiply-adds and memory of its models, beside the published figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridflow import models, nn
from hybridflow.analysis.cost import CostReport, cost
from hybridflow.analysis.memory import format_size
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core.dtypes import int32
from hybridflow.core.spec import TensorSpec
from hybridflow.nn import init
from hybridflow.ops.reductions import mean

# -- the models of the table: how each is made, what it is called with, and the figures that were published -----------


class Figures(NamedTuple):
    """Figures of a model.

    Attributes:
        parameters: the number of its parameters.
        macs: the multiply-adds of a call in evaluation mode.
        temporaries: the most bytes that such a call stores at once, beside parameters, arguments and results.
        report: the cost of the call.
    """

    parameters: int
    macs: int
    temporaries: int
    report: CostReport


@dataclass(frozen=True)
class Entry:
    """A model of the table.

    Attributes:
        name: its name.
        make: makes it.
        specs: the arguments of a call.
        parameters: the published number of parameters as text, such as ``"25,557,032"`` or ``"2.28 M"``; may be empty.
        macs: the published multiply-adds of a call, as text; may be empty.
    """

    name: str
    make: Callable[[], nn.Module]
    specs: tuple[TensorSpec, ...]
    parameters: str = ""
    macs: str = ""

    def figures(self) -> Figures:
        """Return the model's figures; nothing is allocated or run."""
        with init.abstract():
            model = self.make().eval()
        inference = cost(model, *self.specs)
        parameters = sum(one.size for one in model.parameters())
        return Figures(parameters, inference.macs, inference.memory.temporaries or 0, inference)

    def training(self) -> CostReport:
        """Return the cost of the gradients of the parameters in training mode; nothing is allocated or run."""
        with init.abstract():
            model = self.make()

        def gradients(*args: Any) -> Any:
            with GradientTape() as tape:
                loss: Any = 0
                for leaf in jax.tree_util.tree_leaves(model(*args)):
                    loss = loss + mean(leaf)
            return tape.gradient(loss, model)

        return cost(gradients, *self.specs)


def _images(size: int = 224, channels: int = 3) -> tuple[TensorSpec, ...]:
    return (TensorSpec((1, channels, size, size)),)


def _ids(length: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((1, length), int32),)


def _language(size: str, parameters: str) -> Entry:
    return Entry(f"GPT-2 {size}", lambda: models.gpt2(size), _ids(1024), parameters)


def _decoder(size: str, parameters: str) -> Entry:
    return Entry(size, lambda: models.llama(size), _ids(1024), parameters)


def _shuffle(width: float, parameters: str, macs: str) -> Entry:
    return Entry(f"ShuffleNet V2 {width}", lambda: models.shufflenet_v2(width), _images(), parameters, macs)


CATALOG = (
    Entry("LeNet-5", models.LeNet, _images(32, 1), "61,706"),
    Entry("AlexNet", models.AlexNet, _images(), "61,100,840", "714,188,480"),
    Entry("VGG-11", models.vgg11, _images(), "132,863,336", "7.61 G"),
    Entry("VGG-13", models.vgg13, _images(), "133,047,848", "11.31 G"),
    Entry("VGG-16", models.vgg16, _images(), "138,357,544", "15,470,264,320"),
    Entry("VGG-19", models.vgg19, _images(), "143,667,240", "19.63 G"),
    Entry("ResNet-18", models.resnet18, _images(), "11,689,512", "1,814,073,344"),
    Entry("ResNet-34", models.resnet34, _images(), "21,797,672", "3.66 G"),
    Entry("ResNet-50", models.resnet50, _images(), "25,557,032", "4,089,184,256"),
    Entry("ResNet-101", models.resnet101, _images(), "44,549,160", "7.80 G"),
    Entry("ResNet-152", models.resnet152, _images(), "60,192,808", "11,513,626,624"),
    Entry("Wide ResNet-50-2", models.wide_resnet50_2, _images(), "68,883,240", "11,398,021,120"),
    Entry("SqueezeNet 1.0", models.squeezenet1_0, _images(), "1,248,424", "0.82 G"),
    Entry("SqueezeNet 1.1", models.squeezenet1_1, _images(), "1,235,496", "0.35 G"),
    Entry("MobileNet V1", models.mobilenet_v1, _images(), "4,231,976", "568,740,352"),
    Entry("MobileNet V2", models.mobilenet_v2, _images(), "3,504,872", "300,774,272"),
    Entry("MobileNet V3 large", models.mobilenet_v3_large, _images(), "5,483,032", "0.22 G"),
    Entry("MobileNet V3 small", models.mobilenet_v3_small, _images(), "2,542,856", "0.06 G"),
    _shuffle(0.5, "1,366,792", "0.04 G"),
    _shuffle(1.0, "2,278,604", "0.145 G"),
    _shuffle(1.5, "3,503,624", "0.30 G"),
    _shuffle(2.0, "7,393,996", "0.58 G"),
    Entry("EfficientNet-B0", models.efficientnet_b0, _images(224), "5,288,548", "385,814,752"),
    Entry("EfficientNet-B1", models.efficientnet_b1, _images(240), "7,794,184", "0.69 G"),
    Entry("EfficientNet-B2", models.efficientnet_b2, _images(288), "9,109,994", "1.09 G"),
    Entry("EfficientNet-B3", models.efficientnet_b3, _images(300), "12,233,232", "1.83 G"),
    Entry("EfficientNet-B4", models.efficientnet_b4, _images(380), "19,341,616", "4.39 G"),
    Entry("EfficientNet-B5", models.efficientnet_b5, _images(456), "30,389,784", "10.27 G"),
    Entry("EfficientNet-B6", models.efficientnet_b6, _images(528), "43,040,704", "19.07 G"),
    Entry("EfficientNet-B7", models.efficientnet_b7, _images(600), "66,347,960", "37,745,884,192"),
    Entry("DenseNet-121", models.densenet121, _images(), "7,978,856", "2.83 G"),
    Entry("U-Net", models.UNet, _images(512, 1), "31.03 M"),
    Entry("ConvNeXt-T", models.convnext_tiny, _images(), "28,589,128", "4.46 G"),
    Entry("ViT-B/16", models.vit_b_16, _images(), "86,567,656", "17.56 G"),
    _language("small", "124,439,808"),
    _language("medium", "354,823,168"),
    _language("large", "774,030,080"),
    _language("xl", "1,557,611,200"),
    Entry("BERT-base", models.bert_base, _ids(512), "109,482,240"),
    _decoder("tinyllama-1.1b", "1,100,048,384"),
    _decoder("llama2-7b", "6,738,415,616"),
    _decoder("llama3-8b", "8,030,261,248"),
    Entry("LSTM language model", models.LSTMLanguageModel, _ids(35)),
    Entry("VAE", models.VAE, (TensorSpec((1, 784)),)),
    Entry("diffusion U-Net", models.DiffusionUNet, (TensorSpec((1, 3, 32, 32)), TensorSpec((1,), int32))),
)


TITLES = (
    "model", "input", "parameters", "published", "MACs", "published", "kept for gradients", "stored in inference",
    "stored in training",
)
XLA_TITLES = ("XLA, inference", "XLA, training")


class Row(NamedTuple):
    """A row of the table: texts in the order of `TITLES`, then those of `XLA_TITLES` if XLA was asked."""

    cells: tuple[str, ...]


def row_of(entry: Entry, *, xla: bool = False) -> Row:
    """Return the row of a model; with `xla`, its two programs are compiled, which can take minutes."""
    figures, training = entry.figures(), entry.training()
    activations = sum(one.bytes for one in training.memory.activations)
    shape = "x".join(map(str, entry.specs[0].shape))
    cells = (
        entry.name, shape, f"{figures.parameters:,}", entry.parameters, f"{figures.macs:,}", entry.macs,
        format_size(activations), format_size(figures.temporaries), format_size(training.memory.temporaries),
    )
    if not xla:
        return Row(cells)
    reports = (figures.report, training)
    return Row((*cells, *[format_size(one.against_xla().xla_temporaries) for one in reports]))


def rows(entries: Sequence[Entry] = CATALOG, *, xla: bool = False) -> Iterator[Row]:
    """Yield the rows of models."""
    for entry in entries:
        yield row_of(entry, xla=xla)


def markdown(found: Sequence[Row], titles: Sequence[str] = TITLES) -> str:
    """Return the table in Markdown."""
    lines = [" | ".join(titles), " | ".join(["---", "---", *["--:"] * (len(titles) - 2)])]
    lines += [" | ".join(row.cells) for row in found]
    return "".join([f"| {line} |\n" for line in lines])


def _table(titles: Sequence[str]) -> Table:
    table = Table()
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=number == 0)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table.

    Args:
        arguments: those of the command line, if not given.
    """
    parser = argparse.ArgumentParser(
        prog="python -m hybridflow.models",
        description="Parameters, multiply-adds and memory of the zoo's models, batch 1; nothing is allocated or run.",
    )
    parser.add_argument("names", nargs="*", help="only models whose names contain one of these texts")
    parser.add_argument("--xla", action="store_true", help="compile the models, for XLA's own memory figures")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    given = parser.parse_args(arguments)
    names = [name.lower() for name in given.names]
    entries = [one for one in CATALOG if not names or any(name in one.name.lower() for name in names)]
    titles = (*TITLES, *XLA_TITLES) if given.xla else TITLES
    if given.markdown:
        print(markdown([*rows(entries, xla=given.xla)], titles), end="")
        return
    table = _table(titles)
    for row in rows(entries, xla=given.xla):
        table.add_row(*map(Text, row.cells))
    Console().print(table)
