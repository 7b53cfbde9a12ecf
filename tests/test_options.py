"""Options take what they say they take: no word, None or list counts as true, no misspelt word as the default."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.op import Op, Sample
from hybridflow.ops import page

_ROWS = np.ones((1, 1, 4), np.float32)
_CALLS = {  # those whose op has no samples of its own, or another signature
    "hf.isin": ([1], [1]), "hf.median": ([1.0, 2.0],), "hf.std": ([1.0, 2.0],), "hf.count_nonzero": ([1],),
    "hf.searchsorted": ([1.0, 2.0], [1.5]), "hf.meshgrid": ([1], [2]), "hf.diff": ([1.0],), "hf.linspace": (0, 1, 3),
    "hf.top_k": ([1.0, 2.0], 1), "hf.astype": ([1.0], "float32"), "hf.print": (),
    "hf.linalg.norm": ([[1.0, 2.0]],), "hf.linalg.matrix_norm": ([[1.0, 2.0]],), "hf.linalg.vector_norm": ([1.0],),
    "hf.linalg.cholesky_solve": (np.eye(2), np.eye(2)), "hf.random.choice": (4, (2,)),
    "hf.nn.dropout": ([1.0, 2.0], 0.5), "hf.nn.moments": ([[1.0, 2.0]],), "hf.nn.gelu": ([1.0],),
    "hf.nn.avg_pool": (_ROWS, (2,)), "hf.nn.max_pool": (_ROWS, (2,)), "hf.nn.conv": (_ROWS, _ROWS[..., :2]),
    "hf.nn.conv_transpose": (_ROWS, _ROWS[..., :2]), "hf.nn.scaled_dot_product_attention": (_ROWS, _ROWS, _ROWS),
    "hf.nn.batch_norm": (np.ones((2, 3), np.float32), np.ones(3), np.ones(3)),
    **{f"hf.fft.{name}": ([1.0, 2.0],) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"hf.fft.{name}": ([[1.0, 2.0]] * 2,) for name in ("fft2", "ifft2", "rfft2", "irfft2")},
    **{f"hf.{name}": ([1.0, 2.0], 0.5) for name in ("quantile", "percentile", "nanquantile")},
    "hf.cov": ([[1.0, 2.0]],), "hf.corrcoef": ([[1.0, 2.0]],),
}


def calls():
    """Yield every public function with options that are flags or words: its path, arguments and those options."""
    for path, (_, function) in page.public_paths().items():
        parameters = inspect.signature(function).parameters.values()
        options = [one for one in parameters if type(one.default) in (bool, str)]
        if not options or path == "hf.print":
            continue
        op = getattr(function, "op", None)
        args, kwargs = _CALLS.get(path, ()), {}
        if not args and isinstance(op, Op):
            sample = next(one for one in op.samples(np.random.default_rng(0)) if isinstance(one, Sample))
            args, kwargs = sample.args, sample.kwargs
        yield pytest.param(function, args, kwargs, options, id=path)


@pytest.mark.parametrize(("function", "args", "kwargs", "options"), list(calls()))
def test_options_refuse_what_they_are_not(function, args, kwargs, options):
    function(*args, **kwargs)
    for option in options:
        wrong = ("no", "False", None, 2, [True]) if type(option.default) is bool else ("sameish", {})
        for value in wrong:
            with pytest.raises((TypeError, ValueError)):
                function(*args, **{**kwargs, option.name: value})


def test_flags_take_numpys_and_whole_numbers():
    x = hf.asarray([[1.0, 2.0]])
    assert hf.sum(x, axis=1, keepdims=np.True_).shape == hf.sum(x, axis=1, keepdims=1).shape == (1, 1)
    with pytest.raises(TypeError, match=r"sum: keepdims='no' is neither True nor False\n  Use keepdims=True or"):
        hf.sum(x, keepdims="no")


def test_gelu_takes_the_words_of_pytorch():
    x = hf.linspace(-3, 3, 50)
    for word, flag in (("none", False), ("tanh", True)):
        assert hf.nn.gelu(x, approximate=word).tolist() == hf.nn.gelu(x, approximate=flag).tolist()
    assert hf.nn.gelu(x, "none").tolist() != hf.nn.gelu(x, "tanh").tolist()
    with pytest.raises(ValueError, match=r"gelu: approximate='erf' is none of 'none', 'tanh'"):
        hf.nn.gelu(x, approximate="erf")


# -- other ways to say it -----------------------------------------------------------------------------------------


def test_to_a_dtype_a_device_or_both():
    def f(x):
        return (x.to(hf.float64), x.to("cpu"), x.to("cpu", hf.int32), x.to(dtype="int8"), x.to(device="cpu"),
                hf.asarray([1]).to(x), x.to("cpu", dtype=hf.float16))

    x = hf.asarray([1.0, 2.0])
    names = ["float64", "float32", "int32", "int8", "float32", "float32", "float16"]
    for value in (x, hf.Variable(x)):
        assert [str(one.dtype) for one in f(value)] == names
    assert [str(one.dtype) for one in hf.compile(f)(x)] == names
    assert x.to(hf.float32) is x
    gradient = hf.grad(lambda x: hf.sum(x.to(hf.float64) * 3))(x)
    assert (str(gradient.dtype), gradient.tolist()) == ("float32", [3.0, 3.0])
    with pytest.raises(TypeError, match=r"to: 0 dtypes and 0 devices(.|\n)*t\.to\(device, dtype\)"):
        x.to()
    with pytest.raises(TypeError, match="to: 2 dtypes and 0 devices"):
        x.to(hf.float32, hf.float64)


def test_sizes_one_by_one():
    assert hf.zeros(2, 3).shape == hf.ones(2, 3).shape == hf.empty(2, 3).shape == hf.zeros((2, 3)).shape == (2, 3)
    with pytest.raises(TypeError, match=r"A dtype is given by keyword: hf\.zeros\(shape, dtype=dtype\)"):
        hf.zeros(3, np.float32)
    assert hf.squeeze(hf.zeros((1, 2, 1))).shape == (2,)
    assert hf.zeros((2, 3)).squeeze().shape == (2, 3)
    assert hf.grad(lambda x: hf.sum(hf.squeeze(x) ** 2))(hf.ones((1, 2, 1))).shape == (1, 2, 1)


@pytest.mark.parametrize(
    ("draw", "args"),
    [
        ("normal", (0.0, 0.02, (3,))), ("normal", (0, 1, (3,))), ("uniform", (0, 1, (3,))),
        ("uniform", (-1.0, 1.0, (3,))), ("truncated_normal", (0.0, 1.0, (3,))), ("laplace", (0.0, 1.0, (3,))),
        ("gumbel", (0, 1, (3,))), ("exponential", (1.0, (3,))), ("lognormal", (0.0, 1.0, (3,))),
    ],
)
def test_draws_say_that_the_shape_comes_first(draw, args):
    for fn in (getattr(hf.random, draw), getattr(hf.random.Generator(0), draw)):
        with pytest.raises(TypeError, match=rf"{draw}: the shape comes first(.|\n)*hf\.random\.{draw}\(shape, \w+="):
            fn(*args)


def test_the_state_of_a_generator_is_a_snapshot_that_can_be_set():
    generator = hf.random.Generator(5)

    def draws():
        start = generator.state
        first = generator.normal((3,))
        generator.state = start
        return first, generator.normal((3,)), start

    start = generator.state
    kept = start.tolist()
    eager = [one.tolist() for one in draws()]
    assert eager[0] == eager[1]
    assert start.tolist() == kept == eager[2]
    generator.state = kept
    assert [one.tolist() for one in hf.compile(draws)()] == eager
    with pytest.raises(ValueError, match=r"the value has shape \(2,\)"):
        generator.state = [1, 2]


# -- what is easily not meant -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "hinge", "sigmoid_cross_entropy"])
def test_a_column_against_a_vector_warns_once_per_line(loss):
    fn = getattr(hf.nn, loss)
    column, vector = hf.zeros((8, 1)), hf.zeros((8,))

    def caught(call):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        return [(one.category, one.filename, str(one.message)) for one in found]

    def cross():
        assert fn(column, vector).shape == (8, 8)

    ((category, file, text),) = caught(lambda: [cross() for _ in range(3)])
    assert (category, file) == (hf.BroadcastWarning, __file__)
    assert text.startswith(f"{loss}: prediction (8, 1) and target (8,) broadcast to (8, 8), larger than both")
    assert len(caught(lambda: hf.compile(lambda: fn(column, vector))())) == 1
    assert not caught(lambda: [fn(column, 0.5), fn(column, hf.zeros((3, 8, 1))), fn(vector, vector)])


def test_an_assignment_says_where_float64_came_from():
    v = hf.Variable([1.0, 2.0])
    scale = np.ones(2)

    def with_array():
        v.assign(v * scale)

    def of_array():
        s = hf.asarray(scale)
        v.assign(v * 2 * s)

    def asked():
        s = v.astype(hf.float64)
        v.assign(s + 1)

    def line(fn, offset):
        return f"test_options.py:{fn.__code__.co_firstlineno + offset}"

    for fn in (with_array, of_array, asked):
        for mode in (fn, hf.compile(fn)):
            with pytest.raises(TypeError, match=f"float64 .*{line(fn, 1)}"):
                mode()
    with pytest.raises(TypeError, match=r"It is a numpy\.ndarray, and those are float64 by default\. Cast it"):
        v.assign(scale)


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("axis", lambda x: hf.sum(x, axis=True)),
        ("axis", lambda x: hf.max(x, axis=(False,))),
        ("axis", lambda x: hf.concat([x, x], axis=np.False_)),
        ("ord", lambda x: hf.linalg.vector_norm(x, ord=True)),
        ("ord", lambda x: hf.linalg.matrix_norm(x, ord=True)),
        ("padding", lambda x: hf.nn.max_pool(x[None, None], 2, padding=True)),
        ("padding", lambda x: hf.nn.avg_pool(x[None, None], 2, padding=(True, False))),
        ("stride", lambda x: hf.nn.max_pool(x[None, None], 2, stride=True)),
    ],
)
def test_true_is_no_number(option, call):
    with pytest.raises(TypeError, match=rf"{option}=(True|False) is no number\n  Write {option}=[01] if"):
        call(hf.ones((4, 4)))
