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
    convert_control_flow(node)
    rewriter = Writes(scopes_of(node, free), node)
    if isinstance(node, ast.Lambda):
        node.body = rewriter.visit(node.body)
    else:
        node.body = rewriter.block(node.body)
    return node
