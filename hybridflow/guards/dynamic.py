"""Open sizes: which dimensions of the arguments may differ between calls of one trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from hybridflow.core.dims import DimScope
from hybridflow.core.errors import ArgumentError
from hybridflow.core.spec import SizeName, TensorSpec, make_spec
from hybridflow.guards.signature import TENSOR, Leaf, Signature

Dynamic = Literal["auto"] | bool
Sizes = Literal["auto", "exact", "bounded"]
ANY = -1
"""In a pattern: a size that `input_signature` leaves open, which may be any size."""
Pattern = tuple[int | SizeName | None, ...]
"""A shape in a key. None is a size that was seen to differ; it is at least 2, as 0 and 1 have traces of their own.

A name may be any size, the same wherever it occurs.
"""
_FORGET = 256
"""The sizes seen are remembered for at most this many kinds of calls."""
_GIVE_UP = 8
"""With ``"auto"``: the number of failed traces with open sizes after which exact traces are made again."""


def check_dynamic(dynamic: Any) -> Dynamic:
    """Return the option if it is valid.

    Raises:
        ArgumentError: it is none of the choices.
    """
    if dynamic is True or dynamic is False or dynamic == "auto":
        return dynamic
    raise ArgumentError(f"compile: dynamic={dynamic!r} is not a choice", hint="Choose 'auto', True or False.")


def check_sizes(sizes: Any) -> Sizes:
    """Return the option if it is valid.

    Raises:
        ArgumentError: it is none of the choices.
    """
    if sizes in get_args(Sizes):
        return sizes
    raise ArgumentError(f"compile: sizes={sizes!r} is not a choice", hint="Choose 'auto', 'exact' or 'bounded'.")


def with_patterns(signature: Signature, patterns: Mapping[int, Pattern]) -> Signature:
    """Return a signature with patterns as the shapes, in its key, of the leaves at some positions."""
    leaves = list(signature.leaves)
    for position, pattern in patterns.items():
        path, kind, value, key = leaves[position]
        leaves[position] = Leaf(path, kind, value, (TENSOR, pattern, *key[2:]))
    names, trees, _ = signature.key
    return signature._replace(leaves=leaves, key=(names, trees, tuple([leaf[3] for leaf in leaves])))


def is_open(leaf: Leaf) -> bool:
    """Whether some sizes of a tensor are open in its key."""
    return leaf.kind == TENSOR and any(map(_is_open, leaf.key[1]))


def _is_open(entry: Any) -> bool:
    return entry is None or entry == ANY or type(entry) is SizeName


def symbolic_specs(named: list[Leaf], scope: DimScope) -> list[TensorSpec | None]:
    """Return each tensor's spec with a symbol for every open size; None for other leaves.

    Symbols are named after their argument and axis, and have this call's sizes as hints.
    """
    tensors = [leaf for leaf in named if leaf.kind == TENSOR]
    entries = [entry for leaf in tensors for entry in leaf.key[1] if entry is not None]
    scope.least = 0 if any(map(_is_open, entries)) else 2
    for leaf in tensors:
        for size, entry in zip(leaf.value.spec.shape, leaf.key[1], strict=True):
            if type(entry) is SizeName:
                scope.named(entry, size, entry.max)
    specs: list[TensorSpec | None] = []
    for leaf in named:
        if leaf.kind != TENSOR:
            specs.append(None)
            continue
        spec = leaf.value.spec
        if is_open(leaf):
            shape = [
                _symbol(scope, leaf.path, axis, size, entry) if _is_open(entry) else size
                for axis, (size, entry) in enumerate(zip(spec.shape, leaf.key[1], strict=True))
            ]
            spec = make_spec(tuple(shape), spec.dtype)
        specs.append(spec)
    return specs


def _symbol(scope: DimScope, path: str, axis: int, size: int, entry: Any) -> Any:
    if type(entry) is SizeName:
        return scope.named(entry, size)
    return scope.fresh(f"{path}_{axis}", size)


def sizes_of(signature: Signature, entries: Mapping[tuple[int, int], str]) -> dict[str, int]:
    """Return the size of each symbol in a call; `entries` maps a leaf and an axis to the symbol's name."""
    return {name: signature.leaves[leaf].value.shape[axis] for (leaf, axis), name in entries.items()}


