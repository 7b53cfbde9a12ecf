"""Random small programs for hypothesis: one list of steps that runs on hybridflow and, in part, on jax.

A program is drawn step by step while it runs eagerly, so every step is known to be possible (or to be an error, which
is kept too). Values are referred to by number: inputs first, then what each step made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.dtypes import is_differentiable, kind_of
from hybridflow.core.errors import HybridflowError

SHAPES = [(), (3,), (2, 3), (2, 1), (1, 3), (4, 2, 3), (0, 3)]
DTYPES = ["float32", "float32", "float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool"]
JAX_DTYPES = ["float32", "float32", "float32", "int32", "bool"]


# -- the operations -----------------------------------------------------------------------------------------------

NAMES = [
    "tanh", "sin", "cos", "exp", "expm1", "log1p", "sqrt", "square", "abs", "floor", "maximum", "minimum",
    "where", "sum", "mean", "max", "min", "any", "all", "prod", "reshape", "permute_dims", "broadcast_to",
    "expand_dims", "concat", "stack", "flip", "take", "matmul", "logical_and", "logical_not", "less", "equal",
    "isnan", "zeros_like", "cumulative_sum", "tril",
]
JAX = SimpleNamespace(
    **{name: getattr(jnp, name) for name in NAMES},
    astype=lambda x, dtype: x.astype(dtype),
    relu=jax.nn.relu,
    sigmoid=jax.nn.sigmoid,
    softmax=lambda x: jax.nn.softmax(x, axis=-1),
    logsumexp=lambda x: jax.nn.logsumexp(x, axis=-1),
    scan=jax.lax.scan,
    cond=lambda p, t, f: jax.lax.cond(p, t, f),
)
JAX.abs = lambda x: jnp.where(x == 0, 0, jnp.abs(x))  # jax's own slope at 0 is 0 or 1, as its version has it
HF = SimpleNamespace(
    **{name: getattr(hf, name) for name in [*NAMES, "astype", "scan", "cond"]},
    relu=hf.nn.relu,
    sigmoid=hf.nn.sigmoid,
    softmax=hf.nn.softmax,
    floor_divide=hf.floor_divide,
    remainder=hf.remainder,
)
HF.logsumexp = lambda x: hf.logsumexp(x, axis=-1)


def _scan(F: Any, x: Any) -> Any:
    last, rows = F.scan(lambda c, row: (c * 0.5 + row, F.sin(c) * row), F.zeros_like(x[0]), x)
    return F.concat([rows, last[None]])


UNARY: dict[str, Callable[..., Any]] = {
    "tanh": lambda F, x: F.tanh(x),
    "sin": lambda F, x: F.sin(x),
    "exp": lambda F, x: F.exp(-F.abs(x)),
    "expm1": lambda F, x: F.expm1(F.tanh(x)),
    "log1p": lambda F, x: F.log1p(F.abs(x) + 0.5),
    "sqrt": lambda F, x: F.sqrt(F.square(x) + 1),
    "sigmoid": lambda F, x: F.sigmoid(x),
    "relu": lambda F, x: F.relu(x - 0.1),
    "scale": lambda F, x: 1 - x * 2.5,
    "reciprocal": lambda F, x: 1 / (1.5 + F.cos(x)),
    "floor": lambda F, x: F.floor(x * 3),
    "isnan": lambda F, x: F.isnan(x),
}
ANY_NUMBER: dict[str, Callable[..., Any]] = {
    "negative": lambda F, x: -x,
    "double": lambda F, x: x + x,
    "abs": lambda F, x: abs(x),
    "square": lambda F, x: x * x,
    "positive": lambda F, x: x > 0,
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda F, x, y: x + y,
    "subtract": lambda F, x, y: x - y,
    "multiply": lambda F, x, y: x * y,
    "divide": lambda F, x, y: x / (F.abs(y) + 1),
    "maximum": lambda F, x, y: F.maximum(x, y),
    "minimum": lambda F, x, y: F.minimum(x, y),
    "less": lambda F, x, y: F.less(x, y),
    "equal": lambda F, x, y: F.equal(x, y),
    "where": lambda F, x, y: F.where(x > y, x, y * 2),
    "gate": lambda F, x, y: F.where(F.less(x, y), x * y, x - y),
}
INTEGER: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda F, x, y: F.floor_divide(x, y),
    "remainder": lambda F, x, y: F.remainder(x, y),
    "bits": lambda F, x, y: (x & y) ^ (x | y),
    "shift": lambda F, x, y: x << (y & 7),
    "shift_far": lambda F, x, y: x >> y,
}
BOOLEAN: dict[str, Callable[..., Any]] = {
    "and": lambda F, x, y: F.logical_and(x, y),
    "not": lambda F, x, y: F.logical_not(x) if x.ndim >= y.ndim else F.logical_not(y),
}
REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


@dataclass(frozen=True)
class Step:
    """One operation on earlier values; `run(F, *values)` with what else it needs bound in."""

    name: str
    inputs: tuple[int, ...]
    run: Callable[..., Any]

    def __repr__(self) -> str:
        return f"{self.name}{self.inputs}"


@dataclass
class Program:
    """Inputs, Variables, steps, and the steps that turned out to be errors."""

    inputs: list[np.ndarray[Any, Any]]
    variables: list[np.ndarray[Any, Any]]
    steps: list[Step] = field(default_factory=list)
    errors: list[tuple[int, Step]] = field(default_factory=list)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.inputs)
        variables = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.variables)
        return f"Program(inputs=[{inputs}], variables=[{variables}], steps={self.steps})"

    def outputs(self) -> list[int]:
        """The numbers of the values that no step reads, which are the results."""
        count = len(self.inputs) + len(self.steps)
        used = {i for step in self.steps for i in step.inputs}
        return [i for i in range(len(self.inputs), count) if i not in used]

    def function(self, *, upto: int | None = None, extra: Step | None = None) -> Callable[..., Any]:
        """The program as a function of its inputs, on Variables of its own."""
        state = SimpleNamespace(variables=[hf.Variable(a, name=f"v{i}") for i, a in enumerate(self.variables)])
        steps = self.steps[:upto] + ([extra] if extra else [])
        wanted = self.outputs()

        def program(*inputs: Any) -> Any:
            values = list(map(hf.asarray, inputs))
            for step in steps:
                values.append(step.run(HF, state, *[values[i] for i in step.inputs]))
            return None if upto is not None else [values[i] for i in wanted]

        return program

    def jax_function(self) -> Callable[..., Any]:
        """The program as a jax function."""
        wanted = self.outputs()

        def program(*inputs: Any) -> Any:
            values = list(inputs)
            for step in self.steps:
                values.append(step.run(JAX, None, *[values[i] for i in step.inputs]))
            return [values[i] for i in wanted]

        return program


# -- drawing ------------------------------------------------------------------------------------------------------


def array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, special: bool) -> np.ndarray[Any, Any]:
    """Numbers of a dtype that stay small for a while, or now and then a special one."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        numbers = rng.integers(0 if dtype == "uint8" else -5, 6, shape).astype(dtype)
        rare = rng.choice(np.array([info.min, info.max, info.max - 1, 0], dtype), shape)
    else:
        kind = hf.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        numbers = (rng.standard_normal(shape) * 2).astype(kind)
        rare = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e4, -300.5, 1.0]), shape).astype(kind)
    return np.where(rng.random(shape) < 0.3, rare, numbers) if special else numbers


