"""Modules: plain objects, pytrees, watched inside compiled functions; the same eager and compiled."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, ShapeError, TraceError


class Net(nn.Module):
    def __init__(self, width: int = 256):
        super(Net, self).__init__()  # noqa: UP008 (as torch's users write it)
        self.fc1 = nn.Linear(784, width)
        self.fc2 = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = hf.relu(self.fc1(x))
        return self.fc2(x)


class Mixed(nn.Module):
    """No super().__init__(), sizes unknown, `__call__`, lists and dicts, a norm with state and dropout."""

    def __init__(self, width: int = 6):
        self.blocks = [nn.Linear(width) for _ in range(2)]
        self.heads = {"a": nn.Linear(3), "b": [nn.Linear(2), hf.tanh]}
        self.norm = nn.BatchNorm()
        self.drop = nn.Dropout(0.25)
        self.scale = 2.0

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = hf.relu(block(x))
        x = self.drop(self.norm(x)) * self.scale
        return hf.concat([self.heads["a"](x), self.heads["b"][1](self.heads["b"][0](x))], axis=-1)


PATHS = ["blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias", "heads.a.weight", "heads.a.bias",
         "heads.b.0.weight", "heads.b.0.bias", "norm.weight", "norm.bias"]


def data(*shape: int) -> Any:
    return hf.asarray(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def loss_of(model: Any, x: Any) -> Any:
    return hf.mean(hf.square(model(x)))


def test_the_first_model_anyone_writes():
    net = Net()
    step = hf.compile(lambda x: net(x))
    x = data(4, 784)
    first = step(x)
    step(x)
    assert step.trace_count == 1
    assert sum(one.size for one in net.parameters()) == 203_530
    np.testing.assert_allclose(first.numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
    hf.testing.assert_same(net, x)


def test_paths_are_names_everywhere():
    model = Mixed()
    model(data(5, 4))
    assert [*model.named_parameters()] == PATHS
    assert [one.name for one in model.parameters()] == PATHS
    assert [*model.named_buffers()] == ["norm.running_mean", "norm.running_var"]
    assert [*model.named_modules()] == [
        "", "blocks.0", "blocks.1", "heads.a", "heads.b.0", "norm", "drop"]
    text = str(hf.compile(model.eval()).graph(data(5, 4)))
    assert all(path.replace(".", "_") in text for path in PATHS)


@pytest.mark.parametrize("first", ["eager", "compiled", "cost", "vmap", "backward", "grad in a function"])
def test_sizes_come_with_the_first_call(first: str):
    model, x = Mixed().eval(), data(5, 4)
    nn.init.seed(3)
    step = hf.compile(lambda x: model(x))
    if first == "eager":
        model(x)
    elif first == "compiled":
        step(x)
    elif first == "cost":
        hf.cost(model, hf.TensorSpec((5, 4)))
    elif first == "vmap":
        hf.vmap(model)(data(3, 5, 4))
    elif first == "backward":
        loss_of(model, x).backward()
    else:
        hf.grad(lambda x: loss_of(model, x))(x)
    step(x)
    assert step.trace_count == 1
    assert [*model.named_parameters()] == PATHS
    other = Mixed().eval()
    nn.init.seed(3)
    np.testing.assert_array_equal(other(x).numpy(), model(x).numpy())


def test_a_step_is_the_same_eager_and_compiled_from_the_first_call_on():
    def run(wrap: Any) -> tuple[list[Any], dict[str, Any]]:
        hf.random.seed(0)
        model = Mixed()

        def step(x: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = loss_of(model, x)
            parameters = model.parameters()
            for one, gradient in zip(parameters, tape.gradient(loss, parameters), strict=True):
                one.assign_sub(0.1 * gradient)
            return loss

        step = wrap(step)
        losses = [step(data(8, 4)).item() for _ in range(4)]
        if wrap is hf.compile:
            assert step.trace_count == 1
        return losses, model.state_dict()

    eager, compiled = run(lambda step: step), run(hf.compile)
    np.testing.assert_allclose(eager[0], compiled[0], rtol=1e-5)
    assert eager[1].keys() == compiled[1].keys()
    for path, value in eager[1].items():
        np.testing.assert_allclose(value, compiled[1][path], rtol=1e-4, atol=1e-6, err_msg=path)


def test_gradients_come_by_every_way():
    model, x = Net(8), data(3, 784)
    by_grad = hf.grad(loss_of)(model, x)
    assert type(by_grad) is Net
    with hf.GradientTape() as tape:
        loss = loss_of(model, x)
    by_tape = tape.gradient(loss, model)
    loss_of(model, x).backward()
    compiled = hf.compile(lambda model, x: hf.grad(loss_of)(model, x))
    by_compiled = compiled(model, x)
    compiled(model, x)
    assert compiled.trace_count == 1
    for path, one in model.named_parameters().items():
        expected = one.grad.numpy()
        for found in (by_grad, by_tape, by_compiled):
            np.testing.assert_allclose(found.named_parameters()[path].numpy(), expected, rtol=1e-4, atol=1e-7)
    assert jax.tree_util.tree_structure(by_grad) == jax.tree_util.tree_structure(model)
    doubled = jax.tree_util.tree_map(lambda p, g: p.numpy() + g.numpy(), model, by_compiled)
    np.testing.assert_allclose(doubled.fc2.bias, model.fc2.bias.numpy() + by_grad.fc2.bias.numpy(), rtol=1e-4)


def test_a_module_of_gradients_is_an_argument_like_others():
    model, x = Net(8), data(3, 784)

    @hf.compile
    def update(model: Any, gradients: Any) -> None:
        for one, gradient in zip(model.parameters(), gradients.parameters(), strict=True):
            one.assign_sub(gradient)

    for _ in range(3):
        update(model, hf.grad(loss_of)(model, x))
    assert update.trace_count == 1


def test_modes_are_two_traces_however_often_they_change():
    model = Mixed()
    step = hf.compile(lambda x: model(x))
    x = data(6, 4)
    for _ in range(3):
        step(x)
        model.eval()
        np.testing.assert_allclose(step(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
        model.train()
    assert step.trace_count == 2
    assert "training" in str(step.explain())
    with pytest.raises(TraceError, match="eval: a compiled function would do it"):
        hf.compile(lambda x: model.eval()(x))(x)


def test_a_failed_call_moves_no_average_and_draws_nothing():
    hf.random.seed(0)
    model, x = Mixed(), data(6, 4)
    model(x)
    before, state = model.state_dict(), hf.random.default_generator().state.numpy() if hasattr(
        hf.random, "default_generator") else None

    @hf.compile
    def step(x: Any, ok: Any) -> Any:
        y = model(x)
        assert ok, "not this one"
        return y

    with pytest.raises(AssertionError):
        hf.synchronize() or step(x, hf.asarray(False)).numpy()
    after = model.state_dict()
    assert all(np.array_equal(before[path], after[path]) for path in before)
    del state


def test_freezing_is_seen_by_tapes_backward_and_compiled_functions():
    model, x = Net(8), data(3, 784)

    @hf.compile
    def gradients(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = loss_of(model, x)
        return tape.gradient(loss, model.parameters())

    assert all(one is not None for one in gradients(x))
    model.freeze("fc1.*")
    assert [one is None for one in gradients(x)] == [True, True, False, False]
    loss_of(model, x).backward()
    assert [one.grad is None for one in model.parameters()] == [True, True, False, False]
    assert [*model.named_parameters()] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    model.unfreeze()
    assert all(one is not None for one in gradients(x))
    assert gradients.trace_count == 2
    with pytest.raises(ArgumentError, match=r"freeze: no parameter matches 'fc3\.\*'"):
        model.freeze("fc3.*")


def test_what_is_shared_counts_once_and_gets_the_sum():
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.embed = nn.Embedding(5, 3)
            self.first = nn.Linear(3, 3)
            self.again = self.first
            self.table = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.again(self.first(self.embed(ids))) @ self.table.mT

    model, ids = Tied(), hf.asarray([[1, 2]])
    assert [*model.named_parameters()] == ["embed.weight", "first.weight", "first.bias"]
    by_grad = hf.grad(loss_of)(model, ids)
    loss_of(model, ids).backward()
    for path, one in model.named_parameters().items():
        np.testing.assert_allclose(by_grad.named_parameters()[path].numpy(), one.grad.numpy(), rtol=1e-5, atol=1e-7)
    other = copy.deepcopy(model)
    assert other.table is other.embed.weight
    assert other.again is other.first
    assert other.table is not model.table
    np.testing.assert_array_equal(other(ids).numpy(), model(ids).numpy())
    assert [one.name for one in other.parameters()] == [one.name for one in model.parameters()]


def test_another_module_or_attribute_is_seen():
    model, x = Mixed().eval(), data(5, 4)
    step = hf.compile(lambda x: model(x))
    step(x)
    model.scale = 3.0
    np.testing.assert_allclose(step(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    model.blocks[1] = nn.Linear(6)
    np.testing.assert_allclose(step(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    model.blocks.append(nn.Linear(6))
    np.testing.assert_allclose(step(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    assert "blocks.2.weight" in model.named_parameters()


def test_compiled_methods_and_overrides():
    class Base(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(2)

        @hf.compile
        def step(self, x: Any) -> Any:
            return self(x)

        def __call__(self, x: Any) -> Any:
            return self.fc(x)

    class Derived(Base):
        def __call__(self, x: Any) -> Any:
            return super().__call__(x) + 1

    x = data(3, 4)
    for count, kind in enumerate((Base, Derived), 1):
        model = kind()
        np.testing.assert_allclose(model.step(x).numpy(), model(x).numpy(), rtol=1e-6)
        model.step(x)
        assert model.step.trace_count == count  # one for each instance
    assert [one.name for one in model.parameters()] == ["fc.weight", "fc.bias"]


def test_ensembles():
    models = [Net(8) for _ in range(3)]
    ensemble, x = nn.stack(models), data(4, 784)
    call = hf.vmap(lambda model, x: model(x), in_axes=(0, None))
    expected = np.stack([model(x).numpy() for model in models])
    np.testing.assert_allclose(call(ensemble, x).numpy(), expected, rtol=1e-5, atol=1e-6)
    compiled = hf.compile(call)
    np.testing.assert_allclose(compiled(ensemble, x).numpy(), expected, rtol=1e-5, atol=1e-6)
    compiled(ensemble, x)
    assert compiled.trace_count == 1
    gradients = hf.grad(lambda ensemble: hf.sum(call(ensemble, x)))(ensemble)
    assert gradients.fc1.weight.shape == (3, 8, 784)
    mixed = [Mixed() for _ in range(2)]
    for model in mixed:
        model(data(5, 4))
        model.eval()
    stacked = nn.stack(mixed)
    got = hf.vmap(lambda model, x: model(x), in_axes=(0, None))(stacked, data(5, 4))
    np.testing.assert_allclose(got.numpy(), np.stack([m(data(5, 4)).numpy() for m in mixed]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"stack: models 0 and 1 have different structures"):
        nn.stack([Net(8), Net(4)])


def test_values_are_saved_and_loaded_all_or_none():
    model, other = Net(8), Net(8)
    values = model.state_dict()
    model.fc1.bias.assign(hf.ones(8))
    assert not np.array_equal(values["fc1.bias"], model.fc1.bias.numpy())
    other.load_state_dict(values)
    assert all(np.array_equal(values[path], value) for path, value in other.state_dict().items())
    wrong = {"fc1.weight": np.zeros((2, 2), np.float32), "fc1.bias": np.ones(8, np.float32), "more": np.zeros(1)}
    with pytest.raises(ArgumentError, match=r"missing: fc2.weight, fc2.bias; extra: more; .*fc1.weight"):
        other.load_state_dict(wrong)
    assert np.array_equal(other.fc1.bias.numpy(), values["fc1.bias"])
    other.load_state_dict({"fc1.bias": np.ones(8, np.float32)}, strict=False)
    assert other.fc1.bias.numpy().sum() == 8
    for whole in (model, hf.optim.Adam(model), hf.optim.Adam([hf.Variable(1.0)])):
        with pytest.raises(TypeError, match=rf"{type(whole).__name__} is not pickled.*\n.*hf.save\(path, \w+\)"):
            pickle.dumps(whole)


def test_sizes_that_do_not_fit_name_path_layer_and_sizes():
    model = Net(8)
    with pytest.raises(ShapeError, match=r"Linear 'fc1': the input has size 5 .* made for 784"):
        model(data(2, 5))
    with pytest.raises(ShapeError, match=r"Linear 'fc1': the input has size 5 .* made for 784"):
        hf.compile(model)(data(2, 5))
    with pytest.raises(ArgumentError, match="its size is not known yet"):
        hf.grad(loss_of)(Mixed(), data(2, 5))
    with pytest.raises(ShapeError, match="the input has 1 spatial axes, the window 2"):
        nn.Conv2d(3, 3)(data(2, 5, 4))


def test_the_order_does_not_depend_on_values():
    model = Net(4)
    leaves, tree = jax.tree_util.tree_flatten(model)
    for values in ([1.0, 2.0, 3.0, 4.0], ["a", "b", "c", "d"], [None, 1, [2], model]):
        made = jax.tree_util.tree_unflatten(tree, values)
        assert vars(made.fc1)["weight"] is values[0]
        if None not in values and model not in values:
            assert jax.tree_util.tree_leaves(made) == values
    assert all(leaf is one for leaf, one in zip(leaves, model.parameters(), strict=True))


def test_printing():
    assert repr(Mixed()).splitlines() == [
        "Mixed(", "  (blocks.0): Linear(6)", "  (blocks.1): Linear(6)", "  (heads.a): Linear(3)",
        "  (heads.b.0): Linear(2)", "  (heads.b.1): tanh", "  (norm): BatchNorm()", "  (drop): Dropout(0.25)", ")",
    ]


def test_random_seed_starts_initial_values_anew_and_layers_draw_nothing_else():
    hf.random.seed(5)
    first, after = nn.Linear(3, 2).weight.numpy(), hf.random.uniform((2,)).numpy()
    hf.random.seed(5)
    np.testing.assert_array_equal(hf.random.uniform((2,)).numpy(), after)
    np.testing.assert_array_equal(nn.Linear(3, 2).weight.numpy(), first)


def test_a_summary_builds_nothing_and_its_totals_are_those_of_cost():
    model = nn.Sequential(nn.Conv2d(8, 3, padding=1), nn.BatchNorm2d(), hf.relu, nn.Flatten(), nn.Linear(10))
    spec = hf.TensorSpec((4, 1, 8, 8))
    hf.random.seed(0)
    state = np.array(hf.random.normal(()).numpy())
    hf.random.seed(0)
    found = nn.summary(model, spec)
    assert np.array_equal(hf.random.normal(()).numpy(), state)
    assert model.parameters() == []
    assert found.macs == hf.cost(model, spec).macs == sum(row.macs for row in found.rows)
    assert found.parameters == sum(one.size for one in model.parameters())
    assert [row.path for row in found.rows] == ["", "0", "1", "3", "4"]
    assert "(4, 8, 8, 8)" in str(found)
    assert "Conv2d" in found._repr_html_()
    huge = nn.summary(nn.Sequential(nn.Linear(200_000), nn.Linear(200_000)), hf.TensorSpec((1, 200_000)))
    assert huge.parameters == 2 * 200_000 * 200_001


class ReadsInside(nn.Module):
    """Reads the parameters of modules that it does not call, of a list's and of one within another too."""

    def __init__(self) -> None:
        self.table, self.never = nn.Embedding(5, 4), nn.Linear(3, 3)
        self.rest = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm(4)), self.table]
        self.scale = nn.Linear(4, 4)
        self.scale.bias = self.rest[0][0].bias  # one parameter at two places

    def forward(self, i: Any) -> Any:
        return self.scale(self.table.weight[i]) @ self.rest[0][0].weight @ hf.matrix_transpose(self.table.weight)


