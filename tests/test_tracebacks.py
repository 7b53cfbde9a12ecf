"""Errors keep their type and attributes, and show the user's lines only."""

import os
import subprocess
import sys
import traceback

import pytest

import hybridflow as hf
from tests.notebooks import run_in_kernel


class Own(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"own {code}")
        self.code = code
        self.detail = detail


def raises(x):
    raise Own(7, detail=[1])


def adds(x):
    return x + hf.zeros((5,))


class Model:
    def __init__(self, fn):
        self.fn = fn

    @hf.compile
    def run(self, x):
        return self.fn(x)


def calls(fn):
    inner = hf.compile(lambda x: fn(x))
    return [
        hf.compile(fn),
        hf.compile(lambda x: [fn(y) for y in [x]]),
        hf.compile(lambda x: inner(x)),
        Model(fn).run,
        hf.compile(lambda x: hf.cond(hf.sum(x) > 0, fn, lambda x: x, x)),
        hf.compile(lambda x: hf.grad(lambda x: hf.sum(fn(x)))(x)),
    ]


def files_of(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize(("fn", "kind"), [(raises, Own), (adds, hf.core.errors.ShapeError)])
def test_the_users_lines_are_what_is_left(fn, kind, number):
    with pytest.raises(kind) as caught:
        calls(fn)[number](hf.zeros((3,)))
    error = caught.value
    assert traceback.extract_tb(error.__traceback__)[-1].name == fn.__name__
    ours = [file for file in files_of(error) if file != __file__]
    assert len(ours) <= 2  # the call itself
    assert any("while compiling" in note for note in error.__notes__)
    if kind is Own:
        assert (error.code, error.detail) == (7, [1])


TRACED = {
    "graph": lambda f, x: hf.compile(f).graph(x), "lower": lambda f, x: hf.compile(f).lower(x),
    "cost": lambda f, x: hf.cost(f, x), "concrete": lambda f, x: hf.compile(f).concrete(hf.TensorSpec([3])),
    "replay": lambda f, x: hf.compile(f).replay(x), "compare": hf.compare,
    "assert_same": hf.testing.assert_same, "locate": hf.debugging.locate,
    "export": lambda f, x: hf.export.save("never.hf", f, hf.TensorSpec([3])),
}


@pytest.mark.parametrize("way", TRACED)
def test_the_users_lines_are_what_is_left_of_a_trace_that_is_not_called(way):
    with pytest.raises(hf.core.errors.ShapeError) as caught:
        TRACED[way](adds, hf.zeros((3,)))
    assert adds.__name__ in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert len([file for file in files_of(caught.value) if file != __file__]) <= 12
    before = caught.value.__context__
    assert before is None or caught.value.__suppress_context__ or len(files_of(before)) <= 12


def test_causes_are_trimmed_too():
    def fn(x):
        try:
            return {}["key"]
        except KeyError as error:
            raise Own(1, detail=None) from error

    with pytest.raises(Own) as caught:
        hf.compile(fn)(1.0)
    assert set(files_of(caught.value.__cause__)) == {__file__}


class Leaving:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, place):
        SEEN.append(traceback.extract_tb(place))
        return True


