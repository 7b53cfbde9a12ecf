"""`shard`: lay out the Variables of a model on a mesh, by a rule, by patterns, or as its layers say."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

from hybridflow.core import structures
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, LayoutError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.mesh import (
    Layout,
    Mesh,
    Placement,
    check_axes,
    check_fits,
    checked_layout,
    names_of,
    split_over,
)
from hybridflow.core.variable import Variable
from hybridflow.xla.joint import content_sum_of, hash_of, member_on

M = TypeVar("M")

LARGE_MATRIX = 4096
"""The number of elements from which on a matrix needs a pattern, if there are patterns."""


@with_foreign_keywords
def shard(
    model: M,
    mesh: Mesh,
    layouts: Mapping[str, Layout | None] | None = None,
    *,
    fsdp: str | tuple[str, ...] | None = None,
    reshard: bool = True,
    min_size: int = 0,
) -> M:
    """Lay out the Variables of a model on a mesh: all of them, or none if there is an error.

    Gradients lie like their Variables, and so do the slots of an optimizer, whether it is made before or after.

    Args:
        model: a module, or any structure of Variables, whose paths are its keys, joined by dots.
        mesh: the mesh.
        layouts: layouts by pattern, such as ``"*.query.weight"``; the first one that matches a path counts. None in
            place of a layout leaves what matches whole on every device, whatever its number of dimensions; so a last
            ``"*": None`` replicates the rest. A layer that was given ``layouts=`` needs no pattern.
        fsdp: the mesh axis (or a tuple of several) over which every Variable is split, along the largest of its
            dimensions that can be; what cannot be split is whole on every device. Functions gather the parts where they
            read them, and reduce gradients to the parts. With `layouts`, it splits a further dimension.
        reshard: whether the parts are gathered anew for the gradient, which saves memory and costs communication.
        min_size: the number of elements below which `fsdp` leaves a Variable whole.

    Returns:
        The model.

    Raises:
        ProgramsDifferError: the mesh has devices of several processes, in which the Variables have different values.
        LayoutError: a pattern matches nothing; a matrix of 4,096 elements and more has no pattern and no `fsdp`; or a
            layout does not suit its Variable or the mesh.
        ArgumentTypeError: `mesh` is no mesh, or the layouts are no mapping.
        ArgumentError: there are no Variables, or a layer does not know its sizes yet.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"data": 1})
        >>> model = hf.distribute.shard(hf.nn.Linear(4, 2), mesh, fsdp="data")
        >>> model.weight.layout, model.bias.layout
        ((None, 'data'), ('data',))

    Reference:
        Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
    """
    if not isinstance(cast(object, mesh), Mesh):
        raise ArgumentTypeError("shard: mesh is no hf.Mesh", got=repr(mesh)[:80])
    if layouts is not None and not isinstance(cast(object, layouts), Mapping):
        raise ArgumentTypeError("shard: layouts are a mapping of patterns to layouts", got=repr(layouts)[:80],
                                hint='Write {"*.weight": ("model", None)}.')
    if fsdp is not None:
        check_axes(checked_layout((fsdp,), "shard: fsdp"), mesh, "shard: fsdp")
    variables, own = _variables(model), _layouts_of_layers(model, mesh)
    patterns = {
        pattern: None if layout is None else checked_layout(layout, f"shard: {pattern!r}")
        for pattern, layout in (layouts or {}).items()
    }
    used: set[str] = set()
    placements: dict[str, Placement] = {}
    unmatched: list[str] = []
    for path, variable in variables.items():
        pattern = next((one for one in patterns if fnmatchcase(path, one)), None)
        used |= set() if pattern is None else {pattern}
        shape = variable.shape
        layout = own.get(path) if pattern is None else patterns[pattern]
        if pattern is not None and layout is None:
            layout = (None,) * len(shape)
        if layout is None and patterns and fsdp is None and len(shape) > 1 and math.prod(shape) >= LARGE_MATRIX:
            unmatched.append(f"{path}: {shape}")
        placements[path] = _placement(path, shape, layout, mesh, fsdp, reshard, min_size)
    _require_used(patterns, used, variables)
    if unmatched:
        raise LayoutError(f"shard: {len(unmatched)} large matrices match no pattern", got="; ".join(unmatched[:3]),
                          hint='Add patterns for them; a last "*": None leaves the rest whole on every device.')
    _require_equal(variables, mesh)
    for path, variable in variables.items():
        variable.lay_out(placements[path])
    return model


def _require_equal(variables: Mapping[str, Variable], mesh: Mesh) -> None:
    """Raise if the Variables have other values in another process.

    Raises:
        ProgramsDifferError: they have.
    """
    joined = member_on(mesh)
    if joined is None:
        return
    sums = {path: content_sum_of(one.current()) for path, one in variables.items()}
    lines = [f"Variable {path!r}: {variables[path].spec} with checksum {one:08x}" for path, one in sums.items()]
    joined.compare("shard with these values", str(hash_of("\n".join(lines))), lambda: lines)


def fsdp_placements(model: Any, mesh: Mesh, axis: str) -> list[tuple[Variable, Placement]]:
    """Return where `shard` with ``fsdp=axis`` would lay out the Variables of a model."""
    own = _layouts_of_layers(model, mesh)
    return [
        (variable, _placement(path, variable.shape, own.get(path), mesh, axis, True, 0))
        for path, variable in _variables(model).items()
    ]


def _placement(
    path: str, shape: tuple[int, ...], layout: Layout | None, mesh: Mesh, fsdp: Any, reshard: bool, min_size: int
) -> Placement:
    """Return where a Variable lies, split over the axis of `fsdp` too if that is possible; no layout is a whole one.

    Raises:
        LayoutError: the layout does not suit the Variable or the mesh.
    """
    layout = (None,) * len(shape) if layout is None else layout
    check_fits(layout, shape, mesh, f"Variable {path!r}")
    taken = {name for axis in layout for name in names_of(axis)}
    if fsdp is None or math.prod(shape) < min_size or not taken.isdisjoint(names_of(fsdp)):
        return Placement(mesh, layout)
    return split_over(fsdp, layout, shape, mesh, again=reshard)


def _require_used(patterns: Mapping[str, Layout | None], used: set[str], variables: Mapping[str, Variable]) -> None:
    for pattern in patterns:
        if pattern in used:
            continue
        earlier = [path for path in variables if fnmatchcase(path, pattern)]
        near = difflib.get_close_matches(pattern, variables, 3, 0.3)
        hint = (
            f"An earlier pattern takes {earlier[0]}: put the narrower one first." if earlier
            else f"Paths are like {', '.join(near or list(variables)[:3])}."
        )
        raise LayoutError(f"shard: the pattern {pattern!r} matches nothing", got=f"{len(variables)} Variables",
                          hint=hint)


def _found(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules and other Variables in a structure, each with its path and a dot."""
    for path, leaf in structures.with_paths(model, _is_module)[0]:
        if _is_module(leaf) or isinstance(leaf, Variable):
            yield "".join([f"{_key(part)}." for part in path]), leaf


