"""`Tensor`, `Variable`, `asarray` and dtypes: conversion, promotion, printing, copying, and what NumPy sees of them."""

from __future__ import annotations

import array
import copy
import enum
import math
import operator
import pickle
import statistics
import sys
import threading
import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf
from hybridflow.core.dtypes import check_fits
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    MutationError,
    NumberRangeError,
    ShapeError,
    TracedValueError,
)

ALL = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
       "float32", "float64", "complex64", "complex128"]


# -- asarray ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(True, "bool"), (1, "int32"), (1.0, "float32"), (1j, "complex64"), ([1, 2], "int32"), ([1, 2.0], "float32"),
     ([True, 2], "int32"), ([True, False], "bool"), ([1, 2j], "complex64"), ([], "float32"), ([[], []], "float32"),
     (((1, 2), [3, 4]), "int32"), (range(3), "int32"), ([range(2), [5, 6]], "int32"), (np.float16(1), "float16"),
     (np.int8(1), "int8"), (np.ones(2), "float64"), (np.bool_(True), "bool"), ([np.int8(1), 2], "int8"),
     ([np.int8(1), 2.5], "float32"), ([np.float64(1), 1], "float64"), ([np.ones(2), [1, 2]], "float64")],
)
def test_default_dtypes(value: Any, dtype: str):
    found = hf.asarray(value)
    assert str(found.dtype) == dtype
    expected = [list(row) if isinstance(row, range) else row for row in value] if isinstance(value, list) else value
    np.testing.assert_array_equal(found.numpy(), np.array(expected))
    assert hf.compile(lambda: hf.asarray(value))().dtype == found.dtype


@pytest.mark.parametrize("dtype", ALL)
def test_every_dtype_by_every_name(dtype: str):
    wanted = getattr(hf, dtype)
    for spelled in (dtype, wanted, np.dtype(wanted).type):
        assert hf.asarray([1, 0], dtype=spelled).dtype == wanted
    assert hf.asarray(np.array([1, 0]).astype(wanted)).dtype == wanted
    assert hf.asarray([1, 0], dtype=dtype).tolist() == [1, 0]


def test_python_types_are_the_default_dtypes():
    found = [hf.asarray([1], dtype=kind).dtype for kind in (bool, int, float, complex)]
    assert found == [hf.bool, hf.int32, hf.float32, hf.complex64]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [(300, "uint8", "300 does not fit uint8, which holds 0 to 255"), (-1, "uint8", "-1 does not fit uint8"),
     (128, "int8", "128 does not fit int8, which holds -128 to 127"), (2**31, None, "2147483648 does not fit int32"),
     (-(2**31) - 1, None, "-2147483649 does not fit int32"), (2**63, "int64", "does not fit int64"),
     (2**64, "uint64", "does not fit uint64, which holds 0 to 18446744073709551615"),
     ([1, 300], "uint8", "300 does not fit"), ([[0], [-1]], "uint16", "-1 does not fit"), ([1, 2**70], None, "int32"),
     (np.inf, "int32", "inf does not fit int32"), (math.nan, "int64", "nan does not fit int64"),
     (1e20, "int64", r"1e\\+20 does not fit int64"), ([0.5, 1e10], "int32", "10000000000.0 does not fit int32"),
     (10**400, "float64", "an integer of 1329 bits does not fit float64"), (70000, "float16", "70000 does not fit"),
     (10**39, "float32", "which holds -3.40282e\\+38 to 3.40282e\\+38"), (-10**39, "bfloat16", "does not fit bfloat16"),
     (range(250, 260), "uint8", "259 does not fit uint8")],
)
def test_a_number_that_does_not_fit(value: Any, dtype: Any, text: str):
    with pytest.raises(NumberRangeError, match=text.replace("\\\\", "\\")) as caught:
        hf.asarray(value, dtype=dtype)
    assert isinstance(caught.value, OverflowError)
    assert "wider dtype" in str(caught.value)
    with pytest.raises(OverflowError):
        hf.compile(lambda: hf.asarray(value, dtype=dtype))()


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(255, "uint8", 255), (-128, "int8", -128), (2**31 - 1, None, 2**31 - 1), (2**64 - 1, "uint64", 2**64 - 1),
     ([2**64 - 1, 1], "uint64", [2**64 - 1, 1]), ([2**63 - 1, -1], "int64", [2**63 - 1, -1]),
     ([2**53 + 1, True], "int64", [2**53 + 1, 1]), (65504, "float16", 65504.0), (2**70, "float32", 2.0**70),
     (2.9, "int32", 2), (-2.9, "int32", -2), ([1.9, -1.9], "int8", [1, -1]), (2, "bool", True), (np.inf, None, np.inf),
     (-np.inf, "float16", -np.inf), ([np.inf, 1.0], None, [np.inf, 1.0]), (0.1, "float64", 0.1),
     (3.40282356e38, None, float(np.finfo(np.float32).max)), (65519.0, "float16", 65504.0), (1e300, "bool", True)],
)
def test_numbers_that_fit_are_exact(value: Any, dtype: Any, expected: Any):
    assert hf.asarray(value, dtype=dtype).tolist() == expected
    assert hf.compile(lambda: hf.asarray(value, dtype=dtype))().tolist() == expected


