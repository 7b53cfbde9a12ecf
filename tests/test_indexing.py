"""Indexing and functional updates: NumPy's results, one error in both modes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from modes import both

import hybridflow as hf
from hybridflow.core.context import context_of
from hybridflow.core.errors import IndexRangeError, TraceError
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.evaluate import evaluate
from hybridflow.testing import check_gradients

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
KEYS: list[Any] = [
    0,
    -1,
    (1, 2, 3),
    slice(None),
    slice(1, None),
    (slice(None), slice(None, None, -1)),
    (..., 0),
    (0, ..., slice(None, -1)),
    None,
    (None, 0, None, ..., None),
    (slice(5, 9), 1),
    (slice(None), slice(-10, 10, 2)),
    [0, 1, 1],
    np.array([[0, -1], [1, 0]]),
    (slice(None), [0, 2], 1),
    ([0, 1], slice(None), [3, -1]),
    (0, slice(None), [1, 2]),
    ([[0], [1]], [0, 2]),
    (slice(1), [2, 0], slice(None, None, -2)),
    (None, [1, 0], None),
    (np.array([True, False]),),
    np.array([True, False]),
    (slice(None), np.array([True, False, True])),
    X > 11,
    (0, X[0, :, 0] > 3),
    (np.int64(1), np.array(2)),
    [],
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_indexing_is_numpys(key: Any):
    expected = X[np.array(key, np.int64) if isinstance(key, list) else key]
    found = hf.asarray(X)[key]
    assert found.shape == expected.shape
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_indexing_is_the_same_compiled(key: Any):
    x = hf.asarray(X)
    assert np.array_equal(hf.compile(lambda x: x[key])(x).numpy(), x[key].numpy())


@pytest.mark.parametrize("key", [key for key in KEYS if not isinstance(key, list) or key], ids=repr)
def test_gradient_of_indexing(key: Any):
    hf.testing.check_gradients(lambda x: hf.square(x)[key], [X / 7 - 1.5])


@pytest.mark.parametrize("how", ["set", "add", "multiply", "min", "max"])
@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_updates_are_numpys(key: Any, how: str):
    index = np.array(key, np.int64) if isinstance(key, list) else key
    expected = X.copy()
    value = np.float32(5.5)
    if how == "set":
        expected[index] = value
    else:
        ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}[how]
        ufunc.at(expected, index, value)
    x = hf.asarray(X)
    assert np.array_equal(getattr(x.at[key], how)(5.5).numpy(), expected)
    assert np.array_equal(x.numpy(), X)
    assert np.array_equal(hf.compile(lambda x: getattr(x.at[key], how)(5.5))(x).numpy(), expected)


@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize("key", [1, (slice(None), slice(None, None, -2)), [0, 1, 0], (slice(1, 2), [2, 0, 2])])
def test_gradient_of_updates(key: Any, how: str):
    values = np.random.default_rng(0).standard_normal(hf.asarray(X)[key].shape)
    hf.testing.check_gradients(lambda x, v: hf.square(getattr(x.at[key], how)(hf.exp(v))), [X / 7 - 1.5, values])


def test_last_of_several_values_stays_in_both_modes():
    x, v = hf.zeros((3,)), hf.arange(6, dtype="float32")
    key = [0, 1, 0, 2, 0, 1]
    assert x.at[key].set(v).numpy().tolist() == [4.0, 5.0, 3.0]
    assert hf.compile(lambda x, v: x.at[key].set(v))(x, v).numpy().tolist() == [4.0, 5.0, 3.0]


def test_update_with_a_value_of_another_shape():
    with pytest.raises(ValueError, match=r"at\[...\].set: a value of shape \(2,\) for elements of shape \(3, 4\)"):
        hf.asarray(X).at[0].set([1.0, 2.0])


@pytest.mark.parametrize("how", ["set", "add", "multiply", "min", "max"])
def test_gradients_of_updates_by_repeated_positions(how):
    rng = np.random.default_rng(3)
    x, v = rng.uniform(0.5, 2.0, (4, 2)), rng.uniform(0.5, 2.0, (5, 2))
    check_gradients(lambda x, v: getattr(x.at[[0, 2, 0, 3, 2]], how)(v) ** 2, (x, v))
    check_gradients(lambda x, v: getattr(x.at[[0, 2], [1, 1]], how)(v) ** 2, (x, v[:2, 0]))


def test_gradients_of_updates_with_ties_and_zeros():
    def gradients(how, x, v, key):
        x, v = hf.asarray(x), hf.asarray(v)
        with hf.GradientTape() as tape:
            tape.watch((x, v))
            y = getattr(x.at[key], how)(v)
        return [g.tolist() for g in tape.gradient(y, (x, v))]

    assert gradients("max", [1.0, 5.0, 0.0], [1.0, 1.0, 2.0], [0, 0, 1]) == [
        pytest.approx([1 / 3, 1.0, 1.0]), pytest.approx([1 / 3, 1 / 3, 0.0]),
    ]
    assert gradients("min", [1.0, np.nan], [1.0], [0]) == [[0.5, 1.0], [0.5]]
    assert gradients("multiply", [2.0, 3.0], [0.0, 5.0, 7.0], [0, 0, 1]) == [[0.0, 7.0], [10.0, 0.0, 3.0]]
    assert gradients("multiply", [2.0, 3.0], [0.0, 0.0, 7.0], [0, 0, 1]) == [[0.0, 7.0], [0.0, 0.0, 3.0]]
    assert gradients("multiply", [0.0, 3.0], [4.0, 5.0], [0, 0]) == [[20.0, 1.0], [0.0, 0.0]]


OUT_OF_RANGE: list[tuple[Any, str]] = [
    (2, "index 2 is out of range for size 2 on axis 0"),
    ((0, -4), "index -4 is out of range for size 3 on axis 1"),
    ((0, 0, 0, 0), "4 indices for 3 dimensions"),
    ([0, 2], "index 2 is out of range for size 2 on axis 0"),
    ((slice(None), [0, -4]), "index -4 is out of range for size 3 on axis 1"),
    ((0, [0, 5]), "index 5 is out of range for size 3 on axis 1"),
    (np.ones((3, 3), bool), r"a mask of shape \(3, 3\) for axes of sizes \(2, 3\) from axis 0 on"),
    ((0, np.ones(4, bool)), r"a mask of shape \(4,\) for axes of sizes \(3,\) from axis 1 on"),
    (np.ones((2, 3, 4, 1), bool), "4 indices for 3 dimensions"),
]


@pytest.mark.parametrize(("key", "text"), OUT_OF_RANGE, ids=[text for _, text in OUT_OF_RANGE])
def test_known_indices_out_of_range_fail_at_once_in_both_modes(key: Any, text: str):
    x = hf.asarray(X)
    for run in (lambda: x[key], lambda: hf.compile(lambda x: x[key])(x), lambda: x.at[key].set(0.0)):
        with pytest.raises(IndexRangeError, match=text):
            run()


@pytest.mark.parametrize(
    "select",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: hf.take(x, i, axis=2),
        lambda x, i: hf.take_along_axis(x, i[:, None, None], axis=0),
        lambda x, i: x.at[i].add(1.0),
    ],
)
def test_traced_indices_out_of_range_fail_the_call(select: Any):
    x = hf.asarray(X)
    compiled = hf.compile(select)
    good, bad = hf.asarray([0, -1]), hf.asarray([0, 9])
    assert np.array_equal(compiled(x, good).numpy(), select(x, good).numpy())
    with pytest.raises(IndexError, match="index 9 is out of range"):
        select(x, bad)
    with pytest.raises(IndexError, match="an index is out of range for size"):
        compiled(x, bad).numpy()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "uint64", "int64"])
def test_index_dtypes(dtype: str):
    x = hf.arange(300, dtype="float32")
    index = hf.asarray(np.array([0, 100, 7], dtype))
    assert x[index].numpy().tolist() == [0.0, 100.0, 7.0]
    assert hf.compile(lambda x, i: x[i])(x, index).numpy().tolist() == [0.0, 100.0, 7.0]
    assert x.at[index].set(-1.0).sum().item() == hf.compile(lambda x, i: x.at[i].set(-1.0).sum())(x, index).item()


def test_masks_in_a_trace():
    x = hf.asarray(X)
    with pytest.raises(TraceError, match=r"the shape of x\[mask\] depends on values.*\n.*\n.*hf.where"):
        hf.compile(lambda x: x[x > 3])(x)


@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize(("mask", "value"), [([True, False], 2.0), ([True, False], X[0]), (X % 2 < 1, -0.0)])
def test_updates_of_masked_elements_in_a_trace(how: str, mask: Any, value: Any):
    def update(x: Any, mask: Any, value: Any) -> Any:
        return getattr(x.at[mask], how)(value)

    x, mask, value = hf.asarray(np.where(X > 3, X, -np.float32(0))), hf.asarray(mask), hf.asarray(np.float32(value))
    found, expected = hf.compile(update)(x, mask, value), update(x, mask, value)
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    both(hf.grad(lambda x, mask, value: hf.sum(update(x, mask, value) * X), argnums=(0, 2)), x, mask, value)
    with pytest.raises(TraceError, match="depends on values"):
        hf.compile(update)(x, mask, update(x, mask, value)[None])  # a value of its own for each


@pytest.mark.parametrize("cut", [lambda x, i: x[i:], lambda x, i: x[:i], lambda x, i: x[0, i : i + 1]])
def test_a_slice_whose_size_depends_on_a_tensor(cut: Any):
    assert cut(hf.asarray(X), hf.asarray(1)).shape == cut(X, 1).shape
    with pytest.raises(TraceError, match=r"size of a slice .* depends on its value(.|\n)*hf.take\(x, i \+"):
        hf.compile(cut)(hf.asarray(X), hf.asarray(1))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (1.0, "a float is not an index"),
        ("a", "a str is not an index"),
        (True, "True is not an index"),
        (np.array([0.5]), "an index tensor is float64, not an integer or a mask"),
        (slice(0, 1, 0), "step is 0"),
        (slice(0.5, 1), "a slice takes integers"),
        ((..., ...), "one ... at most"),
    ],
)
def test_what_is_no_index(key: Any, text: str):
    with pytest.raises(TypeError, match=text):
        hf.asarray(X)[key]


@pytest.mark.parametrize(
    "use",
    [
        lambda x, i: x[i],
        lambda x, i: x[0, i],
        lambda x, i: x[..., i],
        lambda x, i: x[None, i, 1:],
        lambda x, i: x[[0, 1], i],
        lambda x, i: x.at[i].set(5.0),
        lambda x, i: x.at[0, i].add(2.0),
        lambda x, i: [x, x + 1, x * 2][i],
        lambda x, i: (1.5, 2.5, 4.0)[i] * x,
    ],
)
@pytest.mark.parametrize("index", [np.int32(1), np.int64(-1), np.uint8(0), np.array(1), np.array(-2, np.int16)])
def test_a_scalar_of_numpy_is_an_index(use: Any, index: Any):
    x = hf.asarray(X)
    both(use, x, index)
    with pytest.raises(IndexError):
        use(x, np.int32(9))
    with pytest.raises(IndexError):
        hf.compile(use)(x, np.int32(9)).numpy()


@pytest.mark.parametrize("cut", [lambda x, i: x[i:], lambda x, i: x[:i]])
def test_a_slice_whose_size_depends_on_a_number_that_a_tensor_decides(cut: Any):
    def f(x: Any, c: Any) -> Any:
        return cut(x, 1 if c else 0)

    text = r"size of a slice from or to a tensor(.|\n)*used at .*test_indexing.py:\d"
    for function, given in ((f, hf.asarray(True)), (cut, np.int32(1))):
        with pytest.raises(TraceError, match=text):
            hf.compile(function)(hf.asarray(X), given)


def test_tensors_are_immutable():
    x = hf.asarray([1.0])
    with pytest.raises(TypeError, match=r"t.at\[index\].set"):
        x[0] = 2.0  # type: ignore[index]


def test_iteration_and_unpacking():
    a, b = hf.asarray([[1, 2], [3, 4]])
    assert a.numpy().tolist() == [1, 2]
    assert [int(x) for x in b] == [3, 4]


@pytest.mark.parametrize("size", [3, 5, 8])
def test_slices_of_symbolic_sizes(size: int):
    def cut(x: Any) -> Any:
        return [x[1:], x[::-1], x[-1], x[:2], x[1:-1:2], x[..., None, 0], x[-2:, ::-1], x.reshape(-1), x[[0, -1]]]

    builder = GraphBuilder("cut")
    x = builder.argument(hf.TensorSpec([builder.dims.symbol("n", 5), 2]), "x")
    with context_of(builder):
        graph = builder.finish(cut(x))
    assert graph.dims.holds({"n": size})
    value = np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)
    found = evaluate(graph, [value], lambda node, values, attrs: np.asarray(node.op.kernel(*values, **attrs)))
    *values, inside = found
    assert inside
    for y, expected in zip(values, cut(hf.asarray(value)), strict=True):
        assert np.array_equal(y, expected.numpy())


def test_updates_of_booleans_are_refused_whatever_was_called_before():
    x, value, index = hf.asarray([True, False, True]), hf.asarray([True, True]), hf.asarray([0, 2])
    x.at[index].set(value)
    for how in ("add", "multiply", "min", "max"):
        with pytest.raises(TypeError, match="does not take bool"):
            getattr(x.at[index], how)(value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_products_in_low_precision(dtype: str):
    x, factors = hf.asarray([1.0, 2.0, 3.0], dtype=dtype), hf.asarray([2.0, 0.0, 4.0], dtype=dtype)
    of_factors = hf.grad(lambda factors: hf.sum(x.at[hf.asarray([0, 0, 2])].multiply(factors)))(factors)
    np.testing.assert_array_equal(np.asarray(of_factors, np.float32), [0.0, 2.0, 3.0])
