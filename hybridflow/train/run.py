"""`Run`: a loop over data whose position, log and state can be resumed."""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from html import escape
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hybridflow.core.context import is_tracing
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, LayoutError, TraceError
from hybridflow.core.mesh import Mesh
from hybridflow.core.processes.member import member
from hybridflow.core.variable import Variable
from hybridflow.data.prefetch import Prefetched
from hybridflow.distribute.processes import process_index
from hybridflow.ops.random import default_generator
from hybridflow.saving.checkpoints import Checkpoint, Checkpoints
from hybridflow.saving.values import fill, flat
from hybridflow.train.activity import Activity
from hybridflow.train.inputs import require_iterable
from hybridflow.train.records import Records, known_numbers, larger_is_better


class Run:
    """A run of training steps: its loop, its log and its checkpoints.

    With a directory, a new `Run` resumes from the newest whole checkpoint there: its weights, moments, data position,
    random state and step. On the same devices, a run that was killed at any moment and started again ends with the same
    bytes as a run that was not. This includes numbers from `hf.random`'s default generator, and from generators among
    `variables`. It does not include numbers that the program draws from NumPy's or Python's generators.

    Ctrl-C in a loop of `steps` lets the present step finish, writes a checkpoint, and is raised then. A second Ctrl-C
    is raised at once. SIGTERM does the same and ends the program with exit code 143. Of several processes (see
    `hf.distribute.initialize`), all stop after the same step, each writes its part of checkpoints, and process 0 alone
    shows the progress and writes the log.

    Args:
        directory: the directory of the checkpoints and the log; None for neither.
        model: the module to train; to resume it, the sizes of its parameters must be known.
        optimizer: its optimizer.
        data: the data that `steps` iterates over in each epoch: `hf.data.Batches`, or any iterable. If it has
            ``state()`` and ``restore()``, these resume it. Otherwise a resumed run skips the items that the epoch has
            already yielded, which is exact if every epoch has the same order.
        metrics: metrics that the steps update, in any nesting.
        loss_scale: a `hf.LossScale`.
        variables: anything else to resume: Variables, `hf.random.Generator`, `hf.optim.EMA`, in any nesting.
        resume: False raises an error if the directory has checkpoints.
        tensorboard: whether `log` writes for TensorBoard too; this needs the `tensorboard` package.
        mesh: the mesh that the steps run on: every Variable of the run that has a layout must lie there. A run may be
            resumed on a mesh of other sizes.
        progress: whether to show steps, figures and the remaining time on the standard error stream: a bar in a
            terminal or notebook, else a line every ten seconds.

    Raises:
        ArgumentError: the checkpoint is of another model or optimizer. Nothing has changed then.
        LayoutError: a Variable lies on another mesh.
        ArgumentTypeError: `mesh` is no mesh.

    Example:
        >>> import tempfile
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> def train(steps, directory):
        ...     w = hf.Variable([0.0, 0.0], name="w")
        ...     optimizer = hf.optim.Adam([w], rate=0.1)
        ...     data = hf.data.Batches(np.eye(2, dtype=np.float32), 1, shuffle=True, seed=0)
        ...     run = hf.train.Run(directory, optimizer=optimizer, data=data, variables=[w], progress=False)
        ...     for x in run.steps(steps):
        ...         with hf.GradientTape() as tape:
        ...             loss = hf.mean((x @ w - 1) ** 2)
        ...         optimizer.update(tape.gradient(loss, [w]))
        ...         run.log(loss=loss)
        ...     return w
        >>> with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        ...     straight = train(10, a)
        ...     _ = train(4, b)
        ...     resumed = train(10, b)
        >>> bool(hf.all(straight == resumed))
        True
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        model: Any = None,
        optimizer: Any = None,
        data: Any = None,
        metrics: Any = None,
        loss_scale: Any = None,
        variables: Any = None,
        resume: bool = True,
        tensorboard: bool = False,
        progress: bool = True,
        mesh: Mesh | None = None,
    ) -> None:
        parts = {
            "model": model, "optimizer": optimizer, "metrics": metrics, "loss_scale": loss_scale,
            "variables": variables,
        }
        self._parts = {name: part for name, part in parts.items() if part is not None}
        if mesh is not None:
            _require_there(self._parts, mesh)
        self._data = None if data is None else require_iterable("Run", data)
        self.directory = None if directory is None else Path(directory)
        if tensorboard and self.directory is None:
            raise ArgumentError("Run: tensorboard=True takes a directory", hint='Give one: Run("runs/a", ...).')
        self.step = 0
        self.epoch = 0
        self.state: dict[str, Any] = {}
        self._in_epoch = 0
        self._where = _state_of(self._data)
        self._position: Any = None
        self._source: Iterator[Any] | None = None
        self._running: dict[str, Any] = {}
        self._stopped = self._loops = False
        self._elapsed = 0.0
        self._since = self._due = time.perf_counter()
        self._saved_at: int | None = None
        own = self.directory if process_index() == 0 else None  # of several processes, one logs
        self._display = Display(progress and process_index() == 0)
        self._records = Records(own, tensorboard and own is not None, self._display.figures)
        self._interrupts = Interrupts(self._notice)
        self._activity = Activity(own)
        self._checkpoints = None if self.directory is None else Checkpoints(self.directory)
        newest = None if self._checkpoints is None else self._checkpoints.newest(self._everything())
        self._require_same_step(newest)
        if newest is not None:
            self._take_up(newest, resume)
        else:
            self._records.restore({}, 0)  # the log may be of a run that was killed before its first checkpoint

    # -- resuming -------------------------------------------------------------------------------------------------

    def _everything(self) -> dict[str, Any]:
        return {**self._parts, "random": default_generator()}

    def _take_up(self, newest: Checkpoint, resume: bool) -> None:
        if not resume:
            raise ArgumentError(
                f"Run: {str(self.directory)!r} has a checkpoint of step {newest.step}, and resume=False",
                hint="Choose another directory, or remove what is there."
            )
        state = newest.state
        self._require_same_data(state["data"])
        fill(self._everything(), newest.values, what="Run", hint=(
            "Resume with what the run was started with, or start another one in another directory: "
            f"hf.load({str(newest.path)!r}, into=model) takes the model alone."
        ))
        if state["data"] is not None and self._data is not None:
            self._data.restore(state["data"])
        self._position = state["data"]
        self.step, self.epoch, self._in_epoch = newest.step, state["epoch"], state["in_epoch"]
        self._elapsed, self._stopped, self.state = state["seconds"], state["stopped"], state["user"]
        self._saved_at = newest.step
        self._records.restore(state["records"], newest.step)
        self._display.say(f"Resumed at step {newest.step} from {newest.path}")

    def _require_same_step(self, newest: Checkpoint | None) -> None:
        """Raise if other processes found another checkpoint, which they do if they do not share the directory."""
        joined = member()
        if joined is not None and self.directory is not None:
            found = "no checkpoint" if newest is None else f"the checkpoint {newest.path.name}"
            joined.compare("Run", found, lambda: [f"{found} in {str(self.directory)!r}"])

    def _require_same_data(self, position: Any) -> None:
        if self._data is not None and (position is None) != (self._where is None):
            raise ArgumentError("Run: the data is of another kind than that of the checkpoint",
                                got=f"{type(self._data).__name__}, {'with' if position is None else 'without'} state()",
                                hint="Resume with the data that the run was started with.")

    @property
    def at_start_of_epoch(self) -> bool:
        """Whether the epoch has yielded nothing yet."""
        return self._in_epoch == 0

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called, in this process or an earlier one."""
        return self._stopped

    @property
    def is_saved(self) -> bool:
        """Whether the present step has a checkpoint."""
        return self._saved_at == self.step

    # -- the loop -------------------------------------------------------------------------------------------------

    def steps(self, count: int | None = None) -> Iterator[Any]:
        """Yield items of the data, one for each step, epoch after epoch, until there were `count` steps in all.

        Steps from before the run was resumed count. If there is a directory, a checkpoint is written at the end and at
        Ctrl-C, but not if the loop is left in another way.

        Args:
            count: the number of the last step; None goes on until `stop` is called.

        Raises:
            ArgumentError: the run has no data, or the data yields nothing.
        """
        if count is not None and (not isinstance(cast(object, count), int) or count < 0):
            raise ArgumentTypeError("run.steps: the number of steps is an int", got=f"count={count!r}")
        steps = self._steps(count)
        _LOOPS.add(steps)
        return steps

    def _steps(self, count: int | None) -> Generator[Any]:
        with self.loop(count):
            while (count is None or self.step < count) and not self._stopped:
                yield from self.rest_of_epoch(count)

    def rest_of_epoch(self, count: int | None = None) -> Iterator[Any]:
        """Yield the remaining items of the epoch, at most until there were `count` steps in all."""
        interrupts, display, where = self._interrupts, self._display, self._where
        begun = self._in_epoch > 0
        for item in self._rest():
            interrupts.begin_step()
            if where is not None:
                self._position = where()
            self.step += 1
            self._activity.at(self.step)
            self._in_epoch += 1
            self._examples += _rows(item)
            yield item
            interrupts.step_ends()
            if time.perf_counter() >= self._due:
                self._refresh()
                self._due = time.perf_counter() + display.interval
            if self.step == count or self._stopped:
                return
        if self._in_epoch == 0 and not begun:
            raise ArgumentError(f"run.steps: the data yields nothing in epoch {self.epoch + 1}",
                                got=f"{type(self._data).__name__}, after {self.step} steps",
                                hint="An iterator can be used once; give a list, hf.data.Batches or a loader.")
        with interrupts.held():
            self._source = None
            self.epoch += 1
            self._in_epoch = 0
            if where is not None:
                self._position = where()

    def _rest(self) -> Iterator[Any]:
        """Return the iterator over the remaining items of the epoch; it continues where an earlier loop stopped."""
        if self._data is None:
            raise ArgumentError("run.steps: the run has no data",
                                hint="Give Run(..., data=) something to iterate over.")
        if self._source is None:
            skipped = 0
            if self._in_epoch and self._where is None:
                skipped = self._in_epoch
            elif self._in_epoch or self._position is not None:
                self._data.restore(self._position)
            self._source = islice(iter(self._data), skipped, None) if skipped else iter(self._data)
        return self._source

    @contextmanager
    def loop(self, count: int | None) -> Generator[None]:
        """Return a context for loops over `rest_of_epoch`; `steps` enters one itself.

        Args:
            count: the total number of steps; None if it is not known.
        """
        self._examples = 0
        self._since = time.perf_counter()
        self._due = self._since + self._display.interval  # not of each epoch, which may be shorter
        self._loops = True
        self._display.begin(self.step, count)
        self._activity.begin(self.step, count)
        self._interrupts.begin()
        how = "finished"
        try:
            yield
            self._finish()
        except (KeyboardInterrupt, Terminated):
            how = "interrupted"
            with self._interrupts.held():
                self._finish()
            raise
        except GeneratorExit:  # the loop was left, for example by break
            how = "left"
            self.wait()
            raise
        except BaseException as error:
            how = f"failed: {type(error).__name__}"
            raise
        finally:
            self._activity.at(self.step)
            self._activity.end(how)
            self._end()

    def undivided(self) -> AbstractContextManager[None]:
        """Return a context that Ctrl-C lets finish, like a step."""
        return self._interrupts.held()

    def _end(self) -> None:
        self._interrupts.end()
        try:
            self._records.flush(wait=False)
            self._records.rest()
        finally:
            self._loops = False
            self._display.refresh(self.step, self._present_epoch(), self._examples)
            self._display.end(self._present_epoch())
            self._elapsed, self._since = self.seconds, time.perf_counter()

    def _finish(self) -> None:
        """Write the last checkpoint and the log."""
        if self._checkpoints is not None and self._saved_at != self.step:
            self.checkpoint()
        self.wait()

    def _refresh(self) -> None:
        self._records.flush(wait=False, before=self.step)
        self._display.figures(known_numbers(self._running))
        self._display.refresh(self.step, self._present_epoch(), self._examples)

    def _present_epoch(self) -> int:
        """Return the number of the epoch, from 1; between two epochs, that of the one which has ended."""
        return self.epoch + (self._in_epoch > 0 or self.epoch == 0)

    def _notice(self, name: str) -> None:
        what = "Ctrl-C" if name == "SIGINT" else name
        self._display.say(f"{what}: stopping after this step; again to stop at once")

    def every(self, count: int) -> bool:
        """Return whether the number of the present step is a multiple of `count`."""
        return self.step % count == 0

    def stop(self) -> None:
        """Let the loop end after this step; a run that is resumed later stays stopped."""
        self._stopped = True

    @property
    def seconds(self) -> float:
        """The time that the run has taken, over all its processes."""
        return self._elapsed + time.perf_counter() - self._since

    # -- figures --------------------------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Log numbers of the present step: to the progress, to ``log.jsonl``, and for TensorBoard if asked for.

        Tensors are read once they are computed, so nothing waits for them here.

        Args:
            values: numbers, or tensors with one element, by name.
            named: more of them.

        Raises:
            ShapeError: a tensor has more or fewer elements than one.
            TraceError: this is called inside a compiled function.
        """
        if is_tracing():
            raise TraceError("run.log: a compiled function would log when it is traced only",
                             hint="Return the value from the step, and log it in the loop.")
        if values:
            named = {**values, **named}
        self._records.add(self.step, self._present_epoch(), self._elapsed + time.perf_counter() - self._since, named)
        if not self._loops:
            self._records.flush(wait=True)
            self._records.rest()

    def show(self, **values: Any) -> None:
        """Show numbers in the progress without logging them; they replace numbers with the same names."""
        self._running = values

    def last(self, name: str) -> float:
        """Return the value that was logged last by a name.

        Raises:
            ArgumentError: nothing was logged by that name.
        """
        return self._records.known("run.last", name).last

    def best(self, name: str, *, larger: bool | None = None) -> float:
        """Return the best value that was logged under a name; see `stalled`.

        Raises:
            ArgumentError: nothing was logged by that name, or it is not known whether larger is better.
        """
        seen = self._records.known("run.best", name)
        return seen.largest if larger_is_better("run.best", name, larger) else seen.smallest

    def stalled(self, name: str, patience: int, *, larger: bool | None = None) -> bool:
        """Return whether none of the last values logged by a name is better than the best one before them.

        Args:
            name: the name.
            patience: the number of last values.
            larger: whether larger values are better. None decides by the name: they are for names such as
                ``accuracy``, and they are not for names such as ``loss`` and ``error``.

        Raises:
            ArgumentError: nothing was logged by that name, or it is not known whether larger is better.
        """
        larger = larger_is_better("run.stalled", name, larger)
        seen = self._records.known("run.stalled", name)
        return seen.count - (seen.at_largest if larger else seen.at_smallest) >= patience

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint(self, *, keep: int | None = None, best: str | None = None, larger: bool | None = None) -> Any:
        """Write a checkpoint of everything the run was made with, after the present step.

        It has the present values; later changes do not affect it. A thread writes it, whole or not at all.

        Args:
            keep: the number of newest checkpoints to keep beside the best one; None keeps all.
            best: the name of a logged value that measures how good this checkpoint is.
            larger: as for `stalled`.

        Returns:
            A handle: after ``handle.wait()`` the checkpoint is on the disk.

        Raises:
            ArgumentError: the run has no directory, or nothing was logged by that name.
            FileError: the thread could not write an earlier checkpoint.
        """
        if self._checkpoints is None:
            raise ArgumentError("run.checkpoint: the run has no directory", hint='Use Run("runs/a", ...).')
        score = None
        if best is not None:
            larger = larger_is_better("run.checkpoint", best, larger)
            last = self._records.known("run.checkpoint", best).last
            score = last if larger else -last
        self._records.flush(wait=True)
        state = {
            "data": self._position, "epoch": self.epoch, "in_epoch": self._in_epoch, "seconds": self.seconds,
            "stopped": self._stopped, "records": self._records.state(), "user": self.state,
        }
        handle = self._checkpoints.write(self.step, self._everything(), state, score=score, keep=keep)
        self._saved_at = self.step
        return handle

    @property
    def best_checkpoint(self) -> Path | None:
        """The file of the best checkpoint that was written with ``best=``; None if there is none.

        ``hf.load(run.best_checkpoint, into=model)`` takes its weights.
        """
        found = None if self._checkpoints is None else self._checkpoints.best()
        return None if found is None else found.path

    def wait(self) -> None:
        """Wait until the checkpoints are on the disk, and the log is written.

        Raises:
            FileError: the thread could not write a checkpoint.
        """
        self._records.flush(wait=True)
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def close(self) -> None:
        """Wait as `wait` does, and close the log's files; a later `log` opens them again."""
        self._records.close()
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "" if self.directory is None else f"{str(self.directory)!r}, "
        return f"Run({where}step={self.step}, epoch={self.epoch})"


