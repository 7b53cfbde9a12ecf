"""Compiled functions: results, errors, leaks, texts, random numbers, and running them as plain Python."""

from __future__ import annotations

import bdb
import functools
import re
import shutil
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, same
from processes import run_python

import hybridflow as hf
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    LeakError,
    MissingPackageError,
    MutationError,
    ShapeError,
    TracedValueError,
)

# -- results ------------------------------------------------------------------------------------------------------


def test_outputs_keep_their_structure():
    def f(x):
        return {"b": [x, (x * 2, None)], "a": None, "numbers": (1, 2.0, True, 1j, np.float64(3), np.arange(2))}

    result = hf.compile(f)(hf.asarray(1.0))
    assert set(result) == {"a", "b", "numbers"}
    assert result["a"] is None
    assert type(result["b"]) is list
    assert type(result["b"][1]) is tuple
    assert result["b"][1][1] is None
    *numbers, scalar, array = result["numbers"]
    assert repr(numbers) == "[1, 2.0, True, 1j]"
    assert (str(scalar.dtype), str(array.dtype)) == ("float64", "int64")
    tensors = [t for t in jax.tree_util.tree_leaves(result) if type(t) not in (int, float, bool, complex)]
    assert [type(t) for t in tensors] == [hf.Tensor] * 4


@pytest.mark.parametrize("result", [None, (), [], {}, [None, {}]])
def test_results_without_tensors(result):
    assert hf.compile(lambda x: result)(1.0) == result


def test_inputs_may_be_returned_as_they_are():
    x, y = hf.asarray([1.0, 2.0]), hf.asarray(3)
    f = hf.compile(lambda x, y: (y, x, y))
    for _ in range(2):
        assert [t.tolist() for t in f(x, y)] == [3, [1.0, 2.0], 3]


def test_a_result_may_be_used_twice_in_one_operation():
    for use in (lambda y: y * y, lambda y: y @ y, lambda y: hf.concat([y, y]), lambda y: hf.where(y > 0, y, y)):
        fresh = hf.compile(lambda x: x + 1)(hf.asarray([1.0, 2.0]))
        assert use(fresh).tolist() == use(hf.asarray([2.0, 3.0])).tolist()


def test_a_function_without_arguments():
    f = hf.compile(lambda: hf.ones((2,)))
    assert f().tolist() == [1.0, 1.0]
    assert f.trace_count == 1


@pytest.mark.parametrize("bad", ["text", object(), {1, 2}, lambda: 1, hf.float32, b"x"])
def test_a_result_that_is_no_tensor(bad):
    state = {"calls": 0, "seen": []}

    @hf.compile
    def model(x):
        state["calls"] += 1
        state["seen"].append(state["calls"])
        return x, [bad]

    for _ in range(3):
        with pytest.raises(ArgumentTypeError, match=r"(?s)model returned an? \w+, which is no tensor.*Return tensors"):
            model(1.0)
        assert state == {"calls": 0, "seen": []}


def test_an_async_function_is_refused():
    async def step(x):
        return x

    with pytest.raises(ArgumentTypeError, match=r"(?s)step is an async function.*call that from the async function"):
        hf.compile(step)


def test_the_name_and_documentation_are_the_functions():
    @hf.compile
    def model(x):
        """Do something."""
        return x

    assert (model.__name__, model.__doc__) == ("model", "Do something.")
    assert "model" in repr(model)
    assert model.python_function(3) == 3
    assert hf.compile(lambda x: x, name="given")._name == "given"
    assert hf.compile(max_traces=3)(lambda x: x).cache_info().max_traces == 3


# -- dtypes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_wide_dtypes_without_touching_jax(dtype):
    x = hf.asarray(np.array([1, 2, 3], dtype))
    for fn in (f := lambda x: (x * x + 1, hf.sum(x), x.astype(hf.float32)), hf.compile(f)):
        a, total, narrow = fn(x)
        assert str(a.dtype) == str(total.dtype) == dtype
        assert narrow.dtype == hf.float32
    assert not jax.config.jax_enable_x64
    assert jnp.asarray(np.float64(1)).dtype == np.float32


