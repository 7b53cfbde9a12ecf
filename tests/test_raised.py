"""What a program raises where a tensor decides: eager and compiled calls raise the same exception, or none."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from modes import same
from reference import without_xla

import hybridflow as hf

HELPERS = '''
import sys

import hybridflow as hf
import numpy as np
from hybridflow.core.errors import ShapeError

class Plain(Exception): pass
class Base(BaseException): pass
class Slots(Exception):
    __slots__ = ("code",)
    def __init__(self, code):
        super().__init__(code)
        self.code = code
class Told(Exception):
    def __init__(self, name, *, limit):
        super().__init__(f"{name} is above {limit}")
        self.name, self.limit = name, limit
class Keyed(KeyError, ValueError): pass
class Mute(Exception):
    def __str__(self): return "mute"

MADE = Told("made before", limit=3)

def noted(error):
    error.add_note("a note")
    return error

def fails(error):
    raise error

class Closing:
    def __enter__(self): return self
    def __exit__(self, *args): return False
'''

STATEMENTS = [
    "raise ValueError",
    "raise ValueError('text')",
    "raise ValueError('text', 3)",
    "raise ValueError(None)",
    "raise KeyError('key')",
    "raise IndexError(3)",
    "raise StopIteration",
    "raise OSError(2, 'none', 'file')",
    "raise ImportError('text', name='n', path='p')",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'bad')",
    "raise SystemExit",
    "raise SystemExit(3)",
    "sys.exit('bye')",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise Base('base')",
    "raise Plain",
    "raise Slots(4)",
    "raise Told('x', limit=2)",
    "raise Keyed('k')",
    "raise Mute(1, 2)",
    "raise noted(ValueError('text'))",
    "raise ValueError('text') from TypeError('cause')",
    "raise ValueError('text') from None",
    "raise ExceptionGroup('some', [ValueError(1), TypeError(2)])",
    "raise ShapeError('mine')",
    "raise np.linalg.LinAlgError('singular')",
    "fails(Told('x', limit=2))",
    "assert False",
    "assert False, 'text'",
    "assert not 1, ('a', 2)",
    "1 / 0",
    "2.0 ** 5000",
]

PLACES = {
    "if": """
    if hf.sum(x) > 2:
        {}
    return x * 2
""",
    "else": """
    if hf.sum(x) <= 2:
        y = x
    else:
        {}
    return y + 1
""",
    "all arms": """
    if hf.sum(x) > 2:
        {}
    elif hf.sum(x) > 1:
        y = x * 3
    else:
        y = -x
    return y
""",
    "nested": """
    y = x
    if hf.sum(x) > 0:
        if hf.max(x) > 2:
            {}
        y = x * 2
    return y
""",
    "rows": """
    t = 0.0
    for v in x:
        if v > 2:
            {}
        t = t + v
    return t
""",
    "whole step": """
    t = 0.0
    for i in range(hf.sum(x).astype(hf.int32) - 1):
        t = t + i
        {}
    return x + t
""",
    "while": """
    y = x
    while hf.sum(y) < 20:
        y = y * 2
        if hf.max(y) > 30:
            {}
    return y
""",
    "for ever": """
    y = x
    while hf.sum(y) > 0:
        y = y + 1
        if hf.max(x) > 2:
            {}
        if hf.max(y) > 40:
            break
    return y
""",
    "else of a loop": """
    for v in x:
        if v < 1:
            break
    else:
        {}
    return x
""",
    "try": """
    y = x
    try:
        if hf.sum(x) > 2:
            {}
        y = x * 2
    finally:
        y = y + 1
    return y
""",
    "with": """
    with Closing():
        if hf.sum(x) > 2:
            {}
    return x
""",
    "match": """
    match x:
        case _ if hf.sum(x) > 2:
            {}
        case _:
            return x * 5
    return x
""",
    "helper": """
    def inner(v):
        if hf.sum(v) > 2:
            {}
        return v + 1
    return inner(x) * 2
""",
    "two": """
    if hf.sum(x) < -1:
        raise TypeError("too small")
    if hf.sum(x) > 2:
        {}
    return x
""",
}
CALLS = [[0.5, 0.25], [3.0, 4.0], [-1.0, 1.5], [-3.0, 1.0]]


def module_of(path: Path, place: str) -> ModuleType:
    """Import a module with a function ``f<n>`` for each statement at a place."""
    text = PLACES[place]
    functions = (f"def f{n}(x):{text.format(one)}" for n, one in enumerate(STATEMENTS))
    path.write_text("\n".join([HELPERS, *functions]))
    module = ModuleType("raised")
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def told(error: BaseException | None) -> Any:
    """Return all that a program can see of an exception but its traceback, its notes of places, and its identity."""
    if error is None:
        return None
    state = {name: getattr(error, name) for name in ("code", "name", "path", "errno", "filename", "reason", "limit")
             if hasattr(error, name)}
    notes = [one for one in getattr(error, "__notes__", ()) if one == "a note"]
    parts = [told(one) for one in getattr(error, "exceptions", ())]
    return (type(error), str(error), repr(error.args), state, notes, parts,
            told(error.__cause__), error.__suppress_context__)  # fmt: skip


def outcome(function: Any, x: hf.Tensor) -> Any:
    try:
        return function(x)
    except BaseException as error:
        return told(error)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_raised_is_raised_compiled(place: str, tmp_path: Path):
    module = module_of(tmp_path / "raised.py", place)
    seen: dict[str, set[bool]] = {}
    with without_xla():
        for (n, statement), numbers in itertools.product(enumerate(STATEMENTS), CALLS):
            plain = vars(module)[f"f{n}"]
            compiled = vars(module).setdefault(f"compiled{n}", hf.compile(plain))
            eager, found = outcome(plain, hf.asarray(numbers)), outcome(compiled, hf.asarray(numbers))
            seen.setdefault(statement, set()).add(isinstance(eager, tuple))
            if isinstance(eager, tuple) or isinstance(found, tuple):
                assert found == eager, (statement, numbers)
            else:
                same(eager, found)
    assert all(kinds == {False, True} for kinds in seen.values())
