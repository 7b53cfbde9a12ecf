"""What a program raises where a tensor decides: eager and compiled calls raise the same exception, or none."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from modes import same
from reference import without_xla

import hybridflow as hf
from hybridflow.core.errors import DTypeError, TraceError

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
    path.write_text("\n".join([HELPERS, *functions]), encoding="utf-8")
    module = ModuleType("raised")
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    return module


def told(error: BaseException | None) -> Any:
    """Return all that a program can see of an exception but its traceback, its notes of places, and its identity."""
    if error is None:
        return None
    names = ("code", "name", "path", "errno", "filename", "reason", "limit", "obj")
    found = {name: getattr(error, name) for name in names if hasattr(error, name)}
    state = {name: one() if isinstance(one, FunctionType) else one for name, one in found.items()}
    notes = [one for one in getattr(error, "__notes__", ()) if one == "a note"]
    parts = [told(one) for one in getattr(error, "exceptions", ())]
    return (type(error), str(error), repr(error.args), state, notes, parts,
            told(error.__cause__), told(error.__context__), error.__suppress_context__)


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


# -- numbers in what is raised -------------------------------------------------------------------------------------

HOLDING = '''
import dataclasses
import hybridflow as hf

class Told(Exception):
    def __init__(self, limit):
        super().__init__("told")
        self.limit = limit
class Slots(Exception):
    __slots__ = ("code",)
    def __init__(self, code): self.code = code
@dataclasses.dataclass
class Cell:
    value: object
class State: pass
STATE = State()

def handling(n):
    try: raise KeyError(n)
    except KeyError:
        try: raise Told(n)
        except Told as error: return error

def caused(n):
    error = Told("by")
    error.__cause__ = Told([n])
    return error

def checked(x, n):
    if hf.any(x < 0): raise Told(n)

'''
HELD = [
    "Told(n)", "Told([n, {'a': (n + 1,)}])", "Told(Cell(n))", "Told(lambda: n)", "Slots(n)", "ValueError(n, [n])",
    "caused(n)", "handling(n)", "ExceptionGroup('g', [Told(n), ExceptionGroup('h', [ValueError(n)])])", "SystemExit(n)",
    "AttributeError('text', name='name', obj=n)", "OSError(n, 'text')", "Told(x.shape[0])", "Told([x.shape[0] / 4])",
]
HOLDS = {
    "if": "if hf.any(x < 0): raise {}",
    "cause": "if hf.any(x < 0): raise ValueError from {}",
    "no cause": "if hf.any(x < 0): raise {} from None",
    "always": "raise {}",
    "from always": "raise KeyError('k') from {}",
    "loop": "for k in hf.arange(3):\n        if x[0] < -k: raise {}",
    "handler": "try: {{}}['k']\n    except KeyError:\n        if hf.any(x < 0): raise {}",
    "helper in a handler": "try: raise {}\n    except BaseException: checked(x, n)",
    "outside": "n = STATE.n\n    if hf.any(x < 0): raise {}",
}


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("place", HOLDS)
def test_numbers_in_what_is_raised_are_those_of_the_call(place: str, tmp_path: Path):
    functions = (f"def f{n}(x, n):\n    {HOLDS[place].format(one)}\n    return x" for n, one in enumerate(HELD))
    path = tmp_path / "holding.py"
    path.write_text(HOLDING + "\n".join(functions), encoding="utf-8")
    module: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module)

    def seen(function: Any, size: int, n: float) -> Any:
        module["STATE"].n = n
        try:
            return function(-hf.ones([size]), n).tolist()
        except BaseException as error:
            return told(error)

    with without_xla():
        for number, held in enumerate(HELD):
            plain = module[f"f{number}"]
            compiled = hf.compile(plain)
            for size, n in ((2, 1), (3, 2), (4, 2.5), (2, 3.5)):
                assert seen(compiled, size, n) == seen(plain, size, n), held


# -- what Python does on the way out -------------------------------------------------------------------------------

CHECKS = {
    "raise": "if hf.sum(x) > 2: raise OverflowError('large')",
    "assert": "assert hf.sum(x) <= 2, 'large'",
    "index": "x = x + 0 * hf.take(x, hf.where(hf.sum(x) > 2, 9, 0))",
    "helper": "x = positive(x)",
    "loop": "for v in x:\n    if v > 2: raise OverflowError('large')",
}
AROUND = {
    "nothing": "{check}\nLOG.append(2)",
    "finally": "try:\n    {check}\n    LOG.append(2)\nfinally: LOG.append(3)",
    "finally of a flag": "S.on = True\ntry:\n    {check}\nfinally: S.on = False",
    "finally returns": "try:\n    {check}\nfinally: return x * 3",
    "handled": "try:\n    {check}\n    y = x * 2\nexcept (OverflowError, AssertionError, IndexError): y = -x",
    "handled in part": "try:\n    {check}\nexcept OverflowError as e: LOG.append(str(e))\nelse: LOG.append(0)",
    "raised again": "try:\n    {check}\nexcept Exception: LOG.append(4); raise",
    "raised otherwise": "try:\n    {check}\nexcept Exception as error: raise KeyError(n) from error",
    "with": "with Told():\n    {check}\n    LOG.append(2)",
    "with that swallows": "with Told(True):\n    {check}\n    y = x * 2",
    "suppress": "with contextlib.suppress(OverflowError, AssertionError, IndexError):\n    {check}\n    LOG.append(2)",
    "generator": "for part in parts(x):\n    LOG.append(5)\n    {check}",
    "exit stack": "with contextlib.ExitStack() as stack:\n    stack.callback(LOG.append, 6)\n    {check}",
    "manager": "with told():\n    {check}",
    "decorator": "def inner(x):\n    {check}\n    return x * 2\ny = told()(inner)(x)",
    "unconverted": "def inner(x):\n    {check}\n    return x * 2\ny = kept(inner, x)",
    "Python's own after": "{check}\nLOG.append(2)\nif n == 2: {{}}['k']",
    "Python's own, handled": "try:\n    {check}\n    if n == 2: {{}}['k']\nexcept KeyError: LOG.append(7)",
    "Variables": "W.assign_add(1.0)\ntry:\n    {check}\n    W.assign_add(10.0)\nfinally: LOG.append(3)",
    "printed": "hf.print('before', x)\ntry:\n    {check}\n    hf.print('fine')\nexcept Exception: print('handled', x)\n"
               "finally: hf.print('end', x)",
    "iterator": "m = next(IT)\ntry:\n    {check}\n    m += next(IT)\nexcept Exception: m -= next(IT)\ny = x * m",
    "random": "z = hf.random.uniform((2,))\ntry:\n    {check}\nexcept Exception: LOG.append(8)\ny = z + x",
}
ON_THE_WAY = '''
import contextlib
import hybridflow as hf
from types import SimpleNamespace

LOG, S, W, IT = [], SimpleNamespace(on=None, calls=0), hf.Variable(0.0), iter(range(100))

class Told:
    def __init__(self, swallows=False): self.swallows = swallows
    def __enter__(self): LOG.append("enter")
    def __exit__(self, kind, error, trace):
        LOG.append(None if kind is None else kind.__name__)
        return self.swallows
@contextlib.contextmanager
def told():
    LOG.append("enter")
    try: yield
    except Exception as error: LOG.append(str(error)); raise
    finally: LOG.append("exit")
def parts(x):
    try:
        yield x
        yield x + 1
    finally: LOG.append("closed")
def positive(x):
    if hf.sum(x) > 2: raise OverflowError("large")
    return x
@hf.no_convert
def kept(function, x):
    try: return function(x)
    finally: LOG.append("kept")

def f(x, n):
    y = x
    S.calls += 1
    LOG.append(n)
{body}
    return y + x
'''


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", CHECKS)
def test_what_python_does_on_the_way_out_is_done(
    name: str, around: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def runs(space: dict[str, Any], function: Any) -> Any:
        hf.random.seed(0)
        seen: list[Any] = []
        for number, (numbers, n) in enumerate(itertools.product([[0.5, 0.25], [3.0, 4.0], [-1.0, 1.5]], [1, 2])):
            before = space["W"].numpy().item()
            try:
                result = function(hf.asarray(numbers), n).tolist()
            except Exception as error:
                result = type(error), str(error).partition("\n")[0]
                space["W"].assign(before)  # what eager code has assigned stays, a compiled call is void
                hf.random.seed(number)
            state = [*space["LOG"]], vars(space["S"]).copy(), space["W"].numpy().item()
            seen.append((result, state, capsys.readouterr().out))
        return seen

    path = tmp_path / "way.py"
    lines = AROUND[around].replace("{check}", "\0").splitlines()
    told = [line.replace("\0", CHECKS[name].replace("\n", "\n" + " " * line.find("\0"))) for line in lines]
    body = "\n".join("    " + line for line in "\n".join(told).replace("{{}}", "{}").splitlines())
    path.write_text(ON_THE_WAY.replace("{body}", body), encoding="utf-8")
    found: list[Any] = []
    for wrap in (lambda function: function, hf.compile):
        space: dict[str, Any] = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        with nullcontext() if name == "index" else without_xla():  # without XLA, indices are not checked
            found.append(runs(space, wrap(space["f"])))
    assert found[1] == found[0]


# -- what a trace refuses, whatever the code does with the error ----------------------------------------------------

REFUSED = {
    "value": "y = x * float(x[0])",
    "item": "y = x * x[0].item()",
    "mask": "y = x[x > 0]",
    "size": "y = hf.reshape(x, (int(x[1]), 1))[0]",
    "key": "y = x * {1.0: 2.0}[float(x[0])]",
    "append": "LOG.clear()\nfor q in x: LOG.append(1)\ny = x",
    "assigned": "W.assign(x * x[0].item())\ny = W + 0",
    "branch": "if x[0] < 0: y = [][0]\nelse: y = x",
    "ternary": "y = {}['k'] if x[0] < 0 else x",
    "array": "y = x * np.float32(x[0])",
    "staged": "n = 1 if x[0] > 0 else 2\ny = x * {1: 2.0, 2: 3.0}[n]",
}
LOST = {
    "finally return": "try:\n{s}\nfinally: return y",
    "finally break": "for _ in range(2):\n    try:\n{ss}\n    finally: break\nreturn y",
    "finally continue": "for _ in range(2):\n    try:\n{ss}\n    finally: continue\nreturn y",
    "finally raise": "try:\n    try:\n{ss}\n    finally: raise KeyError('over')\nexcept KeyError: return y",
    "finally raises if": "ok = 0\ntry:\n{s}\n    ok = 1\nfinally:\n    if not ok: raise OSError('mine')\nreturn y",
    "except": "try:\n{s}\nexcept Exception: return y\nreturn y",
    "except all": "try:\n{s}\nexcept: return y\nreturn y",
    "raise from": "try:\n{s}\nexcept Exception as e: raise OSError('mine') from e\nreturn y",
    "nested": "try:\n    try:\n{ss}\n    except OSError: pass\n    finally: return y\nexcept Exception: return x * 7",
    "suppress": "with contextlib.suppress(Exception):\n{s}\nreturn y",
    "exit true": "with Swallowing():\n{s}\nreturn y",
    "exit raises": "with Raising():\n{s}\nreturn y",
    "manager": "with swallowing():\n{s}\nreturn y",
    "generator": "def g():\n    nonlocal y\n    try:\n{ss}\n        yield 1\n    finally: return\n"
                 "for _ in g(): pass\nreturn y",
    "closure": "def u():\n    nonlocal y\n    try:\n{ss}\n    finally: return y\nreturn u() + y",
    "callback": "def key(k):\n    nonlocal y\n    try:\n{ss}\n    finally: return -k\n"
                "return y * sorted([1, 2], key=key)[0]",
    "attribute": "class P:\n    def __getattr__(self, name):\n        nonlocal y\n        try:\n{sss}\n"
                 "        finally: return 2.0\nreturn y * P().zz",
}
SWALLOWING = '''
import contextlib
import numpy as np
import hybridflow as hf

LOG = []
W = hf.Variable([1.0, 1.0])

class Swallowing:
    def __enter__(self): return self
    def __exit__(self, *args): return True
class Raising:
    def __enter__(self): return self
    def __exit__(self, kind, error, trace):
        if kind is not None: raise OSError("mine")
@contextlib.contextmanager
def swallowing():
    try: yield
    except Exception: pass

def f(x):
    y = x * 100
{body}

def around(x):
    return kept(x)

kept = hf.no_convert(f)
'''


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("lost", LOST)
def test_no_code_goes_on_after_what_a_trace_refuses(lost: str, tmp_path: Path):
    def indented(text: str, depth: int) -> str:
        return "\n".join(" " * 4 * depth + line for line in text.splitlines())

    for name, statement in REFUSED.items():
        parts = {"s" * depth: indented(statement, depth) for depth in (1, 2, 3)}
        path = tmp_path / f"{name}.py"
        path.write_text(SWALLOWING.replace("{body}", indented(LOST[lost].format(**parts), 1)))
        space: dict[str, Any] = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)

        def after(function: Any, space: dict[str, Any] = space) -> Any:
            space["W"].assign([1.0, 1.0])
            space["LOG"].clear()
            try:
                result = function(hf.asarray([1.0, 2.0]))
            except (TraceError, DTypeError, IndexError, KeyError) as error:
                return str(error)
            return result.tolist(), space["W"].numpy().tolist(), space["LOG"][:]

        expected = after(space["f"])
        for compiled in (hf.compile(space["f"]), hf.compile(space["f"], autograph=False), hf.compile(space["around"])):
            with without_xla():
                got = after(compiled)
            if isinstance(got, str):
                assert "mine" not in got
                assert "over" not in got
            else:
                assert got == expected, (name, compiled)


def in_thread(x):
    out = [5.0]

    def work():
        out[0] = x * 2

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return out[0]


def condition_in_thread(x):
    out = [5.0]

    def work():
        if x[0] > 0:
            out[0] = 1.0

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return x * out[0]


def exception_of_a_future(x):
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(lambda: float(x[0])).exception()
    return x if error is None else x * 5.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("function", [in_thread, condition_in_thread, exception_of_a_future])
def test_a_trace_ends_with_what_it_refuses_in_another_thread(function):
    assert function(hf.asarray([1.0, 2.0])).tolist() in ([1.0, 2.0], [2.0, 4.0])
    with pytest.raises(TraceError, match="in another thread"):
        hf.compile(function)(hf.asarray([1.0, 2.0]))
