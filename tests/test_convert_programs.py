"""Random control-flow programs as source text: eager and compiled give the same results and gradients.

By hand, thousands: ``python tests/test_convert_programs.py 0 20000``.
"""

from __future__ import annotations

import linecache
import random
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from modes import same

import hybridflow as hf


class Writer:
    """Writes a program of nested branches, loops, breaks and early returns; every run of it ends."""

    def __init__(self, seed: int, depth: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = ["def program(x, y, k, v, n):", "    t = x * 0.5", "    c = 0"]
        self.names = 0
        self.block("    ", depth, loops=0)
        if self.rng.random() < 0.9:
            self.lines.append("    return x, y, k + c, t")
        else:
            self.lines.append("    return x * t, y, k, t")

    def number(self) -> str:
        return f"{self.rng.uniform(-1.5, 1.5):.2f}"

    def value(self) -> str:
        a, b = self.rng.choice("xyt"), self.rng.choice("xyt")
        return self.rng.choice(
            [f"hf.tanh({a}) + {b} * {self.number()}", f"{a} * {self.number()} + {self.number()}", f"hf.sin({a} * {b})",
             f"({a} if {self.condition()} else {b} * 0.5)", f"max({a}, {b}) * 0.9",
             f"{a} - v[{self.rng.randint(0, 2)}]"]
        )  # fmt: skip

    def condition(self, depth: int = 1) -> str:
        a, b = self.rng.choice("xyt"), self.rng.choice("xyt")
        simple = [f"{a} > {self.number()}", f"{a} < {b}", f"k % 2 == {self.rng.randint(0, 1)}", f"-0.5 < {a} < 1.0",
                  f"k > {self.rng.randint(-1, 4)}", f"not {a} > {self.number()}"]  # fmt: skip
        if depth and self.rng.random() < 0.3:
            return f"({self.condition(0)}) {self.rng.choice(['and', 'or'])} ({self.condition(0)})"
        return self.rng.choice(simple)

    def block(self, indent: str, depth: int, loops: int) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.statement(indent, depth, loops)

    def statement(self, indent: str, depth: int, loops: int) -> None:
        choice = self.rng.random()
        if depth and choice > 0.93:
            self.construct(indent, depth, loops)
            return
        if depth == 0 or choice < 0.3:
            self.simple(indent)
        elif choice < 0.65:
            self.branch(indent, depth, loops)
        elif choice < 0.9:
            self.loop(indent, depth, loops)
        else:
            self.lines.append(f"{indent}if {self.condition()}:")
            kinds = ["return x, y, k, t"] + ["break", "continue"] * 2 * bool(loops)
            if self.rng.random() < 0.4:
                self.simple(indent + "    ")
            self.lines.append(f"{indent}    {self.rng.choice(kinds)}")

    def construct(self, indent: str, depth: int, loops: int) -> None:
        """Write a block of another kind."""
        kind, inner = self.rng.randint(0, 3), indent + "    "
        if kind == 0:
            self.lines.append(f"{indent}try:")
            self.block(inner, depth - 1, loops)
            self.lines.append(f"{indent}finally:")
            self.simple(inner)
        elif kind == 1:
            self.lines.append(f"{indent}with suppress(KeyError):")
            self.block(inner, depth - 1, loops)
        elif kind == 2:
            self.lines.append(f"{indent}match k:")
            for pattern in ("0", "1 | 2", f"m if {self.condition()}"):
                self.lines.append(f"{inner}case {pattern}:")
                self.block(inner + "    ", depth - 1, loops)
        else:
            self.names += 1
            name = f"f{self.names}"
            self.lines += [f"{indent}def {name}(x, y, k, t):", f"{inner}c = 0"]
            self.block(inner, depth - 1, 0)
            self.lines += [f"{inner}return x, y, k + c, t", f"{indent}x, y, k, t = {name}(y, x, k, t * 0.5)"]

    def simple(self, indent: str) -> None:
        kind = self.rng.randint(0, 5)
        target = self.rng.choice("xyt")
        text = [f"{target} = {self.value()}", f"{target} = {self.value()}", f"{target} += {self.number()}",
                f"x, {self.rng.choice('yt')} = {self.value()}, x", "k = k + 1", "c += 1"][kind]  # fmt: skip
        self.lines.append(indent + text)

    def branch(self, indent: str, depth: int, loops: int) -> None:
        self.lines.append(f"{indent}if {self.condition()}:")
        self.block(indent + "    ", depth - 1, loops)
        if self.rng.random() < 0.3:
            self.lines.append(f"{indent}elif {self.condition()}:")
            self.block(indent + "    ", depth - 1, loops)
        if self.rng.random() < 0.6:
            self.lines.append(f"{indent}else:")
            self.block(indent + "    ", depth - 1, loops)

    def loop(self, indent: str, depth: int, loops: int) -> None:
        self.names += 1
        name, inner = f"i{self.names}", indent + "    "
        kind = self.rng.randint(0, 4)
        if kind == 0:
            self.lines.append(f"{indent}for {name} in v:")
            self.lines.append(f"{inner}x = x * 0.7 + {name}")
        elif kind == 1:
            self.lines.append(f"{indent}for {name} in range({self.rng.randint(0, 3)}):")
        elif kind == 2:
            self.lines.append(f"{indent}for {name}, w in enumerate(v):")
            self.lines.append(f"{inner}y = y * 0.5 + w * {name}")
        elif kind == 3:
            self.lines.append(f"{indent}for {name} in range(n):")
            self.lines.append(f"{inner}y = y + v[1] * {name}")
        else:
            self.lines.append(f"{indent}{name} = n * 0")
            test = self.condition(0) if self.rng.random() < 0.5 else "True"
            self.lines.append(f"{indent}while {name} < 3 and {test}:")
            self.lines.append(f"{inner}{name} += 1")
        self.block(inner, depth - 1, loops + 1)
        if self.rng.random() < 0.25:
            self.lines.append(f"{indent}else:")
            self.simple(inner)


def arguments(seed: int) -> list[hf.Tensor]:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1.5, 1.5, 2)
    return [hf.asarray(x), hf.asarray(y), hf.asarray(int(rng.integers(0, 4))), hf.asarray(rng.uniform(-1, 1, 3))]


