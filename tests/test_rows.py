"""Rows of a batch: what is said to compute each row from the same row alone does so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from test_bounded import close, is_array, openings, slopes, with_size

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import HybridflowError
from hybridflow.core.op import REGISTRY, No, Sample
from hybridflow.core.padding import Axes, NoRule
from hybridflow.nested.bounded import bounded
from hybridflow.nested.rows import _needed, _Rows, why_rows_mix
from hybridflow.tracing.function import Specs

Function = Callable[..., Any]
COUNT, CHANGED = 5, 2


def graph_of(function: Function, specs: Sequence[Any]) -> Any:
    trace, _, _ = hf.compile(function)._trace_of(Specs(tuple(specs), {}))
    return trace.raw_graph


def rows_of(axes: Axes) -> int | None:
    """Return which axis of a result has the rows."""
    found = [axis for axis, one in enumerate(axes) if one is not None]
    assert len(found) < 2 or any([len(one.sizes) > 1 for one in axes if one is not None]), "rows meet rows"
    return found[0] if found else None


def separate(function: Function, specs: Sequence[Any], arrays: list[Any], opened: dict[int, int]) -> bool:
    """Whether a function is said to keep rows apart; if so, it must.

    Args:
        function: the function.
        specs: with the size ``n`` for the number of rows.
        arrays: arguments with that many rows and one more.
        opened: the axis of the rows in each argument that has them.
    """
    graph = graph_of(function, specs)
    try:
        made = bounded(_needed(graph), graph.dims.hints, {}, partial(_Rows, "n"))
    except NoRule:
        return False
    if any([sum(one is not None for one in axes) > 1 for axes in made.outputs]):
        return True  # each element is of several rows, which no batch has

    def taken(order: Sequence[int]) -> list[Any]:
        given = [x.take(order, axis=opened[at]) if at in opened else x for at, x in enumerate(arrays)]
        with np.errstate(all="ignore"):
            return [np.asarray(one) for one in jax.tree_util.tree_leaves(function(*map(hf.asarray, given)))]

    first = [*range(COUNT)]
    replaced = [COUNT if at == CHANGED else at for at in first]
    before, turned, after = taken(first), taken(first[::-1]), taken(replaced)
    rest = [at for at in first if at != CHANGED]
    for axes, x, y, z in zip(made.outputs, before, turned, after, strict=False):
        axis = rows_of(axes)
        if axis is None:
            close(y, x)
            close(z, x)
            continue
        if len(axes[axis].sizes) > 1:  # pyright: ignore[reportOptionalMemberAccess]
            continue  # its elements are in an order in which the rows are not the first
        inner = x.shape[axis] // COUNT
        parts = [one.reshape(*one.shape[:axis], COUNT, inner, *one.shape[axis + 1 :]) for one in (x, y, z)]
        close(parts[1].take(first[::-1], axis=axis), parts[0])
        close(parts[2].take(rest, axis=axis), parts[0].take(rest, axis=axis))
    return True


def cases(name: str) -> Iterator[tuple[Function, list[Any], list[Any], dict[int, int]]]:
    """Yield an operation's samples and their gradients, with each axis as that of the rows."""
    op = REGISTRY[name]
    for sample in op.samples(np.random.default_rng(0)):  # pyright: ignore[reportCallIssue]
        if not isinstance(sample, Sample):
            continue
        places = [number for number, value in enumerate(sample.args) if is_array(value)]
        arrays = [np.asarray(sample.args[number]) for number in places]

        def call(*xs: Any, sample: Sample = sample, places: Sequence[int] = tuple(places)) -> Any:
            full = [*sample.args]
            for number, x in zip(places, xs, strict=True):
                full[number] = x
            return op.public(*full, **sample.kwargs)  # pyright: ignore[reportOptionalCall]

        axes = [axis for axis, size in enumerate(arrays[0].shape) if size > 1] if arrays else []
        for opened in [one for axis in axes for one in openings(arrays, axis)]:
            specs = [
                hf.TensorSpec([*x.shape[: opened[at]], "n", *x.shape[opened[at] + 1 :]], x.dtype)
                if at in opened else hf.TensorSpec(x.shape, x.dtype)
                for at, x in enumerate(arrays)
            ]
            longer = [with_size(x, opened[at], COUNT + 1) if at in opened else x for at, x in enumerate(arrays)]
            for function in (call, slopes(call, arrays) if sample.gradient else None):
                if function is not None:
                    yield function, specs, longer, opened


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_operations_that_keep_rows_apart(name: str):
    op = REGISTRY[name]
    if isinstance(op.samples, No) or op.public is None:
        pytest.skip("it has no samples")
    for number, (function, specs, arrays, opened) in enumerate(cases(name)):
        if number >= 6:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                separate(function, specs, arrays, opened)
            except HybridflowError:
                continue  # the operation takes these sizes in no form