def symbol_axes(named: list[Leaf], specs: list[TensorSpec | None]) -> dict[tuple[int, int], str]:
    """Return the name of each symbol by its leaf and axis; leaves are numbered as in `Signature.leaves`."""
    entries: dict[tuple[int, int], str] = {}
    position = 0
    for leaf, spec in zip(named, specs, strict=True):
        if leaf.kind == "nothing":
            continue
        if spec is not None and is_open(leaf):
            entries.update({
                (position, axis): str(spec.shape[axis])
                for axis, entry in enumerate(leaf.key[1])
                if _is_open(entry)
            })
        position += 1
    return entries


class SeenShapes:
    """The shapes that a function was called with, and the patterns derived from them."""

    def __init__(self, dynamic: Dynamic) -> None:
        self._dynamic = dynamic
        self._seen: dict[Any, dict[int, Pattern]] = {}
        self._patterns: dict[Any, list[dict[int, Pattern]]] = {}
        self._failures: dict[Any, int] = {}

    def candidates(self, signature: Signature) -> Iterator[Signature]:
        """Yield the signature with each pattern it matches in its key, patterns with the fewest open sizes first."""
        if not self._patterns:
            return
        for patterns in self._patterns.get(_ranks(signature), ()):
            shapes = [(signature.leaves[i].key[1], pattern) for i, pattern in patterns.items()]
            if all(_matches(shape, pattern) for shape, pattern in shapes) and _agree(shapes):
                yield with_patterns(signature, patterns)

    def to_trace(self, signature: Signature) -> Signature:
        """Return the signature for tracing a call that fits no trace: sizes that differ from earlier calls are open.

        Dimensions of size 0 and 1 are not opened.
        """
        if self._dynamic is False or any(map(is_open, signature.leaves)):
            return signature
        key = _ranks(signature)
        shapes: dict[int, Pattern] = {
            i: leaf.key[1] for i, leaf in enumerate(signature.leaves) if leaf.kind == TENSOR and leaf.key[1]
        }
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _FORGET:
                oldest = next(iter(self._seen))
                for known in (self._seen, self._patterns, self._failures):
                    known.pop(oldest, None)
            self._seen[key] = shapes
            return signature
        merged = {i: _merged(seen[i], shape) for i, shape in shapes.items()}
        self._seen[key] = merged
        if self._dynamic == "auto" and self._failures.get(key, 0) >= _GIVE_UP:
            return signature
        opened = {i: _kept_where_small(pattern, shapes[i]) for i, pattern in merged.items()}
        opened = {i: pattern for i, pattern in opened.items() if None in pattern}
        if not opened:
            return signature
        if opened in self._patterns.get(key, ()):
            self._failures[key] = self._failures.get(key, 0) + 1
        else:
            self.add(signature, opened)
        return with_patterns(signature, opened)

    def add(self, signature: Signature, patterns: dict[int, Pattern]) -> None:
        """Add patterns, so that later calls that match them find the traces made with them."""
        same_ranks = self._patterns.setdefault(_ranks(signature), [])
        if patterns not in same_ranks:
            same_ranks.append(patterns)
            same_ranks.sort(key=lambda one: sum(_is_open(entry) for pattern in one.values() for entry in pattern))

    def clear(self) -> None:
        """Forget everything."""
        for known in (self._seen, self._patterns, self._failures):
            known.clear()


def _ranks(signature: Signature) -> Any:
    """Return the signature's key with each shape replaced by its number of dimensions."""
    names, trees, keys = signature.key
    ranks = tuple([(TENSOR, len(key[1]), *key[2:]) if key[0] == TENSOR else key for key in keys])
    return names, trees, ranks


def _matches(shape: tuple[int, ...], pattern: Pattern) -> bool:
    for size, entry in zip(shape, pattern, strict=True):
        if entry is None:
            if size < 2:
                return False
        elif type(entry) is SizeName:
            if not entry.allows(size):
                return False
        elif entry != ANY and entry != size:
            return False
    return True


def _agree(shapes: list[tuple[tuple[int, ...], Pattern]]) -> bool:
    """Whether each name has the same size in all shapes."""
    size_of: dict[str, int] = {}
    return all([
        size_of.setdefault(entry, size) == size
        for shape, pattern in shapes
        for size, entry in zip(shape, pattern, strict=True)
        if type(entry) is SizeName
    ])


def _merged(seen: Pattern, shape: Pattern) -> Pattern:
    return tuple([a if a == b else None for a, b in zip(seen, shape, strict=True)])


def _kept_where_small(pattern: Pattern, shape: Pattern) -> Pattern:
    return tuple([size if size in (0, 1) else entry for entry, size in zip(pattern, shape, strict=True)])
