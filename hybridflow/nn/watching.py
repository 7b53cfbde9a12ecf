"""`Module.watch`: statistics of what modules return and of its gradients, kept in Variables call by call."""

from __future__ import annotations

import fnmatch
import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.report import titled_table
from hybridflow.autodiff.requires_grad import register_hook
from hybridflow.core.context import current, is_tracing
from hybridflow.core.dtypes import float32, kind_of
from hybridflow.core.errors import ArgumentError, TraceError, WatchWarning, message
from hybridflow.core.functions import Whole
from hybridflow.core.node import user_place, warn_at
from hybridflow.core.report import Report, plain
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.nn.tree import named
from hybridflow.ops.comparison import equal
from hybridflow.ops.division import square
from hybridflow.ops.elementwise import abs as absolute
from hybridflow.ops.elementwise import astype, stop_gradient
from hybridflow.ops.joining import stack
from hybridflow.ops.reductions import max as largest
from hybridflow.ops.reductions import mean
from hybridflow.ops.reductions import sum as total
from hybridflow.ops.transcendental import sqrt

FIGURES = ("mean", "std", "zeros", "largest")
GRADIENT = "gradient_norm"
DEAD, TINY, HUGE = 0.95, 1e-6, 1e4
"""The share of zeros from which a layer is called dead, and the gradient norms below and above which gradients are
called vanishing and exploding."""
_SHOWN = 8


@dataclass(frozen=True)
class WatchRow:
    """The newest statistics of one module.

    Attributes:
        path: its path; empty for the model itself.
        calls: how often it was called.
        mean, std, zeros, largest: of its last result: mean, standard deviation, share of zeros from 0 to 1, largest
            absolute value; NaN if it was not called.
        gradient_norm: the Euclidean norm of the last gradient with respect to its result; NaN if none was computed.
        remark: what looks wrong: ``dead``, ``vanishing``, ``exploding`` or ``not finite``; empty if nothing does.
    """

    path: str
    calls: int
    mean: float
    std: float
    zeros: float
    largest: float
    gradient_norm: float
    remark: str


class _Series:
    """The last rows of figures, in a Variable that is written in a circle."""

    def __init__(self, name: str, columns: int, history: int) -> None:
        self.values = Variable(np.zeros((history, columns), np.float32), name=f"{name}.values", trainable=False)
        self.count = Variable(np.zeros((), np.int32), name=f"{name}.count", trainable=False)

    def add(self, row: Tensor) -> None:
        """Add a row."""
        place = self.count.read() % self.values.shape[0]
        self.values.assign(self.values.read().at[place].set(row))
        self.count.assign_add(1)

    def read(self) -> np.ndarray[Any, Any]:
        """Return the rows, the oldest first."""
        values, count = self.values.numpy(), self.count.item()
        if count <= len(values):
            return values[:count]
        return np.roll(values, -(count % len(values)), axis=0)


class _Watched:
    """The statistics of one module."""

    def __init__(self, path: str, history: int) -> None:
        self.path = path
        self.results = _Series(f"watch.{path}.result", len(FIGURES), history)
        self.gradients = _Series(f"watch.{path}.gradient", 1, history)

    def result(self, value: Tensor) -> None:
        """Add the figures of a result."""
        x = astype(stop_gradient(value), float32)
        middle = mean(x)
        figures = (middle, sqrt(mean(square(x - middle))), mean(astype(equal(x, 0.0), float32)), largest(absolute(x)))
        self.results.add(stack(figures))

    def gradient(self, gradient: Tensor) -> None:
        """Add the norm of a gradient."""
        x = astype(stop_gradient(gradient), float32)
        self.gradients.add(stack((sqrt(total(square(x))),)))

    def row(self) -> WatchRow:
        """Return the newest figures."""
        results, gradients = self.results.read(), self.gradients.read()
        figures = [float(one) for one in results[-1]] if len(results) else [float("nan")] * len(FIGURES)
        norm = float(gradients[-1, 0]) if len(gradients) else float("nan")
        remark = _remark(figures if len(results) else None, norm if len(gradients) else None)
        named_figures = dict(zip(FIGURES, figures, strict=True))
        return WatchRow(self.path, self.results.count.item(), **named_figures, gradient_norm=norm, remark=remark)


def _remark(figures: list[float] | None, norm: float | None) -> str:
    known = [*(figures or ()), *(() if norm is None else (norm,))]
    if not np.isfinite(known).all():
        return "not finite"
    if figures is not None and figures[FIGURES.index("zeros")] >= DEAD:
        return "dead"
    if norm is not None and norm > HUGE:
        return "exploding"
    return "vanishing" if norm is not None and norm < TINY else ""


