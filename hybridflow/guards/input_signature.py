"""`input_signature`: specs that the arguments of a compiled function must fit; they may leave sizes open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.dtypes import kind_of
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, HybridflowError
from hybridflow.core.spec import SizeName, TensorSpec, example_size, format_spec, is_open_size
from hybridflow.core.tensor import Tensor, as_tensor, asarray, describe, make_tensor, new_tensor, tensors_in, to_numpy
from hybridflow.core.variable import Variable
from hybridflow.guards.arguments import Parameters
from hybridflow.guards.dynamic import ANY, Pattern, with_patterns
from hybridflow.guards.signature import LEAF, Signature

_KINDS = ("bool", "uint", "int", "float", "complex")
"""The kinds of dtypes, in the order of safe casts: each can be cast to those after it."""


_STRUCTURES = 64
"""The open sizes are cached for at most this many structures of arguments."""


class InputSignature:
    """Specs for the first parameters of a function.

    Args:
        specs: one structure of `TensorSpec` per parameter.
        parameters: the function's parameters.
        name: the function's name, for messages.
    """

    def __init__(self, specs: Sequence[Any], parameters: Parameters, name: str) -> None:
        self._name = name
        self._given = tuple(specs)
        names = parameters.names
        if len(self._given) > len(names):
            raise ArgumentError(
                f"compile: input_signature has {len(self._given)} entries, {name} takes {len(names)} arguments",
                got=f"{name}{parameters.text}", hint="Give one structure of TensorSpec per argument."
            )
        self._parts: dict[str, tuple[list[TensorSpec], Any]] = {}
        self._patterns: dict[Any, dict[int, Pattern]] = {}
        for parameter, structure in zip(names, self._given, strict=False):
            leaves, tree = jax.tree_util.tree_flatten(structure)
            for leaf in leaves:
                if not isinstance(leaf, TensorSpec):
                    raise ArgumentTypeError(
                        f"compile: input_signature has {leaf!r} for {parameter!r}, which is no TensorSpec",
                        hint="Give a structure of hf.TensorSpec, such as [hf.TensorSpec([None, 3])]."
                    )
            self._parts[parameter] = (leaves, tree)
        every = [size for leaves, _ in self._parts.values() for spec in leaves for size in spec.shape]
        self._has_names = any([type(size) is SizeName for size in every])

    @classmethod
    def of(cls, specs: Sequence[Any] | None, parameters: Parameters, name: str) -> InputSignature | None:
        """Return the option of `hf.compile` as an `InputSignature`; None if it was not given."""
        return None if specs is None else cls(specs, parameters, name)

    @property
    def specs(self) -> tuple[Any, ...]:
        """The specs, as they were given."""
        return self._given

    @property
    def parameters(self) -> Iterable[str]:
        """The names of the arguments that there are specs for."""
        return self._parts

    def cast(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments as tensors of the specs' dtypes.

        Raises:
            ArgumentTypeError: an argument has another structure, rank, size or dtype than its spec.
        """
        result = dict(arguments)
        for parameter, (specs, tree) in self._parts.items():
            if parameter not in arguments:
                continue  # a wrapper may do without it
            value = arguments[parameter]
            if tree == LEAF and type(value) is Tensor and _fits(value, specs[0]):
                continue
            try:
                parts = tree.flatten_up_to(value)
            except ValueError:
                raise ArgumentTypeError(
                    f"{self._name}: argument {parameter!r} has another structure than its input_signature",
                    got=f"{_shown(value)}, the signature is {jax.tree_util.tree_unflatten(tree, specs)}",
                    hint="Pass the structure of the signature."
                ) from None
            leaves = [
                self._leaf(parameter, path, part, spec)
                for part, spec, path in zip(parts, specs, _paths(tree), strict=True)
            ]
            result[parameter] = jax.tree_util.tree_unflatten(tree, leaves)
        if self._has_names:
            self._require_one_size_each(result)
        return result

    def _require_one_size_each(self, arguments: dict[str, Any]) -> None:
        """Raise if a name stands for two different sizes."""
        sizes: dict[str, tuple[int, str]] = {}
        for parameter, (specs, tree) in self._parts.items():
            if parameter not in arguments:
                continue
            for value, spec, path in zip(tree.flatten_up_to(arguments[parameter]), specs, _paths(tree), strict=True):
                for own, size in zip(value.shape, spec.shape, strict=True):
                    if type(size) is not SizeName:
                        continue
                    first, where = sizes.setdefault(size, (own, parameter + path))
                    if own != first:
                        raise ArgumentTypeError(
                            f"{self._name}: the size {str(size)!r} is {first} in {where} and {own} in "
                            f"{parameter + path}", hint="Pass tensors of the same size where a name stands."
                        )

    def _leaf(self, parameter: str, path: str, value: Any, spec: TensorSpec) -> Tensor:
        try:
            tensor = _as_spec(value, spec)
        except (HybridflowError, TypeError, ValueError) as error:
            raise self._wrong(parameter + path, value, spec, f"\n  {error}") from error
        if not _fits(tensor, spec):
            raise self._wrong(parameter + path, value, spec, "")
        return tensor

    def _wrong(self, path: str, value: Any, spec: TensorSpec, more: str) -> ArgumentTypeError:
        return ArgumentTypeError(
            f"{self._name}: argument {path!r} is {_shown(value)}, its input_signature is {spec}{more}",
            hint="Pass a tensor of that dtype and rank, or compile without input_signature."
        )

    def pattern(self, signature: Signature) -> Signature:
        """Return a call's signature with the open sizes of the specs in its key."""
        structure = signature.key[0], signature.tree
        patterns = self._patterns.get(structure)
        if patterns is None:
            if len(self._patterns) >= _STRUCTURES:
                self._patterns.clear()
            patterns = self._patterns[structure] = self._patterns_of(signature)
        return with_patterns(signature, patterns) if patterns else signature

    def _patterns_of(self, signature: Signature) -> dict[int, Pattern]:
        patterns: dict[int, Pattern] = {}
        position = 0
        for name, tree in zip(signature.key[0], signature.tree, strict=True):
            count = 1 if tree is None else tree.num_leaves
            if name in self._parts:
                for offset, spec in enumerate(self._parts[name][0]):
                    if any(map(is_open_size, spec.shape)):
                        patterns[position + offset] = tuple([ANY if size is None else size for size in spec.shape])
            position += count
        return patterns

    def examples(self) -> list[Any]:
        """Return arguments that fit the specs. Every open size becomes a number that occurs nowhere in the specs."""
        sizes = {size for leaves, _ in self._parts.values() for spec in leaves for size in spec.shape}
        size = next(one for one in (5, 7, 11, 13, 17, 19, *range(23, 1 << 20)) if one not in sizes)
        examples: list[Any] = []
        for specs, tree in self._parts.values():
            tensors: list[Tensor] = []
            for spec in specs:
                shape = tuple([example_size(one, size) for one in spec.shape])
                tensors.append(make_tensor(np.broadcast_to(np.zeros((), spec.dtype), shape)))
            examples.append(jax.tree_util.tree_unflatten(tree, tensors))
        return examples


