"""Tell which names in a function are local, from an enclosing function, or global."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

LOCAL, FREE, GLOBAL = "local", "free", "global"


class Scope:
    """A function, lambda, class or comprehension: the names bound in it.

    Attributes:
        node: the node of the function, class or comprehension.
        parent: the enclosing scope; None for the function that is converted.
        bound: the names bound here.
        declared_global, declared_nonlocal: the names that a ``global`` or ``nonlocal`` statement here declares.
        changed_inside: the names of this scope that inner functions assign by ``nonlocal``.
    """

    def __init__(self, node: Any, parent: Scope | None, free: frozenset[str]) -> None:
        self.node = node
        self.parent = parent
        self.free = free
        self.is_class = isinstance(node, ast.ClassDef)
        self.bound: set[str] = set()
        self.declared_global: set[str] = set()
        self.declared_nonlocal: set[str] = set()
        self.changed_inside: set[str] = set()

    def kind(self, name: str) -> str:
        """Return whether a name read here is local to the converted function, from an enclosing one, or global."""
        scope: Scope | None = self
        while scope is not None:
            if scope is self or not scope.is_class:
                if name in scope.declared_global:
                    return GLOBAL
                if name in scope.bound and name not in scope.declared_nonlocal:
                    return LOCAL
            scope = scope.parent
        return FREE if name in self.free else GLOBAL

    def is_shared(self, name: str) -> bool:
        """Whether a name is a variable that functions inside its function assign."""
        scope: Scope | None = self
        while scope is not None:
            if (scope is self or not scope.is_class) and name in scope.bound and name not in scope.declared_nonlocal:
                return name in scope.changed_inside
            scope = scope.parent
        return False

    def owner(self, name: str) -> Scope | None:
        """Return the scope inside the converted function that owns a name declared nonlocal here."""
        scope = self.parent
        while scope is not None:
            if not scope.is_class and name in scope.bound and name not in scope.declared_nonlocal:
                return scope
            scope = scope.parent
        return None


def _parameters_of_types(node: Any) -> set[str]:
    """Return the names in the brackets of ``def f[T]`` and ``class C[T]``, of Python 3.12."""
    return {one.name for one in getattr(node, "type_params", ())}


Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class _Binder(ast.NodeVisitor):
    """Finds the names that each scope of a function binds."""

    def __init__(self, root: Any, free: frozenset[str]) -> None:
        self.scopes: dict[Any, Scope] = {}
        self.scope = self._new(root, None, free)
        self._enter_function(root)

    def _new(self, node: Any, parent: Scope | None, free: frozenset[str]) -> Scope:
        made = self.scopes[node] = Scope(node, parent, free)
        return made

    def _enter_function(self, node: Any) -> None:
        given = node.args
        self.scope.bound |= {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        self.scope.bound |= {one.arg for one in (given.vararg, given.kwarg) if one is not None}
        self._visit_all(node.body if isinstance(node.body, list) else [node.body])

    def _visit_all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _inside(self, node: Any, run: Any) -> None:
        outer = self.scope
        self.scope = self._new(node, outer, outer.free)
        run()
        self.scope = outer

    def visit_FunctionDef(self, node: Any) -> None:
        self.scope.bound.add(node.name)
        given = node.args
        self._visit_all([*node.decorator_list, *given.defaults, *given.kw_defaults])
        self._inside(node, lambda: self._enter_function(node))
        self.scopes[node].bound |= _parameters_of_types(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        self._inside(node, lambda: self._enter_function(node))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.bound |= {node.name, *_parameters_of_types(node)}
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self._inside(node, lambda: self._visit_all(node.body))

    def _comprehension(self, node: Any) -> None:
        first = node.generators[0]
        self.visit(first.iter)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        rest = [part for one in node.generators[1:] for part in (one.target, one.iter, *one.ifs)]
        self._inside(node, lambda: self._visit_all([first.target, *first.ifs, *rest, *elements]))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        scope = self.scope
        while isinstance(scope.node, Comprehension) and scope.parent is not None:
            scope = scope.parent
        scope.bound.add(node.target.id)
        self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.scope.bound.add(node.id)

    def visit_alias(self, node: ast.alias) -> None:
        self.scope.bound.add(node.asname or node.name.split(".")[0])

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.declared_global |= set(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.scope.declared_nonlocal |= set(node.names)

    def _bind_name(self, node: Any) -> None:
        if node.name is not None:
            self.scope.bound.add(node.name)
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _bind_name

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest is not None:
            self.scope.bound.add(node.rest)
        self.generic_visit(node)


def scopes_of(root: Any, free: Iterable[str]) -> dict[Any, Scope]:
    """Return the scopes of a function and of everything in it, by node.

    Args:
        root: the function's node; its defaults and decorators are ignored.
        free: the names that the function takes from enclosing functions.
    """
    scopes = _Binder(root, frozenset(free)).scopes
    for scope in scopes.values():
        for name in scope.declared_nonlocal:
            owner = scope.owner(name)
            if owner is not None:
                owner.changed_inside.add(name)
    return scopes
