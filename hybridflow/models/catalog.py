"""The models of the table: how each is made, what it is called with, and the figures that were published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from hybridflow import models, nn
from hybridflow.analysis.cost import CostReport, cost
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core.dtypes import int32
from hybridflow.core.spec import TensorSpec
from hybridflow.nn import init
from hybridflow.ops.reductions import mean


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
