"""Keywords of other packages, such as ``dim=`` and ``lr=``: map each to ours, or raise an error that names ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypedDict, TypeVar, cast

from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.foreign_names import KEYWORDS, SIZES

P = ParamSpec("P")
R = TypeVar("R")
_ROWS = {row.name: row for row in KEYWORDS}
_SIZES = {layer: row.names for row in SIZES for layer in row.layers.split()}
_ANY = frozenset(name for names in _SIZES.values() for name in names)


class Other(TypedDict, total=False):
    """The foreign keywords that functions with axes accept, for type checkers; at run time all of `KEYWORDS` work."""

    dim: Any
    dims: Any
    keepdim: bool


def our_keyword(function: str, keyword: str, names: Collection[str], given: Collection[str] = ()) -> str:
    """Return a function's keyword that means the same as a keyword of another package.

    Args:
        function: the function's name.
        keyword: the foreign keyword.
        names: the function's own keywords.
        given: the own keywords that the call passes.

    Raises:
        ArgumentTypeError: if there is none.
    """
    row = _ROWS.get(keyword)
    theirs = {row.name: ours for row in KEYWORDS for ours in row.ours if ours in names and function not in row.but}
    near = get_close_matches(keyword, [*names, *theirs], n=1)
    meant_ = f"Did you mean {theirs.get(near[0], near[0])}=? " if near else ""
    hint = f"{meant_}It takes: {', '.join(names) or 'none'}."
    if row is not None:
        names_ = [name for name in row.ours if name in names]
        if names_ and (function not in row.but or row.unless in given):
            return names_[0]
        hint = row.but.get(function, row.instead) or hint
    raise ArgumentTypeError(f"{function}: takes no keyword {keyword!r}", hint=hint)


def meant(
    function: str, keyword: str, value: Any, names: Collection[str], given: Collection[str] = ()
) -> str | None:
    """Return our keyword for a foreign one, as `our_keyword` does, or None if its value need not be passed."""
    row = _ROWS.get(keyword)
    if row is None:
        return our_keyword(function, keyword, names, given)
    if value is None:
        return None  # NumPy's functions call methods with out=None
    takes = any([one in names for one in row.ours]) and function not in row.but
    if row.usual and not takes and type(value) in (bool, int, float, str) and value in row.usual:
        return None
    return our_keyword(function, keyword, names, given)


def plain(function: str, other: dict[str, Any]) -> None:
    """Take foreign keywords that a function has no equivalents for, if they mean what it does anyway.

    Raises:
        ArgumentTypeError: one means something else; the text says what to write.
    """
    for keyword, value in other.items():
        meant(function, keyword, value, ("dtype", "device"))


def respelled(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a public function again, with foreign keywords replaced by its own.

    Args:
        function: the function.
        given: its arguments by name; the keywords that it does not know are under ``other``.

    Raises:
        ArgumentTypeError: if a keyword means nothing here, or an argument is given twice.
    """
    name = cast(Any, function).__name__
    parameters = inspect.signature(function).parameters
    kinds = inspect.Parameter
    own = [one for one, p in parameters.items() if p.kind not in (kinds.POSITIONAL_ONLY, kinds.VAR_KEYWORD)]
    other = given.pop("other")
    settled = [one for one in own if given[one] is not parameters[one].default]
    for keyword, value in other.items():
        ours = meant(name, keyword, value, own, settled)
        if ours is None:
            continue
        if ours in settled:
            raise ArgumentTypeError(f"{name}: {ours} is given twice", got=f"{ours}=, {keyword}=")
        given[ours] = value
    args = [given[one] for one, p in parameters.items() if p.kind is kinds.POSITIONAL_ONLY]
    return function(*args, **{one: given[one] for one in own})