def test_a_wide_value_inside_only():
    def f(x):
        return hf.sum(x.astype(hf.float64) + 1e-12).astype(hf.float32), hf.asarray(2**40, dtype=hf.int64)

    a, b = hf.compile(f)(hf.asarray([1.0, 2.0]))
    assert (a.item(), b.item()) == (3.0, 2**40)
    both(f, hf.asarray([1.0, 2.0]))
    close = hf.compile(lambda: (hf.asarray(1.0, dtype=hf.float64) - (1 - 1e-9)) * 1e9)
    assert abs(close().item() - 1) < 1e-6


def test_a_sum_that_float32_would_lose():
    x = hf.asarray(np.array([1.0, 1e-12]))
    assert hf.compile(hf.sum)(x).item() == 1 + 1e-12


WIDE_PROGRAM = """
    import numpy as np, jax, jax.numpy as jnp
    import hybridflow as hf

    def f(x, y, n, z):
        return x * 2 + 1, hf.sum(x), x @ x, y + n, hf.mean(y), n // 2, hf.argmax(x), z * z, x > 0, hf.arange(3), x * 0.1

    args = (np.ones((2, 2), np.float32), np.ones(3), np.arange(3), np.array([1j], np.complex64))
    eager = f(*map(hf.asarray, args))
    for result in (hf.compile(f)(*args), hf.compile(f)(*args)):
        for a, b in zip(eager, result):
            assert a.dtype == b.dtype and a.shape == b.shape, (a, b)
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    x = hf.asarray(args[0])
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.compile(lambda x: hf.sum(hf.tanh(x) * hf.nn.softmax(x)))(x)
    g = tape.gradient(y, x)
    assert g.dtype == hf.float32
    print(jax.config.jax_enable_x64, jnp.asarray(np.float64(1)).dtype, [str(r.dtype) for r in eager], g.tolist())
"""


def test_the_users_setting_of_64_bits_changes_nothing():
    on = run_python(WIDE_PROGRAM, JAX_ENABLE_X64="1")
    off = run_python(WIDE_PROGRAM, JAX_ENABLE_X64="0")
    assert on.startswith("True float64")
    assert off.startswith("False float32")
    assert on.split(maxsplit=2)[2] == off.split(maxsplit=2)[2]


def test_low_precision_is_the_same_in_both_modes():
    x = hf.asarray(np.linspace(-3, 3, 50).astype(np.float32)).astype(hf.bfloat16)

    def f(x):
        return x * x + x * 1.7 - 0.3, hf.sum(x * x), hf.exp(x) / (1 + hf.exp(x))

    eager, compiled = f(x), hf.compile(f)(x)
    for a, b in zip(eager, compiled, strict=True):
        assert a.dtype == b.dtype == hf.bfloat16
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_integers_wrap_alike():
    x = hf.asarray(np.array([250, 255], np.uint8))
    both(lambda x: (x + x, x * x, hf.sum(x), x // 7, x % 7), x)
    with pytest.raises(OverflowError, match="300 does not fit uint8"):
        hf.compile(lambda x: x + 300)(x)


def test_bools():
    both(lambda a, b: (a & b, a | b, ~a, hf.where(a, 1.0, 2.0), hf.any(a)), hf.asarray([True, False]), hf.asarray(True))


def test_empty_arrays():
    both(lambda x: (x + 1, hf.sum(x, axis=0), hf.sum(x), x @ hf.ones((3, 2))), hf.asarray(np.zeros((0, 3), np.float32)))


# -- Python asking for values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda x: x if x > 0 else -x, r"bool: .*hf\.where, hf\.cond or hf\.while_loop"),
        (bool, r"bool: .*hf\.where"),
        (float, r"float: .*Return it and read it outside"),
        (int, r"int: .*mark the argument static"),
        (lambda x: [1, 2, 3][x], "index: "),
        (lambda x: range(x), "index: "),
        (complex, "complex: "),
        (lambda x: x.numpy(), "numpy: "),
        (lambda x: np.asarray(x), "numpy: "),
        (lambda x: x.item(), "item: "),
        (lambda x: x.tolist(), "numpy: "),
        (lambda x: f"{x:.3f}", "item: "),
        (lambda x: np.from_dlpack(x), "__dlpack__: "),
        (lambda x: x in [1, 2], "bool: "),
        (lambda x: max(x, 1), "bool: "),
        (lambda x: x and 1, "bool: "),
    ],
)
def test_a_traced_tensor_has_no_value(ask, text):
    def model(x):
        y = x * 2
        return ask(y)

    with pytest.raises(TracedValueError, match=f"(?s){text}") as caught:
        hf.compile(model, autograph=False)(hf.asarray(1))
    assert f"It was made at {__file__}:" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_where_a_traced_tensor_was_made():
    def model(x):
        y = x * 2
        z = y + 1
        return z if y else y

    line = model.__code__.co_firstlineno + 1
    with pytest.raises(TracedValueError, match=rf"made at {__file__}:{line}\.\n  got: bool\(i32\[\]\)"):
        hf.compile(model, autograph=False)(hf.asarray(1))


