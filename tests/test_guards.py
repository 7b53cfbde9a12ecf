"""Guards: what a compiled function reads from Python outside its arguments, and what it changes there.

The plain ways to read are here. test_things_read.py has objects in containers and modules, test_hidden_reads.py has
reads that no line of the source shows, and test_read_matrix.py has every way to read with every way to change.
"""

import collections
import dataclasses
import enum
import functools
import gc
import random
import threading
import time
import types
import weakref

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import MutationError
from hybridflow.guards import guards

RATE = 2.0
SIZES = [1.0, 2.0]
OPTIONS = {"scale": 3.0, "deep": {"list": [1, (2, 3)]}}
ARRAY = np.array([1.0, 2.0], np.float32)
STATE = hf.asarray([1.0, 1.0])
COUNT = 0


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    depth: int = 2


class Box:
    shared = 5.0

    def __init__(self, **values):
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


MODE = Mode.FAST
FROZEN = Frozen()
BOX = Box(value=1.0, inner=Box(depth=2), items=[Box(k=1.0), Box(k=2.0)])
SLOTTED = Slotted(1.0)


def double(x):
    return x * 2


def triple(x):
    return x * 3


HELPER = double


def one(value=1.0):
    return hf.asarray(value)


def same(fn, *args):
    """Return what a compiled call gives, after comparing it with what the function itself gives now."""
    with hf.config.run_eagerly():
        expected = fn(*args)
    got = fn(*args)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
    return got


@pytest.fixture(autouse=True)
def restore():
    """Give the globals back what they were."""
    kept = {name: globals()[name] for name in ("RATE", "MODE", "FROZEN", "HELPER", "STATE", "COUNT")}
    sizes, array = list(SIZES), ARRAY.copy()
    yield
    globals().update(kept)
    SIZES[:] = sizes
    ARRAY[:] = array
    OPTIONS.update(scale=3.0, deep={"list": [1, (2, 3)]})
    BOX.__dict__.update(value=1.0, inner=Box(depth=2), items=[Box(k=1.0), Box(k=2.0)])
    SLOTTED.value = 1.0
    Box.shared = 5.0


def set_global(name, value):
    return lambda: globals().__setitem__(name, value)


