"""Find the source of a function: its node in the parsed file, and the class around it."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import threading
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

from hybridflow.core.settings import LOADED

FunctionNode = ast.FunctionDef | ast.Lambda


class NotConvertible(Exception):
    """Raised if a function cannot be converted; the text says why."""


class Found(NamedTuple):
    """A function's node in its file, which must not be changed, and the name of the class around it."""

    node: FunctionNode
    private: str | None


@contextmanager
def without_syntax_warnings() -> Generator[None]:
    """Parse or compile without syntax warnings: Python gave them before, and as errors they would fail here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.filterwarnings("ignore", "invalid escape sequence", DeprecationWarning)  # of Python 3.11
        yield


class _File:
    """One version of a parsed file: its functions by first line and name."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.functions: dict[tuple[int, str], list[Found]] = {}
        with without_syntax_warnings():
            self.tree = tree = ast.parse("".join(lines))
        for node in _functions(tree, None):
            self.functions.setdefault(_key(node.node), []).append(node)

    @functools.cached_property
    def instructions(self) -> set[Any]:
        """The instructions of all code objects that Python compiles from the file."""
        with without_syntax_warnings():
            waiting = [compile(self.tree, "", "exec", dont_inherit=True)]
        instructions: set[Any] = set()
        while waiting:
            code = waiting.pop()
            instructions.add(_instructions(code))
            waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        return instructions


def _instructions(code: CodeType) -> Any:
    constants = [_instructions(one) if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts]
    return code.co_name, code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, tuple(constants)


def _functions(node: ast.AST, private: str | None) -> Iterator[Found]:
    """Yield the functions below a node, outer ones first."""
    pending: list[tuple[ast.AST, str | None]] = [(node, private)]
    while pending:
        node, private = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            yield Found(node, private)
        inner = node.name if isinstance(node, ast.ClassDef) else private
        pending += [(child, inner) for child in ast.iter_child_nodes(node)]


def _key(node: FunctionNode) -> tuple[int, str]:
    if isinstance(node, ast.Lambda):
        return node.lineno, "<lambda>"
    return min([node.lineno, *[one.lineno for one in node.decorator_list]]), node.name


_files: dict[str, list[_File]] = {}
"""The versions of files that were seen when functions were looked up, the latest last: files may change on disk."""
_VERSIONS = 8
"""The number of versions of a file that are kept."""
_lock = threading.Lock()


def _load(function: FunctionType) -> _File:
    """Return the version of the file that a function was compiled from."""
    name = function.__code__.co_filename
    linecache.checkcache(name)
    lines = linecache.getlines(name, function.__globals__)
    if not lines:
        raise NotConvertible(f"its source, {name}, cannot be found")
    with _lock:
        versions = _files.setdefault(name, [])
        latest = versions[-1] if versions else None
        if latest is None or (latest.lines is not lines and latest.lines != lines):
            try:
                versions.append(_File(lines))
            except SyntaxError as error:
                raise NotConvertible(f"its source, {name}, cannot be parsed ({error.msg})") from error
            del versions[:-_VERSIONS]
        if len(versions) == 1 and not _may_be_newer(name):
            return versions[0]
        made_of = _instructions(function.__code__)
        for one in reversed(versions):
            if made_of in one.instructions:
                return one
        raise NotConvertible(f"its source, {name}, was changed since it was loaded")


def _may_be_newer(name: str) -> bool:
    """Whether a file was written after the process loaded this package, so perhaps after its functions were made.

    Files that were not are not compared with their functions: it takes time, and tools such as pytest load other code
    than the file's.
    """
    entry = cast("tuple[Any, ...]", linecache.cache.get(name, ()))  # empty for what doctest shows as a file
    return len(entry) > 1 and entry[1] is not None and entry[1] > LOADED


def find(function: FunctionType) -> Found:
    """Return a function's node.

    Raises:
        NotConvertible: there is no source, or it has changed since the function was compiled.
    """
    code = function.__code__
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise NotConvertible("it is an async function")
    name = code.co_name
    candidates = _load(function).functions.get((code.co_firstlineno, name), [])
    candidates = [node for node in candidates if _arguments(node.node, node.private) == arguments_of(code)]
    place = f"its source, {code.co_filename}:{code.co_firstlineno},"
    if not candidates:
        raise NotConvertible(
            f"{place} has no such function: it was changed since it was loaded, or the function was not made of it"
        )
    if len(candidates) > 1:
        candidates = _holding(candidates, code)
        if len(candidates) != 1:
            raise NotConvertible(f"{place} has several like it on the line")
    return candidates[0]


def _holding(candidates: list[Found], code: CodeType) -> list[Found]:
    """Return the functions, among several on one line, whose body holds all instructions; the innermost if nested."""
    # Some instructions have no position; none has one if Python was told to keep no columns.
    places = [(first, start, last, end) for first, last, start, end in code.co_positions() if start != end]
    if not places:
        return candidates
    holding = [one for one in candidates if _holds(one.node, places)]
    return [
        one for one in holding if not any(one is not other and _is_within(other.node, one.node) for other in holding)
    ]


def _body_range(node: FunctionNode) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the positions where a function's body begins and ends."""
    first, last = (node.body, node.body) if isinstance(node, ast.Lambda) else (node.body[0], node.body[-1])
    return (first.lineno, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)


def _holds(node: FunctionNode, places: list[Any]) -> bool:
    begin, end = _body_range(node)
    return all(begin <= (first, start) and (last, stop) <= end for first, start, last, stop in places)


def _is_within(inner: FunctionNode, outer: FunctionNode) -> bool:
    begin, end = _body_range(outer)
    return begin <= (inner.lineno, inner.col_offset) and (inner.end_lineno or 0, inner.end_col_offset or 0) <= end


def arguments_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of a code object's parameters."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _arguments(node: FunctionNode, private: str | None) -> tuple[str, ...]:
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [one.arg for one in (given.vararg, given.kwarg) if one is not None]
    return tuple([mangled(name, private) for name in names])


def mangled(name: str, private: str | None) -> str:
    """Return a name as Python mangles it inside a class: private names get the class's name as a prefix."""
    if private is None or not name.startswith("__") or name.endswith("__") or "." in name:
        return name
    stripped = private.lstrip("_")
    return f"_{stripped}{name}" if stripped else name


_NAMES = frozenset({"id", "attr", "arg", "name", "asname", "rest"})
"""The fields that hold an identifier."""
_SHARED = ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop


def copied(node: Any, private: str | None) -> Any:
    """Return a copy of a tree in which private names are mangled."""
    if isinstance(node, _SHARED):
        return node
    state = node.__dict__.copy()
    inside = node.name if isinstance(node, ast.ClassDef) else private
    for field, value in state.items():
        if isinstance(value, ast.AST):
            state[field] = copied(value, inside)
        elif type(value) is list:
            within = inside if field == "body" else private
            state[field] = [copied(one, within) if isinstance(one, ast.AST) else one for one in value]
    if private is not None:
        _spell_out(node, state, private)
    kind: Any = type(node)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def _spell_out(node: ast.AST, state: dict[str, Any], private: str) -> None:
    if isinstance(node, ast.alias):
        bound = mangled(node.asname or node.name, private)
        if bound != (node.asname or node.name):
            state["asname"] = bound
        return
    for field, value in state.items():
        if field in _NAMES and type(value) is str:
            state[field] = mangled(value, private)
    if isinstance(node, ast.Global | ast.Nonlocal):
        state["names"] = [mangled(name, private) for name in node.names]
    elif isinstance(node, ast.MatchClass):
        state["kwd_attrs"] = [mangled(name, private) for name in node.kwd_attrs]
