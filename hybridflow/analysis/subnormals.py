"""Where a program computes with subnormal numbers, which XLA:CPU takes for 0 and NumPy keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.core.context import context_of
from hybridflow.core.device import device
from hybridflow.core.dtypes import as_dtype, kind_of
from hybridflow.core.node import Node, where_file_line
from hybridflow.ir.evaluate import evaluate, run_eagerly
from hybridflow.ir.graph import Graph


def has_subnormals(value: Any) -> bool:
    """Whether a value holds a number that is not 0, but smaller than the smallest normal one of its dtype."""
    array: np.ndarray[Any, Any] = np.asarray(value)
    kind = kind_of(as_dtype(array.dtype))
    if kind == "complex":
        return has_subnormals(np.real(array)) or has_subnormals(np.imag(array))
    if kind != "float":
        return False
    return bool(np.any((array != 0) & (np.abs(array) < jnp.finfo(array.dtype).tiny)))


def first_subnormal(graph: Graph, inputs: Sequence[Any]) -> str:
    """Run a graph eagerly on the host, and return a text on the first subnormal number; empty if there is none.

    Branches and loops count as one operation each: nothing inside them is looked at.
    """
    sentences: list[str] = []

    def run(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        outputs = run_eagerly(node, values, attrs)
        if not sentences:
            several = outputs if isinstance(outputs, tuple | list) else (outputs,)
            what = "takes" if any(map(has_subnormals, values)) else "gives"
            if what == "takes" or any(map(has_subnormals, several)):
                place = where_file_line(node.where)
                at = "" if place is None else f" at {place[0]}:{place[1]}"
                sentences.append(f"{node.op.name}{at} {what} numbers that compiled code takes for 0: subnormal ones")
        return outputs

    with context_of(None), device("cpu"), np.errstate(all="ignore"):
        evaluate(graph, [np.asarray(value) for value in inputs], run)
    return sentences[0] if sentences else ""