def test_a_summary_counts_each_parameter_once_at_the_module_that_has_it():
    model = ReadsInside()
    found = nn.summary(model, hf.TensorSpec((2,), "int32"))
    assert found.parameters == sum(one.size for one in model.parameters())
    rows = {row.path: row.parameters for row in found.rows}
    assert rows[""] == rows["rest.0"] == 0
    assert rows["table"] == 20
    assert rows["never"] == 12
    assert rows["scale"] + rows["rest.0.0"] == 2 * 16 + 4


def test_half_a_step_in_a_compiled_function_with_backward():
    model, x = Net(8), data(3, 784)

    @hf.compile
    def step(x: Any) -> Any:
        loss = loss_of(model, x)
        loss.backward()
        return loss

    step(x)
    compiled = {path: one.grad.numpy() for path, one in model.named_parameters().items()}
    for one in model.parameters():
        one.zero_grad()
    loss_of(model, x).backward()
    for path, one in model.named_parameters().items():
        np.testing.assert_allclose(one.grad.numpy(), compiled[path], rtol=1e-4, atol=1e-7)
    assert step.trace_count == 1


def test_a_users_own_variables_are_parameters_and_buffers():
    class Scale(nn.Module):
        def __init__(self) -> None:
            self.scale = hf.Variable([1.0, 2.0])
            self.register_buffer("calls", 0)

        def forward(self, x: Any) -> Any:
            self.calls.assign_add(1)
            return x * self.scale

    model = Scale()
    step = hf.compile(lambda x: model(x))
    for _ in range(3):
        step(hf.asarray([1.0, 1.0]))
    assert [*model.named_parameters()] == ["scale"]
    assert [*model.named_buffers()] == ["calls"]
    assert model.calls.item() == 3
    hf.sum(model(hf.asarray([1.0, 1.0]))).backward()
    assert model.scale.grad.tolist() == [1.0, 1.0]
    assert hf.grad(lambda model: hf.sum(model(hf.asarray([1.0, 1.0]))))(model).scale.tolist() == [1.0, 1.0]
    assert model.calls.item() == 5