def _fits(tensor: Tensor, spec: TensorSpec) -> bool:
    shape, expected = tensor.shape, spec.shape
    if tensor.dtype != spec.dtype or len(shape) != len(expected):
        return False
    return shape == expected or all(
        b is None or (b.allows(a) if type(b) is SizeName else a == b) for a, b in zip(shape, expected, strict=True)
    )


def _as_spec(value: Any, spec: TensorSpec) -> Tensor:
    """Return a value as a tensor. Cast lists and arrays to the spec's dtype if its kind can hold theirs."""
    if isinstance(value, Tensor | Variable):
        return as_tensor(value)
    if tensors_in(value):
        return asarray(value, dtype=spec.dtype)
    array = to_numpy(value, None if hasattr(value, "dtype") else spec.dtype)
    if array.dtype != spec.dtype and _KINDS.index(kind_of(array.dtype)) <= _KINDS.index(kind_of(spec.dtype)):
        with np.errstate(all="ignore"):
            array = array.astype(spec.dtype)
    return new_tensor(array)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        try:
            array = to_numpy(value, None)
        except (HybridflowError, TypeError, ValueError):
            return describe(value)
        return f"{type(value).__name__} {format_spec(array.shape, array.dtype)}"
    return describe(value)


def _paths(tree: Any) -> list[str]:
    filled = jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(filled)[0]]


class ConcreteFunction:
    """A compiled function for arguments of given specs; made by `CompiledFunction.concrete`.

    Attributes:
        input_signature: the specs.
        graph: the graph that it runs, after all passes.
    """

    def __init__(self, name: str, inputs: InputSignature, run: Callable[..., Any], graph: Any) -> None:
        self._name = name
        self._run = run
        self.input_signature = inputs.specs
        self.graph = graph

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with arguments that fit the specs."""
        return self._run(args, kwargs)

    def __repr__(self) -> str:
        return f"<ConcreteFunction {self._name}({', '.join(str(cast(object, one)) for one in self.input_signature)})>"
