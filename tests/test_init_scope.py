"""Variables that compiled functions create, and `hf.init_scope`: what is computed eagerly while tracing."""

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core import errors


class Layer:
    """Creates its weight at the first call, in the middle of other draws."""

    def __init__(self):
        self.weight = None
        self.more = {}

    def apply(self, x):
        before = hf.random.normal((2,))
        if self.weight is None:
            self.weight = hf.Variable(hf.random.normal((x.shape[-1],)) * 2, name="weight")
        after = hf.random.normal((2,))
        self.weight.assign_add(x)
        return x * self.weight + before + after

    def apply_by_size(self, x):
        if x.shape not in self.more:
            self.more[x.shape] = hf.Variable(hf.zeros_like(x) + hf.max(x), name=f"of_{x.shape[0]}")
        return self.more[x.shape] * x

    compiled = hf.compile(apply)
    compiled_by_size = hf.compile(apply_by_size, dynamic=False)


def test_a_guarded_variable_is_created_once_with_the_eager_numbers():
    x = hf.asarray([1.0, 2.0])
    results = []
    for name in ("apply", "compiled"):
        hf.random.seed(5)
        layer = Layer()
        results.append([getattr(layer, name)(x).numpy() for _ in range(3)] + [layer.weight.numpy()])
        assert layer.weight.name == "weight"
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
    assert layer.compiled.trace_count == 2  # the first, which creates the weight, is right for its own call alone
    assert "created: Variable 'weight' at" in str(layer.compiled.explain()[0])
    assert "self.weight: None -> Variable f32[2]" in layer.compiled.explain()[1].reason


def test_on_any_trace_and_from_the_values_of_the_call():
    layer = Layer()
    for values in ([1.0, 3.0], [5.0, 2.0, 4.0], [0.0, 2.0]):
        x = hf.asarray(values)
        first = 3.0 if len(values) == 2 else 5.0
        np.testing.assert_array_equal(layer.compiled_by_size(x).numpy(), first * x.numpy())
    assert sorted(v.name for v in layer.more.values()) == ["of_2", "of_3"]
    assert layer.compiled_by_size.trace_count == 3  # the dict that the first trace looked at has grown since


def test_a_module_level_guard_and_a_float_argument():
    made = []

    @hf.compile
    def f(x, rate):
        if not made:
            made.append(hf.Variable(rate * hf.ones(2)))
        return made[0] * x * rate

    assert f(2.0, 3.0).numpy().tolist() == [18.0, 18.0]
    assert f(2.0, 4.0).numpy().tolist() == [24.0, 24.0]
    assert made[0].numpy().tolist() == [3.0, 3.0]


def test_gradients_reach_a_created_variable():
    state = {}

    @hf.compile
    def step(x):
        if "w" not in state:
            state["w"] = hf.Variable([1.0, 2.0])
        with hf.GradientTape() as tape:
            loss = hf.sum(state["w"] ** 2 * x)
        return tape.gradient(loss, state["w"])

    for _ in range(2):
        assert step(hf.asarray([3.0, 4.0])).numpy().tolist() == [6.0, 16.0]


def test_not_in_a_branch_on_tensors():
    made = []

    def branch():
        made.append(hf.Variable(1.0, name="inner"))
        return made[0].read()

    f = hf.compile(lambda x: hf.cond(x > 0, branch, lambda: x), autograph=False)
    with pytest.raises(errors.TraceError, match=r"Variable 'inner': created in a branch or loop on tensors, at .*:\d+"):
        f(1.0)


def test_init_scope_runs_eagerly_once():
    @hf.compile
    def f(x):
        assert hf.is_tracing()
        with hf.init_scope():
            assert not hf.is_tracing()
            table = hf.random.normal((2,)).numpy()
        return x + table

    first = f(hf.zeros(2)).numpy()
    np.testing.assert_array_equal(f(hf.zeros(2)).numpy(), first)
    assert f.trace_count == 1


def test_init_scope_is_on_no_tape():
    x = hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        with hf.init_scope():
            y = x * x
        z = x * y
    assert tape.gradient(z, x).item() == 4.0


def test_traced_tensors_have_no_value_in_init_scope():
    @hf.compile
    def f(x):
        with hf.init_scope():
            return x + 1

    with pytest.raises(errors.TraceError, match="traced"):
        f(hf.asarray(1.0))
