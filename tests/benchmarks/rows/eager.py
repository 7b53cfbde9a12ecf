"""Single eager operations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, row


def on_host() -> bool:
    """Return whether hybridflow's values live on the host, so that NumPy is a peer."""
    return jax.default_backend() == "cpu"


ADDITIONS = 100


def adding(a: Any, b: Any) -> Callable[[], Any]:
    """Return a function that adds in a loop, as `timeit` does, so that the cost of calling it does not matter."""

    def call() -> Any:
        c = None
        for _ in range(ADDITIONS):
            c = a + b
        return c

    return call


@row("a + b, 64 floats", per=ADDITIONS, unit="op", aims={"torch": 0.85})
def add(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    case.ours(adding(hf.asarray(a), hf.asarray(b)))
    if on_host():
        case.peer("numpy", adding(a, b))
    case.peer("jax", adding(jnp.asarray(a), jnp.asarray(b)))
    case.torch()(lambda torch, put: adding(put(a), put(b)))


@row("a + b, 64 floats, recorded for a gradient", per=ADDITIONS, unit="op", aims={"torch": 0.85})
def add_recorded(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    x, y = hf.asarray(a), hf.asarray(b)
    case.enter(hf.GradientTape()).watch(x)
    case.ours(adding(x, y))
    case.torch()(lambda torch, put: adding(put(a).requires_grad_(), put(b)))


@row("chain of 20 x (tanh, mul), 64 floats, forward + backward", per=40, unit="op", aims={"torch": 0.65})
def chain(case: Case) -> None:
    a, b = case.normal(64), case.normal(64)
    x, y = hf.asarray(a), hf.asarray(b)

    def ours() -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            h = x
            for _ in range(20):
                h = hf.tanh(h) * y
        return tape.gradient(h, x)

    case.ours(ours)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        tx, ty, ones = put(a).requires_grad_(), put(b), put(np.ones_like(a))

        def theirs() -> Any:
            h = tx
            for _ in range(20):
                h = torch.tanh(h) * ty
            return torch.autograd.grad(h, tx, ones)

        return theirs


@row("chain of 20 x (tanh, mul), 64 floats, forward + .backward()", per=40, unit="op", aims={"torch": 1.0})
def chain_backward(case: Case) -> None:
    a, b, ones = case.normal(64), case.normal(64), np.ones(64, np.float32)
    x, y, seed = hf.tensor(a, requires_grad=True), hf.asarray(b), hf.asarray(ones)

    def ours() -> Any:
        h = x
        for _ in range(20):
            h = hf.tanh(h) * y
        h.backward(seed)
        return x.grad

    case.ours(ours)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        tx, ty, start = put(a).requires_grad_(), put(b), put(ones)

        def theirs() -> Any:
            h = tx
            for _ in range(20):
                h = torch.tanh(h) * ty
            h.backward(start)
            return tx.grad

        return theirs


def compared(
    case: Case, arrays: list[Any], ours: Any, jax_function: Any, torch_function: Any, numpy: Any = None
) -> None:
    """Fill in a row that times one function of arrays; `torch_function` takes the torch module first."""
    tensors = [hf.asarray(a) for a in arrays]
    case.ours(lambda: ours(*tensors))
    if numpy is not None and on_host():
        case.peer("numpy", lambda: numpy(*arrays))
    device = [jnp.asarray(a) for a in arrays]
    case.peer("jax", lambda: jax_function(*device))

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        theirs = [put(a) for a in arrays]
        return lambda: torch_function(torch, *theirs)


@row("matmul, 64 x 64", aims={"torch": 1.0})
def matmul(case: Case) -> None:
    compared(
        case,
        [case.normal(64, 64), case.normal(64, 64)],
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        lambda torch, x, y: x @ y,
        lambda x, y: x @ y,
    )


@row("softmax, 64 x 64")
def softmax(case: Case) -> None:
    compared(case, [case.normal(64, 64)], hf.nn.softmax, jax.nn.softmax, lambda torch, x: torch.softmax(x, -1))


def jax_layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Normalise over the last axis, in the usual style of jax code."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


@row("layer_norm, 64 x 128")
def layer_norm(case: Case) -> None:
    compared(
        case,
        [case.normal(64, 128), case.normal(128), case.normal(128)],
        hf.nn.layer_norm,
        jax.jit(jax_layer_norm),
        lambda torch, x, scale, shift: torch.nn.functional.layer_norm(x, (128,), scale, shift),
    )


def million(case: Case) -> np.ndarray[Any, Any]:
    """Draw a million floats."""
    return case.normal(case.size(1_000_000, 1000))


@row("multiply, 1M floats", aims={"torch": 1.3})
def multiply_1m(case: Case) -> None:
    arrays = [million(case), million(case)]
    compared(case, arrays, lambda x, y: x * y, lambda x, y: x * y, lambda torch, x, y: x * y, lambda x, y: x * y)


@row("exp, 1M floats", aims={"torch": 1.3})
def exp_1m(case: Case) -> None:
    compared(case, [million(case)], hf.exp, jnp.exp, lambda torch, x: torch.exp(x), np.exp)


@row("tanh, 1M floats", aims={"torch": 1.3})
def tanh_1m(case: Case) -> None:
    compared(case, [million(case)], hf.tanh, jnp.tanh, lambda torch, x: torch.tanh(x), np.tanh)


@row("log, 1M floats", aims={"torch": 1.3})
def log_1m(case: Case) -> None:
    arrays = [np.abs(million(case)) + 0.1]
    compared(case, arrays, hf.log, jnp.log, lambda torch, x: torch.log(x), np.log)


@row("sum over the columns of 1000 x 1000", aims={"torch": 1.3})
def sum_columns_1m(case: Case) -> None:
    size = case.size(1000, 30)
    compared(
        case,
        [case.normal(size, size)],
        lambda x: hf.sum(x, axis=0),
        lambda x: jnp.sum(x, axis=0),
        lambda torch, x: torch.sum(x, 0),
        lambda x: np.sum(x, axis=0),
    )


@row("sum, 1M floats", aims={"torch": 1.3})
def sum_1m(case: Case) -> None:
    compared(case, [million(case)], hf.sum, jnp.sum, lambda torch, x: torch.sum(x), np.sum)


@row("max over the rows of 1000 x 1000", aims={"torch": 1.3})
def max_1m(case: Case) -> None:
    size = case.size(1000, 30)
    compared(
        case,
        [case.normal(size, size)],
        lambda x: hf.max(x, axis=1),
        lambda x: jnp.max(x, axis=1),
        lambda torch, x: torch.amax(x, 1),
        lambda x: np.max(x, axis=1),
    )


def first_calls(case: Case, ours: Any, theirs: Any, torch_function: Any) -> None:
    """Fill in a row in which every call has a new shape."""

    def fresh(convert: Callable[[Any], Any]) -> dict[str, Any]:
        numbers = count()

        def prepare() -> Any:
            more, less = divmod(next(numbers), 16)
            shape = 32 + less, 48 + more
            return convert(np.linspace(-1, 1, shape[0] * shape[1], dtype=np.float32).reshape(shape))

        return {"prepare": prepare, "calls": 4}

    case.ours(ours, **fresh(hf.asarray))
    case.peer("jax", theirs, **fresh(jnp.asarray))

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        return lambda x: torch_function(torch, x), fresh(put)


@row("softmax, first call on a shape")
def softmax_first(case: Case) -> None:
    first_calls(case, hf.nn.softmax, jax.nn.softmax, lambda torch, x: torch.softmax(x, -1))


@row("matmul, first call on a shape")
def matmul_first(case: Case) -> None:
    first_calls(case, lambda x: x @ x.mT, lambda x: x @ x.T, lambda torch, x: x @ x.T)


@row("gelu, first call on a shape")
def gelu_first(case: Case) -> None:
    first_calls(
        case,
        lambda x: hf.nn.gelu(x),
        lambda x: jax.nn.gelu(x, approximate=False),
        lambda torch, x: torch.nn.functional.gelu(x),
    )
