"""Python's argument passing: from the arguments of a call to named arguments, and back."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from types import FunctionType, MethodType
from typing import Any, cast

import jax

from hybridflow.core.errors import ArgumentTypeError
from hybridflow.guards.access import IN_CLASS
from hybridflow.guards.signature import LEAF, NOTHING, Leaf

_ANY_CALL = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)
"""The signature of callables that take a call as it was made."""
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _own_signature(function: Any) -> inspect.Signature:
    """Return the signature by which Python itself passes arguments to a callable.

    `inspect.signature` may show another one: that of a function behind a decorator, or one that was set by hand.
    """
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        try:
            return inspect.signature(functools.partial(_with(partial.func), *partial.args, **partial.keywords))
        except (TypeError, ValueError):
            return _ANY_CALL
    if isinstance(function, MethodType):
        return _without_first(_own_signature(function.__func__))
    if type(function) is FunctionType:
        bare = FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
        bare.__kwdefaults__ = function.__kwdefaults__
        return inspect.signature(bare)
    method = IN_CLASS.get(type(function), "__call__")
    return _without_first(_own_signature(method)) if type(method) is FunctionType else _ANY_CALL


def _with(function: Any) -> Callable[[], None]:
    """Return a function for which `inspect` shows the own signature of another."""

    def shown() -> None: ...

    cast(Any, shown).__signature__ = _own_signature(function)
    return shown


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without the instance's parameter."""
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind in _BY_POSITION:
        signature = signature.replace(parameters=parameters[1:])
    return signature


def has_class_method(owner: type, function: Callable[..., Any]) -> bool:
    """Whether a function is a class method of a class.

    Since Python 3.13, `classmethod` passes the class to its function as the first argument and does not call
    `__get__`.
    """
    methods = (value for base in owner.__mro__ for value in vars(base).values() if isinstance(value, classmethod))
    return any(cast(Any, value).__func__ is function for value in methods)


class Defaults:
    """What the own signature of a callable is made of, as it is when this object is made.

    Args:
        function: the function, method, partial or object with ``__call__``.
    """

    __slots__ = ("_function", "_seen")

    def __init__(self, function: Any) -> None:
        self._function = function
        self._seen = self._now()

    def _now(self) -> list[Any]:
        made: list[Any] = []
        function = self._function
        while True:
            if isinstance(function, functools.partial):
                partial = cast("functools.partial[Any]", function)
                made += (*partial.args, *partial.keywords, *partial.keywords.values())
                function = partial.func
            elif isinstance(function, MethodType):
                function = function.__func__
            else:
                break
        code = function if type(function) is FunctionType else IN_CLASS.get(type(function), "__call__")
        if type(code) is FunctionType:
            named = code.__kwdefaults__ or {}
            made += (code.__code__, code.__defaults__, *named, *named.values())
        return made

    def have_changed(self) -> bool:
        """Whether the signature may have changed, or a default."""
        now = self._now()
        return len(now) != len(self._seen) or not all(map(is_, now, self._seen))


_NOTHING_GIVEN: Mapping[str, Any] = {}


