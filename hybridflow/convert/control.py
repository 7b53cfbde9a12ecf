"""Turn the blocks of branches and loops into functions, which the runtime calls as in Python, or traces.

These functions share the variables of the function around them (``nonlocal``). The runtime reads and sets the variables
through the functions' closure cells.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from hybridflow.convert.bindings import as_endless_loop, lower_bindings
from hybridflow.convert.exits import (
    has_exit,
    has_yield,
    inside_body,
    is_converted_branch,
    is_converted_loop,
    lower_exits,
)
from hybridflow.convert.liveness import Uses
from hybridflow.convert.syntax import assign, at, constant, expression, function, load, one_line, runtime, store


class _Counter:
    """Numbers the generated functions of one converted function, including those of its inner functions."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


class Control:
    """Rewrites the blocks of one function."""

    def __init__(self, node: ast.FunctionDef, counter: _Counter, exits_stay: bool) -> None:
        self.counter = counter
        self.exits_stay = exits_stay
        self.uses = Uses()
        statements = list(inside_body(node))
        self.globals = {name for one in statements if isinstance(one, ast.Global) for name in one.names}
        self.nonlocals = {name for one in statements if isinstance(one, ast.Nonlocal) for name in one.names}
        given = node.args
        self.parameters = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        self.parameters |= {one.arg for one in (given.vararg, given.kwarg) if one is not None}
        self.shared: set[str] = set()

    def run(self, node: ast.FunctionDef) -> None:
        """Rewrite the function's body."""
        self.uses.block(node.body)
        body = self.block(node.body, frozenset())
        own = sorted(self.shared - self.parameters - self.globals - self.nonlocals)
        if own:
            # `nonlocal` needs a binding here for names that are bound only in the generated functions.
            start = 1 if ast.get_docstring(node, clean=False) is not None else 0
            place = one_line(node.body[0])
            targets = [store(place, name) for name in own]
            bind = at(place, ast.Assign(targets, constant(place, None)))
            body.insert(start, at(place, ast.If(constant(place, False), [bind], [])))
        node.body = body

    # -- blocks -----------------------------------------------------------------------------------------------

    def block(self, statements: list[Any], live: frozenset[str]) -> list[Any]:
        """Rewrite the statements of a block, after which `live` names may be read."""
        after: list[frozenset[str]] = []
        for statement in reversed(statements):
            after.append(live)
            names = self.uses.of(statement)
            live = names.read | (live - names.killed)
        made: list[Any] = []
        for statement, later in zip(statements, reversed(after), strict=True):
            made += self.statement(statement, later)
        return made

    def statement(self, node: Any, live: frozenset[str]) -> list[Any]:
        """Rewrite a statement."""
        stays = self.exits_stay and has_exit(node)
        if isinstance(node, ast.If):
            if is_converted_branch(node) and not stays:
                return self.branch(node, live)
            return self.inside(node, live, ("body", "orelse"))
        if isinstance(node, ast.While | ast.For):
            if is_converted_loop(node) and not stays:
                return self.loop(node, live)
            if isinstance(node, ast.While) and getattr(node, "before", ()):
                node = as_endless_loop(node)
            return self.inside(node, live | self.uses.of(node).read, ("body", "orelse"))
        if isinstance(node, ast.With | ast.Try | ast.Match):
            return self.python_block(node, live)
        if isinstance(node, ast.FunctionDef):
            convert_function(node, self.counter)
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    convert_function(one, self.counter)
        return [node]

    def python_block(self, node: ast.With | ast.Try | ast.Match, live: frozenset[str]) -> list[Any]:
        """Rewrite the blocks of a ``with``, ``try`` or ``match``."""
        if isinstance(node, ast.With):
            return self.inside(node, live, ("body",))
        if isinstance(node, ast.Match):
            for case in node.cases:
                case.body = self.block(case.body, live)
            return [node]
        later = live | self.uses.of(node).read
        for handler in node.handlers:
            self.inside(handler, later, ("body",))
        return self.inside(node, later, ("body", "orelse", "finalbody"))

    def inside(self, node: Any, live: frozenset[str], fields: Iterable[str]) -> list[Any]:
        """Rewrite the blocks of a statement that is kept."""
        for field in fields:
            setattr(node, field, self.block(getattr(node, field), live))
        return [node]

    # -- generated functions -----------------------------------------------------------------------------------

    def shared_names(self, *blocks: Iterable[Any]) -> list[str]:
        """Return the variables that blocks, or inner functions, bind."""
        bound = {name for block in blocks for name in self.uses.block(block).bound} | self.uses.changed
        self.shared |= bound
        return sorted(bound)

    def define(self, place: Any, kind: str, parameters: list[str], body: list[Any], names: Iterable[str]) -> Any:
        """Return a function with a block as its body, which binds names of the function around it."""
        place = one_line(place)
        outer = sorted(set(names) - self.globals)
        own = sorted(set(names) & self.globals)
        start: list[Any] = [at(place, ast.Nonlocal(outer))] if outer else []
        start += [at(place, ast.Global(own))] if own else []
        return function(place, f".{kind}_{self.counter.next()}", parameters, [*start, *body] or [at(place, ast.Pass())])

    def live_names(self, names: list[str], live: frozenset[str]) -> Any:
        """Return the names that may be read later, for the runtime."""
        outside = self.globals | self.nonlocals | self.uses.captured
        return tuple([name for name in names if name in live or name in outside])

    def branch(self, node: ast.If, live: frozenset[str]) -> list[Any]:
        """Return an ``if`` as functions of its blocks and a call of the runtime."""
        names = self.shared_names(node.body, node.orelse)
        place = one_line(node)
        true = self.define(node, "true", [], self.block(node.body, live), names)
        made = [true]
        chosen = [load(place, true.name), constant(place, None)]
        if node.orelse:
            orelse = self.block(node.orelse, live)
            false = self.define(node.orelse[0], "false", [], orelse, names)
            made.append(false)
            chosen[1] = load(place, false.name)
        about = [constant(place, tuple(names)), constant(place, self.live_names(names, live))]
        return [*made, expression(place, runtime(place, "if_", node.test, *chosen, *about))]

    def loop(self, node: Any, live: frozenset[str]) -> list[Any]:
        """Return a loop as functions of its test and its body, and a call of the runtime."""
        place = one_line(node)
        orelse = node.orelse
        stops: list[str] = list(getattr(node, "stops", ()))
        if isinstance(node, ast.For):
            node.target, first = self.target(node)
            self.uses.block(first)
        else:
            first = []
        body = [*first, *node.body]
        # The condition runs in every step, so the names that it binds count as bound by the body too.
        nothing = frozenset[str]()
        reads, test_bound = self.uses.test(node) if isinstance(node, ast.While) else (nothing, nothing)
        self.shared |= test_bound
        names = sorted({*self.shared_names(body), *test_bound})
        after = live | (self.uses.block(orelse).read if orelse else frozenset())
        head = self.uses.block(body).read | reads | frozenset(stops)
        step = self.define(
            node, "step", [".item"] if isinstance(node, ast.For) else [], self.block(body, head | after), names
        )
        made = [step]
        test: Any = constant(place, None)
        if isinstance(node, ast.While) or stops:
            condition = self.condition(node, stops, test_bound)
            made.append(condition)
            test = load(place, condition.name)
        about = [
            constant(place, tuple(names)),
            constant(place, self.live_names(names, head)),
            constant(place, self.live_names(names, after)),
        ]
        if isinstance(node, ast.For):
            call = runtime(place, "for_", node.iter, load(place, step.name), test, *about)
        else:
            call = runtime(place, "while_", test, load(place, step.name), *about, constant(place, bool(test_bound)))
        made.append(expression(place, call))
        return made + (self.block(orelse, live) if orelse else [])

    def target(self, node: ast.For) -> tuple[Any, list[Any]]:
        """Return a loop's target, and the statement that sets it in each step."""
        place = one_line(node.target)
        return node.target, [assign(place, node.target, load(place, ".item"))]

    def condition(self, node: Any, stops: list[str], bound: frozenset[str]) -> Any:
        """Return the function that tells whether a loop goes on."""
        place = one_line(node)
        clear = runtime(place, "none_of", *[load(place, name) for name in stops])
        test = node.test if isinstance(node, ast.While) else constant(place, True)
        always = isinstance(test, ast.Constant) and bool(test.value)
        before = getattr(node, "before", [])
        if not stops or (always and stops):
            body = [*self.block(before, bound), at(test, ast.Return(clear if stops else test))]
        elif bound:
            goes = store(place, ".goes")
            chosen = at(place, ast.If(load(place, ".goes"), [*before, assign(place, goes, test)], []))
            body = [assign(place, goes, clear), *self.branch(chosen, frozenset({".goes", *bound}))]
            body.append(at(place, ast.Return(load(place, ".goes"))))
            self.shared.add(".goes")
            bound = bound | {".goes"}
        else:
            body = [at(place, ast.Return(at(test, ast.BoolOp(ast.And(), [clear, test]))))]
        return self.define(node, "test", [], body, bound)


def convert_function(node: ast.FunctionDef, counter: _Counter) -> None:
    """Rewrite the control flow of a function and of its inner functions."""
    lower_matches(node)
    lower_bindings(node)
    exits_stay = lower_exits(node)
    Control(node, counter, exits_stay).run(node)


def convert_control_flow(node: Any) -> None:
    """Rewrite the control flow of a function's definition; a lambda has only expressions."""
    if isinstance(node, ast.FunctionDef):
        convert_function(node, _Counter())


# -- lower ``match`` to a chain of tests, so that its values and guards may be tensors --------------------------------

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
