"""Lower return, break and continue inside converted control flow to flags.

If a branch always exits, the statements after the ``if`` move into the other branch. Otherwise a flag records the exit,
and the statements after it run only if the flag is not set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hybridflow.convert.syntax import assign, at, constant, load, one_line, runtime, store

RESULT = ".result"
"""The variable that holds the value of a lowered return."""
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_LOOPS = ast.For | ast.While


def inside(node: Any) -> Iterator[Any]:
    """Yield a node and everything below it, but not the content of functions and classes."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _FUNCTIONS):
            pending.extend(ast.iter_child_nodes(node))


def has_yield(node: Any) -> bool:
    """Whether a statement suspends the function it is in."""
    return any(isinstance(one, ast.Yield | ast.YieldFrom | ast.Await | ast.AsyncFor | ast.AsyncWith)
               for one in inside(node))


def is_python(test: Any) -> bool:
    """Whether the syntax of a condition shows that it is no tensor."""
    if isinstance(test, ast.Compare):
        # A number that a tensor decides may be another number, or not.
        sides = [test.left, *test.comparators]
        apart = any(isinstance(one, ast.Constant) and not isinstance(one.value, int | float) for one in sides)
        return apart and all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
    if isinstance(test, ast.BoolOp):
        return all(is_python(one) for one in test.values)
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not) and is_python(test.operand)
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id in ("isinstance", "issubclass", "callable", "hasattr")
    return isinstance(test, ast.Constant)


def is_converted_branch(node: Any) -> bool:
    """Whether an ``if`` is converted: it may be on a tensor, and nothing in it suspends the function."""
    return isinstance(node, ast.If) and not is_python(node.test) and not has_yield(node)


def is_converted_loop(node: Any) -> bool:
    """Whether a loop is converted."""
    return isinstance(node, _LOOPS) and not has_yield(node)


