"""The registry of rows: `row` registers a function that fills in a `Case` with the sides to time."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import numpy as np

OURS = "hybridflow"
T = TypeVar("T")


@dataclass
class Side:
    """One way to do the work of a row.

    Attributes:
        name: the library that does the work.
        call: does the work once; takes the result of `prepare`, if there is a `prepare`.
        prepare: makes the argument of one call, outside the measured time.
        state: returns the parameters that a call changes. It must be cheap: the clock runs until they are computed.
        comparable, comparable_state: convert a result and the state to a form that can be compared between sides. For
            example, torch keeps some weights transposed.
        self_timed: whether `call` returns the seconds that it measured itself, for example for work in another process.
        calls: the largest number of calls in a turn.
        aim: the ratio to reach of hybridflow's time to this side's.
        lowered: returns the lowering of the compiled function, hybridflow's or jax's, for the facts about a program.
    """

    name: str
    call: Callable[..., Any]
    prepare: Callable[[], Any] | None = None
    state: Callable[[], Any] | None = None
    comparable: Callable[[Any], Any] = lambda result: result
    comparable_state: Callable[[Any], Any] = lambda state: state
    self_timed: bool = False
    calls: int = 5000
    aim: float | None = None
    lowered: Callable[[], Any] | None = None

    def run(self) -> Any:
        """Do the work once."""
        return self.call() if self.prepare is None else self.call(self.prepare())


class SkippedRow(Exception):
    """The exception of a row or peer that cannot run here; its text says why."""


@dataclass
class Case:
    """The sides and notes that a row's function fills in.

    Attributes:
        smoke: whether this run only shows that the row works; rows then choose small sizes.
        sides: the sides, hybridflow's first.
        notes: why a peer is missing, and other remarks for the reader.
        flops: the floating-point operations of one run, if the speed is to be compared with a matrix product's.
    """

    smoke: bool
    aims: Mapping[str, float]
    sides: list[Side] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flops: float | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    stack: ExitStack = field(default_factory=ExitStack)

    def size(self, full: T, smoke: T) -> T:
        """Choose a size."""
        return smoke if self.smoke else full

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
        """Draw float32 numbers."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, and leave it after the row has been measured."""
        return self.stack.enter_context(context)

    def skip(self, why: str) -> None:
        """Skip the row.

        Raises:
            SkippedRow: always.
        """
        raise SkippedRow(why)

    def ours(self, call: Callable[..., Any], **options: Any) -> None:
        """Add hybridflow's side; `options` are further attributes of `Side`."""
        self.sides.insert(0, Side(OURS, call, **options))

    def peer(self, name: str, call: Callable[..., Any], **options: Any) -> None:
        """Add a peer's side."""
        self.sides.append(Side(name, call, aim=self.aims.get(name), **options))

    def torch(self, name: str = "torch") -> Callable[[Callable[[Any, Callable[[Any], Any]], Any]], None]:
        """Return a decorator that adds torch's side, made by the decorated function, if torch is installed.

        The decorated function takes the torch module, and a function that puts an array on hybridflow's device. It
        returns the call, or the call and a dict of further attributes of `Side`.
        """

        def decorate(build: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
            if importlib.util.find_spec("torch") is None:
                self.notes.append(f"{name}: torch is not installed (the `bench` extra)")
                return
            import torch

            on_gpu = jax.default_backend() == "gpu"
            if on_gpu and not torch.cuda.is_available():
                self.notes.append(f"{name}: torch cannot use the GPU here")
                return

            torch.backends.cudnn.allow_tf32 = False  # convolutions in float32, as the other sides compute them

            def put(array: Any) -> Any:
                return torch.tensor(array, device="cuda" if on_gpu else "cpu")

            try:
                built = build(torch, put)
            except SkippedRow as skipped:
                self.notes.append(f"{name}: {skipped}")
                return
            call, options = built if isinstance(built, tuple) else (built, {})
            self.peer(name, call, **options)

        return decorate


@dataclass(frozen=True)
class Row:
    """A registered row.

    Attributes:
        name: the function's name, which selects the row.
        group: the module that defines it.
        work: a description of the work, for the table.
        build: fills in a `Case`.
        per: how many units of work one call does.
        unit: the name of a unit.
        aims: the ratio to reach, by peer's name.
        tolerance: how far results may differ, relative to the largest value.
    """

    name: str
    group: str
    work: str
    build: Callable[[Case], None]
    per: int
    unit: str
    aims: Mapping[str, float]
    tolerance: float


ROWS: dict[str, Row] = {}
"""Every row by name, filled by `row`."""


def row(
    work: str, *, per: int = 1, unit: str = "call", aims: Mapping[str, float] | None = None, tolerance: float = 1e-4
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a function as a row; see `Row` for the arguments."""

    def decorate(build: Callable[[Case], None]) -> Callable[[Case], None]:
        name, group = build.__name__, build.__module__.rpartition(".")[2]
        if name in ROWS:
            raise ValueError(f"row {name} is there already, in {ROWS[name].group}")
        ROWS[name] = Row(name, group, work, build, per, unit, aims or {}, tolerance)
        return build

    return decorate


def all_rows() -> list[Row]:
    """Import every module of `rows` and return what they registered."""
    package = importlib.import_module(".rows", __package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return list(ROWS.values())
