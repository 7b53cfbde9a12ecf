"""Guards on things that a function reaches: objects in containers, a module's parts, files, processes, chance.

Both reads and changes of them are here. test_guards.py has the plain ways to read, test_hidden_reads.py has reads that
no line of the source shows, and test_read_matrix.py has every way to read with every way to change.
"""

import functools
import glob
import gzip
import importlib
import math
import mimetypes
import netrc
import os
import pathlib
import random
import secrets
import shutil
import subprocess
import sys
import types
import uuid
import warnings

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.guards.moving import _OUTSIDE_OF_PYTHON, _SETS_STATE


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.EffectWarning)
        yield


def same(make):
    """Check that a compiled function follows changes as the function itself does.

    Args:
        make: returns the function, the changes, and optionally what returns further state to compare; afresh each time.
    """
    found = []
    for compiled in (False, True):
        hf.random.seed(0)
        function, changes, *state = make()
        called = hf.compile(function) if compiled else function
        results = []
        for change in (lambda: None, lambda: None, *changes, lambda: None):
            change()
            results.append(np.asarray(called(hf.asarray([1.0, -2.0]))).tolist())
            results.append([read() for read in state])
        found.append(results)
    eager, traced = found
    assert eager == traced
    return eager


# -- what is in containers ----------------------------------------------------------------------------------------


def mean(value):
    metric = hf.metrics.Mean()
    metric.update(hf.asarray([value]))
    return metric


