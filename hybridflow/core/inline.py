"""Inline small functions into their callers, when the callers are defined.

On small arrays, Python calls are a large part of the cost of an operation. Several hot paths share code; `inlined`
lets that code be written once without costing them a call.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def inlined(*pieces: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that replaces calls of some small functions, the pieces, by their code.

    The decorated function behaves as before, but saves the time of the calls. The only ``return`` of a piece must be
    its last statement. A call is replaced, also in inner functions, if it is a whole statement, ``return piece(...)``
    or ``names = piece(...)``, whose arguments are names and constants. If the source is not available, nothing is
    replaced. The generated code is stored in `linecache`, so that tracebacks show it.
    """

    def decorate(function: F) -> F:
        try:
            tree = _definition(function)
            known = {piece.__name__: _definition(piece) for piece in pieces}
        except OSError:  # installed without sources
            return function
        tree.decorator_list = []
        source = ast.unparse(ast.fix_missing_locations(_Inliner(known).visit(tree)))
        space: dict[str, Any] = cast(Any, function).__globals__
        for piece in pieces:
            _give_globals(piece, space)
        name = f"{function.__code__.co_filename}:{function.__name__}"
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        namespace: dict[str, Any] = {}
        exec(compile(source, name, "exec", dont_inherit=True), space, namespace)
        return cast(F, functools.update_wrapper(namespace[tree.name], function))

    return decorate


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    for node in ast.walk(tree):  # drop annotations, which would be evaluated, and docstrings
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for arg in node.args.posonlyargs + node.args.args:
                arg.annotation = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
    return tree


def _give_globals(piece: Callable[..., Any], space: dict[str, Any]) -> None:
    """Add the globals that a piece reads to the function's globals."""
    around = cast(Any, piece).__globals__
    for name in piece.__code__.co_names:
        if name in around:
            known = space.setdefault(name, around[name])
            assert known is around[name], f"two meanings of {name}"


class _Inliner(ast.NodeTransformer):
    def __init__(self, pieces: dict[str, ast.FunctionDef]) -> None:
        self.pieces = pieces
        self.count = 0

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Replace ``names = piece(...)``."""
        return self._replaced(node, lambda value: ast.Assign(node.targets, value))

    def visit_Return(self, node: ast.Return) -> Any:
        """Replace ``return piece(...)``."""
        return self._replaced(node, ast.Return)

    def _replaced(self, node: ast.Assign | ast.Return, last: Callable[[ast.expr], ast.stmt]) -> Any:
        called = node.value
        if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Name):
            return node
        piece = self.pieces.get(called.func.id)
        if piece is None:
            return node
        self.count += 1
        names = [arg.arg for arg in piece.args.args]
        assert not called.keywords, ast.unparse(node)
        assert len(called.args) <= len(names), ast.unparse(node)
        given = dict(zip(names[::-1], piece.args.defaults[::-1], strict=False))
        given |= dict(zip(names, called.args, strict=False))
        body = ast.parse(ast.unparse(piece)).body[0].body  # pyright: ignore  (a copy)
        returned = body.pop()
        assert isinstance(returned, ast.Return), ast.unparse(node)
        assert returned.value is not None, ast.unparse(node)
        own = {name: f"{name}_{self.count}" for name in _written(piece)}
        own |= {name: f"{name}_{self.count}" for name, one in given.items() if not isinstance(one, _SIMPLE)}
        wanted = _names(node.targets[0]) if isinstance(node, ast.Assign) else []
        results = _names(returned.value)
        direct = len(results) == len(wanted) > 0 and all(
            name in own and not any(target in _read(one) for other, one in given.items() if other != name)
            for name, target in zip(results, wanted, strict=True)
        )
        if direct:  # let the piece write straight into the function's variables
            own |= dict(zip(results, wanted, strict=True))
        renamed = {**given, **{name: ast.Name(to, ast.Load()) for name, to in own.items()}}
        before = [
            ast.Assign([ast.Name(to, ast.Store())], given[name])
            for name, to in own.items() if name in given and ast.unparse(given[name]) != to
        ]
        body = [_Renamer(renamed).visit(one) for one in body]
        return [*before, *body, *([] if direct else [last(_Renamer(renamed).visit(returned.value))])]


_SIMPLE = ast.Name | ast.Constant


def _written(tree: ast.AST) -> list[str]:
    stores = [one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    return list(dict.fromkeys(stores))


def _read(tree: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}


def _names(value: ast.expr) -> list[str]:
    """Return the names in an expression that is a name or a tuple of names, else an empty list."""
    several = value.elts if isinstance(value, ast.Tuple) else [value]
    return [one.id for one in several if isinstance(one, ast.Name)] if all(
        isinstance(one, ast.Name) for one in several) else []


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Drop annotations."""
        assert node.value is not None
        return self.visit(ast.Assign([node.target], node.value))

    def visit_Name(self, node: ast.Name) -> Any:
        """Rename parameters and local variables."""
        renamed = self.names.get(node.id)
        if renamed is None:
            return node
        return ast.Name(renamed.id, node.ctx) if isinstance(renamed, ast.Name) else renamed
