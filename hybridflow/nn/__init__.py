"""`hf.nn`: neural-network operations, and the modules that models are built from."""

import typing as _typing
from importlib import import_module as _import_module

from hybridflow.ops.nn import *  # noqa: F403

if _typing.TYPE_CHECKING:  # the names that `__getattr__` imports on demand
    from hybridflow.nn import init as init
    from hybridflow.nn.layers.attention import KeyValueCache as KeyValueCache
    from hybridflow.nn.layers.attention import MultiHeadAttention as MultiHeadAttention
    from hybridflow.nn.layers.convolution import Conv as Conv
    from hybridflow.nn.layers.convolution import Conv1d as Conv1d
    from hybridflow.nn.layers.convolution import Conv2d as Conv2d
    from hybridflow.nn.layers.convolution import Conv3d as Conv3d
    from hybridflow.nn.layers.convolution import ConvTranspose as ConvTranspose
    from hybridflow.nn.layers.convolution import ConvTranspose1d as ConvTranspose1d
    from hybridflow.nn.layers.convolution import ConvTranspose2d as ConvTranspose2d
    from hybridflow.nn.layers.convolution import ConvTranspose3d as ConvTranspose3d
    from hybridflow.nn.layers.experts import MoE as MoE
    from hybridflow.nn.layers.linear import Embedding as Embedding
    from hybridflow.nn.layers.linear import Linear as Linear
    from hybridflow.nn.layers.module import Module as Module
    from hybridflow.nn.layers.normalization import BatchNorm as BatchNorm
    from hybridflow.nn.layers.normalization import BatchNorm1d as BatchNorm1d
    from hybridflow.nn.layers.normalization import BatchNorm2d as BatchNorm2d
    from hybridflow.nn.layers.normalization import BatchNorm3d as BatchNorm3d
    from hybridflow.nn.layers.normalization import GroupNorm as GroupNorm
    from hybridflow.nn.layers.normalization import InstanceNorm as InstanceNorm
    from hybridflow.nn.layers.normalization import InstanceNorm1d as InstanceNorm1d
    from hybridflow.nn.layers.normalization import InstanceNorm2d as InstanceNorm2d
    from hybridflow.nn.layers.normalization import InstanceNorm3d as InstanceNorm3d
    from hybridflow.nn.layers.normalization import LayerNorm as LayerNorm
    from hybridflow.nn.layers.normalization import RMSNorm as RMSNorm
    from hybridflow.nn.layers.recurrent import GRU as GRU
    from hybridflow.nn.layers.recurrent import LSTM as LSTM
    from hybridflow.nn.layers.recurrent import RNN as RNN
    from hybridflow.nn.layers.simple import AdaptiveAvgPool as AdaptiveAvgPool
    from hybridflow.nn.layers.simple import AdaptiveAvgPool1d as AdaptiveAvgPool1d
    from hybridflow.nn.layers.simple import AdaptiveAvgPool2d as AdaptiveAvgPool2d
    from hybridflow.nn.layers.simple import AdaptiveAvgPool3d as AdaptiveAvgPool3d
    from hybridflow.nn.layers.simple import AdaptiveMaxPool as AdaptiveMaxPool
    from hybridflow.nn.layers.simple import AdaptiveMaxPool1d as AdaptiveMaxPool1d
    from hybridflow.nn.layers.simple import AdaptiveMaxPool2d as AdaptiveMaxPool2d
    from hybridflow.nn.layers.simple import AdaptiveMaxPool3d as AdaptiveMaxPool3d
    from hybridflow.nn.layers.simple import AvgPool as AvgPool
    from hybridflow.nn.layers.simple import AvgPool1d as AvgPool1d
    from hybridflow.nn.layers.simple import AvgPool2d as AvgPool2d
    from hybridflow.nn.layers.simple import AvgPool3d as AvgPool3d
    from hybridflow.nn.layers.simple import Dropout as Dropout
    from hybridflow.nn.layers.simple import Dropout1d as Dropout1d
    from hybridflow.nn.layers.simple import Dropout2d as Dropout2d
    from hybridflow.nn.layers.simple import Dropout3d as Dropout3d
    from hybridflow.nn.layers.simple import Flatten as Flatten
    from hybridflow.nn.layers.simple import GlobalAvgPool as GlobalAvgPool
    from hybridflow.nn.layers.simple import Identity as Identity
    from hybridflow.nn.layers.simple import MaxPool as MaxPool
    from hybridflow.nn.layers.simple import MaxPool1d as MaxPool1d
    from hybridflow.nn.layers.simple import MaxPool2d as MaxPool2d
    from hybridflow.nn.layers.simple import MaxPool3d as MaxPool3d
    from hybridflow.nn.layers.simple import Sequential as Sequential
    from hybridflow.nn.layers.simple import Upsample as Upsample
    from hybridflow.nn.stacking import stack as stack
    from hybridflow.nn.table import summary as summary