def test_numbers_leak_no_warning_and_leave_the_error_state_alone():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        hf.asarray([np.inf, 1e-300])
        hf.asarray(np.inf)
        hf.asarray(np.array([np.nan, 1e20]), dtype=hf.int32)
        hf.asarray(np.array([1e300]), dtype=hf.float32)
        hf.asarray([np.float64(1e300), 1.0], dtype="float16")
        assert np.geterr()["over"] == "raise"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [([[1, 2], [3]], ShapeError, "a nested list must be rectangular"), ([[1, 2], 3], ShapeError, "rectangular"),
     ([1, [2]], ShapeError, r"got: \[1, \[2\]\]"), ([np.ones(2), np.ones(3)], ShapeError, "rectangular"),
     (np.array([1, "a"], dtype=object), DTypeError, "is not a hybridflow dtype"),
     (np.array(["a"]), DTypeError, "not a hybridflow dtype"), (np.array([1], "M8[s]"), DTypeError, "Choose one of"),
     (np.ones(1, np.longdouble), DTypeError, "not a hybridflow dtype"), ("x", ArgumentTypeError, "tensor of a str"),
     (["x"], ArgumentTypeError, "tensor of a str"), (None, ArgumentTypeError, "tensor of a NoneType"),
     ([1, None], ArgumentTypeError, "NoneType"), ({}, ArgumentTypeError, "tensor of a dict"), (b"x", TypeError, "byte"),
     ({1}, ArgumentTypeError, "set"), (object(), ArgumentTypeError, "tensor of an object"),
     (iter([1]), ArgumentTypeError, "list_iterator"), (np.ma.array([1, 2], mask=[0, 1]), ArgumentTypeError, "mask")],
)
def test_what_is_no_tensor(value: Any, error: Any, text: str):
    with pytest.raises(error, match=text):
        hf.asarray(value)
    with pytest.raises(error, match=text):
        hf.compile(lambda: hf.asarray(value))()


@pytest.mark.parametrize("value", [1 + 2j, [1 + 2j], np.array([1 + 2j]), np.complex64(1), [np.complex64(1), 1.0]])
def test_an_imaginary_part_is_not_dropped(value: Any):
    for dtype in ("float32", "int32"):
        with pytest.raises(DTypeError, match=f"to {dtype} would drop the imaginary part"):
            hf.asarray(value, dtype=dtype)


@pytest.mark.parametrize("dtype", ["nonsense", np.longdouble, object, "M8[s]", 3, "f7", str])
def test_what_is_no_dtype(dtype: Any):
    with pytest.raises(DTypeError, match="is not a hybridflow dtype") as caught:
        hf.asarray(1, dtype=dtype)
    assert "float32" in str(caught.value)


def test_a_users_array_is_copied():
    source = np.ones(3, np.float32)
    t, v = hf.asarray(source), hf.Variable(source)
    f = hf.compile(lambda: hf.asarray(source) + t)
    before = f().tolist()
    source[:] = 7.0
    assert t.tolist() == v.numpy().tolist() == [1.0, 1.0, 1.0]
    assert before == [2.0, 2.0, 2.0]
    assert f().tolist() == [8.0, 8.0, 8.0]  # the array that the function reads is another one now


def test_layouts_of_arrays():
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    views = base.T, base[::-1, :, ::2], np.asfortranarray(base), np.broadcast_to(base[0], (5, 3, 4)), base.astype(">f4")
    for view in views:
        found = hf.asarray(view)
        np.testing.assert_array_equal(found.numpy(), view)
        assert found.dtype == np.float32
        np.testing.assert_array_equal((found * 2.0).numpy(), view * 2.0)


def test_arrays_of_others():
    for value in (
        jnp.asarray([1.0, 2.0]), memoryview(np.float32([1, 2])), array.array("f", [1, 2]),
    ):
        found = hf.asarray(value)
        assert found.dtype == np.float32
        assert np.ravel(found.numpy()).tolist() == [1.0, 2.0]
    assert hf.asarray(jnp.ones(2, jnp.bfloat16)).dtype == hf.bfloat16
    half = jnp.ones(2, jnp.bfloat16)  # as PyTorch's, which NumPy takes by DLPack only, and not in this dtype
    foreign = types.SimpleNamespace(__dlpack__=half.__dlpack__, __dlpack_device__=half.__dlpack_device__)
    assert hf.asarray(foreign).tolist() == [1.0, 1.0]
    assert hf.asarray([jnp.float32(1), np.float32(2.0)]).tolist() == [1.0, 2.0]


def test_an_object_with_the_array_interface_alone_is_converted():
    class Image:
        __array_interface__ = np.arange(6, dtype=np.uint8).reshape(2, 3).__array_interface__

    assert hf.asarray(Image()).shape == (2, 3)


def turned(value: Any) -> hf.Tensor:
    """Return a tensor whose memory has its axes in reversed order."""
    return hf.permute_dims(hf.asarray(value.T.copy()), range(value.ndim)[::-1])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
