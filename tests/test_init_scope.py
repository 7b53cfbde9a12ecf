"""Variables that compiled functions create, and `hf.init_scope`: what is computed eagerly while tracing."""

import functools
import random

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


def test_init_scope_runs_eagerly():
    k = [2.0]

    @hf.compile
    def f(x):
        assert hf.is_tracing()
        with hf.init_scope():
            assert not hf.is_tracing()
            table = hf.arange(3) * k[0]
        return x + table

    for _ in range(3):
        assert f(hf.zeros(3)).numpy().tolist() == [0.0, 2.0, 4.0]
    assert f.trace_count == 1
    k[0] = 3.0
    assert f(hf.zeros(3)).numpy().tolist() == [0.0, 3.0, 6.0]


def test_a_trace_depends_on_the_variables_that_init_scope_read():
    v = hf.Variable(2.0, name="v")

    @hf.compile
    def f(x):
        with hf.init_scope():
            y = float(v)
        return x * y

    assert [f(1.0), f(3.0), f.trace_count] == [2.0, 6.0, 1]
    v.assign(5.0)
    assert [f(1.0), f.trace_count] == [5.0, 2]
    assert f.explain()[1].reason == "the value of v: 2.0 -> 5.0"


# -- programs of steps, some of them in `hf.init_scope`: the same as eager, at every call


class State:
    def __init__(self):
        self.v = hf.Variable(1.0, name="v")
        self.w = hf.Variable([1.0, 2.0], name="w", requires_grad=True)
        self.k, self.alpha, self.log, self.made = [2.0], 0.5, [], {}
        self.metric = hf.metrics.Mean()


def assigns(s, x):
    s.v.assign_add(x)
    return x


def assigns_more(s, x):
    s.w.assign(s.w * 2 + s.v)
    return hf.sum(s.w.read())


def assigns_number(s, x):
    s.v.assign_add(3.0)
    return x


def reads(s, x):
    return s.v * 2


def reads_number(s, x):
    return float(s.v) + 1


def reads_array(s, x):
    return s.w.numpy()


def draws(s, x):
    return hf.random.normal(())


def prints(s, x):
    hf.print("v", s.v)
    return x


def measures(s, x):
    s.metric.update(s.v * 1)
    return s.metric.result()


def reads_python(s, x):
    return hf.asarray(s.k[0]) * s.alpha


def needs_number(s, x):
    return x if s.alpha > 1 else -x


def writes_python(s, x):
    s.k[0] = s.k[0] + 1.0
    s.log.append(1)
    return hf.asarray(s.k[0])


def goes_back(s, x):
    hf.sum(s.w * s.w).backward()
    return hf.sum(s.w.grad)


def reads_gradient(s, x):
    return -1.0 if s.w.grad is None else hf.sum(s.w.grad)


def forgets_gradient(s, x):
    s.w.zero_grad()
    return x


def creates(s, x):
    if "n" not in s.made:
        s.made["n"] = hf.Variable(s.v * 1)
    return s.made["n"] * 1


BOTH = [
    assigns_more, reads, draws, prints, measures, reads_python, goes_back, reads_gradient, forgets_gradient, creates,
]
TRACED = [*BOTH, assigns, needs_number]
EAGERLY = [*BOTH, assigns_number, reads_number, reads_array, writes_python]


def program(steps):
    def run(s, x):
        results = []
        for eagerly, step in steps:
            if eagerly:
                with hf.init_scope():
                    results.append(hf.stop_gradient(hf.asarray(step(s, 0.0))))
            else:
                results.append(step(s, x))
        return results

    return run


def outcome(steps, between, seed, compiled, capsys):
    """Return what four calls of a program returned, what it printed, and the state that they left."""
    hf.random.seed(seed)
    s, function = State(), program(steps)
    function = hf.compile(function) if compiled else function
    results = []
    for number, changes in enumerate(between):
        results.append([np.asarray(one, np.float64) for one in function(s, hf.asarray(float(number % 2 + 1)))])
        for change in changes:
            change(s, hf.asarray(1.0))
    results.append([hf.random.normal(()).numpy(), s.v.numpy(), s.w.numpy(), s.k, len(s.log)])
    return results, capsys.readouterr().out


def changes_alpha(s, x):
    s.alpha += 1


def check_program(seed, capsys):
    drawn = random.Random(seed)
    steps = []
    for _ in range(drawn.randint(2, 6)):
        eagerly = drawn.random() < 0.5
        steps.append((eagerly, drawn.choice(EAGERLY if eagerly else TRACED)))
    choices = (assigns, writes_python, changes_alpha, draws)
    between = [[one for one in choices if drawn.random() < 0.15] for _ in range(4)]
    eager, text = outcome(steps, between, seed, False, capsys)
    compiled, its_text = outcome(steps, between, seed, True, capsys)
    shown = [(one.__name__, eagerly) for eagerly, one in steps], between
    for mine, its in zip(eager, compiled, strict=True):
        for a, b in zip(mine, its, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=str(shown))
    assert text == its_text, shown


@pytest.mark.parametrize("seed", range(8))
def test_programs_with_eager_code(seed, capsys):
    check_program(seed, capsys)


@pytest.mark.rest
@pytest.mark.parametrize("seed", range(8, 308))
def test_more_programs_with_eager_code(seed, capsys):
    check_program(seed, capsys)


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


def test_not_in_a_branch_with_a_state():
    v = hf.Variable(1.0, name="v")

    def assigns(x):
        if x > 0:
            with hf.init_scope():
                v.assign_add(1.0)
        return x * v

    def reads(x):
        if x > 0:
            v.assign_add(x)
            with hf.init_scope():
                x = x * float(v)
        return x

    with pytest.raises(errors.TraceError, match=r"Variable 'v': assigned, or drawn from, by code that runs eagerly"):
        hf.compile(assigns)(hf.asarray(1.0))
    with pytest.raises(errors.TraceError, match="Variable 'v': read, after an assignment there, by code that"):
        hf.compile(reads)(hf.asarray(1.0))
    assert v.item() == 1.0


@pytest.mark.asserts
def test_a_call_that_fails_assigns_nothing_in_init_scope():
    v = hf.Variable(1.0)

    @hf.compile
    def f(x):
        with hf.init_scope():
            v.assign_add(1.0)
        assert x > 0, "not positive"
        return x * v

    assert f(hf.asarray(1.0)).item() == 2.0
    with pytest.raises(AssertionError, match="not positive"):
        f(hf.asarray(-1.0)).item()
    assert v.item() == 2.0


def test_a_cached_value_is_computed_where_it_stands():
    v = hf.Variable(1.0)

    def program():
        @functools.cache
        def kept():
            v.assign(5.0)
            return hf.random.normal(()) * v

        def run(x):
            y = v * x + hf.random.normal(())
            return y + kept() + v

        return run

    results = []
    for wrap in (lambda run: run, hf.compile):
        hf.random.seed(1)
        v.assign(1.0)
        run = wrap(program())
        results.append([run(hf.asarray(3.0)).item() for _ in range(3)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


def test_means_of_a_layer_that_comes_later_start_from_the_present_value():
    results = []
    for wrap in (lambda run: run, hf.compile):
        model = hf.nn.Linear(2, 1)
        mean = hf.optim.EMA(model, 0.5)
        model.late = hf.Variable([1.0], name="late")

        def step(x, model=model, mean=mean):
            model.late.assign_add(x)
            mean.update()
            return mean.named_variables()["late"].read()

        run = wrap(step)
        results.append([run(hf.asarray([2.0])).item() for _ in range(3)])
    assert results == [[3.0, 4.0, 5.5]] * 2
