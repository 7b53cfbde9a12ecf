"""Random programs of integers, with operands at the ends of their range."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import hybridflow as hf

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIZE = 8
Step = Callable[..., Any]

ONE: tuple[Step, ...] = (
    lambda x: x - 1, lambda x: x * x, lambda x: x + x, lambda x: -x, abs, hf.sign, lambda x: ~x, hf.square,
    lambda x: x * 3, lambda x: x // 2, lambda x: x % 3, lambda x: x * 0, lambda x: x * 1, lambda x: x + 0,
    lambda x: x << 1, lambda x: x >> 1, lambda x: x**2, lambda x: x**3, hf.cumulative_sum, hf.sort,
    lambda x: hf.broadcast_to(hf.sum(x, dtype=x.dtype), (SIZE,)), lambda x: hf.broadcast_to(hf.max(x), (SIZE,)),
    lambda x: hf.broadcast_to(hf.prod(x, dtype=x.dtype), (SIZE,)), lambda x: hf.broadcast_to(hf.min(x), (SIZE,)),
    lambda x: hf.maximum(x, 0), lambda x: hf.minimum(x, 1), lambda x: x[::-1], lambda x: hf.where(x < 0, x, x - x),
    lambda x: hf.astype(x < 0, x.dtype), lambda x: hf.astype(x * x < 0, x.dtype), lambda x: hf.astype(x >= 0, x.dtype),
    lambda x: hf.reshape(hf.reshape(x, (2, 4)), (SIZE,)), lambda x: hf.clip(x, 1, 100), lambda x: x - x,
    lambda x: hf.reshape(hf.matrix_transpose(hf.reshape(x, (2, 4))), (SIZE,)),
)
TWO: tuple[Step, ...] = (
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x // y, lambda x, y: x % y,
    lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: x << y, lambda x, y: x >> y,
    hf.maximum, hf.minimum, lambda x, y: hf.where(x < y, x, y), lambda x, y: hf.where(x >= y, x * y, y - x),
    lambda x, y: hf.astype(x == y, x.dtype), lambda x, y: hf.astype(x > y, x.dtype),
    lambda x, y: (x - 1) * (y - 1), lambda x, y: abs((x - 1) * (x - 1)) + y, lambda x, y: (x + y) * (y + x),
    lambda x, y: hf.reshape(hf.reshape(x, (4, 2)) @ hf.reshape(y, (2, 4)), (16,))[:SIZE],
    lambda x, y: hf.broadcast_to(hf.sum(x * y, dtype=x.dtype), (SIZE,)),
)


def at_the_ends(dtype: str, rng: random.Random) -> Any:
    """Return an array whose elements are 0, 1, -1, or at or next to an end of the range, for the most part."""
    limits = np.iinfo(dtype)
    ends = [0, 1, -1, limits.min, limits.max, limits.min + 1, limits.max - 1, limits.max // 2 + 1, rng.randrange(200)]
    whole = 1 << limits.bits
    return np.array([(rng.choice(ends) - limits.min) % whole + limits.min for _ in range(SIZE)], object).astype(dtype)


def integer_program(seed: int) -> tuple[Step, list[Any]]:
    """Return a random program of integers and its arguments."""
    rng = random.Random(seed)
    dtypes = [rng.choice(DTYPES)] * 2 if rng.random() < 0.5 else [rng.choice(DTYPES) for _ in range(2)]
    steps: list[tuple[Any, ...]] = []
    for _ in range(rng.randint(2, 7)):
        kind = rng.choice(("one", "one", "two", "two", "cast"))
        reads = [rng.random(), rng.random()]
        steps.append((kind, rng.choice(DTYPES if kind == "cast" else ONE if kind == "one" else TWO), reads))

    def run(*args: Any) -> list[Any]:
        values = [*args]
        for kind, step, reads in steps:
            x, y = (values[int(read * len(values))] for read in reads)
            if kind == "cast":
                values.append(hf.astype(x, step))
            elif kind == "one":
                values.append(step(x))
            else:
                values.append(step(x, hf.astype(y, x.dtype)))
        return values[2:]

    return run, [at_the_ends(dtype, rng) for dtype in dtypes]
