"""Random control-flow programs: eager and compiled give the same results, errors, Variables and gradients.

Most compiled programs run by the definition of their ops (`reference`), one in `XLA_EVERY` through XLA.
By hand, thousands: ``python tests/test_convert_programs.py 0 20000``, with ``--xla N`` one in N through XLA.
"""

from __future__ import annotations

import gc
import linecache
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from control_programs import Kind, Writer
from modes import same
from reference import without_xla

import hybridflow as hf

PROGRAMS, ITEMS, XLA_EVERY = 800, 16, 20


def kind_of(seed: int) -> Kind:
    """Return what the program of a seed is like."""
    deep = seed % 10 == 7
    depth = 5 if deep else 3 if seed % 8 == 3 else 2
    return Kind(depth, gradient=seed % 2 == 1, open_sizes=seed % 7 == 5, narrow=deep)


class Program:
    """A program, run eagerly or compiled."""

    def __init__(self, seed: int) -> None:
        self.kind = kind_of(seed)
        self.written = Writer(seed, self.kind)
        self.file = f"<program {seed}>"
        text = self.written.text
        linecache.cache[self.file] = (len(text), None, text.splitlines(True), self.file)
        self.variable = hf.Variable(np.float64(0.5), name="S")
        names: dict[str, Any] = {
            "hf": hf, "suppress": suppress, "partial": partial, "S": self.variable,
            "VECTOR": hf.asarray(np.array([0.3, -0.6])),
        }
        exec(compile(text, self.file, "exec"), names)
        self.function: Callable[..., Any] = names["program"]
        signature = None
        if self.kind.open_sizes:
            spec = hf.TensorSpec
            signature = [spec([], hf.float64)] * 2
            signature += [spec([], hf.int32), spec([None], hf.float64), spec([None, 3], hf.float64), spec([], hf.int32)]
        self.compiled = hf.compile(self.function, input_signature=signature)

    def outcome(self, function: Callable[..., Any], arguments: list[Any], wanted: bool) -> Any:
        """Return a call's results, the Variable after it and the gradients, or its error."""
        self.variable.assign(0.5)
        sources = [arguments[0], arguments[1], arguments[3], arguments[4], self.variable] if wanted else []
        try:
            with hf.GradientTape() if wanted else nullcontext() as tape:
                if tape is not None:
                    tape.watch(sources[:-1])
                results = [hf.asarray(one) for one in function(*arguments)]
                total = results[0] + results[1] * 2.0 + results[3] * 3.0
            gradients = [] if tape is None else tape.gradient(total, sources, unconnected_gradients="zero")
            return [*results, self.variable.read(), *gradients]
        except (ValueError, AssertionError) as error:
            return error


def arguments_of(seed: int, call: int, kind: Kind) -> list[hf.Tensor]:
    rng = np.random.default_rng(seed * 10 + call)
    x, y = rng.uniform(-1.5, 1.5, 2)
    length = 3 + call * kind.open_sizes
    v, m = rng.uniform(-1, 1, length), rng.uniform(-1, 1, (2 + call * kind.open_sizes, 3))
    return [hf.asarray(one) for one in (x, y, np.int32(rng.integers(0, 4)), v, m, np.int32(call * 2))]


def check(seed: int, calls: int = 2) -> None:
    program = Program(seed)
    try:
        for call in range(calls):
            given = arguments_of(seed, call, program.kind)
            compare(program, given, program.kind.gradient and call == calls - 1)
    except Exception as error:
        error.add_note(program.written.text)
        raise
    finally:
        del linecache.cache[program.file]


def compare(program: Program, given: list[Any], gradient: bool) -> None:
    eager = program.outcome(program.function, given, gradient)
    compiled = program.outcome(program.compiled, given, gradient)
    if isinstance(eager, Exception):
        assert isinstance(compiled, type(eager)), (eager, compiled)
        assert program.written.raises > 1 or str(compiled).startswith(str(eager)), (eager, compiled)
        return
    if isinstance(compiled, Exception):
        raise compiled
    try:
        same(eager, compiled, rtol=1e-9, atol=1e-9)
    except AssertionError:  # some programs amplify rounding without bound: the definition of "the same" decides
        program.variable.assign(0.5)
        hf.testing.assert_same(program.function, *given, gradients=gradient)


@contextmanager
def quick_collection() -> Iterator[None]:
    """Keep Python's garbage collector from walking over what was there before, again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("item", range(ITEMS))
def test_programs(item: int):
    with without_xla(), quick_collection():
        for seed in range(item, PROGRAMS, ITEMS):
            if seed % XLA_EVERY:
                check(seed)


@pytest.mark.parametrize("seed", range(0, PROGRAMS, XLA_EVERY))
def test_programs_through_xla(seed: int):
    check(seed)


def main(first: int, last: int, every: int) -> None:
    """Check a range of programs and print which differ."""
    wrong: list[int] = []
    gc.freeze()
    start, gradients = time.process_time(), 0
    for number in range(first, last):
        xla = bool(every) and number % every == 0
        try:
            with nullcontext() if xla else without_xla():
                check(number)
            gradients += kind_of(number).gradient
        except Exception as problem:
            wrong.append(number)
            print(number, "XLA" * xla, type(problem).__name__, str(problem)[:300].replace("\n", " | "), flush=True)
        if number % 100 == 99:
            spent = (time.process_time() - start) * 1e3 / (number + 1 - first)
            print(f"{number + 1 - first} programs, {len(wrong)} differ, {spent:.1f} ms each", flush=True)
    print(f"{len(wrong)} of {last - first} differ ({gradients} with gradients): {wrong[:50]}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]) if "--xla" in sys.argv else 0)