CHANGES = {
    "a global": (lambda x: x * RATE, set_global("RATE", 3.0), "RATE: 2.0 -> 3.0"),
    "a global's type": (lambda x: x * RATE, set_global("RATE", 2), "RATE: 2.0 -> 2"),
    "a global list": (lambda x: x * SIZES[0], lambda: SIZES.__setitem__(0, 7.0), "SIZES: [1.0, 2.0] -> [7.0, 2.0]"),
    "a list's length": (lambda x: x * len(SIZES), lambda: SIZES.append(2.0), "SIZES"),
    "a list that is run over": (lambda x: sum([x * s for s in SIZES]), lambda: SIZES.append(4.0), "SIZES"),
    "a dict": (lambda x: x * OPTIONS["scale"], lambda: OPTIONS.update(scale=4.0), "OPTIONS"),
    "a dict's keys": (lambda x: x * len(OPTIONS), lambda: OPTIONS.update(more=1), "OPTIONS"),
    "deep in containers": (
        lambda x: x * OPTIONS["deep"]["list"][1][0], lambda: OPTIONS["deep"]["list"].__setitem__(1, (5, 3)), "deep"),
    "an array": (lambda x: x * hf.asarray(ARRAY), lambda: ARRAY.__setitem__(0, 9.0), "ARRAY"),
    "an array used by NumPy": (lambda x: x * float(np.sum(ARRAY)), lambda: ARRAY.__setitem__(0, 9.0), "ARRAY"),
    "an enum": (lambda x: x * 2 if MODE is Mode.FAST else x, set_global("MODE", Mode.SLOW), "MODE"),
    "a frozen dataclass": (lambda x: x * FROZEN.depth, set_global("FROZEN", Frozen(3)), "FROZEN"),
    "a function": (lambda x: HELPER(x), set_global("HELPER", triple), "HELPER"),
    "an attribute": (lambda x: x * BOX.value, lambda: setattr(BOX, "value", 2.0), "BOX.value: 1.0 -> 2.0"),
    "an inner attribute": (
        lambda x: x * BOX.inner.depth, lambda: setattr(BOX.inner, "depth", 3), "BOX.inner.depth: 2 -> 3"),
    "an inner object": (lambda x: x * BOX.inner.depth, lambda: setattr(BOX, "inner", Box(depth=3)), "BOX.inner"),
    "objects in a list": (
        lambda x: sum([x * b.k for b in BOX.items]), lambda: setattr(BOX.items[1], "k", 5.0), "BOX.items[1].k"),
    "a class attribute": (lambda x: x * BOX.shared, lambda: setattr(Box, "shared", 6.0), "shared: 5.0 -> 6.0"),
    "a class": (lambda x: x * Box.shared, lambda: setattr(Box, "shared", 6.0), "Box.shared"),
    "an attribute that was not there": (
        lambda x: x * getattr(BOX, "extra", 1.0), lambda: setattr(BOX, "extra", 2.0), "BOX.extra: absent -> 2.0"),
    "hasattr": (lambda x: x * 2 if hasattr(BOX, "more") else x, lambda: setattr(BOX, "more", 1), "BOX.more"),
    "a slot": (lambda x: x * SLOTTED.value, lambda: setattr(SLOTTED, "value", 4.0), "SLOTTED.value"),
    "a tensor's number": (
        lambda x: x * 2 if float(STATE[0].numpy() if not hf.is_tracing() else STATE.numpy()[0]) > 1 else x,
        set_global("STATE", hf.asarray([3.0, 1.0])), "STATE"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_named(change):
    fn, apply, reason = CHANGES[change]
    f = hf.compile(fn)
    x = hf.asarray([2.0, 3.0])
    same(f, x)
    same(f, x)
    assert f.trace_count == 1
    apply()
    same(f, x)
    assert f.trace_count == 2
    assert reason in f.explain()[1].reason
    same(f, x)
    assert f.trace_count == 2
    BOX.__dict__.pop("extra", None)
    BOX.__dict__.pop("more", None)
    OPTIONS.pop("more", None)


def test_the_trace_of_an_earlier_state_is_used_again():
    box = Box(training=True)
    f = hf.compile(lambda x: x * 2 if box.training else x)
    for training in (True, False, True, False):
        box.training = training
        assert f(one()).item() == (2.0 if training else 1.0)
    assert f.trace_count == 2


def test_traces_of_other_states_go_the_short_way_too():
    box = Box(training=True)
    f = hf.compile(lambda x: x * 2 if box.training else x)
    shapes = hf.compile(lambda x: x * 2)
    for training in (True, False, True, True):
        box.training = training
        hits = f.cache_info().hits
        for _ in range(3):
            assert f(one()).item() == (2.0 if training else 1.0)
        assert f.cache_info().hits - hits <= 1  # calls that go the short way count as neither
        assert shapes(hf.ones((2 if training else 3,))).shape[0] == (2 if training else 3)
    f.clear_cache()
    assert f(one()).item() == 2.0


def test_equal_values_made_anew_are_no_change():
    box = Box(rate=0.5, name="ab" * 3, big=10**9, items=[1, 2], pair=(1, "x"), frozen=Frozen(), data=np.ones(2))

    @hf.compile
    def f(x):
        assert box.frozen.depth == 2
        return x * box.rate * len(box.name) * box.big * box.items[0] * box.pair[0] * hf.asarray(box.data)

    f(one())
    for _ in range(3):
        box.rate, box.name, box.big = float("0.5"), "".join(["ab"] * 3), int("1000000000")
        box.items, box.pair, box.frozen, box.data = [1, 2], (1, "".join("x")), Frozen(), np.ones(2)
        f(one())
    assert f.trace_count == 1


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, True), (1, 1.0), (float("nan"), 1.0), ([1], (1,)), ("1", 1)])
def test_values_that_look_alike(a, b):
    box = Box(value=a)
    f = hf.compile(lambda x: x * (1.0 if repr(box.value) == repr(a) else 2.0))
    for value in (a, b, a, b):
        box.value = value
        same(f, one())
    assert f.trace_count == 2