def with_foreign_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function take foreign keywords, and say which it has: for functions that are not called often."""
    parameters = inspect.signature(function).parameters.values()
    name = cast(Any, function).__qualname__
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in parameters if p.kind in kinds and p.name != "self"]

    @wraps(function)
    def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
        for keyword in [one for one in kwargs if one not in names]:
            _respell(name, keyword, kwargs, names, passes_on=False)
        return function(*args, **kwargs)

    return accepting


def require_taken(name: str, options: Collection[str], keywords: Collection[str], function: Callable[..., Any]) -> None:
    """Raise if keywords that are passed on to a function are misspelled options of the one that passes them on."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if any([one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()]):
        return
    for keyword in keywords:
        near = get_close_matches(keyword, options, n=1, cutoff=0.75)
        if near and keyword not in parameters:
            called = getattr(function, "__name__", type(function).__name__)
            raise ArgumentTypeError(f"{name}: neither it nor {called} takes {keyword!r}",
                                    hint=f"Did you mean {near[0]}=?")


def take_foreign_keywords(cls: type) -> None:
    """Let a class's ``__init__`` take foreign keywords, and say which options it takes by name only.

    This costs something when an object is made, and nothing when it is used.
    """
    own = vars(cls).get("__init__")
    if own is not None:
        cast(Any, cls).__init__ = _accepting(own)


def _accepting(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that takes foreign keywords too."""
    kinds = inspect.Parameter
    parameters = [*inspect.signature(init).parameters.values()][1:]
    names = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    options = [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY]
    passes_on = any([p.kind is kinds.VAR_KEYWORD for p in parameters])
    variadic = any([p.kind is kinds.VAR_POSITIONAL for p in parameters])

    @wraps(init)
    def accepting(self: Any, *args: Any, **kwargs: Any) -> None:
        label = type(self).__name__
        most = len(names) - len(options)
        if not variadic and len(args) > most:
            raise ArgumentTypeError(
                f"{label}: {most} argument{'s' * (most != 1)} at most by position, not {len(args)}",
                hint=f"Options are given by name: {', '.join(f'{one}=' for one in options) or 'it has none'}."
            )
        for name, value in zip(names if not variadic else (), args, strict=False):
            if name in kwargs:
                raise ArgumentTypeError(f"{label}: {name} is given twice",
                                        got=f"{value!r} by position, {name}={kwargs[name]!r}",
                                        hint=f"It takes: {', '.join(names)}.")
        if names[:1] == ["target"] and not args and "target" not in kwargs and "params" not in kwargs:
            raise ArgumentTypeError(f"{label}: it is not given what to optimize",
                                    hint=f"Write {label}(model, rate=...).")
        foreign = [one for one in kwargs if one not in names]
        if foreign:
            if variadic and not _ANY.isdisjoint(foreign):
                args = _with_sizes(type(self), args, kwargs)
            for keyword in [one for one in foreign if one in kwargs]:
                _respell(label, keyword, kwargs, names, passes_on)
        init(self, *args, **kwargs)

    return accepting


def _respell(label: str, keyword: str, kwargs: dict[str, Any], names: list[str], passes_on: bool) -> None:
    """Replace a foreign keyword among arguments; one that `__init__` passes on to another may stay."""
    row = _ROWS.get(keyword)
    if passes_on and (row is None or not any([one in names for one in row.ours])):
        return
    value = kwargs.pop(keyword)
    ours = meant(label, keyword, value, names)
    if ours is None:
        return
    if ours in kwargs:
        raise ArgumentTypeError(f"{label}: {ours} is given twice", got=f"{ours}=, {keyword}=")
    kwargs[ours] = value


def _with_sizes(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sizes of a layer by position, those that are given by name included, which are taken from `kwargs`.

    Raises:
        ArgumentTypeError: they are not the last ones.
    """
    names = next((_SIZES[base.__name__] for base in cls.__mro__ if base.__name__ in _SIZES), ())
    given = [one for one in names if one in kwargs]
    if not given:
        return args
    if given != [*names[len(names) - len(given) :]] or len(args) + len(given) > len(names):
        raise ArgumentTypeError(f"{cls.__name__}: the sizes are {', '.join(names)}, in this order",
                                got=", ".join([*map(repr, args), *[f"{one}={kwargs[one]!r}" for one in given]]),
                                hint="Give the last ones by name, or all of them; the first may be left out.")
    return (*args, *[kwargs.pop(one) for one in given])
