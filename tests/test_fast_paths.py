"""What eager steps run on is the same as the general way, which it leaves out for speed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.autodiff import tape
from hybridflow.autodiff.backprop import arguments
from hybridflow.autodiff.namespaces import HOST
from hybridflow.backend.host import RUNNER
from hybridflow.core import operators
from hybridflow.core.op import REGISTRY, Each, Sample, _looked_at  # pyright: ignore[reportPrivateUsage]
from hybridflow.ops.host_rows import BLOCK, in_blocks
from hybridflow.testing.checks import samples_of
from hybridflow.tracing import short_call, trace
from hybridflow.xla import executable


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [hf.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


# -- programs whose gradients both ways must agree on ---------------------------------------------------------------


def chain(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.tanh(x @ w + v) * x)


def fan_out(x: Any, w: Any, v: Any) -> Any:
    # Five contributions to x, three of them summed into one buffer.
    return hf.mean(x * 2.0 + x * x + hf.exp(x) * v) + hf.sum(x @ w) + hf.sum(x)


def several_outputs(x: Any, w: Any, v: Any) -> Any:
    a, b = hf.split(x @ w, 2, axis=-1)
    q, r = hf.linalg.qr(x @ w)
    return hf.sum(a * b) + hf.sum(q) * 0.1 + hf.sum(r * v)


def stopped(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.where(x > 0, x @ w, hf.stop_gradient(x)) * hf.astype(x > v, "float32"))


def custom(x: Any, w: Any, v: Any) -> Any:
    @hf.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2.0, lambda g: g * 2.0

    return hf.sum(doubled(x @ w) * v)


def unused(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.sin(x))


def low_precision(x: Any, w: Any, v: Any) -> Any:
    return hf.sum(hf.astype(hf.astype(x, "bfloat16") @ hf.astype(w, "bfloat16"), "float32") * v)


def operands(x: Any, w: Any, v: Any) -> Any:
    # Alike and broadcast, on either side and on both, with numbers and with what is not differentiated.
    constant = hf.asarray(np.full((4, 1), 0.5, np.float32))
    total = (x - v) / (w * w + 2.0) + (v + x) * (1.0 - w) - constant / (x * x + v * v + 1.0)
    return hf.sum(total * constant) + hf.sum(x - x) + hf.sum((v - 3.0) / 2.0) * hf.sum(w)


PROGRAMS = [operands, chain, fan_out, several_outputs, stopped, custom, unused, low_precision]


def gradients(program: Callable[..., Any], variables: bool) -> list[Any]:
    sources = arrays((4, 4), (4, 4), (4,))
    if variables:
        sources = [hf.Variable(source) for source in sources]
    with hf.GradientTape() as tape:
        if not variables:
            tape.watch(sources)
        y = program(*sources)
    return [None if one is None else one.numpy() for one in tape.gradient(y, sources)]


def agree(program: Callable[..., Any], variables: bool) -> bool:
    """Whether gradients are what the rules give as public operations, which another tape records."""
    found = gradients(program, variables)
    with hf.GradientTape():
        expected = gradients(program, variables)
    if [one is None for one in found] != [one is None for one in expected]:
        return False
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None]
    return all(a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, 1e-6, 1e-6) for a, b in pairs)


@pytest.mark.parametrize("variables", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_quick_gradient_is_the_general_one(program: Any, variables: bool):
    assert agree(program, variables)


def test_most_programs_take_the_quick_way(monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []
    real = tape.quick_gradients

    def noted(*given: Any) -> Any:
        found = real(*given)
        if found is not None:
            taken.append(program.__name__)
        return found

    monkeypatch.setattr(tape, "quick_gradients", noted)
    for program in PROGRAMS:
        gradients(program, False)
    assert taken == [program.__name__ for program in PROGRAMS]


def forgets_the_second_input(node: Any, g: Any, wanted: Any) -> Any:
    found = REGISTRY["multiply"].vjp(HOST, g, *arguments(node))  # pyright: ignore[reportCallIssue]
    return found[0]() if wanted[0] else None, None


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch):
    assert agree(fan_out, False)
    monkeypatch.setattr(REGISTRY["multiply"], "pullback", forgets_the_second_input)
    assert not agree(fan_out, False)


def test_contributions_are_summed_into_an_array_of_their_own():
    parts = [hf.asarray(np.full(3, 2.0**k, np.float32)) for k in range(5)]
    x = hf.asarray(np.zeros(3, np.float32))
    with hf.GradientTape() as tape:
        tape.watch(x)
        several = [x + 0.0 for _ in parts]
    gradient = tape.gradient(several, x, output_gradients=parts)
    assert np.array_equal(gradient, np.full(3, 31, np.float32))
    assert [float(part[0]) for part in parts] == [1, 2, 4, 8, 16]


def test_a_tensor_watched_late_counts_from_then_on(monkeypatch: pytest.MonkeyPatch):
    (x,) = arrays((3,))
    with hf.GradientTape() as first:
        first.watch(x)
        with hf.GradientTape() as tape:
            y = x * x
            tape.watch(x)
            z = y * x
    assert np.allclose(tape.gradient(z, x).numpy(), (x * x).numpy())


# -- what an operator records ---------------------------------------------------------------------------------------

OPERATORS: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = [
    (lambda a, b: a + b, hf.add), (lambda a, b: a - b, hf.subtract), (lambda a, b: a * b, hf.multiply),
    (lambda a, b: a / b, hf.divide), (lambda a, b: a @ b, hf.matmul), (lambda a, b: a > b, hf.greater),
]
SHAPES = [((3, 3), (3, 3)), ((3, 3), (3,)), ((3,), (3, 3)), ((), (3, 3)), ((3, 3), ()), ((), ()), ((3, 3), (3, 3))]


def recorded(y: Any) -> Any:
    """Return what the node of a result says, apart from when and where it was recorded."""
    node = y._edge[0]
    specs = node.input_specs if node.input_specs is not None else [None] * len(node.inputs)
    told = [None if one is None else (*one[:2], np.asarray(one[2]).tolist()) for one in specs]
    return node.op, node.inputs, node.specs, [None if one is None else id(one) for one in node.saved[1:]], told


def disagreements() -> list[Any]:
    """Return the calls whose record is not the general way's, each call coming after one of another shape or dtype."""
    found: list[Any] = []
    for watched in ("a", "b", "ab"):
        for (short, public), dtype, (left, right) in itertools.product(OPERATORS, ("float32", "float64"), SHAPES):
            a, b = [hf.asarray(np.full(shape, 2.0, dtype)) for shape in (left, right)]
            with hf.GradientTape() as tape:
                tape.watch([tensor for name, tensor in (("a", a), ("b", b)) if name in watched])
                try:
                    expected = public(a, b)
                except ValueError:
                    continue
                y = short(a, b)
            if recorded(y) != recorded(expected) or type(y._value) is not np.ndarray:
                found.append((public, left, right, dtype, watched))
    return found