@pytest.mark.parametrize("kind", [hf.asarray, hf.Variable, turned])
def test_memory_is_given_to_others(kind: Any, shape: tuple[int, ...], dtype: Any):
    value = (np.arange(math.prod(shape)).reshape(shape) % 3).astype(hf.asarray(0, dtype=dtype).dtype)
    given = kind(value)
    taken = [np.asarray(given), np.array(given, copy=None)]
    if sys.version_info >= (3, 12):
        if dtype == "bfloat16":
            with pytest.raises(DTypeError, match="buffers have no format for bfloat16"):
                memoryview(given)
        else:
            taken += [memoryview(given), np.frombuffer(bytes(given), dtype).reshape(shape)]
            with pytest.raises((TypeError, NotImplementedError), match=r"read-only|unsupported|cannot modify"):
                memoryview(given)[(0,) * len(shape)] = 1
    if dtype != "bfloat16":
        taken.append(np.asarray(type("Other", (), {"__array_interface__": given.__array_interface__})()))
    assert hasattr(given, "__array_interface__") == (dtype != "bfloat16")
    for one in taken:
        found = np.asarray(one)
        assert (found.dtype, found.shape) == (dtype, shape)
        np.testing.assert_array_equal(found.astype("c16"), value.astype("c16"))
    for one in taken[:2]:
        assert not one.flags.writeable


def test_a_view_of_memory_outlives_what_it_is_of():
    for take in (memoryview, np.asarray) if sys.version_info >= (3, 12) else (np.asarray,):
        variable = hf.Variable(np.arange(1000.0))
        view = take(variable)
        variable.assign(np.zeros(1000))
        del variable
        assert np.asarray(view)[-1] == 999.0


def test_scalars_in_the_standard_library():
    numbers = hf.asarray([1.0, 2.0, 3.5])
    assert statistics.fmean(numbers) == pytest.approx(6.5 / 3)
    assert statistics.pstdev(numbers) == pytest.approx(np.std([1, 2, 3.5]))
    assert hf.Variable(0.5).as_integer_ratio() == hf.asarray(0.5).as_integer_ratio() == (1, 2)
    with pytest.raises(ArgumentTypeError, match=r"statistics, take t\.tolist\(\)"):
        statistics.mean(numbers)


def test_images_of_pillow():
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    made = image.fromarray(hf.asarray(pixels))
    assert (made.mode, made.size) == ("RGB", (4, 2))
    np.testing.assert_array_equal(hf.asarray(made).numpy(), pixels)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (0,), (3, 2), (2, 3, 4)])
def test_arrays_of_arrow_and_polars(shape: tuple[int, ...], dtype: str):
    pa = pytest.importorskip("pyarrow")
    value = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype)
    made = pa.array(hf.asarray(value))
    assert made.to_pylist() == value.tolist()
    if len(shape) == 1:
        assert made.type == pa.from_numpy_dtype(dtype)
        assert pa.table({"a": hf.Variable(value)})["a"].to_pylist() == value.tolist()
        for back in (made, pa.chunked_array([made, made[:0]])):
            assert (hf.asarray(back).numpy() == value).all()
            assert hf.asarray(back).dtype == dtype
    else:
        with pytest.raises(DTypeError, match="FixedSizeListArray of objects has no dtype of numbers"):
            hf.asarray(made)
    pl = pytest.importorskip("polars")
    series = pl.Series("a", hf.asarray(value))
    assert series.to_list() == value.tolist()
    assert hf.asarray(series).dtype == dtype
    assert hf.asarray(series).tolist() == value.tolist()
    if len(shape) == 1:
        both = {"a": hf.asarray(value), "b": hf.Variable(value)}
        for table in (pl.DataFrame(both), pa.table(both)):
            assert hf.asarray(table).tolist() == np.stack([value, value], 1).tolist()
            (batch,) = hf.data.Batches((table, series), 5) if len(value) else [(table, series)]
            assert np.shape(batch[0]) == (len(value), 2)


