"""The modules, parameters and buffers of a module by path, and the module as a pytree.

All are found by the same search, so lists of parameters, gradients and files agree on order and names. It visits
attributes in the order in which they were set, and looks inside lists, tuples and dicts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax

from hybridflow.core.context import is_tracing
from hybridflow.core.functions import Whole
from hybridflow.core.node import Node
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards import observe
from hybridflow.guards.access import Access
from hybridflow.guards.guards import PLAIN
from hybridflow.guards.signature import static_key

_CONTAINERS = (list, tuple, dict)
_PLAIN = PLAIN | {TracedNumber}
_PARAMETERS: weakref.WeakSet[Node] = weakref.WeakSet()
"""The nodes of Variables that traced code treats as parameters, though it cannot make them leaves of `.backward()`."""

LEAF, INNER, SEQUENCE, MAPPING, STATIC = "leaf", "module", "sequence", "mapping", "static"
"""The kinds of `Part`: a parameter, a module, two kinds of containers with these inside, and everything else."""


def _may_hold(module: Any, name: None) -> str:
    """Return the names of a module's attributes that may hold parameters: all but those with plain Python values."""
    del name
    return ", ".join([attribute for attribute, value in vars(module).items() if type(value) not in _PLAIN])


MAY_HOLD = Access(_may_hold, "", "the attributes of {p} that may hold parameters")
"""The guard that notices when a module gains or loses an attribute with parameters."""


class Part(NamedTuple):
    """One entry of a module.

    Attributes:
        kind: see `LEAF`.
        value: for a leaf or module, its number; for a container, its items by key; else the value itself.
        type: the container's type.
    """

    kind: str
    value: Any
    type: Any = None


class Inside(NamedTuple):
    """One of the modules inside a module.

    Attributes:
        path: its path in the outer module.
        type: its class.
        parts: its attributes by name.
        origin: a weak reference to the module.
        training: its mode.
    """

    path: str
    type: type
    parts: dict[str, Part]
    origin: Callable[[], Any]
    training: bool


class Copied(NamedTuple):
    """The structure that a copied module shares with the original.

    Attributes:
        parts: its attributes, as they are in the original.
        plan: the structure.
        whole: whether the copy is a model of its own, made by `hybridflow.nn.stack`, and not a module of gradients or
            the like.
    """

    parts: dict[str, Part]
    plan: Plan
    whole: bool


def is_buffer(variable: Variable) -> bool:
    """Whether a Variable in a module is a buffer: part of its state, but never meant to have a gradient."""
    return variable._notes is None and not variable.trainable and variable._leaf not in _PARAMETERS


def take_for_parameter(variable: Variable) -> None:
    """Record that traced code treats a Variable as a parameter, so that it stays one when it is frozen."""
    _PARAMETERS.add(variable._leaf)


class Plan:
    """The structure of a module: the paths of its parameters, and everything else except the parameters themselves.

    Attributes:
        modules: the modules, each once, the module itself first.
        names: the paths of the leaves.
    """

    __slots__ = ("_key", "modules", "names")

    def __init__(self, modules: list[Inside], names: list[str]) -> None:
        self.modules = modules
        self.names = names
        self._key: Any = None

    @property
    def key(self) -> Any:
        """A key that is equal for equal structures; Variables other than leaves are compared by identity."""
        if self._key is None:
            self._key = tuple([
                (one.type, one.training, tuple([(name, _key(part)) for name, part in one.parts.items()]))
                for one in self.modules
            ])
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (other is self or other.key == self.key)

    def __hash__(self) -> int:
        return hash(tuple(self.names))

    def made(self, leaves: Any, *, whole: bool = False) -> Any:
        """Return a module of this structure with other leaves; it shares all other objects with the original."""
        leaves = list(leaves)
        modules = [cast(Any, object.__new__(one.type)) for one in self.modules]
        for inside, module in zip(self.modules, modules, strict=True):
            own = vars(module)
            for name, part in inside.parts.items():
                own[name] = _filled(part, leaves, modules)
            own["training"] = inside.training
            module._path = inside.path
            module._copied = Copied(inside.parts, self, whole)
            origin = inside.origin()
            if origin is not None and is_tracing():
                observe.stands_for(module, origin)
        return modules[0]


def _key(part: Part) -> Any:
    if part.kind in (LEAF, INNER):
        return part.kind, part.value
    if part.kind == STATIC:
        return STATIC, static_key(part.value)
    return part.kind, part.type, tuple([(static_key(name), _key(one)) for name, one in part.value])


def _filled(part: Part, leaves: list[Any], modules: list[Any]) -> Any:
    if part.kind == LEAF:
        return leaves[part.value]
    if part.kind == INNER:
        return modules[part.value]
    if part.kind == STATIC:
        return part.value
    items = [(name, _filled(one, leaves, modules)) for name, one in part.value]
    if part.kind == MAPPING:
        return dict(items)
    values = [value for _, value in items]
    if part.type is list:
        return values
    return part.type(*values) if hasattr(part.type, "_fields") else part.type(values)


class Found(NamedTuple):
    """What a search found in a module: each object once, under its first path.

    Attributes:
        plan: the structure.
        leaves: the parameters, or what replaces them in a copy.
        modules: the modules by path, the module itself as "".
        buffers: the buffers by path.
    """

    plan: Plan
    leaves: list[Any]
    modules: dict[str, Any]
    buffers: dict[str, Any]


