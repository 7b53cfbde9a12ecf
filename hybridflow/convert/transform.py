"""Rewriting of a function's syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from hybridflow.convert.control import convert_control_flow
from hybridflow.convert.scopes import scopes_of
from hybridflow.convert.writes import Writes


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