def test_an_array_that_nobody_can_write_to_is_known_by_identity():
    data = np.ones(3, np.float32)
    data.flags.writeable = False
    box = Box(data=data)
    f = hf.compile(lambda x: x * hf.asarray(box.data))
    assert same(f, one()).tolist() == [1.0] * 3
    box.data = data.copy()
    assert same(f, one()).tolist() == [1.0] * 3
    assert f.trace_count == 2
    box.data[0] = 5.0  # this one can be written to
    assert same(f, one()).tolist() == [5.0, 1.0, 1.0]


WHOLE = np.arange(6.0, dtype=np.float32)
SAME_CONTENT = [
    lambda: WHOLE[:4].copy(),
    lambda: WHOLE[:4],
    lambda: np.repeat(WHOLE[:4], 2)[::2],
    lambda: np.array([0.0, 1.0, 2.0, 3.0, 9.0], np.float32)[:4],
]
OF_MEMORY = {
    "strides": lambda a: a.strides[0],
    "flags": lambda a: a.flags.c_contiguous + 2 * a.flags.owndata,
    "base": lambda a: 1 + (a.base is None),
    "which base": lambda a: 1 + (a.base is WHOLE),
    "shared": lambda a: 1 + np.shares_memory(a, WHOLE),
    "shared by a view": lambda a: 1 + np.may_share_memory(a[1:3], WHOLE),
    "address": lambda a: 1 + (a.ctypes.data == WHOLE.ctypes.data),
    "a view": lambda a: a[::-1].strides[0],
    "a copy if it must": lambda a: 1 + (np.ascontiguousarray(a) is a),
    "order": lambda a: 1 + np.isfortran(a.reshape(2, 2)),
}


@pytest.mark.parametrize("read", OF_MEMORY)
def test_how_an_array_lies_in_memory_counts(read):
    held = {}

    @hf.compile
    def f(x):
        return x * OF_MEMORY[read](held["a"])

    for make in (*SAME_CONTENT, *SAME_CONTENT):
        held["a"] = make()
        with hf.config.run_eagerly():
            expected = f(hf.ones(1)).item()
        assert f(hf.ones(1)).item() == expected


@pytest.mark.parametrize("dtype", [
    *"?bBhHiIlLqQefdgFDGO", ">F", "U3", "S3", "V4", "M8[s]", [("part", "F"), ("P", "i")],
])
@pytest.mark.parametrize("stride", [1, 2])
def test_an_array_of_any_dtype_is_watched(dtype, stride):
    held = np.zeros(6, dtype)[::stride]
    f = hf.compile(lambda x: x * sum(np.stack([held, held]).tobytes()) if held.dtype != "O" else x * held[0])
    for _ in range(3):
        f(one())
    assert f.trace_count == 1
    held[0] = np.ones(1, "i4").astype(dtype)[0] if held.dtype.kind != "V" else np.frombuffer(b"1" * 12, dtype)[0]
    assert same(f, one()).tolist() != [0.0] * 3


@pytest.mark.parametrize("order", ["K", "A"])
def test_code_that_reads_an_array_in_the_order_of_memory(order):
    held = {"a": np.array([[1.0, 2.0], [3.0, 4.0]])}
    f = hf.compile(lambda x: x * held["a"].ravel(order)[1])
    assert f(hf.ones(())).item() == 2.0
    held["a"] = np.asfortranarray(held["a"])
    assert f(hf.ones(())).item() == 3.0
    assert "laid out otherwise in memory" in str(f.explain())


def test_nan_is_itself():
    box = Box(value=float("nan"))
    f = hf.compile(lambda x: x * box.value)
    f(one())
    box.value = float("nan")
    f(one())
    assert f.trace_count == 1


def test_closures_and_nonlocal_names():
    def make():
        rate, unused = 2.0, [0]

        def change(value):
            nonlocal rate
            rate = value

        @hf.compile
        def f(x):
            return x * rate

        unused.append(f)
        return f, change, unused

    f, change, unused = make()
    assert f(one()).item() == 2.0
    unused.append(1)
    assert f(one()).item() == 2.0
    assert f.trace_count == 1
    change(5.0)
    assert f(one()).item() == 5.0
    assert f.explain()[1].reason == "rate: 2.0 -> 5.0"