def test_what_a_traced_tensor_tells_of_itself():
    facts = []

    @hf.compile
    def f(x):
        y = x * 2
        facts.extend([y.device, len(y), y.shape, y.ndim, y.size])
        return y

    f(hf.asarray([1.0, 2.0]))
    assert facts == ["cpu", 2, (2,), 1, 2]


def test_errors_name_the_users_line_and_the_operations_before():
    def inner(x):
        return hf.exp(x) @ x

    @hf.compile
    def model(x):
        y = x * 2
        return inner(y + 1)

    with pytest.raises(ShapeError) as caught:
        model(hf.ones((3, 2)))
    notes = "\n".join(caught.value.__notes__)
    assert f"while compiling 'model', called at {__file__}:" in notes
    for line in ("multiply(", "add(", "exp("):
        assert line in notes
    assert "test_compile.py:" in notes
    shown = "".join(traceback.format_exception(caught.value))
    assert "return hf.exp(x) @ x" in shown
    assert "while compiling" in shown


def test_errors_keep_their_type_and_attributes():
    class Mine(Exception):
        def __init__(self, code):
            super().__init__("mine")
            self.code = code

    @hf.compile
    def f(x):
        raise Mine(7)

    with pytest.raises(Mine, match="mine") as caught:
        f(1.0)
    assert caught.value.code == 7


def test_an_exception_while_tracing_caches_nothing():
    state = {"fail": True, "calls": 0}

    @hf.compile
    def f(x):
        state["calls"] += 1
        if state["fail"]:
            raise KeyError("missing")
        return x + 1

    for _ in range(2):
        with pytest.raises(KeyError):
            f(1.0)
    assert (f.trace_count, f.cache_info().traces, len(f.explain()), state["calls"]) == (0, 0, 0, 2)
    state["fail"] = False
    assert f(1.0) == 2.0
    assert (f.trace_count, state["calls"]) == (1, 3)


def test_shape_and_dtype_errors_are_the_same_in_both_modes():
    def add(x, y):
        return x + y

    x, y = hf.ones((2, 3)), hf.ones((2, 4))
    messages = []
    for fn in (add, hf.compile(add)):
        with pytest.raises(ShapeError) as caught:
            fn(x, y)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    for fn in (f := lambda x: ~x, hf.compile(f)):
        with pytest.raises(DTypeError):
            fn(x)


def test_an_executable_refuses_other_arguments_without_confusion():
    f = hf.compile(lambda x, y: x * y)
    a, b = hf.asarray([1.0, 2.0]), hf.asarray(3.0)
    assert f(a, b).tolist() == [3.0, 6.0]
    assert f(b, a).tolist() == [3.0, 6.0]  # other shapes, after a lone trace
    assert f(a.astype(hf.float64), b).dtype == hf.float64
    assert f(hf.asarray([1, 2]), hf.asarray(3)).dtype == hf.int32
    with pytest.raises(ArgumentTypeError, match="missing a required argument"):
        f(a)
    assert f.trace_count == 4