SPEC = hf.TensorSpec(["n", 12])
APART: dict[str, tuple[Function, Any]] = {
    "branch": (lambda x: hf.cond(hf.asarray(True), lambda: hf.tanh(x), lambda: x), SPEC),
    "scan": (lambda x: hf.scan(lambda c, column: (hf.tanh(c + column), c), x[:, 0], x.T)[0], SPEC),
    "map": (lambda x: hf.vmap(lambda row: hf.sort(row) / hf.sum(row * row))(x), SPEC),
    "transform": (lambda x: hf.real(hf.fft.ifft(hf.fft.fft(x))), SPEC),
    "einsum": (lambda x: hf.einsum("ni,nj->nij", x, x), SPEC),
    "checkpoint": (lambda x: hf.checkpoint(hf.tanh)(x) * 2, SPEC),
    "sequences": (lambda x: hf.softmax(x @ hf.permute_dims(x, (0, 2, 1))) @ x, hf.TensorSpec(["n", "t", 3])),
    "own gradient": (lambda x: hf.grad(lambda y: hf.sum(hf.tanh(y) ** 2))(x), SPEC),
}
MIXED: dict[str, tuple[Function, Any]] = {
    "branch": (lambda x: hf.cond(hf.sum(x) > 0, lambda: hf.tanh(x), lambda: x), SPEC),
    "scan": (lambda x: hf.scan(lambda c, row: (hf.tanh(c + row), c), hf.zeros((12,)), x)[1], SPEC),
    "pairs": (lambda x: (x[:, None] * x[None])[:, 0], SPEC),
    "first": (lambda x: x - x[0], SPEC),
    "triangle": (lambda x: hf.tril(x), SPEC),
    "causal": (lambda x: nn.scaled_dot_product_attention(x[None], hf.ones((1, 4, 12)), hf.ones((1, 4, 12)),
                                                         is_causal=True)[0], SPEC),
    "shifted": (lambda x: hf.concat([hf.ones((1, 12)), x], axis=0)[1:], SPEC),
    "size": (lambda x: x / x.shape[0], SPEC),
    "order": (lambda x: x[::-1], SPEC),
}


@pytest.mark.parametrize("name", APART)
def test_programs_that_keep_rows_apart(name: str):
    function, spec = APART[name]
    assert why_rows_mix(graph_of(function, [spec]), "n") is None
    shape = [COUNT + 1 if size == "n" else 4 if size == "t" else size for size in map(_size, spec.shape)]
    assert separate(function, [spec], [np.random.default_rng(0).standard_normal(shape).astype(np.float32)], {0: 0})


def _size(size: Any) -> Any:
    return size if type(size) is int else str(size)


@pytest.mark.parametrize("name", MIXED)
def test_programs_that_mix_rows(name: str):
    function, spec = MIXED[name]
    assert why_rows_mix(graph_of(function, [spec]), "n")


@pytest.mark.parametrize("name", ["cumulative_sum", "tril"])
def test_a_rule_that_is_silent_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_Rows, "meet", lambda self, x, axis: None)
    with pytest.raises(AssertionError):  # noqa: PT012 (one of several samples fails)
        for function, specs, arrays, opened in cases(name):
            if function.__name__ == "call":
                separate(function, specs, arrays, opened)