def test_names_in_branches_not_taken_do_not_count():
    box = Box(flag=False, other=1.0)
    f = hf.compile(lambda x: x * box.other if box.flag else x)
    f(one())
    box.other = 2.0
    f(one())
    assert f.trace_count == 1


class Layer:
    def __init__(self, k):
        self.k = k
        self.w = hf.Variable(k)

    def __call__(self, x):
        return x * self.k * self.w


class Model:
    def __init__(self):
        self.training = True
        self.layers = [Layer(2.0), Layer(3.0)]

    @property
    def scale(self):
        return 2.0 if self.training else 1.0

    def hidden(self, x):
        return x * self.scale

    @hf.compile
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.hidden(x)


def test_methods_of_models():
    model, other = Model(), Model()
    assert same(model.forward, one()).item() == 72.0
    model.training = False
    assert same(model.forward, one()).item() == 36.0
    model.layers[0].k = 1.0
    assert same(model.forward, one()).item() == 18.0
    model.layers[0].w.assign(10.0)
    assert same(model.forward, one()).item() == 90.0
    assert model.forward.trace_count == 3
    model.layers.append(Layer(1.0))
    same(model.forward, one())
    model.layers[1].w = hf.Variable(7.0)
    same(model.forward, one())
    assert model.forward.trace_count == 5
    assert "self.layers[1].w" in model.forward.explain()[4].reason
    assert same(other.forward, one()).item() == 72.0
    assert other.forward.trace_count == 1


def test_a_method_that_is_replaced(monkeypatch):
    model = Model()
    same(model.forward, one())
    monkeypatch.setattr(Model, "hidden", lambda self, x: x * 100)
    assert same(model.forward, one()).item() == 3600.0
    model.hidden = lambda x: x
    assert same(model.forward, one()).item() == 36.0


def test_objects_among_the_arguments():
    f = hf.compile(lambda x, config: x * config.rate)
    config = Box(rate=2.0)
    assert f(one(), config).item() == 2.0
    config.rate = 3.0
    assert f(one(), config).item() == 3.0
    assert "config.rate: 2.0 -> 3.0" in f.explain()[1].reason


def test_callable_objects_bound_methods_and_partials():
    layer = Layer(2.0)
    for fn in (layer, layer.__call__, functools.partial(layer)):
        layer.k = 2.0
        f = hf.compile(fn)
        first = f(one()).item()
        layer.k = 4.0
        assert f(one()).item() == 2 * first


def test_modules_of_the_user():
    module = types.ModuleType("settings_of_a_user")
    module.__file__ = __file__
    module.DEPTH = 2
    f = hf.compile(lambda x: x * module.DEPTH)
    assert f(one()).item() == 2.0
    module.DEPTH = 5
    assert f(one()).item() == 5.0
    assert "module.DEPTH: 2 -> 5" in f.explain()[1].reason


# -- code that is not converted -----------------------------------------------------------------------------------

SOURCE = """
def outer(k):
    box = Box(rate=3.0)
    def inner(x):
        return x * RATE * k[0] * helper(box.rate) * model.scaled(1.0) * sum(layer(1.0) for layer in layers)
    return inner, box
def helper(x):
    return x * OFFSET
"""


class Scaler:
    def __init__(self, k):
        self.k = k

    @property
    def twice(self):
        return 2 * self.k

    def scaled(self, x):
        return x * self.twice

    def __call__(self, x):
        return x * self.k


def without_source():
    space = {"Box": Box, "RATE": 2.0, "OFFSET": 1.0, "model": Scaler(1.0), "layers": [Scaler(1.0), Scaler(2.0)]}
    exec(compile(SOURCE, "<no such file>", "exec"), space)
    factors = [2.0]
    return (*space["outer"](factors), space, factors)


