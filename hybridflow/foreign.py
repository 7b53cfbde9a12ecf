"""Make names of other packages work, or raise an error that says what to write; `core.foreign_names` lists them.

`core.foreign_families` has rules for the many names that have one answer. Functions of JAX, SciPy and NumPy that
hybridflow lacks are found in those packages.

Tensors, models and optimizers get a class attribute for each name. They get no ``__getattr__``, because merely defining
one slows down the lookup of every attribute in Python 3.11. Python modules do get one; it is called only for names that
they lack. `dir`,
stubs and type checkers show only hybridflow's own names: the foreign names are for code that comes from other packages.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import getattr_static
from types import ModuleType
from typing import Any, cast

from hybridflow import later
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ForeignNameError, MutationError
from hybridflow.core.foreign_families import FAMILIES
from hybridflow.core.foreign_hints import HINTS
from hybridflow.core.foreign_names import NAMES, Hint, Name
from hybridflow.core.keywords import meant
from hybridflow.core.methods import TensorMethods
from hybridflow.core.tensor import describe
from hybridflow.ops.nn.labels import known_labels, label_weights

_MODULES = (
    "hf", "hf.config", "hf.fft", "hf.ir", "hf.linalg", "hf.nn", "hf.nn.init", "hf.ops", "hf.random",
    "hf.special",
)
"""The public modules that are imported with the package; the others call `name_module` themselves."""
_PLACES: dict[str, ModuleType] = {}
"""The public modules that are imported, by the paths that users write."""
_OBJECTS = ("x", "model", "opt")
_ASSIGNED = frozenset([("model", "trainable")])
"""Names that other packages assign, where an attribute of that name would be ignored."""
_SHORT = 4
"""The most letters of a name in which one wrong letter is much."""
_NO_LABEL = -100
"""PyTorch's default for the label that is ignored."""
_CALL = re.compile(r"(?P<name>[\w.]+)(?:\((?P<parameters>.*)\))?$")
_TITLES = {
    "torch": "PyTorch", "numpy": "NumPy", "tensorflow": "TensorFlow", "jax": "JAX", "keras": "Keras", "optax": "optax",
}
_LIBRARIES = {
    "hf": ("jax.numpy", "jax.scipy.special", "jax.lax", "jax.nn", "scipy.special", "numpy", "jax"),
    "hf.nn": ("jax.nn",), "hf.linalg": ("jax.numpy.linalg", "jax.scipy.linalg", "numpy.linalg"),
    "hf.fft": ("jax.numpy.fft",), "hf.special": ("jax.scipy.special", "scipy.special"),
    "hf.integrate": ("jax.scipy.integrate", "scipy.integrate"), "hf.optimize": ("scipy.optimize",),
}
"""Where functions are looked for that a public module lacks."""


def titles(packages: str) -> str:
    """Return the packages of a row by their usual titles."""
    return ", ".join(_TITLES[package] for package in packages.split())


def name_of(row: Name | Hint) -> str:
    """Return the dotted name of a row."""
    return (row.call if isinstance(row, Name) else row.name).partition("(")[0]


@functools.cache
def rows() -> dict[str, Name | Hint]:
    """Return the rows of the table, keyed by names such as ``hf.cat`` and ``x.view``."""
    return {name_of(row): row for row in (*NAMES, *HINTS)}


@functools.cache
def _expression(names: str) -> re.Pattern[str]:
    """Return the expression that matches the names of a family."""
    return re.compile("|".join(f"(?:{name})" for name in names.split()))