def test_an_operator_records_what_the_general_way_does():
    assert not disagreements()


def test_a_planted_fault_of_what_calls_share_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operators, "_NUMBER", None)  # what is saved counts as a number too
    assert disagreements()


def test_an_operator_knows_where_it_was_called():
    x, y = arrays((3,), (3,))

    def elsewhere() -> Any:
        return x + hf.tanh(y)

    first: int = elsewhere.__code__.co_firstlineno
    with hf.GradientTape() as tape:
        tape.watch([x, y])
        for _ in range(3):
            found: list[Any] = [
                x + y,
                x + y, hf.tanh(x),
                hf.tanh(x),
                elsewhere(),
            ]
            lines = [int(one._edge[0].location.rpartition(":")[2]) - first for one in found]
            assert lines == [8, 9, 9, 10, 1]


# -- runners of threads ---------------------------------------------------------------------------------------------


def test_a_copied_context_runs_in_another_thread():
    x = hf.asarray(np.ones((300, 300), np.float32))
    hf.exp(x)
    assert RUNNER.get() is not None
    copied, found = contextvars.copy_context(), list[float]()
    go = threading.Barrier(2)

    def work() -> None:
        go.wait()
        found.extend([float(hf.sum(hf.exp(x) / (x - x) + x)) for _ in range(200)])  # and nobody is warned

    thread = threading.Thread(target=copied.run, args=(work,))
    thread.start()
    work()
    thread.join()
    assert len(found) == 400
    assert set(found) == {float("inf")}


# -- rules of operands that broadcast -------------------------------------------------------------------------------

BY_OPERAND = [op for op in REGISTRY.values() if isinstance(op.vjp, Each) and op.vjp.local is not None]


def test_arithmetic_has_rules_by_operand():
    assert {op.name for op in BY_OPERAND} >= {"add", "subtract", "multiply", "divide"}