OBJECTS = {
    "generator": (hf.random.Generator, lambda one, x: x + one.uniform((2,))),
    "compiled": (lambda i: hf.compile([lambda x: x * 2, lambda x: x * 5][i]), lambda one, x: one(x)),
    "metric": (lambda i: mean(1.0 + i), lambda one, x: x * one.result()),
    "optimizer": (lambda i: hf.optim.SGD([hf.Variable(1.0)], rate=0.5 + i), lambda one, x: x * one.rate),
    "loss scale": (lambda i: hf.LossScale(2.0 ** (i + 3)), lambda one, x: one.scale(x)),
    "spec": (lambda i: hf.TensorSpec([i + 1]), lambda one, x: x * one.shape[0]),
    "ufunc": (lambda i: [np.sin, np.cos][i], lambda one, x: x * float(one(1.0))),
    "builtin": (lambda i: [math.sin, math.cos][i], lambda one, x: x * one(1.0)),
    "dtype": (lambda i: np.dtype(["f4", "f8"][i]), lambda one, x: x * one.itemsize),
    "scalar": (lambda i: np.float32(1 + i), lambda one, x: x * one),
    "vectorized": (lambda i: np.vectorize([lambda v: v * 2, lambda v: v * 5][i]), lambda one, x: x * float(one(2.0))),
    "polynomial": (lambda i: np.poly1d([1.0 + i, 2.0]), lambda one, x: x * one(2.0)),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_which_object_a_container_holds(name):
    made, use = OBJECTS[name]

    def in_list():
        both = [made(0), made(1)]
        return lambda x: use(both[0], x), [both.reverse, lambda: both.__setitem__(0, both[1])]

    def in_dict():
        box = {"one": made(0)}
        return lambda x: use(box["one"], x), [lambda: box.update(one=made(1))]

    def in_nested():
        box = {"all": [(made(0), 1)]}
        return lambda x: use(box["all"][0][0], x), [lambda: box["all"].__setitem__(0, (made(1), 1))]

    for make in (in_list, in_dict, in_nested):
        assert len(set(map(str, same(make)))) > 2


def test_functions_in_objects_of_libraries():
    def make():
        scale = [2.0]
        vectorized = np.vectorize(lambda v: v * scale[0])
        ufunc = np.frompyfunc(lambda a, b: a * b * scale[0], 2, 1)
        return (
            lambda x: x * float(vectorized(3.0)) * ufunc(2.0, 3.0) * ufunc.reduce([1.0, 2.0]),
            [lambda: scale.__setitem__(0, 5.0)],
        )

    same(make)


# -- keys and numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choose", [sorted, min, max, functools.partial(sorted, reverse=True)])
def test_a_key_function_is_called_once_for_each_item(choose):
    def make():
        items, counts = [3.0, 1.0, 2.0], [0]

        def key(value):
            counts[0] += 1
            return -value

        def run(x):
            found = choose(items, key=key)
            return x * (found[0] if isinstance(found, list) else found)

        return run, [lambda: items.append(0.5)], lambda: counts[0]

    same(make)


def test_keys_that_are_equal_keep_the_order():
    pairs = [(1, "b"), (0, "c"), (1, "a"), (0, "d")]
    for reverse in (False, True):
        compiled = hf.compile(lambda x, r=reverse: x * pairs.index(sorted(pairs, key=lambda p: p[0], reverse=r)[1]))
        assert compiled(1.0) == pairs.index(sorted(pairs, key=lambda p: p[0], reverse=reverse)[1])
    assert hf.compile(lambda x: x * min([], key=abs, default=3.0))(1.0) == 3.0
    with pytest.raises(ValueError, match="empty"):
        hf.compile(lambda x: x * max([], key=abs))(1.0)


class Number:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


GRID = np.arange(1.0, 10.0, dtype=np.float32).reshape(3, 3)
USES = {
    "axis": lambda a, n: hf.sum(a, axis=n),
    "item": lambda a, n: a[n],
    "slice": lambda a, n: hf.sum(a[n:]),
    "slice in a tuple": lambda a, n: hf.sum(a[:, n:]),
    "shape": lambda a, n: hf.sum(hf.ones((2, n)) * a[0, 0]),
    "roll": lambda a, n: hf.roll(a, n, axis=1)[0],
    "at": lambda a, n: a.at[n].set(0.0),
    "method": lambda a, n: a.sum(n),
    "list": lambda a, n: a[0, 0] * [5.0, 6.0, 7.0][n],
    "array": lambda a, n: a[0, 0] * GRID[n, n].item(),
}


@pytest.mark.parametrize("name", USES)
def test_objects_that_stand_for_integers(name):
    def make():
        number, grid = Number(1), hf.asarray(GRID)
        return lambda x: x[0] * USES[name](grid, number), [lambda: setattr(number, "value", 0)]

    assert len(set(map(str, same(make)))) > 2


# -- modules ------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self):
        self.w, self.b, self.more, self.scale = hf.Variable([2.0, 1.0]), None, [], 1.0
        self.buffer = hf.Variable([1.0], trainable=False)


def total(values):
    return sum((hf.sum(one) for one in values), hf.asarray(0.0))


READS = {
    "parameters": lambda m: total(m.parameters()),
    "named": lambda m: total(v * len(name) for name, v in m.named_parameters().items()),
    "buffers": lambda m: total(m.named_buffers().values()),
    "modules": lambda m: hf.asarray(float(len(m.named_modules()))),
    "leaves": lambda m: total(jax.tree_util.tree_leaves(m)),
}
CHANGES = {
    "attribute": lambda m: setattr(m, "added", hf.Variable([3.0])),
    "none": lambda m: setattr(m, "b", hf.Variable([5.0])),
    "float": lambda m: setattr(m, "scale", hf.Variable(7.0)),
    "list": lambda m: m.more.append(hf.Variable([4.0])),
    "module": lambda m: setattr(m, "inner", Model()),
    "buffer": lambda m: setattr(m.buffer, "trainable", True),
    "removed": lambda m: delattr(m, "w"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_module_comes_to_hold(read, change):
    def make():
        model = Model()
        return lambda x: x * READS[read](model), [lambda: CHANGES[change](model)]

    same(make)


def test_a_module_that_stays_as_it_is_keeps_its_trace():
    model = nn.Sequential(nn.Linear(3), nn.relu, nn.Linear(1))
    optimizer = hf.optim.SGD(model, rate=0.1)

    @hf.compile
    def step(x):
        model.steps = getattr(model, "steps", 0)
        with hf.GradientTape() as tape:
            loss = hf.sum(model(x)) + 1e-3 * total(v * v for v in model.parameters())
        optimizer.update(tape.gradient(loss, model))
        return hf.stop_gradient(loss)

    for _ in range(5):
        step(hf.ones((2, 3)))
    assert step.trace_count <= 2


# -- changes ------------------------------------------------------------------------------------------------------


def counted_up(state, x):
    state["n"] += 1
    return x * state["opt"]["rate"]


def counted_later(state, x):
    result = x * state["opt"]["rate"]
    state["n"] = state["n"] + 1
    return result


def counted_inside(state, x):
    options = state["opt"]
    options["n"] = options.get("n", 0) + 1
    return x * options["rate"]


def updated(state, x):
    state.update(n=state["n"] + 1)
    return x * state["opt"]["rate"]


def appended(state, x):
    state["all"].append(3)
    return x * state["all"][0] * state["opt"]["rate"]


def cut_and_filled(state, x):
    del state["log"][1:]
    state["log"].append(7)
    return x * state["opt"]["rate"]


def filled_and_cut(state, x):
    state["log"].append(7)
    del state["log"][1:]
    return x * state["opt"]["rate"]


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize(
    "change", [counted_up, counted_later, counted_inside, updated, appended, cut_and_filled, filled_and_cut]
)
def test_changes_beside_floats_that_move(change, moves):
    """A change reaches the container itself, also where a copy with inputs in it stands for it, or for one around."""

    def make():
        state = {"n": 0, "opt": {"rate": 0.5}, "all": [1.5, 2], "log": [1]}

        def rate(value):
            return lambda: state["opt"].update(rate=value if moves else 0.5)

        return lambda x: change(state, x), [rate(0.25), rate(0.5), rate(2.0)], lambda: repr(state)

    same(make)


COUNTED = 0


OWN = {
    "a metric": hf.metrics.Mean,
    "a scale": hf.LossScale,
    "a generator": lambda: hf.random.Generator(1),
    "a function": lambda: hf.compile(lambda x: x),
}


@pytest.mark.parametrize("name", OWN)
def test_attributes_that_users_set_on_objects_of_hybridflow(name):
    def make():
        one = OWN[name]()
        one.calls, one.k = 0, {"a": 1.0}

        def function(x):
            one.calls += 1
            return x * one.calls + one.k["a"] * getattr(one, "later", 1.0)

        changes = [lambda: one.k.update(a=3.0), lambda: setattr(one, "k", {"a": 5.0})]
        return function, [*changes, lambda: setattr(one, "later", 2.0)], lambda: one.calls

    same(make)


def test_a_subclass_of_an_optimizer_or_metric_may_override_update():
    def make():
        class Scaled(hf.optim.SGD):
            factor = 1.0

            def update(self, gradients):
                return super().update([one * self.factor for one in gradients])

        class Doubled(hf.metrics.Mean):
            def update(self, value):
                return super().update(value * 2.0)

        weight, mean = hf.Variable(np.ones(2, np.float32)), Doubled()
        optimizer = Scaled([weight], 0.5)

        def function(x):
            optimizer.update([x])
            mean.update(x)
            return weight + mean.result()

        return function, [lambda: setattr(Scaled, "factor", 3.0)]

    same(make)


def test_what_is_stored_where_it_is_already():
    """A trace that finds what it stores stores it again once somebody else has stored something else."""
    global COUNTED
    counted = 0
    box, kind = types.SimpleNamespace(value=0), type("Box", (), {"value": 0})

    def store(x):
        global COUNTED
        nonlocal counted
        box.value = kind.value = COUNTED = counted = 3
        return x

    compiled = hf.compile(store)
    for shape in ((1,), (1,), (2,), (2,)):
        compiled(hf.ones(shape))
    for shape in ((2,), (1,), (2,)):
        box.value = kind.value = COUNTED = counted = 9
        compiled(hf.ones(shape))
        assert (box.value, kind.value, COUNTED, counted) == (3, 3, 3, 3)
    traces = compiled.trace_count
    for shape in ((2,), (1,), (2,)):
        compiled(hf.ones(shape))
    assert compiled.trace_count == traces


def test_a_count_that_is_set_to_what_it_has_become():
    def make():
        box, items = types.SimpleNamespace(count=2), [1, 2, 3]

        def run(x):
            box.count += 1
            box.count = len(items)
            return x

        return run, [lambda: None, lambda: setattr(box, "count", 7), lambda: items.append(4)], lambda: box.count

    same(make)


def test_an_attribute_that_is_changed_by_way_of_the_dict():
    def make():
        box = types.SimpleNamespace(n=0, rate=0.5, inner={"rate": 0.5})

        def run(x):
            attributes = box.__dict__
            attributes["n"] = attributes["n"] + 1
            return x * box.rate

        def rate(value):
            return lambda: (setattr(box, "rate", value), box.inner.update(rate=value))

        return run, [rate(0.25), rate(2.0)], lambda: repr(box)

    same(make)


# -- files, processes, chance -------------------------------------------------------------------------------------


def first_line(file):
    with file:
        return file.readline()


def kinds_in(path):
    return mimetypes.read_mime_types(str(path))


def copied(path):
    shutil.copyfile(path, path.with_suffix(".copy"))
    return path.with_suffix(".copy")


OUTSIDE = {
    "load": (lambda path, n: np.save(path, np.float32(n)), lambda path: np.load(f"{path}.npy")),
    "loadtxt": (lambda path, n: path.write_text(str(n)), lambda path: float(np.loadtxt(path))),
    "fromfile": (lambda path, n: np.float32([n]).tofile(path), lambda path: np.fromfile(path, np.float32)[0]),
    "gzip": (
        lambda path, n: path.write_bytes(gzip.compress(str(n).encode())),
        lambda path: float(first_line(gzip.open(path))),  # noqa: SIM115
    ),
    "open": (lambda path, n: path.write_text(str(n)), lambda path: float(first_line(path.open()))),
    "glob": (lambda path, n: pathlib.Path(f"{path}{n}").touch(), lambda path: len(glob.glob(f"{path}*"))),
    "scandir": (lambda path, n: pathlib.Path(f"{path}{n}").touch(), lambda path: len([*os.scandir(path.parent)])),
    "iterdir": (lambda path, n: pathlib.Path(f"{path}{n}").touch(), lambda path: len([*path.parent.iterdir()])),
    "stat": (lambda path, n: path.write_text("a" * n), lambda path: path.stat().st_size),
    "several arrays": (lambda path, n: np.savez(path, k=np.float32(n)), lambda path: np.load(f"{path}.npz")["k"]),
    "passwords": (
        lambda path, n: path.write_text(f"machine a login b password {n}\n"),
        lambda path: float(netrc.netrc(path).hosts["a"][2]),
    ),
    "types": (lambda path, n: path.write_text("a/b c\n" + "a/d e\n" * (n > 2)), lambda path: len(kinds_in(path))),
    "copy": (lambda path, n: path.write_text(str(n)), lambda path: float(copied(path).read_text(encoding="utf-8"))),
    "process": (
        lambda path, n: path.write_text(str(n)),
        lambda path: float(subprocess.run(["cat", path], capture_output=True, check=True).stdout),
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="a command of POSIX")
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_lies_outside_of_python(tmp_path, name):
    write, read = OUTSIDE[name]
    folders = iter([tmp_path / "eager", tmp_path / "compiled"])

    def make():
        folder = next(folders)
        folder.mkdir()
        path = folder / "file"
        write(path, 2)
        return lambda x: x * read(path), [lambda: write(path, 5)]

    assert len(set(map(str, same(make)))) > 2


@pytest.mark.parametrize("draw", [secrets.token_hex, lambda: secrets.randbits(60), lambda: uuid.uuid4().hex])
def test_chance_of_the_system(draw):
    def make():
        seen = set()

        def run(x):
            seen.add(draw())
            return x * len(seen)

        return run, []

    same(make)


def test_a_list_that_is_shuffled():
    def make():
        random.seed(3)
        items = [1.0, 2.0, 3.0]

        def run(x):
            random.shuffle(items)
            return x

        return run, [], lambda: [*items]

    same(make)


def test_every_name_is_found():
    """No name is misspelt; some libraries are not there, and some names not on every system."""
    missing = set()
    for module, paths in (*_OUTSIDE_OF_PYTHON.items(), *_SETS_STATE.items()):
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        for path in paths.split():
            if functools.reduce(lambda one, name: getattr(one, name, None), path.split("."), found) is None:
                missing.add(f"{module}.{path}")
    assert missing <= {"os.getrandom", "pathlib.Path.walk", "os.fwalk", "os.pread", "os.getloadavg", "os.statvfs"}


def test_a_trace_does_not_rely_on_what_operations_keep_for_themselves():
    x, tried = hf.asarray([0.25, 0.5]), 0
    for name, function in list(vars(hf).items()):
        op = getattr(function, "op", None)
        if op is None or not hasattr(op, "infer"):
            continue
        try:
            function(x)
        except (TypeError, ValueError):  # it takes other arguments
            continue
        compiled = hf.compile(lambda x, function=function: function(x))
        compiled.lower(x)
        assert [guard for guard in compiled.explain()[0].guards if "partial" in guard] == [], name
        tried += 1
    assert tried > 60