@pytest.mark.parametrize(
    "change",
    [
        lambda box, space, factors: setattr(box, "rate", 5.0),
        lambda box, space, factors: space.update(RATE=5.0),
        lambda box, space, factors: space.update(OFFSET=5.0),
        lambda box, space, factors: factors.__setitem__(0, 5.0),
        lambda box, space, factors: setattr(space["model"], "k", 5.0),
        lambda box, space, factors: setattr(space["layers"][1], "k", 5.0),
        lambda box, space, factors: space["layers"].append(Scaler(5.0)),
    ],
)
@pytest.mark.parametrize("autograph", [False, True])
def test_functions_without_source_are_guarded_by_what_their_code_names(change, autograph):
    fn, *state = without_source()
    f = hf.compile(fn, autograph=autograph)
    same(f, one())
    same(f, one())
    assert f.trace_count == 1
    change(*state)
    same(f, one())
    assert f.trace_count == 2


TRAINING = """
class Net(hf.nn.Module):
    def __init__(self):
        self.blocks = [hf.nn.Linear(2, 2) for _ in range(2)]
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
hf.nn.init.seed(0)
net = Net()
gradient = hf.value_and_grad(lambda net, x: hf.mean(net(x) ** 2))
def make():
    optimizer = hf.optim.SGD(net, rate=0.1)
    def step(x):
        loss, found = gradient(net, x)
        optimizer.update(found)
        return loss
    return step
step = make()
"""