@pytest.mark.parametrize("op", BY_OPERAND, ids=lambda op: op.name)
def test_rules_by_operand_read_what_is_saved_for_them(op: Any):
    for index, rule in enumerate(op.vjp.local):
        read = {position - 1 for position in _looked_at(rule)}
        assert read <= op.saves.read_by([index == 0, index == 1])


def test_a_rule_by_operand_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch):
    multiply = REGISTRY["multiply"]
    assert isinstance(multiply.vjp, Each)
    first, second = multiply.vjp.local or ()
    wrong = Each(*multiply.vjp.rules, local=(first, lambda *args: second(*args) * np.float32(1.001)))
    monkeypatch.setattr(multiply, "vjp", wrong)
    monkeypatch.setattr(multiply, "pullback", None)  # it is made of the rule when it is called first
    assert not agree(operands, False)


# -- rules with a form of their own for the host --------------------------------------------------------------------

HOST_RULES = [op for op in REGISTRY.values() if op.host_rule is not None]


def recorded_samples(op: Any) -> list[tuple[Any, Any]]:
    """Return the host nodes that an op's good samples record, with a cotangent each."""
    found: list[tuple[Any, Any]] = []
    rng = np.random.default_rng(5)
    for sample in samples_of(op, 0):
        if not isinstance(sample, Sample) or not sample.gradient:
            continue
        given = [hf.asarray(one) if isinstance(one, np.ndarray) else one for one in sample.args]
        with hf.GradientTape() as tape:
            tape.watch([one for one in given if isinstance(one, hf.Tensor) and one.dtype.kind == "f"])
            y = op.public(*given, **sample.kwargs)
        edge = jax.tree.leaves(y)[0]._edge
        if edge is None:
            continue  # integers
        node = edge[0]
        if node.op is op and node.backend == "host":
            seeds = [np.asarray(rng.standard_normal(one.shape), one.dtype) for one in jax.tree.leaves(y)]
            found.append((node, seeds[0] if len(seeds) == 1 else tuple(seeds)))
    return found


def both_forms(op: Any, node: Any, g: Any) -> tuple[Any, Any]:
    args, attrs = arguments(node), {k: v for k, v in node.attrs.items() if k != "residuals"}

    def computed(gradients: Any) -> Any:
        return [one() if callable(one) else one for one in gradients]

    host = op.host_rule(g, *args, **attrs)
    return None if host is None else computed(host), computed(op.vjp(HOST, g, *args, **attrs))