SEEN: list[traceback.StackSummary] = []
BLOCKS = {
    "except": "    try: held['k']\n    except KeyError: SEEN.append(traceback.extract_tb(sys.exc_info()[2]))",
    "finally": "    try:\n        try: held['k']\n"
               "        finally: SEEN.append(traceback.extract_tb(sys.exc_info()[2]))\n"
               "    except KeyError: pass",
    "with": "    with Leaving(): [1][5]",
    "generator": "    def items():\n        try: yield held['k']\n        except KeyError:\n"
                 "            SEEN.append(traceback.extract_tb(sys.exc_info()[2])); yield 1\n"
                 "    for one in items(): x = x * one",
    "callback": "    try: max(map(held.__getitem__, ['k']))\n"
                "    except KeyError: SEEN.append(traceback.extract_tb(sys.exc_info()[2]))",
}


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_sees_its_own_lines(block, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(f"def fn(x):\n    held = {{}}\n{BLOCKS[block]}\n    return x\n")
    space = {"SEEN": SEEN, "sys": sys, "traceback": traceback, "Leaving": Leaving}
    exec(compile(path.read_text(), str(path), "exec"), space)
    found = []
    for fn in (space["fn"], hf.compile(space["fn"])):
        SEEN.clear()
        fn(hf.asarray(1.0))
        found.append([[(one.lineno, one.name, one.line) for one in lines] for lines in SEEN])
    assert found[0] == found[1] != []


ENDS = [
    "x @ hf.ones((3,))", "x + hf.ones((3,))", "x[5]", "x[0] = 1", "hf.nn.Linear(3, 2)(x)", "hf.sum(x, axis=4)",
    "x.add_(1)", "hf.nn.Linaer(3)", "hf.nn.Conv2D(3)", "hf.config.nothing_like_it", "hf.train.EarlyStopping",
    "hf.load('nothing')",
    "hf.nn.utils.nothing", "hf.nn.Embedding(3, 2)(hf.asarray([3]))", "hf.compile(lambda x: x.numpy())(x)",
    "hf.grad(lambda x: x)(x)", "hf.vmap(lambda x: x @ x[:1])(x)",
]


def test_errors_that_end_a_program_show_the_users_lines_only(tmp_path):
    path = tmp_path / "program.py"
    ended = "    sys.excepthook(type(error), error, error.__traceback__); print('<end>', file=sys.stderr)\n"
    calls = [f"try:\n    {line}\nexcept Exception as error:\n{ended}" for line in ENDS]
    path.write_text("import sys\nimport hybridflow as hf\nx = hf.ones((2, 2))\n" + "".join(calls))
    found = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, timeout=300).stderr
    shown = found.split("<end>\n")
    assert shown.pop() == ""
    assert len(shown) == len(ENDS)
    for line, text in zip(ENDS, shown, strict=True):
        assert text.startswith("Traceback"), text
        assert line in text, text
        assert f"{os.sep}hybridflow{os.sep}" not in text, text
        assert text.count("Traceback (most recent call last)") == 1, text
        assert text.count("Did you mean") <= 1, text


def test_python_numbers():
    f = hf.compile(lambda x, s: x / (1 / s))
    f(hf.zeros((3,)), 1.0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            f(hf.zeros((3,)), 0.0)
        assert [file == __file__ for file in files_of(caught.value)] == [True, False, True]  # the call, and its line


def test_full_tracebacks():
    with hf.config.full_tracebacks(), pytest.raises(hf.core.errors.ShapeError) as caught:
        hf.compile(adds)(hf.zeros((3,)))
    assert any(file.endswith("trace.py") for file in files_of(caught.value))


def test_no_failure_is_kept():
    state = {"bad": True}

    @hf.compile
    def f(x):
        if state["bad"]:
            raise Own(1, detail=None)
        return x

    for _ in range(2):
        with pytest.raises(Own):
            f(1.0)
    assert f.cache_info().traces == 0
    state["bad"] = False
    assert f(1.0) == 1.0


SETTING = """
import hybridflow as hf
from hybridflow import nn
x, y, v = hf.ones((4,)), hf.ones((3, 2)), hf.Variable([1.0])
net = nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2))
optimizer = hf.optim.SGD(nn.Linear(2, 2), 0.1)
with hf.GradientTape() as tape:
    pass
_ = tape.gradient(v, v)
def adds(a):
    return a + y
"""
WRONG = [
    "x + y", "hf.matmul(x, y)", "net(x)", "x.reshape(7)", "y[7]", "v.assign(y)", "bool(x)", "optimizer.update([x])",
    "y.backward()", "tape.gradient(v, v)", "hf.grad(adds)(x)", "hf.compile(adds)(x)", "hf.cost(adds, x)",
]


def test_a_notebook_shows_the_users_lines_only():
    full = "with hf.config.full_tracebacks():\n    print(str(caught._render_traceback_()).count('hybridflow/') > 5)"
    caught = "try:\n    x + y\nexcept Exception as error:\n    caught = error"
    _, *outputs, _, (printed,) = run_in_kernel(SETTING, *WRONG, caught, full)
    for source, (shown,) in zip(WRONG, outputs, strict=True):
        lines = "\n".join(shown.traceback).splitlines()
        assert len(lines) <= 14, (source, len(lines))
        assert not any("hybridflow/" in line for line in lines), source
    assert printed.text == "True\n"
