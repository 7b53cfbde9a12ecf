"""Find the names that statements and blocks read and bind."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, NamedTuple

from hybridflow.convert.scopes import scopes_of

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Names(NamedTuple):
    """The names of a statement.

    Attributes:
        read: names that it reads before it binds them.
        killed: names that it certainly binds.
        bound: names that it may bind.
    """

    read: frozenset[str]
    killed: frozenset[str]
    bound: frozenset[str]


def _pattern_names(node: Any) -> Iterable[str]:
    name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
    return [] if name is None else [name]


class Uses:
    """The names of one function's statements; each statement is analyzed once.

    Attributes:
        captured: names that inner functions read; these may run at any time.
        changed: names that inner functions assign.
    """

    def __init__(self) -> None:
        self.captured: set[str] = set()
        self.changed: set[str] = set()
        self._known: dict[Any, Names] = {}

    def loads(self, *nodes: Any) -> tuple[set[str], set[str]]:
        """Return the names that expressions (or whole statements) read and bind."""
        read: set[str] = set()
        bound: set[str] = set()
        pending = [node for node in nodes if node is not None]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Name):
                if not isinstance(node.ctx, ast.Store):
                    read.add(node.id)
                if not isinstance(node.ctx, ast.Load):
                    bound.add(node.id)
            elif isinstance(node, _FUNCTIONS):
                self._capture(node)
                if not isinstance(node, ast.Lambda):
                    bound.add(node.name)
                    pending += node.decorator_list
                pending += [*node.args.defaults, *[one for one in node.args.kw_defaults if one is not None]]
            elif isinstance(node, ast.comprehension):
                pending += [node.iter, *node.ifs]  # its targets are names of its own
            elif isinstance(node, ast.ClassDef):
                bound.add(node.name)
                read |= self.loads(*node.body, *node.bases, *node.keywords, *node.decorator_list)[0]
            else:
                if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    read.add(node.target.id)
                if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping):
                    bound.update(_pattern_names(node))
                elif isinstance(node, ast.alias):
                    bound.add(node.asname or node.name.split(".")[0])
                elif isinstance(node, ast.Global | ast.Nonlocal):
                    self.captured.update(node.names)
                pending += ast.iter_child_nodes(node)
        return read, bound

    def _capture(self, function: Any) -> None:
        scope = scopes_of(function, ())[function]
        own = scope.bound - scope.declared_nonlocal - scope.declared_global
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id not in own:
                self.captured.add(node.id)
            elif isinstance(node, ast.Nonlocal):
                self.captured.update(node.names)
                self.changed.update(node.names)

    def of(self, node: Any) -> Names:
        """Return the names of a statement."""
        uses = self._known.get(node)
        if uses is None:
            uses = self._known[node] = self._of(node)
        return uses

    def _of(self, node: Any) -> Names:
        if isinstance(node, ast.If):
            read, bound = self.loads(node.test)
            a, b = self.block(node.body), self.block(node.orelse)
            return Names(a.read | b.read | read, a.killed & b.killed, a.bound | b.bound | bound)
        if isinstance(node, ast.While):
            read, bound = self.test(node)
            a, b = self.block(node.body), self.block(node.orelse)
            stops = getattr(node, "stops", ())
            return Names(a.read | b.read | read | frozenset(stops), frozenset(), a.bound | b.bound | bound)
        if isinstance(node, ast.For):
            read, bound = self.loads(node.iter)
            more, targets = self.loads(node.target)
            a, b = self.block(node.body), self.block(node.orelse)
            stops = frozenset(getattr(node, "stops", ()))
            reads = (a.read - targets) | b.read | read | more | stops
            return Names(reads, frozenset(), a.bound | b.bound | bound | targets)
        if isinstance(node, ast.Assign):
            killed = frozenset([one.id for one in node.targets if isinstance(one, ast.Name)])
            read, bound = self.loads(node.value, *node.targets)
            if len(killed) == len(node.targets):
                return Names(frozenset(read), killed, frozenset(bound))
        if isinstance(node, ast.With):
            return self._of_with(node)
        if isinstance(node, ast.Try):
            return self._of_try(node)
        read, bound = self.loads(node)
        certain = isinstance(node, ast.Assign | ast.FunctionDef | ast.Import | ast.ImportFrom) and not read & bound
        return Names(frozenset(read), frozenset(bound if certain else ()), frozenset(bound))

    def _of_with(self, node: ast.With) -> Names:
        """Return the names of a ``with``.

        Names that its body certainly binds count as certainly bound. That is wrong if a manager swallows an exception:
        a variable that is read afterwards may then have no value, and the read raises.
        """
        read: set[str] = set()
        killed: set[str] = set()
        bound: set[str] = set()
        for item in node.items:
            read |= self.loads(item.context_expr)[0] - killed
            more, targets = self.loads(item.optional_vars)
            read |= more - targets - killed
            bound |= targets | self.loads(item.context_expr)[1]
            killed |= targets - more
        body = self.block(node.body)
        return Names(frozenset(read | (body.read - killed)), body.killed | killed, body.bound | bound)

    def test(self, node: ast.While) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names that a loop's condition, including the statements before it, reads and binds."""
        read, bound = self.loads(node.test)
        before = self.block(getattr(node, "before", ()))
        return before.read | (read - before.killed), before.bound | bound

    def _of_try(self, node: ast.Try) -> Names:
        """Return the names of a ``try``: its body may end anywhere."""
        body, orelse, final = self.block(node.body), self.block(node.orelse), self.block(node.finalbody)
        read = body.read | (orelse.read - body.killed) | final.read
        bound = body.bound | orelse.bound | final.bound
        for handler in node.handlers:
            inner = self.block(handler.body)
            read |= inner.read | self.loads(handler.type)[0]
            bound |= inner.bound | ({handler.name} if handler.name is not None else set[str]())
        return Names(read, frozenset(), bound)

    def block(self, statements: Iterable[Any]) -> Names:
        """Return the names of a block."""
        read: set[str] = set()
        killed: set[str] = set()
        bound: set[str] = set()
        for statement in statements:
            names = self.of(statement)
            read |= names.read - killed
            killed |= names.killed
            bound |= names.bound
        return Names(frozenset(read), frozenset(killed), frozenset(bound))