else:

    def __getattr__(name: str) -> object:
        if name == "init":
            return _import_module("hybridflow.nn.init")
        if name not in _LATER:
            raise AttributeError(f"module 'hybridflow.nn' has no attribute {name!r}", name=name)
        value = globals()[name] = getattr(_import_module(f"hybridflow.nn.{_LATER[name]}"), name)
        return value


_LATER = {
    "AdaptiveAvgPool": "layers.simple",
    "AdaptiveAvgPool1d": "layers.simple",
    "AdaptiveAvgPool2d": "layers.simple",
    "AdaptiveAvgPool3d": "layers.simple",
    "AdaptiveMaxPool": "layers.simple",
    "AdaptiveMaxPool1d": "layers.simple",
    "AdaptiveMaxPool2d": "layers.simple",
    "AdaptiveMaxPool3d": "layers.simple",
    "AvgPool": "layers.simple",
    "AvgPool1d": "layers.simple",
    "AvgPool2d": "layers.simple",
    "AvgPool3d": "layers.simple",
    "BatchNorm": "layers.normalization",
    "BatchNorm1d": "layers.normalization",
    "BatchNorm2d": "layers.normalization",
    "BatchNorm3d": "layers.normalization",
    "Conv": "layers.convolution",
    "Conv1d": "layers.convolution",
    "Conv2d": "layers.convolution",
    "Conv3d": "layers.convolution",
    "ConvTranspose": "layers.convolution",
    "ConvTranspose1d": "layers.convolution",
    "ConvTranspose2d": "layers.convolution",
    "ConvTranspose3d": "layers.convolution",
    "Dropout": "layers.simple",
    "Dropout1d": "layers.simple",
    "Dropout2d": "layers.simple",
    "Dropout3d": "layers.simple",
    "Embedding": "layers.linear",
    "Flatten": "layers.simple",
    "GRU": "layers.recurrent",
    "GlobalAvgPool": "layers.simple",
    "GroupNorm": "layers.normalization",
    "Identity": "layers.simple",
    "InstanceNorm": "layers.normalization",
    "InstanceNorm1d": "layers.normalization",
    "InstanceNorm2d": "layers.normalization",
    "InstanceNorm3d": "layers.normalization",
    "KeyValueCache": "layers.attention",
    "LSTM": "layers.recurrent",
    "LayerNorm": "layers.normalization",
    "Linear": "layers.linear",
    "MaxPool": "layers.simple",
    "MaxPool1d": "layers.simple",
    "MaxPool2d": "layers.simple",
    "MaxPool3d": "layers.simple",
    "MoE": "layers.experts",
    "Module": "layers.module",
    "MultiHeadAttention": "layers.attention",
    "RMSNorm": "layers.normalization",
    "RNN": "layers.recurrent",
    "Sequential": "layers.simple",
    "Upsample": "layers.simple",
    "stack": "stacking",
    "summary": "table",
}
"""The names that are imported on first use, with the module of `hybridflow.nn` that each is in."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "init"})