class Parameters:
    """The parameters of a callable: what Python binds a call's arguments to, and the names that users know.

    A call is handed on as it was made. Only a callable's own parameters may be passed in either way, and only its own
    defaults are filled in: a wrapper that takes ``*args`` and ``**kwargs`` receives there what the call gave. Users may
    name what it takes by the parameters of the function behind it.

    Args:
        own: the signature by which Python passes arguments.
        shown: the signature that `inspect.signature` shows.
        given: keywords that the callable itself passes on, as `functools.partial` does: calls may override them.

    Attributes:
        text: the signature, for messages.
        names: the names of what can be passed by position.
    """

    def __init__(
        self, own: inspect.Signature, shown: inspect.Signature, given: Mapping[str, Any] = _NOTHING_GIVEN
    ) -> None:
        every = own.parameters.values()
        kinds = [(one.name, one.kind) for one in every]
        is_own = kinds == [(one.name, one.kind) for one in shown.parameters.values()]
        self.text = str(shown if is_own else own)
        self._own, self._shown, self._is_wrapper = own, shown, not is_own
        self._by_position = tuple([name for name, kind in kinds if kind in _BY_POSITION])
        self._first_named = sum(kind is inspect.Parameter.POSITIONAL_ONLY for _, kind in kinds)
        self._only_named = tuple([name for name, kind in kinds if kind is inspect.Parameter.KEYWORD_ONLY])
        self._defaults = {one.name: one.default for one in every if one.default is not inspect.Parameter.empty}
        # What `*args` and `**kwargs` take is named so that no parameter of the function behind has the same name.
        taken = () if is_own else shown.parameters
        entries = {kind: f"*{name}" if name in taken else name for name, kind in kinds}
        self._rest = entries.get(inspect.Parameter.VAR_POSITIONAL)
        self._others = entries.get(inspect.Parameter.VAR_KEYWORD)
        behind = [one.name for one in shown.parameters.values() if one.kind in _BY_POSITION]
        self._behind = {name: position for position, name in enumerate(behind)}
        self.names = self._by_position
        if self._rest is not None:
            self.names += tuple(behind[len(self._by_position) :])
        self._given = {} if self._others is None else {
            name: value for name, value in given.items() if name not in self._by_position + self._only_named
        }
        self._entries = frozenset([*self._by_position, *self._only_named, *entries.values()])

    @classmethod
    def of(cls, function: Callable[..., Any], *, skip_first: bool = False) -> Parameters:
        """Return the parameters of a callable, without the instance's if `skip_first`."""
        own = _own_signature(function)
        try:
            shown = inspect.signature(function)
        except (TypeError, ValueError):
            shown = own
        while isinstance(function, MethodType):
            function = function.__func__
        made = cls(own, shown, function.keywords if isinstance(function, functools.partial) else _NOTHING_GIVEN)
        return made.without_first() if skip_first else made

    def without_first(self) -> Parameters:
        """Return the parameters without the instance's."""
        return Parameters(_without_first(self._own), _without_first(self._shown), self._given)

    def entry(self, name: str) -> str | None:
        """Return the name that `named` uses for what a user calls `name`; None if there is no such parameter.

        It is the same name, unless a wrapper has a parameter of its own in that position.
        """
        if name in self._entries:
            return name
        position = self._behind.get(name)
        if position is not None and position < len(self._by_position):
            return self._by_position[position]
        known = name in self._shown.parameters or any(
            one.kind is inspect.Parameter.VAR_KEYWORD for one in self._shown.parameters.values()
        )
        reached = self._others is not None or (position is not None and self._rest is not None)
        return name if known and reached else None

    def without_entries(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those names (of `entry`) that ``*args`` or ``**kwargs`` take."""
        return tuple(dict.fromkeys([name for name in names if name not in self._entries]))

    def named(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, apart: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the arguments of a call by parameter, with the callable's own defaults filled in.

        Args:
            args: the positional arguments.
            kwargs: the arguments by name.
            name: the callable's name, for messages.
            apart: names of `without_entries` that get an entry of their own; a None keeps the place of each.

        Raises:
            ArgumentTypeError: the callable does not take these arguments.
        """
        arguments = self._bound(args, kwargs)
        if arguments is None:
            raise self._refused(args, kwargs, name)
        others = {} if self._others is None else arguments[self._others]
        for one in apart:
            position = self._place(one)
            if one in others:
                arguments[one] = others[one]
                others[one] = None
            elif self._rest is not None and 0 <= position < len(arguments[self._rest]):
                rest = [*arguments[self._rest]]
                arguments[one] = rest[position]
                rest[position] = None
                arguments[self._rest] = tuple(rest)
        return arguments

    def _place(self, name: str) -> int:
        """Return the position of a parameter of the function behind among what ``*args`` takes; -1 if there is none."""
        return max(self._behind.get(name, -1) - len(self._by_position), -1)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Bind as `inspect.Signature.bind` does, in less time; None if the arguments do not fit."""
        names, given = self._by_position, len(args)
        if given > len(names) and self._rest is None:
            return None
        arguments = dict(zip(names, args, strict=False))
        by_name: list[str] = []
        for name in names[given:]:
            if name in kwargs and (not self._first_named or name not in names[: self._first_named]):
                arguments[name] = kwargs[name]
                by_name.append(name)
            elif name in self._defaults:
                arguments[name] = self._defaults[name]
            else:
                return None
        if self._rest is not None:
            arguments[self._rest] = args[len(names) :]
        for name in self._only_named:
            if name in kwargs:
                arguments[name] = kwargs[name]
                by_name.append(name)
            elif name in self._defaults:
                arguments[name] = self._defaults[name]
            else:
                return None
        if self._others is None:
            return arguments if len(by_name) == len(kwargs) else None
        if kwargs and not kwargs.keys().isdisjoint(names[self._first_named : given]):
            return None
        others = self._given | kwargs
        for name in by_name:
            del others[name]
        arguments[self._others] = others
        return arguments

    def _refused(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> ArgumentTypeError:
        """Return the error for a call that does not fit."""
        why = "it does not take these arguments"
        try:
            self._own.bind(*args, **kwargs)
        except TypeError as error:
            why = str(error)
        return ArgumentTypeError(f"{name}: {why}", got=f"{len(args)} positional, {sorted(kwargs)} by name",
                                 hint=f"The signature is {name}{self.text}.")

    def call(self, function: Callable[..., Any], first: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        """Call a function with the result of `named`, after the positional arguments `first`."""
        args = [arguments[name] for name in self._by_position]
        kwargs = {name: arguments[name] for name in self._only_named}
        rest = [] if self._rest is None else [*arguments[self._rest]]
        if self._others is not None:
            kwargs.update(arguments[self._others])
        for name in arguments.keys() - self._entries:
            if name in kwargs:
                kwargs[name] = arguments[name]
            else:
                rest[self._place(name)] = arguments[name]
        return function(*first, *args, *rest, **kwargs)

    def passed_by_position(self, trees: Sequence[Any]) -> bool:
        """Whether the arguments are single leaves that a call passes by position, given the structure of each entry."""
        end = len(self._by_position)
        rest = trees[end:]
        if self._only_named or len(trees) > len(self._entries):
            return False
        leaves = [jax.tree_util.tree_structure((0,) * tree.num_leaves) for tree in rest]
        return trees[:end] == (LEAF,) * end and all(
            tree in (_NO_KEYWORDS, flat) for tree, flat in zip(rest, leaves, strict=True)
        )

    def labelled(self, leaves: Iterable[Leaf], apart: Sequence[str]) -> list[Leaf]:
        """Return leaves with the paths that users know, without the Nones in the places of the arguments `apart`.

        What a wrapper takes by ``*args`` and ``**kwargs`` has the names of the parameters behind it.
        """
        if self._rest is None and self._others is None:
            return [*leaves]
        labelled: list[Leaf] = []
        for leaf in leaves:
            path = _INSIDE.sub(self._label, leaf.path)
            if leaf.kind != NOTHING or path not in apart:
                labelled.append(leaf._replace(path=path) if self._is_wrapper else leaf)
        return labelled

    def _label(self, found: re.Match[str]) -> str:
        entry, key = found["entry"], found["position"] or found["name"]
        if entry == self._rest and found["position"]:
            position = len(self._by_position) + int(key)
            return self.names[position] if position < len(self.names) else f"{entry.lstrip('*')}[{key}]"
        return key if entry == self._others and found["name"] else found[0]


_NO_KEYWORDS = jax.tree_util.tree_structure(dict[str, Any]())
_INSIDE = re.compile(r"^(?P<entry>\*?\w+)\[(?:(?P<position>\d+)|'(?P<name>\w+)')\]")
"""The start of a path to what ``*args`` or ``**kwargs`` take."""
