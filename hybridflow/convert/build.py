"""Convert a function: parse it, rewrite it, compile it at the user's lines, and cache the result."""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import re
import weakref
from collections.abc import Iterable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from hybridflow.convert.control import convert_control_flow
from hybridflow.convert.runtime import Runtime
from hybridflow.convert.scopes import scopes_of
from hybridflow.convert.source import NotConvertible, copied, find, without_syntax_warnings
from hybridflow.convert.syntax import RUNTIME, at, function
from hybridflow.convert.writes import Writes
from hybridflow.core.functions import is_kept
from hybridflow.guards.users import is_users

_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
"""The flags of ``from __future__ import ...``."""
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""The flags of code that stays as it is inside of converted code."""
_INNER = ".f"


class _Entry(NamedTuple):
    """The cached result for a code object: its converted form, or the reason why there is none."""

    of: weakref.ref[CodeType]
    code: CodeType | None
    reason: str


_entries: dict[int, _Entry] = {}


_made: dict[int, weakref.ref[CodeType]] = {}
"""The converted code objects, including those of inner functions."""


def is_converted(code: CodeType) -> bool:
    """Whether a code object is the result of a conversion."""
    original = _made.get(id(code))
    return original is not None and original() is code


def _mark(code: CodeType) -> CodeType:
    key = id(code)
    _made[key] = weakref.ref(code, lambda _: _made.pop(key, None))
    return code


def converted_tree(original: FunctionType) -> Any:
    """Return the syntax tree of a converted function: a definition or a lambda.

    Raises:
        NotConvertible: its source cannot be found.
    """
    source = find(original)
    node = copied(source.node, source.private)
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        node.returns = None
        node.__dict__["type_params"] = []  # of Python 3.12; those that the body names are in the closure
    given = node.args
    given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
    for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if one is not None:
            one.annotation = None
    return transform(node, original.__code__.co_freevars)


def _compiled(original: FunctionType) -> CodeType:
    code = original.__code__
    tree = converted_tree(original)
    name = _INNER
    if isinstance(tree, ast.Lambda):
        body: list[Any] = [at(tree, ast.Return(tree))]
        name = "<lambda>"
    else:
        tree.name = _INNER
        body = [tree]
    free = [one for one in code.co_freevars if one != RUNTIME]
    outer = function(tree, ".outer", [RUNTIME, *free], body)
    module = ast.Module([outer], [])
    ast.fix_missing_locations(module)
    with without_syntax_warnings():
        made = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    inner = _inside(_inside(made, ".outer"), name)
    if not set(inner.co_freevars) <= {RUNTIME, *code.co_freevars}:
        raise NotConvertible(f"its source, {code.co_filename}:{code.co_firstlineno}, was changed since it was loaded")
    return _renamed(inner, inner.co_qualname, code.co_qualname, code.co_name)


def _inside(code: CodeType, name: str) -> CodeType:
    """Return the code object with this name among a code object's constants."""
    return next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)


def _renamed(code: CodeType, prefix: str, name: str, short: str | None = None, stays: int = 0) -> CodeType:
    """Return a code object under the user's name; rename its inner functions too.

    Args:
        code: the code object.
        prefix: the beginning of its qualified name, and of those of its inner functions.
        name: what stands there instead.
        short: its own name; None for the one it has.
        stays: whether it is inside of code that was not rewritten, as coroutines are.
    """
    own = short or code.co_name
    qualified = name + code.co_qualname.removeprefix(prefix)
    stays |= code.co_flags & _ASYNC
    constants = tuple([_renamed_inside(one, code.co_qualname, qualified, own, stays) for one in code.co_consts])
    made = code.replace(co_consts=constants, co_qualname=qualified, co_name=own)
    return made if stays else _mark(made)