def _is_module(value: Any) -> bool:
    return hasattr(value, "named_parameters") and hasattr(value, "named_modules")


def _variables(model: Any) -> dict[str, Variable]:
    """Return the Variables of a model by their paths, each once."""
    found: dict[str, Variable] = {}
    for prefix, leaf in _found(model):
        if not _is_module(leaf):
            found[prefix[:-1]] = leaf
            continue
        unsized = [path for path, one in leaf.named_modules().items() if _is_unsized(one)]
        if unsized:
            raise ArgumentError(f"shard: {prefix}{unsized[0]} does not know its sizes before the first call",
                                got=f"{len(unsized)} such layers", hint="Call the model once first, or give the sizes.")
        for path, variable in {**leaf.named_parameters(), **leaf.named_buffers()}.items():
            found[f"{prefix}{path}"] = variable
    if not found:
        raise ArgumentError("shard: there are no Variables", got=repr(model)[:80], hint="Pass a model, or Variables.")
    firsts = {id(variable): path for path, variable in reversed(found.items())}
    return {path: variable for path, variable in found.items() if firsts[id(variable)] == path}


def _is_unsized(module: Any) -> bool:
    name = getattr(module, "sized_by", None)
    return isinstance(name, str) and getattr(module, name, 0) is None


def _key(part: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(part, name):
            return str(getattr(part, name))
    return str(part)


def _layouts_of_layers(model: Any, mesh: Mesh) -> dict[str, Layout]:
    """Return the layouts that layers were given when they were made, by the Variables' paths."""
    found: dict[str, Layout] = {}
    for prefix, leaf in _found(model):
        for path, module in leaf.named_modules().items() if _is_module(leaf) else ():
            axis = getattr(module, "heads_over", None)
            if axis is not None and axis in mesh.shape and module.heads % mesh.shape[axis]:
                raise LayoutError(
                    f"shard: the {module.heads} heads of {prefix}{path or 'the model'} cannot be divided by "
                    f"{mesh.shape[axis]}", got=f"layouts='heads:{axis}' on {mesh}",
                    hint="Use a number of heads that the mesh axis divides."
                )
            for name, layout in (getattr(module, "layouts", None) or {}).items():
                found[f"{prefix}{path}.{name}" if path else f"{prefix}{name}"] = layout
    return found