def hint_of(owner: str, name: str, elsewhere: bool = False) -> Hint | None:
    """Return the hint for a name of an owner such as ``hf``: its row, or that of the first family that has the name.

    An expression leaves a name to the library that has it, if the family is not of that library. If the name was sought
    elsewhere, an expression that takes any word says nothing of names in small letters.
    """
    open_ends = not elsewhere or not name.islower()
    row = rows().get(f"{owner}.{name}")
    if row is not None:
        return row if isinstance(row, Hint) else None
    for family in FAMILIES:
        if owner in family.owners.split():
            taken = family.names if open_ends else " ".join([one for one in family.names.split() if "\\w" not in one])
            found = _expression(taken).fullmatch(name)
            if found is not None and (
                name in family.names.split() or not _in_library(owner, name)[0]
                or {"jax", "numpy"} & {*family.packages.split()}
            ):
                groups = [group for group in found.groups() if group is not None]
                ours = family.ours.format(name, *groups, *groups, library=_in_library("hf", name)[0])
                return Hint(family.packages, f"{owner}.{name}", ours, family.because)
    return None


def _advice(hint: Hint) -> str:
    return f"Use {hint.ours}: {hint.because}." if hint.ours else f"There is none here: {hint.because}."


@functools.cache
def meaning(name: str) -> Any:
    """Return what a foreign name stands for here: a function, module or dtype; for tensors, a class attribute.

    Raises:
        ForeignNameError: the name has no direct equivalent; the text says what to use instead.
    """
    owner, _, last = name.rpartition(".")
    hint = hint_of(owner, last)
    if hint is not None:
        raise ForeignNameError(f"{name}: it is a name of {titles(hint.packages)}", hint=_advice(hint))
    row = cast(Name, rows()[name])
    match = _CALL.match(row.call)
    parameters = match["parameters"] if match is not None else None
    owner = name.partition(".")[0]
    of_object = owner in _OBJECTS
    if parameters is None:
        if not of_object:
            return _evaluated(row.ours)
        ours = row.ours.removeprefix("x.")
        method = vars(TensorMethods).get(ours)
        return method if method is not None else property(_evaluated(f"lambda {owner}: {row.ours}"))
    parts = [part for part in (owner if of_object else "", parameters) if part]
    return _function(name.rpartition(".")[2], ", ".join(parts), row.ours)


def _evaluated(expression: str) -> Any:
    """Evaluate an expression of the table, in which `hf` is hybridflow; the text is always the package's own.

    ``reduced[reduction]`` is what PyTorch calls the reduction of a loss; ``times`` multiplies losses by weights, if
    there are any; ``of_classes`` gives losses and their weights for an axis of classes where PyTorch has it.
    """
    code = compile(expression, __file__, "eval")  # this file's name, so that its frames do not count as the user's
    names = {"partial": functools.partial, "reduced": _Reductions(), "times": _times, "of_classes": _of_classes}
    return eval(code, {"hf": sys.modules["hybridflow"], "__name__": __name__, **names})


class _Reductions:
    """Functions of losses by PyTorch's names for them."""

    def __getitem__(self, reduction: object) -> Callable[[Any], Any]:
        package: Any = sys.modules["hybridflow"]
        known = {"mean": _mean, "sum": lambda losses, weights=None: package.sum(losses),
                 "none": lambda losses, weights=None: losses}
        if not isinstance(reduction, str) or reduction not in known:
            raise ArgumentError(f"reduction={reduction!r}", hint=f"It is one of {', '.join(known)}.")
        return known[reduction]


def _mean(losses: Any, weights: Any = None) -> Any:
    """Return the mean of losses, or their sum divided by that of the weights by which they were multiplied."""
    package: Any = sys.modules["hybridflow"]
    if weights is None:
        return package.mean(losses)
    return package.sum(losses) / package.sum(package.asarray(weights).astype(losses.dtype))


def _times(losses: Any, weights: Any) -> Any:
    package: Any = sys.modules["hybridflow"]
    return losses if weights is None else losses * package.asarray(weights).astype(losses.dtype)


def _of_classes(loss: Any, scores: Any, target: Any, weight: Any, ignored: int, **options: Any) -> tuple[Any, Any]:
    """Return losses of classes and the weights of their labels, by which PyTorch's mean divides; None for 1 each."""
    scores, labels = _classes_last(scores), _classes_last(target)
    package: Any = sys.modules["hybridflow"]
    dense = ignored == _NO_LABEL and not package.isdtype(labels.dtype, "integral")
    losses = loss(scores, labels, class_weight=weight, ignored_id=None if dense else ignored, **options)
    if dense:
        return losses, None
    classes, kept = known_labels(labels, ignored)
    return losses, label_weights(loss.__name__, classes, scores.shape[-1], losses.dtype, weight, kept)


