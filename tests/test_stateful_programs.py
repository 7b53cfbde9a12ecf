"""Random programs that read and write Python state, called again and again: compiled they do what they do eagerly.

A program is a function written from lines below. Between calls its state is changed, put back to what it was earlier,
replaced, or the function is only looked at. After every call results and state are the same in both modes.
"""

import importlib.util
import itertools
import sys
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import hybridflow as hf

HEAD = '''
import math
import hybridflow as hf

RATE = 1.0
TABLE = {"k": 0.5, "n": 2}


class Part:
    def __init__(self, k):
        self.k = k

    def scaled(self, x):
        return x * self.k


class State:
    def __init__(self):
        self.a, self.b, self.last = 0.5, 0.25, 0.0
        self.t, self.mode, self.built = 0, "sum", False
        self.cfg = {"lr": 0.5, "wd": 0.125, "steps": 2}
        self.betas = (0.5, 0.75)
        self.rates = [0.5, 2.0]
        self.groups = [{"lr": 0.5}, {"lr": 0.25, "w": 1}]
        self.log, self.seen, self.memo = [], set(), {}
        self.buf, self.bufs = None, []
        self.part = Part(0.5)


o = State()


@hf.compile
def inner(x, s):
    return x * s + o.part.k


def make():
    rate = 0.5

    def bump(x):
        nonlocal rate
        rate = rate * 0.5 + 0.25
        return x * rate

    return bump


bump = make()
'''
LINES = [
    "x = x * o.a + o.b",
    "x = x + o.a * o.b",
    "x = x * (1 - o.a)",
    "x = x - RATE",
    "x = x + TABLE['k']",
    "x = x * o.cfg['lr'] + o.cfg['wd'] * o.cfg['steps']",
    "x = x + o.cfg.get('lr')",
    "for k, v in o.cfg.items(): x = x + v",
    "p, q = o.betas; x = x * p + q",
    "x = x * o.betas[0] + (1 - o.betas[1])",
    "for r in o.rates: x = x * r",
    "x = x + sum(o.rates) + len(o.rates)",
    "for g in o.groups: x = x - g['lr']",
    "for i, g in enumerate(o.groups): x = x + i * g['lr']",
    "x = o.part.scaled(x)",
    "x = inner(x, o.a) + inner(x, 0.5)",
    "x = x * getattr(o, 'a') + o.a",
    "x = x * (2.0 if o.a > 0.3 else 0.5)",
    "x = x + float(o.a)",
    "x = x + math.copysign(0.5, o.b)",
    "x = x + (0.5 if type(o.b) is float else 4.0)",
    "x = x + len(f'{o.cfg}') * 0.125",
    "x = x + (1.0 if 0.5 in o.rates else 0.0)",
    "x = hf.where(x > o.a, x * o.b, x)",
    "x = x * o.a if hf.sum(x) > 0 else x - o.b",
    "o.a *= 0.5",
    "o.a = o.a * 0.5 + 0.125",
    "o.last = o.a",
    "o.last = o.a + o.b",
    "o.t += 1",
    "o.cfg['lr'] *= 0.5",
    "o.rates[0] = o.rates[0] * 0.5",
    "o.rates[0], o.rates[1] = o.rates[1], o.rates[0]",
    "o.betas = (o.betas[1], o.betas[0])",
    "o.cfg = dict(o.cfg, lr=o.cfg['lr'] * 0.5)",
    "o.log.append(len(o.log))",
    "o.seen.add(len(o.seen))",
    "o.memo.setdefault(o.t, o.t + 1)",
    "global RATE; RATE = RATE * 0.5",
    "x = bump(x)",
    "o.part = Part(o.part.k + 0.25)",
    "o.mode = 'mean' if o.mode == 'sum' else 'sum'",
    "if o.buf is None: o.buf = hf.Variable(0.5)",
    "if o.buf is None: o.buf = hf.Variable(hf.sum(x) * 0.125); x = x + 100.0",
    "if o.buf is not None: o.buf.assign(o.buf * 0.5 + hf.mean(x)); x = x + o.buf",
    "if len(o.bufs) < 2: o.bufs.append(hf.Variable(float(len(o.bufs))))",
    "for b in o.bufs: b.assign_add(hf.mean(x) * 0.25); x = x + b",
    "if not o.built: o.w = hf.Variable(hf.random.uniform(())); o.built = True",
    "if o.built: x = x + o.w",
    "x = x + hf.random.uniform(()) * o.a",
]
TAIL = [
    "x = hf.clip(x, -8.0, 8.0)",
    "x = x + o.t * 0.125 + len(o.log) + len(o.seen) + len(o.memo) + o.last + RATE * o.a",
    "x = x + (hf.sum(x) if o.mode == 'sum' else hf.mean(x)) * o.part.k + sum(o.rates) + o.cfg['lr'] + o.betas[0]",
    "return x",
]
NUMBERS = st.sampled_from([0.5, 0.25, 0.125, 1.0, -0.0, 0.0, 0.75])
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["a", "b", "last"]), NUMBERS),
    st.tuples(st.just("lr"), NUMBERS),
    st.tuples(st.just("RATE"), NUMBERS),
    st.tuples(st.just("k"), NUMBERS),
    st.tuples(st.just("part"), NUMBERS),
    st.tuples(st.just("betas"), NUMBERS),
    st.tuples(st.just("rates"), NUMBERS),
    st.tuples(st.just("group"), NUMBERS),
    st.tuples(st.just("integer"), st.just(2)),
    st.tuples(st.sampled_from(["t", "buf", "bufs", "log", "new state", "look", "size"]), st.just(0)),
)
PROGRAMS = st.lists(st.sampled_from(LINES), min_size=2, max_size=6)
_COUNT = itertools.count()