def test_initial_values():
    shape = (200, 300)
    for make, std in (
        (nn.init.xavier_uniform(), (2 / 500) ** 0.5), (nn.init.xavier_normal(2.0), 2 * (2 / 500) ** 0.5),
        (nn.init.kaiming_normal(), (2 / 300) ** 0.5), (nn.init.kaiming_uniform(), (2 / 300) ** 0.5),
        (nn.init.lecun_normal(), (1 / 300) ** 0.5), (nn.init.lecun_uniform(), (1 / 300) ** 0.5),
        (nn.init.normal(0.0, 0.02), 0.02), (nn.init.uniform(-1.0, 1.0), 3**-0.5),
    ):
        assert make(shape, hf.float32).std() == pytest.approx(std, rel=0.02)
    found = nn.init.orthogonal()(shape, hf.float64)
    np.testing.assert_allclose(found @ found.T, np.eye(200), atol=1e-12)
    assert np.abs(nn.init.truncated_normal()(shape, hf.float32)).max() <= 2
    assert (nn.init.constant(3.0)((2,), hf.float32) == 3).all()
    with pytest.raises(ArgumentError, match="seed: -1 is negative"):
        nn.init.seed(-1)


def test_threads_that_make_the_first_call_together_make_one_layer():
    from concurrent.futures import ThreadPoolExecutor

    for _ in range(10):
        layer, x = nn.Linear(3), data(2, 4)
        with ThreadPoolExecutor(8) as pool:
            found = [one.numpy() for one in pool.map(layer, [x] * 8)]
        assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("namespace", [{}, {"__name__": "script"}], ids=["bare", "named"])
