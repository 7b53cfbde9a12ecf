"""Build syntax trees: every new node has the source position of the user's node that it replaces."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

RUNTIME = ".hf"
"""The free variable that holds the runtime. It cannot clash with a user's name, since it is no identifier."""


def at(place: Any, node: Any) -> Any:
    """Give a new node the position of another, and return it."""
    node.lineno = place.lineno
    node.col_offset = place.col_offset
    node.end_lineno = place.end_lineno
    node.end_col_offset = place.end_col_offset
    return node


def one_line(place: Any) -> Any:
    """Return a node at the first line of another, as the position for code that replaces a whole statement."""
    if place.end_lineno == place.lineno:
        return place
    made = at(place, ast.Pass())
    made.end_lineno, made.end_col_offset = place.lineno, place.col_offset + 1
    return made


def load(place: Any, name: str) -> Any:
    """Return a read of a name."""
    return at(place, ast.Name(name, ast.Load()))


def store(place: Any, name: str) -> Any:
    """Return a name as a target."""
    return at(place, ast.Name(name, ast.Store()))


def constant(place: Any, value: Any) -> Any:
    """Return a constant."""
    return at(place, ast.Constant(value))


def pack(place: Any, items: Sequence[Any]) -> Any:
    """Return a tuple."""
    return at(place, ast.Tuple(list(items), ast.Load()))


def call(place: Any, function: Any, args: Sequence[Any]) -> Any:
    """Return a call."""
    return at(place, ast.Call(function, list(args), []))


def runtime(place: Any, method: str, *args: Any) -> Any:
    """Return a call of the runtime."""
    return call(place, at(place, ast.Attribute(load(place, RUNTIME), method, ast.Load())), args)


def assign(place: Any, target: Any, value: Any) -> Any:
    """Return an assignment."""
    return at(place, ast.Assign([target], value))


def expression(place: Any, value: Any) -> Any:
    """Return an expression as a statement."""
    return at(place, ast.Expr(value))


def function(place: Any, name: str, parameters: Sequence[str], body: list[Any]) -> Any:
    """Return a function definition with positional parameters."""
    args = ast.arguments(
        posonlyargs=[], args=[at(place, ast.arg(one)) for one in parameters], vararg=None, kwonlyargs=[],
        kw_defaults=[], kwarg=None, defaults=[],
    )
    made = ast.FunctionDef(name=name, args=args, body=body, decorator_list=[], returns=None, type_comment=None)
    if "type_params" in ast.FunctionDef._fields:
        made.__dict__["type_params"] = []
    return at(place, made)


def thunk(body: Any) -> Any:
    """Return a lambda without parameters that computes an expression."""
    args = ast.arguments(posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[])
    return at(body, ast.Lambda(args, body))


def is_runtime(node: ast.Call) -> bool:
    """Whether a node is a call of the runtime."""
    function = node.func
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == RUNTIME
