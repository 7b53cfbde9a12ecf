"""A placeholder for a missing gradient, inside a gradient that is traced before anyone asks for it.

The gradient of a branch or loop is traced in advance, to find the values that it needs. If an operation inside has no
gradient, such as a loop of unknown length, only those who ask for a gradient through it should get the error.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import GradientError
from hybridflow.core.op import No, Op, Stops, register
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor
from hybridflow.ir.graph import Graph, graphs_of

_PREPARING: ContextVar[bool] = ContextVar("preparing a gradient", default=False)


@contextmanager
def preparing() -> Generator[None]:
    """Trace a gradient that nobody has asked for yet."""
    token = _PREPARING.set(True)
    try:
        yield
    finally:
        _PREPARING.reset(token)


def no_gradient(x: Tensor, text: str) -> Tensor:
    """Return a placeholder for a missing gradient of a tensor, inside `preparing`.

    Raises:
        GradientError: outside `preparing`, when the gradient is really asked for.
    """
    if not _PREPARING.get():
        raise GradientError(text)
    return bind(NO_GRADIENT, (x,), {"text": text})


def require_gradients(graph: Graph) -> None:
    """Raise if a graph of gradients contains a missing one.

    Raises:
        GradientError: if it does.
    """
    for one in graphs_of(graph):
        for node in one.nodes:
            if node.op is NO_GRADIENT:
                raise GradientError(node.attrs["text"])


def _infer(x: TensorSpec, text: str) -> TensorSpec:
    del text
    return x


def _lower(x: Any, text: str) -> Any:
    del x
    raise GradientError(text)


_TESTED = No("made by gradients of loops; tested in tests/test_unbounded_loops.py")
NO_GRADIENT = register(
    Op("no_gradient", No("there is none"), _lower, _infer, Stops("there is none"), samples=_TESTED,
       onnx=No("there is none"))
)
