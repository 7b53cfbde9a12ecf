"""The variables that generated functions share, through closure cells, with the function around them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any, cast

from hybridflow.convert.poison import UNSET


class Cells:
    """The cells of some variables.

    Attributes:
        names: the variables.
    """

    def __init__(self, names: Iterable[str], *functions: Callable[..., Any] | None) -> None:
        cells: dict[str, CellType] = {}
        self.namespace: dict[str, Any] = {}
        for function in functions:
            if function is not None:
                made = cast(FunctionType, function)
                cells.update(zip(made.__code__.co_freevars, made.__closure__ or (), strict=True))
                self.namespace = made.__globals__
        self.all = cells
        self.names = tuple(names)

    def read(self) -> dict[str, Any]:
        """Return the variables' values."""
        values: dict[str, Any] = {}
        for name in self.names:
            cell = self.all.get(name)
            if cell is None:
                values[name] = self.namespace.get(name, UNSET)
                continue
            try:
                values[name] = cell.cell_contents
            except ValueError:
                values[name] = UNSET
        return values

    @contextmanager
    def kept(self) -> Generator[None]:
        """Return a context; an error that leaves it gives the variables the values that they had."""
        before = self.read()
        try:
            yield
        except BaseException:
            self.write(before)
            raise

    def write(self, values: dict[str, Any]) -> None:
        """Set variables."""
        for name, value in values.items():
            cell = self.all.get(name)
            if cell is None:
                if value is UNSET:
                    self.namespace.pop(name, None)
                else:
                    self.namespace[name] = value
            elif value is not UNSET:
                cell.cell_contents = value
            else:
                try:
                    del cell.cell_contents
                except ValueError:
                    continue
