"""`fn.explain().advice`: planted problems are named with their lines, and clean programs get no advice."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import hybridflow as hf

PROGRAMS = {
    "mlp": """
import numpy as np
import hybridflow as hf

rng = np.random.default_rng(0)
w1 = hf.Variable(rng.normal(size=(32, 64)).astype(np.float32), name="w1")
w2 = hf.Variable(rng.normal(size=(64, 8)).astype(np.float32), name="w2")
counter, table, big = 0, np.ones(1), np.zeros(300_000, np.float32)


@hf.compile
def step(x):
    with hf.GradientTape() as tape:
        h = x @ w1
        # here
        h = hf.nn.relu(h)
        # here
        h = hf.nn.softmax(h @ w2)
        # here
        loss = hf.mean(hf.square(h))
    for variable, gradient in zip((w1, w2), tape.gradient(loss, (w1, w2))):
        variable.assign_sub(0.1 * gradient)
    return loss


arguments = (hf.asarray(rng.normal(size=(16, 32)).astype(np.float32)),)
""",
    "recurrent": """
import numpy as np
import hybridflow as hf

rng = np.random.default_rng(0)
w = hf.Variable(rng.normal(size=(16, 16)).astype(np.float32) * 0.1, name="w")
counter, table, big = 0, np.ones(1), np.zeros(300_000, np.float32)


@hf.compile
def step(xs, limit):
    h = xs[0]
    # here
    while hf.sum(hf.abs(h)) > limit:
        h = hf.tanh(h @ w)
        # here in a loop
        h = h * 0.5
    h = h + hf.mean(xs, axis=0)
    # here
    return hf.sum(h)


arguments = hf.asarray(rng.normal(size=(5, 4, 16)).astype(np.float32)), hf.asarray(0.1)
""",
    "helpers": """
import numpy as np
import hybridflow as hf

counter, table, big = 0, np.ones(1), np.zeros(300_000, np.float32)


def normalised(h):
    h = h - hf.mean(h, axis=-1, keepdims=True)
    # here
    return h / hf.sqrt(hf.mean(h * h, axis=-1, keepdims=True) + 1e-5)


def scanned(h):
    def body(carry, row):
        h = carry * 0.9 + row
        # here in a loop
        return h, hf.max(h)

    return hf.scan(body, h[0], h)[1]


@hf.compile
def step(h):
    h = normalised(h)
    # here
    return hf.sum(scanned(h))


