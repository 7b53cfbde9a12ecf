"""The structure of arguments and results as JSON: lists, tuples and dicts of numbered leaves; and their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from hybridflow.core.errors import ArgumentTypeError, DTypeError, FileFormatError, ShapeError
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.saving.format import shown

_DEEPEST = 50
"""The largest nesting depth of a structure that is read."""


def structure_of(value: Any, leaves: list[tuple[str, Any]], path: str = "", *, what: str) -> Any:
    """Return the structure of a value, with each leaf replaced by its index in `leaves`.

    Args:
        value: lists, tuples and dicts with str keys, and leaves.
        leaves: the list that the leaves are added to, each with its path.
        path: the path of the value.
        what: what the value is, for error messages.

    Raises:
        ArgumentTypeError: the value has containers or keys that JSON cannot express.
    """
    if value is None:
        return None
    if type(value) in (list, tuple):
        items = cast("list[Any]", value)
        parts = [
            structure_of(one, leaves, f"{path}_{number}" if path else str(number), what=what)
            for number, one in enumerate(items)
        ]
        return {"tuple" if type(value) is tuple else "list": parts}
    if type(value) is dict:
        mapping = cast("dict[Any, Any]", value)
        if not all([isinstance(key, str) for key in mapping]):
            raise ArgumentTypeError(f"export: a mapping in {what} has a key that is no text", got=repr([*mapping])[:80],
                                    hint="A file has texts as keys only.")
        made = {
            key: structure_of(mapping[key], leaves, f"{path}_{key}" if path else key, what=what)
            for key in sorted(mapping)  # the order of jax's leaves
        }
        return {"dict": [[key, made[key]] for key in mapping]}
    if isinstance(value, list | tuple | Mapping):
        raise ArgumentTypeError(f"export: {what} has a {type(value).__name__}, a class that only this program has",
                                hint="Use lists, tuples and dicts.")
    leaves.append((path, value))
    return len(leaves) - 1


def filled(structure: Any, leaves: list[Any]) -> Any:
    """Return a structure with its indices replaced by the leaves."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    ((kind, items),) = structure.items()
    if kind == "dict":
        return {key: filled(one, leaves) for key, one in items}
    filled_items = [filled(one, leaves) for one in items]
    return tuple(filled_items) if kind == "tuple" else filled_items


def taken_apart(structure: Any, value: Any, path: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the leaves of a value that has a given structure, each with its index.

    Args:
        structure: the structure.
        value: the value.
        path: the value's name in error messages.
        name: the function whose argument it is.

    Raises:
        ArgumentTypeError: the value has another structure.
    """
    if isinstance(structure, int):
        yield structure, value
        return
    kind, items = ("None", []) if structure is None else next(iter(structure.items()))
    items_by_key: dict[Any, Any] = dict(items if kind == "dict" else enumerate(items))
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list | tuple) else ()
    if not isinstance(value, _TYPES[kind]) or {*keys} != {*items_by_key}:
        raise ArgumentTypeError(f"{name}: {path} is a {type(value).__name__}, and was {described(structure)}",
                                got=repr(value)[:80])
    for key, one in items_by_key.items():
        yield from taken_apart(one, cast(Any, value)[key], f"{path}[{key!r}]", name)


_TYPES: dict[str, type] = {"None": type(None), "dict": dict, "tuple": tuple, "list": list}


def described(structure: Any) -> str:
    """Describe a structure for an error message."""
    if structure is None or isinstance(structure, int):
        return "None" if structure is None else "a tensor"
    ((kind, items),) = structure.items()
    if kind == "dict":
        return f"a dict of {', '.join([key for key, _ in items])}"[:200]
    return f"a {kind} of {len(items)}"


def checked(structure: Any, count: int) -> Any:
    """Check a structure that was read from a file, and return it.

    Raises:
        FileFormatError: it is not a structure, or its leaves are not numbered from 0 to `count` - 1.
    """
    numbers: list[int] = []

    def check(one: Any, depth: int) -> None:
        if depth > _DEEPEST:
            raise FileFormatError(f"a structure is deeper than {_DEEPEST}")
        if one is None:
            return
        if type(one) is int:
            numbers.append(one)
            return
        if not isinstance(one, dict) or len(cast("dict[str, Any]", one)) != 1:
            raise FileFormatError(f"a structure is none of list, tuple, dict and leaf: {shown(one)}")
        ((kind, items),) = cast("dict[str, Any]", one).items()
        if kind not in ("list", "tuple", "dict") or not isinstance(items, list):
            raise FileFormatError(f"a structure is none of list, tuple, dict and leaf: {shown(one)}")
        if kind == "dict":
            keys = [key for key, _ in cast("list[tuple[Any, Any]]", items)]
            if not all([isinstance(key, str) for key in keys]) or len({*keys}) != len(keys):
                raise FileFormatError(f"a structure has a key twice, or one that is no text: {shown(keys)}")
            items = [item for _, item in cast("list[tuple[Any, Any]]", items)]
        for item in cast("list[Any]", items):
            check(item, depth + 1)

    check(structure, 0)
    if sorted(numbers) != [*range(count)]:
        raise FileFormatError(f"a structure has other leaves than {count} in order")
    return structure


def fitting(name: str, path: str, value: Any, spec: TensorSpec) -> Tensor:
    """Return an argument as a tensor, and raise unless it has the shape and dtype of the graph's input."""
    tensor = as_tensor(value) if hasattr(value, "dtype") else asarray(value, dtype=spec.dtype)
    if tensor.dtype != spec.dtype:
        raise DTypeError(f"{name}: {path} is {tensor.dtype}, not {spec.dtype}", got=str(tensor.spec),
                         hint=f"Cast it with .astype(hf.{spec.dtype}).")
    fits = tensor.ndim == spec.ndim and all([
        type(size) is not int or own == size for own, size in zip(tensor.shape, spec.shape, strict=True)
    ])
    if not fits:
        raise ShapeError(f"{name}: {path} is {tensor.spec}, not {spec}", hint="Letters are sizes left open.")
    return tensor