def _require_there(parts: dict[str, Any], mesh: Mesh) -> None:
    """Raise if a Variable among the parts of a run lies on another mesh."""
    if not isinstance(cast(object, mesh), Mesh):
        raise ArgumentTypeError("Run: mesh is no hf.Mesh", got=repr(mesh)[:80])
    for path, variable in flat(parts, "Run").items():
        placement = variable.placement if isinstance(variable, Variable) else None
        if placement is not None and placement.mesh != mesh:
            raise LayoutError(f"Run: Variable {path!r} lies on another mesh than the run's", got=f"{placement}; {mesh}",
                              hint="Lay out everything on one mesh: see hf.distribute.shard.")


_LOOPS: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()
"""The iterators of `Run.steps` that have not ended, or that somebody keeps."""


@atexit.register
def _leave_loops() -> None:
    """End loops that the program has left and keeps, while there are still modules that they end with."""
    for steps in list(_LOOPS):
        if inspect.getgeneratorstate(steps) != inspect.GEN_RUNNING:  # a thread's
            steps.close()


def _state_of(data: Any) -> Callable[[], Any] | None:
    """Return the function that returns the data's position; None if the data cannot be restored to one."""
    source = data
    while isinstance(source, Prefetched):
        source = source.source
    return data.state if hasattr(source, "state") and hasattr(source, "restore") else None


