"""Rewriting of statements, so that the runtime learns of stores to attributes, items and outer names."""

from __future__ import annotations

import ast
import copy
from typing import Any

from hybridflow.convert.exits import has_yield
from hybridflow.convert.reads import Reads
from hybridflow.convert.syntax import (
    RUNTIME,
    assign,
    at,
    constant,
    expression,
    load,
    one_line,
    runtime,
    store,
    thunk,
)


class Writes(Reads):
    """Rewrites assignments, deletions, loops and blocks with targets, definitions."""

    # -- targets ----------------------------------------------------------------------------------------------

    def plain(self, target: Any) -> bool:
        """Whether a target only binds local names."""
        if isinstance(target, ast.Name):
            return self.written(target.id, None, target) is None
        if isinstance(target, ast.Tuple | ast.List):
            return all(self.plain(one) for one in target.elts)
        return isinstance(target, ast.Starred) and self.plain(target.value)

    def split(self, target: Any) -> tuple[Any, list[Any]]:
        """Return a target of local names and temporaries, and the statements that store from these."""
        if self.plain(target):
            return target, []
        if isinstance(target, ast.Tuple | ast.List):
            parts = [self.split(one) for one in target.elts]
            target.elts = [part for part, _ in parts]
            return target, [after for _, later in parts for after in later]
        if isinstance(target, ast.Starred):
            target.value, later = self.split(target.value)
            return target, later
        name = self.temporary()
        return store(target, name), self.store(target, load(target, name))

    def store(self, target: Any, value: Any) -> list[Any]:
        """Return the statements that store a value; the value is evaluated before the target's own expressions."""
        if isinstance(target, ast.Attribute):
            arguments = self.visit(target.value), constant(target, target.attr)
            return [expression(target, runtime(target, "write_attr", value, *arguments))]
        if isinstance(target, ast.Subscript):
            arguments = self.loaded(target.value), self.key(target.slice)
            return [expression(target, runtime(target, "write_item", value, *arguments))]
        if isinstance(target, ast.Name):
            return [assign(target, target, self.written(target.id, value, target))]
        target, later = self.split(target)
        return [assign(target, target, value), *later]

    # -- assignments --------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self.visit(node.value)
        if any(isinstance(target, ast.Tuple | ast.List) for target in node.targets) and not isinstance(
            node.value, ast.Tuple | ast.List
        ):
            value = runtime(node.value, "iterate", value)
        if all(self.plain(target) for target in node.targets):
            node.value = value
            return node
        if len(node.targets) == 1:
            return [at(node, one) for one in self.store(node.targets[0], value)]
        name = self.temporary()
        made = [assign(node, store(node, name), value)]
        for target in node.targets:
            made += self.store(target, load(node, name))
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        # In a function, annotations are never evaluated.
        if node.value is None:
            return node
        if self.scope.is_class:
            node.value = self.visit(node.value)
            return node
        return self.visit_Assign(at(node, ast.Assign([node.target], node.value)))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        target = node.target
        kind = constant(node, type(node.op).__name__)
        if isinstance(target, ast.Name):
            operand = self.visit(node.value)
            shared = self.scope.is_shared(target.id)
            before = load(target, target.id)
            before = self.checked(before) if shared else self.loaded(before)
            value = runtime(node, "augment", kind, before, operand)
            return assign(node, target, self.written(target.id, value, node, augmented=True))
        holder, key, name = self.temporary(), self.temporary(), self.temporary()
        attribute = isinstance(target, ast.Attribute)
        what = "attr" if attribute else "item"
        held = self.visit(target.value) if attribute else self.loaded(target.value)
        made = [assign(target, store(target, holder), held)]
        if not attribute:
            made.append(assign(target, store(target, key), self.key(target.slice)))

        def place() -> list[Any]:
            second = constant(target, target.attr) if isinstance(target, ast.Attribute) else load(target, key)
            return [load(target, holder), second]

        value = runtime(node, "augment", kind, load(node, name), self.visit(node.value))
        return [
            *made,
            assign(target, store(target, name), runtime(target, f"load_{what}", *place())),
            expression(node, runtime(target, f"write_{what}", value, *place(), constant(node, True))),
        ]

    def visit_Delete(self, node: ast.Delete) -> Any:
        made: list[Any] = []
        for target in node.targets:
            made += self.deleted(target, node)
        return made

    def deleted(self, target: Any, node: ast.Delete) -> list[Any]:
        """Return the statements that delete a target."""
        if isinstance(target, ast.Tuple | ast.List):
            return [one for part in target.elts for one in self.deleted(part, node)]
        if isinstance(target, ast.Attribute):
            made = runtime(target, "delete_attr", self.visit(target.value), constant(target, target.attr))
            return [expression(node, made)]
        if isinstance(target, ast.Subscript):
            made = runtime(target, "delete_item", self.loaded(target.value), self.key(target.slice))
            return [expression(node, made)]
        before: list[Any] = []
        if not self.plain(target):
            kind = "global" if target.id in self.scope.declared_global else "free"
            made = runtime(target, f"delete_{kind}", constant(target, target.id), load(target, target.id))
            before = [expression(node, made)]
        return [*before, at(node, ast.Delete([target]))]

    # -- blocks with targets --------------------------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.iterated(node.iter)
        node.target, later = self.split(node.target)
        node.body = [*later, *self.block(node.body)]
        node.orelse = self.block(node.orelse)
        return node

    def visit_With(self, node: ast.With) -> Any:
        first, *rest = node.items
        first.context_expr = runtime(first.context_expr, "manager", self.visit(first.context_expr))
        later: list[Any] = []
        if first.optional_vars is not None:
            first.optional_vars, later = self.split(first.optional_vars)
        # One manager per block: each is entered before the next one's expression is evaluated.
        body = [self.visit_With(at(node, ast.With(rest, node.body)))] if rest else self.block(node.body)
        return at(node, ast.With([first], [*later, *body]))

    def visit_Try(self, node: ast.Try) -> Any:
        made, yields = getattr(node, "made", False), has_yield(node)
        self.generic_visit(node)
        if made:
            return node
        place = one_line(node)
        handles = constant(place, bool(node.handlers))
        if node.finalbody:
            start = one_line(node.finalbody[0])
            node.finalbody.insert(0, expression(start, runtime(start, "seen")))
        if yields:  # the caller must not see a generator's handlers while the generator is suspended
            node.body.insert(0, expression(place, runtime(place, "acts_on_errors", handles)))
            for handler in node.handlers:
                start = one_line(handler)
                handler.body.insert(0, expression(start, runtime(start, "handled_name")))
            return node
        node.body = [at(place, ast.With([ast.withitem(runtime(place, "trying", handles))], node.body))]
        for handler in node.handlers:
            start = one_line(handler)
            handler.body.insert(0, expression(start, runtime(start, "handled")))
        return node

    def block(self, body: list[Any]) -> list[Any]:
        """Visit the statements of a block."""
        made: list[Any] = []
        for statement in body:
            visited = self.visit(statement)
            made += visited if isinstance(visited, list) else [] if visited is None else [visited]
        return made

    # -- definitions --------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        kept = any(_called(one) == "no_convert" for one in node.decorator_list)
        node.decorator_list = [self.decorator(one) for one in node.decorator_list]
        self.visit_defaults(node)
        if not kept:
            self.function_body(node)
        return self.defined(node, node.name)

    def function_body(self, node: Any) -> None:
        """Convert the body of a function."""
        outer, self.scope = self.scope, self.scopes[node]
        node.body = self.block(node.body)
        self.scope = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.decorator_list = [self.decorator(one) for one in node.decorator_list]
        node.bases = [self.visit(one) for one in node.bases]
        place = one_line(node)
        for keyword in node.keywords:
            keyword.value = runtime(place, "whole", self.visit(keyword.value))
        outer, self.scope = self.scope, self.scopes[node]
        node.body = self.block(node.body)
        self.scope = outer
        made = at(place, ast.Attribute(load(place, RUNTIME), "made_class", ast.Load()))
        node.decorator_list.append(made)
        return self.defined(node, node.name)

    def decorator(self, node: Any) -> Any:
        """Return a decorator that is converted when it is called."""
        return runtime(one_line(node), "callee", self.visit(node))

    def defined(self, node: Any, name: str) -> Any:
        """Return a definition; the runtime is told if its name is not local."""
        noted = self.written(name, load(one_line(node), name), one_line(node))
        plain = isinstance(noted, ast.Name)
        return node if plain else [node, assign(one_line(node), store(one_line(node), name), noted)]

    def imported(self, node: Any) -> Any:
        """Return an import; the runtime is told what it reads, and of names that are not local."""
        before: list[Any] = []
        made: list[Any] = []
        module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            source, part = (alias.name, "") if isinstance(node, ast.Import) else (module, alias.name)
            if source is not None and alias.name != "*":
                read = runtime(node, "imported", constant(node, part), load(node, name), constant(node, source))
                made.append(assign(node, store(node, name), read))
                noted = runtime(node, "importing", constant(node, part), constant(node, source))
                before.append(expression(node, noted))
            noted = self.written(name, load(node, name), node)
            if not isinstance(noted, ast.Name):
                made.append(assign(node, store(node, name), noted))
        return [*before, node, *made]

    visit_Import = visit_ImportFrom = imported

    def visit_Match(self, node: ast.Match) -> Any:
        patterns = [part for case in node.cases for part in ast.walk(case.pattern)]
        flags = any(isinstance(one, ast.MatchSingleton) and one.value is not None for one in patterns)
        asked = [thunk(self.visit(copy.deepcopy(one.cls))) for one in patterns if isinstance(one, ast.MatchClass)]
        subject = self.visit(node.subject)
        node.subject = runtime(node.subject, "matched", subject, constant(node, flags), *asked)
        node.cases = [self.visit(one) for one in node.cases]
        return node

    # -- patterns: Python allows only constants and dotted names in them -------------------------------------------

    def visit_match_case(self, node: ast.match_case) -> Any:
        if node.guard is not None:
            node.guard = self.visit(node.guard)
        node.body = self.block(node.body)
        return node


def _called(decorator: Any) -> str | None:
    """Return the last part of a decorator's name."""
    return decorator.id if isinstance(decorator, ast.Name) else getattr(decorator, "attr", None)
