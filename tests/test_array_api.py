"""Functions of the Array API standard that are made of ops, against NumPy; what they refuse; their gradients."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import run_raw
from hybridflow.core.op import Sample
from hybridflow.ir.evaluate import evaluate
from hybridflow.testing import check_gradients
from hybridflow.testing.calls import trace_sample

SIDES = st.integers(0, 4)


@st.composite
def arrays(draw, min_dims=1, max_dims=3, dtype=np.float32, nan=False):
    shape = tuple(draw(st.lists(SIDES, min_size=min_dims, max_size=max_dims)))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    x = rng.integers(-3, 4, shape).astype(dtype)
    if nan and x.size:
        x.flat[rng.integers(0, x.size)] = np.nan
    return x


def both(fn, *args):
    """Run eagerly and compiled; the results must be equal to the bit. Return the eager one."""
    eager, compiled = fn(*args), hf.compile(fn)(*args)
    for a, b in zip(*[y if isinstance(y, list | tuple) else [y] for y in (eager, compiled)], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    return eager


# -- rearranging --------------------------------------------------------------------------------------------------


@pytest.mark.always
@given(arrays(), st.integers(-6, 6), st.data())
@settings(max_examples=30, deadline=None)
def test_roll_and_moveaxis_are_numpys(x, shift, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    np.testing.assert_array_equal(hf.roll(x, shift, axis=axis).numpy(), np.roll(x, shift, axis))
    np.testing.assert_array_equal(hf.roll(x, shift).numpy(), np.roll(x, shift))
    to = data.draw(st.integers(-x.ndim, x.ndim - 1))
    np.testing.assert_array_equal(hf.moveaxis(x, axis, to).numpy(), np.moveaxis(x, axis, to))


def test_roll_compiled():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for shift, axis in ((1, 0), (-9, 1), ((1, 2), (0, 0)), ((1, -1), (0, 1))):
        y = both(lambda x, shift=shift, axis=axis: hf.roll(x, shift, axis=axis), x)
        np.testing.assert_array_equal(y.numpy(), np.roll(x, shift, axis))


@given(arrays(max_dims=2), st.data())
@settings(max_examples=30, deadline=None)
def test_repeat_and_tile_are_numpys(x, data):
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    count = data.draw(st.integers(0, 3))
    np.testing.assert_array_equal(hf.repeat(x, count, axis=axis).numpy(), np.repeat(x, count, axis))
    size = x.size if axis is None else x.shape[axis]
    counts = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    if size:
        np.testing.assert_array_equal(hf.repeat(x, counts, axis=axis).numpy(), np.repeat(x, counts, axis))
    times = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    np.testing.assert_array_equal(hf.tile(x, times).numpy(), np.tile(x, times))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: hf.repeat(x, 2, axis=0),
        lambda x: hf.tile(x, (2, 3)),
        lambda x: hf.roll(x, 1, axis=0),
        lambda x: hf.diff(x, axis=0),
        lambda x: hf.count_nonzero(x, axis=0),
        lambda x: hf.top_k(x, 1, axis=0).values,
    ],
)
def test_symbolic_sizes_are_no_obstacle(fn):
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    traced = trace_sample(SimpleNamespace(name="fn", public=fn), Sample((x,)), symbolic=True)
    assert any(isinstance(size, Dim) for node in traced.graph.nodes for size in node.outputs[0].shape)
    found, *_ = evaluate(traced.graph, traced.arrays, lambda node, values, attrs: run_raw(node.op, values, attrs))
    np.testing.assert_array_equal(found, fn(x).numpy())


def test_repeat_refuses():
    with pytest.raises(hf.core.errors.ShapeError, match=r"counts of shape \(2,\) for axis 0 of size 3"):
        hf.repeat([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="negative count"):
        hf.repeat([1, 2], [1, -2])
    with pytest.raises(ValueError, match="repeat: -1 times"):
        hf.repeat([1, 2], -1)
    with pytest.raises(hf.core.errors.TraceError, match="the shape depends on the counts"):
        hf.compile(hf.repeat)(hf.asarray([1, 2]), hf.asarray([1, 2]))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid_is_numpys(indexing):
    rows = [np.arange(3), np.arange(2), np.arange(4)]
    for count in range(4):
        found = hf.meshgrid(*rows[:count], indexing=indexing)
        for a, b in zip(found, np.meshgrid(*rows[:count], indexing=indexing), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    with pytest.raises(ValueError, match="neither 'xy' nor 'ij'"):
        hf.meshgrid([1], indexing="yx")
    with pytest.raises(ValueError, match="an array of 2 dimensions"):
        hf.meshgrid([[1]])


def test_broadcasting():
    assert hf.broadcast_shapes() == ()
    assert hf.broadcast_shapes((3, 1), (4,), ()) == (3, 4)
    with pytest.raises(ValueError, match="size 3 against 4"):
        hf.broadcast_shapes((3,), (4,))
    assert [t.shape for t in hf.broadcast_arrays(1, [1, 2], [[1], [2], [3]])] == [(3, 2)] * 3


@given(arrays(max_dims=2, dtype=np.int32), st.integers(0, 5), st.data())
@settings(max_examples=30, deadline=None)
def test_diff_is_numpys(x, n, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    np.testing.assert_array_equal(hf.diff(x, n=n, axis=axis).numpy(), np.diff(x, n, axis))
    np.testing.assert_array_equal(hf.diff(x, axis=axis, prepend=x, append=x).numpy(),
                                  np.diff(x, axis=axis, prepend=x, append=x))


def test_moveaxis_refuses():
    with pytest.raises(ValueError, match="names an axis twice"):
        hf.moveaxis(hf.zeros((2, 3)), (0, -2), (0, 1))
    with pytest.raises(ValueError, match="2 axes to 1 places"):
        hf.moveaxis(hf.zeros((2, 3)), (0, 1), 0)


# -- order --------------------------------------------------------------------------------------------------------


@given(arrays(nan=True), st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
def test_sorting_is_stable_with_nan_largest(x, descending, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    order = hf.argsort(x, axis=axis, descending=descending).numpy()
    # with the position as the second key there are no ties: the order is the only right one
    rank, expected = np.where(np.isnan(x), np.inf, x), np.empty(x.shape, int)
    columns, places = np.moveaxis(rank, axis, -1), np.moveaxis(expected, axis, -1)
    for index in np.ndindex(columns.shape[:-1]):
        sign = -1 if descending else 1
        places[index] = sorted(range(x.shape[axis]), key=lambda i, index=index: (sign * columns[(*index, i)], i))
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(hf.sort(x, axis=axis, descending=descending).numpy(),
                                  np.take_along_axis(x, order.astype(int), axis))


def test_top_k():
    x = np.array([[3.0, np.nan, 3.0, 1.0], [0.0, 7.0, 7.0, 2.0]], np.float32)
    values, indices = both(lambda x: tuple(hf.top_k(x, 2)), x)
    np.testing.assert_array_equal(values.numpy(), [[np.nan, 3.0], [7.0, 7.0]])
    assert indices.tolist() == [[1, 0], [1, 2]]
    assert hf.top_k(x, 3, mode="smallest").indices.tolist() == [[3, 0, 2], [0, 3, 1]]
    assert hf.top_k(x, 1, axis=0).values.shape == (1, 4)
    for k in (-1, 5):
        with pytest.raises(ValueError, match=f"{k} elements of axis 1, which has 4"):
            hf.top_k(x, k)
    with pytest.raises(ValueError, match="'most' is neither"):
        hf.top_k(x, 1, mode="most")


@given(arrays(nan=True), st.booleans(), st.data())
@settings(max_examples=30, deadline=None)
def test_median_is_numpys(x, keepdims, data):
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    if (x.size if axis is None else x.shape[axis]) == 0:
        with pytest.raises(ValueError, match="has size 0, so there is nothing to choose from"):
            hf.median(x, axis)
        return
    found = hf.median(x, axis, keepdims=keepdims)
    np.testing.assert_array_equal(found.numpy(), np.median(x, axis, keepdims=keepdims))


def test_gradients_of_order():
    x = np.array([[0.3, -1.2, 2.0], [5.0, 0.1, -0.4]])
    check_gradients(lambda x: hf.sort(x, axis=0) * hf.asarray([[1.0], [2.0]], dtype="float64"), (x,))
    check_gradients(lambda x: hf.median(x, 0) ** 2 + hf.median(x[0]), (x,))
    check_gradients(lambda x: hf.top_k(x, 2).values ** 2, (x,))
    check_gradients(lambda x: hf.diff(hf.cumulative_prod(x, 1), n=2) ** 2, (x,))
    check_gradients(lambda x: hf.tile(hf.repeat(x, [1, 2], axis=0), 2) ** 2, (x,))


# -- values as a whole --------------------------------------------------------------------------------------------


@given(arrays(min_dims=0, nan=True))
@settings(max_examples=40, deadline=None)
def test_unique_is_numpys(x):
    found = hf.unique_all(x)
    values, indices, inverse, counts = np.unique_all(x)
    for a, b in zip(found, (values, indices, inverse, counts), strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    for name in ("counts", "inverse"):
        for a, b in zip(getattr(hf, f"unique_{name}")(x), getattr(np, f"unique_{name}")(x), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    np.testing.assert_array_equal(hf.unique_values(x).numpy(), values)


def test_gradient_of_unique_goes_to_where_it_is_first_found():
    x = hf.asarray([3.0, 1.0, 3.0])
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.unique_values(x) * hf.asarray([10.0, 20.0])
    assert tape.gradient(y, x).tolist() == [20.0, 10.0, 0.0]


@given(arrays(min_dims=0, max_dims=2, nan=True), arrays(max_dims=1, nan=True), st.booleans())
@settings(max_examples=40, deadline=None)
def test_isin_is_numpys(x, others, invert):
    np.testing.assert_array_equal(hf.isin(x, others, invert=invert).numpy(), np.isin(x, others, invert=invert))


def test_isin_compiled():
    both(lambda x, y: hf.isin(x, y), np.array([1, 5, 2]), np.array([2, 1]))
    assert hf.isin([True, False], [True]).tolist() == [True, False]


@given(arrays(nan=True), st.data())
@settings(max_examples=30, deadline=None)
def test_positions_that_are_not_zero(x, data):
    for a, b in zip(hf.nonzero(x), np.nonzero(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    keepdims = data.draw(st.booleans())
    np.testing.assert_array_equal(hf.count_nonzero(x, axis=axis, keepdims=keepdims).numpy(),
                                  np.count_nonzero(x, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse", "unique_values", "nonzero"])
def test_shapes_that_depend_on_values_are_refused_in_a_trace(name):
    fn = getattr(hf, name)
    with pytest.raises(hf.core.errors.TraceError, match=rf"{name}: the shape .* depends on values(.|\n)*Use hf\."):
        hf.compile(fn)(hf.asarray([1, 2]))
    assert hf.compile(lambda x: hf.unique_values([2, 1, 2]) + x)(hf.asarray([0, 0])).tolist() == [1, 2]


def test_nonzero_of_a_number():
    with pytest.raises(ValueError, match=r"shape \(\) has no positions"):
        hf.nonzero(3)


def test_masks():
    x = hf.asarray([[1, 2], [3, 4]])
    assert x[hf.asarray(True)].tolist() == [[[1, 2], [3, 4]]]
    assert x[hf.asarray(False)].shape == (0, 2, 2)
    assert x[hf.asarray([True, False])].tolist() == [[1, 2]]
    assert x[hf.zeros((0,), dtype=bool)].shape == (0, 2)
    with pytest.raises(hf.core.errors.TraceError, match=r"Use hf\.where"):
        hf.compile(lambda x: x[x > 1])(x)


# -- dtypes, devices, the namespace -------------------------------------------------------------------------------


def test_questions_about_dtypes():
    assert hf.result_type(hf.int8, hf.uint8) == hf.int16
    assert hf.result_type(hf.asarray([1]), 2.5) == hf.float32
    assert hf.result_type(np.zeros(1), hf.bfloat16) == hf.float64
    with pytest.raises(TypeError, match="needs a tensor or a dtype"):
        hf.result_type(1, 2.0)
    assert not hf.can_cast(hf.uint64, hf.int64)
    assert hf.can_cast(hf.asarray([1]), hf.float32)
    for dtype in (hf.float16, hf.bfloat16, hf.float32, hf.float64):
        info = hf.finfo(dtype)
        assert (info.bits, info.min, info.dtype) == (8 * dtype.itemsize, -info.max, dtype)
        one = hf.asarray(1.0, dtype=dtype)
        assert float(one + info.eps) > 1
        assert float(one + info.eps / 4) == 1
    assert hf.finfo(hf.complex64).dtype == hf.float32
    assert hf.iinfo(hf.zeros((1,), dtype="uint8")).max == 255
    with pytest.raises(TypeError, match=r"Use hf\.iinfo"):
        hf.finfo(hf.int8)
    with pytest.raises(TypeError, match=r"Use hf\.finfo"):
        hf.iinfo(hf.float32)
    with pytest.raises(ValueError, match="'whole' is not a kind"):
        hf.isdtype(hf.int8, "whole")
    assert hf.isdtype(hf.bfloat16, ("bool", "real floating"))
    assert not hf.isdtype(hf.bool, "numeric")


def test_namespace_info():
    info = hf.__array_namespace_info__()
    assert hf.__array_api_version__ == "2024.12"
    assert info.default_device() in info.devices()
    for kind, dtype in info.default_dtypes().items():
        assert dtype in info.dtypes(kind="numeric").values(), kind
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {"bool", "complex64", "complex128"}
    assert len(info.dtypes(device="cpu")) == 13
    with pytest.raises(RuntimeError, match="there is no 'moon'"):
        info.dtypes(device="moon")
    x = hf.asarray([1.0])
    assert x.__array_namespace__(api_version="2024.12") is hf
    with pytest.raises(ValueError, match=r"no version '1999.01'"):
        x.__array_namespace__(api_version="1999.01")
    assert x.to_device("cpu").device == "cpu"
    assert hf.Variable(x).to_device("cpu").tolist() == [1.0]
    with pytest.raises(ValueError, match="takes no stream"):
        x.to_device("cpu", stream=1)


def test_from_dlpack_copies():
    x = np.arange(3.0)
    t = hf.from_dlpack(x)
    x[0] = 9.0
    assert t.tolist() == [0.0, 1.0, 2.0]
    assert hf.from_dlpack(t, copy=False) is t
    with pytest.raises(ValueError, match="always copied"):
        hf.from_dlpack(x, copy=False)
    with pytest.raises(TypeError, match="a list has no __dlpack__"):
        hf.from_dlpack([1.0])


def test_augmented_assignment_binds_the_name_anew():
    x = y = hf.asarray([1.0, 2.0])
    x += 1
    x *= hf.asarray([2.0, 3.0])
    assert x.tolist() == [4.0, 9.0]
    assert y.tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match=r"Use t = t\.at\[index\]\.set"):
        x[0] = 1.0


# -- numbers ------------------------------------------------------------------------------------------------------


def test_complex_parts():
    z = hf.asarray([1 + 2j, -3j])
    assert z.real.tolist() == [1.0, 0.0]
    assert z.imag.tolist() == [2.0, -3.0]
    assert z.conj().tolist() == [1 - 2j, 3j]
    x = hf.asarray([1.5])
    assert hf.real(x) is x
    assert hf.conj(x) is x
    assert hf.imag(x).tolist() == [0.0]
    assert hf.sign([3 + 4j, 0j]).tolist() == pytest.approx([0.6 + 0.8j, 0])
    both(hf.sign, np.array([3 + 4j, 0j], np.complex64))


def test_complex_points_and_rounding():
    for endpoint in (True, False):
        found = hf.linspace(1 - 2j, 3 + 1j, 4, endpoint=endpoint)
        np.testing.assert_allclose(found.numpy(), np.linspace(1 - 2j, 3 + 1j, 4, endpoint=endpoint), rtol=1e-6)
    assert hf.linspace(0, 1, 3, dtype=hf.complex128).dtype == hf.complex128
    with pytest.raises(TypeError, match="linspace: does not give float32"):
        hf.linspace(0, 1j, 3, dtype=hf.float32)
    assert both(hf.round, np.array([0.5 - 1.5j, -0.2 + 2.7j])).tolist() == [-2j, 3j]


def test_an_axis_that_is_not_there_is_what_numpy_raises_too():
    for error in (IndexError, ValueError):
        with pytest.raises(error, match="axis 3 is out of range for 2 dimensions"):
            hf.expand_dims([1.0], axis=3)


def test_expm1_of_small_complex_numbers_is_precise():
    z = np.array([1e-9 + 1e-9j, -1e-12 + 2e-10j, 1e-3 - 1e-8j])
    expected = z + z * z / 2 + z**3 / 6 + z**4 / 24 + z**5 / 120
    for fn in (hf.expm1, hf.compile(hf.expm1)):
        np.testing.assert_allclose(fn(z).numpy(), expected, rtol=1e-13)


def test_copysign_and_hypot_at_zero():
    assert hf.signbit(hf.copysign(0.0, -0.0)).item()
    assert not hf.signbit(hf.copysign(-0.0, 0.0)).item()
    x = hf.asarray([0.0, 3.0])
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.hypot(x, hf.asarray([0.0, 4.0]))
    assert tape.gradient(y, x).tolist() == pytest.approx([0.0, 0.6])


# -- borders ------------------------------------------------------------------------------------------------------


@given(arrays(max_dims=2), st.sampled_from(["edge", "reflect", "symmetric", "wrap"]), st.data())
@settings(max_examples=50, deadline=None)
def test_borders_are_numpys(x, mode, data):
    widths = [(data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))) for _ in x.shape]
    if any(size == 0 and any(pair) for size, pair in zip(x.shape, widths, strict=True)):
        with pytest.raises(ValueError, match="is empty, so there is nothing for a border"):
            hf.pad(x, widths, mode=mode)
    else:
        np.testing.assert_array_equal(hf.pad(x, widths, mode=mode).numpy(), np.pad(x, widths, mode))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_borders_compiled_and_their_gradients(mode):
    x = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, 7.0]])
    both(lambda x: hf.pad(x, ((1, 2), (4, 5)), mode=mode), x)
    check_gradients(lambda x: hf.pad(x, ((1, 2), (4, 5)), mode=mode) ** 2, (x,))


def test_borders_refuse():
    with pytest.raises(ValueError, match="'mirror' is not one of"):
        hf.pad([1], 1, mode="mirror")


@pytest.mark.parametrize(("ours", "theirs"), [(hf, np), (hf.linalg, np.linalg), (hf.fft, np.fft)])
def test_what_numpy_takes_next_by_position_is_taken_so(ours, theirs):
    """Dtypes are given by name here: `hf.zeros(2, "int32")` would be a size."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    tried = 0
    for name in set(dir(ours)) & set(dir(theirs)):
        try:
            own, its = [inspect.signature(getattr(one, name)).parameters.values() for one in (ours, theirs)]
        except (TypeError, ValueError):  # it is no function, or one of C's
            continue
        by_name = [one.name for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        following = [one.name for one in its if one.kind in kinds][sum(one.kind in kinds for one in own) :]
        if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in own) or by_name[:1] in (["dtype"], ["device"]):
            continue
        assert not by_name or following[:1] != by_name[:1], f"{name}: {by_name[0]}"
        tried += 1
    assert tried > 12


def test_options_by_position():
    x = hf.reshape(hf.arange(9.0), (3, 3))
    assert hf.all(hf.triu(x, 1) == hf.triu(x, k=1))
    assert hf.all(hf.compile(lambda v: v.tril(-1))(x) == x.tril(k=-1))
    assert hf.linalg.norm(x, "nuc") == hf.linalg.norm(x, ord="nuc")
    assert hf.tensordot(x, x, 1).shape == (3, 3)
