"""Rewriting of expressions: reads of globals, attributes and items, calls, comprehensions."""

from __future__ import annotations

import ast
from typing import Any, cast

from hybridflow.convert.exits import RESULT, inside, is_python
from hybridflow.convert.protocols import METHODS
from hybridflow.convert.scopes import GLOBAL, LOCAL, Scope
from hybridflow.convert.syntax import at, constant, is_runtime, load, one_line, runtime, store, thunk
from hybridflow.guards.calls import CHANGES

OF_THE_FRAME = frozenset(
    {"locals", "globals", "vars", "dir", "eval", "exec", "breakpoint", "set_trace", "_getframe", "currentframe"}
)
"""Functions that inspect the calling frame: they are called directly."""

_OF_ARGUMENTS = frozenset({"vars", "dir"})
"""Those of them that inspect an argument instead, if there is one."""
_REDUCTIONS = frozenset({"sum", "len", "min", "max", "any", "all"})
"""Builtins that can handle items that are filtered out by a tensor."""


def _way(node: Any) -> str:
    """Return the prefix of the runtime's method for a read: "load" if it only serves to change the value."""
    return "load" if getattr(node, "loaded", False) else "read"


def _lists_names(node: Any) -> bool:
    """Whether an expression lists the names of its frame: moving it into a function would change the result."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        return False
    return node.func.id in ("locals", "vars", "dir")


class Reads(ast.NodeTransformer):
    """Rewrites expressions so that their reads and calls go through the runtime.

    Attributes:
        scopes: the scopes by node.
        scope: the scope that the visited node is in.
    """

    def __init__(self, scopes: dict[Any, Scope], root: Any) -> None:
        self.scopes = scopes
        self.root = root
        self.scope = scopes[root]
        self.temporaries = 0

    def temporary(self) -> str:
        """Return a new name for a temporary."""
        self.temporaries += 1
        return f".{self.temporaries}"

    # -- names ------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> Any:
        if not isinstance(node.ctx, ast.Load) or (node.id.startswith(".") and node.id != RESULT):
            return node
        kind = self.scope.kind(node.id)
        if kind == LOCAL or node.id == "__class__":
            return self.checked(node) if self.scope.is_shared(node.id) else node
        method = f"{_way(node)}_{'global' if kind == GLOBAL else 'free'}"
        return runtime(node, method, constant(node, node.id), node)

    def loaded(self, node: Any) -> Any:
        """Visit an expression that is read only to change its value."""
        node.loaded = True
        return self.visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        function = getattr(node.value, "func", None)
        if isinstance(function, ast.Attribute) and function.attr in CHANGES:
            cast(Any, function.value).loaded = True
        node.value = self.visit(node.value)
        return node

    def checked(self, node: ast.Name) -> Any:
        """Return a checked read of a variable that only branches or loops set, and which so may have no value."""
        return runtime(node, "defined", node, constant(node, node.id))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        node.value = self.written(node.target.id, self.visit(node.value), node)
        return node

    def written(self, name: str, value: Any, place: Any, *, augmented: bool = False) -> Any:
        """Return the value to store to a name; the runtime is told first if the name is not local."""
        scope = self.scope
        while isinstance(scope.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            assert scope.parent is not None
            scope = scope.parent
        if name in scope.declared_global:
            return runtime(place, "write_global", constant(place, name), value, constant(place, augmented))
        if name in scope.declared_nonlocal and scope.kind(name) != LOCAL:
            return runtime(place, "write_free", constant(place, name), value, constant(place, augmented))
        return value

    # -- attributes and items -----------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return runtime(node, f"{_way(node)}_attr", self.visit(node.value), constant(node, node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        way = _way(node)
        named = isinstance(node.slice, ast.Constant) and type(node.slice.value) is str
        value = self.loaded(node.value) if way == "load" or named else self.visit(node.value)
        return runtime(node, f"{way}_item", value, self.key(node.slice))

    def key(self, node: Any) -> Any:
        """Return a subscript as an expression: the syntax of slices is allowed only in brackets."""
        if isinstance(node, ast.Slice):
            ends = [constant(node, None) if one is None else self.visit(one) for one in (node.lower, node.upper)]
            step = [] if node.step is None else [self.visit(node.step)]
            return runtime(node, "slice", *ends, *step)
        if isinstance(node, ast.Tuple):
            node.elts = [self.key(one) for one in node.elts]
            return node
        return self.visit(node)

    # -- calls ------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", None)
        if is_runtime(node):
            node.args = [self.visit(one) for one in node.args]
            return node
        if name in _REDUCTIONS and len(node.args) in (1, 2) and self.is_filtered(node):
            return self.reduction(node)
        node.args = [self.visit(one) for one in node.args]
        for keyword in node.keywords:
            keyword.value = self.spread(keyword.value) if keyword.arg is None else self.visit(keyword.value)
        if (name in OF_THE_FRAME and not (name in _OF_ARGUMENTS and node.args)) or self.is_super(node):
            return self.of_the_frame(node)
        if isinstance(function, ast.Attribute) and function.end_lineno != function.lineno:
            # As in Python, a call in a chain over several lines is on the line of its method.
            end: int = function.end_col_offset or 0
            node.lineno, node.col_offset = function.end_lineno or node.lineno, max(end - len(function.attr), 0)
        of_size = name == "size" and isinstance(function, ast.Attribute)
        node.func = runtime(function, "size_callee" if of_size else "callee", self.visit(function))
        return node

    def spread(self, node: Any) -> Any:
        """Return the operand of ``**``, passed through the runtime."""
        return runtime(node, "spread", self.visit(node))

    def visit_Dict(self, node: ast.Dict) -> Any:
        values = zip(node.keys, node.values, strict=True)
        node.values = [self.spread(value) if key is None else self.visit(value) for key, value in values]
        node.keys = [None if key is None else self.hashed(key) for key in node.keys]
        return node

    def visit_Set(self, node: ast.Set) -> Any:
        node.elts = [self.hashed(one) for one in node.elts]
        return node

    def hashed(self, node: Any) -> Any:
        """Return an element of a set, or a key of a dict, passed through the runtime."""
        if isinstance(node, ast.Starred):
            node.value = runtime(node, "all_hashed", self.iterated(node.value))
            return node
        visited = self.visit(node)
        return visited if isinstance(node, ast.Constant) else runtime(node, "hashed", visited)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> Any:
        node.value = self.iterated(node.value)
        return node

    def visit_Starred(self, node: ast.Starred) -> Any:
        node.value = self.iterated(node.value)
        return node

    def is_super(self, node: ast.Call) -> bool:
        """Whether a call is ``super()`` without arguments."""
        function = node.func
        bare = not node.args and not node.keywords
        return bare and isinstance(function, ast.Name) and function.id == "super" and self.kind("super") == GLOBAL

    def kind(self, name: str) -> str:
        """Return the kind of a name in the current scope."""
        return self.scope.kind(name)

    def of_the_frame(self, node: ast.Call) -> Any:
        """Return a call that must be in the user's frame."""
        function = node.func
        name = function.id if isinstance(function, ast.Name) else None
        if self.is_super(node):
            first = self.first_argument()
            if first is not None:
                node.args = [load(node, "__class__"), load(node, first)]
            return node
        if isinstance(function, ast.Attribute):
            function.value = self.visit(function.value)
        elif _lists_names(node):
            return runtime(node, "without_temporaries", node)
        elif name in ("eval", "exec") and node.args and not isinstance(node.args[0], ast.Starred):
            node.args = [at(node, ast.Starred(runtime(node, "evaluated", *node.args), ast.Load()))]
        elif name == "globals":
            return runtime(node, "every_global", node)
        return node

    def first_argument(self) -> str | None:
        """Return the name of the first parameter of the user's innermost function, which ``super()`` uses."""
        scope: Scope | None = self.scope
        while scope is not None and (
            not isinstance(scope.node, ast.FunctionDef | ast.Lambda)
            or (isinstance(scope.node, ast.FunctionDef) and scope.node.name.startswith("."))
        ):
            scope = scope.parent
        if scope is None:
            return None
        given = scope.node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        return names[0] if names else None

    # -- conditions -----------------------------------------------------------------------------------------------

    def stays(self, *later: Any) -> bool:
        """Whether one of these expressions must stay where it is and cannot move into a function of its own."""
        bound = ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await
        return bool(later) and (
            self.scope.is_class
            or any(isinstance(one, bound) or _lists_names(one) for node in later for one in inside(node))
        )

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        if is_python(node) or self.stays(*node.values[1:]):
            return self.generic_visit(node)
        method = "and_" if isinstance(node.op, ast.And) else "or_"
        *values, last = node.values
        simple = is_simple(last)

        def operand(value: Any) -> Any:
            made = self.visit(value)
            return runtime(value, "tested", made) if getattr(node, "tested", False) else made

        made = operand(last)
        for value in reversed(values):
            made = runtime(node, method, operand(value), thunk(made), constant(node, simple))
            simple = simple and is_simple(value)
        return made

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.operand, ast.Constant) or (isinstance(node.op, ast.Not) and is_python(node)):
            return self.generic_visit(node)
        method = "not_" if isinstance(node.op, ast.Not) else METHODS[type(node.op).__name__]
        return runtime(node, method, self.visit(node.operand))

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return runtime(node, METHODS[type(node.op).__name__], self.visit(node.left), self.visit(node.right))

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        if is_python(node.test) or self.stays(node.body, node.orelse):
            return self.generic_visit(node)
        true, false = thunk(self.visit(node.body)), thunk(self.visit(node.orelse))
        return runtime(node, "choose", self.visit(node.test), true, false)

    def visit_Compare(self, node: ast.Compare) -> Any:
        names = [type(one).__name__ for one in node.ops]
        if self.stays(*node.comparators[1:]) or (is_python(node) and _is_with_constant(node)):
            return self.generic_visit(node)
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        if len(names) == 1 and names[0] in METHODS:
            return runtime(node, METHODS[names[0]], left, right)
        rest = [thunk(self.visit(one)) for one in node.comparators[1:]]
        return runtime(node, "compare", constant(node, tuple(names)), left, right, *rest)

    def visit_Assert(self, node: ast.Assert) -> Any:
        if is_python(node.test) or self.stays(node.msg or node.test):
            return self.generic_visit(node)
        text = constant(node, "assertion failed") if node.msg is None else self.told(node.msg)
        node.test = runtime(node.test, "holds", self.visit(node.test), thunk(text))
        node.msg = None if node.msg is None else text
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        if node.exc is not None:
            node.exc = runtime(node.exc, "raised", self.told(node.exc))
        if node.cause is not None:
            node.cause = self.visit(node.cause)
        return node

    def told(self, node: Any) -> Any:
        """Visit the message of an error: its f-strings say what is known about numbers that a tensor decides."""
        for one in ast.walk(node):
            if isinstance(one, ast.JoinedStr):
                one.__dict__["told"] = True
        return self.visit(node)

    # -- comprehensions and lambdas ------------------------------------------------------------------------------

    def visit_comprehension_of(self, node: Any) -> Any:
        first = node.generators[0]
        first.iter = self.iterated(first.iter)
        outer, self.scope = self.scope, self.scopes[node]
        for number, one in enumerate(node.generators):
            if number:
                one.iter = self.iterated(one.iter)
            one.ifs = [
                self.visit(test) if is_python(test) else runtime(test, "keeps", self.visit(test)) for test in one.ifs
            ]
        if isinstance(node, ast.DictComp):
            node.key, node.value = self.hashed(node.key), self.visit(node.value)
        elif isinstance(node, ast.SetComp):
            node.elt = self.hashed(node.elt)
        else:
            node.elt = self.visit(node.elt)
        self.scope = outer
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_of

    def is_filtered(self, node: ast.Call) -> bool:
        """Whether a call is a builtin reduction of a comprehension that keeps some items."""
        function, first = node.func, node.args[0]
        kinds = ast.GeneratorExp if getattr(function, "id", "") in ("any", "all") else ast.GeneratorExp | ast.ListComp
        if not isinstance(function, ast.Name) or self.kind(function.id) != GLOBAL or not isinstance(first, kinds):
            return False
        tests = first.generators[-1].ifs
        return any(not is_python(one) for one in tests) and not self.stays(first.elt, *tests)

    def reduction(self, node: ast.Call) -> Any:
        """Return a reduction of a comprehension with a filter, which may be a tensor."""
        first: Any = node.args[0]
        last = first.generators[-1]
        place = one_line(last.iter)
        outer, self.scope = self.scope, self.scopes[first]
        test, *more = [self.visit(one) for one in last.ifs]
        for one in more:
            test = runtime(place, "and_", test, thunk(one), constant(place, False))
        reduced = runtime(place, "kept", test, thunk(self.visit(first.elt)))
        self.scope = outer
        last.ifs = []
        made = at(first, ast.GeneratorExp(load(place, ".item"), first.generators))
        self.scopes[made] = self.scopes[first]
        made = self.visit(made)
        made.generators.append(ast.comprehension(store(place, ".item"), reduced, [], 0))
        node.args = [runtime(place, "filtered", made), *[self.visit(one) for one in node.args[1:]]]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        node.func = runtime(node.func, "callee", self.visit(node.func))
        return node

    def iterated(self, node: Any) -> Any:
        """Return the iterable of a loop, passed through the runtime."""
        return runtime(node, "iterate", self.visit(node))

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self.visit_defaults(node)
        outer, self.scope = self.scope, self.scopes[node]
        node.body = self.visit(node.body)
        self.scope = outer
        return node

    def visit_defaults(self, node: Any) -> None:
        """Visit a function's defaults, which are evaluated outside it."""
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        node.args.kw_defaults = [None if one is None else self.visit(one) for one in node.args.kw_defaults]

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        told = getattr(node, "told", False)
        made: list[Any] = []
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                value = self.visit(one.value)
                spec = constant(one, "") if one.format_spec is None else self.visit(one.format_spec)
                if told:  # its format is one of those that are told
                    one.value = runtime(one.value, "told", value)
                else:
                    made.append(runtime(one, "formatted", value, constant(one, one.conversion), spec))
            else:
                made.append(one)
        return node if told else runtime(node, "joined", *made)


def _is_with_constant(node: ast.Compare) -> bool:
    """Whether two values are compared and one of them is a literal, such as None."""
    return len(node.ops) == 1 and any(isinstance(one, ast.Constant) for one in (node.left, *node.comparators))


_SIMPLE = ast.Name | ast.Constant | ast.Attribute | ast.Compare | ast.BoolOp | ast.UnaryOp | ast.BinOp


def is_simple(node: Any) -> bool:
    """Whether an expression only reads and computes: on tensors it may be evaluated unconditionally."""
    if not isinstance(node, _SIMPLE):
        return False
    return all(is_simple(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
