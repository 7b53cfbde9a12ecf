"""The progress display of a run: a bar in a terminal or notebook, else a line from time to time."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Mapping
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

_BETWEEN = 10.0
"""Seconds between lines if there is no terminal."""
_MOST_FIGURES = 6
"""The most figures that are shown."""


class Display:
    """Shows the progress of a run.

    Args:
        shown: whether to show anything.
        console: the console; None for the standard error stream.
    """

    def __init__(self, shown: bool, console: Console | None = None) -> None:
        self._shown = shown
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._bar: _TerminalBar | _NotebookBar | None = None
        self._figures: dict[str, Any] = {}
        self._start = self._last = time.perf_counter()
        self._first = self._step = self._examples = 0
        self._total: int | None = None
        self._line_step: int | None = None
        self.interval = 0.25 if self._console.is_terminal or self._console.is_jupyter else 1.0

    def begin(self, step: int, total: int | None) -> None:
        """Show that a loop begins at a step, and the total number of steps, if it is known."""
        self._first = self._step = step
        self._total = total
        self._start = self._last = time.perf_counter()
        self._examples = 0
        if not self._shown or not (self._console.is_terminal or self._console.is_jupyter):
            return
        self._bar = _NotebookBar(step, total) if self._console.is_jupyter else _TerminalBar(self._console, step, total)

    def figures(self, numbers: Mapping[str, Any]) -> None:
        """Set the figures to show; they replace figures with the same names."""
        self._figures.update(numbers)

    def refresh(self, step: int, epoch: int, examples: int) -> None:
        """Show a step and its figures.

        Args:
            step: the number of steps so far.
            epoch: the number of the epoch.
            examples: the number of examples in the steps of this loop.
        """
        self._step, self._examples = step, examples
        if self._bar is not None:
            self._bar.show(step, self._text(epoch))
        elif self._shown and time.perf_counter() - self._last >= _BETWEEN:
            self._line(epoch)

    def end(self, epoch: int) -> None:
        """Show the last state, and restore the terminal."""
        if self._bar is not None:
            self._bar.show(self._step, self._text(epoch))
            self._bar.stop()
            self._bar = None
        elif self._shown and self._step > self._first:
            self._line(epoch)

    def say(self, text: str) -> None:
        """Show a line of text."""
        if self._shown:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, epoch: int) -> None:
        if self._line_step == self._step:
            return
        self._last, self._line_step = time.perf_counter(), self._step
        total = "" if self._total is None else f"/{self._total}"
        self.say(f"step {self._step}{total}  {self._text(epoch)}")

    def _text(self, epoch: int) -> str:
        seconds = time.perf_counter() - self._start
        steps_made = self._step - self._first
        parts = [f"epoch {epoch}"]
        parts += [f"{name} {_short(value)}" for name, value in [*self._figures.items()][:_MOST_FIGURES]]
        if steps_made and self._examples:
            parts.append(f"{self._examples / seconds:,.0f} examples/s")
        elif steps_made:
            parts.append(f"{steps_made / seconds:,.1f} steps/s")
        if steps_made and self._total is not None and self._total > self._step:
            parts.append(f"{_time(seconds / steps_made * (self._total - self._step))} left")
        return "  ".join(parts)


class _TerminalBar:
    """A bar in a terminal, which is drawn again in its place."""

    def __init__(self, console: Console, step: int, total: int | None) -> None:
        columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        self._bar = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._bar.add_task("", total=total, completed=step, text="")
        self._bar.start()
        _LIVE.add(self._bar)

    def show(self, step: int, text: str) -> None:
        """Show a step, and a text beside it."""
        self._bar.update(self._task, completed=step, text=text)
        self._bar.refresh()

    def stop(self) -> None:
        """Restore the terminal."""
        self._bar.stop()
        _LIVE.discard(self._bar)


class _NotebookBar:
    """A bar in the output of a notebook's cell, which is replaced; those of `rich` need ipywidgets."""

    def __init__(self, step: int, total: int | None) -> None:
        from IPython.display import DisplayHandle

        self._total, self._handle = total, DisplayHandle()
        self._handle.display(self._data(step, ""), raw=True)

    def show(self, step: int, text: str) -> None:
        """Show a step, and a text beside it."""
        self._handle.update(self._data(step, text), raw=True)

    def stop(self) -> None:
        """Leave the last state in the cell."""

    def _data(self, step: int, text: str) -> dict[str, str]:
        total = "?" if self._total is None else self._total
        bar = "" if self._total is None else f'<progress value="{step}" max="{self._total}"></progress> '
        shown = f"{step}/{total} {text}".rstrip()
        return {"text/plain": shown, "text/html": f"{bar}<code>{escape(shown)}</code>"}


_LIVE: weakref.WeakSet[Progress] = weakref.WeakSet()
"""The bars shown in a terminal now; they hide its cursor."""


@atexit.register
def _restore_terminals() -> None:
    for bar in list(_LIVE):
        bar.stop()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