def _classes_last(x: Any) -> Any:
    """Return scores with their axis of classes, PyTorch's axis 1, as the last one; integer labels have no such axis."""
    package: Any = sys.modules["hybridflow"]
    x = package.asarray(x)
    return package.moveaxis(x, 1, -1) if x.ndim > 2 and package.isdtype(x.dtype, "real floating") else x


def _function(name: str, parameters: str, ours: str) -> Callable[..., Any]:
    """Return a function of the parameters that evaluates an expression and accepts foreign keywords."""
    several = re.search(r"\*(\w+)", parameters)
    if several is not None:  # takes numbers, or one tuple of them
        one = several[1]
        ours = f"(lambda {one}: {ours})({one}[0] if len({one}) == 1 and isinstance({one}[0], tuple | list) else {one})"
    made = _evaluated(f"lambda {parameters}: {ours}")
    made.__name__ = made.__qualname__ = name  # which Python's own errors tell
    own = made.__code__.co_varnames[: made.__code__.co_argcount + made.__code__.co_kwonlyargcount]
    many = several[1] if several is not None else None

    def function(*args: Any, **kwargs: Any) -> Any:
        for keyword in [one for one in kwargs if one not in own]:
            value = kwargs.pop(keyword)
            if keyword == many:
                args = (*args, value)
            elif (ours := meant(name, keyword, value, own)) is not None:
                kwargs[ours] = value
        return made(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


class _Foreign:
    """A class attribute under another package's name, such as ``x.view``, resolved on first use."""

    __slots__ = ("found", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Any = None

    def __get__(self, instance: Any, owner: type) -> Any:
        if self.found is None:
            self.found = meaning(self.name)
        return self.found if instance is None else self.found.__get__(instance, owner)


class _Settable(_Foreign):
    """A `_Foreign` attribute that can also be set: assigning to it assigns hybridflow's attribute."""

    __slots__ = ()

    def __set__(self, instance: Any, value: Any) -> None:
        meaning(self.name)  # raises for a name that has no equivalent
        setattr(instance, cast(Name, rows()[self.name]).ours.partition(".")[2], value)


@functools.cache
def _names_of(owner: str) -> frozenset[str]:
    """Return the names of the tables that are attributes of ``x``, ``model`` or ``opt``."""
    names = {name.partition(".")[2] for name in rows() if name.startswith(f"{owner}.")}
    for family in FAMILIES:
        if owner in family.owners.split():
            names.update(filter(str.isidentifier, family.names.split()))
    if owner == "x":  # PyTorch's methods that assign
        plain = names | {name for name in vars(TensorMethods) if not name.startswith("_")}
        names |= {f"{name}_" for name in plain if not name.endswith("_")} - plain
    return frozenset(names)


def name_class(cls: type, owner: str) -> None:
    """Give a class the names that the table has for ``x``, ``model`` or ``opt``; `dir` does not list them."""
    names = _names_of(owner)
    for name in names:
        settable = owner == "opt" or (owner, name) in _ASSIGNED
        setattr(cls, name, (_Settable if settable else _Foreign)(f"{owner}.{name}"))

    def dir_(self: Any) -> list[str]:
        """Return the names of the attributes, foreign ones left out."""
        own = vars(self) if hasattr(self, "__dict__") else {}
        foreign = [name for name in names - own.keys() if isinstance(getattr_static(type(self), name), _Foreign)]
        return sorted(set(object.__dir__(self)).difference(foreign))

    cast(Any, cls).__dir__ = dir_


def name_module(path: str, name: str) -> None:
    """Make a module of the package a public one.

    It gets the names that the table has for it, a hint for other names that it lacks, and a `dir` of its public names.
    """
    module = cast(Any, sys.modules[name])
    _PLACES[path] = module
    module.__dir__ = functools.partial(_public_names, module, vars(module).get("__dir__"))
    module.__getattr__ = _of_module(path, module)


def _public_names(module: ModuleType, before: Callable[[], list[str]] | None) -> list[str]:
    """Return a module's ``__all__``, or else its names without underscore; of modules in it, public ones only."""
    names, found = vars(module), vars(module).get("__all__") or (before() if before else vars(module))
    inner = {name for name, value in names.items() if isinstance(value, ModuleType) and not _is_public(value)}
    return sorted({name for name in {*found} - inner if not name.startswith("_") or name.endswith("__")})


class MissingNameError(ForeignNameError):
    """A public module has no such name. What is meant is looked for when the text is asked for: `hasattr` is quick."""

    def __str__(self) -> str:
        path, module, name = self.args
        public = f"hybridflow{path.removeprefix('hf')}" if path.startswith("hf") else module.__name__
        return f"module {public!r} has no attribute {name!r}{_instead(path, module, name)}"


def _is_public(module: ModuleType) -> bool:
    name = module.__name__.removeprefix("hybridflow.")
    return name in later.MODULES or any(module is place for place in _PLACES.values())


def _instead(path: str, module: ModuleType, name: str) -> str:
    """Return what a missing name was probably meant to be, as the end of an error's text; "" if that is not known."""
    own = [one for one in {*dir(module), *names_in(path)} if not one.startswith("_")]
    lower = {one.lower(): one for one in own}
    if name.lower() in lower:
        return f". Did you mean {path}.{lower[name.lower()]}?"
    place = _place_of(name, _PLACES)
    if place:
        return f". Did you mean {place}.{name}?"
    swapped = [one for one in own if sorted(one) == sorted(name)]
    if swapped and len(name) >= _SHORT:
        return f". Did you mean {path}.{swapped[0]}?"
    hint = hint_of(path, name)
    if hint is not None:
        return f": it is a name of {titles(hint.packages)}. {_advice(hint)}"
    whole, advice = _in_library(path, name)
    if whole:
        return f". {advice}"
    place = _place_of(name, {f"hf.{one}": later.imported(one) for one in later.MODULES})
    if place:
        return f". Did you mean {place}.{name}?"
    cutoff = 0.75 if len(name) > _SHORT else 0.6
    near = swapped or get_close_matches(name, own, 1, cutoff) or get_close_matches(name.lower(), lower, 1, cutoff)
    meant_ = lower.get(near[0], near[0]) if near else ""
    foreign = rows().get(f"{path}.{meant_}")
    advice = f" {_advice(foreign)}" if isinstance(foreign, Hint) else ""
    guess = f". Did you mean {path}.{meant_}?{advice}" if near else ""
    return (_elsewhere(name) if not near or name in _words() else "") or guess


def _elsewhere(name: str) -> str:
    """Return what a name means in another module, as the end of an error's text; "" if it is in no table."""
    for owner in sorted(_modules(), key=lambda owner: (owner.count("."), owner)):
        if isinstance(rows().get(f"{owner}.{name}"), Name):
            return f". Did you mean {owner}.{name}?"
        hint = hint_of(owner, name, elsewhere=True)
        if hint is not None:
            return f": it is a name of {titles(hint.packages)}. {_advice(hint)}"
    return ""


@functools.cache
def _words() -> frozenset[str]:
    """Return the names that the table and the families spell out, whoever has them."""
    in_families = [name for family in FAMILIES for name in family.names.split()]
    return frozenset([name.rpartition(".")[2] for name in rows()] + in_families)


def _place_of(name: str, places: Mapping[str, ModuleType]) -> str:
    """Return the path of the first module that has a name, those with short paths first; "" if none has it."""
    paths = sorted((path for path in places if path.startswith("hf")), key=lambda path: (path.count("."), path))
    return next((path for path in paths if name in dir(places[path])), "")


@functools.cache
def _in_library(path: str, name: str) -> tuple[str, str]:
    """Return what JAX, SciPy or NumPy has under a name that a public module lacks, and how to use it, or two ""."""
    for library in _LIBRARIES.get(path, ()) if not name.startswith("_") else ():
        value = vars(importlib.import_module(library)).get(name)
        if value is None:
            continue
        whole = f"{library}.{name}"
        function = callable(value) and not isinstance(value, type)
        if function and library.startswith("jax."):
            return whole, f"JAX has it, and hf.from_jax({whole}) is an operation on tensors, with its gradient."
        if function and not library.startswith("jax"):
            return whole, (
                f"{whole} takes x.numpy(), and hf.pure_callback calls it in a compiled function; no gradient flows."
            )
        return whole, f"It is {whole}, which knows nothing of tensors; import {library.partition('.')[0]} for it."
    return "", ""


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """Return the foreign names that the table has for a module."""
    return frozenset(name.rpartition(".")[2] for name in rows() if name.rpartition(".")[0] == path)


@functools.cache
def _owners() -> frozenset[str]:
    """Return what the names of the table are in: modules, objects, and modules of other packages that are none here."""
    return frozenset(name.rpartition(".")[0] for name in rows())


@functools.cache
def _modules() -> frozenset[str]:
    """Return the modules, real ones and those of other packages, that the table and the families have names for."""
    owners = {owner for family in FAMILIES for owner in family.owners.split()} | _owners()
    return frozenset(owner for owner in owners if owner.startswith("hf"))


class _Names:
    """A module of another package that is none here, such as ``hf.nn.utils``: its names say what to write."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name in names_in(self._path):
            return meaning(f"{self._path}.{name}")
        raise ForeignNameError(f"{self._path}.{name}: {self._path} is a module of another package",
                               hint=f"These of its names say what to write: {', '.join(sorted(names_in(self._path)))}.")


def _of_module(path: str, module: ModuleType) -> Callable[[str], Any]:
    """Return a module's new ``__getattr__``: foreign names first, then the ``__getattr__`` it had before."""
    before = vars(module).get("__getattr__")

    def getattr_(name: str) -> Any:
        if f"{path}.{name}" in rows():
            return meaning(f"{path}.{name}")
        if before is not None:
            try:
                return before(name)
            except AttributeError as error:
                if error.name != name:
                    raise
        if f"{path}.{name}" in _owners():
            return _Names(f"{path}.{name}")
        raise MissingNameError(path, module, name)

    return getattr_


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Run a NumPy ufunc on tensors with hybridflow's function of the same name: ``np.exp(t)`` is ``hf.exp(t)``.

    Raises:
        MutationError: the result would be written into an array, as in ``array += t``.
        ArgumentTypeError: another use of the ufunc, or a ufunc that hybridflow does not have.
    """
    name = ufunc.__name__
    if "out" in kwargs:
        raise MutationError(f"numpy.{name}: the result would be written into a NumPy array, which no gradient follows",
                            got=f"numpy.{name}({', '.join(map(describe, inputs))}, out=...)",
                            hint="Write `array = array + t` in place of `array += t`.")
    package: Any = sys.modules["hybridflow"]
    function = getattr(package, name, None) or getattr(package.special, name, None)
    if method != "__call__" or kwargs or function is None:
        call = name if method == "__call__" else f"{name}.{method}"
        raise ArgumentTypeError(f"numpy.{call}: it is not done to tensors{' with these options' if kwargs else ''}",
                                got=f"numpy.{call}({', '.join(map(describe, inputs))})",
                                hint="Use the functions of hf; or t.numpy(), through which no gradient flows.")
    return function(*inputs)


def install() -> None:
    """Give tensors and modules the names of the table. The package calls this once, when it is imported.

    What is imported later, such as `hf.optim`, calls `name_class` and `name_module` itself.
    """
    name_class(TensorMethods, "x")
    cast(Any, TensorMethods).__array_ufunc__ = _array_ufunc
    package = sys.modules["hybridflow"]
    for path in _MODULES:
        name_module(path, functools.reduce(getattr, path.split(".")[1:], package).__name__)