def test_what_arrow_does_not_have_is_refused():
    pa = pytest.importorskip("pyarrow")
    for given, text in (
        (hf.asarray([1j]), "no arrays of complex64"), (hf.asarray([1.0], dtype="bfloat16"), "no arrays of bfloat16"),
        (hf.asarray(1.0), "an array has an axis"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            given.__arrow_c_array__()
    for given in (pa.array(["a"]), pa.array([[1], [2, 3]])):
        with pytest.raises(DTypeError, match="of objects has no dtype of numbers"):
            hf.asarray(given)
    assert np.isnan(hf.asarray(pa.array([1.5, None])).numpy()).tolist() == [False, True]
    f = hf.compile(lambda x: x.__arrow_c_array__())
    with pytest.raises(TracedValueError, match="numpy: a traced tensor has no value"):
        f(hf.asarray([1.0]))


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    found = hf.asarray(torch.tensor([1.0, 2.0]))
    assert (found.dtype, found.tolist()) == (np.float32, [1.0, 2.0])
    assert hf.asarray(torch.arange(3)).dtype == np.int64
    assert hf.asarray([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]
    t = tensor(1, 2)
    shared = torch.from_dlpack(t)
    shared[0] = 9.0
    assert t.tolist() == [1.0, 2.0]  # a consumer may write, so it got a copy


def test_integer_enums_are_integers():
    class Color(enum.IntEnum):
        RED = 3

    assert hf.asarray(Color.RED).tolist() == 3
    assert hf.asarray([Color.RED, 1]).dtype == np.int32


def test_an_array_is_converted_as_astype_does():
    source = np.array([300.7, -1.2])
    for dtype in ("float32", "int64", "bfloat16"):
        np.testing.assert_array_equal(hf.asarray(source, dtype=dtype).numpy(), hf.asarray(source).astype(dtype).numpy())


def test_copy_and_dtype_of_tensors():
    t = tensor(1, 2)
    assert hf.asarray(t) is t
    assert hf.asarray(t, copy=False) is t
    assert hf.asarray(t, dtype=hf.float32) is t
    assert hf.asarray(t, dtype=hf.int32).tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="float32 to int32 needs a copy, and copy=False") as caught:
        hf.asarray(t, dtype=hf.int32, copy=False)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ValueError, match="always copied"):
        hf.asarray(np.ones(2), copy=False)


def test_lists_of_tensors_are_stacked():
    v = hf.Variable([1.0, 2.0])

    def f(x: hf.Tensor, y: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            z = hf.asarray([[x, y * x], [v.read() * 1.0, np.float32([5, 6])]])
            loss = hf.sum(z * z)
        return z, tape.gradient(loss, [x, v]), hf.asarray([x[0], 2, True, 2.5]), hf.asarray((x[0], 1), dtype="float64")

    z, (x, gv), mixed, wide = both(f, tensor(1, 2), tensor(3, 4))
    assert z.shape == (2, 2, 2)
    close([x, gv], [np.array([20.0, 68.0]), np.array([2.0, 4.0])])
    assert (mixed.dtype, wide.dtype) == (np.float32, np.float64)
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        hf.asarray([tensor(1, 2), 1.0])


# -- promotion ----------------------------------------------------------------------------------------------------

FLOAT_RANK = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}


def expected_promotion(a: str, b: str) -> str | None:
    """Return the Array API standard's promotion, extended: integers with floats give the float."""
    if a == b:
        return a
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"

    def kind(dtype: str) -> str:
        return "float" if dtype == "bfloat16" else dtype.rstrip("0123456789")

    order = ["bool", "uint", "int", "float", "complex"]
    low, high = sorted((a, b), key=lambda d: (order.index(kind(d)), np.dtype(getattr(hf, d)).itemsize))
    if kind(low) == "uint" and kind(high) == "int":
        if (a, b) != (low, high):
            a, b = low, high
        bits = max(int(low[4:]) * 2, int(high[3:]))
        return f"int{bits}" if bits <= 64 else None
    if kind(high) == "complex" and kind(low) == "float":
        return "complex128" if "float64" in (low, high) or high == "complex128" else "complex64"
    return high


@pytest.mark.parametrize("a", ALL)
def test_promotion_of_tensors(a: str):
    for b in ALL:
        x, y = hf.asarray([1, 1], dtype=a), hf.asarray([1, 1], dtype=b)
        expected = expected_promotion(a, b)
        if expected is None:
            with pytest.raises(DTypeError, match=f"no integer dtype holds both .*{a if 'uint' in a else b} and"):
                hf.where(hf.asarray(True), x, y)
            continue
        assert str(hf.where(hf.asarray(True), x, y).dtype) == expected, (a, b)


def test_promotion_agrees_with_numpy_where_the_standard_defines_it():
    defined = [d for d in ALL if d != "bfloat16"]
    for a in defined:
        for b in defined:
            kinds = {np.dtype(a).kind, np.dtype(b).kind}
            expected = expected_promotion(a, b)
            if (len(kinds) == 1 or kinds in ({"i", "u"}, {"f", "c"})) and expected is not None:
                assert np.result_type(a, b) == np.dtype(expected), (a, b)


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [("int8", 1, "int8"), ("int8", 1.0, "float32"), ("int8", True, "int8"), ("int64", 2.5, "float32"),
     ("uint8", 1j, "complex64"), ("float16", 1, "float16"), ("float16", 1.0, "float16"), ("bfloat16", 2.0, "bfloat16"),
     ("float16", 1j, "complex64"), ("float64", 1j, "complex128"), ("float64", 2, "float64"), ("bool", 1, "int32"),
     ("bool", 1.5, "float32"), ("complex64", 1.0, "complex64"), ("int32", 2.0, "float32")],
)
def test_python_numbers_are_weak(dtype: str, number: Any, expected: str):
    x = hf.asarray([1, 0], dtype=dtype)
    for f in (lambda x: hf.where(hf.asarray(True), x, number), lambda x: hf.where(hf.asarray(False), number, x)):
        assert str(both(f, x).dtype) == expected


def test_numpy_scalars_are_strong():
    x = hf.asarray([1, 2], dtype=hf.float32)
    assert (x * np.float64(2.0)).dtype == np.float64
    assert (np.float64(2.0) * x).dtype == np.float64
    assert (x * np.int64(2)).dtype == np.float32