class _Lowering:
    """Rewrites one function, and knows the flags in use.

    Attributes:
        loops: the flags of break and continue of the enclosing loops.
        finals: for each enclosing ``finally`` block, the number of loops around it and the flags of its exits.
    """

    def __init__(self) -> None:
        self.loops: list[tuple[str, str]] = []
        self.finals: list[tuple[int, dict[str, str]]] = []
        self.count = 0

    # -- finding exits ----------------------------------------------------------------------------------------

    def exits(self, statements: list[Any]) -> set[str]:
        """Return the flags that a block may set."""
        flags: set[str] = set()
        for statement in statements:
            flags |= self.exits_of(statement)
        return flags

    def exits_of(self, node: Any) -> set[str]:
        """Return the flags that a statement may set: ``return``, and this loop's ``break`` and ``continue``."""
        if isinstance(node, ast.Return):
            return {"return"}
        if isinstance(node, ast.Break):
            return {"break"}
        if isinstance(node, ast.Continue):
            return {"continue"}
        if isinstance(node, _FUNCTIONS) or not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            return set()
        flags: set[str] = set()
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            for child in getattr(node, field, ()):
                inner = self.exits_of(child)
                flags |= inner & {"return"} if isinstance(node, _LOOPS) and field == "body" else inner
        return flags

    def always(self, statements: list[Any]) -> bool:
        """Whether a block never reaches its end."""
        for node in statements:
            if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.Raise):
                return True
            if isinstance(node, ast.If) and node.orelse and self.always(node.body) and self.always(node.orelse):
                return True
            endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)
            if isinstance(node, _LOOPS) and "break" not in self.exits(node.body) and (
                endless or self.always(node.orelse)
            ):
                return True
            if isinstance(node, ast.With) and self.always(node.body) and not any(
                isinstance(one, ast.Raise) for one in inside(node)
            ):
                return True
        return False

    # -- rewriting --------------------------------------------------------------------------------------------

    def flag(self, kind: str) -> str:
        """Return the name of a flag."""
        for depth, names in reversed(self.finals):
            if kind == "return" or depth == len(self.loops):
                return names[kind]
        if kind == "return":
            return ".returned"
        return self.loops[-1][0 if kind == "break" else 1]

    def clear(self, place: Any, kinds: set[str]) -> Any:
        """Return the condition that no flag is set."""
        place = one_line(place)
        return runtime(place, "none_of", *[load(place, self.flag(kind)) for kind in sorted(kinds)])

    def block(self, statements: list[Any]) -> list[Any]:
        """Rewrite the statements of a block."""
        made: list[Any] = []
        for index, node in enumerate(statements):
            rest = statements[index + 1 :]
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                return made + self.leave(node)
            kinds = self.exits_of(node)
            if isinstance(node, ast.If) and kinds:
                if self.always(node.body):
                    return [*made, self.branch(node, node.body, [*node.orelse, *rest])]
                if node.orelse and self.always(node.orelse):
                    return [*made, self.branch(node, [*node.body, *rest], node.orelse)]
                made.append(self.branch(node, node.body, node.orelse))
            else:
                passed = self.passed(node, made) if kinds and rest else None
                made += self.statement(node)
                if passed is not None:
                    node.body.append(assign(one_line(node), store(one_line(node), passed), constant(node, True)))
                    return [*made, self.unless(rest[0], [passed], [self.guarded(kinds, rest)])]
            if kinds and rest:
                return [*made, self.guarded(kinds, rest)]
        return made

    def guarded(self, kinds: set[str], rest: list[Any]) -> Any:
        """Return the rest of a block under the condition that no flag is set."""
        return at(one_line(rest[0]), ast.If(self.clear(rest[0], kinds), self.block(rest), []))

    def unless(self, place: Any, names: list[str], body: list[Any]) -> Any:
        """Return statements under the condition that none of some variables is true."""
        place = one_line(place)
        return at(place, ast.If(runtime(place, "none_of", *[load(place, name) for name in names]), body, []))

    def passed(self, node: Any, made: list[Any]) -> str | None:
        """Return the variable that is set at the end of a block that always exits; None if it is not needed.

        Statements after such a block run only if the block was left by an exception that was handled. This holds
        whatever the flags, which may be tensors, are.
        """
        if not isinstance(node, ast.With | ast.Try) or not self.always(node.body):
            return None
        if isinstance(node, ast.Try) and self.exits(node.finalbody):
            return None
        self.count += 1
        name, place = f".passed_{self.count}", one_line(node)
        made.append(assign(place, store(place, name), constant(place, False)))
        return name

    def leave(self, node: Any) -> list[Any]:
        """Return the statements that replace an exit."""
        kind = type(node).__name__.lower()
        made = [assign(node, store(node, self.flag(kind)), constant(node, True))]
        if kind == "return":
            value = constant(node, None) if node.value is None else node.value
            made.insert(0, assign(node, store(node, RESULT), value))
        return made

    def branch(self, node: ast.If, body: list[Any], orelse: list[Any]) -> Any:
        """Return an ``if`` with other blocks."""
        node.body = self.block(body) or [at(node, ast.Pass())]
        node.orelse = self.block(orelse)
        return node

    def statement(self, node: Any) -> list[Any]:
        """Rewrite a statement that is no exit and no ``if`` with exits."""
        if isinstance(node, _LOOPS):
            return self.loop(node)
        if isinstance(node, ast.Try):
            return self.try_(node)
        if isinstance(node, ast.Match):
            for case in node.cases:
                case.body = self.block(case.body)
        elif isinstance(node, ast.If):
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        elif isinstance(node, ast.With):
            node.body = self.block(node.body)
        return [node]

    def try_(self, node: ast.Try) -> list[Any]:
        """Rewrite a ``try``."""
        final = self.exits(node.finalbody)
        kinds = self.exits(node.body)
        others = kinds | self.exits(node.orelse) | self.exits(node.handlers)
        orelse = self.block(node.orelse)
        if kinds and orelse:
            orelse = [at(one_line(orelse[0]), ast.If(self.clear(orelse[0], kinds), orelse, []))]
        node.body, node.orelse = self.block(node.body), orelse
        for handler in node.handlers:
            handler.body = self.block(handler.body)
        if final:
            return self.final_exits(node, final, others)
        node.finalbody = self.block(node.finalbody)
        return [node]

    def final_exits(self, node: ast.Try, kinds: set[str], others: set[str]) -> list[Any]:
        """Return the statements that replace a ``try`` whose ``finally`` exits and so overrides every other exit.

        Args:
            node: the ``try``, with its other blocks rewritten.
            kinds: the kinds of exits in its ``finally``.
            others: the kinds of exits in its other blocks.
        """
        self.count += 1
        place, end = one_line(node), one_line(node.finalbody[0])
        caught = f".caught_{self.count}"
        names = {kind: f".{kind}_finally_{self.count}" for kind in sorted(kinds)}
        self.finals.append((len(self.loops), names))
        final = self.block(node.finalbody)
        self.finals.pop()
        node.finalbody = []
        keep = at(place, ast.ExceptHandler(None, None, [assign(place, store(place, caught), runtime(place, "caught"))]))
        guarded = at(place, ast.Try([node] if node.handlers else node.body, [keep], [], []))
        guarded.__dict__["made"] = True
        stays = runtime(end, "none_of", *[load(end, name) for name in names.values()])
        failed = at(end, ast.Compare(load(end, caught), [ast.IsNot()], [constant(end, None)]))
        again = at(end, ast.Raise(load(end, caught), None))
        again = at(end, ast.If(stays, [again], self.handed_on(end, names, others, sure=True)))
        made = [assign(place, store(place, name), constant(place, False)) for name in names.values()]
        made += [assign(place, store(place, caught), constant(place, None)), guarded, *final]
        return [*made, at(end, ast.If(failed, [again], self.handed_on(end, names, others, sure=False)))]

    def handed_on(self, place: Any, names: dict[str, str], others: set[str], *, sure: bool) -> list[Any]:
        """Return the statements that make an exit of a ``finally`` override the exits of its ``try``.

        Args:
            place: the node whose position they get.
            names: the flags of the exits of the ``finally``, by kind.
            others: the kinds of exits in the ``try``.
            sure: whether one of the flags is certainly set.
        """
        made: list[Any] = []
        for index, (kind, name) in enumerate(names.items()):
            values = {kind: True, **dict.fromkeys(sorted(others - {kind}), False)}
            flags = [assign(place, store(place, self.flag(one)), constant(place, on)) for one, on in values.items()]
            made = flags if sure and not index else [at(place, ast.If(load(place, name), flags, made))]
        return made

    def loop(self, node: Any) -> list[Any]:
        """Rewrite a loop; ``node.stops`` becomes the flags that end it."""
        self.count += 1
        broken, skipped = f".broken_{self.count}", f".continued_{self.count}"
        kinds = self.exits(node.body)
        orelse = node.orelse
        self.loops.append((broken, skipped))
        node.body = self.block(node.body)
        self.loops.pop()
        node.orelse = []
        stops = [broken] * ("break" in kinds) + ([self.flag("return")] if "return" in kinds else [])
        node.stops = stops
        place = one_line(node)
        before = [assign(place, store(place, broken), constant(place, False))] if "break" in kinds else []
        if "continue" in kinds:
            node.body.insert(0, assign(place, store(place, skipped), constant(place, False)))
        made = [*before, node]
        if orelse:
            lowered = self.block(orelse)
            if stops:
                test = runtime(one_line(orelse[0]), "none_of", *[load(orelse[0], name) for name in stops])
                lowered = [at(one_line(orelse[0]), ast.If(test, lowered, []))]
            made += lowered
        return made


