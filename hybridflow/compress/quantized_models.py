"""Quantized copies of models: `weights`, `dynamic` and `static`."""

from __future__ import annotations

from typing import Any

from hybridflow.compress.batch_norm import fuse_batch_norm
from hybridflow.compress.calibration import ranges_of
from hybridflow.compress.layers import is_product, is_storable, quantized
from hybridflow.compress.replacing import Patterns, batches_of, copied, layers_of, modules_of, require_module
from hybridflow.compress.scales import input_scale, require_format
from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.nn.layers.module import Module


def require_bits(what: str, bits: Any) -> None:
    """Raise unless int8 weights are to use 8 or 7 bits."""
    if bits not in (7, 8):
        raise ArgumentError(f"{what}: bits={bits!r} is neither 8 nor 7",
                            hint="7 is for processors that add up in 16 bits.")


def chosen(what: str, model: Any, match: Patterns, skip: Patterns) -> dict[str, Any]:
    """Return the layers of a model that have a quantized form and that the patterns select, by path."""
    require_module(what, model)
    layers = layers_of(what, model, is_storable, match, skip)
    if not layers:
        raise ArgumentError(f"{what}: the model has no Linear, Conv or Embedding that is left",
                            got=type(model).__name__)
    return layers


@with_foreign_keywords
def weights(
    model: Module, dtype: str = "int8", *, group: int | None = None, match: Patterns = "*", skip: Patterns = ()
) -> Any:
    """Return a copy of a model whose weights are stored as small numbers and become floats where they are multiplied.

    This needs no data, hardly changes the results in int8, and makes products of few rows faster where reading the
    weights takes the time, as on accelerators.

    Args:
        model: the module; each `Linear`, `Conv` and `Embedding` is a layer that can be quantized.
        dtype: ``"int8"``, ``"int4"`` (two in a byte), ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
        group: how many neighbouring weights of a row have a scale in common; all if not given. int4 needs 32 to 128.
        match, skip: a pattern, or several, of the dotted paths of layers that are quantized and that are not.

    Returns:
        A new model, in evaluation mode, with `QuantizedLinear` and its like as layers.

    Raises:
        ArgumentError: an unknown format, a pattern that matches nothing, or a layer without sizes.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(64, 32), hf.nn.relu, hf.nn.Linear(32, 10))
        >>> hf.quantize.weights(model, "int4", group=32, skip="2")
        Sequential(
          (0): QuantizedLinear(64, 32, int4, group=32)
          (1): relu
          (2): Linear(32, 10)
        )
    """
    require_format("weights", dtype, group)
    layers = chosen("weights", model, match, skip)
    quantized_copy = copied(model).eval()
    modules = modules_of(quantized_copy)
    return copied(quantized_copy, {path: quantized(modules[path], dtype, group=group) for path in layers}).eval()


@with_foreign_keywords
def dynamic(model: Module, *, bits: int = 8, match: Patterns = "*", skip: Patterns = ()) -> Any:
    """Return a copy of a model that multiplies in int8, with scales of the inputs from their own range at each call.

    It needs no data. The range is that of the whole input, so the result for an example depends a little on the batch
    that it is in. On CPUs, XLA can be slower with it than with floats; ONNX Runtime is faster, see `hf.export.onnx`.

    Args:
        model: the module.
        bits: 8; or 7, so that processors without VNNI, which add two products in 16 bits, do not saturate.
        match, skip: as for `weights`.

    Returns:
        A new model, in evaluation mode; embeddings have stored weights only.

    Raises:
        ArgumentError: a pattern that matches nothing, or a layer without sizes.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantize.dynamic(hf.nn.Sequential(hf.nn.Linear(64, 32), hf.nn.relu))
        Sequential(
          (0): QuantizedLinear(64, 32, int8, dynamic)
          (1): relu
        )
    """
    require_bits("dynamic", bits)
    found = chosen("dynamic", model, match, skip)
    quantized_copy = copied(model).eval()
    modules = modules_of(quantized_copy)
    layers = {
        path: quantized(modules[path], inputs="dynamic" if is_product(modules[path]) else "float", bits=bits)
        for path in found
    }
    return copied(quantized_copy, layers).eval()


@with_foreign_keywords
def static(
    model: Module, batches: Any, *, method: str = "minmax", percentile: float = 99.99, bits: int = 8,
    match: Patterns = "*", skip: Patterns = (),
) -> Any:
    """Return a copy of a model that multiplies in int8, with scales of the inputs found on batches.

    Batch normalisation that follows a product is merged into it first; see `fuse_batch_norm`.

    Args:
        model: the module.
        batches: an array that the model is called with; or an iterable of such, or of tuples of arguments. A few
            hundred examples are enough.
        method: how the range of a layer's input is found. ``"minmax"`` takes all elements, ``"percentile"`` leaves out
            the outermost ones, ``"entropy"`` takes the range that loses the least information.
        percentile: for ``"percentile"``: the percentage of elements that are inside, at each end.
        bits, match, skip: as for `dynamic`.

    Returns:
        A new model, in evaluation mode. In ONNX it has the QDQ form.

    Raises:
        ArgumentError: no batches, a layer that they do not reach, an unknown method, or a pattern that matches nothing.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(64, 32), hf.nn.relu)
        >>> hf.quantize.static(model, hf.random.normal((100, 64)), method="entropy")
        Sequential(
          (0): QuantizedLinear(64, 32, int8, static)
          (1): relu
        )

    Reference:
        Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
        2018; Migacz, "8-bit inference with TensorRT", 2017, for ``"entropy"``.
    """
    require_bits("static", bits)
    found = chosen("static", model, match, skip)
    given = batches_of("static", batches)
    fused = fuse_batch_norm(model, *given[0])
    modules = modules_of(fused)
    products = [path for path in found if is_product(modules[path])]
    ranges = ranges_of("static", fused, products, given, method=method, percentile=percentile)
    layers = {
        path: quantized(modules[path], inputs="static", range=input_scale(*ranges[path]), bits=bits)
        if path in ranges else quantized(modules[path])
        for path in found
    }
    return copied(fused, layers).eval()