class Watch(Report):
    """Statistics of modules' results and gradients over time; `Module.watch` makes it.

    Attributes:
        paths: the paths of what is watched.
    """

    name = "Module.watch"

    def __init__(self, model: Any, pattern: str, history: int) -> None:
        if is_tracing():
            raise TraceError("watch: inside of a compiled function", hint="Watch the model before the call.")
        if history < 1:
            raise ArgumentError(f"watch: history={history}, which is less than 1")
        modules = named(model).modules
        known = [*modules]
        for path, one in modules.items():
            known += [f"{path}.{name}" if path else name for name in _functions_in(one)]
        known.sort(key=_natural)
        matching = [path for path in known if fnmatch.fnmatchcase(path, pattern)]
        if not matching:
            more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
            raise ArgumentError(f"watch: no module matches {pattern!r}",
                                got=", ".join(map(repr, known[:_SHOWN])) + more,
                                hint='Paths are dotted, such as "blocks.0.*"; "" is the model itself.')
        self._watched = {path: _Watched(path, history) for path in matching}
        self._local = {id(one): path for path, one in modules.items()}
        self._model = model  # while it lives, the identities above are its modules'
        self._waiting: weakref.WeakKeyDictionary[Any, list[tuple[str, Tensor]]] = weakref.WeakKeyDictionary()
        self._asked: list[str] = []
        self._without_tape: set[str] = set()  # called in a compiled function where no tape records
        self._told = False  # of them
        SETTINGS.set("observers", (*SETTINGS.observers, self))

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of what is watched."""
        return tuple(self._watched)

    def close(self) -> None:
        """Stop watching; the statistics stay. Closing twice is harmless."""
        SETTINGS.set("observers", tuple([one for one in SETTINGS.observers if one is not self]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is seen ---------------------------------------------------------------------------------------------

    def around(self, module: Any) -> AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        del module
        return nullcontext()

    def result(self, path: str, module: Any, value: Any) -> None:
        """Add the figures of a module's result, and prepare to see its gradient."""
        local = self._local.get(id(_original(module)))
        if local is None:
            return
        own = module._path
        name = path[len(own) :].lstrip(".") if path != own else ""
        watched = self._watched.get(".".join(filter(None, (local, name))))
        tensor = _first_floats(value)
        if watched is None or tensor is None:
            return
        watched.result(tensor)
        if is_tracing() and not current().tapes:
            self._without_tape.add(watched.path)
        for tape in current().tapes:
            self._waiting.setdefault(tape, []).append((watched.path, tensor))
        if tensor.requires_grad:
            register_hook(tensor, watched.gradient)

    def asked(self, tape: Any) -> list[Any]:
        """Return the results that were computed under a tape."""
        waiting = self._waiting.pop(tape, [])
        if not waiting and self._without_tape and not self._told and not is_tracing():
            paths = ", ".join(map(repr, sorted(self._without_tape, key=_natural)[:_SHOWN]))
            self._told = True
            text = message(
                "watch: gradients with respect to what modules return are not seen, since a compiled function calls "
                "the modules and the tape is outside of it", got=paths,
                hint="Take the gradient in the compiled function, next to the call of the model.",
            )
            warn_at(user_place(), text, WatchWarning)
        self._asked = [path for path, _ in waiting]
        return [tensor for _, tensor in waiting]

    def answered(self, gradients: list[Any]) -> None:
        """Add the norms of gradients."""
        for path, gradient in zip(self._asked, gradients, strict=True):
            if gradient is not None:
                self._watched[path].gradient(gradient)

    # -- what was seen --------------------------------------------------------------------------------------------

    def rows(self) -> list[WatchRow]:
        """Return the newest statistics, a row per module."""
        return [one.row() for one in self._watched.values()]

    def history(self, path: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return a module's statistics over time, the oldest first.

        Args:
            path: its path.

        Returns:
            Arrays of ``mean``, ``std``, ``zeros`` and ``largest``, one number per call, and of ``gradient_norm``.

        Raises:
            ArgumentError: it is not watched.
        """
        if path not in self._watched:
            raise ArgumentError(f"watch: {path!r} is not watched",
                                hint=f"Watched are {', '.join(map(repr, self._watched))}.")
        one = self._watched[path]
        results = one.results.read()
        figures = {name: results[:, column] for column, name in enumerate(FIGURES)}
        return {**figures, GRADIENT: one.gradients.read()[:, 0]}

    def write(self, writer: Any, step: int) -> None:
        """Write the newest statistics for TensorBoard, as ``watch/PATH/mean`` and so on.

        Args:
            writer: a `hf.summary.Writer`.
            step: the number of the step.
        """
        for row in self.rows():
            figures = {name: getattr(row, name) for name in (*FIGURES, GRADIENT)}
            for name, value in figures.items():
                if not np.isnan(value):
                    writer.scalar(f"watch/{row.path or 'model'}/{name}", value, step)

    def table(self) -> Table:
        """Return the newest statistics as a table for `rich`."""
        table = titled_table("what the modules returned last")
        for title in ("module", "calls", "mean", "std", "zeros", "largest", "gradient norm", ""):
            table.add_column(title, justify="left" if title in ("module", "") else "right")
        for row in self.rows():
            numbers = [_number(value) for value in (row.mean, row.std)]
            share = "" if np.isnan(row.zeros) else f"{row.zeros:.1%}"
            rest = [_number(value) for value in (row.largest, row.gradient_norm)]
            table.add_row(*map(Text, (row.path or ".", str(row.calls), *numbers, share, *rest, row.remark)))
        return table

    def parts(self) -> list[Table]:
        """Return the table."""
        return [self.table()]

    def to_dict(self) -> dict[str, Any]:
        """Return the newest statistics as plain values."""
        return {"rows": plain(self.rows())}


def _functions_in(module: Any) -> list[str]:
    """Return the names of the functions that a module calls by their positions, as `Sequential` does."""
    own = vars(module)
    return [name for name, one in own.items() if name.isdecimal() and callable(one) and not isinstance(one, Whole)]


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``10`` behind ``9``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split(".")]


def _original(module: Any) -> Any:
    """Return the module that a copy with other parameters stands for, as in `hf.grad`; others themselves."""
    copied = getattr(module, "_copied", None)
    if copied is None:
        return module
    return next((one.origin() for one in copied.plan.modules if one.path == module._path), module)


def _first_floats(value: Any) -> Tensor | None:
    for leaf in jax.tree_util.tree_leaves(value):
        if isinstance(leaf, Tensor) and kind_of(leaf.dtype) == "float" and leaf.size:
            return leaf
    return None


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4g}"