def _renamed_inside(constant: Any, prefix: str, name: str, short: str, stays: int) -> Any:
    """Return a constant of a code object, renamed if it is code: a generated function gets the user's name."""
    if not isinstance(constant, CodeType):
        return name if constant == prefix else constant  # the body of a class stores its qualified name
    if constant.co_name.startswith("."):
        return _renamed(constant, constant.co_qualname, name, short, stays)
    return _renamed(constant, prefix, name, None, stays)


def _entry(original: FunctionType) -> _Entry:
    code = original.__code__
    key = id(code)
    entry = _entries.get(key)
    if entry is None or entry.of() is not code:
        reference = weakref.ref(code, lambda _: _entries.pop(key, None))
        try:
            entry = _Entry(reference, _compiled(original), "")
        except NotConvertible as why:
            entry = _Entry(reference, None, str(why))
        _entries[key] = entry
    return entry


def converted_function(original: FunctionType) -> FunctionType:
    """Return a function's converted form with its globals, defaults and closure; itself if there is none."""
    code = _entry(original).code
    if code is None:
        return original
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    cells[RUNTIME] = CellType(Runtime(original.__globals__, dict(cells)))
    closure = tuple([cells[name] for name in code.co_freevars])
    made = FunctionType(code, original.__globals__, original.__name__, original.__defaults__, closure)
    made.__kwdefaults__ = original.__kwdefaults__
    made.__qualname__ = original.__qualname__
    made.__module__ = original.__module__
    made.__doc__ = original.__doc__
    made.__annotations__ = original.__annotations__
    made.__dict__.update(original.__dict__)
    return made


def reason_of(code: CodeType) -> str | None:
    """Return why control flow in a function with this code stays Python's in a trace."""
    if is_converted(code):
        return (
            "Conditions of a yield, of a generator's exits, of := in a lambda's later operands, of a pattern's value "
            "in match, and those that a function written in C asks for stay Python's."
        )
    entry = _entries.get(id(code))
    if entry is not None and entry.of() is code and entry.code is None:
        why = entry.reason
    elif not is_users(code):
        why = "it belongs to a library"
    elif is_kept(code):
        why = "it is marked with hf.no_convert"
    else:
        why = "it was called by Python itself or by a library, or it is compiled with autograph=False"
    return f"The control flow of {code.co_qualname} was not converted: {why}."


def converted_text(function: Any) -> str:
    """Return the converted code as text; generated names, which are no identifiers, get an underscore.

    Raises:
        NotConvertible: the function's source cannot be found.
    """
    while not isinstance(function, FunctionType):
        inner = getattr(function, "__func__", None) or getattr(function, "func", None) or type(function).__call__
        if not isinstance(inner, FunctionType | MethodType | functools.partial):
            raise NotConvertible(f"a {type(function).__name__} has no Python source")
        function = inner
    original = function
    text = ast.unparse(converted_tree(original))
    return re.sub(r"(?<![\w\])}.'\"])\.(?=[a-z0-9])", "_", text)


__all__ = ["converted_function", "converted_text", "is_converted", "reason_of"]


# -- rewriting of a function's syntax tree ----------------------------------------------------------------------------


def transform(node: Any, free: Iterable[str]) -> Any:
    """Rewrite a function's definition or lambda in place, and return it.

    Args:
        node: the function: a copy of the user's, without decorators and defaults.
        free: the names it takes from enclosing functions.
    """
    for one in ast.walk(node):
        _mark_tested(one)
    convert_control_flow(node)
    rewriter = Writes(scopes_of(node, free), node)
    if isinstance(node, ast.Lambda):
        node.body = rewriter.visit(node.body)
    else:
        node.body = rewriter.block(node.body)
    return node


def _mark_tested(node: Any) -> None:
    """Mark the operands of ``and`` and ``or`` in a node's conditions: only their truth counts, not their values."""
    negated = [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []
    tests = [*negated, *getattr(node, "ifs", ()), getattr(node, "test", None), getattr(node, "guard", None)]
    while tests:
        test = tests.pop()
        if isinstance(test, ast.BoolOp):
            test.__dict__["tested"] = True
            tests += test.values
