"""Python's argument passing: from the arguments of a call to named arguments, and back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from operator import is_
from types import FunctionType, MethodType
from typing import Any, NamedTuple, cast

from hybridflow.core.errors import ArgumentTypeError, message

_ANY_CALL = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)
"""The signature of functions that do not reveal theirs, such as some builtins."""


def parameters_of(function: Callable[..., Any], *, skip_first: bool) -> inspect.Signature:
    """Return a function's signature, without the instance's parameter if `skip_first`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _ANY_CALL
    return without_first(signature) if skip_first else signature


def without_first(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without the instance's parameter."""
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        signature = signature.replace(parameters=parameters[1:])
    return signature


def has_class_method(owner: type, function: Callable[..., Any]) -> bool:
    """Whether a function is a class method of a class.

    Since Python 3.13, `classmethod` passes the class to its function as the first argument and does not call
    `__get__`.
    """
    methods = (value for base in owner.__mro__ for value in vars(base).values() if isinstance(value, classmethod))
    return any(cast(Any, value).__func__ is function for value in methods)


def has_var_keyword(signature: inspect.Signature) -> bool:
    """Whether the function takes any keyword."""
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())


def is_plain(signature: inspect.Signature) -> bool:
    """Whether a call can pass every parameter by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return all(parameter.kind in kinds for parameter in signature.parameters.values())


class Defaults:
    """A function's default arguments, as they are when this object is made.

    Args:
        function: the function, method, partial or object with ``__call__``.
    """

    __slots__ = ("_function", "_partials", "_seen")

    def __init__(self, function: Any) -> None:
        self._partials: list[functools.partial[Any]] = []
        while True:
            if isinstance(function, functools.partial):
                self._partials.append(cast("functools.partial[Any]", function))
                function = cast(Any, function).func
            elif isinstance(function, MethodType):
                function = function.__func__
            else:
                break
        self._function = function if isinstance(function, FunctionType) else getattr(type(function), "__call__", None)  # noqa: B004
        self._seen = self._now()

    def _now(self) -> list[Any]:
        defaults: list[Any] = [getattr(self._function, "__defaults__", None)]
        named = getattr(self._function, "__kwdefaults__", None)
        for keywords in (named, *[one.keywords for one in self._partials]):
            if keywords:
                defaults += keywords.values()
        return defaults

    def have_changed(self) -> bool:
        """Whether the defaults have changed."""
        now = self._now()
        return len(now) != len(self._seen) or not all(map(is_, now, self._seen))


class PlainParameters(NamedTuple):
    """A signature of plain parameters, for `plain_arguments`.

    Attributes:
        names: the names of the parameters.
        positional: the number of parameters that may be passed by position.
        defaults: the default values by name.
    """

    names: tuple[str, ...]
    positional: int
    defaults: dict[str, Any]

    @classmethod
    def of(cls, signature: inspect.Signature) -> PlainParameters | None:
        """Return a signature as a `PlainParameters`, or None if some parameters are not plain."""
        parameters = signature.parameters.values()
        either, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        if any(parameter.kind not in (either, named) for parameter in parameters):
            return None
        defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        return cls(tuple(signature.parameters), sum(one.kind is either for one in parameters), defaults)


def plain_arguments(plain: PlainParameters, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the same as `named_arguments`, without binding by `inspect`; None if the arguments do not fit."""
    names, positional, defaults = plain
    given = len(args)
    if given > positional:
        return None
    arguments = dict(zip(names, args, strict=False))
    used = 0
    for name in names[given:]:
        if name in kwargs:
            arguments[name] = kwargs[name]
            used += 1
        elif name in defaults:
            arguments[name] = defaults[name]
        else:
            return None
    return arguments if used == len(kwargs) else None


def named_arguments(
    signature: inspect.Signature, static: Iterable[str], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> dict[str, Any]:
    """Return the arguments by parameter name with defaults filled in, however the call passed them.

    Static arguments that only a ``**kwargs`` accepts become entries of their own.

    Raises:
        ArgumentTypeError: the signature does not accept the arguments.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentTypeError(
            message(f"{name}: {error}", got=f"{len(args)} positional, {sorted(kwargs)} by name",
                    hint=f"The signature is {name}{signature}.")
        ) from None  # fmt: skip
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given = dict(arguments[parameter.name])
            for one in sorted(static):
                if one in given and one not in arguments:
                    arguments[one] = given.pop(one)
            arguments[parameter.name] = given
    return arguments


def apply_arguments(
    function: Callable[..., Any], signature: inspect.Signature, first: tuple[Any, ...], arguments: dict[str, Any]
) -> Any:
    """Call a function with the result of `named_arguments`, after the positional arguments `first`."""
    extra = {name: value for name, value in arguments.items() if name not in signature.parameters}
    bound = inspect.BoundArguments(signature, cast(Any, arguments))
    return function(*first, *bound.args, **bound.kwargs, **extra)