def test_an_integer_tensor_times_a_float_is_float32():
    for dtype in ("int8", "int32", "int64", "uint16"):
        found = both(lambda n: (n * 2.0, 2.0 * n, n + 0.5), hf.asarray([1, 2], dtype=dtype))
        assert {str(one.dtype) for one in found} == {"float32"}
        assert found[0].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("op", [lambda x, n: x + n, lambda x, n: n * x, lambda x, n: x < n, lambda x, n: x // n])
def test_a_python_integer_that_does_not_fit_its_partner(op: Any):
    for value, number in ((hf.asarray([1, 2], dtype="uint8"), 300), (hf.asarray([1], dtype="uint8"), -1),
                          (hf.asarray([1]), 2**31), (hf.asarray([1], dtype="float16"), 70000)):
        with pytest.raises(NumberRangeError, match=f"{number} does not fit {value.dtype}"):
            op(value, number)
        with pytest.raises(NumberRangeError, match=f"{number} does not fit {value.dtype}"):
            hf.compile(lambda x, number=number: op(x, number))(value)


def test_check_fits_is_quiet_about_what_fits():
    for number, dtype in ((127, hf.int8), (-128, hf.int8), (True, hf.uint8), (math.inf, hf.float16),
                          (1e300, hf.float64), (1j, hf.complex64)):
        check_fits(number, dtype)


TOO_LARGE = {"float16": 65520.0, "bfloat16": -3.4e38, "float32": 1e308, "complex64": 3.40282357e38}
WAYS_IN = {
    "asarray": lambda x, n: hf.asarray(n, dtype=x.dtype),
    "a list": lambda x, n: hf.asarray([[n, 1.0]], dtype=x.dtype),
    "an operator": lambda x, n: x + n,
    "an operator, reflected": lambda x, n: n * x,
    "a function": lambda x, n: hf.where(x != x, x, n),
    "full": lambda x, n: hf.full((2,), n, dtype=x.dtype),
    "an update": lambda x, n: x.at[0].set(n),
    "a Variable": lambda x, n: hf.Variable(x).assign_add(n),
}


@pytest.mark.parametrize("mode", ["eager", "compiled", "compiled, an input"])
@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("dtype", TOO_LARGE)
def test_a_finite_float_never_becomes_infinity(dtype: str, way: str, mode: str):
    x, number, run = hf.ones((2,), dtype=dtype), TOO_LARGE[dtype], WAYS_IN[way]
    if way == "a Variable" and mode != "eager":
        variable = hf.Variable(x)
        run = lambda x, n: variable.assign_add(n)  # noqa: E731
    compiled = hf.compile(run)
    calls = {
        "eager": lambda n: run(x, n),
        "compiled": lambda n: hf.compile(lambda x: run(x, n))(x),
        "compiled, an input": lambda n: compiled(x, n),
    }
    call = calls[mode]
    if mode == "compiled, an input":
        call(1.5), call(2.5)
    with pytest.raises(NumberRangeError, match=f"does not fit {dtype}"):
        call(number)
    assert np.isinf(np.asarray(call(math.copysign(math.inf, number)), np.complex128)).any()


# -- NumPy on the left --------------------------------------------------------------------------------------------

OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "**": lambda a, b: a**b, "//": lambda a, b: a // b, "%": lambda a, b: a % b, "@": lambda a, b: a @ b,
    "<": lambda a, b: a < b, "==": lambda a, b: a == b, ">=": lambda a, b: a >= b, "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("kind", ["tensor", "variable"])
@pytest.mark.parametrize("name", OPERATORS)
def test_numpy_on_the_left_defers(name: str, kind: str):
    operator = OPERATORS[name]
    left, right = np.float32([[1, 2], [3, 4]]), np.float32([[2, 1], [1, 3]])
    other = hf.asarray(right) if kind == "tensor" else hf.Variable(right)
    expected = operator(left, right)
    found = [operator(left, other), operator(np.float32(3), other) if name != "@" else operator(left, other)]
    found.append(operator(other, right))
    assert all(type(one) is hf.Tensor for one in found)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-6)
    assert found[0].dtype == expected.dtype


def test_numpy_on_the_left_keeps_the_gradient():
    v = hf.Variable(np.float32([[1, 2], [3, 4]]))
    a = np.float32([[1, 0], [2, 1]])

    def f():
        with hf.GradientTape() as tape:
            y = hf.sum(a @ v + a * v) + hf.sum(a - v) + hf.sum(np.float32(2) * v)
        return tape.gradient(y, v)

    close(both(f), np.array([[3.0, 3.0], [1.0, 1.0]]) + a - 1 + 2)


def test_in_place_operators_of_numpy_arrays_do_not_swallow_tensors():
    a = np.ones(2, np.float32)
    t = tensor(1, 2)
    with pytest.raises(TypeError, match=r"written into a NumPy array(.|\n)*array = array \+ t"):
        a += t
    with pytest.raises(TypeError, match="written into a NumPy array"):
        np.add(a, t, out=a)
    a = a + t
    assert type(a) is hf.Tensor


def test_strange_operands_are_type_errors():
    t, v = tensor(1, 2), hf.Variable([1.0, 2.0])
    for value in (t, v):
        for other in ("x", None, object(), {}):
            with pytest.raises(TypeError):
                _ = value + other
            with pytest.raises(TypeError):
                _ = other * value


def test_an_operand_may_take_over():
    class Mine:
        def __radd__(self, other: Any) -> str:
            return "mine"

    assert tensor(1) + Mine() == "mine"


# -- Tensor -------------------------------------------------------------------------------------------------------


def test_what_a_tensor_is():
    t = hf.asarray(np.ones((2, 3), np.float32))
    assert (t.shape, t.dtype, t.ndim, t.size, t.nbytes, t.device) == ((2, 3), np.float32, 2, 6, 24, "cpu")
    assert (t.T.shape, t.mT.shape, len(t)) == ((3, 2), (3, 2), 2)
    assert [row.shape for row in t] == [(3,), (3,)]
    assert t.__array_namespace__() is hf
    with pytest.raises(ArgumentTypeError, match=r"Use hf\.asarray"):
        hf.Tensor()


def test_numpy_views_are_read_only():
    for value in (tensor(1, 2), hf.Variable([1.0, 2.0]), hf.compile(lambda x: x * 2.0)(tensor(1, 2))):
        for view in (value.numpy(), np.asarray(value)):
            assert type(view) is np.ndarray
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 9.0


def test_array_protocol():
    t = tensor(1, 2)
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    writable = np.array(t)
    writable[0] = 9.0
    assert t.tolist() == [1.0, 2.0]
    assert np.shares_memory(np.asarray(t), t.numpy())
    with pytest.raises(ValueError, match=r"needs a copy, and copy=False|Unable to avoid copy"):
        np.asarray(t, dtype=np.float64, copy=False)
    assert np.sum(np.asarray(hf.Variable([1.0, 2.0]))) == 3.0


def test_dlpack():
    t = tensor(1, 2)
    for value in (t, hf.Variable([1.0, 2.0]), hf.compile(lambda x: x * 1.0)(t)):
        assert jax.dlpack.from_dlpack(value).tolist() == [1.0, 2.0]
        assert np.from_dlpack(value).tolist() == [1.0, 2.0]
        assert value.__dlpack_device__()[0] == 1
    assert not np.shares_memory(np.from_dlpack(t), t.numpy())  # a consumer may write


def test_scalars():
    t = hf.asarray(2.5)
    assert (float(t), int(t), bool(t), complex(t), t.item(), f"{t:.2f}") == (2.5, 2, True, 2.5 + 0j, 2.5, "2.50")
    assert [10, 20, 30][hf.asarray(1)] == 20
    assert list(range(hf.asarray(3))) == [0, 1, 2]
    assert float(hf.asarray([[4.0]])) == 4.0
    for wrong in (hf.asarray(1.5), hf.asarray([1]), hf.asarray(True)):
        with pytest.raises(TypeError, match="only an integer tensor of shape"):
            [1, 2][wrong]
    for call in (float, int, bool, complex, lambda t: t.item()):
        with pytest.raises(ShapeError, match="needs exactly one element, there are 2"):
            call(tensor(1, 2))


def test_a_scalar_has_no_length():
    with pytest.raises(TypeError, match=r"shape \(\) has no length"):
        len(hf.asarray(1.0))
    with pytest.raises(TypeError, match=r"shape \(\) cannot be iterated"):
        list(hf.asarray(1.0))


@pytest.mark.parametrize("of", [hf.asarray, hf.Variable], ids=["tensor", "Variable"])
def test_what_python_asks_of_a_number_or_an_array(of: Any):
    scalar, matrix = of(2.567), of(np.arange(12, dtype=np.float32).reshape(3, 4))
    with pytest.raises(TypeError, match="cannot be iterated"):
        iter(scalar)  # at once, not at the first element
    assert (math.trunc(scalar), math.trunc(-scalar)) == (2, -2)
    assert (bytes(matrix), bytes(of(7))) == (matrix.numpy().tobytes(), np.int32(7).tobytes())
    assert both(round, scalar).item() == 3.0
    np.testing.assert_allclose(both(lambda x: [round(x, 2), round(x * 1000, -2)], scalar), [2.57, 2600.0], rtol=1e-6)
    assert round(of(7), 2).dtype == hf.int32
    with pytest.raises(ValueError, match="-1 digits of integers"):
        round(of(7), -1)
    quotient, remainder = both(lambda x: divmod(x, 5), matrix)
    np.testing.assert_array_equal([quotient, remainder], np.divmod(matrix.numpy(), np.float32(5)))
    np.testing.assert_array_equal(divmod(5, matrix + 1)[1], 5 % (matrix.numpy() + 1))
    with pytest.raises(TypeError, match="'str'"):
        divmod(matrix, "a")
    np.testing.assert_array_equal(both(lambda x: x[(0, 1), (1, 2)], matrix), [1.0, 6.0])
    assert hf.swapaxes(matrix, 1, -1).shape == (3, 4)
    np.testing.assert_array_equal(hf.diff(matrix, 2), np.diff(matrix.numpy(), 2))


def test_traced_tensors_have_no_value():
    for call, name in (
        (lambda t: t.numpy(), "numpy"), (lambda t: t.item(), "item"), (lambda t: float(t), "float"),
        (lambda t: int(t), "int"), (lambda t: complex(t), "complex"), (lambda t: np.asarray(t), "numpy"),
        (lambda t: t.tolist(), "numpy"), (lambda t: operator.index(t.astype(hf.int32)), "index"),
        (lambda t: t.__dlpack__(), "__dlpack__"),
    ):
        with pytest.raises(TracedValueError, match=f"{name}.*: a traced tensor has no value") as caught:
            hf.compile(lambda t, call=call: call(t * 1.0))(hf.asarray(1.0))
        assert isinstance(caught.value, TypeError)
        assert f"made at {__file__}" in str(caught.value)


def test_tensors_cannot_be_changed():
    t, v = tensor(1, 2), hf.Variable([1.0, 2.0])
    with pytest.raises(MutationError, match=r"t\[0\] = \.\.\.") as caught:
        t[0] = 1.0
    assert "t.at[index].set(value)" in str(caught.value)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(MutationError, match=r"v\.assign\(v\.at\[index\]\.set\(value\)\)"):
        v[0] = 1.0
    with pytest.raises(AttributeError):
        t.shape = (1,)
    with pytest.raises(AttributeError):
        t.anything = 1
    with pytest.raises(AttributeError):
        v.name = "x"


def test_hashing_is_by_identity():
    t, v = tensor(1), hf.Variable(1.0)
    assert {t: 1, v: 2}[t] == 1
    assert len({tensor(1), tensor(1)}) == 2


def test_in_place_operators_make_new_tensors():
    t = u = tensor(1, 2)
    t += 1.0
    assert t.tolist() == [2.0, 3.0]
    assert u.tolist() == [1.0, 2.0]


# -- Variable -----------------------------------------------------------------------------------------------------


def test_what_a_variable_is():
    v = hf.Variable([[1, 2]], dtype=hf.float32, name="w", trainable=False)
    assert (v.shape, v.dtype, v.ndim, v.size) == ((1, 2), np.float32, 2, 2)
    assert (v.name, v.trainable, v.device) == ("w", False, "cpu")
    assert hf.Variable(1.0).name != hf.Variable(1.0).name
    assert (float(hf.Variable(2.0)), int(hf.Variable(2)), bool(hf.Variable(0)), len(v)) == (2.0, 2, False, 1)
    assert f"{hf.Variable(2.5):.1f}" == "2.5"


def test_assignment():
    v = hf.Variable([1.0, 2.0])
    assert v.assign([3, 4]) is v
    assert v.assign_add(1.0) is v
    assert v.assign_sub(tensor(1, 1)).numpy().tolist() == [3.0, 4.0]
    v.assign(np.float32([5, 6]))
    v.assign(hf.Variable([7.0, 8.0]))
    assert v.numpy().tolist() == [7.0, 8.0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [(lambda: tensor(1, 2, 3), ShapeError, r"has shape \(3,\), the Variable \(2,\)\s+got: w: f32\[2\] = f32\[3\]"),
     (lambda: 1.0, ShapeError, r"the value has shape \(\), the Variable \(2,\)"),
     (lambda: np.ones(2), DTypeError, r"the value is float64, the Variable float32[\s\S]*astype\(hf.float32\)"),
     (lambda: hf.asarray([1, 2]), DTypeError, "the value is int32, the Variable float32"),
     (lambda: [[1.0, 2.0]], ShapeError, r"\(1, 2\)"), (lambda: "x", TypeError, "str")],
)
def test_an_assignment_that_does_not_fit_changes_nothing(value: Any, error: Any, text: str, compiled: bool):
    v = hf.Variable([1.0, 2.0], name="w")

    def f():
        v.assign(value())

    with pytest.raises(error, match=text):
        (hf.compile(f) if compiled else f)()
    assert v.numpy().tolist() == [1.0, 2.0]


def test_what_was_read_is_not_changed_by_assigning():
    v = hf.Variable([1.0, 2.0])
    before, view = v.read(), v.numpy()
    v.assign([3.0, 4.0])
    hf.compile(lambda: (v.assign_add(1.0), None)[1])()
    assert before.tolist() == view.tolist() == [1.0, 2.0]


def test_assigning_from_many_threads():
    v = hf.Variable(np.zeros(4, np.float32))

    def assign(number: int):
        for _ in range(50):
            v.assign(np.full(4, number, np.float32))

    threads = [threading.Thread(target=assign, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        assert len(set(v.numpy().tolist())) == 1
        thread.join()


# -- copying and printing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_pickling_tensors(dtype: str):
    t = hf.asarray([[1, 0], [1, 1]], dtype=dtype)
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        back = pickle.loads(pickle.dumps(t, protocol))
        assert type(back) is hf.Tensor
        assert (back.dtype, back.tolist()) == (t.dtype, t.tolist())


def test_pickling_and_copying_variables():
    v = hf.Variable([1.0, 2.0], name="w", trainable=False)
    for back in (pickle.loads(pickle.dumps(v)), copy.deepcopy(v), copy.copy(v)):
        assert (back.name, back.trainable, back.numpy().tolist()) == ("w", False, [1.0, 2.0])
        back.assign([9.0, 9.0])
        assert v.numpy().tolist() == [1.0, 2.0]


def test_copying_structures_keeps_sharing():
    t, v = tensor(1, 2), hf.Variable(1.0)
    found = copy.deepcopy({"t": t, "v": v, "again": v})
    assert found["t"] is t  # immutable
    assert found["v"] is found["again"] is not v
    found = pickle.loads(pickle.dumps([v, v, t, t]))
    assert found[0] is found[1]
    assert found[2] is found[3]


def test_a_copied_variable_has_gradients_of_its_own():
    v = hf.Variable(2.0)
    w = copy.deepcopy(v)
    with hf.GradientTape() as tape:
        y = v * v * w
    assert [g.item() for g in tape.gradient(y, [v, w])] == [8.0, 4.0]


def test_copying_and_pickling_under_a_tape_and_in_a_trace():
    v = hf.Variable(2.0)
    with hf.GradientTape() as tape:
        w = copy.deepcopy(v)
        t = v * 3.0
        u = copy.copy(t)
        p = pickle.loads(pickle.dumps(t))
        y = u * p * w
    assert tape.gradient(y, v).item() == 36.0
    with pytest.raises(TracedValueError):
        hf.compile(lambda t: pickle.dumps(t))(hf.asarray(1.0))


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5, "Tensor(1.5, dtype=float32)"), ([1, 2], "Tensor([1, 2], dtype=int32)"), (True, "Tensor(True, dtype=bool)"),
     ([], "Tensor([], shape=(0,), dtype=float32)"), ([[], []], "Tensor([], shape=(2, 0), dtype=float32)"),
     ([[1.0, 2.0], [3.0, 4.0]], "Tensor([[1., 2.],\n        [3., 4.]], dtype=float32)"),
     (1 + 2j, "Tensor(1.+2.j, dtype=complex64)")],
)
def test_printing_tensors(value: Any, text: str):
    assert repr(hf.asarray(value)) == text


