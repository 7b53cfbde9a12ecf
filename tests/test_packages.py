"""hybridflow together with the packages around it: the real ones, where they are installed."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.dtypes import as_dtype
from hybridflow.core.errors import MutationError
from tests.modes import both, close, tensor

ROOT = Path(__file__).parent.parent
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


# -- the array API's own tools ------------------------------------------------------------------------------------


def test_array_api_compat():
    compat = pytest.importorskip("array_api_compat")
    x = tensor(1.0, 2.0)
    assert compat.is_array_api_obj(x)
    assert compat.is_array_api_obj(hf.Variable(1.0))
    assert compat.array_namespace(x, hf.Variable(1.0)) is hf
    assert compat.device(x) == "cpu"
    assert compat.to_device(x, "cpu").tolist() == [1.0, 2.0]
    assert compat.size(x) == 2
    with pytest.raises(TypeError, match="Multiple namespaces"):
        compat.array_namespace(x, np.ones(2))


def test_einops():
    einops = pytest.importorskip("einops.array_api")

    def shuffled(x):
        y = einops.rearrange(x, "b c (h w) -> (b h) w c", h=2)
        pooled = einops.reduce(y * y, "bh (w two) c -> bh w c", "mean", two=2)
        packed, shapes = einops.pack([einops.repeat(pooled, "a w c -> a w (r c)", r=2), pooled], "a w *")
        return einops.unpack(packed, shapes, "a w *")[0]

    y = X.reshape(2, 3, 2, 2).transpose(0, 2, 3, 1).reshape(4, 2, 3)
    expected = np.concatenate([(y**2).mean(1, keepdims=True)] * 2, -1)
    close(both(shuffled, hf.asarray(X)), expected)
    close(both(hf.grad(lambda x: hf.sum(shuffled(x))), hf.asarray(X)), 2 * X)
    assert einops.asnumpy(hf.asarray(X)).shape == X.shape


def test_scipy_and_scikit_learn():
    pytest.importorskip("scipy", "1.16")
    pytest.importorskip("sklearn", "1.7")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.array_api_consumers"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = done.stdout.split()
    assert sum(name.startswith("scipy.") for name in names) >= 15
    assert sum(name.startswith("sklearn.") for name in names) >= 5


# -- NumPy --------------------------------------------------------------------------------------------------------


def test_numpy_reads_tensors():
    x = tensor(1.0, 2.0)
    view = np.asarray(x)
    assert view.dtype == np.float32
    assert not view.flags.writeable
    assert np.array(x).flags.writeable
    assert np.asarray(x, np.float64).tolist() == [1.0, 2.0]
    assert np.concatenate([x, x]).tolist() == [1.0, 2.0, 1.0, 2.0]
    array = np.zeros(2)
    array[:] = x
    assert array.tolist() == [1.0, 2.0]
    assert [10, 11, 12][hf.asarray(2)] == 12
    assert list(range(hf.asarray(2))) == [0, 1]


def test_operators_with_arrays_give_tensors_and_keep_gradients():
    array = np.asarray([3.0, 4.0], np.float32)
    x = tensor(1.0, 2.0)
    for result in (array * x, array + x, array - x, array / x, array @ x, array**x, array < x, array == x):
        assert isinstance(result, hf.Tensor)
    close(hf.grad(lambda x: hf.sum(array * x))(x), array)
    close(hf.grad(lambda x: array @ x)(x), array)
    assert (np.float32(2) * x).dtype == hf.float32
    assert (np.float64(2) * x).dtype == hf.float64  # NumPy's scalars are arrays, and keep their dtype


def test_ufuncs_of_numpy_are_ours():
    """They take tensors and keep the gradient; what would write into an array is refused."""
    x = tensor(1.0, 2.0)
    for call in (lambda x: np.sin(x), lambda x: np.add(x, 1.0), lambda x: np.add(np.ones(2), x)):
        assert isinstance(call(x), hf.Tensor)
        assert hf.grad(lambda x, call=call: hf.sum(call(x)))(x).shape == (2,)
    array = np.ones(2)
    with pytest.raises(MutationError, match="which no gradient follows"):
        array += x
    assert array.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint32", "bool", "complex64", "float16"])
def test_dlpack_with_numpy(dtype: str):
    x = hf.asarray(np.asarray([0, 1, 3]).astype(dtype))
    there = np.from_dlpack(x)
    assert there.dtype == np.dtype(dtype)
    back = hf.from_dlpack(there)
    assert (back.dtype, back.tolist()) == (x.dtype, x.tolist())


# -- torch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "complex64", "bfloat16"])
def test_dlpack_with_torch(dtype: str):
    torch = pytest.importorskip("torch")
    x = hf.asarray(np.asarray([[0, 1, 3], [1, 0, 2]]).astype(as_dtype(dtype)))
    there = torch.from_dlpack(x)
    assert there.dtype == getattr(torch, dtype)
    assert there.tolist() == x.tolist()
    there[0, 0] = 1  # a copy: the tensor does not change
    assert x[0, 0].item() == 0
    for back in (hf.from_dlpack(there), hf.asarray(there.T.contiguous().T)):
        assert (back.dtype, back.tolist()) == (x.dtype, there.tolist())


# -- pandas -------------------------------------------------------------------------------------------------------


def test_pandas():
    pd = pytest.importorskip("pandas")
    series = pd.Series([3.0, 4.0])
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})
    x = tensor(1.0, 2.0)
    assert hf.asarray(series).tolist() == [3.0, 4.0]
    assert hf.asarray(frame).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert hf.asarray(pd.Series([1, 2], dtype="Int64")).dtype == hf.int64
    assert (x * series.sum()).tolist() == (series.sum() * x).tolist() == [7.0, 14.0]
    assert x[series.argmax()].item() == 2.0
    close(hf.grad(lambda x: x * series.max())(1.0), 4.0)
    assert hf.compile(lambda x: x * frame["b"].sum())(x).tolist() == [7.0, 14.0]
    assert pd.Series(x).tolist() == [1.0, 2.0]
    for bad in (pd.NA, pd.Timestamp("2020-01-01"), pd.Series(["a"])):
        with pytest.raises(TypeError):
            hf.asarray(bad)


# -- copies -------------------------------------------------------------------------------------------------------


def test_tensors_are_copied_as_values():
    x = tensor(1.0, 2.0)
    assert copy.copy(x) is x
    assert copy.deepcopy([x])[0] is x
    again = pickle.loads(pickle.dumps(x))
    assert (again.dtype, again.tolist()) == (x.dtype, x.tolist())
    low = hf.asarray([1.0, 2.0], dtype="bfloat16")
    assert pickle.loads(pickle.dumps(low)).dtype == hf.bfloat16
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = copy.deepcopy({"x": x * x})["x"]
    close(tape.gradient(y, x), np.asarray([2.0, 4.0]))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_a_copied_variable_is_a_new_one(duplicate):
    v = hf.Variable([1.0, 2.0], name="v", trainable=False)
    other = duplicate(v)
    assert other is not v
    assert (other.name, other.trainable, other.dtype) == ("v", False, hf.float32)
    other.assign_add([1.0, 1.0])
    assert v.numpy().tolist() == [1.0, 2.0]
    assert other.numpy().tolist() == [2.0, 3.0]


def test_shared_variables_stay_shared():
    v = hf.Variable(1.0)
    for model in (copy.deepcopy({"a": v, "b": [v]}), pickle.loads(pickle.dumps({"a": v, "b": [v]}))):
        assert model["a"] is model["b"][0]
        assert model["a"] is not v


# -- optax and equinox --------------------------------------------------------------------------------------------


def test_optax_updates():
    optax = pytest.importorskip("optax")
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    start = {"w": np.asarray([1.0, -2.0], np.float32), "b": np.float32(0.5)}

    def loss(xp, p):
        return xp.sum((p["w"] * 3.0 - p["b"]) ** 2)

    params, state = start, optimiser.init(start)
    for _ in range(3):
        grads = jax.grad(lambda p: loss(jnp, p))(params)
        updates, state = optimiser.update(grads, state, params)
        params = optax.apply_updates(params, updates)

    init, update = hf.from_jax(optimiser.init), hf.from_jax(optimiser.update)
    variables = {name: hf.Variable(value, name=name) for name, value in start.items()}
    ours = init(variables)

    def step(ours):
        with hf.GradientTape() as tape:
            value = loss(hf, variables)
        grads = tape.gradient(value, variables)
        updates, ours = update(grads, ours, {name: v.read() for name, v in variables.items()})
        for name, v in variables.items():
            v.assign_add(updates[name])
        return ours

    compiled = hf.compile(step)
    for run in (step, compiled, compiled):
        ours = run(ours)
    close({name: v.numpy() for name, v in variables.items()}, params)
    close(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(state))
    assert compiled.trace_count == 1


def test_an_equinox_layer_in_a_tape():
    eqx = pytest.importorskip("equinox")
    layer = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    weights, rest = eqx.partition(layer, eqx.is_array)
    variables = jax.tree_util.tree_map(hf.Variable, weights)
    apply = hf.from_jax(lambda weights, x: jax.vmap(eqx.combine(weights, rest))(x))
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)

    def gradients(x):
        with hf.GradientTape() as tape:
            y = hf.sum(hf.nn.softmax(apply(variables, hf.tanh(x))) ** 2)
        return tape.gradient(y, jax.tree_util.tree_leaves(variables))

    def reference(weights):
        return jnp.sum(jax.nn.softmax(jax.vmap(eqx.combine(weights, rest))(jnp.tanh(x))) ** 2)

    expected = jax.grad(reference)(weights)
    close(gradients(hf.asarray(x)), expected, atol=1e-5)
    close(hf.compile(gradients)(hf.asarray(x)), expected, atol=1e-5)
