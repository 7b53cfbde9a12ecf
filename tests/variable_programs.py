"""Random programs with state, as source text: what a function reads and writes besides its arguments.

A program is a function ``step(o, x, y)`` and a list of changes. `o` is a `World`: Variables, some of them under two
names, Python values, containers, tensors kept from earlier calls. Calls and changes take turns; a world that is called
eagerly and one that is called compiled must be the same all the way.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import hybridflow as hf
from hybridflow.core.errors import MutationError, TraceError

REFUSALS = (MutationError, TraceError)


class World:
    """What a program reads and writes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.a = hf.Variable(rng.standard_normal(3).astype(np.float32))
        self.b = self.a if seed % 3 == 0 else hf.Variable(rng.standard_normal(3).astype(np.float32))
        self.n = hf.Variable(seed % 5)
        self.many = [hf.Variable(np.float32(rng.standard_normal())) for _ in range(1 + seed % 3)]
        self.buffer: Any = None
        self.kept: Any = hf.asarray(0.5)
        self.k, self.rate, self.flag, self.t = seed % 4, 0.5, seed % 2 == 0, 0
        self.items = [0.5, 2, 1.5]
        self.table = {"u": 1.5, "v": 2, 1: 0.25}
        self.scale: Callable[[Any], Any] = self.doubled

    def doubled(self, x: Any) -> Any:
        return x * 2.0 + self.rate

    def halved(self, x: Any) -> Any:
        return x * 0.5 - self.k

    def state(self) -> list[Any]:
        """Return everything that can change, as arrays and Python values."""
        found: list[Any] = [one.numpy() for one in (self.a, self.b, self.n, *self.many)]
        found += [one if one is None else hf.asarray(one).numpy() for one in (self.buffer, self.kept)]
        return [*found, self.a is self.b, self.k, self.rate, self.flag, self.t, [*self.items], {**self.table}]


class Stateful(NamedTuple):
    """A program.

    Attributes:
        seed: what it was made from.
        text: the source of the function.
        changes: source of what is done to `o` before each call but the first; None for nothing.
        calls: what each call is given, as source.
    """

    seed: int
    text: str
    changes: tuple[str | None, ...]
    calls: tuple[str, ...]

    def function(self) -> Callable[..., Any]:
        """Return the function."""
        space: dict[str, Any] = {"hf": hf, "np": np}
        name = f"<stateful {self.seed}>"
        # The source is found where Python looks for that of a notebook's cells.
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        exec(compile(self.text, name, "exec"), space)
        return space["step"]


_VALUES = (
    "o.a + 0.0", "o.b * 0.5", "o.many[-1] + x", "o.kept + x", "hf.sum(o.a * x) - o.b", "x * o.rate",
    "x + o.k", "x * o.items[0]",
    "x * o.table['u']", "o.scale(x)", "x - y", "hf.tanh(x) * y", "sum(o.items) * x", "x * len(o.many)",
    "sum(v * 0.5 for v in o.many) + x", "hf.astype(o.n, hf.float32) * x", "x * (2.0 if o.flag else 0.5)",
    "hf.random.normal((3,)) * 0.1 + x", "hf.random.uniform((3,)) - x", "hf.where(x > 0, o.b, y)",
    "x * sum(o.table.values())", "x * getattr(o, 'rate')", "o.doubled(o.a)", "x * min(o.items)",
)
_WRITES = (
    "o.a.assign({v} * 0.5)", "o.b.assign_add({v} * 0.1)", "o.many[0].assign(hf.mean({v}))", "o.n.assign_add(1)",
    "o.a.assign_sub(o.b * 0.1)", "o.buffer.assign({v})",
)
_PYTHON_WRITES = (
    ("o.t += 1", "o.t * 0.1"), ("o.rate *= 0.5", "o.rate"), ("o.flag = not o.flag", "(1 if o.flag else 2)"),
    ("o.items[0] += 1", "o.items[0]"), ("o.table['u'] *= 2", "o.table['u']"), ("o.k -= 1", "x * o.k"),
)
"""Changes of Python state, and reads of it: what no result depends on is changed when a function is traced only."""
_CHANGES = (
    "o.a.assign(np.array([0.3, -0.2, 0.9], np.float32))", "o.b = o.a", "o.b = hf.Variable([1.0, 2.0, -1.0])",
    "o.k += 1",
    "o.rate *= 0.7", "o.rate = -0.0", "o.rate = 1", "o.flag = not o.flag", "o.items.append(1.25)", "o.items[0] = 4.0",
    "o.items = [1, 2.5]", "o.table['u'] = 0.75", "o.table = {'u': True, 'v': 1}", "o.kept = result[0]",
    "o.kept = hf.asarray([0.1, 0.2, 0.3])", "o.many.append(hf.Variable(2.5))", "o.many[0] = o.many[-1]",
    "o.scale = o.halved", "o.scale = lambda x, s=o.k: x * s", "hf.random.seed(7)", "o.n.assign(3)",
    "type(o).doubled = type(o).halved", "del o.items[0]", "o.doubled = o.halved",
)
_CALLS = (
    "x, 0.5", "x, 0.25", "x, 2", "x * 2.0, hf.asarray(0.5)", "x, True",
    "np.asarray([0.5, 1.0, -1.0], np.float32), 1.5",
)