def _rows(item: Any) -> int:
    """Return the number of examples in an item by its first array, or 0 if it has no shape."""
    while True:
        if isinstance(item, tuple | list) and item:
            item = cast(Any, item)[0]
        elif isinstance(item, Mapping) and item:
            item = next(iter(cast("Mapping[Any, Any]", item).values()))
        else:
            shape = getattr(item, "shape", ())
            return shape[0] if shape else 0


# -- Ctrl-C and SIGTERM -----------------------------------------------------------------------------------------------
# Ctrl-C and SIGTERM in a loop of steps: the present step is finished first, in all processes of a run the same one.


class Terminated(SystemExit):
    """SIGTERM, after the present step; it ends the program with the exit code that shells expect then."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a loop runs in the main thread, unless the program has handlers of its own.

    The first one within a step is remembered, and raised when the step is done. A second one is raised at once. So is
    every one between steps. Of several processes, all stop after the same step, whichever got the signal.

    Attributes:
        in_step: whether a step is running.
    """

    __slots__ = ("_before", "_held", "_notice", "_together", "in_step")

    def __init__(self, notice: Any) -> None:
        self._notice = notice
        self._held: int | None = None
        self._together = member()
        self.in_step = False
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        """Handle the signals from now on."""
        self.in_step, self._held = False, None
        if threading.current_thread() is not threading.main_thread():
            return
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                self._before[number] = signal.signal(number, self._take)

    def end(self) -> None:
        """Restore the system's own handling of the signals."""
        while self._before:
            signal.signal(*self._before.popitem())

    def begin_step(self) -> None:
        """Begin a step, unless all processes stop before it.

        Raises:
            KeyboardInterrupt, Terminated: they do.
        """
        if self._together is not None and not self._together.begins_step():
            number, self._held = self._held, None
            raise _exception(number or signal.SIGTERM)
        self.in_step = True

    def step_ends(self) -> None:
        """End the step, and raise what came during it.

        Raises:
            KeyboardInterrupt: Ctrl-C came during the step.
            Terminated: SIGTERM did.
        """
        self.in_step = False
        if self._held is not None and self._together is None:
            number, self._held = self._held, None
            raise _exception(number)

    @contextmanager
    def held(self) -> Generator[None]:
        """Return a context that the signals let finish, like a step."""
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False
        self.step_ends()

    def _take(self, number: int, frame: Any) -> None:
        if self._held is not None or (not self.in_step and self._together is None):
            raise _exception(number)
        self._held = number
        if self._together is not None:
            self._together.ask_to_stop()
        self._notice(signal.Signals(number).name)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


# -- the progress display of a run: a bar in a terminal or notebook, else a line from time to time --------------------

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
