"""Random control-flow programs as source text.

A program is one function of the scalars `x` and `y`, an integer `k`, a vector `v`, a matrix `m` and an integer `n`,
and of the Variable `S`; helpers, classes and generators that it uses stand before it. Every run of it ends.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class Kind(NamedTuple):
    """What a program may have.

    Attributes:
        depth: how many blocks are inside each other.
        gradient: no loop whose number of steps XLA would not know, unless all is bounded by `hf.max_iterations`.
        open_sizes: nothing that needs the number of rows while tracing.
        narrow: one statement per block, for programs that are deep.
    """

    depth: int
    gradient: bool = False
    open_sizes: bool = False
    narrow: bool = False


class Place(NamedTuple):
    """Where a statement stands.

    Attributes:
        indent: the white space before it.
        depth: how many levels of blocks there may be from here on.
        loops: how many loops it is in.
        exits: whether it may return, break and continue.
        returns: what a ``return`` gives back, or None in code that must not return.
        variable: whether the Variable may be used, and errors raised.
    """

    indent: str
    depth: int
    loops: int
    exits: bool
    returns: str | None
    variable: bool = True

    def inside(self, **changes: object) -> Place:
        """Return the place of the statements of a block."""
        changes = {"indent": self.indent + "    ", "depth": self.depth - 1, **changes}
        return self._replace(**changes)  # pyright: ignore[reportArgumentType]


RESULT = "x, y, k + c, t"
CONSTRUCTS = [
    "try_finally", "with_block", "match_values", "match_structure", "function", "closure", "comprehension", "append",
    "helper", "generator", "instance", "lambdas", "container", "none", "builtins", "raising", "variable", "deep_walrus",
]


class Writer:
    """Writes a program.

    Attributes:
        text: the source.
        used: the constructs in it.
        raises: how many ``raise`` statements are in it.
    """

    def __init__(self, seed: int, kind: Kind) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self.before: list[str] = []
        self.lines = ["def program(x, y, k, v, m, n):", "    t, c, q = x * 0.5, 0, None"]
        self.lines.append('    s = {"a": x, "b": (y, t)}')
        self.names = 0
        self.raises = 0
        self.used: set[str] = set()
        self.bounded = kind.gradient and self.rng.random() < 0.5
        start = Place("    ", kind.depth, loops=0, exits=True, returns=RESULT)
        if self.bounded:
            self.lines.append("    with hf.max_iterations(8):")
            start = start._replace(indent="        ")
        self.block(start)
        while len(self.lines) < 8:
            self.block(start)
        last = f'x, y + s["a"] * 0.5, k + c, t + s["b"][{self.rng.randint(0, 1)}]'
        early = any(f"return {RESULT}" in line for line in self.lines)
        self.line(start, f"return {RESULT if early else last}")
        self.text = "\n".join([*self.before, *self.lines]) + "\n"

    # -- expressions ------------------------------------------------------------------------------------------

    def number(self) -> str:
        return f"{self.rng.uniform(-1.5, 1.5):.2f}"

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def scalar(self) -> str:
        return self.rng.choice(["x", "y", "t", "x", "y", "t", 's["a"]', 's["b"][0]', 's["b"][1]'])

    def value(self) -> str:
        a, b = self.scalar(), self.scalar()
        return self.rng.choice([
            f"hf.tanh({a}) + {b} * {self.number()}",
            f"{a} * {self.number()} + {self.number()}",
            f"hf.sin({a} * {b})",
            f"({a} if {self.condition()} else {b} * 0.5)",
            f"max({a}, {b}) * 0.9",
            f"min({a}, {b} + {self.number()}) + 0.1",
            f"abs({a}) * 0.8 - 0.2",
            f"{a} - v[{self.rng.randint(0, 2)}]",
            f"{a} + m[{self.rng.randint(0, 1)}, {self.rng.randint(0, 2)}] * 0.5",
        ])

    def condition(self, depth: int = 1) -> str:
        a, b, number = self.scalar(), self.scalar(), self.number()
        simple = [
            f"{a} > {number}", f"{a} < {b}", f"k % 2 == {self.rng.randint(0, 1)}", f"-0.5 < {a} < 1.0",
            f"{a} < {b} <= {number} < 1.4", f"k > {self.rng.randint(-1, 4)}", f"not {a} > {number}",
            f"c > {self.rng.randint(0, 2)}", f"hf.all(v > {number})",
        ]
        if not self.kind.open_sizes:
            simple += [f"any(e > {number} for e in v)", f"{a} in v", f"all([{a} > {number}, k > 0])"]
        if depth and self.rng.random() < 0.35:
            word, last = self.rng.choice(["and", "or"]), self.condition(0)
            if self.rng.random() < 0.3:
                last = f"({last}) {self.rng.choice(['and', 'or'])} ({self.condition(0)})"
            return f"({self.condition(0)}) {word} ({last})"
        return self.rng.choice(simple)

    # -- statements ---------------------------------------------------------------------------------------------

    def line(self, place: Place, text: str) -> None:
        self.lines.append(place.indent + text)

    def block(self, place: Place) -> None:
        for _ in range(1 if self.kind.narrow and place.depth < self.kind.depth else self.rng.randint(1, 3)):
            self.statement(place)

    def statement(self, place: Place) -> None:
        choice = self.rng.random()
        if place.depth <= 0:
            self.simple(place)
        elif choice > 0.82:
            self.construct(place)
        elif choice < (0.1 if self.kind.narrow else 0.25):
            self.simple(place)
        elif choice < 0.52:
            self.branch(place)
        elif choice < 0.74:
            self.loop(place)
        elif place.exits:
            self.leave(place)
        else:
            self.simple(place)

    def leave(self, place: Place) -> None:
        """Write an exit under a condition."""
        kinds = ["break", "continue"] * 2 * bool(place.loops)
        if place.returns is not None:
            kinds.append(f"return {place.returns}")
        if not kinds:
            self.simple(place)
            return
        self.line(place, f"if {self.condition()}:")
        if self.rng.random() < 0.4:
            self.simple(place.inside())
        self.line(place.inside(), self.rng.choice(kinds))

    def simple(self, place: Place) -> None:
        target = self.rng.choice("xyt")
        self.line(place, self.rng.choice([
            f"{target} = {self.value()}",
            f"{target} = {self.value()}",
            f"{target} += {self.number()}",
            f"x, {self.rng.choice('yt')} = {self.value()}, x",
            "k = k + 1",
            "c += 1",
            f"{target} = (w := {self.value()}) * 0.5 + hf.tanh(w)",
        ]))

    def branch(self, place: Place) -> None:
        test = self.condition()
        if self.rng.random() < 0.15:
            test = f"(w := {self.value()}) > {self.number()}" + self.rng.choice(["", f" and {self.condition(0)}"])
        self.line(place, f"if {test}:")
        self.block(place.inside())
        for _ in range(2):
            if self.rng.random() < 0.2:
                self.line(place, f"elif {self.condition()}:")
                self.block(place.inside())
        if self.rng.random() < 0.6:
            self.line(place, "else:")
            self.block(place.inside())

    # -- loops ----------------------------------------------------------------------------------------------------

    def loop(self, place: Place) -> None:
        name, inner = self.name("i"), place.inside(loops=place.loops + 1)
        heads = [self.over_rows, self.over_rows, self.over_python, self.over_matrix, self.counting]
        if self.bounded or not self.kind.gradient:
            heads += [self.up_to_a_tensor, self.while_, self.while_]
        inner = self.rng.choice(heads)(place, inner, name)
        self.block(inner)
        if self.rng.random() < 0.25:
            self.line(place, "else:")
            self.simple(place.inside())

    def over_rows(self, place: Place, inner: Place, name: str) -> Place:
        rows, target, value = self.rng.choice([
            ("v", name, name), ("reversed(v)", name, name), ("v[1:]", name, name),
            ("enumerate(v)", f"{name}, w", f"w * {name}"), ("zip(v, v * 0.5)", f"({name}, w)", f"{name} * w"),
            ("enumerate(zip(v, v))", f"{name}, (e, w)", f"e * w * {name}"),
        ])
        if self.kind.open_sizes and "reversed" in rows:
            rows = "v"
        self.line(place, f"for {target} in {rows}:")
        self.line(inner, f"{self.rng.choice('xyt')} = {self.scalar()} * 0.6 + {value}")
        return inner

    def over_matrix(self, place: Place, inner: Place, name: str) -> Place:
        self.line(place, f"for {name} in m:")
        self.line(inner, f"for e in {name}:")
        if inner.exits and self.rng.random() < 0.4:
            self.line(inner, f"    if {self.condition(0)}:")
            self.line(inner, f"        {self.rng.choice(['break', 'continue'])}")
        self.line(inner, f"    {self.rng.choice('xyt')} = {self.scalar()} * 0.5 + e")
        return inner

    def over_python(self, place: Place, inner: Place, name: str) -> Place:
        rows, value = self.rng.choice([
            (f"range({self.rng.randint(0, 3)})", name), ("(0.5, -0.25)", name),
            ('{"a": 1, "b": 2}.items()', f"{name}[1]"),
        ])
        self.line(place, f"for {name} in {rows}:")
        self.line(inner, f"{self.rng.choice('xyt')} += {value} * 0.1")
        return inner

    def up_to_a_tensor(self, place: Place, inner: Place, name: str) -> Place:
        ends = self.rng.choice(["n", "n + 1", "1, n + 2", "n, 0, -1", "0, n * 2, n + 1"])
        self.line(place, f"for {name} in range({ends}):")
        self.line(inner, f"y = y * 0.7 + v[1] * {name}")
        return inner

    def counting(self, place: Place, inner: Place, name: str) -> Place:
        """Write a loop that counts, which has no exits: with one, its number of steps would not be known."""
        self.line(place, f"{name} = {self.rng.choice(['0', 'hf.asarray(0)'])}")
        self.line(place, f"while {name} < {self.rng.randint(1, 3)}:")
        self.line(inner, f"{name} += 1")
        return inner._replace(exits=False)

    def while_(self, place: Place, inner: Place, name: str) -> Place:
        self.line(place, f"{name} = {self.rng.choice(['n * 0', '0', 'n * 0'])}")
        test, step = f"{name} < 3", f"{name} += 1"
        if self.rng.random() < 0.3:
            test, step = f"({name}w := {name} + 1) < 4", f"{name} = {name}w"
        if self.rng.random() < 0.5:
            test += f" and ({self.condition(0)})"
        if place.exits and self.rng.random() < 0.3:
            self.line(place, "while True:")
            self.line(inner, step if "w" not in step else f"{name} += 1")
            self.line(inner, f"if {name} > 3 or ({self.condition(0)}):")
            self.line(inner, "    break")
            return inner
        self.line(place, f"while {test}:")
        self.line(inner, step)
        return inner

    # -- constructs -----------------------------------------------------------------------------------------------

    def construct(self, place: Place) -> None:
        """Write something else."""
        kind = self.rng.choice(CONSTRUCTS)
        if self.kind.open_sizes and kind in ("comprehension", "append", "builtins"):
            kind = "container"
        if (self.kind.open_sizes or not place.variable) and kind in ("variable", "raising"):
            kind = "none"
        self.used.add(kind)
        getattr(self, kind)(place)

    def try_finally(self, place: Place) -> None:
        self.line(place, "try:")
        self.block(place.inside())
        if self.rng.random() < 0.3:
            self.line(place, "except KeyError:")
            self.simple(place.inside())
        self.line(place, "finally:")
        self.simple(place.inside())

    def with_block(self, place: Place) -> None:
        self.line(place, self.rng.choice(["with suppress(KeyError):", "with suppress(KeyError), suppress(OSError):"]))
        self.block(place.inside())

    def match_values(self, place: Place) -> None:
        self.line(place, "match k:")
        for pattern in ("0", "1 | 2", f"j if {self.condition(0)}", *self.rng.choice([(), ("_",)])):
            self.line(place.inside(), f"case {pattern}:")
            self.block(place.inside(indent=place.indent + "        "))

    def match_structure(self, place: Place) -> None:
        inner = place.inside(indent=place.indent + "        ")
        self.line(place, "match s:")
        self.line(place.inside(), f'case {{"a": e}} if e > {self.number()}:')
        self.line(inner, f"x = e * {self.number()}")
        self.line(place.inside(), 'case {"b": (e, _)}:')
        self.block(inner)

    def function(self, place: Place) -> None:
        name, inner = self.name("f"), place.inside(loops=0, exits=True, returns=RESULT)
        self.line(place, f"def {name}(x, y, k, t, c=0):")
        self.line(inner, "q = None")
        self.line(inner, 's = {"a": x, "b": (y, t)}')
        self.block(inner)
        self.line(inner, f"return {RESULT}")
        self.line(place, f"x, y, k, t = {name}(y, x, k, t * 0.5)")

    def closure(self, place: Place) -> None:
        name, inner = self.name("f"), place.inside()
        changed = self.rng.choice("xyt")
        self.line(place, f"def {name}(d):")
        self.line(inner, f"nonlocal {changed}")
        self.line(inner, f"if d > {self.number()}:")
        self.line(inner, f"    {changed} = {changed} * 0.5 + d * {self.number()}")
        if self.rng.random() < 0.5:
            self.line(inner, f"    return {self.scalar()}")
        self.line(inner, f"return d * {self.number()}")
        self.line(place, f"y = {name}({self.scalar()}) + {name}({self.scalar()}) * 0.5")

    def comprehension(self, place: Place) -> None:
        self.line(place, self.rng.choice([
            f"x = sum([e * {self.number()} for e in v])",
            f"t = sum(e * x if e > {self.number()} else y for e in v) * 0.3",
            "y = max([x * j for j in range(3) if j != 1]) * 0.5",
            "x = {j: e + x for j, e in enumerate(v)}[1]",
            f"t = sum(x * j for j in (0.5, 0.25) if j < 0.4) + (y if {self.condition(0)} else t)",
            "y = hf.sum(hf.stack([hf.tanh(e * y) for e in v]))",
            f"y = sum(e for e in v if e > {self.number()}) + y * 0.5",
            f"t = max((e for e in v if e > {self.number()}), default=t)",
        ]))

    def append(self, place: Place) -> None:
        name, e = self.name("out"), self.name("e")
        inner = place.inside(loops=0, exits=False, returns=None, depth=min(place.depth - 1, 1), variable=False)
        self.line(place, f"{name} = []")
        self.line(place, f"for {e} in v:")
        self.block(inner)
        self.line(inner, f"{name}.append({e} * {self.scalar()})")
        self.line(place, f"t = t + sum({name}) * 0.1")

    def helper(self, place: Place) -> None:
        name, number = self.name("helper"), self.number()
        self.before += [
            f"def {name}(a, b):",
            *self.rng.choice([
                [f"    if a > {number}:", "        return a * 0.5 + b", "    return b"],
                ["    for w in VECTOR:", f"        if w > {number}:", "            return a * w",
                 "        a = a + b * w", "    return a"],
                ["    for j in range(3):", "        if a > b:", "            break", f"        a = a * 0.5 + {number}",
                 "    else:", "        b = a", "    return a - b"],
                [f"    return a * {number} if a > b else {name}_other(b)", f"def {name}_other(a):",
                 f"    return -a if a < {number} else a"],
            ]),
        ]
        self.line(place, f"{self.rng.choice('xyt')} = {name}({self.scalar()}, {self.scalar()})")

    def generator(self, place: Place) -> None:
        name, inner = self.name("f"), place.inside()
        self.line(place, f"def {name}(a):")
        self.line(inner, "for j in range(3):")
        self.line(inner, f"    if a > {self.number()}:")
        self.line(inner, f"        a = a * {self.number()}")
        self.line(inner, "    if j != 1:")
        self.line(inner, "        yield a * j")
        self.line(place, f"t = sum({name}({self.scalar()})) * 0.5")

    def instance(self, place: Place) -> None:
        name, number = self.name("Class"), self.number()
        self.before += [
            f"class {name}:", "    def __init__(self, a):", f"        self.a = a if a > {number} else a * 0.5",
            "    def __call__(self, b):", "        if b > self.a:", "            return self.half",
            "        return self.a * b", "    def __add__(self, b):", "        for w in VECTOR:",
            f"            if w > {number}:", "                b = b + w", "        return self.a + b",
            "    def __getitem__(self, j):", "        return self.a if self.a > 0.0 else self.a * j",
            "    @property", "    def half(self):", f"        return self.a * 0.5 if self.a > {number} else self.a",
            "    def __iter__(self):", "        yield self.a", "        yield self.half",
        ]
        self.line(place, f"o = {name}({self.scalar()})")
        self.line(place, self.rng.choice([f"x = o({self.scalar()})", f"y = o + {self.scalar()}", "t = o[2] * 0.5",
                                          "x = sum(list(o))", "y = o.half"]))

    def lambdas(self, place: Place) -> None:
        name, number = self.name("f"), self.number()
        self.line(place, self.rng.choice([
            f"{name} = lambda a: a if a > {number} else -a * 0.5",
            f"{name} = partial(lambda b, a: a * b if a > {number} else a, 0.7)",
            f"{name} = (lambda g: lambda a: g(g(a)))(lambda a: a * 0.5 if a > y else a + 0.1)",
        ]))
        self.line(place, f"x = {name}({self.scalar()})")

    def container(self, place: Place) -> None:
        self.line(place, f"if {self.condition()}:")
        self.line(place.inside(), f's = {{"a": {self.value()}, "b": (s["b"][1], {self.value()})}}')
        if self.rng.random() < 0.5:
            self.line(place, "else:")
            self.line(place.inside(), 's = {**s, "a": y}')

    def none(self, place: Place) -> None:
        self.line(place, f"if {self.condition()}:")
        self.line(place.inside(), f"q, x = None, {self.value()}")
        self.line(place, f"y = {self.value()} if q is None else x")

    def builtins(self, place: Place) -> None:
        self.line(place, self.rng.choice([
            f"x = sorted([x, y, t])[{self.rng.randint(0, 2)}]",
            "x, y = max([(x, y), (y, t)], key=lambda p: p[0])",
            "t = sum(map(lambda e: e if e > 0.0 else -e, v)) * 0.3",
            "y = list(filter(lambda j: j != 1, range(3)))[1] * x",
            "x = sum(e * w for e, w in zip(v, reversed(v))) * 0.5",
            f"y = min(v) if {self.condition(0)} else max(v)",
        ]))

    def raising(self, place: Place) -> None:
        self.raises += 1
        test = f"{self.scalar()} > 2.0" if self.rng.random() < 0.6 else f"{self.scalar()} > 0.8 and k > 2"
        if self.rng.random() < 0.5:
            self.line(place, f"if {test}:")
            self.line(place.inside(), f'raise ValueError("case {self.raises}")')
        else:
            self.line(place, f'assert not ({test}), "case {self.raises}"')

    def variable(self, place: Place) -> None:
        self.line(place, self.rng.choice([
            f"S.assign({self.value()})", f"S.assign_add({self.scalar()} * 0.1)", "x = x * 0.5 + S",
        ]))

    def deep_walrus(self, place: Place) -> None:
        word = self.rng.choice(["and", "or"])
        self.line(place, f"w = {self.scalar()}")
        self.line(place, f"if {self.condition(0)} {word} (w := {self.value()}) > {self.number()}:")
        self.block(place.inside())
        self.line(place, "t = t * 0.5 + w")
