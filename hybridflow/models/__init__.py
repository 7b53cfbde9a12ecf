"""`hf.models`: models that people know, as plain modules of `hf.nn`. No weights are downloaded; see `load_torch`."""

import typing as _typing
from importlib import import_module as _import_module

from hybridflow.core.attached import attached as _attached

if _typing.TYPE_CHECKING:  # what `__getattr__` imports when it is asked for
    from hybridflow.models.alexnet import AlexNet as AlexNet
    from hybridflow.models.bert import BERT as BERT
    from hybridflow.models.bert import bert_base as bert_base
    from hybridflow.models.convnext import ConvNeXt as ConvNeXt
    from hybridflow.models.convnext import convnext_tiny as convnext_tiny
    from hybridflow.models.decoder import Llama as Llama
    from hybridflow.models.decoder import llama as llama
    from hybridflow.models.densenet import DenseNet as DenseNet
    from hybridflow.models.densenet import densenet121 as densenet121
    from hybridflow.models.diffusion import DiffusionUNet as DiffusionUNet
    from hybridflow.models.efficientnet import EfficientNet as EfficientNet
    from hybridflow.models.efficientnet import efficientnet_b0 as efficientnet_b0
    from hybridflow.models.efficientnet import efficientnet_b1 as efficientnet_b1
    from hybridflow.models.efficientnet import efficientnet_b2 as efficientnet_b2
    from hybridflow.models.efficientnet import efficientnet_b3 as efficientnet_b3
    from hybridflow.models.efficientnet import efficientnet_b4 as efficientnet_b4
    from hybridflow.models.efficientnet import efficientnet_b5 as efficientnet_b5
    from hybridflow.models.efficientnet import efficientnet_b6 as efficientnet_b6
    from hybridflow.models.efficientnet import efficientnet_b7 as efficientnet_b7
    from hybridflow.models.gpt import GPT2 as GPT2
    from hybridflow.models.gpt import gpt2 as gpt2
    from hybridflow.models.lenet import LeNet as LeNet
    from hybridflow.models.loading import load_torch as load_torch
    from hybridflow.models.lstm import LSTMLanguageModel as LSTMLanguageModel
    from hybridflow.models.mobilenet import MobileNetV1 as MobileNetV1
    from hybridflow.models.mobilenet import MobileNetV2 as MobileNetV2
    from hybridflow.models.mobilenet import MobileNetV3 as MobileNetV3
    from hybridflow.models.mobilenet import mobilenet_v1 as mobilenet_v1
    from hybridflow.models.mobilenet import mobilenet_v2 as mobilenet_v2
    from hybridflow.models.mobilenet import mobilenet_v3_large as mobilenet_v3_large
    from hybridflow.models.mobilenet import mobilenet_v3_small as mobilenet_v3_small
    from hybridflow.models.resnet import ResNet as ResNet
    from hybridflow.models.resnet import resnet18 as resnet18
    from hybridflow.models.resnet import resnet34 as resnet34
    from hybridflow.models.resnet import resnet50 as resnet50
    from hybridflow.models.resnet import resnet101 as resnet101
    from hybridflow.models.resnet import resnet152 as resnet152
    from hybridflow.models.resnet import wide_resnet50_2 as wide_resnet50_2
    from hybridflow.models.shufflenet import ShuffleNetV2 as ShuffleNetV2
    from hybridflow.models.shufflenet import shufflenet_v2 as shufflenet_v2
    from hybridflow.models.squeezenet import SqueezeNet as SqueezeNet
    from hybridflow.models.squeezenet import squeezenet1_0 as squeezenet1_0
    from hybridflow.models.squeezenet import squeezenet1_1 as squeezenet1_1
    from hybridflow.models.unet import UNet as UNet
    from hybridflow.models.vae import VAE as VAE
    from hybridflow.models.vgg import VGG as VGG
    from hybridflow.models.vgg import vgg11 as vgg11
    from hybridflow.models.vgg import vgg13 as vgg13
    from hybridflow.models.vgg import vgg16 as vgg16
    from hybridflow.models.vgg import vgg19 as vgg19
    from hybridflow.models.vit import ViT as ViT
    from hybridflow.models.vit import vit_b_16 as vit_b_16
else:

    def __getattr__(name: str) -> object:
        for module, names in _LATER.items():
            if name in names:
                return getattr(_import_module(f"hybridflow.models.{module}"), name)
        raise AttributeError(f"module 'hybridflow.models' has no attribute {name!r}", name=name)


_LATER = {
    "alexnet": ("AlexNet",),
    "bert": ("BERT", "bert_base"),
    "convnext": ("ConvNeXt", "convnext_tiny"),
    "densenet": ("DenseNet", "densenet121"),
    "diffusion": ("DiffusionUNet",),
    "efficientnet": ("EfficientNet", "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3",
                     "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7"),
    "gpt": ("GPT2", "gpt2"),
    "lenet": ("LeNet",),
    "decoder": ("Llama", "llama"),
    "loading": ("load_torch",),
    "lstm": ("LSTMLanguageModel",),
    "mobilenet": ("MobileNetV1", "MobileNetV2", "MobileNetV3", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3_large",
                  "mobilenet_v3_small"),
    "resnet": ("ResNet", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2"),
    "shufflenet": ("ShuffleNetV2", "shufflenet_v2"),
    "squeezenet": ("SqueezeNet", "squeezenet1_0", "squeezenet1_1"),
    "unet": ("UNet",),
    "vae": ("VAE",),
    "vgg": ("VGG", "vgg11", "vgg13", "vgg16", "vgg19"),
    "vit": ("ViT", "vit_b_16"),
}
"""The names that are imported when they are first asked for, by the module of `hybridflow.models` that has them."""


def __dir__() -> list[str]:
    return sorted({*globals(), *[name for names in _LATER.values() for name in names]})

_attached("name_module")("hf.models", __name__)