arguments = (hf.asarray(np.random.default_rng(1).normal(size=(6, 12)).astype(np.float32)),)
""",
}
PROBLEMS = {
    "retrace": "h = h * len(range(1 + counter))",
    "float64": "h = hf.astype(h + table, hf.float32)",
    "constant": "h = h + hf.sum(big)",
    "host": "hf.print(hf.sum(h))",
}


def places(name: str, problem: str):
    lines = PROGRAMS[name].splitlines()
    found = [index for index, line in enumerate(lines) if "# here" in line]
    return [index for index in found if problem != "host" or "in a loop" in lines[index]]


def load(source: str, path: Path):
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def run(module, times=4):
    for number in range(times):
        module.counter = number
        module.step(*module.arguments)
    return module.step.explain()


@pytest.mark.parametrize("name", PROGRAMS)
def test_clean_programs_get_no_advice(name: str, tmp_path: Path):
    found = run(load(PROGRAMS[name], tmp_path / f"clean_{name}.py"))
    assert found.advice == ()
    assert len(found) == 1


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planted_problem_is_named_with_its_line(name: str, problem: str, tmp_path: Path, capfd):
    candidates = places(name, problem)
    if not candidates:
        pytest.skip("the program has no loop on tensors")
    rng = np.random.default_rng(sum(map(ord, name + problem)))
    place = int(rng.choice(candidates))
    lines = PROGRAMS[name].splitlines()
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    lines[place] = indent + PROBLEMS[problem]
    path = tmp_path / f"planted_{name}_{problem}.py"
    found = run(load("\n".join(lines), path))
    assert {one.kind for one in found.advice} == {problem}, found
    assert {one.line for one in found.advice} == {f"{path}:{place + 1}"}


# -- each piece of advice, what triggers it and what does not -----------------------------------------------------


def kinds(fn, *calls):
    compiled = hf.compile(fn, dynamic=False)
    for arguments in calls:
        compiled(*arguments)
    return [one.kind for one in compiled.explain().advice]


X = hf.zeros((64, 64))


def test_integers_that_retrace():
    def scaled(x, n):
        return hf.tanh(x @ x) * len(range(n)) + x

    assert kinds(scaled, (X, 1), (X, 2), (X, 3)) == ["retrace"]
    assert kinds(scaled, (X, 1), (X, 2)) == []
    assert kinds(lambda x, n: hf.tanh(x @ x) * n + x, (X, 1), (X, 2), (X, 3)) == []
    assert kinds(scaled, (X, 1), (hf.zeros((72, 72)), 2), (hf.zeros((80, 80)), 3)) == []


def test_an_integer_argument_names_its_call():
    compiled = hf.compile(lambda x, n: hf.tanh(x @ x) * len(range(n)) + x)
    for n in range(3):
        compiled(X, n)
    (found,) = compiled.explain().advice
    assert found.line is not None
    assert Path(found.line.rpartition(":")[0]) == Path(__file__)
    assert "n is a Python integer" in found.text
    assert "hf.asarray(n)" in found.hint


def test_doubles_by_accident_and_on_purpose():
    doubles = hf.asarray(np.ones((64, 64)))
    assert kinds(lambda x, y: hf.tanh(x @ y) + x, (X, doubles)) == ["float64"]
    assert kinds(lambda x, y: hf.tanh(x @ y) + x, (doubles, doubles)) == []
    assert kinds(lambda x: hf.sum(hf.tanh(hf.astype(x, hf.float64) @ hf.astype(x, hf.float64))), (X,)) == []
    assert kinds(lambda x, y: (hf.tanh(x @ x), hf.tanh(y @ y)), (X, doubles)) == []


def test_large_constants_and_tensors():
    big = np.zeros((1024, 512), np.float32)
    tensor = hf.asarray(big)
    assert kinds(lambda x: hf.tanh(x @ x)[0, 0] + hf.sum(big), (X,)) == ["constant"]
    assert kinds(lambda x: hf.tanh(x @ x)[0, 0] + hf.sum(tensor), (X,)) == []
    assert kinds(lambda x: hf.tanh(x @ x)[0, 0] + hf.sum(big[:100]), (X,)) == []


def test_python_in_loops_and_beside_them():
    def looping(inside):
        def body(i, x):
            if inside:
                hf.print(i)
            return i + 1, hf.tanh(x @ x)

        def fn(x):
            hf.print(hf.sum(x))
            return hf.while_loop(lambda i, x: hf.sum(x) > i, body, (hf.asarray(0), x))[1]

        return fn

    assert kinds(looping(True), (X,)) == ["host"]
    assert kinds(looping(False), (X,)) == []


def test_functions_too_small_to_compile():
    small, large = hf.zeros(16), hf.zeros((512, 512))
    assert kinds(lambda x: x * 2 + 1, (small,)) == ["tiny"]
    assert kinds(lambda x, y: hf.sqrt(x * x + y * y), (small, small)) == ["tiny"]
    assert kinds(lambda x: x * 2 + 1, (small,), (hf.zeros(17),), (hf.zeros(18),)) == ["tiny"]
    assert kinds(lambda x: x * 2 + 1, (large,)) == []
    assert kinds(lambda x: hf.sum(hf.tanh(x * 2 + 1)) * x, (small,)) == []


def layer(x, *_):
    return hf.tanh(x @ x) * hf.sin(x) + hf.cos(x) + x


def branching(x, rate):
    return layer(x) * len(f"{rate}")


@pytest.mark.parametrize(
    ("fn", "argument", "said"),
    [
        (layer, lambda i: f"step {i}", "another Python value"),
        (layer, lambda i: object(), "another Python value"),
        (lambda x, fn: layer(fn(x)), lambda i: lambda x: x, "another Python value"),
        (branching, lambda i: 0.1 * i, "the code needs the number"),
        (lambda x, n: layer(x) * len(range(n["n"][0])), lambda i: {"n": (i, "a")}, "n['n'][0] is a Python integer"),
        (lambda x, xs: sum(xs, layer(x)), lambda i: [X] * i, "structure of the arguments"),
        (lambda x, y: hf.sum(layer(y)) + layer(x), lambda i: hf.ones((i + 2, i + 2)), "4 shapes"),
    ],
)
def test_what_is_traced_at_every_call(fn, argument, said):
    compiled = hf.compile(fn, dynamic=False)
    for i in range(4):
        compiled(X, argument(i))
    (found,) = compiled.explain().advice
    assert found.kind == "retrace"
    assert said in found.text
    assert "4 traces" in found.text
    needs = "needs the number" in said or "a Python integer" in said
    call, body = test_what_is_traced_at_every_call.__code__.co_firstlineno + 15, [*fn.__code__.co_lines()][-1][2]
    assert found.line == f"{__file__}:{body if needs else call}"
    # Modes, each of them called again and again, are what traces are for.
    modes = hf.compile(fn, dynamic=False)
    values = [argument(i) for i in range(4)]
    if "integer" not in said:
        for _ in range(5):
            for value in values:
                modes(X, value)
        assert modes.explain().advice == ()
    few = hf.compile(fn, dynamic=False)
    few(X, values[0]), few(X, values[1])
    assert few.explain().advice == ()


def test_modes_that_are_read_from_outside():
    mode = "0"

    @hf.compile
    def fn(x):
        return layer(x) if mode else x

    for number in range(4):
        mode = f"mode {number}"
        for _ in range(3):
            fn(X)
    assert fn.trace_count == 4
    assert fn.explain().advice == ()
    for number in range(8):
        mode = f"step {number}"
        fn(X)
    (found,) = fn.explain().advice
    assert "mode was another Python value" in found.text
    assert found.line == f"{__file__}:{fn.python_function.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize("holder", [[0], {"step": 0}, {"n": 0, "b": "c"}])
def test_integers_in_what_is_read_from_outside(holder):
    state = holder

    @hf.compile
    def fn(x):
        return layer(x) * len(str(state))

    def hold(value, number):
        if isinstance(value, dict):
            return {key: hold(one, number) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(hold(one, number) for one in value)
        return value if isinstance(value, str) else number

    for number in range(4):
        state = hold(holder, number)
        fn(X)
    (found,) = fn.explain().advice
    assert "state holds a Python integer, and 4 values of it made 4 traces" in found.text
    assert found.line == f"{__file__}:{fn.python_function.__code__.co_firstlineno + 2}"


def test_other_values_in_containers_are_no_integers():
    state = ["mode 0"]

    @hf.compile
    def fn(x):
        return layer(x) * len(state[0])

    for number in range(5):
        state = [f"mode {number}"] * (number + 1)
        fn(X)
    assert fn.trace_count == 5
    assert fn.explain().advice == ()


def test_open_sizes_are_no_retraces():
    compiled = hf.compile(layer)
    for size in range(2, 9):
        compiled(hf.ones((size, size)))
    assert compiled.explain().advice == ()


def test_numpy_numbers_are_doubles():
    assert kinds(lambda x: layer(x * np.sqrt(2.0)), (X,)) == ["float64"]
    assert kinds(lambda x: layer(x * float(np.sqrt(2.0))), (X,)) == []
    assert kinds(lambda x: layer(x * np.float32(2.0)), (X,)) == []
    compiled = hf.compile(lambda x: layer(x * np.sqrt(2.0)))
    compiled(X)
    assert "float(...)" in compiled.explain().advice[0].hint


def test_doubles_in_loops_and_casts_that_were_written():
    double = np.full(64, 2.0)
    single = double.astype(np.float32)

    def scanned(array):
        def body(carry, row):
            return layer(carry) + hf.astype(row * array, hf.float32), None

        return lambda x: hf.scan(body, x, hf.stack([x, x]))[0]

    assert kinds(scanned(double), (X,)) == ["float64"]
    assert kinds(scanned(single), (X,)) == []
    assert kinds(lambda x: hf.sum(hf.astype(layer(x), hf.float64) * double), (X,)) == []
    assert kinds(lambda x: hf.sum(layer(x) * double), (X,)) == ["float64"]


def test_python_in_loops_of_python():
    def printing(times):
        def fn(x):
            for _ in range(times):
                x = layer(x)
                hf.print(hf.sum(x))
            return x

        return fn

    assert kinds(printing(4), (X,)) == ["host"]
    assert kinds(printing(1), (X,)) == []


def test_advice_is_printed_and_shown_in_notebooks():
    compiled = hf.compile(lambda x: x * 2)
    compiled(hf.zeros(4))
    found = compiled.explain()
    assert "advice at test_advice.py:" in str(found)
    assert "Call it eagerly" in str(found)
    assert "Call it eagerly" in found._repr_html_()
    assert "<td>" in found._repr_html_()


def test_python_loops_that_a_tensor_may_end():
    def newton(x, n, steps):
        for _ in steps(n):
            y = x - (x * x - 2) / (2 * x)
            if hf.max(hf.abs(y - x)) < 1e-6:
                break
            x = y
        return x

    def over_range(x, n):
        for _ in range(n):
            y = x - (x * x - 2) / (2 * x)
            if hf.max(hf.abs(y - x)) < 1e-6:
                break
            x = y
        return x

    compiled = hf.compile(over_range)
    small = hf.ones((4, 4))
    compiled(small, 14)
    (advice,) = compiled.explain().advice
    assert advice.kind == "unrolled"
    assert "14 steps" in advice.text
    assert "hf.arange(n)" in advice.hint
    assert advice.line == f"{__file__}:{over_range.__code__.co_firstlineno + 1}"
    assert kinds(over_range, (small, 4)) == []
    assert kinds(newton, (small, 14, hf.arange)) == []
    assert hf.all(compiled(small, 14) == hf.compile(newton)(small, 14, hf.arange))
