"""Lower ``match`` to a chain of tests, so that its values and guards may be tensors."""

from __future__ import annotations

import ast
from typing import Any

from hybridflow.convert.exits import has_yield
from hybridflow.convert.syntax import assign, at, constant, load, one_line, runtime, store

_MANY = 40
"""A ``match`` with more cases is kept: every case becomes one level of nesting."""


def lower_matches(node: Any) -> None:
    """Replace every ``match`` in a function's blocks, or below a statement, by a chain of tests.

    Python itself matches patterns other than values and names, one at a time.
    """
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            setattr(node, field, [made for one in block for made in _lowered(one)])
    for handler in getattr(node, "handlers", ()):
        lower_matches(handler)


def _lowered(node: Any) -> list[Any]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node]
    if not isinstance(node, ast.Match):
        lower_matches(node)
        return [node]
    for case in node.cases:
        lower_matches(case)
    if has_yield(node) or len(node.cases) > _MANY:
        return [node]
    subject = f".subject_{node.lineno}_{node.col_offset}"
    seen: set[bool] = set()
    for case in node.cases:
        if isinstance(case.pattern, ast.MatchSingleton) and type(case.pattern.value) is bool:
            case.pattern.__dict__["is_last"] = (not case.pattern.value) in seen
            seen |= {case.pattern.value} if case.guard is None else set()
    made: list[Any] = []
    for index, case in reversed(list(enumerate(node.cases))):
        made = _case(case, subject, f".matched_{node.lineno}_{node.col_offset}_{index}", made)
    place = one_line(node)
    return [assign(place, store(place, subject), node.subject), *made]


def _case(case: ast.match_case, subject: str, matched: str, rest: list[Any]) -> list[Any]:
    pattern: Any = case.pattern
    place = one_line(pattern)
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        bound = [] if pattern.name is None else [assign(place, store(place, pattern.name), load(place, subject))]
        if case.guard is None:
            return [*bound, *case.body]
        return [*bound, at(place, ast.If(case.guard, case.body, rest))]
    bound: list[Any] = []
    if isinstance(pattern, ast.MatchAs) and pattern.name is not None and _test(pattern.pattern, subject) is not None:
        bound, pattern = [assign(place, store(place, pattern.name), load(place, subject))], pattern.pattern
    test = _test(pattern, subject)
    if test is not None and case.guard is None:
        return [at(place, ast.If(test, [*bound, *case.body], rest))]
    if test is not None:
        first = [assign(place, store(place, matched), test)]
    else:
        branches = ast.match_case(pattern, None, [assign(place, store(place, matched), constant(place, True))])
        rest_of = ast.match_case(
            at(place, ast.MatchAs(None, None)), None, [assign(place, store(place, matched), constant(place, False))]
        )
        cases = [branches] if _irrefutable(pattern) else [branches, rest_of]
        first = [at(place, ast.Match(load(place, subject), cases))]
    if case.guard is not None:
        guarded = assign(case.guard, store(place, matched), case.guard)
        first.append(at(place, ast.If(load(place, matched), [*bound, guarded], [])))
    return [*first, at(place, ast.If(load(place, matched), case.body, rest))]


def _irrefutable(pattern: Any) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return _irrefutable(pattern.patterns[-1])
    return isinstance(pattern, ast.MatchAs) and (pattern.pattern is None or _irrefutable(pattern.pattern))


def _test(pattern: Any, subject: str) -> Any:
    """Return the test for a pattern of values; None for other patterns."""
    if isinstance(pattern, ast.MatchValue):
        return at(pattern, ast.Compare(load(pattern, subject), [ast.Eq()], [pattern.value]))
    if isinstance(pattern, ast.MatchSingleton):
        compared = constant(pattern, pattern.value)
        if getattr(pattern, "is_last", False):
            return runtime(pattern, "other_bool", load(pattern, subject), compared)
        return at(pattern, ast.Compare(load(pattern, subject), [ast.Is()], [compared]))
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None:
        return constant(pattern, True)
    if isinstance(pattern, ast.MatchOr):
        tests = [_test(one, subject) for one in pattern.patterns]
        return None if None in tests else at(pattern, ast.BoolOp(ast.Or(), tests))
    return None