def test_a_lone_trace_takes_wide_arguments_as_another_trace():
    f = hf.compile(lambda x: x * x)
    f(hf.asarray([1.0]))
    result = f(hf.asarray([1.0 + 1e-12], dtype=hf.float64))
    assert result.dtype == hf.float64
    assert result.item() > 1
    assert f(hf.asarray([2**40], dtype=hf.int64)).item() == 2**80 % 2**64


# -- leaks --------------------------------------------------------------------------------------------------------


class Left(Exception):
    """An error leaves a compiled function with what it holds; stored anywhere else, a traced tensor is refused."""


def leak(**made):
    """Leak a traced tensor; returns it and the line it was made at."""

    @hf.compile
    def leaky(x):
        raise Left(x * 2)

    with pytest.raises(Left) as caught:
        leaky(hf.asarray([1.0, 2.0]))
    return caught.value.args[0], leaky.python_function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t + 1,
        lambda t: 1 - t,
        lambda t: t @ t,
        lambda t: hf.sum(t),
        lambda t: t.numpy(),
        lambda t: np.asarray(t),
        lambda t: t[0],
        lambda t: bool(t),
        lambda t: list(t),
        lambda t: hf.Variable(t),
        lambda t: hf.Variable([1.0, 2.0]).assign(t),
        lambda t: hf.compile(lambda x: x + 1)(t),
        lambda t: hf.compile(lambda: t + 1)(),
        lambda t: hf.compile(lambda x: x)({"a": [t]}),
        lambda t: hf.concat([t, t]),
        lambda t: hf.asarray(t) + 1,
        lambda t: hf.asarray([t[0], 1.0]),
    ],
)
def test_a_leaked_tensor_raises_when_used(use):
    tensor, line = leak()
    pattern = rf"(?s)leaked out of the compiled function 'leaky'.*multiply at {__file__}:{line}\n.*Return the value"
    with pytest.raises(LeakError, match=pattern):
        use(tensor)


def test_a_leaked_tensor_in_a_tape():
    tensor, _ = leak()
    with hf.GradientTape() as tape:
        tape.watch(tensor)
        with pytest.raises(LeakError):
            tensor * 2


def test_a_leaked_tensor_under_a_recording_tape():
    tensor, _ = leak()
    x = hf.asarray([1.0, 2.0])
    f = hf.compile(lambda a, b: a * b)
    with hf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(LeakError):
            f(x, tensor)


def test_a_tensor_that_leaks_from_a_branch():
    kept = []

    @hf.compile(autograph=False)
    def f(x):
        def branch():
            kept.append(x * 3)
            return x

        hf.cond(x > 0, branch, lambda: x)
        return kept[0] + 1

    with pytest.raises(MutationError, match=r"list.append\(...\)"):
        f(hf.asarray(1.0))


def test_a_leaked_tensor_can_be_looked_at():
    tensor, _ = leak()
    assert (tensor.shape, tensor.dtype) == ((2,), hf.float32)
    assert repr(tensor) == "Tensor(traced f32[2])"


# -- texts --------------------------------------------------------------------------------------------------------


def test_the_graph():
    @hf.compile
    def model(x, n):
        return hf.tanh(x) * n

    text = str(model.graph(hf.ones((2, 3)), 3))
    assert text.startswith("graph model(%x: f32[2,3]) -> (f32[2,3]) {")
    assert "tanh(%x) : f32[2,3]  # test_compile.py:" in text
    assert repr(model.graph(hf.ones((2, 3)), 3)) == text
    assert model.trace_count == 1
    assert hf.ir.parse(text) is not None


