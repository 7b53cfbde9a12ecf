"""Merging batch normalisation into the layer before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.compress.layers import is_product, is_storable
from hybridflow.compress.replacing import copied, in_evaluation, modules_of, require_module
from hybridflow.core.node import Edge, Node
from hybridflow.core.variable import Variable
from hybridflow.ir.graph import Graph
from hybridflow.nn.layers.linear import parameter
from hybridflow.nn.layers.normalization import BatchNorm
from hybridflow.nn.layers.simple import Identity
from hybridflow.ops.arithmetic import add
from hybridflow.ops.nn.channels import batch_norm
from hybridflow.ops.nn.convolution import conv
from hybridflow.ops.nn.dense import linear
from hybridflow.tracing.compile import compile as compiled


def fuse_batch_norm(model: Any, *args: Any) -> Any:
    """Return a copy of a model, in evaluation mode, without the batch normalisations that follow a product.

    A convolution or linear layer whose result goes into a `BatchNorm` and nowhere else takes over its scale and shift.
    Which layer reads which result is taken from the model's graph. The copy gives the same results up to rounding.

    Args:
        model: the module.
        args: what it is called with: arrays, or `hf.TensorSpec`.

    Returns:
        The copy. In place of each such normalisation there is an `Identity`.

    Raises:
        ArgumentTypeError: the model is no module.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(3, 4), hf.nn.BatchNorm(4)).eval()
        >>> hf.quantize.fuse_batch_norm(model, hf.ones((2, 3)))
        Sequential(
          (0): Linear(3, 4)
          (1): Identity()
        )

    Reference:
        Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
        2018, section 3.2.
    """
    require_module("fuse_batch_norm", model)
    fused = in_evaluation(model)
    modules = modules_of(fused)
    if not any([isinstance(one, BatchNorm) for one in modules.values()]):
        return fused
    owners = {id(getattr(one, "weight", None)): one for one in modules.values() if is_product(one) and is_storable(one)}
    norms = {id(one.running_mean): path for path, one in modules.items() if isinstance(one, BatchNorm)}
    graph = compiled(lambda *xs: fused(*xs)).graph(*args)
    replaced: dict[str, Any] = {}
    for norm, product in _pairs(graph):
        path, layer = norms.get(id(graph.captured.get(norm))), owners.get(id(graph.captured.get(product)))
        if path is not None and layer is not None:
            _take_over(layer, modules[path])
            replaced[path] = Identity()
    return copied(fused, replaced).eval()


def _pairs(graph: Graph) -> list[tuple[Node, Node]]:
    """Return the inputs with the mean of each normalisation and with the weight of the product that it follows."""
    uses: dict[Edge, int] = dict.fromkeys(graph.outputs, 1)
    weights: dict[Node, int] = {}
    for node in graph.nodes:
        for edge in node.inputs:
            if edge is not None:
                uses[edge] = uses.get(edge, 0) + 1
                weights[edge[0]] = weights.get(edge[0], 0) + 1
    pairs: list[tuple[Node, Node]] = []
    for node in graph.nodes:
        if node.op is not batch_norm.op or len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
            continue
        edge = node.inputs[0]
        if edge[0].op is add.op and uses[edge] == 1 and edge[0].inputs[0] is not None:  # the bias of a convolution
            edge = edge[0].inputs[0]
        product = edge[0]
        if product.op in (conv.op, linear.op) and uses[edge] == 1 and product.inputs[1] is not None:
            weight, mean = product.inputs[1][0], node.inputs[1][0]
            if weights[weight] == 1 and weights[mean] == 1:  # neither layer is used twice
                pairs.append((mean, weight))
    return pairs


def _take_over(layer: Any, norm: BatchNorm) -> None:
    """Give a layer the scale and shift of a normalisation."""
    factor = 1 / np.sqrt(norm.running_var.numpy().astype(np.float64) + norm.epsilon)
    if norm.weight is not None:
        factor = factor * norm.weight.numpy()
    weight = layer.weight.numpy()
    bias = 0.0 if layer.bias is None else layer.bias.numpy().astype(np.float64)
    shift = (bias - norm.running_mean.numpy()) * factor + (0.0 if norm.bias is None else norm.bias.numpy())
    layer.weight.assign((weight * factor.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype))
    if isinstance(layer.bias, Variable):
        layer.bias.assign(shift.astype(weight.dtype))
    else:
        layer.bias, layer.has_bias = parameter(shift.astype(weight.dtype), "bias"), True