def change(module, kind, value):
    """Change the state between two calls."""
    o = module.o
    if kind in ("a", "b", "last", "t", "buf"):
        setattr(o, kind, {"t": 0, "buf": None}.get(kind, value))
    elif kind == "lr":
        o.cfg["lr"] = value
    elif kind == "RATE":
        module.RATE = value
    elif kind == "k":
        module.TABLE["k"] = value
    elif kind == "part":
        o.part.k = value
    elif kind == "betas":
        o.betas = (value, 0.75)
    elif kind == "rates":
        o.rates[0] = value
    elif kind == "group":
        o.groups[0]["lr"] = value
    elif kind == "integer":
        o.a = value
    elif kind in ("bufs", "log"):
        getattr(o, kind).clear()
    elif kind == "new state":
        module.o = type(o)()


def loaded(path):
    """Return the program as a module of its own."""
    name = f"stateful_program_{next(_COUNT)}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    del sys.modules[name]
    return module


def plain(value):
    """Return state as values that compare."""
    if isinstance(value, hf.Variable):
        return round(float(value.numpy()), 3) + 0.0
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return {name: plain(item) for name, item in vars(value).items()} if hasattr(value, "__dict__") else value


def check(path, lines, changes):
    body = [f"    {line}" for line in (*lines, *TAIL)]
    first = [line for line in body if line.strip().startswith("global")]
    rest = [line.replace("global RATE; ", "") for line in body]
    text = "\n".join([HEAD, "def f(x):", *[line.split(";")[0] for line in first[:1]], *rest])
    path.write_text(text)
    modules = loaded(path), loaded(path)
    plain_f, compiled = (hf.compile(module.f, max_traces=8) for module in modules)
    size = 2
    for number, (kind, value) in enumerate([("nothing", 0), *changes]):
        results = []
        size = 5 - size if kind == "size" else size
        for module, function, eager in zip(modules, (plain_f, compiled), (True, False), strict=True):
            change(module, kind, value)
            x = np.linspace(-1.0, 1.0, size, dtype=np.float32)
            if kind == "look" and not eager:
                before = plain(module.o)
                function.graph(x)
                function.cost(x)
                assert plain(module.o) == before, text
            hf.random.seed(number)
            with hf.config.run_eagerly(eager):
                results.append((function(x).numpy(), plain(module.o), module.RATE))
        (expected, state, rate), (got, state_compiled, rate_compiled) = results
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5, err_msg=text)
        assert (repr(state_compiled), rate_compiled) == (repr(state), rate), text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROGRAMS, st.lists(CHANGES, min_size=2, max_size=6))
def test_random_programs_with_state(folder, lines, changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.RetraceWarning)
        check(folder / f"program_{next(_COUNT)}.py", lines, changes)