def test_the_texts_of_every_stage():
    f = hf.compile(lambda x: hf.exp(x) * 2 + 0 * hf.sin(x), name="stages")
    lowered = f.lower(hf.ones((4,)))
    graph, optimized = lowered.as_text("graph"), lowered.as_text("optimized")
    assert graph == str(lowered.traced)
    assert optimized == str(lowered.graph) == lowered.as_text()
    assert "graph stages(" in graph
    assert "sin(" in graph
    assert "stablehlo.exponential" in lowered.as_text("stablehlo")
    assert "HloModule" in lowered.as_text("hlo")
    assert f.trace_count == f.compile_count == 1
    with pytest.raises(ArgumentError, match=r"(?s)'mlir' is not a stage.*'stablehlo', 'hlo', 'llvm', 'assembly'"):
        lowered.as_text("mlir")


def test_the_code_that_xla_makes_for_the_processor(monkeypatch):
    f = hf.compile(lambda x: hf.exp(x) * 2 + hf.sin(x), name="stages")
    lowered = f.lower(hf.ones((4,)))
    assert re.search(r"^; \w*fusion\n", lowered.as_text("llvm"))
    assert re.search(r"^define .*fusion", lowered.as_text("llvm"), re.MULTILINE)
    assert f.compile_count == 1
    if shutil.which("objdump") or shutil.which("llvm-objdump"):
        assert re.search(r"<\w*fusion>:(?s:.)*\bret", lowered.as_text("assembly"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"(?s)no program here that disassembles it.*as_text\('llvm'\)"):
        lowered.as_text("assembly")
    with pytest.raises(DeviceError, match=r"(?s)XLA made no llvm of its own.*as_text\('hlo'\)"):
        hf.compile(lambda x: x).lower(hf.ones((4,))).as_text("llvm")


def test_the_texts_of_a_function_with_variables_and_captured_tensors():
    v, captured = hf.Variable([1.0, 2.0], name="v"), hf.asarray([3.0, 4.0])
    f = hf.compile(lambda x, w: (v.assign_add(x * captured), w * 2))
    lowered = f.lower(2.0, hf.Variable(1.0, name="w"))
    assert "assign" in lowered.as_text("graph")
    assert "%v: f32[2]" in lowered.as_text("graph")
    assert v.numpy().tolist() == [1.0, 2.0]  # nothing ran
    assert "HloModule" in lowered.as_text("hlo")


# -- plain Python -------------------------------------------------------------------------------------------------


def test_run_eagerly_as_a_context_and_as_a_call():
    calls = []

    @hf.compile
    def f(x):
        calls.append(hf.is_tracing())
        return x * 2

    with hf.config.run_eagerly():
        assert f(hf.asarray(2.0)).item() == 4.0
        with hf.config.run_eagerly(False):
            f(hf.asarray(2.0))
        f(hf.asarray(2.0))
    assert calls == [False, True, False]
    assert f.trace_count == 1
    hf.config.run_eagerly(True)
    try:
        f(hf.asarray(2.0))
        f(hf.asarray(2.0))
    finally:
        hf.config.run_eagerly(False)
    f(hf.asarray(2.0))
    assert calls == [False, True, False, False, False, True]


def test_run_eagerly_gives_what_a_compiled_call_gives():
    @hf.compile
    def f(x, pair, n=3):
        assert isinstance(x, np.ndarray)
        assert isinstance(pair["a"], float)
        return x + 2, n, {"list": [pair["a"] * n, None, np.float32(2)]}

    args = (np.array([1, 2]), {"a": np.float64(3)})
    compiled = f(*args)
    with hf.config.run_eagerly():
        eager = f(*args)
    same(eager, compiled)
    with hf.config.run_eagerly():
        assert jax.tree_util.tree_structure(f(*args)) == jax.tree_util.tree_structure(compiled)
        with pytest.raises(ArgumentTypeError, match="no tensor"):
            hf.compile(lambda x: "text")(1.0)


def test_run_eagerly_with_variables():
    v = hf.Variable(1.0)
    f = hf.compile(lambda x: v.assign_add(x))
    with hf.config.run_eagerly():
        result = f(2.0)
    assert (type(result), result.item(), v.item()) == (hf.Tensor, 3.0, 3.0)


def test_run_eagerly_runs_methods_and_nested_functions():
    inner = hf.compile(lambda x: x * (2.0 if hf.is_tracing() else 3.0))

    class Model:
        @hf.compile
        def step(self, x):
            return inner(x) if float(x) > 0 else x

    with hf.config.run_eagerly():
        assert Model().step(hf.asarray(1.0)).item() == 3.0


def test_a_debugger_stops_inside():
    stops = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            if frame.f_code is model.__code__:
                stops.append((frame.f_lineno, frame.f_locals["y"].item()))
            self.set_continue()

    def model(x):
        y = x * 2
        return y + 1

    compiled = hf.compile(model)
    line = model.__code__.co_firstlineno + 2
    debugger = Debugger()
    debugger.set_break(__file__, line)
    before = sys.gettrace()
    try:
        with hf.config.run_eagerly():
            assert debugger.runcall(compiled, hf.asarray(1.0)).item() == 3.0
    finally:
        sys.settrace(before)
    assert stops == [(line, 2.0)]


def test_is_tracing():
    assert hf.compile(lambda: hf.asarray(hf.is_tracing()))().item() is True
    assert hf.is_tracing() is False


# -- random numbers -----------------------------------------------------------------------------------------------


DRAWS = [
    lambda: hf.random.normal((3,)),
    lambda: hf.random.uniform((3,), -1.0, 1.0),
    lambda: hf.random.integers(0, 100, (3,)),
    lambda: hf.random.bernoulli(0.5, (8,)),
    lambda: hf.random.categorical(hf.zeros((5, 4))),
    lambda: hf.random.permutation(6),
    lambda: hf.random.truncated_normal((3,)),
    lambda: hf.nn.dropout(hf.ones((10,)), 0.5),
    lambda: (hf.random.normal((2,)), hf.random.normal((2,)) + hf.random.uniform((2,))),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_gives_equal_numbers_eager_and_compiled_and_every_call_new_ones(draw):
    compiled = hf.compile(draw)
    runs = []
    for fn in (draw, compiled, compiled):
        hf.random.seed(5)
        runs.append([np.concatenate([t.numpy().ravel() for t in jax.tree_util.tree_leaves(fn())]) for _ in range(3)])
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len({a.tobytes() for a in runs[0]}) == 3
    assert compiled.trace_count == 1


def test_eager_and_compiled_draws_share_one_stream():
    f = hf.compile(lambda: hf.random.normal((2,)))
    hf.random.seed(1)
    eager = [hf.random.normal((2,)).tolist() for _ in range(4)]
    hf.random.seed(1)
    mixed = [f().tolist(), hf.random.normal((2,)).tolist(), f().tolist(), f().tolist()]
    assert mixed == eager


def test_a_seed_set_inside():
    def f():
        hf.random.seed(3)
        return hf.random.normal((2,)), hf.random.normal((2,))

    both(f)
    compiled = hf.compile(f)
    assert compiled()[0].tolist() == compiled()[0].tolist()


def test_dropout_under_a_compiled_step():
    w = hf.Variable(np.ones(100, np.float32))

    def step():
        with hf.GradientTape() as tape:
            loss = hf.sum(hf.nn.dropout(w, 0.3))
        return tape.gradient(loss, w)

    hf.random.seed(2)
    eager = [step().numpy() for _ in range(3)]
    hf.random.seed(2)
    compiled = hf.compile(step)
    for expected in eager:
        np.testing.assert_array_equal(compiled().numpy(), expected)


# -- devices ------------------------------------------------------------------------------------------------------


def test_a_device_context():
    f = hf.compile(lambda x: x + hf.ones((2,)))
    plain = f(hf.asarray([1.0, 2.0]))
    with hf.device("cpu"):
        assert f(hf.asarray([1.0, 2.0])).device == "cpu"
        assert f(hf.asarray([1.0, 2.0])).tolist() == plain.tolist()


def test_partial_and_decorator_options():
    @functools.partial(hf.compile, static_argnames="n", name="scaled")
    def f(x, n):
        return x * n

    assert f(hf.asarray(2.0), 3).item() == 6.0
    assert f.graph(hf.asarray(2.0), 3).name == "scaled"