def stateful(seed: int) -> Stateful:
    """Return a program."""
    rng = random.Random(seed)
    lines = ["def step(o, x, y):"]

    def value() -> str:
        first = f"({rng.choice(_VALUES)})"
        return first if rng.random() < 0.4 else f"({first} + ({rng.choice(_VALUES)}) * 0.5)"

    def line(text: str, indent: int = 1) -> None:
        lines.append("    " * indent + text)

    if rng.random() < 0.3:
        line(f"assert hf.sum(o.a) < {rng.uniform(-1, 4):.2f}, 'too large'")
    line("if o.buffer is None:")
    line("o.buffer = hf.Variable([0.0, 0.0, 0.0])", 2)
    line(f"z = {value()}")
    for _ in range(rng.randint(1, 5)):
        kind = rng.random()
        if kind < 0.25:
            line(f"z = z * 0.5 + {value()}")
        elif kind < 0.55:
            line(rng.choice(_WRITES).format(v=value()))
        elif kind < 0.7:
            write, read = rng.choice(_PYTHON_WRITES)
            line(write)
            line(f"z = z + {read}")
        elif kind < 0.85:
            line(f"if {rng.choice(['hf.sum(z) > 0', 'o.flag', 'o.k > 1', 'o.n > 2'])}:")
            line(f"z = z + {value()}", 2)
            if rng.random() < 0.5:
                line(rng.choice(_WRITES).format(v="z"), 2)
            line("else:")
            line("z = z * 0.9", 2)
        else:
            line(f"for i in range({rng.choice(['3', 'o.k + 1', 'o.n % 3'])}):")
            line(f"z = hf.tanh(z) * {rng.uniform(0.2, 1.2):.2f} + i", 2)
            if rng.random() < 0.5:
                line("o.a.assign_add(z * 0.01)", 2)
    line("return z, o.a.read(), o.buffer.read()")
    count = rng.randint(3, 5)
    calls = tuple(rng.choice(_CALLS) for _ in range(count))
    changes = tuple(rng.choice(_CHANGES) if rng.random() < 0.75 else None for _ in range(count))
    return Stateful(seed, "\n".join(lines) + "\n", changes, calls)


def history(program: Stateful, decorate: Callable[[Any], Any]) -> list[Any]:
    """Run a program; return what every call gave or raised, and the world after it."""
    kind = type("World", (World,), {})  # a class of its own, since changes reach it
    o = kind(program.seed)
    hf.random.seed(program.seed)
    step = decorate(program.function())
    x = hf.asarray(np.random.default_rng(program.seed).standard_normal(3).astype(np.float32))
    found: list[Any] = []
    result: Any = (x,)
    for change, call in zip((None, *program.changes[1:]), program.calls, strict=True):
        space = {"o": o, "hf": hf, "np": np, "x": x, "result": result, "step": step}
        if change is not None:
            exec(change, space)
        try:
            result = eval(f"step(o, {call})", space)
            found.append([hf.asarray(one).numpy() for one in result])
        except Exception as error:
            kind = AssertionError if isinstance(error, AssertionError) else type(error)
            found.append((kind, str(error).splitlines()[0]))
            result = (x,)
            if isinstance(error, REFUSALS):
                break  # what compiled code says that it cannot do
        found.append(o.state())
    found.append(hf.random.uniform((2,)).numpy())  # the generator has drawn as often
    return found