def test_training_without_source():
    """Its list of layers is read in two ways, each of which is compared with the other."""
    losses = []
    for run in (hf.compile, lambda step: step):
        space = {"hf": hf}
        exec(compile(TRAINING, "<no such file>", "exec"), space)
        step = run(space["step"])
        losses.append([float(step(hf.ones((3, 2)))) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_methods_that_are_left_alone():
    class Own:
        def __init__(self):
            self.k = 2.0

        @hf.compile(autograph=False)
        def run(self, x):
            return self.inner(x)

        def inner(self, x):
            return x * self.k

    @hf.no_convert
    def kept(x):
        return x * RATE

    own, f = Own(), hf.compile(lambda x: kept(x))
    assert (own.run(one()).item(), f(one()).item()) == (2.0, 2.0)
    own.k = 3.0
    set_global("RATE", 7.0)()
    assert (own.run(one()).item(), f(one()).item()) == (3.0, 7.0)


# -- tensors from outside -----------------------------------------------------------------------------------------


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "deque": collections.deque,
    "dict": lambda items: dict(zip("abc", items, strict=False)),
}


def sums_of_kept_variables(kind):
    """Return what a compiled function gives while the container it reads changes, and what it should."""
    one, two, three = [hf.Variable(float(number)) for number in (1, 10, 100)]
    box = Box(kept=None)

    @hf.compile
    def f():
        items = box.kept.values() if isinstance(box.kept, dict) else box.kept
        total = hf.asarray(0.0)
        for place, item in enumerate(items):
            total = total + item * (place + 1)
        return total

    found, expected = [], []
    for items in ([one, two], [one, two], [two, one], [one, three], [one, two, three], [one, two], [one, one], [one]):
        box.kept = CONTAINERS[kind](items)
        found.append(f().item())
        expected.append(sum(item.item() * (place + 1) for place, item in enumerate(list(items))))
        with hf.config.run_eagerly():
            assert f().item() == expected[-1]
    return found, expected, f.trace_count


@pytest.mark.parametrize("kind", ["list", "tuple", "deque", "dict"])
def test_variables_in_containers_are_known_one_by_one(kind):
    found, expected, traces = sums_of_kept_variables(kind)
    assert found == expected
    assert traces == 6


def test_a_fault_in_the_comparison_of_containers_is_found(monkeypatch):
    monkeypatch.setattr(guards, "is_", lambda a, b: True)
    found, expected, _ = sums_of_kept_variables("list")
    assert found != expected


def test_another_tensor_of_the_same_shape_is_no_retrace():
    params = {"w": hf.asarray([1.0, 2.0]), "b": [hf.asarray(1.0)]}
    f = hf.compile(lambda x: hf.sum(x * params["w"]) + params["b"][0])
    for step in range(4):
        assert same(f, one()).item() == 3.0 * (step + 1) + 1.0
        params["w"] = hf.asarray([1.0, 2.0]) * (step + 2)
    assert f.trace_count == 1
    params["b"][0] = hf.asarray([1.0])
    same(f, one())
    assert f.trace_count == 2
    assert "f32[] -> f32[1]" in f.explain()[1].reason


def test_a_rebound_tensor_under_a_tape_gets_the_gradient():
    box = Box(w=hf.asarray(2.0))
    f = hf.compile(lambda x: x * box.w)
    f(one())
    box.w = hf.asarray(5.0)
    with hf.GradientTape() as tape:
        tape.watch(box.w)
        y = f(one(3.0))
    assert (y.item(), tape.gradient(y, box.w).item()) == (15.0, 3.0)
    assert f.trace_count == 1


def test_tensors_that_were_one_and_are_two():
    shared = hf.asarray(2.0)
    box = Box(a=shared, b=shared)
    f = hf.compile(lambda x: x * box.a + box.b)
    assert same(f, one()).item() == 4.0
    box.b = hf.asarray(10.0)
    assert same(f, one()).item() == 12.0
    box.a = box.b = hf.asarray(7.0)
    assert same(f, one()).item() == 14.0


# -- writes -------------------------------------------------------------------------------------------------------


def test_plain_effects_happen_at_every_call():
    """Nothing that the function does depends on them, so that one trace serves, and makes the changes again."""
    log, box, table = [], Box(calls=0), {"n": 0}

    @hf.compile
    def f(x):
        global COUNT
        log.append("traced")
        box.calls += 1
        table["n"] += 1
        COUNT += 1
        return x * 2

    for _ in range(3):
        assert f(one()).item() == 2.0
    assert (log, box.calls, table["n"], COUNT, f.trace_count) == (["traced"] * 3, 3, 3, 3, 1)
    effects = "\n".join(f.explain()[0].effects)
    for part in ("log.append(...)", "box.calls", "table['n']", "COUNT", __file__):
        assert part in effects
    assert "changes at every call: box.calls at" in str(f.explain())


def test_state_that_is_written_and_read_is_exact():
    """What the result depends on is traced anew, so that it is what it would be eagerly."""
    box, log = Box(step=0), []

    @hf.compile
    def f(x):
        box.step += 1
        log.append(box.step)
        return x * box.step + len(log)

    assert [f(one()).item() for _ in range(3)] == [2.0, 4.0, 6.0]
    assert "box.step: 0 -> 1" in f.explain()[1].reason


def test_a_trace_that_starts_again_takes_its_effects_back():
    log, box, table = [], Box(a=1), {"k": 1}

    @hf.compile
    def f(x, s):
        log.append(1)
        box.a += 1
        box.new = 1
        table["k"] += 1
        setattr(box, "set", getattr(box, "set", 0) + 1)  # noqa: B010 (the builtin is what is tested)
        delattr(box, "gone")
        return x * (2.0 if s > 1 else 1.0)

    box.gone = True
    f(one(), 2.0)
    assert (log, box.a, table, box.new, box.set) == ([1], 2, {"k": 2}, 1, 1)
    assert not hasattr(box, "gone")


def lines_of(fn, marker):
    import inspect

    source, first = inspect.getsourcelines(fn)
    return first + next(number for number, line in enumerate(source) if marker in line)


def bad_writes():
    kept, table, box, ring, chosen = [], {}, Box(x=None), collections.deque(), set()
    free = None

    def append(x):
        kept.append(x * 2)  # here
        return x

    def extend(x):
        kept.extend([1, [x + 1]])  # here
        return x

    def augmented(x):
        nonlocal kept
        kept += [x]  # here
        return x

    def item(x):
        table["x"] = x  # here
        return x

    def update(x):
        table.update(x=x)  # here
        return x

    def setdefault(x):
        table.setdefault("x", x)  # here
        return x

    def attribute(x):
        box.x = (x, 1)  # here
        return x

    def by_setattr(x):
        setattr(box, "x", x)  # noqa: B010 # here
        return x

    def to_global(x):
        global STATE
        STATE = x  # here
        return x

    def to_nonlocal(x):
        nonlocal free
        free = x  # here
        return x

    def in_deque(x):
        ring.append(x)  # here
        return x

    def in_set(x):
        chosen.add(x)  # here
        return x

    def in_a_helper(x):
        return append(x)

    several = [append, extend, augmented, item, update, setdefault, attribute, by_setattr, to_global, to_nonlocal]
    return [*several, in_deque, in_set], in_a_helper


@pytest.mark.parametrize("number", range(12))
def test_storing_a_traced_tensor_outside_raises_at_its_line(number):
    fn = bad_writes()[0][number]
    line = lines_of(fn, "# here")
    f = hf.compile(fn)
    pattern = rf"(?s)stores a traced tensor outside.*test_guards.py:{line}\n.*hf.Variable"
    with pytest.raises(MutationError, match=pattern):
        f(one())
    assert f.cache_info().traces == 0
    assert fn(one()).item() == 1.0  # eagerly it is fine


def test_in_a_helper_too():
    with pytest.raises(MutationError, match=r"kept\.append"):
        hf.compile(bad_writes()[1])(one())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda batch: batch["x"].append(1.0), "batch['x'].append(...)"),
        (lambda batch: batch.update(y=1), "batch.update(...)"),
        (lambda batch: batch.__setitem__("y", 1), "batch.__setitem__(...)"),
        (lambda batch: batch["x"].clear(), "batch['x'].clear(...)"),
    ],
)
def test_changing_an_argument_raises_at_its_line(change, text):
    def f(batch):
        change(batch)
        return batch["x"][0] * 2

    with pytest.raises(MutationError, match="changed its argument") as caught:
        hf.compile(f)({"x": [one(), one()]})
    assert text in str(caught.value)
    assert f"test_guards.py:{lines_of(change, 'lambda')}" in str(caught.value)