def test_a_script_that_exec_runs_traces_its_step_once(namespace: dict[str, Any]):
    """Its functions have no source, so its modules are watched as a whole."""
    code = """
import hybridflow as hf, hybridflow.nn as nn
class Net(nn.Module):
    def __init__(self):
        self.conv, self.pool = nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(18, 3)
    def forward(self, x):
        return self.out(self.drop(nn.Flatten()(self.pool(self.conv(x)))))
model = Net()
optimizer = hf.optim.Adam(model, rate=0.01)
@hf.compile
def step(x):
    with hf.GradientTape() as tape:
        loss = hf.mean(model(x) ** 2)
    optimizer.update(tape.gradient(loss, model))
    return loss
"""
    exec(code, namespace)
    step, model = namespace["step"], namespace["model"]
    x = hf.ones((2, 1, 8, 8))
    model.train()
    for _ in range(4):
        step(x)
    made = step.trace_count
    assert made <= 2  # the first call makes the optimizer's Variables
    model.eval()
    step(x)
    assert step.trace_count == made + 1
    model.train()
    step(x)
    assert step.trace_count == made + 1


def test_a_window_of_one_number_has_the_axes_of_the_first_input():
    layer, x = hf.nn.Conv(3, 4, 3), hf.ones((2, 3, 8, 8))
    optimizer = hf.optim.SGD(layer, 0.1)
    assert hf.compile(layer)(x).shape == (2, 4, 6, 6)
    assert layer.weight.shape == (4, 3, 3, 3)
    with hf.GradientTape() as tape:
        loss = hf.sum(layer(x))
    optimizer.update(tape.gradient(loss, layer))
    with pytest.raises(ValueError, match="size 5 along axis 1, the layer was made for 3"):
        layer(hf.ones((2, 5, 8, 8)))


def test_the_count_of_batches_in_pytorchs_files_is_left_out():
    layer = hf.nn.Sequential(hf.nn.BatchNorm(3))
    values = {path: np.asarray(value) + 1 for path, value in layer.state_dict().items()}
    layer.load_state_dict({**values, "0.num_batches_tracked": np.array(5)})
    assert layer.state_dict()["0.running_mean"].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ArgumentError, match="extra: num_batches_tracked"):
        layer.load_state_dict({**values, "num_batches_tracked": np.array(5)})
