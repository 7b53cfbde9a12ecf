"""``:=`` that runs under a condition: in a later operand of and/or, a branch of a ternary, or the end of a chain.

Conversion turns an expression under a condition into a function, and a function cannot bind a name for the code around
it. So an expression with such a ``:=`` is replaced by statements before its own statement, in Python's order of
evaluation.
"""

from __future__ import annotations

import ast
from typing import Any

from hybridflow.convert.exits import has_yield, inside
from hybridflow.convert.syntax import assign, at, constant, load, one_line, store

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class _Hoisting:
    """Rewrites one function, and numbers its temporaries."""

    def __init__(self) -> None:
        self.count = 0

    def temporary(self) -> str:
        """Return a new name for the value of a condition; it decides whether some variables have values."""
        self.count += 1
        return f".holds_{self.count}"

    # -- statements ---------------------------------------------------------------------------------------------

    def blocks(self, node: Any) -> None:
        """Rewrite the blocks of a statement."""
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [made for one in block for made in self.statement(one)])
        for one in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.blocks(one)

    def statement(self, node: Any) -> list[Any]:
        """Return the statements that replace a statement: first those that its ``:=`` became, then itself."""
        if isinstance(node, _FUNCTIONS):
            return [node]
        self.blocks(node)
        before: list[Any] = []
        for field in ("test", "value", "exc", "subject"):
            expression = getattr(node, field, None)
            if isinstance(expression, ast.expr) and _is_bound_later(expression):
                setattr(node, field, self.lifted(expression, before))
                break
        if isinstance(node, ast.While) and before:
            node.__dict__["before"] = before
            return [node]
        return [*before, node]

    # -- expressions --------------------------------------------------------------------------------------------

    def lifted(self, node: Any, before: list[Any]) -> Any:
        """Return an expression whose conditional bindings were moved into statements, which are added to `before`."""
        if not _is_bound_later(node):
            return node
        if isinstance(node, ast.BoolOp):
            return self.operands(node, before)
        if isinstance(node, ast.IfExp):
            return self.ternary(node, before)
        if isinstance(node, ast.Compare) and len(node.ops) > 1 and any(map(_binds, node.comparators[1:])):
            return self.lifted(self.chain(node, before), before)
        if isinstance(node, ast.NamedExpr):
            node.value = self.lifted(node.value, before)
        elif isinstance(node, ast.UnaryOp):
            node.operand = self.lifted(node.operand, before)
        else:
            self.others(node, before)
        return node

    def operands(self, node: ast.BoolOp, before: list[Any]) -> Any:
        """Return the name that holds the value of an and/or."""
        name = self.temporary()
        block = before
        for index, operand in enumerate(node.values):
            place = one_line(operand)
            value = self.lifted(operand, block)
            block.append(assign(place, store(place, name), value))
            if index + 1 < len(node.values):
                test = load(place, name)
                if isinstance(node.op, ast.Or):
                    test = at(place, ast.UnaryOp(ast.Not(), test))
                inner: list[Any] = []
                block.append(at(place, ast.If(test, inner, [])))
                block = inner
        return load(node, name)

    def ternary(self, node: ast.IfExp, before: list[Any]) -> Any:
        """Return the name that holds the value of a ternary."""
        name, place = self.temporary(), one_line(node)
        made = at(place, ast.If(self.lifted(node.test, before), [], []))
        for block, value in ((made.body, node.body), (made.orelse, node.orelse)):
            value = self.lifted(value, block)
            block.append(assign(one_line(value), store(value, name), value))
        before.append(made)
        return load(node, name)

    def chain(self, node: ast.Compare, before: list[Any]) -> Any:
        """Return a chained comparison as an ``and`` of its parts, each value computed once."""
        left: Any = self.temporary()
        before.append(assign(one_line(node), store(node.left, left), self.lifted(node.left, before)))
        parts: list[Any] = []
        for op, value in zip(node.ops, node.comparators, strict=True):
            name = self.temporary()
            bound = at(value, ast.NamedExpr(store(value, name), value))
            parts.append(at(node, ast.Compare(load(node, left), [op], [bound])))
            left = name
        return at(node, ast.BoolOp(ast.And(), parts))

    def others(self, node: Any, before: list[Any]) -> None:
        """Lift bindings out of an expression's operands; operands that are evaluated earlier become temporaries."""
        operands = _operands(node)
        while operands and not _is_bound_later(operands[-1][0][operands[-1][1]]):
            operands.pop()
        bound = {one.target.id for one in inside(node) if isinstance(one, ast.NamedExpr)}
        if any(isinstance(holder[key], ast.Starred | ast.Slice) for holder, key in operands):
            return
        for holder, key in operands:
            value = self.lifted(holder[key], before)
            if not _is_end(value, bound) and (holder, key) != operands[-1]:
                name, place = self.temporary(), one_line(value)
                before.append(assign(place, store(place, name), value))
                value = load(value, name)
            holder[key] = value


def _operands(node: Any) -> list[tuple[Any, Any]]:
    """Return the containers and keys of an expression's operands, in the order of evaluation."""
    made: list[tuple[Any, Any]] = []
    for field in ("func", "left", "value", "slice", "elts", "args", "comparators", "right"):
        operand = getattr(node, field, None)
        if isinstance(operand, list):
            made += [(operand, index) for index in range(len(operand))]
        elif isinstance(operand, ast.expr):
            made.append((node.__dict__, field))
    return made + [(keyword.__dict__, "value") for keyword in getattr(node, "keywords", ())]


def _is_end(node: Any, bound: set[str]) -> bool:
    """Whether an operand can stay where it is: a constant, or a name that the others do not bind and its attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id not in bound)


def _binds(node: Any) -> bool:
    return any(isinstance(one, ast.NamedExpr) for one in inside(node))


def _is_bound_later(node: Any) -> bool:
    """Whether an expression binds a name only under a condition."""
    if has_yield(node):
        return False
    for one in inside(node):
        later: list[Any] = []
        if isinstance(one, ast.BoolOp):
            later = one.values[1:]
        elif isinstance(one, ast.IfExp):
            later = [one.body, one.orelse]
        elif isinstance(one, ast.Compare):
            later = one.comparators[1:]
        if any(map(_binds, later)):
            return True
    return False


def lower_bindings(node: Any) -> None:
    """Rewrite the statements of a function that have a ``:=`` under a condition."""
    if any(isinstance(one, ast.NamedExpr) for statement in node.body for one in inside(statement)):
        _Hoisting().blocks(node)


def as_endless_loop(node: ast.While) -> ast.While:
    """Return a loop that stays a Python loop, with the statements of its condition at the start of its body."""
    place = one_line(node.test)
    leave = at(place, ast.If(node.test, [at(place, ast.Pass())], [*node.orelse, at(place, ast.Break())]))
    node.body = [*getattr(node, "before", ()), leave, *node.body]
    node.orelse = []
    node.test = constant(place, True)
    node.__dict__["before"] = []
    return node