def bound(run: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """A step that needs no Variables."""
    return lambda F, state, *xs: run(F, *xs, **fixed)


class Drawing:
    """A program that is being drawn."""

    def __init__(self, draw: Any, *, for_jax: bool) -> None:
        self.draw = draw
        self.for_jax = for_jax
        rng = np.random.default_rng(draw(st.integers(0, 2**16), label="numbers"))
        dtypes = JAX_DTYPES if for_jax else DTYPES
        shapes = st.sampled_from(SHAPES[:-1] if for_jax else SHAPES)

        special = not for_jax and draw(st.integers(0, 3)) == 3

        def arrays(count: int) -> list[np.ndarray[Any, Any]]:
            return [array(rng, draw(shapes), draw(st.sampled_from(dtypes)), special=special) for _ in range(count)]

        inputs = [array(rng, draw(shapes), "float32", special=special), *arrays(draw(st.integers(0, 2)))]
        self.program = Program(inputs, [] if for_jax else arrays(draw(st.integers(0, 2))))
        self.state = SimpleNamespace(variables=[hf.Variable(a) for a in self.program.variables])
        self.values = [hf.asarray(a) for a in inputs]

    def one(self, *kinds: str) -> int:
        """The number of a value, of one of the kinds if there is one; recent values first."""
        fitting = [i for i, v in enumerate(self.values) if not kinds or kind_of(v.dtype) in kinds]
        return self.draw(st.sampled_from((fitting or list(range(len(self.values))))[::-1]))

    def partner(self, index: int, *kinds: str) -> int:
        """The number of a value that fits another one."""
        x = self.values[index]

        def fits(y: Any) -> bool:
            if self.for_jax and x.dtype != y.dtype:
                return False
            if kinds and kind_of(y.dtype) not in kinds:
                return False
            return all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))

        # Now and then one that does not: then the step is an error, eager and compiled.
        anything = not self.for_jax and self.draw(st.integers(0, 19)) == 19
        found = [i for i, y in enumerate(self.values) if anything or fits(y)]
        return self.draw(st.sampled_from(found[::-1] or [index]))

    def add(self, step: Step) -> None:
        """Run a step and keep it, as a part of the program or as an error."""
        try:
            value = step.run(HF, self.state, *[self.values[i] for i in step.inputs])
        except HybridflowError:
            assert not self.for_jax, step
            self.program.errors.append((len(self.program.steps), step))
            return
        self.values.append(value)
        self.program.steps.append(step)

    def step(self) -> None:
        """Draw one step."""
        kinds = [self.unary, self.number, self.binary, self.reduction, self.shape, self.index, self.cast, self.join]
        kinds += [self.matrix, self.logic, self.gradient, self.loop]
        if not self.for_jax:
            kinds += [self.integers, self.call, self.branch, self.random]
            if self.program.variables:
                kinds += [self.read, self.assign]
        self.draw(st.sampled_from(kinds))()

    def named(self, table: dict[str, Callable[..., Any]], *inputs: int) -> None:
        name = self.draw(st.sampled_from(sorted(table)))
        self.add(Step(name, inputs, bound(table[name])))

    def unary(self) -> None:
        self.named(UNARY, self.one("float"))

    def number(self) -> None:
        self.named(ANY_NUMBER, self.one("float", "int", "uint"))

    def binary(self) -> None:
        x = self.one("float", "int", "uint")
        self.named(BINARY, x, self.partner(x, "float", "int", "uint"))

    def integers(self) -> None:
        x = self.one("int", "uint")
        self.named(INTEGER, x, self.partner(x, "int", "uint"))

    def logic(self) -> None:
        x = self.one("bool")
        if self.values[x].dtype == np.bool_:
            self.named(BOOLEAN, x, self.partner(x, "bool"))

    def axis(self, x: Any) -> int | None:
        return self.draw(st.sampled_from([None, *range(-x.ndim, x.ndim)]))

    def reduction(self) -> None:
        index = self.one("float", "int", "uint")
        x = self.values[index]
        names = REDUCTIONS[:-1] if self.for_jax else REDUCTIONS
        kind = kind_of(x.dtype)
        if self.for_jax and kind != "float":
            names = ["max", "min"]
        if self.for_jax and 0 in x.shape and kind != "bool":  # there is nothing to choose from
            if kind != "float":
                return
            names = ["sum"]
        if kind == "bool":
            names = ["any", "all"]
        name, keepdims, axis = self.draw(st.sampled_from(names)), self.draw(st.booleans()), self.axis(x)
        self.add(Step(name, (index,), bound(lambda F, x: getattr(F, name)(x, axis=axis, keepdims=keepdims))))

    def matrix(self) -> None:
        index = self.one("float")
        x = self.values[index]
        if not is_differentiable(x.dtype) or not x.ndim:
            return
        choices: dict[str, Callable[..., Any]] = {
            "softmax": lambda F, x: F.softmax(x),
            "logsumexp": lambda F, x: F.logsumexp(x),
        }
        if x.ndim >= 2:
            choices["gram"] = lambda F, x: F.matmul(x, F.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)))
            choices["tril"] = lambda F, x: F.tril(x)
        if x.ndim == 1:
            choices["cumulative_sum"] = lambda F, x: F.cumulative_sum(x)
        if not self.for_jax:
            choices["layer_norm"] = lambda F, x: hf.nn.layer_norm(x)
            choices["argmax"] = lambda F, x: hf.argmax(x, axis=-1)
        self.named(choices, index)

    def shape(self) -> None:
        index = self.one()
        x = self.values[index]
        order = self.draw(st.permutations(range(x.ndim)))
        place = self.draw(st.integers(-x.ndim - 1, x.ndim))
        choices: dict[str, Callable[..., Any]] = {
            "ravel": lambda F, x: F.reshape(x, (-1,)) if x.size else x,
            "permute_dims": lambda F, x: F.permute_dims(x, tuple(order)),
            "expand_dims": lambda F, x: F.expand_dims(x, axis=place),
            "broadcast_to": lambda F, x: F.broadcast_to(x, (2, *x.shape)),
            "flip": lambda F, x: F.flip(x),
        }
        if x.size <= 48:
            self.named(choices, index)

    def index(self) -> None:
        index = self.one()
        x = self.values[index]
        if not x.ndim or not x.shape[0]:
            return
        n = x.shape[0]
        at = self.draw(st.integers(-n, n - 1))
        start, stop = self.draw(st.integers(-n, n)), self.draw(st.one_of(st.none(), st.integers(-n, n + 1)))
        stride = self.draw(st.sampled_from([1, 2, -1]))
        rows = np.array(self.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=4)), np.int32)
        last = self.draw(st.sampled_from([slice(None), slice(None, None, -1), slice(1, None)]))
        choices: dict[str, Callable[..., Any]] = {
            "row": lambda F, x: x[at],
            "rows": lambda F, x: x[start:stop:stride],
            "new": lambda F, x: x[None, ..., last],
            "take": lambda F, x: F.take(x, rows % n, axis=0),
            "gather": lambda F, x: x[rows],
        }
        self.named(choices, index)

    def cast(self) -> None:
        index = self.one()
        if self.for_jax:
            dtype = self.draw(st.sampled_from(["float32", "int32", "bool"]))
            source = self.values[index].dtype
            if source == np.float32 and dtype == "int32":
                return  # what becomes of large numbers is not jax's to say
        else:
            dtype = self.draw(st.sampled_from(["float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool"]))
        self.add(Step(f"astype_{dtype}", (index,), bound(lambda F, x: F.astype(x, dtype))))

    def join(self) -> None:
        first = self.one()
        x = self.values[first]
        alike = [i for i, y in enumerate(self.values) if y.spec == x.spec]
        second = self.draw(st.sampled_from(alike))
        if x.size > 48:
            return
        choices: dict[str, Callable[..., Any]] = {"stack": lambda F, x, y: F.stack([x, y, x], axis=-1)}
        if x.ndim:
            choices["concat"] = lambda F, x, y: F.concat([x, y], axis=-1)
        self.named(choices, first, second)

    def loop(self) -> None:
        index = self.one("float")
        x = self.values[index]
        if is_differentiable(x.dtype) and x.ndim and x.shape[0]:
            self.add(Step("scan", (index,), bound(_scan)))

    def branch(self) -> None:
        index = self.one("float")
        above = self.draw(st.floats(-1, 1, width=32))
        if is_differentiable(self.values[index].dtype):
            self.add(
                Step(
                    "cond",
                    (index,),
                    bound(lambda F, x: F.cond(F.sum(x) > above, lambda: F.sin(x) * 2, lambda: x * x)),
                )
            )

    def gradient(self) -> None:
        """A gradient taken inside the program, by a tape or by jax."""
        index = self.one("float")
        if not is_differentiable(self.values[index].dtype):
            return
        first, second = (self.draw(st.sampled_from(sorted(UNARY.keys() - {"isnan", "floor"}))) for _ in range(2))

        def loss(F: Any, x: Any) -> Any:
            return F.sum(UNARY[second](F, UNARY[first](F, x) * x))

        def run(F: Any, x: Any) -> Any:
            if F is JAX:
                return jax.grad(lambda x: loss(F, x))(x)
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = loss(F, x)
            return tape.gradient(y, x)

        self.add(Step(f"gradient_{first}_{second}", (index,), bound(run)))

    def call(self) -> None:
        """A call of a compiled function."""
        index = self.one("float")
        name = self.draw(st.sampled_from(sorted(UNARY)))
        inner = hf.compile(lambda x, scale=2: UNARY[name](HF, x) * scale, name=f"call_{name}")
        if is_differentiable(self.values[index].dtype) and name != "isnan":
            self.add(Step(f"call_{name}", (index,), bound(lambda F, x: inner(x, scale=3))))

    def random(self) -> None:
        index = self.one("float")
        if self.values[index].dtype == np.float32:
            self.add(Step("random", (index,), bound(lambda F, x: x + hf.random.normal(x.shape) * 0.5)))

    def read(self) -> None:
        which = self.draw(st.integers(0, len(self.program.variables) - 1))
        self.add(Step(f"read_v{which}", (), lambda F, state: state.variables[which] * 1))

    def assign(self) -> None:
        """Assign a value of a Variable's spec to it, or add one to it."""
        which = self.draw(st.integers(0, len(self.program.variables) - 1))
        spec = self.state.variables[which].spec
        fitting = [i for i, v in enumerate(self.values) if v.spec == spec]
        if not fitting or kind_of(spec.dtype) == "bool":
            return
        index = self.draw(st.sampled_from(fitting))
        adding = self.draw(st.booleans())

        def run(F: Any, state: Any, x: Any) -> Any:
            variable = state.variables[which]
            if adding:
                variable.assign_add(x)
            else:
                variable.assign(x)
            return variable.read()

        self.add(Step(f"{'assign_add' if adding else 'assign'}_v{which}", (index,), run))


@st.composite
def programs(draw: Any, *, for_jax: bool = False) -> Program:
    """Programs of up to a dozen steps."""
    drawing = Drawing(draw, for_jax=for_jax)
    for _ in range(draw(st.integers(2, 12))):
        drawing.step()
    if not drawing.program.steps:
        drawing.unary()
    return drawing.program