def _needs_lowering(node: Any, lowered: bool = False) -> bool:
    """Whether there is an exit inside converted control flow."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            continue
        if isinstance(child, ast.Return | ast.Break | ast.Continue) and lowered:
            return True
        within = lowered or is_converted_branch(child) or is_converted_loop(child)
        if _needs_lowering(child, within):
            return True
    return False


def inside_body(node: Any) -> Iterator[Any]:
    """Yield a function's statements and everything below them."""
    for statement in node.body:
        yield from inside(statement)


def has_exit(node: Any) -> bool:
    """Whether a statement contains a return, break or continue."""
    return any(isinstance(one, ast.Return | ast.Break | ast.Continue) for one in inside(node))


def lower_exits(node: ast.FunctionDef) -> bool:
    """Lower the exits of a function if any is inside converted control flow; return whether exits remain there.

    The exits of a generator remain, except those of loops in which it does not yield.
    """
    lowering = _Lowering()
    if not _needs_lowering(node):
        return False
    if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inside_body(node)):
        _lower_loops(node, lowering)
        return True
    place = one_line(node.body[-1])
    returns = any(isinstance(one, ast.Return) for one in inside_body(node))
    if returns and not lowering.always(node.body):
        node.body.append(at(place, ast.Return(constant(place, None))))
    start = node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
    body = lowering.block(node.body[len(start) :])
    if returns:
        first = one_line(node.body[0])
        body = [assign(first, store(first, ".returned"), constant(first, False)), *body]
        body.append(at(place, ast.Return(load(place, RESULT))))
    node.body = [*start, *body]
    return False


def _lower_loops(node: Any, lowering: _Lowering) -> None:
    """Lower the exits of those loops below a statement that have no exits to the outside."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            setattr(node, field, [made for one in block for made in _with_loops_lowered(one, lowering)])
    for one in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        _lower_loops(one, lowering)


def _with_loops_lowered(node: Any, lowering: _Lowering) -> list[Any]:
    if isinstance(node, _FUNCTIONS):
        return [node]
    if is_converted_loop(node) and not lowering.exits_of(node):
        return lowering.loop(node)
    _lower_loops(node, lowering)
    return [node]