def test_statements_that_change_an_argument():
    @hf.compile
    def f(batch):
        batch["y"] = 1
        return batch["x"]

    @hf.compile
    def g(batch):
        del batch["x"]
        return hf.asarray(1.0)

    for fn in (f, g):
        with pytest.raises(MutationError, match="changed its argument 'batch'"):
            fn({"x": one()})


@pytest.mark.parametrize("loop", [False, True])
def test_python_state_in_branches_and_loops(loop):
    log = []

    def body(x):
        log.append(1)
        return x + 1

    if loop:
        f = hf.compile(lambda x: hf.while_loop(lambda x: x < 3, body, (x,)))
    else:
        f = hf.compile(lambda x: hf.cond(x > 0, body, lambda x: x, x))
    with pytest.raises(MutationError, match=r"append.*: changes Python state in a branch or loop"):
        f(one())


def test_own_containers_may_be_changed():
    @hf.compile
    def f(x):
        kept, table, box = [], {}, Box(a=None)
        for i in range(3):
            kept.append(x * i)
            table[i] = x
        box.a = kept
        box.a += [x]
        return sum(kept) + table[2] + len(box.a)

    assert f(one()).item() == 9.0


def test_what_differs_at_every_call_warns_once():
    generator, numbers = np.random.default_rng(0), iter(range(100))

    def f(x):
        return x + random.random() * 0

    def g(x):
        return x + generator.normal() * 0

    def h(x):
        return x + next(numbers) * 0

    def t(x):
        return x + time.time() * 0

    for fn, name in ((f, "random.random()"), (g, "normal()"), (h, "next()"), (t, "time.time()")):
        compiled = hf.compile(fn)
        with pytest.warns(hf.EffectWarning, match="traced again at every call") as caught:
            compiled(one())
        assert name in str(caught[0].message)
        assert caught[0].filename == __file__
        compiled(one())
        compiled(hf.asarray([1.0]))  # traced again, and silent


# -- lifetimes ----------------------------------------------------------------------------------------------------


def test_models_and_closed_over_objects_are_freed():
    model = Model()
    model.forward(one())
    box = Box(rate=2.0, me=None)
    box.me = box
    f = hf.compile(lambda x: x * box.rate)
    f(one())
    layer = model.layers[0]
    references = [weakref.ref(thing) for thing in (model, layer, box, f)]
    model = layer = box = f = None
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_an_object_that_is_replaced_is_freed_and_seen():
    box = Box(inner=Box(rate=2.0))
    f = hf.compile(lambda x: x * box.inner.rate)
    f(one())
    reference = weakref.ref(box.inner)
    box.inner = None
    assert reference() is None
    box.inner = Box(rate=3.0)
    assert f(one()).item() == 3.0


