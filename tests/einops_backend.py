"""A plugin of pytest: einops' tests get a backend for hybridflow, in the form of einops' own ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from einops import _backends

import hybridflow as hf


class HybridflowBackend(_backends.AbstractBackend):
    """What einops asks of a package; the rest it takes from tensors' own methods."""

    framework_name = "hybridflow"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, hf.Tensor)

    def from_numpy(self, x: Any) -> Any:
        return hf.tensor(x, requires_grad=x.dtype.kind == "f")

    def to_numpy(self, x: Any) -> Any:
        return np.asarray(x)

    def arange(self, start: int, stop: int) -> Any:
        return hf.arange(start, stop)

    def transpose(self, x: Any, axes: Any) -> Any:
        return hf.permute_dims(x, axes)

    def reduce(self, x: Any, operation: str, axes: Any) -> Any:
        return getattr(hf, operation)(x, axis=tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: Any) -> Any:
        return hf.stack(tensors)

    def concat(self, tensors: Any, axis: int) -> Any:
        return hf.concat(tensors, axis=axis)

    def is_float_type(self, x: Any) -> bool:
        return hf.isdtype(x.dtype, "real floating")

    def add_axis(self, x: Any, new_position: int) -> Any:
        return hf.expand_dims(x, axis=new_position)

    def tile(self, x: Any, repeats: Any) -> Any:
        return hf.tile(x, tuple(repeats))

    def einsum(self, pattern: str, *x: Any) -> Any:
        return hf.einsum(pattern, *x)


REPLACED = _backends.CupyBackend
"""einops' tests run a fixed list of backends: this one takes the place of CuPy's, which stays known by its name."""
_backends.CupyBackend = HybridflowBackend
