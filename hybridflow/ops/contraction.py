"""Contracting arrays: the order of the pairs, and one pair as a matrix product, in NumPy and in jax."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum

# -- contracting two operands -------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """The plan for contracting two terms: their labels, sorted by their role."""

    batch: str
    left: str
    right: str
    summed: str

    @property
    def result(self) -> str:
        """The labels of the result, in the order in which it comes."""
        return self.batch + self.left + self.right


def pair_up(a: str, b: str, keep: str) -> Pair:
    """Sort the labels of two terms by their role; the labels in `keep` are needed later."""
    shared = [label for label in a if label in b]
    return Pair(
        "".join(label for label in shared if label in keep),
        "".join(label for label in a if label not in b),
        "".join(label for label in b if label not in a),
        "".join(label for label in shared if label not in keep),
    )


def _axes(term: str, labels: str) -> tuple[int, ...]:
    return tuple([term.index(label) for label in labels])


class NumpyPart:
    """The steps of a contraction in NumPy."""

    @staticmethod
    def diagonal(x: Any, first: int, second: int) -> Any:
        """Take the diagonal of two axes; it comes last."""
        return np.diagonal(x, axis1=first, axis2=second)

    @staticmethod
    def total(x: Any, axes: tuple[int, ...]) -> Any:
        """Sum over axes."""
        return add_up(x, axes, False).astype(x.dtype, copy=False)

    @staticmethod
    def transpose(x: Any, axes: tuple[int, ...]) -> Any:
        """Reorder the axes."""
        return np.transpose(x, axes)

    @staticmethod
    def product(a: Any, b: Any, term_a: str, term_b: str, pair: Pair) -> Any:
        """Multiply two operands and sum over the labels that only they have."""
        shape = [*[a.shape[term_a.index(label)] for label in pair.batch + pair.left]]
        shape += [b.shape[term_b.index(label)] for label in pair.right]
        a = np.transpose(a, _axes(term_a, pair.batch + pair.left + pair.summed))
        b = np.transpose(b, _axes(term_b, pair.batch + pair.summed + pair.right))
        batches = len(pair.batch)
        if not pair.summed:
            a = a.reshape((*a.shape, *[1] * len(pair.right)))
            return a * b.reshape((*b.shape[:batches], *[1] * len(pair.left), *b.shape[batches:]))
        inner = int(np.prod(b.shape[batches : batches + len(pair.summed)]))
        batch = b.shape[:batches]
        middle = batches + len(pair.left)
        rows, columns = int(np.prod(shape[batches:middle])), int(np.prod(shape[middle:]))
        product = products.matmul(a.reshape(*batch, rows, inner), b.reshape(*batch, inner, columns))
        return product.reshape(shape)


class LaxPart:
    """The same steps in jax."""

    @staticmethod
    def diagonal(x: Any, first: int, second: int) -> Any:
        """Take the diagonal of two axes; it comes last."""
        moved = [axis for axis in range(x.ndim) if axis not in (first, second)]
        x = lax.transpose(x, (*moved, first, second))
        size = x.shape[-1]
        kept = lax.select(
            lax.broadcast_in_dim(np.eye(size, dtype=bool), x.shape, (x.ndim - 2, x.ndim - 1)), x, lax.full_like(x, 0)
        )
        return lax.reduce_sum(kept, (x.ndim - 1,)).astype(x.dtype)

    @staticmethod
    def total(x: Any, axes: tuple[int, ...]) -> Any:
        """Sum over axes."""
        return float_sum(x, axes) if x.dtype.kind in "fc" else lax.reduce_sum(x, axes)

    @staticmethod
    def transpose(x: Any, axes: tuple[int, ...]) -> Any:
        """Reorder the axes."""
        return lax.transpose(x, axes)

    @staticmethod
    def product(a: Any, b: Any, term_a: str, term_b: str, pair: Pair) -> Any:
        """Multiply two operands and sum over the labels that only they have."""
        if pair.summed:
            contracted = (_axes(term_a, pair.summed), _axes(term_b, pair.summed))
            batch = (_axes(term_a, pair.batch), _axes(term_b, pair.batch))
            return lax.dot_general(a, b, (contracted, batch), precision=SETTINGS.matmul_precision)
        sizes = dict(zip(term_a + term_b, a.shape + b.shape, strict=True))
        shape = tuple([sizes[label] for label in pair.result])
        return lax.mul(*[
            lax.broadcast_in_dim(lax.transpose(x, _axes(term, own)), shape, _axes(pair.result, own))
            for x, term, own in ((a, term_a, pair.batch + pair.left), (b, term_b, pair.batch + pair.right))
        ])


def _single(part: Any, x: Any, term: str, keep: str) -> tuple[Any, str]:
    """Take the diagonals of repeated labels of one operand, and sum over labels that nothing else needs."""
    while len(set(term)) < len(term):
        label = next(label for label in term if term.count(label) > 1)
        first = term.index(label)
        second = term.index(label, first + 1)
        x = part.diagonal(x, first, second)
        term = term[:first] + term[first + 1 : second] + term[second + 1 :] + label
    lone = "".join(label for label in term if label not in keep)
    if lone:
        x = part.total(x, _axes(term, lone))
        term = "".join(label for label in term if label not in lone)
    return x, term


@lru_cache(maxsize=512)
def contraction_path(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return a cheap order of pairwise contractions, as positions in a list to whose end results are appended.

    All orders are tried for up to four operands; for more, the cheapest next pair is taken.
    """
    if len(shapes) <= 2:
        return (tuple(range(len(shapes))),)
    views = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    how = "optimal" if len(shapes) <= 4 else "greedy"
    path = np.einsum_path(subscripts, *views, optimize=how)[0][1:]
    return tuple([tuple(step) for step in path])


_OPEN = 64
"""What stands for one of jax's open sizes where the order of contractions is chosen."""


def contract_arrays(part: Any, subscripts: str, xs: Sequence[Any]) -> Any:
    """Contract arrays pair by pair, by the steps of NumPy or of jax."""
    inputs, result = subscripts.split("->")
    operands = list(zip(xs, inputs.split(","), strict=True))
    shapes = [tuple([size if isinstance(size, int) else _OPEN for size in x.shape]) for x in xs]
    for step in contraction_path(subscripts, tuple(shapes)):
        chosen = [operands[position] for position in step]
        operands = [one for position, one in enumerate(operands) if position not in step]
        while len(chosen) > 1:
            (b, term_b), (a, term_a) = chosen.pop(), chosen.pop()
            keep = result + "".join(term for _, term in operands + chosen)
            a, term_a = _single(part, a, term_a, keep + term_b)
            b, term_b = _single(part, b, term_b, keep + term_a)
            pair = pair_up(term_a, term_b, keep)
            chosen.append((part.product(a, b, term_a, term_b, pair), pair.result))
        operands += chosen
    ((x, term),) = operands
    x, term = _single(part, x, term, result)
    return x if term == result else part.transpose(x, _axes(term, result))