def test_threads_and_a_changing_switch():
    box = Box(k=1.0)
    f = hf.compile(lambda x, k: x * box.k * 0 + k)
    errors = []

    def run(number):
        for i in range(30):
            if f(one(), float(number)).item() != number:
                errors.append((number, i))  # noqa: PERF401 (the statement is what is tested)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for i in range(20):
        box.k = float(i % 2)
    for thread in threads:
        thread.join()
    assert not errors
    assert f.trace_count <= 2


@pytest.mark.parametrize("read", [lambda d: d[0], sum, lambda d: float(len(d)), lambda d: max(v for v in d)])
def test_what_is_in_a_deque_among_the_arguments_counts(read):
    def f(d, x):
        return x * read(d)

    compiled, items, x = hf.compile(f), collections.deque([2.0]), hf.asarray(1.0)
    for change in (lambda: None, lambda: items.append(5.0), lambda: items.appendleft(7.0), items.clear):
        change()
        if items:
            assert compiled(items, x).item() == compiled([*items], x).item() == f(items, x).item()


def test_what_is_in_a_mapping_proxy_among_the_arguments_counts():
    table = {"k": 2.0}
    compiled, x = hf.compile(lambda view, x: x * view["k"]), hf.asarray(1.0)
    for value in (2.0, 5.0, 7.0):
        table["k"] = value
        assert compiled(types.MappingProxyType(table), x).item() == value


def test_where_super_finds_a_method_is_watched():
    class Base:
        def scaled(self, x):
            return x * 2.0

    class Left(Base):
        def scaled(self, x):
            return super().scaled(x) + 1.0

    class Right(Base):
        pass

    class Both(Left, Right):
        pass

    model, x = Both(), hf.asarray(3.0)
    compiled = hf.compile(lambda x: model.scaled(x))
    found = [compiled(x).item()]
    Right.scaled = lambda self, x: x * 5.0
    found.append(compiled(x).item())
    Base.scaled = lambda self, x: x
    found.append(compiled(x).item())
    del Right.scaled
    found.append(compiled(x).item())
    assert found == [7.0, 16.0, 16.0, 4.0]


def test_a_float_argument_that_is_stored_outside_is_a_number():
    best = types.SimpleNamespace(loss=None, seen=[], pair=(0.0, 0.0))

    def step(x, loss):
        if best.loss is None or loss < best.loss:
            best.loss = loss
        best.seen.append(loss)
        best.pair = (loss, loss * 2.0)
        return x * best.loss

    def run(function):
        vars(best).update(loss=None, seen=[], pair=None)
        results = [function(hf.asarray(2.0), loss).item() for loss in (3.0, 2.0, 2.5)]
        return results, best.loss, best.seen, best.pair

    assert run(hf.compile(step)) == run(step)


@pytest.mark.parametrize("name", ["exp", "sin", "add", "sum", "matmul", "softmax"])
def test_a_function_of_hybridflow_that_is_an_argument_is_not_looked_into(name):
    own = types.SimpleNamespace(np=hf, square=functools.partial(lambda scale, x: x * scale, 2.0))

    def outer(given, x):
        function = getattr(given.nn if name == "softmax" else given, name)
        return function(x, x) if name in ("add", "matmul") else function(x)

    compiled = hf.compile(lambda x: outer(own.np, x) + own.square(x))
    x = hf.asarray([[1.0, 2.0], [3.0, 4.0]])
    compiled(x)
    texts = str(compiled.explain())
    assert "apply_large" not in texts
    assert "ufunc" not in texts
    own.square = functools.partial(lambda scale, x: x * scale, 3.0)  # the user's own partial is
    np.testing.assert_allclose(compiled(x).numpy(), (outer(hf, x) + x * 3.0).numpy(), rtol=1e-6)