def test_printing_other_things():
    assert repr(hf.asarray([1.0, 2.0], dtype="bfloat16")) == "Tensor([1, 2], dtype=bfloat16)"
    long = repr(hf.asarray(np.zeros(1000, np.float32)))
    assert "..." in long
    assert "shape=(1000,)" in long
    assert repr(hf.Variable(1.0, name="w")) == "Variable(1., dtype=float32, name='w')"
    np.set_printoptions(precision=2)
    try:
        assert repr(hf.asarray(1 / 3)) == "Tensor(0.33, dtype=float32)"
    finally:
        np.set_printoptions(precision=8)


def test_printing_does_not_watch():
    v = hf.Variable(1.0, name="quiet")
    with hf.GradientTape() as tape:
        repr(v)
        str(v)
    assert tape.watched_variables() == ()


# -- specs --------------------------------------------------------------------------------------------------------


def test_specs():
    spec = hf.TensorSpec([None, 3], "bfloat16", name="x")
    assert (str(spec), repr(spec), spec.ndim) == ("bf16[?,3]", "TensorSpec(bf16[?,3], name='x')", 2)
    assert spec == hf.TensorSpec((None, 3), hf.bfloat16)
    assert hash(spec) == hash(hf.TensorSpec((None, 3), hf.bfloat16))
    assert spec != hf.TensorSpec((2, 3), hf.bfloat16)
    assert hf.TensorSpec(()) != "f32[]"
    assert (hf.TensorSpec((2, 3)).size, hf.TensorSpec((2, 3), "float64").nbytes) == (6, 48)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert tensor(1, 2).spec == hf.TensorSpec([2])