def check(seed: int, depth: int = 3, calls: int = 2) -> None:
    text = "\n".join(Writer(seed, depth).lines) + "\n"
    names: dict[str, Any] = {"hf": hf, "suppress": suppress}
    name = f"<program {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), names)
    function = names["program"]
    compiled = hf.compile(function)
    try:
        for call in range(calls):
            given = [*arguments(seed * 10 + call), hf.asarray(call * 2)]
            try:
                same(hf_tree(function(*given)), compiled(*given), rtol=1e-9, atol=1e-9)
            except AssertionError:  # some programs amplify rounding without bound: the definition of "the same" decides
                hf.testing.assert_same(function, *given)
    except Exception as error:
        error.add_note(text)
        raise
    finally:
        del linecache.cache[name]


def hf_tree(result: Any) -> Any:
    return tuple([hf.asarray(one) for one in result])


@pytest.mark.parametrize("seed", range(120))
def test_programs(seed: int):
    check(seed, depth=2 + seed % 2)


if __name__ == "__main__":
    wrong = []
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            check(number, depth=2 + number % 4)
        except Exception as problem:
            wrong.append(number)
            print(number, type(problem).__name__, str(problem)[:300].replace("\n", " | "), flush=True)
        if number % 100 == 99:
            print(f"{number + 1 - int(sys.argv[1])} programs, {len(wrong)} differ", flush=True)
    print(f"{len(wrong)} of {int(sys.argv[2]) - int(sys.argv[1])} differ: {wrong[:50]}")
