"""What Python's protocols carry into a compiled function: streams, exceptions, namespaces, what makes arrays."""

from __future__ import annotations

import io
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import TracedValueError


def x() -> hf.Tensor:
    return hf.asarray([1.0, -2.0, 3.0])


@pytest.fixture(autouse=True)
def _traced_anew_is_fine():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.EffectWarning)
        yield


class Counting:
    """An iterator with state, and an end."""

    def __init__(self, end: int) -> None:
        self.at, self.end = 0, end

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> float:
        self.at += 1
        if self.at > self.end:
            raise StopIteration
        return float(self.at)


def iterator_with_default(compiled: Any) -> Any:
    items = Counting(2)
    f = compiled(lambda x: x * next(items, 100.0))
    for _ in range(4):
        yield f(x())
        yield items.at


def stream_read(compiled: Any) -> Any:
    stream = io.StringIO("1\n2\n3\n")
    f = compiled(lambda x: x * float(stream.readline() or 7))
    for _ in range(4):
        yield f(x())
    stream.seek(2)
    yield f(x())


def stream_read_beside_a_float(compiled: Any) -> Any:
    stream, state = io.BytesIO(b"abcdef"), SimpleNamespace(k=2.0)

    @compiled
    def f(x: Any) -> Any:
        return x * state.k + len(stream.read(2)) + stream.tell()

    for k in (2.0, 3.0, 4.0, 5.0):
        state.k = k
        yield f(x())


def names_assigned_by_exec(compiled: Any) -> Any:
    names: dict[str, Any] = {"k": 1.0}

    @compiled
    def f(x: Any) -> Any:
        exec("k = k + 1", names)
        return x * names["k"]

    for _ in range(3):
        yield f(x())
        yield names["k"]


class Scaled:
    """Becomes an array when asked."""

    def __init__(self, k: float) -> None:
        self.k = k

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.ones(3, np.float32) * self.k


def array_protocol(compiled: Any) -> Any:
    scaled = Scaled(2.0)
    f = compiled(lambda x: hf.asarray(scaled) + x)
    yield f(x())
    scaled.k = 3.0
    yield f(x())


def name_handled_in_a_generator(compiled: Any) -> Any:
    space: dict[str, Any] = globals()

    def factors() -> Any:
        try:
            yield name_that_comes_and_goes  # pyright: ignore
        except NameError:
            yield 2.0

    @compiled
    def f(x: Any) -> Any:
        for k in factors():
            x = x * k
        return x

    yield f(x())
    space["name_that_comes_and_goes"] = 5.0
    yield f(x())
    del space["name_that_comes_and_goes"]
    yield f(x())


class Told(Exception):
    """Carries a number."""

    def __init__(self, k: float) -> None:
        super().__init__("told", k)
        self.k = k


def number_in_an_exception(compiled: Any) -> Any:
    state = SimpleNamespace(k=1.0)

    @compiled
    def f(x: Any) -> Any:
        try:
            raise KeyError(state.k * 2.0)
        except KeyError as error:
            raise Told(state.k) from error

    for k in (1.0, 2.0, 3.0, 4.0):
        state.k = k
        with pytest.raises(Told) as caught:
            f(x())
        error = caught.value
        yield type(error.k).__name__, error.k, type(error.args[1]).__name__, error.args
        yield type(error.__cause__.args[0]).__name__, error.__cause__.args  # pyright: ignore


@pytest.mark.parametrize(
    "program",
    [
        iterator_with_default, stream_read, stream_read_beside_a_float, names_assigned_by_exec, array_protocol,
        name_handled_in_a_generator, number_in_an_exception,
    ],
)  # fmt: skip
def test_the_protocol_gives_what_it_gives_eagerly(program: Any) -> None:
    eager, compiled = [list(program(mode)) for mode in (lambda f: f, hf.compile)]
    assert len(eager) == len(compiled)
    for one, other in zip(eager, compiled, strict=True):
        if isinstance(one, hf.Tensor):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
        else:
            assert one == other


@pytest.mark.parametrize("kind", [weakref.WeakKeyDictionary, weakref.WeakSet])
def test_a_traced_tensor_is_not_looked_up_among_weak_tensors(kind: Any) -> None:
    kept, one = kind(), hf.asarray(1.0)
    kept.add(one) if kind is weakref.WeakSet else kept.setdefault(one, 3.0)
    look = (lambda x: x * (2.0 if x in kept else 3.0)) if kind is weakref.WeakSet else lambda x: x * kept.get(x, 1.0)
    with pytest.raises(TracedValueError, match="looked up among tensors that are keys"):
        hf.compile(look)(one)