@pytest.mark.parametrize("shape", [(-1,), (True,), (2.0,), ("a b",), ("",), (2, -3)])
def test_sizes_that_are_none(shape: Any):
    with pytest.raises((ArgumentTypeError, ArgumentError), match="is not a size"):
        hf.TensorSpec(shape)


# -- devices ------------------------------------------------------------------------------------------------------


def test_device_blocks():
    with hf.device("cpu"):
        t = hf.asarray([1.0, 2.0])
        v = hf.Variable([1.0])
        assert (t.device, v.device, (t * 2.0).device, hf.zeros((2,)).device) == ("cpu",) * 4
        with hf.device("cpu:0"):
            assert hf.asarray(1.0).device == "cpu"
    assert hf.asarray(1.0, device="cpu").device == "cpu"
    assert t.to("cpu").tolist() == [1.0, 2.0]


def test_devices_that_do_not_exist():
    for call in (lambda: hf.asarray(1.0, device="gpu:99"), lambda: tensor(1).to("nonsense"),
                 lambda: hf.device("tpu").__enter__(), lambda: hf.asarray(1.0, device="cpu:x")):
        with pytest.raises(DeviceError, match="there is no") as caught:
            call()
        assert "Devices here: cpu" in str(caught.value)
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a gpu")
def test_a_missing_gpu_says_how_to_get_one():
    with pytest.raises(DeviceError, match=r"jax finds no gpu; it may need pip install 'jax\[cuda13\]'"):
        tensor(1).to("gpu")
    with pytest.raises(DeviceError, match=r"Write 'gpu' for 'cuda'\. jax finds no gpu"):
        tensor(1).to("cuda:0")
    with pytest.raises(DeviceError) as caught:
        tensor(1).to("moon")
    assert "jax finds" not in str(caught.value)


def test_a_device_block_ends_with_an_exception():
    from hybridflow.core.context import CONTEXT

    with pytest.raises(KeyError), hf.device("cpu"):
        raise KeyError
    assert CONTEXT.get() is None


def test_a_device_block_and_a_tape():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape, hf.device("cpu"):
        tape.watch(x)
        y = x * x
        z = hf.compile(lambda x: x * y)(x)
    assert tape.gradient(z, x).item() == 27.0


def test_moving_keeps_the_gradient():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x.to("cpu") * x
    assert tape.gradient(y, x).item() == 6.0


def test_bfloat16_is_ml_dtypes():
    assert hf.bfloat16 == np.dtype(ml_dtypes.bfloat16) == jnp.bfloat16
    assert isinstance(hf.float32, np.dtype)
    assert jax.numpy.float32 == hf.float32