class _Walk:
    def __init__(self, *, buffers: bool, reads: bool) -> None:
        self.buffers_too = buffers
        self.reads = reads
        self.insides: list[Inside] = []
        self.names: list[str] = []
        self.leaves: list[Any] = []
        self.modules: dict[str, Any] = {}
        self.buffers: dict[str, Any] = {}
        self.numbers: dict[Any, int] = {}
        self.kept: list[Any] = []

    def module(self, module: Any, path: str) -> Part:
        number = self.numbers.get(id(module))
        if number is not None:
            return Part(INNER, number)
        number = self.numbers[id(module)] = len(self.insides)
        self.modules[path] = module
        parts: dict[str, Part] = {}
        copied: Copied | None = getattr(module, "_copied", None)
        self.insides.append(Inside(path, type(module), parts, weakref.ref(module), module.training))
        if self.reads and copied is None:
            observe.summarised(module, MAY_HOLD)
        for name, value in [*vars(module).items()]:
            if name == "training":
                continue
            known = None if copied is None else copied.parts.get(name)
            where = f"{path}.{name}" if path else name
            inside = known is not None or holds(value, set())
            if self.reads and (inside or (isinstance(value, _CONTAINERS) and not value)):
                observe.read_attr(module, name)
            if not inside:
                parts[name] = Part(STATIC, value)
            else:
                parts[name] = self.part(value, where, known, None if copied is None else copied.plan)
        return Part(INNER, number)

    def part(self, value: Any, path: str, known: Part | None, plan: Plan | None) -> Part:
        if known is not None and known.kind == LEAF:
            return self.leaf(value, path, (id(plan), known.value))
        if known is not None and known.kind == STATIC and not isinstance(value, Variable):
            return Part(STATIC, value)
        if isinstance(value, Whole):
            return self.module(value, path)
        if isinstance(value, Variable):
            if self.reads:
                observe.counts_trainable(value)
            if is_buffer(value):
                if id(value) not in self.numbers:
                    self.buffers[path] = value
                    self.numbers.setdefault(id(value), -1)
                if not self.buffers_too:
                    return Part(STATIC, value)
                return self.leaf(value, path, ("buffer", id(value)))
            return self.leaf(value, path, id(value))
        if isinstance(value, _CONTAINERS) and (known is not None or holds(value, set())):
            return self.container(value, path, known, plan)
        return Part(STATIC, value)

    def container(self, value: Any, path: str, known: Part | None, plan: Plan | None) -> Part:
        if self.reads:
            observe.iterate(value)
        mapping = isinstance(value, dict)
        items = list(cast("dict[Any, Any]", value).items()) if mapping else list(enumerate(value))
        before = dict(known.value) if known is not None and known.kind in (SEQUENCE, MAPPING) else {}
        made: list[tuple[Any, Part]] = []
        for key, item in items:
            if self.reads:
                observe.read_item(value, key)
            made.append((key, self.part(item, f"{path}.{key}", before.get(key), plan)))
        return Part(MAPPING if mapping else SEQUENCE, made, type(value))

    def leaf(self, value: Any, path: str, key: Any) -> Part:
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.leaves)
            self.leaves.append(value)
            self.names.append(path)
        return Part(LEAF, number)


def holds(value: Any, around: set[int]) -> bool:
    """Whether a value is a module or a Variable, or a container with one inside."""
    if isinstance(value, Variable | Whole):
        return True
    if not isinstance(value, _CONTAINERS) or id(value) in around:
        return False
    around.add(id(value))
    items: Any = value.values() if isinstance(value, dict) else value
    return any([holds(one, around) for one in items])


def found_in(module: Any, *, buffers: bool = False, reads: bool = True) -> Found:
    """Return the content of a module.

    Args:
        module: the module.
        buffers: whether its buffers are leaves too.
        reads: whether a trace should record a guard on the result.
    """
    walk = _Walk(buffers=buffers, reads=reads and is_tracing())
    walk.module(module, "")
    return Found(Plan(walk.insides, walk.names), walk.leaves, walk.modules, walk.buffers)


def named(module: Any, *, reads: bool = True) -> Found:
    """Return the content of a module and name each Variable by its path, unless it has a longer name."""
    contents = found_in(module, reads=reads)
    for path, one in contents.modules.items():
        if path.count(".") >= getattr(one, "_path", "").count("."):
            one._path = path
    for path, value in (*zip(contents.plan.names, contents.leaves, strict=True), *contents.buffers.items()):
        if isinstance(value, Variable) and path.count(".") >= value.name.count("."):
            value.rename(path)
    return contents


def prepare(module: Any) -> None:
    """Name the Variables in a module before it is called, unless that is done already."""
    try:
        module._path  # noqa: B018
    except AttributeError:
        named(module, reads=False)


def register(cls: type) -> None:
    """Register a module class with jax as a pytree whose leaves are the parameters."""

    def flatten(module: Any) -> tuple[list[tuple[Any, Any]], Plan]:
        contents = found_in(module)
        keys = map(jax.tree_util.GetAttrKey, contents.plan.names)
        return list(zip(keys, contents.leaves, strict=True)), contents.plan

    def unflatten(plan: Any, leaves: Any) -> Any:
        return plan.made(leaves)

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