def gradients_of_samples(op: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the nodes of recorded samples with gradients of all outputs, and of the first of several alone."""
    for node, g in recorded_samples(op):
        yield node, g
        if isinstance(g, tuple):
            yield node, (g[0], *[None] * (len(g) - 1))


def forms_agree(op: Any) -> int:
    """Return how many samples the form for the host answers; every one must do as the rule does."""
    answered = 0
    for node, g in gradients_of_samples(op):
        arrays = jax.tree.leaves((g, node.saved))
        before = [one.copy() for one in arrays]
        host, rule = both_forms(op, node, g)
        if host is not None:
            answered += 1
            for a, b in zip(host, rule, strict=True):
                if b is None:
                    assert a is None
                    continue
                a, b = np.asarray(a), np.asarray(b)
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a, b, 3e-5 if a.dtype == np.float32 else 1e-12, 1e-6)
        for one, same in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(one, same)
    return answered


@pytest.mark.parametrize("op", HOST_RULES, ids=lambda op: op.name)
def test_a_rule_for_the_host_does_what_the_rule_does(op: Any):
    assert forms_agree(op)


@pytest.mark.parametrize("fault", ["scaled", "writes"])
def test_faults_in_rules_for_the_host_are_found(fault: str, monkeypatch: pytest.MonkeyPatch):
    op = REGISTRY["softmax"]
    real = op.host_rule
    assert real is not None

    def faulty(g: Any, y: Any, x: Any, **attrs: Any) -> Any:
        (found,) = real(g, y, x, **attrs)
        if fault == "writes":
            g += 1
            return (found,)
        return (found * np.float32(1.001),)

    monkeypatch.setattr(op, "host_rule", faulty)
    with pytest.raises(AssertionError):
        forms_agree(op)


def test_softmax_of_rows_whose_exponentials_overflow():
    for big in (50.0, 61.0, 89.0, 1e4):
        x = np.asarray([[big, 0.0, -big], [-big, -big, -big]], np.float32)
        np.testing.assert_allclose(hf.nn.softmax(x).numpy(), jax.nn.softmax(x, -1), 1e-5, 1e-37)
    for odd in (np.nan, np.inf, -np.inf):
        x = np.asarray([[odd, 0.0], [1.0, 2.0]], np.float32)
        np.testing.assert_allclose(hf.nn.softmax(x).numpy(), jax.nn.softmax(x, -1), 1e-5, 1e-37)


def test_blocks_cover_arrays_of_any_size():
    for size in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7):
        x = np.linspace(-3, 3, size, dtype=np.float32)
        y = in_blocks(lambda y, x, t: np.add(x, np.multiply(x, x, out=t), out=y), 1, x)
        np.testing.assert_allclose(y, x + x * x)
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(in_blocks(lambda y, x: np.negative(x, out=y), 0, strided), -strided)


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_lstm_cell_is_torch_s(outputs: tuple[int, ...]):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    wx, wh, bias, x, h, c = [rng.standard_normal(shape).astype(np.float32)
                             for shape in ((3, 8), (2, 8), (8,), (4, 3), (4, 2), (4, 2))]
    ours = [hf.Variable(one) for one in (wx, wh, bias, x, h, c)]

    def loss(wx: Any, wh: Any, bias: Any, x: Any, h: Any, c: Any) -> Any:
        state = hf.nn.lstm_cell(x, hf.nn.lstm_cell(x, (h, c), wx, wh, bias), wx, wh, bias)
        return sum(hf.sum(state[i] * state[i]) for i in outputs)

    theirs = [torch.tensor(one).requires_grad_() for one in (wx, wh, bias, x, h, c)]
    twx, twh, tbias, tx, *state = theirs
    for _ in range(2):
        state = torch.lstm_cell(tx, state, twx.T, twh.T, tbias, torch.zeros(8))
    expected = torch.autograd.grad(sum((state[i] * state[i]).sum() for i in outputs), theirs)
    with hf.GradientTape() as tape:
        y = loss(*ours)
    compiled = hf.compile(hf.grad(loss, argnums=tuple(range(6))))(*[one.read() for one in ours])
    for mine, also, his in zip(tape.gradient(y, ours), compiled, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), his.numpy(), 1e-4, 1e-5)
        np.testing.assert_allclose(also.numpy(), his.numpy(), 1e-4, 1e-5)


def test_tasks_and_their_threads_record_apart():
    x = hf.asarray(np.linspace(-1, 1, 64, dtype=np.float32))

    async def slope(factor: float) -> float:
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.tanh(x * factor)
            await asyncio.sleep(0)  # the others record meanwhile
            z = hf.sum(y * y)
        also = await asyncio.to_thread(lambda: hf.sum(hf.exp(y)).item())
        assert also == pytest.approx(float(np.exp(y.numpy()).sum()), rel=1e-5)
        (found,) = tape.gradient(z, [x])
        return float(found.numpy()[0])

    async def both() -> list[float]:
        return list(await asyncio.gather(*[slope(k) for k in (0.5, 1.0, 2.0)]))

    expected = [2 * np.tanh(-k) * (1 - np.tanh(-k) ** 2) * k for k in (0.5, 1.0, 2.0)]
    assert asyncio.run(both()) == pytest.approx(expected, rel=1e-5)


# -- calls of a lone trace ------------------------------------------------------------------------------------------


def calls() -> list[tuple[str, Any]]:
    """Return calls, the first of which makes the lone trace that the others find."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    x, y = hf.asarray(a), hf.asarray(b)
    leaf = hf.tensor(a, requires_grad=True)
    return [
        ("first", (x, y)), ("again", (x, y)), ("results", (hf.compile(lambda x: x * 2.0)(x), y)), ("leaf", (leaf, y)),
        ("shape", (x[:2], y)), ("dtype", (hf.astype(x, "float64"), y)), ("integers", (hf.astype(x, "int32"), y)),
        ("array", (a, b)), ("number", (x, 2.0)), ("few", (x,)), ("many", (x, y, y)), ("none", (None, y)),
        ("big", (hf.zeros((300, 300)), hf.zeros(300))), ("first again", (x, y)),
    ]


def outcomes(build: Callable[[], Any], *names: str) -> list[Any]:
    """Return what calls of a new function give, all of them or those of some names."""
    function, found = build(), []
    for name, args in calls():
        if names and name not in names:
            continue
        try:
            result = function(*args)
        except Exception as error:
            found.append((name, type(error).__name__))
            continue
        leaves = jax.tree.leaves(result, is_leaf=lambda one: isinstance(one, hf.Tensor))
        found.append((name, [(one.numpy().tolist(), str(one.dtype), one.requires_grad) for one in leaves]))
    return found


def one_output() -> Any:
    return hf.compile(lambda x, y: x * y + 1.0)


def two_outputs() -> Any:
    return hf.compile(lambda x, y: {"sum": x + y, "product": (x * y, None)})


def with_state() -> Any:
    scale, total = hf.asarray(np.linspace(1, 2, 4, dtype=np.float32)), hf.Variable(np.zeros(4, np.float32))

    @hf.compile
    def call(x: Any, y: Any) -> Any:
        total.assign_add(hf.sum(x * y * scale) + scale)
        return total.read()

    return call


def with_a_float() -> Any:
    call: Any = hf.compile(lambda x, y, rate: x * y * rate)
    return lambda *args: call(*args, 0.5)


def wide_output() -> Any:
    return hf.compile(lambda x, y: hf.astype(x, "float64") * hf.astype(y, "float64") + 1e-12)


def of_an_instance() -> Any:
    class Model:
        @hf.compile
        def call(self, x: Any, y: Any) -> Any:
            return x * y - 1.0

    return Model().call


BUILDS = [one_output, two_outputs, wide_output, with_state, with_a_float, of_an_instance]


@pytest.mark.parametrize("build", BUILDS)
def test_calls_of_a_lone_trace_are_as_in_general(build: Any, monkeypatch: pytest.MonkeyPatch):
    found = outcomes(build)
    with monkeypatch.context() as patch:
        patch.setattr(short_call, "short_way", lambda *_, **__: None)
        expected = outcomes(build)
    assert found == expected


def test_other_calls_right_after_those_that_made_the_lone_trace(monkeypatch: pytest.MonkeyPatch):
    names = [name for name, _ in calls()[2:]]
    found = [outcomes(one_output, "first", "again", name) for name in names]
    monkeypatch.setattr(short_call, "short_way", lambda *_, **__: None)
    assert found == [outcomes(one_output, "first", "again", name) for name in names]


FAULTS = {
    "leaf": ("requires", lambda edge: False),  # then a leaf that requires a gradient looks like any tensor
    "dtype": ("_TENSOR", tuple(line for line in short_call._TENSOR if "dtype" not in line)),
    "results": ("_RETURN_ONE", tuple(line.replace("= outputs", "= v0") for line in short_call._RETURN_ONE)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_calls_of_a_lone_trace_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    expected = outcomes(one_output, "first", "again", name)
    monkeypatch.setattr(short_call, *FAULTS[name])
    assert outcomes(one_output, "first", "again", name) != expected


def surroundings() -> list[Any]:
    """Return what calls of one function give under what the short way is not for, each after a plain call."""
    x = hf.asarray(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    ran: list[bool] = []

    @hf.compile
    def f(x: Any, y: Any = None) -> Any:
        ran.append(hf.is_tracing())
        return hf.sum(x * x) if y is None else x * y

    f(x, x), f(x, x)
    found: list[Any] = []

    def keep(name: str, call: Callable[[], Any]) -> None:
        del ran[:]
        found.append((name, call().numpy().tolist(), list(ran), f(x, x).numpy().tolist(), list(ran)))

    keep("by name", lambda: f(y=x, x=x))
    keep("half by name", lambda: f(x, y=x + 1.0))
    keep("by default", lambda: f(x))

    @hf.compile
    def f(x: Any, y: Any) -> Any:
        ran.append(hf.is_tracing())
        return x * y

    f(x, x), f(x, x)
    with hf.GradientTape() as tape:
        tape.watch(x)
        found.append(f(x, x).requires_grad)
        y = f(x, x)
    found.append(str(tape.gradient(y, x)))
    keep("inside of a trace", lambda: hf.compile(lambda x: f(x, x))(x))
    with hf.config.run_eagerly(True):
        keep("eagerly", lambda: f(x, x))
    with hf.autocast("bfloat16"):
        keep("in low precision", lambda: hf.astype(f(x, x), "float32"))
    with ThreadPoolExecutor(2) as pool:
        found += [one.numpy().tolist() for one in pool.map(f, [x] * 8, [x + float(i) for i in range(8)])]
    f.clear_cache()
    keep("anew", lambda: f(x, x))
    return found


def test_the_short_way_is_left_where_it_is_not_for(monkeypatch: pytest.MonkeyPatch):
    found = surroundings()
    with monkeypatch.context() as patch:
        patch.setattr(short_call, "short_way", lambda *_, **__: None)
        assert surroundings() == found
    for name, fault in (("context_now", lambda: None), ("SETTINGS", SimpleNamespace(plain=True))):
        with monkeypatch.context() as patch:
            patch.setattr(short_call, name, fault)
            assert surroundings() != found


def test_threads_that_trace_call_and_clear():
    f = hf.compile(lambda x, y: x * y, dynamic=False)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for step in range(40):
            kind = str(rng.choice(["float32", "float32", "float64"]))
            a, b = rng.standard_normal((2, int(rng.choice([3, 3, 2])))).astype(kind)
            if step % 16 == seed:
                f.clear_cache()
            np.testing.assert_array_equal(f(hf.asarray(a), hf.asarray(b)).numpy(), a * b, strict=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_guard_that_goes_back_and_forth_has_its_calls_written_once(monkeypatch: pytest.MonkeyPatch):
    written: list[Any] = []
    generate, state, x = short_call._generate, SimpleNamespace(double=True), hf.asarray([1.0, 2.0])
    monkeypatch.setattr(short_call, "_generate", lambda *args, **kw: written.append(args) or generate(*args, **kw))
    f = hf.compile(lambda x: x * 2.0 if state.double else x + 1.0)
    for step in range(8):
        state.double = step % 2 == 0
        assert f(x).tolist() == ([2.0, 4.0] if state.double else [2.0, 3.0])
    assert len(written) == f.trace_count == 2


def test_a_function_and_its_call_die_apart():
    def make() -> tuple[Any, Any]:
        f = hf.compile(lambda x, y: x * y)
        assert [f(x, x).tolist() for _ in range(3)] == [[1.0, 4.0]] * 3
        return f, weakref.ref(f._last().only)

    x = hf.asarray([1.0, 2.0])
    f, program = make()
    function, call = weakref.ref(f), f.__call__
    gc.disable()  # nothing waits for the collector
    try:
        del f
        assert function() is None
        assert call(x, x).tolist() == [1.0, 4.0]
        assert call(y=x[:1], x=x).tolist() == [1.0, 2.0]  # it is traced for these by what is left of it
        assert program() is not None
        del call
        assert program() is None
    finally:
        gc.enable()


# -- programs that are run without asking ---------------------------------------------------------------------------


def updates() -> list[Any]:
    """Return the values of Variables after calls that update them, while others hold, share and replace them."""
    rng = np.random.default_rng(2)
    large, small = rng.standard_normal((300, 300)).astype(np.float32), rng.standard_normal(3)
    variables = [hf.Variable(large), hf.Variable(small), hf.Variable(3), hf.Variable(small.astype(np.float32))]
    a, b, count, c = variables

    @hf.compile
    def update() -> Any:
        a.assign(a * 0.5 + 1.0)
        b.assign(b * 3.0)
        count.assign_add(1)
        return c * 2.0

    @hf.compile
    def update_with(x: Any) -> None:
        a.assign(a - x)
        c.assign(c * hf.sum(x))

    kept: list[Any] = []
    x = hf.asarray(large)
    for step in range(8):
        kept.append(update())
        update_with(x)
        if step in (2, 6):
            kept += [variable.read() for variable in variables]
        if step == 3:
            x = hf.compile(lambda x: x + 1.0)(x)
        if step == 4:
            a.assign(x)
        if step == 5:
            c.assign(np.ones(3, np.float32))
    return [one.numpy() for one in (*kept, x, *variables)]


def test_updates_by_programs_that_ask_nothing(monkeypatch: pytest.MonkeyPatch):
    found = updates()
    with monkeypatch.context() as patch:
        patch.setattr(executable, "bare_call", lambda *_: None)
        expected = updates()
    for one, same in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, same, strict=True)


def test_a_fault_in_what_may_be_given_away_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace, "_SOLE_OWNER", 100)  # then a value that somebody else holds is overwritten
    with pytest.raises(RuntimeError, match="deleted"):
        updates()
