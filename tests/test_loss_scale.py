"""`hf.LossScale`: scaling, skipped steps as transactions, and the scale's course, eager and compiled."""

import copy
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import hybridflow as hf

F16, BF16, F32 = hf.float16, hf.bfloat16, hf.float32


class Momentum:
    """An optimizer with slots, a counter, and noise from a generator."""

    def __init__(self, variables, rate=0.1, noise=0.0):
        self.variables = variables
        self.slots = None
        self.steps = hf.Variable(0, trainable=False)
        self.generator = hf.random.Generator(7)
        self.rate, self.noise = rate, noise

    def apply(self, gradients):
        if self.slots is None:
            self.slots = [hf.Variable(hf.zeros(v.shape), trainable=False) for v in self.variables]
        self.steps.assign_add(1)
        for variable, slot, gradient in zip(self.variables, self.slots, gradients, strict=True):
            slot.assign(0.9 * slot + gradient + self.noise * self.generator.normal(variable.shape))
            variable.assign_sub(self.rate * slot)

    def values(self):
        return [v.numpy() for v in (*self.variables, *(self.slots or []), self.steps)]


def trainer(loss_scale, optimizer, *, compiled):
    (w,) = optimizer.variables

    def train(x):
        with hf.GradientTape() as tape, hf.autocast(F16):
            loss = loss_scale.scale(hf.sum(x * w))
        gradients = loss_scale.unscale(tape.gradient(loss, [w]))
        return loss_scale.step(optimizer.apply, gradients)

    return hf.compile(train) if compiled else train


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_overflow_changes_nothing(compiled):
    w = hf.Variable([1.0, 2.0])
    optimizer = Momentum([w], noise=0.1)
    loss_scale = hf.LossScale(1024.0, interval=3)
    train = trainer(loss_scale, optimizer, compiled=compiled)
    assert train(hf.asarray([0.5, 0.25])).item() is True
    before = optimizer.values()
    for bad in (np.inf, -np.inf, np.nan, 3e38):  # the last one overflows when it is scaled
        assert train(hf.asarray([bad, 0.5])).item() is False
    for a, b in zip(before, optimizer.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loss_scale.state() == {"scale": 64.0, "good_steps": 0, "skipped_steps": 4}
    # the generator too goes on from where it was
    assert train(hf.asarray([0.5, 0.25])).item() is True
    other = Momentum([hf.Variable([1.0, 2.0])], noise=0.1)
    again = trainer(hf.LossScale(1024.0), other, compiled=not compiled)
    again(hf.asarray([0.5, 0.25]))
    again(hf.asarray([0.5, 0.25]))
    for a, b in zip(optimizer.values(), other.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@settings(max_examples=12)
@given(
    st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 3), st.sampled_from([2.0, 3.0]),
    st.sampled_from([0.5, 0.25]),
)
def test_the_course_of_the_scale_is_torch_s(finite, interval, growth, backoff):
    torch = pytest.importorskip("torch")
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=1024.0, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.125)
    w = hf.Variable([1.0, 1.0])
    loss_scale = hf.LossScale(1024.0, growth=growth, backoff=backoff, interval=interval)
    for good in finite:
        x = np.array([1.0 if good else np.inf, 0.5], np.float32)
        optimizer.zero_grad()
        scaler.scale((weight * torch.tensor(x)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        with hf.GradientTape() as tape:
            loss = loss_scale.scale(hf.sum(w * x))
        gradients = loss_scale.unscale(tape.gradient(loss, [w]))
        loss_scale.step(lambda g: w.assign_sub(0.125 * g[0]), gradients)
        assert loss_scale.value.item() == scaler.get_scale()
        assert loss_scale.state()["good_steps"] == scaler.state_dict()["_growth_tracker"]
        np.testing.assert_allclose(w.numpy(), weight.detach().numpy(), rtol=1e-6)
    assert loss_scale.skipped_steps.item() == finite.count(False)


@settings(max_examples=5)
@given(st.lists(st.sampled_from([0.5, -1.0, np.inf, np.nan]), min_size=1, max_size=10))
def test_eager_and_compiled_take_the_same_steps(values):
    ends = []
    for compiled in (False, True):
        optimizer = Momentum([hf.Variable([1.0, 2.0])])
        loss_scale = hf.LossScale(256.0, interval=2)
        train = trainer(loss_scale, optimizer, compiled=compiled)
        flags = [train(hf.asarray([value, 0.25])).item() for value in values]
        ends.append((flags, loss_scale.state(), [v.tolist() for v in optimizer.values() if v is not None]))
    assert ends[0][:2] == ends[1][:2]
    if any(ends[0][0]):  # a compiled update makes its slots at once, an eager one at the first good step
        np.testing.assert_allclose(ends[0][2][0], ends[1][2][0], rtol=1e-6)


def test_float16_gradients_that_underflow_are_cured():
    """The gradient of the mean of a million products is 1e-8 and less, which float16 does not have."""
    x = hf.asarray(np.full((4, 8), 2.0**-14, np.float32))  # with the loss's factor: 2**-27, where 2**-25 becomes 0
    found = {}
    for name, initial in (("without", 1.0), ("with", 2.0**15)):
        v = hf.Variable(np.ones((8, 2), np.float32))
        loss_scale = hf.LossScale(initial)
        with hf.GradientTape() as tape, hf.autocast(F16):
            loss = loss_scale.scale(hf.sum(hf.nn.relu(x @ v)) * 2.0**-13)
        found[name] = loss_scale.unscale(tape.gradient(loss, v)).numpy()
    np.testing.assert_array_equal(found["without"], 0)
    np.testing.assert_array_equal(found["with"], np.full((8, 2), 4 * 2.0**-27, np.float32))


def test_nothing_hides_an_overflow_from_the_step():
    w = hf.Variable([1.0, 2.0])
    loss_scale = hf.LossScale(4.0)
    gradients = loss_scale.unscale([hf.asarray([hf.inf, 1.0]), None, hf.asarray([1.0])])
    assert gradients[1] is None
    assert np.isnan(gradients[2].numpy()).all()
    clipped = hf.clip_by_value(gradients[0], -1.0, 1.0)
    assert not loss_scale.step(lambda g: w.assign_sub(g), clipped).item()
    assert w.numpy().tolist() == [1.0, 2.0]


def test_scaling_is_in_float32():
    loss_scale = hf.LossScale(2.0**15)
    with hf.autocast(F16):
        scaled = loss_scale.scale({"a": hf.asarray(100.0, dtype=F16), "b": hf.asarray(1.0, dtype=hf.float64)})
        back = loss_scale.unscale([hf.asarray([6e-5], dtype=F16)])
    assert (scaled["a"].dtype, scaled["a"].item()) == (F32, 100 * 2.0**15)
    assert scaled["b"].dtype == hf.float64
    assert back[0].dtype == F32
    assert back[0].item() == pytest.approx(6e-5 / 2**15, rel=1e-2)
    with pytest.raises(TypeError, match="a loss of int32 has no gradient"):
        loss_scale.scale(3)


def test_a_fixed_scale_skips_and_stays():
    w = hf.Variable(1.0)
    loss_scale = hf.LossScale(16.0, dynamic=False, interval=1)
    assert loss_scale.step(lambda g: w.assign_sub(g), hf.asarray(0.5)).item()
    assert not loss_scale.step(lambda g: w.assign_sub(g), hf.asarray(hf.nan)).item()
    assert (w.item(), loss_scale.state()) == (0.5, {"scale": 16.0, "good_steps": 0, "skipped_steps": 1})
    assert "fixed" in repr(loss_scale)


def test_the_scale_stays_positive_and_finite():
    loss_scale = hf.LossScale(2.0**127, interval=1)
    loss_scale.step(lambda g: None, hf.asarray(0.0))
    assert loss_scale.value.item() == 2.0**127
    low = hf.LossScale(2.0**-126)
    low.step(lambda g: None, hf.asarray(hf.nan))
    assert low.value.item() == 2.0**-126


def test_state():
    loss_scale = hf.LossScale(8.0, interval=10)
    for value in (1.0, 1.0, hf.inf, 1.0):
        loss_scale.step(lambda g: None, hf.asarray(value))
    state = loss_scale.state()
    assert state == {"scale": 4.0, "good_steps": 1, "skipped_steps": 1}
    assert [v.item() for v in loss_scale.variables] == [4.0, 1, 1]
    other = hf.LossScale(8.0)
    other.restore(state)
    assert other.state() == state
    assert copy.deepcopy(loss_scale).state() == pickle.loads(pickle.dumps(loss_scale)).state() == state
    with pytest.raises(ValueError, match="scale must be positive"):
        other.restore({**state, "scale": 0.0})
    with pytest.raises(ValueError, match=r"the state has \['scale'\]"):
        other.restore({"scale": 1.0})
    assert other.state() == state


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"initial": 0.0}, "initial must be positive"), ({"initial": hf.inf}, "initial must be positive and finite"),
        ({"growth": 0.5}, "growth must be 1 at least"), ({"backoff": 0.0}, "backoff must be above 0"),
        ({"backoff": 2.0}, "backoff must be above 0"), ({"interval": 0}, "interval must be 1 at least"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        hf.LossScale(**options)


def test_an_update_that_cannot_be_called():
    with pytest.raises(TypeError, match="a list cannot be called"):
        hf.LossScale().step([], lambda g: None)


# -- inside a trace -----------------------------------------------------------------------------------------------


def test_effects_of_an_update_are_refused():
    w = hf.Variable(1.0, requires_grad=True)
    loss_scale = hf.LossScale()

    def step(update):
        @hf.compile
        def f(g):
            return loss_scale.step(update, g)

        return f

    with pytest.raises(RuntimeError, match="an effect that a skipped step could not undo\n  got: print at"):
        step(lambda g: hf.print(g))(1.0)

    @hf.compile
    def clears(x):
        (x * w).backward()
        return loss_scale.step(lambda g: w.zero_grad(), w.grad)

    with pytest.raises(RuntimeError, match="grad is cleared or made"):
        clears(hf.asarray(1.0))
    with hf.Graph(), pytest.raises(RuntimeError, match="a graph made by hand"):
        loss_scale.step(lambda g: w.assign_sub(g), hf.placeholder((), F32))


def test_checks_of_a_skipped_update_do_not_fail_the_call():
    w = hf.Variable([1.0, 2.0])
    loss_scale = hf.LossScale(4.0)

    @hf.compile
    def f(g, i):
        return loss_scale.step(lambda g: w.assign(w.at[i].add(g)), g)

    assert f(hf.asarray(1.0), hf.asarray(1)).item()
    assert not f(hf.asarray(hf.nan), hf.asarray(7)).item()
    assert w.numpy().tolist() == [1.0, 3.0]
    with pytest.raises(IndexError):
        f(hf.asarray(1.0), hf.asarray(7)).item()


def test_in_a_loop_and_a_branch():
    w = hf.Variable(8.0)
    loss_scale = hf.LossScale(4.0, interval=100)

    @hf.compile
    def f(gradients):
        for g in gradients:
            loss_scale.step(lambda g: w.assign_sub(g), g)

    f(hf.asarray([1.0, hf.inf, 2.0, hf.nan]))
    assert (w.item(), loss_scale.value.item()) == (5.0, 1.0)
    assert loss_scale.skipped_steps.item() == 2


def test_a_value_written_before_the_step_is_kept():
    w = hf.Variable(1.0)
    loss_scale = hf.LossScale()

    @hf.compile
    def f(g):
        w.assign(5.0)
        loss_scale.step(lambda g: w.assign_sub(g), g)
        return w.read()

    assert f(hf.asarray(hf.nan)).item() == 5.0
    assert f(hf.asarray(1.0)).item() == w.item() == 4.0


def test_all_finite():
    assert hf.all_finite({}).item()
    assert hf.all_finite([None, 3, hf.ones((0,)), hf.ones(2, dtype=BF16)]).item()
    assert not hf.all_finite([1.0, hf.asarray([hf.nan], dtype=F16)]).item()
    assert not hf.compile(hf.all_finite)([hf.asarray([1.0, hf.inf]), hf.ones(3)]).item()
