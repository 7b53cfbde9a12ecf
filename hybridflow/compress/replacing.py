"""Copies of models in which some layers are replaced, and the patterns that select layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import label, unsized
from hybridflow.nn.tree import found_in, named
from hybridflow.saving.values import require_eager

_MOST_LISTED = 8
"""How many paths a message lists."""

Patterns = str | Sequence[str]


def require_module(what: str, model: Any) -> None:
    """Raise unless a model is a module, and this code is not traced."""
    require_eager(what)
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"{what}: the model is a {type(model).__name__}, not a module", got=repr(model)[:80],
                                hint="Artifacts and functions are quantized by hf.export.quantize.")


def modules_of(model: Any) -> dict[str, Any]:
    """Return the modules in a model by path, each once."""
    return named(model, reads=False).modules


def layers_of(
    what: str, model: Any, fits: Callable[[Any], bool], match: Patterns, skip: Patterns = ()
) -> dict[str, Any]:
    """Return the layers of a kind that the patterns select, by path.

    Args:
        what: the name of the caller, for messages.
        model: the model.
        fits: whether a layer is of the kind.
        match: patterns of dotted paths; a layer has to match one.
        skip: patterns of paths that are left out.

    Raises:
        ArgumentError: a pattern that matches no such layer, or a layer whose sizes are not known yet.
    """
    candidates = {path: one for path, one in modules_of(model).items() if fits(one)}
    matching = _matching(what, candidates, match)
    skipped = _matching(what, candidates, skip)
    layers = {path: one for path, one in candidates.items() if path in matching and path not in skipped}
    for one in layers.values():
        require_sizes(what, one)
    return layers


def require_sizes(what: str, layer: Any) -> None:
    """Raise if a layer waits for its first call to learn its sizes.

    Raises:
        ArgumentError: it does.
    """
    if unsized(layer):
        raise ArgumentError(f"{what}: the size of {label(layer)} is not known yet", hint="Call the model once before.")


def _matching(what: str, known: Mapping[str, Any], patterns: Patterns) -> set[str]:
    matching: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        of_pattern = {path for path in known if fnmatchcase(path, pattern)}
        if not of_pattern:
            more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
            raise ArgumentError(f"{what}: no layer matches {pattern!r}",
                                got=", ".join([*known][:_MOST_LISTED]) + more or "a model without such layers",
                                hint="Paths are dotted, such as \"blocks.0.*\".")
        matching |= of_pattern
    return matching


def copied(model: Any, layers: Mapping[str, Any] | None = None) -> Any:
    """Return a deep copy of a model with other layers at some paths; these are not copied."""
    modules, layers = modules_of(model), layers or {}
    if "" in layers:
        return layers[""]
    memo: dict[int, Any] = {id(modules[path]): one for path, one in layers.items()}
    copy_of_model = copy.deepcopy(model, memo)
    modules_of(copy_of_model)
    return copy_of_model


def in_evaluation(model: Any) -> Any:
    """Return a copy of a model in evaluation mode."""
    return copied(model).eval()


def inputs_of(batch: Any) -> tuple[Any, ...]:
    """Return what a model is called with for a batch: an array alone, or the items of a tuple."""
    return batch if isinstance(batch, tuple) else (batch,)


def batches_of(what: str, batches: Any) -> list[tuple[Any, ...]]:
    """Return batches as tuples of arguments: of an iterable, or of one array or tensor, which is one batch.

    Raises:
        ArgumentError: there are none.
    """
    if hasattr(batches, "dtype") and hasattr(batches, "shape"):
        batches = [batches]
    arguments = [inputs_of(one) for one in batches]
    if not arguments:
        raise ArgumentError(f"{what}: there are no batches",
                            hint="Give an array, or an iterable of arrays or tuples of them.")
    return arguments


class Watched(Module):
    """A layer that passes its inputs and results to a function.

    Args:
        layer: the layer.
        tell: a function of the input and the result.
    """

    def __init__(self, layer: Any, tell: Callable[[Any, Any], None]) -> None:
        self.layer, self.tell = layer, tell

    def forward(self, x: Any) -> Any:
        """Return what the layer returns."""
        y = self.layer(x)
        self.tell(x, y)
        return y


def watched(model: Any, paths: Iterable[str], tell: Callable[[str], Callable[[Any, Any], None]]) -> Any:
    """Return a copy of a model in evaluation mode whose layers at some paths are watched."""
    copy_of_model = in_evaluation(model)
    modules = modules_of(copy_of_model)
    return copied(copy_of_model, {path: Watched(modules[path], tell(path)) for path in paths}).eval()


def with_weight(layer: Any, change: Callable[[Tensor], Tensor], *args: Any) -> Any:
    """Return what a layer gives with another weight, which is a function of its own weight."""
    contents = found_in(layer)
    leaves = [
        change(as_tensor(one)) if name == "weight" else one
        for name, one in zip(contents.plan.names, contents.leaves, strict=True)
    ]
    return contents.plan.made(leaves).forward(*args)
